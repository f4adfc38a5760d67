/*
 * pipeline.c - replay by several processes, with retirement in the order of the WAL.
 *
 * The startup process stays the only authority on what has been replayed. Before each
 * record's redo it decodes records further ahead and dispatches them: those that may
 * run ahead (record_class.c) are executed by replay helpers (helper.c) as soon as
 * what they depend on is done. When a record's own turn comes, the startup process
 * retires it: it finds it done, executes it itself if nobody has started it, or waits
 * for the helper that has.
 *
 *   decode -> dispatch -> (helper: claim, execute) -> retire
 *
 * Stage one: only before consistency, in crash recovery and on a standby or a backup that
 * starts. The rules follow. test/t/020_replay_workers.pl and 022_replay_hostile.pl compare
 * files with stock's; 021_replay_rules.pl breaks rules 1, 6 and 8 to 13 one by one
 * (broken_rule.h) to see that each is noticed:
 *
 *  1. One block: the order of the WAL, whoever executes. A record is executed whole, by
 *     one process, after all earlier records of each of its blocks (note_blocks()).
 *     Dependencies only point to earlier records, so the earliest never waits.
 *  2. to 5. are about readers, and nobody reads before consistency: no snapshot can tell
 *     that a page is ahead, and no query can conflict. Of 4 it stays that visibility
 *     maps are startup's alone, since an image of a map page would bring back what a
 *     later record has cleared (record_class.c).
 *  6. Only startup extends relations, at dispatch, before any later record is
 *     published (make_exist()); helpers refresh their sizes (execute.c).
 *  7. No redo looks into a multixact that a tuple names; only readers do. Startup executes
 *     their records at retirement, and truncation is a barrier (record_class.c).
 *  8. Nothing behind a barrier is dispatched before it has retired (fill()).
 *  9. No page may be written whose record lies behind the minimum recovery point: no
 *     record that ends behind it is dispatched (run_ahead_limit()). In crash recovery
 *     there is none, and all WAL is replayed again after a crash. A backup that is
 *     restored is consistent at its end only, a record that is a barrier, and again
 *     only there after a crash: up to it all may run ahead, and the point is raised in
 *     memory for the processes that look at it (raise_recovery_point()). A switch to
 *     archive recovery ends the pipeline for good, since helpers never move that point.
 * 10. Each barrier begins a new generation: helpers close their files before they
 *     execute a record of it (execute.c).
 * 11. Instead of it: a record with a missing or new block is the startup process's,
 *     untouched (dispatch(), execute.c), as only its list of invalid pages counts.
 *     Never with a recovery target.
 * 12. A helper's error ends recovery with its message, at the record's turn
 *     (raise_failure()). A killed helper restarts the server. Waits check for
 *     interrupts and end with the process that they are for.
 * 13. Who executes a record checks its pages (execute.c); stock's check after
 *     retirement compares what is not ahead.
 *
 * Memory: decoded records lie in shared memory. The reader's decode buffer is changed
 * at the one moment when that is possible (open_queue()). A record leaves it after it
 * has retired, and a helper touches nothing of a record that is done. Records that did
 * not fit (oversized) are private to startup.
 *
 * Runs in the startup process. Shared state: LsQueueShared (queue.h). No lock is
 * taken but PostgreSQL's own of the control file (raise_recovery_point()). Promotion and
 * end of recovery: helpers are told to end. Crash: shared memory is made anew, and the
 * postmaster forgets the helpers.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/smgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "priority/sched_linux.h"
#include "replay/broken_rule.h"
#include "replay/look_ahead.h"
#include "replay/pipeline.h"
#include "replay/queue.h"
#include "replay/record_class.h"
#include "replay/rmgr_table.h"
#include "state/clock.h"
#include "state/shared_state.h"

/* Records that are replayed before helpers are worth their start. */
#define LS_WORTH_HELPERS 256

/* Room in the queue from which it is filled again. */
#define LS_REFILL 32

/* Records ahead for which the startup process asks for memory. */
#define LS_OWN_HINTS 6

