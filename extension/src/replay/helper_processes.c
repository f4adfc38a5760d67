/*
 * helper_processes.c - starts, wakes and ends the processes of replay helpers (helper.c).
 *
 * They are dynamic background workers, which the postmaster forgets when they end. How many
 * there are to be is decided in helper_count.c.
 *
 * Runs in the startup process. Shared state: LsQueueShared. No lock.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

#include "replay/helper_count.h"
#include "replay/helper_processes.h"
#include "replay/queue.h"
#include "state/clock.h"

/* Least time between two starts of helpers that have ended. */
#define LS_RESTART_US (5 * 1000 * 1000)

static BackgroundWorkerHandle *helpers_handles[LS_MAX_REPLAY_WORKERS];
static int	helpers_count = 0;

static void helpers_start_ended(void);
static bool helpers_has_ended(int id);
static bool helpers_start_one(int id);
static void helpers_say_missing(int wanted);
static void helpers_set_latch(pg_atomic_uint32 *procno);
static bool helpers_is_for_storage(uint32 event);

/* Have all helpers that were told to end ended? The next ones use the same memory. */
bool
ls_helpers_are_gone(void)
{
	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
	{
		pid_t		pid;

		if (helpers_handles[i] == NULL)
			continue;
		if (GetBackgroundWorkerPid(helpers_handles[i], &pid) != BGWH_STOPPED)
			return false;
		pfree(helpers_handles[i]);
		helpers_handles[i] = NULL;
	}
	return true;
}

/* Starts helpers until there are as many as wanted, as far as background workers are free. */
void
ls_helpers_start(int wanted)
{
	helpers_start_ended();
	while (helpers_count < wanted && helpers_start_one(helpers_count))
		helpers_count++;
	if (helpers_count >= wanted)
		return;
	ls_helper_count_limit(helpers_count);
	helpers_say_missing(wanted);
}

/* Starts the first helpers. hot: sessions may read. */
void
ls_helpers_start_first(bool hot)
{
	pg_atomic_write_u32(&ls_queue->hot, hot);
	pg_atomic_write_u32(&ls_queue->closed, 0);
	ls_helpers_start(ls_helper_count_begin());
}

int
ls_helpers_started(void)
{
	return helpers_count;
}

/* Wakes helpers that sleep: there is work. */
void
ls_helpers_wake(void)
{
	int			used = Min(helpers_count, (int) pg_atomic_read_u32(&ls_queue->used));

	pg_memory_barrier();
	for (int i = 0; i < used; i++)
		if (pg_atomic_read_u32(&ls_queue->helpers[i].sleeps) != 0)
			helpers_set_latch(&ls_queue->helpers[i].procno);
}

/* Tells helpers to end, which they do between two records; none is left that they could claim. */
void
ls_helpers_stop(void)
{
	if (helpers_count == 0)
		return;
	pg_atomic_write_u32(&ls_queue->closed, 1);
	for (int i = 0; i < helpers_count; i++)
	{
		helpers_set_latch(&ls_queue->helpers[i].procno);
		if (helpers_handles[i] != NULL)
			TerminateBackgroundWorker(helpers_handles[i]);
	}
	helpers_count = 0;
}

/* What does the helper do that executes this record, which the startup process waits for? */
LsWaitCause
ls_helpers_wait_cause(uint64 number)
{
	for (int i = 0; i < helpers_count; i++)
	{
		LsHelper   *helper = &ls_queue->helpers[i];
		uint32		event;

		if (pg_atomic_read_u64(&helper->at) != number)
			continue;
		event = ls_helper_wait_event(helper);
		if (event != 0)
			return helpers_is_for_storage(event) ? LS_WAIT_IO : LS_WAIT_LOCK;
	}
	return LS_WAIT_CPU;
}

/*
 * Starts helpers again that an administrator has ended. One that ends by itself would end
 * again, so this waits LS_RESTART_US.
 */
static void
helpers_start_ended(void)
{
	static int64 last = 0;
	int64		now = ls_now_us();

	if (last != 0 && now - last < LS_RESTART_US)
		return;
	for (int i = 0; i < helpers_count; i++)
	{
		if (!helpers_has_ended(i))
			continue;
		last = now;
		if (helpers_handles[i] != NULL)
		{
			ereport(LOG, (errmsg("replay helper %d was ended, and is started again", i + 1)));
			pfree(helpers_handles[i]);
			helpers_handles[i] = NULL;
		}
		/* without a free background worker it is tried again later */
		(void) helpers_start_one(i);
	}
}

static bool
helpers_has_ended(int id)
{
	pid_t		pid;

	return helpers_handles[id] == NULL || GetBackgroundWorkerPid(helpers_handles[id], &pid) == BGWH_STOPPED;
}

static bool
helpers_start_one(int id)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "lockstep", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "lockstep_replay_helper_main", BGW_MAXLEN);
	snprintf(worker.bgw_name, BGW_MAXLEN, "lockstep replay helper %d", id + 1);
	strlcpy(worker.bgw_type, "lockstep replay helper", BGW_MAXLEN);
	worker.bgw_main_arg = Int32GetDatum(id);
	return RegisterDynamicBackgroundWorker(&worker, &helpers_handles[id]);
}

static void
helpers_say_missing(int wanted)
{
	static int	said = 0;

	if (wanted <= said)
		return;
	said = wanted;
	ereport(LOG,
			(errmsg("%d of %d replay helpers cannot run: no background worker is free",
					wanted - helpers_count, wanted),
			 errhint("Raise max_worker_processes and restart the server.")));
}

static void
helpers_set_latch(pg_atomic_uint32 *procno)
{
	uint32		number = pg_atomic_read_u32(procno);

	if (number != PG_UINT32_MAX)
		SetLatch(&GetPGProcByNumber(number)->procLatch);
}

/* Does the event mean storage? PostgreSQL counts a read by another process as a wait for that. */
static bool
helpers_is_for_storage(uint32 event)
{
	return (event & 0xFF000000U) == PG_WAIT_IO ||
		pg_strcasecmp(pgstat_get_wait_event(event), "BufferIO") == 0;
}
