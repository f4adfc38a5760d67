/*
 * pipeline.c - replay by several processes, with retirement in the order of the WAL.
 *
 * The startup process decodes records further ahead before each record's redo and dispatches
 * them. Replay helpers (helper.c) execute those that may run ahead. At a record's own turn the
 * startup process retires it: it finds it done, executes it itself if nobody has started it, or
 * waits for the helper that has. README.md has the whole, and the rules that "rule N" names.
 *
 * Runs in the startup process. Shared state: LsQueueShared (queue.h). No lock is
 * taken but PostgreSQL's own: of the control file (recovery_point.c), and of the list of
 * processes (removal.c). Promotion and end of recovery: all is retired, and helpers are
 * told to end. Crash: shared memory is made anew, and the postmaster forgets the helpers.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "compat.h"
#include "priority/sched_linux.h"
#include "replay/broken_rule.h"
#include "replay/dispatch.h"
#include "replay/helper_count.h"
#include "replay/helper_processes.h"
#include "replay/helper_rule.h"
#include "replay/hot_standby.h"
#include "replay/known_files.h"
#include "replay/look_ahead.h"
#include "replay/pipeline.h"
#include "replay/queue.h"
#include "replay/read_ahead.h"
#include "replay/recovery_point.h"
#include "replay/removal.h"
#include "replay/rmgr_table.h"
#include "replay/self_check.h"
#include "replay/start_limits.h"
#include "state/clock.h"
#include "state/shared_state.h"

/* Records that are replayed before helpers are worth their start. */
#define LS_WORTH_HELPERS 256

/* Room in the queue from which it is filled again. */
#define LS_REFILL 32

/*
 * Records between two times at which helpers are told how far replay is: each time the processor
 * takes the number's memory from them. They may think that replay is behind, since a done record
 * says so itself.
 */
#define LS_TELL_EVERY 8

/* Records ahead for which the startup process asks for memory. */
#define LS_OWN_HINTS 6

/* Records between two looks at whether to run in hot standby. A multiple of LS_ASK_DRY. */
#define LS_ASK_AFTER 64

/* Records between two such looks while the pipeline runs and nothing is ahead. */
#define LS_ASK_DRY 16

/*
 * Records for which helpers rest if they do too little, or if others need the cores. The rest doubles
 * each time that others need them, up to LS_LONG_REST, until helpers have worked for LS_GOOD_WHILE
 * records.
 */
#define LS_REST (256 * 1024)
#define LS_LONG_REST (16 * LS_REST)
#define LS_GOOD_WHILE (4 * LS_REST)

/* Records until helpers are tried again if no background worker was free: parallel queries take them, too. */
#define LS_WAIT_FOR_WORKER (8 * 1024)

/* Longest sleep before interrupts are looked at, in ms. */
#define LS_NAP 10

/*
 * Who replays the next record, in the startup process, which alone reads and writes it:
 *
 *   OFF -> COUNTING     at the first record, if helpers may run before consistency
 *   OFF -> WAITING      at the first record, if they may run later, in hot standby
 *   COUNTING -> OPENING after LS_WORTH_HELPERS records, and once helpers have rested
 *   COUNTING -> WAITING at the limit of rule 9, or after the end of a backup
 *   WAITING -> OPENING  once enough WAL waits and rule 11 holds (asked each LS_ASK_AFTER records)
 *   OPENING -> RUNNING  at the record at which the reader's buffer can be changed, with a helper
 *   OPENING -> OFF      if the server is not as expected (self_check.c)
 *   RUNNING -> COUNTING when all has retired, to try again after a rest (before consistency)
 *   RUNNING -> WAITING  when all has retired and nothing more may be dispatched
 *   OPENING -> COUNTING or WAITING as from RUNNING, if no background worker is free
 *   any -> OFF          at the end of recovery
 */
typedef enum PipelinePhase
{
	PHASE_OFF,					/* PostgreSQL, for the rest of this recovery */
	PHASE_COUNTING,				/* PostgreSQL: helpers are not yet worth their start */
	PHASE_WAITING,				/* PostgreSQL, until there is a reason to run in hot standby */
	PHASE_OPENING,				/* PostgreSQL, until the reader's buffer can be changed */
	PHASE_RUNNING				/* the pipeline */
} PipelinePhase;