/* A relation is extended at dispatch by so many blocks at most. */
#define LS_MAX_EXTENSION 64

/* Slots of the table of blocks; two blocks of one slot count as the same block. */
#define LS_BLOCK_SLOTS (32 * 1024)

/* Records dispatched after which the counters are added to those in shared memory. */
#define LS_PUBLISH_EVERY 1024

/* Longest sleep before interrupts are looked at, in ms. */
#define LS_NAP 10

typedef enum Phase
{
	PHASE_OFF,					/* for the rest of this recovery */
	PHASE_COUNTING,				/* helpers are not yet worth their start */
	PHASE_OPENING,				/* waits for the moment to change the buffer */
	PHASE_RUNNING
} Phase;

static Phase phase = PHASE_OFF;
static uint32 counted = 0;

static uint64 current = 0;		/* number of the record whose redo comes now */
static uint64 tail = 0;			/* of the last dispatched one */
static uint64 barrier = 0;		/* of the last barrier */
static bool at_limit = false;	/* nothing more is dispatched in this recovery */

static XLogRecPtr limit = InvalidXLogRecPtr;	/* rule 9 */
static bool in_backup = false;	/* then its end is the limit */
static ControlFileData *control = NULL; /* in shared memory */
static RecoveryState begun_as;

/* Number of the last record that has a block, by a hash of its name. */
static uint64 *last_of_block = NULL;

static BackgroundWorkerHandle *handles[LS_MAX_REPLAY_WORKERS];
static int	nhelpers = 0;

/* Not yet in shared memory. */
static struct
{
	uint64		dispatched;
	uint64		by_helpers;
	uint64		causes[LS_CAUSES];
	XLogRecPtr	dispatched_until;
}			fresh;

LsQueueShared *ls_queue = NULL;
char	   *ls_decode_buffer = NULL;

/* ---- Shared state ------------------------------------------------------ */

Size
ls_decode_buffer_size(void)
{
	return ls_replay_workers == 0 ? 0 : (Size) ls_replay_queue_size * 1024;
}

/* Postmaster. All was zero before. */
void
ls_queue_init_shared(void)
{
	pg_atomic_init_u32(&ls_queue->startup_procno, PG_UINT32_MAX);
	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
		pg_atomic_init_u32(&ls_queue->helpers[i].procno, PG_UINT32_MAX);
}

/* Is replay parallel, and if not, why. */
const char *
ls_pipeline_state_name(void)
{
	switch ((LsPipelineState) pg_atomic_read_u32(&ls_queue->state))
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
			return "no: the server may use one core only";
		case LS_NO_SLOT:
			return "no: no background worker is free";
		case LS_NO_CONSISTENT:
			return "no: it is consistent";
		case LS_NO_LIMIT:
			return "no: the minimum recovery point is reached";
		case LS_NO_ENDED:
			return "no: recovery has ended";
		case LS_NOT_YET:
			return "not yet: recovery has just begun";
		case LS_PARALLEL:
			return "yes";
	}
	return "unknown";
}

static void
add(pg_atomic_uint64 *counter, uint64 *count)
{
	if (*count != 0)
		pg_atomic_fetch_add_u64(counter, *count);
	*count = 0;
}

static void
publish_counters(void)
{
	add(&ls_queue->dispatched, &fresh.dispatched);
	add(&ls_queue->by_helpers, &fresh.by_helpers);
	for (int i = 0; i < LS_CAUSES; i++)
		add(&ls_queue->causes[i], &fresh.causes[i]);
	pg_atomic_write_u64(&ls_queue->dispatched_until, fresh.dispatched_until);
}

/* ---- Whether and how far ----------------------------------------------- */

/* Is a backup restored whose end is a record of the WAL, and lies ahead? */
static bool
backup_goes_on(void)
{
	return control->backupEndRequired && XLogRecPtrIsInvalid(control->backupEndPoint);
}

/*
 * Rule 9: where records that run ahead must end, InvalidXLogRecPtr if none may. The
 * point in the control file only ever grows.
 */
