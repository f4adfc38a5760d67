/*
 * queue.c - the shared memory of records that run ahead (queue.h), the words for whether
 * replay is parallel, and how far it is ahead.
 *
 * No lock is taken.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "storage/proc.h"

#include "replay/helper_rule.h"
#include "replay/hot_standby.h"
#include "replay/queue.h"
#include "replay/start_limits.h"
#include "state/settings.h"

/* "no: " and why helpers do nothing once sessions may read; or that alone, where they help then, too. */
#define QUEUE_UNTIL_CONSISTENT(why) \
	(ls_replays_in_hot_standby() ? "no: " why : \
	 ls_replay_hot_standby == LS_OFF ? "no: " why ", and lockstep.replay_hot_standby is off" : \
	 "no: " why ", and lockstep.replay_hot_standby = auto means off on PostgreSQL " PG_MAJORVERSION)

LsQueueShared *ls_queue = NULL;
char	   *ls_decode_buffer = NULL;

static bool queue_is_out_of_date(LsPipelineState state);
static const char *queue_parallel_name(void);

Size
ls_decode_buffer_size(void)
{
	return (Size) ls_queue_kb * 1024;
}

/* Postmaster. All was zero before. */
void
ls_queue_init_shared(void)
{
	pg_atomic_init_u32(&ls_queue->startup_procno, PG_UINT32_MAX);
	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
		pg_atomic_init_u32(&ls_queue->helpers[i].procno, PG_UINT32_MAX);
}

/* Whether replay is parallel, and if not, why. */
const char *
ls_pipeline_state_name(void)
{
	LsPipelineState state = (LsPipelineState) pg_atomic_read_u32(&ls_queue->state);

	if (queue_is_out_of_date(state))
		return "not yet: it is looked at again after 64 records";
	/* the startup process writes the state as it replays, so not in a pause */
	if (state == LS_PARALLEL && RecoveryInProgress() && GetRecoveryPauseState() != RECOVERY_NOT_PAUSED)
		state = LS_NO_PAUSE;
	return ls_pipeline_state_words(state);
}

/* The same for a state that is known. Other than LS_PARALLEL: "no: " or "not yet: " and a reason. */
const char *
ls_pipeline_state_words(LsPipelineState state)
{
	switch (state)
	{
		case LS_NO_RECOVERY:
			return "no: the server has replayed no WAL since it started";
		case LS_NO_WORKERS:
			return "no: lockstep.replay_workers is 0";
		case LS_NO_MEMORY:
			return "no: there is no memory for it";
		case LS_NO_SWITCH:
			return "no: lockstep.enabled is off";
		case LS_NO_TARGET:
			return "no: recovery has a target";
		case LS_NO_CORE:
			return "no: the server may use less than two cores";
		case LS_NO_MAJOR:
			return "no: lockstep.replay_workers = auto means 0 on PostgreSQL " PG_MAJORVERSION ", on which the long tests have not run";
		case LS_NO_CHECK:
			return "no: the server is not as this library expects it, its log says why";
		case LS_NO_SLOT:
			return "no: no background worker is free";
		case LS_NO_CONSISTENT:
			return QUEUE_UNTIL_CONSISTENT("it is consistent");
		case LS_NO_LIMIT:
			return QUEUE_UNTIL_CONSISTENT("the minimum recovery point is reached");
		case LS_NO_DELAY:
			return "no: recovery_min_apply_delay is set";
		case LS_NO_SNAPSHOT:
			return "no: sessions cannot read yet";
		case LS_NO_PAUSE:
			return "no: a pause is requested";
		case LS_NO_BACKLOG:
			return "no: less than lockstep.replay_min_backlog of WAL is known to wait";
		case LS_NO_USE:
			return "no: helpers find too little to do in this WAL";
		case LS_NO_SPARE_CORE:
			return "no: other processes need the cores";
		case LS_NO_GONE:
			return "not yet: helpers of the time before have not ended";
		case LS_NO_ENDED:
			return "no: recovery has ended";
		case LS_NOT_YET:
			return "not yet: recovery has just begun";
		case LS_PARALLEL:
			return queue_parallel_name();
	}
	return "unknown";
}

/* Records of the queue after the one whose redo comes now. */
uint64
ls_records_ahead(void)
{
	uint64		published = pg_atomic_read_u64(&ls_queue->published);
	uint64		current = pg_atomic_read_u64(&ls_queue->retired) + 1;

	return RecoveryInProgress() && published > current ? published - current : 0;
}

/* From the replay position to the end of the last of these. */
uint64
ls_bytes_ahead(void)
{
	XLogRecPtr	until = pg_atomic_read_u64(&ls_queue->entered_until);
	XLogRecPtr	replayed;

	if (!RecoveryInProgress())
		return 0;
	replayed = GetXLogReplayRecPtr(NULL);
	return until > replayed ? until - replayed : 0;
}

/* What a helper waits for, 0: it runs, or is not there. */
uint32
ls_helper_wait_event(LsHelper *helper)
{
	uint32		procno = pg_atomic_read_u32(&helper->procno);
	PGPROC	   *proc;

	if (procno == PG_UINT32_MAX)
		return 0;
	proc = GetPGProcByNumber(procno);
	/* it may have ended meanwhile, and another process have its place */
	if (proc->pid != (int) pg_atomic_read_u32(&helper->pid))
		return 0;
	return *(volatile uint32 *) &proc->wait_event_info;
}

/*
 * Replay looks at it once in LS_ASK_AFTER records. On an idle standby that may be long ago: before
 * sessions could read, or before a reload that switched lockstep.replay_hot_standby on.
 */
static bool
queue_is_out_of_date(LsPipelineState state)
{
	return (state == LS_NO_CONSISTENT || state == LS_NO_LIMIT || state == LS_NO_SNAPSHOT) &&
		ls_replays_in_hot_standby() && HotStandbyActive();
}

static const char *
queue_parallel_name(void)
{
	switch ((LsHelperWhy) pg_atomic_read_u32(&ls_queue->used_why))
	{
		case LS_HELPERS_PLAIN:
			break;
		case LS_HELPERS_STORAGE:
			return "yes: with more helpers than spare cores, as replay waits for storage";
		case LS_HELPERS_CROWDED:
			return "yes: with fewer helpers, as other processes need the cores";
		case LS_HELPERS_FEWER:
			return "yes: with fewer helpers, as they mostly have to wait for other records";
	}
	return "yes";
}