/* State of the startup process; fields without a value begin as 0. */
typedef struct Pipeline
{
	PipelinePhase phase;
	bool		hot;			/* in hot standby, or about to be: sessions may read */

	/* the record whose redo comes now */
	uint64		current;		/* the record's number in the queue */
	bool		tell_at_once;	/* the record's entry will not say that it is done */

	/* before consistency */
	uint32		counted;		/* records in PHASE_COUNTING */
	RecoveryState begun_as;		/* a switch to archive recovery ends this stage */
	XLogRecPtr	limit;			/* rule 9: records must end here or before */
	bool		at_limit;		/* nothing more is dispatched */

	/* in hot standby */
	uint32		passed;			/* records since we last asked whether to run */

	/* rest of helpers */
	uint32		rest;			/* records until helpers are tried again, 0: they do not rest */
	LsPipelineState rest_why;
	uint32		rest_for_cores; /* length of the next rest that others need cores for */
	uint32		worked;			/* records since the last rest */

	/* counters */
	uint64		by_helpers;		/* done when their turn came, not yet in shared memory */
	uint64		retired;		/* in this recovery */
	uint64		retired_before; /* as helpers were last started */
	uint64		by_helpers_before;	/* so, of those in shared memory */
	uint64		read_before;	/* so, of records that helpers have read */
} Pipeline;

static Pipeline pipeline = {
	.phase = PHASE_OFF,
	.rest_why = LS_NO_USE,
	.rest_for_cores = LS_REST
};

static LsPipelineState pipeline_why_not(void);
static void pipeline_end_for_good(LsPipelineState why);
static void pipeline_say_why(LsPipelineState why);
static void pipeline_wait_for_hot_standby(LsPipelineState why);
static bool pipeline_may_dispatch(void);
static void pipeline_start(XLogReaderState *reader);
static bool pipeline_is_as_expected(XLogReaderState *reader);
static void pipeline_wait_for_worker(void);
static bool pipeline_start_helpers(void);
static void pipeline_stop_helpers(LsPipelineState why);
static void pipeline_run(XLogReaderState *reader);
static void pipeline_run_dry(XLogReaderState *reader);
static void pipeline_close_queue(LsPipelineState why);
static bool pipeline_replayed(void);
static bool pipeline_open_queue(XLogReaderState *reader);
static void pipeline_fill(XLogReaderState *reader);
static bool pipeline_may_run_ahead(XLogReaderState *reader, DecodedXLogRecord *record);
static void pipeline_tell_retired(void);
static void pipeline_take_own_steps(void);
static bool pipeline_retire(LsEntry *entry, XLogReaderState *reader);
static void pipeline_execute_here(LsEntry *entry, XLogReaderState *reader);
static void pipeline_wait_for_helper(LsEntry *entry);
static void pipeline_raise_failure(uint64 number);
static bool pipeline_is_time_for_hot(XLogReaderState *reader);
static LsPipelineState pipeline_why_not_now(XLogReaderState *reader);
static void pipeline_leave_hot(LsPipelineState why);
static void pipeline_watch_helpers(bool by_helper);
static void pipeline_let_helpers_rest(LsPipelineState why);
static void pipeline_publish_counters(void);
static void pipeline_add(pg_atomic_uint64 *counter, uint64 *count);

/* Startup process, before the first record of a recovery. */
void
ls_pipeline_begin(void)
{
	LsPipelineState why;

	if (ls_queue == NULL || MyProc == NULL)
		return;
	pipeline.begun_as = GetRecoveryState();
	pipeline.limit = ls_limit_before_consistency();
	why = pipeline_why_not();
	if (ls_most_helpers == 0 || why == LS_NO_MEMORY || why == LS_NO_TARGET || why == LS_NO_CORE)
	{
		pipeline_end_for_good(why);
		return;
	}
	ls_resolve_wait_events();
	pg_atomic_write_u32(&ls_queue->startup_procno, (uint32) LS_MY_PROCNO);
	if (why != LS_PARALLEL)
	{
		pipeline_wait_for_hot_standby(why);
		return;
	}
	pipeline_say_why(LS_NOT_YET);
	pipeline.counted = 0;
	pipeline.phase = PHASE_COUNTING;
}

