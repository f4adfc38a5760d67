/*
 * line_rule.c - in which of the gate's lines a session waits, and from which the next one comes.
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
 *
 * The express line is for fairness between users. The first queries of 20 new sessions are light, as
 * nothing is known of them, and a look-up would wait for all of these reports. A few places beside the
 * others (ls_express_is_open()) are only for short queries of users who have nothing inside the gate. They
 * take no turn from anybody. What seemed short and is not counts among the others after LS_SHORT_US, and
 * its user then has something inside. So a user has one such query at a time, and all users
 * together as many as the limit.
 */
#include "postgres.h"

#include "gate/line_rule.h"

/* Cost from which the planner expects more than a short query. */
#define SHORT_COST 1000.0
/* One express place for this part of the limit, but one at least. */
#define EXPRESS_PART 4

/*
 * The line for a session. A quarter of a turn is the bound between light and heavy: a session that
 * comes back as fast as it can still waits for its client and for the CPU in between. With a turn of 0
 * every query is heavy that is not its session's first.
 */
LsLine
ls_line_of(const LsLineInput *in)
{
	if (in->cost <= SHORT_COST && !in->was_misjudged && !in->user_is_inside)
		return LS_LINE_EXPRESS;
	return in->used_us > in->turn_us / 4 ? LS_LINE_HEAVY : LS_LINE_LIGHT;
}

/*
 * Is there a place for one more of the express line? express: how many of these places are taken.
 * running and capacity: of the others. Long queries that seemed short have made more than the
 * capacity run.
 */
bool
ls_express_is_open(uint32 express, uint32 running, uint32 capacity, uint32 limit)
{
	uint32		over = running > capacity ? running - capacity : 0;

	return express < Max(limit / EXPRESS_PART, 1) && over < Max(limit, 1);
}

/*
 * Who gets a place that is not of the express line. lights, heavies: how many wait in each line.
 * lights_since: light sessions that were let in since the last heavy one.
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