static XLogRecPtr
run_ahead_limit(void)
{
	bool		found;

	control = ShmemInitStruct("Control File", sizeof(ControlFileData), &found);
	in_backup = false;
	if (!found)
		return InvalidXLogRecPtr;
	begun_as = GetRecoveryState();
	if (begun_as == RECOVERY_STATE_CRASH && !InArchiveRecovery)
		return XLogRecPtrIsInvalid(control->minRecoveryPoint) ? PG_UINT64_MAX : InvalidXLogRecPtr;
	in_backup = backup_goes_on();
	if (in_backup || LS_BREAKS(RECOVERY_POINT))
		return PG_UINT64_MAX;
	return control->minRecoveryPoint;
}

static bool
backup_has_ended(void)
{
	return in_backup && !backup_goes_on();
}

/*
 * Rule 9, in a backup: records up to end are about to be published. A process that writes
 * their pages compares these with the point and would warn of them. Nothing waits for the
 * point to be on disk, since the backup's end does not depend on it; where it gets there
 * all the same, this much WAL has been read already and is replayed again.
 */
static void
raise_recovery_point(XLogRecPtr end)
{
	if (!in_backup || LS_BREAKS(BACKUP_POINT))
		return;
	LWLockAcquire(ControlFileLock, LW_EXCLUSIVE);
	if (control->minRecoveryPoint < end)
	{
		control->minRecoveryPoint = end;
		/* rule 8: nothing is dispatched beyond a change of timeline */
		(void) GetCurrentReplayRecPtr(&control->minRecoveryPointTLI);
	}
	LWLockRelease(ControlFileLock);
}

/* LS_PARALLEL: helpers may run. */
static LsPipelineState
why_not(void)
{
	if (ls_replay_workers == 0)
		return LS_NO_WORKERS;
	if (ls_decode_buffer == NULL || !ls_hints_have_memory())
		return LS_NO_MEMORY;
	if (!ls_enabled)
		return LS_NO_SWITCH;
	if (recoveryTarget != RECOVERY_TARGET_UNSET)
		return LS_NO_TARGET;
	if (ls_sched_cores() < 2)
		return LS_NO_CORE;
	if (reachedConsistency || XLogRecPtrIsInvalid(limit))
		return LS_NO_CONSISTENT;
	return LS_PARALLEL;
}

static void
end_for_good(LsPipelineState why)
{
	phase = PHASE_OFF;
	pg_atomic_write_u32(&ls_queue->state, why);
}

/* Startup process, before the first record of a recovery. */
void
ls_pipeline_begin(void)
{
	LsPipelineState why;

	if (ls_queue == NULL || MyProc == NULL)
		return;
	limit = run_ahead_limit();
	why = why_not();
	if (why != LS_PARALLEL)
	{
		end_for_good(why);
		return;
	}
	ls_resolve_wait_events();
	pg_atomic_write_u32(&ls_queue->startup_procno, (uint32) LS_MY_PROCNO);
	pg_atomic_write_u32(&ls_queue->state, LS_NOT_YET);
	counted = 0;
	phase = PHASE_COUNTING;
}

/* Asked before records are dispatched; what was dispatched is retired in any case. */
static bool
may_dispatch(void)
{
	at_limit = at_limit || backup_has_ended();
	return !at_limit && ls_enabled && !reachedConsistency && GetRecoveryState() == begun_as;
}

/* ---- Helpers ----------------------------------------------------------- */

static bool
start_helper(int id)
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
	return RegisterDynamicBackgroundWorker(&worker, &handles[id]);
}

/* One core is the startup process's. */
static void
start_helpers(void)
{
	int			wanted = Min(ls_replay_workers, ls_sched_cores() - 1);

	for (nhelpers = 0; nhelpers < wanted; nhelpers++)
		if (!start_helper(nhelpers))
			break;
	if (nhelpers < wanted)
		ereport(LOG,
				(errmsg("%d of %d replay helpers cannot run: no background worker is free",
						wanted - nhelpers, wanted),
				 errhint("Raise max_worker_processes and restart the server.")));
}