/* Startup process, for each record. False: the caller replays it. */
bool
ls_pipeline_replay(XLogReaderState *reader)
{
	switch (pipeline.phase)
	{
		case PHASE_OFF:
			break;
		case PHASE_COUNTING:
			if (reader->EndRecPtr >= pipeline.limit || ls_backup_has_ended())
				pipeline_wait_for_hot_standby(LS_NO_LIMIT);
			pipeline.rest -= Min(pipeline.rest, 1);
			if (++pipeline.counted < LS_WORTH_HELPERS || pipeline.rest > 0 ||
				pipeline.phase != PHASE_COUNTING || !ls_helpers_are_gone() || !ls_dispatch_has_memory())
				break;
			ls_look_ahead_pause();
			pipeline.phase = PHASE_OPENING;
			break;
		case PHASE_WAITING:
			if (!pipeline_is_time_for_hot(reader))
				break;
			pipeline.hot = true;
			ls_look_ahead_pause();
			pipeline.phase = PHASE_OPENING;
			break;
		case PHASE_OPENING:
			pipeline_start(reader);
			ls_stock_redo(reader);
			return pipeline_replayed();
		case PHASE_RUNNING:
			pipeline_run(reader);
			return pipeline_replayed();
	}
	return false;
}

/* Startup process, after the last record: all are retired. */
void
ls_pipeline_end(void)
{
	if (pipeline.phase == PHASE_OFF)
		return;
	ls_stretch_allow(false);
	pipeline_stop_helpers(LS_NO_ENDED);
	if (pipeline.phase == PHASE_RUNNING)
		ls_look_ahead_resume();
	pipeline_end_for_good(LS_NO_ENDED);
}

/* ---- Whether and how far -------------------------------------------------- */

/* May helpers run before consistency? LS_PARALLEL: they may. */
static LsPipelineState
pipeline_why_not(void)
{
	if (ls_most_helpers == 0)
		return ls_why_no_helpers;
	if (ls_decode_buffer == NULL || !ls_hints_have_memory())
		return LS_NO_MEMORY;
	if (!ls_enabled)
		return LS_NO_SWITCH;
	if (recoveryTarget != RECOVERY_TARGET_UNSET && !LS_BREAKS(TARGET))
		return LS_NO_TARGET;
	if (ls_sched_cores() < LS_LEAST_CORES)
		return LS_NO_CORE;
	if (reachedConsistency || XLogRecPtrIsInvalid(pipeline.limit))
		return LS_NO_CONSISTENT;
	return LS_PARALLEL;
}

static void
pipeline_end_for_good(LsPipelineState why)
{
	pipeline.phase = PHASE_OFF;
	pipeline_say_why(why);
}

static void
pipeline_say_why(LsPipelineState why)
{
	if (pg_atomic_read_u32(&ls_queue->state) != why)
		pg_atomic_write_u32(&ls_queue->state, why);
}

/* The stage before consistency is over, or there is none. */
static void
pipeline_wait_for_hot_standby(LsPipelineState why)
{
	pipeline.phase = PHASE_WAITING;
	pipeline.passed = 0;
	pipeline_say_why(why);
}

/* Rule 11: may records be dispatched? What was dispatched is retired in any case. */
static bool
pipeline_may_dispatch(void)
{
	if (pipeline.rest > 0)
		return false;
	if (pipeline.hot)
		return ls_why_not_hot() == LS_PARALLEL;
	pipeline.at_limit = pipeline.at_limit || ls_backup_has_ended();
	return !pipeline.at_limit && ls_enabled && !reachedConsistency && GetRecoveryState() == pipeline.begun_as;
}

/* ---- Each record ---------------------------------------------------------- */

/* Begins the pipeline; the next record is the first of the queue. */
static void
pipeline_start(XLogReaderState *reader)
{
	if (!pipeline_is_as_expected(reader) || !pipeline_open_queue(reader))
		return;
	ls_hints.current = pipeline.current;
	ls_hints_restart();
	pipeline.at_limit = false;
	if (!pipeline_start_helpers())
	{
		pipeline_wait_for_worker();
		return;
	}
	/* rule 10: what was replayed without us may have dropped files */
	ls_begin_generation();
	ls_read_ahead_begin();
	ls_stretch_allow(true);
	pipeline.passed = 0;
	pipeline_say_why(LS_PARALLEL);
	pipeline.phase = PHASE_RUNNING;
}

