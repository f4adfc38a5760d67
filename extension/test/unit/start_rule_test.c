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
		int			helpers = ls_automatic_helpers(row->cores, row->room);

		ok(helpers == row->helpers, "%g cores and %d background workers: %d helpers (is %d)",
		   row->cores, row->room, row->helpers, helpers);
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

/* ---- lockstep.replay_hot_standby ---- */

static void
test_hot_standby(void)
{
	static const int some[] = {15, 18, 0};
	static const int none[] = {0};

	for (int major = 15; major <= 19; major++)
	{
		bool		soaked = major == 15 || major == 18;

		ok(ls_hot_standby_is_on(LS_HOT_ON, major, none), "on %d: on is on", major);
		ok(!ls_hot_standby_is_on(LS_HOT_OFF, major, some), "on %d: off is off", major);
		ok(!ls_hot_standby_is_on(LS_HOT_AUTO, major, none), "on %d: auto is off without long tests", major);
		ok(ls_hot_standby_is_on(LS_HOT_AUTO, major, some) == soaked, "on %d: auto goes by the table", major);
		/* whoever adds a major has run what start_rule.c names */
		ok(!ls_hot_standby_is_on(LS_HOT_AUTO, major, ls_soaked_majors), "on %d: auto is off yet", major);
	}
}

int
main(void)
{
	test_helpers();
	test_queue();
	test_hot_standby();
	return done_testing();
}