static void
set_latch(pg_atomic_uint32 *procno)
{
	uint32		number = pg_atomic_read_u32(procno);

	if (number != PG_UINT32_MAX)
		SetLatch(&GetPGProcByNumber(number)->procLatch);
}

static void
wake_helpers(void)
{
	pg_memory_barrier();
	for (int i = 0; i < nhelpers; i++)
		if (pg_atomic_read_u32(&ls_queue->helpers[i].sleeps) != 0)
			set_latch(&ls_queue->helpers[i].procno);
}

/* They end between two records; by now there is none that they could claim. */
static void
stop_helpers(void)
{
	pg_atomic_write_u32(&ls_queue->closed, 1);
	for (int i = 0; i < nhelpers; i++)
	{
		set_latch(&ls_queue->helpers[i].procno);
		TerminateBackgroundWorker(handles[i]);
	}
	nhelpers = 0;
}

/* ---- The queue's memory ------------------------------------------------ */

/*
 * Lets the reader decode into shared memory. Possible while the current record is the
 * only one decoded, at the start of the reader's own buffer: marked as oversized, its
 * release frees that buffer, which begins where the record does.
 */
static bool
open_queue(XLogReaderState *reader)
{
	DecodedXLogRecord *record = reader->record;

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

static bool
have_table(void)
{
	if (last_of_block == NULL)
		last_of_block = MemoryContextAllocExtended(TopMemoryContext,
												   LS_BLOCK_SLOTS * sizeof(uint64),
												   MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO);
	return last_of_block != NULL;
}

/* ---- Dispatch ---------------------------------------------------------- */

static inline uint64 *
last_slot(const DecodedBkpBlock *block)
{
	uint32		hash = LS_BLOCK_RELATION(block) * 0x9E3779B1U;

	hash = (hash ^ block->blkno ^ ((uint32) block->forknum << 28)) * 0x85EBCA6BU;
	return &last_of_block[(hash ^ (hash >> 15)) % LS_BLOCK_SLOTS];
}

/* Rule 1: what must be done before this record, and that later ones wait for it. */
static void
note_blocks(LsEntry *entry)
{
	const DecodedXLogRecord *record = entry->record;

	memset(entry->after, 0, sizeof(entry->after));
	for (int id = 0; id <= Min(record->max_block_id, LS_BLOCKS - 1); id++)
		if (record->blocks[id].in_use && !LS_BREAKS(ORDER))
			entry->after[id] = *last_slot(&record->blocks[id]);
	for (int id = 0; id <= record->max_block_id; id++)
		if (record->blocks[id].in_use)
			*last_slot(&record->blocks[id]) = entry->number;
}

/* Size of a fork as startup knows it, 0 if its file does not exist. */
static BlockNumber
size_of(SMgrRelation smgr, ForkNumber fork)
{
	if (smgr->smgr_cached_nblocks[fork] == InvalidBlockNumber && !smgrexists(smgr, fork))
		return 0;
	return smgrnblocks(smgr, fork);
}

/*
 * Rule 6: does the block exist? One that redo would append is appended now, as zeros,
 * before any later record is published. No earlier record in the queue can truncate
 * the relation: that would be a barrier.
 */
static bool
make_exist(DecodedBkpBlock *block)
{
	SMgrRelation smgr;
	BlockNumber size;

	if (ls_hints_know_block(block))
		return true;
	smgr = ls_smgr_of(block);
	size = size_of(smgr, block->forknum);
	if (block->blkno < size)
		return true;
	if (size == 0 || ls_block_is_read(block) || block->blkno - size >= LS_MAX_EXTENSION)
		return false;
	if (!LS_BREAKS(EXTENSION))
		UnlockReleaseBuffer(ls_read_block(block, RBM_ZERO_AND_LOCK));
	return true;
}

static bool
blocks_exist(DecodedXLogRecord *record)
{
	for (int id = 0; id <= record->max_block_id; id++)
	{
		DecodedBkpBlock *block = &record->blocks[id];

		if (!block->in_use)
			continue;
		if (!make_exist(block))
			return false;
		if (id == 0 && ls_may_change_free_space_map(record) &&
			size_of(ls_smgr_of(block), FSM_FORKNUM) <= ls_free_space_map_block(block->blkno))
			return false;
	}
	return true;
}

/* Enters the record behind the tail. */
static void
dispatch(DecodedXLogRecord *record, bool may_run_ahead)
{
	LsEntry    *entry = ls_entry(++tail);
	LsCause		cause = LS_CAUSE_NONE;
	LsClass		class = ls_classify(record, &cause);

	entry->record = record;
	entry->number = tail;
	note_blocks(entry);
	if (class == LS_CLASS_BARRIER)
	{
		barrier = tail;
		/* rule 10: what follows is of the next generation */
		pg_atomic_write_u32(&ls_queue->generation,
							pg_atomic_read_u32(&ls_queue->generation) + 1);
	}
	else if (class == LS_CLASS_AHEAD && may_run_ahead && !blocks_exist(record))
	{
		class = LS_CLASS_INLINE;
		cause = LS_CAUSE_MISSING;
	}
	entry->generation = pg_atomic_read_u32(&ls_queue->generation);
	if (class == LS_CLASS_AHEAD && may_run_ahead)
	{
		fresh.dispatched++;
		fresh.dispatched_until = record->next_lsn;
	}
	else
		fresh.causes[cause]++;
	/* a helper that thinks of an earlier number may claim it from here on */
	pg_write_barrier();
	pg_atomic_write_u32(&entry->state,
						class == LS_CLASS_AHEAD && may_run_ahead ? LS_QUEUED : LS_AT_RETIREMENT);
}

/* Dispatches what fits. */
static void
fill(XLogReaderState *reader)
{
	uint64		before = tail;

	while (tail - current < LS_AHEAD_MAX)
	{
		bool		ours;
		DecodedXLogRecord *record;

		if (barrier >= current && !LS_BREAKS(BARRIER))
			break;				/* rule 8 */
		record = ls_next_decoded(reader, ls_entry(tail)->record, &ours);
		if (record == NULL)
			break;
		if (record->next_lsn > limit)
		{
			at_limit = true;
			break;
		}
		dispatch(record, true);
	}
	if (tail == before)
		return;
	raise_recovery_point(ls_entry(tail)->record->next_lsn);
	pg_write_barrier();
	pg_atomic_write_u64(&ls_queue->published, tail);
	wake_helpers();
	if (fresh.dispatched >= LS_PUBLISH_EVERY)
		publish_counters();
}

/* ---- Retirement -------------------------------------------------------- */

/* Rule 12. */
static void
raise_failure(void)
{
	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
	{
		LsFailure  *failure = &ls_queue->helpers[i].failure;

		if (failure->level == 0)
			continue;
		ereport(failure->level >= PANIC ? PANIC : FATAL,
				(errcode(failure->sqlerrcode),
				 errmsg_internal("%s", failure->message),
				 failure->detail[0] == '\0' ? 0 : errdetail_internal("%s", failure->detail),
				 errcontext("%s", failure->context)));
	}
	elog(FATAL, "a replay helper failed without an error");
}

/* Returns when the entry's state has changed, or an interrupt was looked at. */
static void
wait_for_helper(LsEntry *entry)
{
	int64		begin;

	for (int i = 0; i < LS_SPINS; i++)
	{
		if (pg_atomic_read_u32(&entry->state) != LS_CLAIMED)
			return;
		SPIN_DELAY();
	}
	begin = ls_now_us();
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
	pg_atomic_fetch_add_u64(&ls_queue->wait_us, (uint64) (ls_now_us() - begin));
}

/*
 * Executes the record in the startup process, as stock. Rule 13: PostgreSQL looks at
 * its pages after this, so what waits for it goes on with the next record only.
 */
static void
execute_here(LsEntry *entry, XLogReaderState *reader)
{
	ls_stock_redo(reader);
	if ((reader->record->header.xl_info & XLR_CHECK_CONSISTENCY) == 0)
		pg_atomic_exchange_u32(&entry->state, LS_DONE);
}

static void
retire(LsEntry *entry, XLogReaderState *reader)
{
	for (;;)
	{
		switch ((LsEntryState) pg_atomic_read_u32(&entry->state))
		{
			case LS_AT_RETIREMENT:
				pg_atomic_write_u32(&entry->state, LS_CLAIMED);
				execute_here(entry, reader);
				return;
			case LS_QUEUED:
				if (!ls_claim(entry))
					break;
				execute_here(entry, reader);
				return;
			case LS_CLAIMED:
				wait_for_helper(entry);
				break;
			case LS_DONE:
				pg_read_barrier();
				fresh.by_helpers++;
				return;
			case LS_FAILED:
				pg_read_barrier();
				if (LS_BREAKS(FAILURE))
					return;
				raise_failure();
				break;
		}
	}
}

/* Memory is asked for where it is likely that nobody else executes the record. */
static void
take_own_steps(void)
{
	ls_hints.current = current;
	if (ls_hints.tail < current)
		ls_hints_restart();
	while (ls_hints.tail < Min(current + LS_OWN_HINTS, tail))
	{
		LsEntry    *entry = ls_entry(ls_hints.tail + 1);
		uint32		state = pg_atomic_read_u32(&entry->state);

		ls_hints_add(state == LS_AT_RETIREMENT || state == LS_QUEUED ? entry->record : NULL);
	}
	ls_hints_take_steps();
}

/* ---- Each record ------------------------------------------------------- */

static void
start(XLogReaderState *reader)
{
	if (!open_queue(reader))
		return;
	current = tail = barrier = ls_hints.current = 0;
	ls_hints_restart();
	at_limit = false;
	start_helpers();
	if (nhelpers == 0)
	{
		end_for_good(LS_NO_SLOT);
		ls_look_ahead_resume();
		return;
	}
	pg_atomic_write_u32(&ls_queue->state, LS_PARALLEL);
	phase = PHASE_RUNNING;
}

static void
close_queue(LsPipelineState why)
{
	stop_helpers();
	publish_counters();
	end_for_good(why);
	ls_look_ahead_resume();
}

static void
run(XLogReaderState *reader)
{
	pg_atomic_write_u64(&ls_queue->retired, current++);
	ls_look_ahead_count(current <= tail);
	/* decoded by PostgreSQL, since nothing was ahead */
	if (current > tail)
		dispatch(reader->record, false);
	if (ls_entry(current)->record != reader->record)
		elog(PANIC, "replay helpers and the startup process are at different records");
	if (tail - current < LS_AHEAD_MAX - LS_REFILL && may_dispatch())
		fill(reader);
	take_own_steps();
	retire(ls_entry(current), reader);
	if (tail != current)
		return;
	publish_counters();
	if (!may_dispatch())
		close_queue(!ls_enabled ? LS_NO_SWITCH : at_limit ? LS_NO_LIMIT : LS_NO_CONSISTENT);
}

/* Startup process, for each record. False: the caller replays it. */
bool
ls_pipeline_replay(XLogReaderState *reader)
{
	switch (phase)
	{
		case PHASE_OFF:
			break;
		case PHASE_COUNTING:
			if (reader->EndRecPtr >= limit || backup_has_ended())
				end_for_good(LS_NO_LIMIT);
			if (++counted < LS_WORTH_HELPERS || phase == PHASE_OFF || !have_table())
				break;
			ls_look_ahead_pause();
			phase = PHASE_OPENING;
			break;
		case PHASE_OPENING:
			start(reader);
			ls_stock_redo(reader);
			return true;
		case PHASE_RUNNING:
			run(reader);
			return true;
	}
	return false;
}

/* Startup process, after the last record: all are retired. */
void
ls_pipeline_end(void)
{
	if (phase == PHASE_RUNNING)
		close_queue(LS_NO_ENDED);
	else if (phase != PHASE_OFF)
		end_for_good(LS_NO_ENDED);
}
