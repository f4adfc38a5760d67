/*
 * helper_count.c - what helpers do and wait for, and how many of them it is worth.
 *
 * The rule is in helper_rule.c; here is what it is fed with.
 *
 * The first part runs in the startup process, the second in a helper. Shared state: counters
 * of LsHelper, which their helper writes and the startup process reads; LsQueueShared.used and
 * used_why, which the startup process writes. No lock.
 */
#include "postgres.h"

#include <sys/resource.h>

#include "miscadmin.h"

#include "priority/sched_linux.h"
#include "replay/helper_count.h"
#include "replay/helper_rule.h"
#include "replay/start_limits.h"
#include "state/clock.h"

/* Records between two steps. */
#define LS_WINDOW 8192

/* Least time between two looks at how long processes waited for a core. */
#define LS_LOOK_US (100 * 1000)

/* Units in which the kernel counts what was read from storage, in a page. */
#define LS_SECTORS_OF_PAGE (BLCKSZ / 512)

/* State of the startup process. */
static LsHelperState helper_count_state;
static LsHelperInput helper_count_before;	/* sums over helpers, when the window began */
static uint64 helper_count_records = 0; /* retired in the window */
static uint64 helper_count_done = 0;	/* records of these that helpers had done */

/* Time for which a process had waited for a core when that was last looked at. */
typedef struct LsQueued
{
	int			pid;
	int64		us;
} LsQueued;

/* The startup process, and helpers. */
static LsQueued helper_count_queued[1 + LS_MAX_REPLAY_WORKERS];
static int64 helper_count_looked_at = 0;

/* State of a helper: what the kernel had counted when it was last looked at. */
static struct rusage helper_count_noted;

static void helper_count_begin_state(void);
static int helper_count_most(void);
static bool helper_count_all_help(void);
static void helper_count_publish(void);
static void helper_count_begin_window(void);
static LsHelperInput helper_count_sums(void);
static void helper_count_look_at_cores(LsHelperInput *in);

/* Begins to count, before a helper has started; returns how many should. */
int
ls_helper_count_begin(void)
{
	helper_count_begin_state();
	helper_count_publish();
	helper_count_begin_window();
	return helper_count_state.used;
}

/* Tells that no more helpers than these could be started. */
void
ls_helper_count_limit(int started)
{
	helper_count_state.used = Min(helper_count_state.used, started);
	helper_count_publish();
}

/*
 * A record was retired. Once in a while it sets how many helpers should have started, one at
 * least. Other than LS_PARALLEL: why they should not go on.
 */
LsPipelineState
ls_helper_count_record(bool by_helper, int *wanted)
{
	LsHelperInput in;
	bool		enough = true;

	helper_count_done += by_helper;
	if (++helper_count_records < LS_WINDOW)
		return LS_PARALLEL;
	in = helper_count_sums();
	in.given_back -= helper_count_before.given_back;
	in.executed -= helper_count_before.executed;
	in.blocked -= helper_count_before.blocked;
	in.pages_read -= helper_count_before.pages_read;
	in.workers = helper_count_most();
	in.cores = ls_sched_cores();
	in.records = helper_count_records;
	in.done = helper_count_done;
	helper_count_look_at_cores(&in);
	/* a reload may have asked for all of them */
	if (helper_count_all_help())
		helper_count_begin_state();
	else
		enough = ls_helpers_step(&helper_count_state, &in);
	helper_count_publish();
	*wanted = helper_count_state.used;
	helper_count_begin_window();
	if (enough)
		return LS_PARALLEL;
	if (in.cores < LS_LEAST_CORES)
		return LS_NO_CORE;
	return in.elapsed_us > 0 && helper_count_state.crowded ? LS_NO_SPARE_CORE : LS_NO_USE;
}

/* A helper has read a record: that is of use as well. */
void
ls_helper_count_read(void)
{
	helper_count_done++;
}

/*
 * Adds what happened since the last call, or since ls_helper_skip_waits(): this process has
 * slept for nothing but records since.
 */
void
ls_helper_note_waits(LsHelper *helper)
{
	struct rusage now;
	uint64		sectors;

	if (getrusage(RUSAGE_SELF, &now) != 0)
		return;
	sectors = now.ru_inblock - helper_count_noted.ru_inblock;
	pg_atomic_write_u64(&helper->blocked, pg_atomic_read_u64(&helper->blocked) +
						(uint64) (now.ru_nvcsw - helper_count_noted.ru_nvcsw));
	pg_atomic_write_u64(&helper->pages_read, pg_atomic_read_u64(&helper->pages_read) +
						sectors / LS_SECTORS_OF_PAGE);
	/* what is less than a page counts next time */
	now.ru_inblock -= sectors % LS_SECTORS_OF_PAGE;
	helper_count_noted = now;
}

/* Leaves out what the process has slept for since the last call: it was no record. */
void
ls_helper_skip_waits(void)
{
	(void) getrusage(RUSAGE_SELF, &helper_count_noted);
}

static void
helper_count_begin_state(void)
{
	ls_helpers_begin(&helper_count_state, helper_count_most(),
					 helper_count_all_help() ? 1 + helper_count_most() : ls_sched_cores());
}

static int
helper_count_most(void)
{
	return pg_atomic_read_u32(&ls_queue->hot) != 0 ? ls_most_hot_helpers : ls_most_helpers;
}

/*
 * With lockstep.replay_min_backlog = 0, which is for tests, all helpers start, whatever the cores,
 * and take records all the time. So tests of several helpers need no machine with as many cores.
 */
static bool
helper_count_all_help(void)
{
	return ls_replay_min_backlog == 0;
}

static void
helper_count_publish(void)
{
	pg_atomic_write_u32(&ls_queue->used, (uint32) helper_count_state.used);
	pg_atomic_write_u32(&ls_queue->used_why, (uint32) helper_count_state.why);
}

static void
helper_count_begin_window(void)
{
	helper_count_before = helper_count_sums();
	helper_count_records = helper_count_done = 0;
}

static LsHelperInput
helper_count_sums(void)
{
	LsHelperInput in = {0};

	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
	{
		LsHelper   *helper = &ls_queue->helpers[i];

		in.given_back += pg_atomic_read_u64(&helper->given_back);
		in.executed += pg_atomic_read_u64(&helper->records);
		in.blocked += pg_atomic_read_u64(&helper->blocked);
		in.pages_read += pg_atomic_read_u64(&helper->pages_read);
	}
	return in;
}

/*
 * Sets the longest time that one of the processes that replay waited for a core since the last look.
 * Once in LS_LOOK_US, since one slice of another process says nothing.
 */
static void
helper_count_look_at_cores(LsHelperInput *in)
{
	int64		now = ls_now_us();

	if (now - helper_count_looked_at < LS_LOOK_US)
		return;
	in->elapsed_us = (uint64) (now - helper_count_looked_at);
	helper_count_looked_at = now;
	for (int i = -1; i < helper_count_state.used; i++)
	{
		int			pid = i < 0 ? MyProcPid :
			(int) pg_atomic_read_u32(&ls_queue->helpers[i].pid);
		LsQueued   *last = &helper_count_queued[i + 1];
		LsSchedTimes times;
		int64		us = pid != 0 && ls_sched_times(pid, &times) ? times.queued_us : -1;

		if (us >= 0 && last->pid == pid)
			in->queued_us = Max(in->queued_us, (uint64) (us - last->us));
		last->pid = us >= 0 ? pid : 0;
		last->us = us;
	}
}
