/*
 * start_rule_test.c - tables of what "auto" means, and of queues in little memory.
 */
#include "postgres.h"

#include "replay/start_rule.h"
#include "tap.h"

#define GB (1024 * 1024)
#define MB 1024

/* ---- lockstep.replay_workers = auto ---- */

typedef struct HelpersRow
{
	double		cores;
	int			room;
	int			helpers;
} HelpersRow;

static const HelpersRow helpers_rows[] = {
	{1, 5, 0}, {2, 5, 1}, {3, 5, 2}, {4, 5, 3}, {5, 5, 4}, {6, 5, 4}, {1024, 5, 4},
	/* quotas of a cgroup */
	{0.25, 5, 0}, {1.5, 5, 0}, {1.99, 5, 0}, {2.5, 5, 1}, {4.9, 5, 3}, {1e12, 5, 4},
	/* as many as there are background workers */
	{8, 4, 4}, {8, 3, 3}, {8, 0, 0}, {2, 0, 0}, {1, 0, 0},
};

static void
test_helpers(void)
{
	for (int i = 0; i < lengthof(helpers_rows); i++)
	{
		const HelpersRow *row = &helpers_rows[i];
		int			helpers = ls_automatic_helpers(true, row->cores, row->room);

		ok(helpers == row->helpers, "%g cores and %d background workers: %d helpers (is %d)",
		   row->cores, row->room, row->helpers, helpers);
		ok(ls_automatic_helpers(false, row->cores, row->room) == 0, "none on a major that is not tested");
	}
}

typedef struct HotHelpersRow
{
	int			helpers;
	int			room;
	int			in_hot_standby;
} HotHelpersRow;

static const HotHelpersRow hot_helpers_rows[] = {
	/* with the default of max_worker_processes */
	{4, 5, 2}, {3, 5, 2}, {2, 5, 2}, {1, 5, 1}, {0, 5, 0},
	{4, 16, 4}, {4, 7, 3}, {3, 3, 1}, {2, 2, 1}, {1, 1, 1}, {0, 0, 0},
};

static void
test_hot_helpers(void)
{
	for (int i = 0; i < lengthof(hot_helpers_rows); i++)
	{
		const HotHelpersRow *row = &hot_helpers_rows[i];
		int			helpers = ls_automatic_hot_helpers(row->helpers, row->room);

		ok(helpers == row->in_hot_standby, "%d helpers and %d background workers: %d in hot standby (is %d)",
		   row->helpers, row->room, row->in_hot_standby, helpers);
	}
}

/* ---- The queue ---- */

typedef struct QueueRow
{
	const char *name;
	int			wanted_kb;
	uint64		memory_kb;
	int			queue_kb;
} QueueRow;

static const QueueRow queue_rows[] = {
	{"the default on a usual server", 4 * MB, 16 * (uint64) GB, 4 * MB},
	{"the largest there is, on a large one", GB, 64 * (uint64) GB, GB},
	{"memory that is not known", GB, 0, GB},
	{"a quarter", GB, 4 * (uint64) GB, GB},
	{"less than a quarter would be", GB, 4 * (uint64) GB - 4, GB - 1},
	{"as much as there is", GB, GB, GB / 4},
	{"more than there is", GB, GB / 2, GB / 8},
	{"the least on hardly a server", 4 * MB, MB, LS_MIN_QUEUE_KB},
	{"the least, which was wanted", LS_MIN_QUEUE_KB, MB, LS_MIN_QUEUE_KB},
	{"more memory than an int counts", GB, PG_UINT64_MAX, GB},
};

static void
test_queue(void)
{
	for (int i = 0; i < lengthof(queue_rows); i++)
	{
		const QueueRow *row = &queue_rows[i];
		int			queue_kb = ls_queue_within_memory(row->wanted_kb, row->memory_kb);

		ok(queue_kb == row->queue_kb, "%s: %d kB (is %d)", row->name, row->queue_kb, queue_kb);
	}
}

/* ---- Majors ---- */

static void
test_majors(void)
{
	static const int some[] = {15, 18, 0};
	static const int none[] = {0};

	for (int major = 15; major <= 20; major++)
	{
		ok(ls_is_listed(major, some) == (major == 15 || major == 18), "%d, among 15 and 18", major);
		ok(!ls_is_listed(major, none), "%d, among none", major);
		/* docs/explanation.md says why not the others */
		ok(ls_is_listed(major, ls_tested_majors) == (major == 15 || major == 17 || major == 18),
		   "%d: have long tests run?", major);
		/* docs/explanation.md lists these, too: a test of the program's compares both */
		ok(!ls_is_listed(major, ls_soaked_majors) || ls_is_listed(major, ls_tested_majors),
		   "%d: what passed the long tests is tested", major);
	}
	for (int soaked = 0; soaked <= 1; soaked++)
	{
		ok(ls_hot_standby_is_on(LS_ON, soaked), "on is on");
		ok(!ls_hot_standby_is_on(LS_OFF, soaked), "off is off");
		ok(ls_hot_standby_is_on(LS_AUTO, soaked) == soaked, "auto goes by the long tests");
	}
}

int
main(void)
{
	test_helpers();
	test_hot_helpers();
	test_queue();
	test_majors();
	return done_testing();
}
