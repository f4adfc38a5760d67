/*
 * start_rule.c - what "auto" means, and what is more than the server has.
 *
 * Decided without I/O; extension/test/unit/start_rule_test.c has the tables.
 */
#include "postgres.h"

#include "replay/start_rule.h"

/* The queue gets at most one part in this number of the memory: the rest is PostgreSQL's. */
#define LS_QUEUE_SHARE 4

/*
 * Majors on which scripts/soak has run with helpers, if not in full. On another one
 * lockstep.replay_workers = auto means 0: on 16 the extension is only compiled, on 19 its short tests run.
 */
const int	ls_tested_majors[] = {15, 17, 18, 0};

/*
 * Majors on which lockstep.replay_hot_standby = auto means on. A major belongs here once scripts/soak has
 * run on it with this code, without a difference: 200 seeds of helpers-equality, 200 crashes of helpers-crashes of
 * which a third are power cuts, 40 snapshots of helpers-invariants, and PostgreSQL's recovery suite with helpers
 * and with assertions; and once somebody who did not write it has attacked it there. docs/explanation.md has a
 * table of how far each major is, which a test of the program's compares with this list.
 */
const int	ls_soaked_majors[] = {15, 0};

bool
ls_is_listed(int major, const int *majors)
{
	while (*majors != 0 && *majors != major)
		majors++;
	return *majors != 0;
}

/*
 * Helpers for lockstep.replay_workers = auto.
 *
 * is_tested: the major is among ls_tested_majors. cores: those that the server may use; a part of one counts
 * as none, since two processes that run would use up a quota of less than two cores, and stand still until
 * the next period. room: background workers that are left.
 */
int
ls_automatic_helpers(bool is_tested, double cores, int room)
{
	int			spare = (int) Min(cores, LS_MOST_AUTOMATIC + 1) - 1;

	return is_tested ? Max(Min(spare, room), 0) : 0;
}

/*
 * How many of them may work in hot standby. There they stay, and parallel queries need background workers as
 * well: at least half of those that are left are left to these, unless there is only one.
 */
int
ls_automatic_hot_helpers(int helpers, int room)
{
	return Min(helpers, Max(room / 2, 1));
}

/* Size of the queue. memory_kb: that the server may use; 0: not known. */
int
ls_queue_within_memory(int wanted_kb, uint64 memory_kb)
{
	if (memory_kb == 0 || (uint64) wanted_kb <= memory_kb / LS_QUEUE_SHARE)
		return wanted_kb;
	return Max((int) (memory_kb / LS_QUEUE_SHARE), LS_MIN_QUEUE_KB);
}

/* Do helpers work while sessions read? is_soaked: the major is among ls_soaked_majors. */
bool
ls_hot_standby_is_on(LsAutoSwitch setting, bool is_soaked)
{
	return setting == LS_AUTO ? is_soaked : setting == LS_ON;
}