/* Ends the pipeline for this recovery if the server is not what it was written for. */
static bool
pipeline_is_as_expected(XLogReaderState *reader)
{
	const char *difference = ls_reader_difference(reader, wal_segment_size);

	if (difference == NULL)
		difference = ls_rmgr_table_difference();
	if (difference == NULL)
		return true;
	ereport(WARNING,
			(errmsg("parallel replay stays off: %s", difference),
			 errhint("It needs PostgreSQL's own server and replay functions. This server replays in one process.")));
	pipeline_end_for_good(LS_NO_CHECK);
	ls_look_ahead_resume();
	return false;
}

/* No background worker is free. */
static void
pipeline_wait_for_worker(void)
{
	pipeline.rest = LS_WAIT_FOR_WORKER;
	pipeline.rest_why = LS_NO_SLOT;
	if (pipeline.hot)
		pipeline_leave_hot(LS_NO_SLOT);
	else
		pipeline_close_queue(LS_NO_SLOT);
}

/* False: none could be started, and none runs. */
static bool
pipeline_start_helpers(void)
{
	if (ls_helpers_started() > 0)
		return true;
	ls_helpers_start_first(pipeline.hot);
	if (ls_helpers_started() == 0)
		return false;
	pipeline.retired_before = pipeline.retired;
	pipeline.read_before = ls_stretch_records();
	pipeline.by_helpers_before = pg_atomic_read_u64(&ls_queue->by_helpers);
	ereport(LOG,
			(errmsg("parallel replay begins after %X/%X, %s, with replay helpers: %d",
					LSN_FORMAT_ARGS(GetXLogReplayRecPtr(NULL)),
					pipeline.hot ? "in hot standby" : "before consistency", ls_helpers_started())));
	return true;
}

/* Tells helpers, if there are any, to end. */
static void
pipeline_stop_helpers(LsPipelineState why)
{
	pipeline_publish_counters();
	if (ls_helpers_started() == 0)
		return;
	ls_helpers_stop();
	ereport(LOG,
			(errmsg("parallel replay ends after %X/%X: %s", LSN_FORMAT_ARGS(GetXLogReplayRecPtr(NULL)),
					strchr(ls_pipeline_state_words(why), ':') + 2),
			 errdetail("Since it began " UINT64_FORMAT " records were replayed, " UINT64_FORMAT
					   " of them by replay helpers before their turn. Records that they read: " UINT64_FORMAT ".",
					   pipeline.retired - pipeline.retired_before,
					   pg_atomic_read_u64(&ls_queue->by_helpers) - pipeline.by_helpers_before,
					   ls_stretch_records() - pipeline.read_before)));
}

static void
pipeline_run(XLogReaderState *reader)
{
	pipeline.current++;
	/* a record of another extension: PostgreSQL does not call us for it, and it was a barrier */
	if (pipeline.current == ls_dispatched.barrier && ls_entry(pipeline.current)->record != reader->record)
		pipeline.current++;
	ls_dispatched.retired = pipeline.current - 1;
	if (pipeline.current % LS_TELL_EVERY == 0 || pipeline.current >= ls_dispatched.tail ||
		pipeline.tell_at_once)
		pipeline_tell_retired();
	if (pipeline.current == ls_dispatched.barrier + 1)
		ls_forget_known_files();
	ls_look_ahead_count(pipeline.current <= ls_dispatched.tail);
	/* decoded by PostgreSQL, since nothing was ahead */
	if (pipeline.current > ls_dispatched.tail)
	{
		ls_stretch_forget_limit();
		ls_dispatch(reader->record, NULL, false);
	}
	if (ls_entry(pipeline.current)->record != reader->record)
		elog(PANIC, "replay helpers and the startup process are at different records");
	if (ls_dispatched.tail - pipeline.current < LS_AHEAD_MAX - LS_REFILL && pipeline_may_dispatch())
		pipeline_fill(reader);
	ls_read_ahead(pipeline.current);
	pipeline_take_own_steps();
	pipeline_watch_helpers(pipeline_retire(ls_entry(pipeline.current), reader));
	pipeline.retired++;
	if (ls_dispatched.tail == pipeline.current)
		pipeline_run_dry(reader);
	else
		pipeline.passed = 0;
	if (pipeline.phase != PHASE_RUNNING)
		ls_stretch_allow(false);
	else if (reader->record == reader->decode_queue_tail)
		ls_stretch_settle(reader, reader->record);
}

