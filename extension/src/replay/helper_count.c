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

#include "priority/sched_linux.h"
#include "replay/helper_count.h"
#include "replay/helper_rule.h"

/* Records between two steps. */
#define LS_WINDOW 8192

/* The kernel counts what was read from storage in these. */
#define LS_SECTORS_OF_PAGE (BLCKSZ / 512)

/* ---- Startup process ---------------------------------------------------- */

static LsHelperState state;
static LsHelperInput before;	/* sums over helpers, when the window began */
static uint64 records = 0;		/* of the window */
static uint64 done = 0;

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
 * least. False: they do too little to go on.
 */
bool
ls_helper_count_record(bool by_helper, int *wanted)
{
	LsHelperInput in;
	bool		enough;

	done += by_helper;
	if (++records < LS_WINDOW)
		return true;
	in = sums();
	in.given_back -= before.given_back;
	in.executed -= before.executed;
	in.blocked -= before.blocked;
	in.pages_read -= before.pages_read;
	in.workers = ls_replay_workers;
	in.cores = ls_sched_cores();
	in.records = records;
	in.done = done;
	enough = ls_helpers_step(&state, &in);
	publish();
	*wanted = state.used;
	begin_window();
	return enough;
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
