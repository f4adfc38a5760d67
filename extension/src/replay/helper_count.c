/*
 * helper_count.c - what helpers do and wait for, and how many of them it is worth.
 *
 * The rules are in helper_rule.c and rest_rule.c; here is what they are fed with.
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
#include "replay/rest_rule.h"
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
static int64 looked_at = 0;		/* or when helpers began, or a rest */
static XLogRecPtr looked_to = InvalidXLogRecPtr;	/* how far replay was then */
static uint64 looked_after = 0; /* records since */
static uint64 looked_done = 0;	/* of these, by helpers */
static bool idle = false;		/* since then, replay has waited for WAL */

static LsRestState rests;
static uint32 resting = 0;		/* records of the rest that began then */

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

/* How long each process has waited for a core by now; longest: since this was last called. */
static void
note_queued(uint64 *longest)
{
	for (int i = -1; i < state.used; i++)
	{
		int			pid = i < 0 ? MyProcPid :
			(int) pg_atomic_read_u32(&ls_queue->helpers[i].pid);
		LsQueued   *last = &queued[i + 1];
		int64		us = pid == 0 ? -1 : ls_sched_queued_us(pid);

		if (us >= 0 && last->pid == pid)
			*longest = Max(*longest, (uint64) (us - last->us));
		last->pid = us >= 0 ? pid : 0;
		last->us = us;
	}
}

/*
 * For how long one of the processes that replay waited for a core since this was last called,
 * at most. Once in LS_LOOK_US, since a slice of another process is no need.
 */
static void
look_at_cores(LsHelperInput *in)
{
	int64		elapsed = ls_now_us() - looked_at;

	if (elapsed < LS_LOOK_US)
		return;
	in->elapsed_us = (uint64) elapsed;
	note_queued(&in->queued_us);
}

static void
publish(void)
{
	pg_atomic_write_u32(&ls_queue->used, (uint32) state.used);
	pg_atomic_write_u32(&ls_queue->used_why, (uint32) state.why);
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
	ls_helpers_begin(&state, ls_replay_workers, ls_sched_cores());
	ls_rest_begin(&rests);
	publish();
	return state.used;
}

/* What was replayed since it was last looked, up to end. */
static LsReplayed
replayed_since(uint64 count, XLogRecPtr end)
{
	LsReplayed	replayed = {.records = count,.done = looked_done,.bytes = end - looked_to,
	.us = (uint64) (ls_now_us() - looked_at)};

	return replayed;
}

static void
begin_look(XLogRecPtr end)
{
	looked_at = ls_now_us();
	looked_to = end;
	looked_after = looked_done = 0;
	idle = false;
}

/* Helpers begin to work at end; busy: all along their rest, if they had one, WAL was there. */
void
ls_helper_count_resume(XLogRecPtr end, bool busy)
{
	LsReplayed	unknown = {0};
	LsReplayed	replayed = replayed_since(resting, end);
	uint64		ignored = 0;

	if (resting > 0)
		ls_rest_ended(&rests, busy ? &replayed : &unknown);
	resting = 0;
	begin_look(end);
	note_queued(&ignored);
	begin_window();
}

/* No more than these could be started. */
void
ls_helper_count_limit(int started)
{
	state.used = Min(state.used, started);
	publish();
}

/* There is less WAL than helpers are worth. */
void
ls_helper_count_idle(void)
{
	idle = true;
}

/* Why helpers should not go on, and for how many records; LS_PARALLEL: they do. */
static LsPipelineState
why_rest(const LsHelperInput *in, XLogRecPtr end)
{
	bool		crowded = ls_helpers_step(&state, in);
	LsReplayed	replayed = replayed_since(looked_after, end);
	uint32		rest = 0;

	if (in->elapsed_us == 0)
		return LS_PARALLEL;
	if (!idle)
		rest = ls_rest_step(&rests, crowded, &replayed);
	begin_look(end);
	if (rest == 0)
		return LS_PARALLEL;
	resting = rest;
	return crowded ? LS_NO_SPARE_CORE : LS_NO_USE;
}

/*
 * A record was retired, which ends at end. Once in a while it sets how many helpers should have
 * started, one at least. Other than LS_PARALLEL: why they should not go on, for *rest records.
 */
LsPipelineState
ls_helper_count_record(bool by_helper, XLogRecPtr end, int *wanted, uint32 *rest)
{
	LsHelperInput in;
	LsPipelineState why;

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
	looked_after += records;
	looked_done += done;
	look_at_cores(&in);
	why = why_rest(&in, end);
	publish();
	*wanted = state.used;
	*rest = resting;
	begin_window();
	return why;
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