/* Decides what comes next when all that was dispatched has retired. */
static void
pipeline_run_dry(XLogReaderState *reader)
{
	pipeline_publish_counters();
	if (!pipeline.hot)
	{
		if (!pipeline_may_dispatch())
			pipeline_close_queue(pipeline.rest > 0 ? pipeline.rest_why :
								 !ls_enabled ? LS_NO_SWITCH :
								 pipeline.at_limit ? LS_NO_LIMIT : LS_NO_CONSISTENT);
		return;
	}
	/* the WAL that is open may be at its end: only if nothing comes for a while we leave */
	if (pipeline.passed++ % LS_ASK_DRY == 0)
	{
		LsPipelineState why = pipeline_why_not_now(reader);

		pipeline_say_why(why);
		if (why == LS_PARALLEL)
			pipeline.passed = 1;
		else if (why != LS_NO_BACKLOG || pipeline.passed > LS_ASK_AFTER)
			pipeline_leave_hot(why);
	}
}

/* Ends the pipeline of the stage before consistency, or lets it rest. */
static void
pipeline_close_queue(LsPipelineState why)
{
	pipeline_stop_helpers(why);
	ls_look_ahead_resume();
	pipeline_wait_for_hot_standby(why);
	if (pipeline.rest == 0)
		return;
	/* tried again after it */
	pipeline.phase = PHASE_COUNTING;
	pipeline.counted = 0;
}

/* Called last for a record that was replayed here: PostgreSQL reads the next one after this. */
static bool
pipeline_replayed(void)
{
	if (pipeline.phase == PHASE_OPENING || pipeline.phase == PHASE_RUNNING)
		ls_look_ahead_stay_paused();
	return true;
}

/* ---- The queue's memory --------------------------------------------------- */

/*
 * Lets the reader decode into shared memory. Possible while the current record is the
 * only one decoded, at the start of the reader's own buffer: marked as oversized, its
 * release frees that buffer, which begins where the record does.
 */
static bool
pipeline_open_queue(XLogReaderState *reader)
{
	DecodedXLogRecord *record = reader->record;

	if (reader->decode_buffer == ls_decode_buffer)
		return true;
	if (record == NULL || record != reader->decode_queue_head ||
		record != reader->decode_queue_tail || record->oversized ||
		(char *) record != reader->decode_buffer || !reader->free_decode_buffer)
		return false;
	record->oversized = true;
	reader->decode_buffer = ls_decode_buffer;
	reader->decode_buffer_size = ls_decode_buffer_size();
	reader->decode_buffer_head = reader->decode_buffer_tail = ls_decode_buffer;
	reader->free_decode_buffer = false;
	return true;
}

/* Dispatches what fits into the queue and may run ahead. */
static void
pipeline_fill(XLogReaderState *reader)
{
	uint64		before = ls_dispatched.tail;
	XLogRecPtr	end;

	ls_forget_horizon();
	while (ls_dispatched.tail - pipeline.current < LS_AHEAD_MAX)
	{
		bool		ours;
		DecodedXLogRecord *record;

		if (ls_dispatched.barrier >= pipeline.current && !LS_BREAKS(BARRIER))
			break;				/* rule 8 */
		record = ls_next_decoded(reader, ls_entry(ls_dispatched.tail)->record, &ours);
		if (record == NULL || !pipeline_may_run_ahead(reader, record))
			break;
		ls_stretch_count(record);
		ls_dispatch(record, ls_stretch_facts(record), true);
	}
	if (ls_dispatched.tail == before)
		return;
	end = ls_entry(ls_dispatched.tail)->record->next_lsn;
	ls_raise_point_in_backup(end);
	pg_atomic_write_u64(&ls_queue->entered_until, end);
	pg_write_barrier();
	pg_atomic_write_u64(&ls_queue->published, ls_dispatched.tail);
	ls_helpers_wake();
	pipeline_say_why(LS_PARALLEL);
	pipeline_publish_counters();
}

/* Rule 9: may this record, the next one, run ahead? */
static bool
pipeline_may_run_ahead(XLogReaderState *reader, DecodedXLogRecord *record)
{
	if (pipeline.hot)
		return ls_raise_point(reader, record);
	pipeline.at_limit = record->next_lsn > pipeline.limit;
	return !pipeline.at_limit;
}

