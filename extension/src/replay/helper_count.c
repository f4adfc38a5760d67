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
#include "state/clock.h"

/* Records between two steps. */
#define LS_WINDOW 8192

/* Between two looks at how long processes waited for a core. */
#define LS_LOOK_US (100 * 1000)

/* The kernel counts what was read from storage in these. */
#define LS_SECTORS_OF_PAGE (BLCKSZ / 512)

/* ---- Startup process ---------------------------------------------------- */

static LsHelperState state;
static LsHelperInput before;	/* sums over helpers, when the window began */
static uint64 records = 0;		/* of the window */
static uint64 done = 0;

/* For how long each process had waited for a core when that was last looked at. */
typedef struct LsQueued
{
	int			pid;
	int64		us;
} LsQueued;

static LsQueued queued[1 + LS_MAX_REPLAY_WORKERS];	/* the startup process, and helpers */
static int64 looked_at = 0;

static LsHelperInput
sums(void)
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
 * For how long one of the processes that replay waited for a core since this was last called,
 * at most. Once in LS_LOOK_US, since a slice of another process is no need.
 */
static void
look_at_cores(LsHelperInput *in)
{
	int64		now = ls_now_us();

	if (now - looked_at < LS_LOOK_US)
		return;
	in->elapsed_us = (uint64) (now - looked_at);
	looked_at = now;
	for (int i = -1; i < state.used; i++)
	{
		int			pid = i < 0 ? MyProcPid :
			(int) pg_atomic_read_u32(&ls_queue->helpers[i].pid);
		LsQueued   *last = &queued[i + 1];
		int64		us = pid == 0 ? -1 : ls_sched_queued_us(pid);

		if (us >= 0 && last->pid == pid)
			in->queued_us = Max(in->queued_us, (uint64) (us - last->us));
		last->pid = us >= 0 ? pid : 0;
		last->us = us;
	}
}

/*
 * With lockstep.replay_min_backlog = 0, which is for tests, all helpers start, whatever the cores,
 * and take records all the time. So tests of several helpers need no machine with as many cores.
 */
static bool
all_help(void)
{
	return ls_replay_min_backlog == 0;
}

static void
publish(void)
{
	pg_atomic_write_u32(&ls_queue->used, (uint32) state.used);
	pg_atomic_write_u32(&ls_queue->used_why, (uint32) state.why);
}

static void
begin_state(void)
{
	ls_helpers_begin(&state, ls_replay_workers,
					 all_help() ? 1 + ls_replay_workers : ls_sched_cores());
}

static void
begin_window(void)
{
	before = sums();
	records = done = 0;
}

/* None has started yet; returns how many should. */
int
ls_helper_count_begin(void)
{
	begin_state();
	publish();
	begin_window();
	return state.used;
}

/* No more than these could be started. */
void
ls_helper_count_limit(int started)
{
	state.used = Min(state.used, started);
	publish();
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

	done += by_helper;
	if (++records < LS_WINDOW)
		return LS_PARALLEL;
	in = sums();
	in.given_back -= before.given_back;
	in.executed -= before.executed;
	in.blocked -= before.blocked;
	in.pages_read -= before.pages_read;
	in.workers = ls_replay_workers;
	in.cores = ls_sched_cores();
	in.records = records;
	in.done = done;
	look_at_cores(&in);
	/* a reload may have asked for all of them */
	if (all_help())
		begin_state();
	else
		enough = ls_helpers_step(&state, &in);
	publish();
	*wanted = state.used;
	begin_window();
	if (enough)
		return LS_PARALLEL;
	return in.elapsed_us > 0 && state.crowded ? LS_NO_SPARE_CORE : LS_NO_USE;
}

/* ---- Helper ------------------------------------------------------------- */

static struct rusage noted;

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
	sectors = now.ru_inblock - noted.ru_inblock;
	pg_atomic_write_u64(&helper->blocked, pg_atomic_read_u64(&helper->blocked) +
						(uint64) (now.ru_nvcsw - noted.ru_nvcsw));
	pg_atomic_write_u64(&helper->pages_read, pg_atomic_read_u64(&helper->pages_read) +
						sectors / LS_SECTORS_OF_PAGE);
	/* what is less than a page counts next time */
	now.ru_inblock -= sectors % LS_SECTORS_OF_PAGE;
	noted = now;
}

/* What it has slept for since the last call was no record. */
void
ls_helper_skip_waits(void)
{
	(void) getrusage(RUSAGE_SELF, &noted);
}
