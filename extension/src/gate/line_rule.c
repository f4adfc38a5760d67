/*
 * line_rule.c - which of the gate's two lines the next session comes from.
 *
 * Decided without I/O; extension/test/unit/line_rule_test.c has the table.
 *
 * In one line a look-up of 0.1 ms would wait behind each of 20 sessions that use
 * their turns to the end. So those have a line of their own, and light
 * sessions go first. A heavy session still comes after LS_LIGHTS_FIRST light ones, or,
 * where more of these wait for each heavy one now, after as many. As long as the lines
 * do not grow that is no later than in one line for all. A few heavy sessions get no
 * more turns each than light ones.
 *
 * Neither line starves the other, though their lengths are those of the moment. A line
 * has at most one entry for each session there can be. So the first heavy session comes
 * after as many light turns at the latest, however fast light ones come. Entries of
 * sessions that gave up count until they are taken out, within the same bound. A light
 * session waits for one heavy turn in LS_LIGHTS_FIRST light ones at most.
 */
#include "postgres.h"

#include "gate/line_rule.h"

/*
 * The line for a session that has executed for used_us in its last turn. A quarter of
 * a turn is the bound: a session that comes back as fast as it can still waits for its
 * client and for the CPU in between. With a turn of 0 every query is heavy that is not
 * its session's first.
 */
LsLine
ls_line_of(int64 used_us, int64 turn_us)
{
	return used_us > turn_us / 4 ? LS_LINE_HEAVY : LS_LINE_LIGHT;
}

/*
 * lights, heavies: how many wait in each line. lights_since: light sessions that were
 * let in since the last heavy one.
 */
LsLine
ls_line_to_serve(uint32 lights, uint32 heavies, uint32 lights_since)
{
	if (heavies == 0)
		return LS_LINE_LIGHT;
	if (lights == 0)
		return LS_LINE_HEAVY;
	return lights_since < Max(LS_LIGHTS_FIRST, lights / heavies) ? LS_LINE_LIGHT : LS_LINE_HEAVY;
}