/* ---- Retirement ----------------------------------------------------------- */

/* Tells helpers that all records before the current one are done. */
static void
pipeline_tell_retired(void)
{
	pg_atomic_write_u64(&ls_queue->retired, pipeline.current - 1);
	pipeline.tell_at_once = false;
}

/* Asks for memory of records that most likely nobody else executes. */
static void
pipeline_take_own_steps(void)
{
	ls_hints.current = pipeline.current;
	/* a helper may have written it */
	__builtin_prefetch(ls_entry(pipeline.current + LS_OWN_HINTS * 2));
	if (ls_hints.tail < pipeline.current)
		ls_hints_restart();
	while (ls_hints.tail < Min(pipeline.current + LS_OWN_HINTS, ls_dispatched.tail))
	{
		LsEntry    *entry = ls_entry(ls_hints.tail + 1);
		uint32		state = pg_atomic_read_u32(&entry->state);

		ls_hints_add(state == LS_AT_RETIREMENT || state == LS_QUEUED ? entry->record : NULL);
	}
	ls_hints_take_steps();
}

/* Retires the current record. True: a helper had done it. */
static bool
pipeline_retire(LsEntry *entry, XLogReaderState *reader)
{
	for (;;)
	{
		switch ((LsEntryState) pg_atomic_read_u32(&entry->state))
		{
			case LS_AT_RETIREMENT:
				pg_atomic_write_u32(&entry->state, LS_CLAIMED);
				pipeline_execute_here(entry, reader);
				return false;
			case LS_QUEUED:
				if (!ls_claim(entry))
					break;
				pipeline_execute_here(entry, reader);
				return false;
			case LS_CLAIMED:
				pipeline_wait_for_helper(entry);
				break;
			case LS_DONE:
				pg_read_barrier();
				pipeline.by_helpers++;
				return true;
			case LS_FAILED:
				pg_read_barrier();
				if (LS_BREAKS(FAILURE))
					return false;
				pipeline_raise_failure(entry->number);
				break;
		}
	}
}

/*
 * Executes the record in the startup process, as stock. Rule 13: PostgreSQL looks at
 * its pages after this, so what waits for it goes on with the next record only.
 */
static void
pipeline_execute_here(LsEntry *entry, XLogReaderState *reader)
{
	HotStandbyState state = standbyState;

	if (LS_BREAKS(CONFLICT) && pipeline.hot)
		standbyState = STANDBY_DISABLED;
	ls_stock_redo(reader);
	if (LS_BREAKS(CONFLICT) && pipeline.hot)
		standbyState = state;
	if ((reader->record->header.xl_info & XLR_CHECK_CONSISTENCY) == 0)
		pg_atomic_exchange_u32(&entry->state, LS_DONE);
	else
		pipeline.tell_at_once = true;
}

/* Returns when the entry's state has changed, or an interrupt was looked at. */
static void
pipeline_wait_for_helper(LsEntry *entry)
{
	LsWaitCause cause;
	int64		begin;

	/* the helper may wait for one of them, see pipeline_execute_here() */
	pipeline_tell_retired();
	for (int i = 0; i < LS_SPINS; i++)
	{
		if (pg_atomic_read_u32(&entry->state) != LS_CLAIMED)
			return;
		SPIN_DELAY();
	}
	begin = ls_now_us();
	cause = ls_helpers_wait_cause(pipeline.current);
	pg_atomic_write_u32(&ls_queue->startup_sleeps, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u32(&entry->state) == LS_CLAIMED)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LS_NAP, ls_event_replay_helper);
		ResetLatch(MyLatch);
		ls_check_startup_interrupts();
	}
	pg_atomic_write_u32(&ls_queue->startup_sleeps, 0);
	pg_atomic_fetch_add_u64(&ls_queue->waits, 1);
	pg_atomic_fetch_add_u64(&ls_queue->wait_us[cause], (uint64) (ls_now_us() - begin));
}

/* Rule 12: ends recovery with a helper's error at this record. Another helper may have failed at a later one. */
static void
pipeline_raise_failure(uint64 number)
{
	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
	{
		LsFailure  *failure = &ls_queue->helpers[i].failure;

		if (failure->number != number)
			continue;
		ereport(failure->level >= PANIC ? PANIC : FATAL,
				(errcode(failure->sqlerrcode),
				 errmsg_internal("%s", failure->message),
				 failure->detail[0] == '\0' ? 0 : errdetail_internal("%s", failure->detail),
				 errcontext("%s", failure->context)));
	}
	elog(FATAL, "a replay helper failed without an error");
}

/* ---- Hot standby ---------------------------------------------------------- */

/*
 * Is it time to look for the moment at which the pipeline can begin in hot standby? Asked before
 * each record that is replayed as stock does.
 */
static bool
pipeline_is_time_for_hot(XLogReaderState *reader)
{
	LsPipelineState why;

	if (++pipeline.passed < LS_ASK_AFTER)
		return false;
	pipeline.passed = 0;
	pipeline.rest -= Min(pipeline.rest, LS_ASK_AFTER);
	if (!ls_replays_in_hot_standby() && ls_helpers_started() == 0 && !pipeline.hot)
		return false;
	why = pipeline_why_not_now(reader);
	if (why != LS_PARALLEL)
	{
		if (why == LS_NO_SWITCH || why == LS_NO_CONSISTENT)
			pipeline_stop_helpers(why);
		if (ls_replays_in_hot_standby() || pipeline.hot)
			pipeline_say_why(why);
		return false;
	}
	if (ls_helpers_started() == 0 && !ls_helpers_are_gone())
	{
		pipeline_say_why(LS_NO_GONE);
		return false;
	}
	return ls_dispatch_has_memory();
}

static LsPipelineState
pipeline_why_not_now(XLogReaderState *reader)
{
	LsPipelineState why = ls_why_not_hot();

	if (why == LS_PARALLEL && !ls_backlog_is_worth(reader))
		return LS_NO_BACKLOG;
	if (why == LS_PARALLEL && pipeline.rest > 0)
		return pipeline.rest_why;
	return why;
}

/* Leaves the pipeline, with nothing ahead. Helpers sleep, and end if they are not wanted any more. */
static void
pipeline_leave_hot(LsPipelineState why)
{
	pipeline_publish_counters();
	if (why == LS_NO_SWITCH || why == LS_NO_CONSISTENT)
		pipeline_stop_helpers(why);
	ls_look_ahead_resume();
	pipeline_wait_for_hot_standby(why);
}

/*
 * Lets helpers rest, or starts more. Those that find little to do cost more than they give: each
 * record that they look at, and the end of what may be read ahead. That is so with writes that
 * mostly come after something on their page that is replayed at its turn. Where other processes
 * need the cores it is worse: a helper that waits for a core keeps the record that it has begun.
 */
static void
pipeline_watch_helpers(bool by_helper)
{
	int			wanted = 0;
	LsPipelineState why = ls_helper_count_record(by_helper, &wanted);

	if (++pipeline.worked >= LS_GOOD_WHILE)
		pipeline.rest_for_cores = LS_REST;
	if (why != LS_PARALLEL && (pipeline.hot || why != LS_NO_USE))
		pipeline_let_helpers_rest(why);
	if (wanted > 0)
		ls_helpers_start(wanted);
}

static void
pipeline_let_helpers_rest(LsPipelineState why)
{
	pipeline.worked = 0;
	pipeline.rest = LS_REST;
	pipeline.rest_why = why;
	if (why == LS_NO_USE)
		return;
	pipeline.rest = pipeline.rest_for_cores;
	pipeline.rest_for_cores = Min(pipeline.rest_for_cores * 2, LS_LONG_REST);
}

/* ---- Counters ------------------------------------------------------------- */

static void
pipeline_publish_counters(void)
{
	/* first, so that it is never below the others */
	pg_atomic_write_u64(&ls_queue->retired_records, pipeline.retired);
	pipeline_add(&ls_queue->dispatched, &ls_dispatched.count);
	pipeline_add(&ls_queue->by_helpers, &pipeline.by_helpers);
	for (int i = 0; i < LS_CAUSES; i++)
		pipeline_add(&ls_queue->causes[i], &ls_dispatched.causes[i]);
	pg_atomic_write_u64(&ls_queue->dispatched_until, ls_dispatched.until);
}

static void
pipeline_add(pg_atomic_uint64 *counter, uint64 *count)
{
	if (*count != 0)
		pg_atomic_fetch_add_u64(counter, *count);
	*count = 0;
}
