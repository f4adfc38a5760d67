/*
 * helper.c - a replay helper: a background worker that executes dispatched records
 * (pipeline.c).
 *
 * It takes the next records, in the order of the WAL, asks for the memory that they will change,
 * and executes one after the other. It claims a record only when it begins it: the startup
 * process never waits for one that a helper without a core has merely taken. A record whose
 * predecessors nobody has started, or that only the startup process may execute, is given
 * back: the startup process executes it at its turn. So a helper waits for other processes only
 * while they execute an earlier record. What it gave back since an earlier record was not done it
 * tries again (helper_try_again()): records of one page are a chain, and who could not begin it may
 * go on with it as soon as the startup process has done the first ones.
 *
 * When the startup process comes near, helpers leave it some records and go on further
 * ahead: both then work, and neither waits for the other. It sleeps while fewer helpers
 * are worth it than come before it (helper_count.c).
 *
 * Life: started by the startup process during recovery, never restarted. It ends
 * between two records: when told to (LsQueueShared.closed), at SIGTERM, which comes at a
 * shutdown, and when the postmaster is gone. An error in redo is logged, published, and raised
 * by the startup process at the record's turn; a PANIC too, but then this process stays
 * as it is, with its locks, until the server has ended: what it was changing must not
 * be written. If the startup process has not come to that record after some seconds, the
 * helper raises the PANIC itself, which restarts the server: nothing waits for ever.
 *
 * It has no database connection, so no row in pg_stat_activity: what it waits for is in
 * lockstep_stat_replay_workers.
 *
 * Shared state: LsQueueShared; its LsHelper is its own.
 */
#include "postgres.h"

#include <sched.h>

#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "access/xlogutils.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "replay/broken_rule.h"
#include "replay/execute.h"
#include "replay/helper_count.h"
#include "replay/known_files.h"
#include "replay/queue.h"
#include "state/clock.h"
#include "state/shared_state.h"

/* Records taken at once; a helper takes more when no more than these are left. */
#define LS_TAKE 8

/* Records from the startup process at which a helper skips ahead, and records that it leaves it then. */
#define LS_TOO_NEAR 16
#define LS_LEAP 48

/* Records given back that are remembered. */
#define LS_AGAIN 256

/* Records executed between two retries of these. */
#define LS_TRY_EVERY 16

/* Records between two times at which a helper publishes what it waited for. */
#define LS_NOTE_EVERY 256

/* Longest sleep, in ms. */
#define LS_IDLE_NAP 1000

/* Time for which a PANIC is left to the startup process, and interval of looks, in ms. */
#define LS_PANIC_WAIT 5000
#define LS_PANIC_NAP 10

extern PGDLLEXPORT void lockstep_replay_helper_main(Datum arg);

static LsHelper *helper_me = NULL;
static uint32 helper_number = 0;	/* from 0 */
static LsEntry *helper_claimed = NULL;
static LsEntry *helper_executing = NULL;
static uint64 helper_last_retired = 0;
static bool helper_hot = false;	/* sessions may read */

/* Number up to which all heap records of a slot (ls_xid_slot()) are done. */
static uint64 helper_heap_done[LS_XID_SLOTS];

/* Records that were given back, in the order of the WAL, and the one that each comes after. */
typedef struct LsGivenBack
{
	uint64		number;
	uint64		after;
} LsGivenBack;

static LsGivenBack helper_again[LS_AGAIN];
static int	helper_nagain = 0;
static uint64 helper_tried_at = 0;	/* what was retired when they were last tried */
static uint64 helper_blocked_by = 0;	/* what helper_is_ready() has found not to be done */

static void helper_begin(int id);
static void helper_leave(int code, Datum arg);
static void helper_work(void);
static bool helper_shall_end(void);
static bool helper_has_work(void);
static bool helper_shall_read(void);
static bool helper_is_used(void);
static void helper_publish_depth(void);
static void helper_wait_for_work(void);
static void helper_execute_next(void);
static void helper_execute(LsEntry *entry);
static bool helper_others_went_on(void);
static bool helper_try_again(void);
static bool helper_try_once_more(LsGivenBack *one);
static void helper_take_more(void);
static uint64 helper_take_numbers(uint64 *end);
static bool helper_claim(uint64 number);
static void helper_set_state(LsEntry *entry, LsEntryState state);
static bool helper_is_ready(LsEntry *entry);
static bool helper_heap_is_done(const LsEntry *entry);
static bool helper_wait_for_record(uint64 number);
static void helper_count_wait(int64 begin);
static void helper_give_back(LsEntry *entry);
static void helper_count_given_back(void);
static void helper_instead_of_log(ErrorData *error);
static void helper_publish_end(void);
static void helper_publish_failure(const ErrorData *error);
static void helper_copy_text(char *to, const char *from, size_t size);
static void helper_wake_startup(void);
static void helper_log_failure(void);

void
lockstep_replay_helper_main(Datum arg)
{
	MemoryContext context = CurrentMemoryContext;

	helper_begin(DatumGetInt32(arg));
	PG_TRY();
	{
		helper_work();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		if (helper_executing == NULL)
			PG_RE_THROW();
		error = CopyErrorData();
		/* before the locks go: the startup process must not see a page half changed */
		helper_publish_failure(error);
		helper_wake_startup();
		FlushErrorState();
		helper_log_failure();
		LWLockReleaseAll();
		ReleaseAuxProcessResources(false);
	}
	PG_END_TRY();
	proc_exit(0);
}

/* ---- Life ----------------------------------------------------------------- */

static void
helper_begin(int id)
{
	helper_me = &ls_queue->helpers[id];
	helper_number = (uint32) id;
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	CreateAuxProcessResourceOwner();
	ls_resolve_wait_events();
	emit_log_hook = helper_instead_of_log;
	before_shmem_exit(helper_leave, (Datum) 0);
	if (!ls_hints_have_memory())
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("A replay helper cannot remember in which buffers blocks are.")));
	ls_hints.memory = ls_decode_buffer;
	ls_hints.memory_size = ls_decode_buffer_size();
	ls_execute_init();
	ls_wal_reader_init();
	ls_helper_skip_waits();

	/*
	 * Rule 9: as the startup process in crash recovery, this process never moves the
	 * minimum recovery point when it writes a page. No page that it comes across is of
	 * a record beyond that point, or the point does not matter yet (README.md).
	 */
	InRecovery = true;
	/* rule 11: a page that is not valid stops the server, as in the startup process */
	helper_hot = reachedConsistency = pg_atomic_read_u32(&ls_queue->hot) != 0;
	pg_atomic_write_u32(&helper_me->procno, (uint32) LS_MY_PROCNO);
	pg_atomic_write_u32(&helper_me->pid, (uint32) MyProcPid);
}

static void
helper_leave(int code, Datum arg)
{
	ls_stretch_leave();
	if (helper_claimed != NULL)
		helper_publish_end();
	pg_atomic_write_u32(&helper_me->queue_depth, 0);
	pg_atomic_write_u32(&helper_me->procno, PG_UINT32_MAX);
	pg_atomic_write_u32(&helper_me->pid, 0);
}

static void
helper_work(void)
{
	uint32		executed = 0;

	while (!helper_shall_end())
	{
		/* first, since all others wait for what is read */
		if (helper_shall_read())
			(void) ls_stretch_read();
		if (ls_hints.tail - ls_hints.current <= LS_TAKE && helper_has_work())
			helper_take_more();
		helper_publish_depth();
		if (ls_hints.current == ls_hints.tail)
			helper_wait_for_work();
		else
			helper_execute_next();
		if (helper_nagain > 0 && ++executed % LS_TRY_EVERY == 0)
			(void) helper_try_again();
	}
}

static bool
helper_shall_end(void)
{
	return ShutdownRequestPending || pg_atomic_read_u32(&ls_queue->closed) != 0;
}

static bool
helper_has_work(void)
{
	uint64		next = pg_atomic_read_u64(&ls_queue->next);
	uint64		near = pg_atomic_read_u64(&ls_queue->retired) + LS_LEAP;

	return helper_is_used() && helper_nagain < LS_AGAIN - LS_TAKE * 2 &&
		Max(next, near) <= pg_atomic_read_u64(&ls_queue->published);
}

/* Is somebody to read WAL? */
static bool
helper_shall_read(void)
{
	return ls_stretch_is_asked() && helper_is_used();
}

/* May this process take records, or are there enough others? (helper_count.c) */
static bool
helper_is_used(void)
{
	return helper_number < pg_atomic_read_u32(&ls_queue->used);
}

/* Tells the view how many records are taken and not executed, or will be tried again. */
static void
helper_publish_depth(void)
{
	pg_atomic_write_u32(&helper_me->queue_depth,
						(uint32) (ls_hints.tail - ls_hints.current) + (uint32) helper_nagain);
}

static void
helper_wait_for_work(void)
{
	for (int i = 0; i < LS_SPINS; i++)
	{
		if (helper_has_work() || helper_shall_end() || helper_shall_read() ||
			(helper_nagain > 0 && helper_others_went_on() && helper_try_again()))
			return;
		SPIN_DELAY();
	}
	pg_atomic_write_u32(&helper_me->sleeps, 1);
	pg_memory_barrier();
	if (!helper_has_work() && !helper_shall_end() && !helper_shall_read())
	{
		/* rule 10: what is dropped meanwhile gives its space back */
		if (!LS_BREAKS(FILES) && !LS_BREAKS(GENERATION))
			ls_close_files();
		helper_publish_depth();
		ls_helper_note_waits(helper_me);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LS_IDLE_NAP, ls_event_replay_queue);
		ResetLatch(MyLatch);
		ls_helper_skip_waits();
	}
	pg_atomic_write_u32(&helper_me->sleeps, 0);
}

/* ---- Executing ------------------------------------------------------------ */

/* Executes the next record that was taken, or remembers it for later. */
static void
helper_execute_next(void)
{
	const LsAhead *ahead = ls_hint_at(++ls_hints.current);
	uint64		number = ahead->number;
	LsEntry    *entry = ls_entry(number);

	ls_hints_take_steps();
	if (!helper_claim(number))
	{
		helper_count_given_back();
		return;
	}
	if (helper_is_ready(entry))
	{
		ls_hints_give_buffers(ahead, entry->record);
		helper_execute(entry);
		return;
	}
	helper_again[helper_nagain].number = number;
	helper_again[helper_nagain++].after = helper_blocked_by;
	helper_set_state(entry, LS_QUEUED);
}

/* Executes a claimed record; all are done that it comes after. */
static void
helper_execute(LsEntry *entry)
{
	XLogRecPtr	end;
	int			blocks;
	uint32		bytes;

	if (LS_BREAKS(LEAVE))
		proc_exit(0);
	helper_executing = entry;
	pg_atomic_write_u64(&helper_me->at, entry->number);
	if (!ls_may_execute(entry))
	{
		helper_executing = NULL;
		helper_give_back(entry);
		return;
	}
	end = entry->record->next_lsn;
	blocks = entry->record->max_block_id + 1;
	bytes = entry->record->header.xl_tot_len;
	ls_execute(entry);
	helper_executing = NULL;
	/* the record's memory is used again from here on */
	helper_set_state(entry, LS_DONE);
	pg_atomic_write_u64(&helper_me->records, pg_atomic_read_u64(&helper_me->records) + 1);
	pg_atomic_write_u64(&helper_me->blocks, pg_atomic_read_u64(&helper_me->blocks) + blocks);
	pg_atomic_write_u64(&helper_me->bytes, pg_atomic_read_u64(&helper_me->bytes) + bytes);
	pg_atomic_write_u64(&helper_me->lsn, end);
	if (pg_atomic_read_u64(&helper_me->records) % LS_NOTE_EVERY == 0)
		ls_helper_note_waits(helper_me);
}

/* Is more retired than when records were last tried again, or may the first one begin? */
static bool
helper_others_went_on(void)
{
	return pg_atomic_read_u64(&ls_queue->retired) != helper_tried_at || ls_is_done(helper_again[0].after);
}

/* Tries all records again that were given back. True: something was executed. */
static bool
helper_try_again(void)
{
	int			kept = 0;
	uint64		before = pg_atomic_read_u64(&helper_me->records);

	helper_tried_at = helper_last_retired = pg_atomic_read_u64(&ls_queue->retired);
	for (int i = 0; i < helper_nagain; i++)
		if (helper_try_once_more(&helper_again[i]))
			helper_again[kept++] = helper_again[i];
	helper_nagain = kept;
	return pg_atomic_read_u64(&helper_me->records) != before;
}

/*
 * Executes a record that was given back if all are done by now that it comes after. True: it is
 * to be tried once more. What the startup process has begun, or is about to, is left to it.
 */
static bool
helper_try_once_more(LsGivenBack *one)
{
	LsEntry    *entry = ls_entry(one->number);

	if (one->number >= helper_last_retired + LS_TOO_NEAR)
	{
		if (!ls_is_done(one->after))
			return true;
		if (helper_claim(one->number))
		{
			if (helper_is_ready(entry))
			{
				helper_execute(entry);
				return false;
			}
			helper_set_state(entry, LS_QUEUED);
			one->after = helper_blocked_by;
			return true;
		}
	}
	helper_count_given_back();
	return false;
}

/* ---- Claims --------------------------------------------------------------- */

/* Takes records and asks for their memory; the startup process may release them meanwhile. */
static void
helper_take_more(void)
{
	uint64		end;
	uint64		number = helper_take_numbers(&end);

	for (; number != 0 && number < end; number++)
	{
		LsEntry    *entry = ls_entry(number);

		if (pg_atomic_read_u32(&entry->state) == LS_QUEUED)
			ls_hints_add(entry->record)->number = number;
	}
}

/* The first number of the next LS_TAKE records for this process, 0: none. */
static uint64
helper_take_numbers(uint64 *end)
{
	uint64		next = pg_atomic_read_u64(&ls_queue->next);

	for (;;)
	{
		uint64		published = pg_atomic_read_u64(&ls_queue->published);
		uint64		first = next;

		helper_last_retired = pg_atomic_read_u64(&ls_queue->retired);
		if (first < helper_last_retired + LS_TOO_NEAR)
			first = helper_last_retired + LS_LEAP;
		if (first > published)
			return 0;
		*end = Min(first + LS_TAKE, published + 1);
		if (pg_atomic_compare_exchange_u64(&ls_queue->next, &next, *end))
			return first;
	}
}

/* Claims a record. False: it is the startup process's, and its entry perhaps another record's. */
static bool
helper_claim(uint64 number)
{
	LsEntry    *entry = ls_entry(number);

	if (pg_atomic_read_u32(&entry->state) != LS_QUEUED || !ls_claim(entry))
		return false;
	helper_claimed = entry;
	if (entry->number == number)
		return true;
	helper_set_state(entry, LS_QUEUED);
	return false;
}

static void
helper_set_state(LsEntry *entry, LsEntryState state)
{
	helper_claimed = NULL;
	/* a full barrier: what redo wrote is seen, and startup_sleeps is read after it */
	pg_atomic_exchange_u32(&entry->state, state);
	helper_wake_startup();
}

static bool
helper_is_ready(LsEntry *entry)
{
	if (helper_hot && entry->record->header.xl_rmid == RM_BTREE_ID && !LS_BREAKS(HEAP_FIRST) &&
		!helper_heap_is_done(entry))
		return false;
	for (int i = 0; i < LS_BLOCKS; i++)
		if (entry->after[i] > helper_last_retired && !helper_wait_for_record(entry->after[i]))
			return false;
	return true;
}

/*
 * Rule 2. Follows the chain of the transaction's heap records (dispatch.c) as far as they are
 * not known to be done. An entry of the chain is read before it is asked whether its record
 * has retired: only then may the entry be another record's.
 */
static bool
helper_heap_is_done(const LsEntry *entry)
{
	uint64	   *done = &helper_heap_done[ls_xid_slot(entry->record->header.xl_xid)];
	uint64		number = entry->heap_before;

	while (number > helper_last_retired && number > *done)
	{
		uint64		before;

		if (!helper_wait_for_record(number))
			return false;
		before = ls_entry(number)->heap_before;
		pg_read_barrier();
		helper_last_retired = pg_atomic_read_u64(&ls_queue->retired);
		if (number <= helper_last_retired)
			break;
		number = before;
	}
	*done = Max(*done, entry->heap_before);
	return true;
}

/*
 * Rule 1. Returns when the record is done, or false when nobody has started it. Who
 * has started it is ahead in the order of the WAL, and ends.
 */
static bool
helper_wait_for_record(uint64 number)
{
	LsEntry    *entry = ls_entry(number);
	int64		begin = 0;
	uint32		spins = 0;
	bool		done = true;

	if (number <= helper_last_retired)
		return true;
	while (!ls_is_done(number))
	{
		uint32		state = pg_atomic_read_u32(&entry->state);

		if (state == LS_DONE)
			break;
		/* done meanwhile, and the entry is another record's */
		if (number <= pg_atomic_read_u64(&ls_queue->retired))
			break;
		helper_blocked_by = number;
		if (state != LS_CLAIMED || ShutdownRequestPending)
		{
			done = false;
			break;
		}
		if (begin == 0)
		{
			begin = ls_now_us();
			pgstat_report_wait_start(ls_event_replay_record);
		}
		SPIN_DELAY();
		if (++spins % LS_SPINS != 0)
			continue;
		/* the startup process may wait in it for sessions; nothing forces us to */
		if (helper_hot)
		{
			done = false;
			break;
		}
		/* then nobody is left who would end it, or tell us to end */
		if (!PostmasterIsAlive())
			proc_exit(1);
		/* who has started it may wait for a core, if others use those that were free */
		(void) sched_yield();
	}
	pg_read_barrier();
	helper_count_wait(begin);
	return done;
}

/* Counts a wait for a record since begin; 0: there was none. */
static void
helper_count_wait(int64 begin)
{
	if (begin == 0)
		return;
	pgstat_report_wait_end();
	pg_atomic_write_u64(&helper_me->waits, pg_atomic_read_u64(&helper_me->waits) + 1);
	pg_atomic_write_u64(&helper_me->wait_us, pg_atomic_read_u64(&helper_me->wait_us) +
						(uint64) (ls_now_us() - begin));
}

static void
helper_give_back(LsEntry *entry)
{
	helper_count_given_back();
	helper_set_state(entry, LS_QUEUED);
}

/* Counts a record that was taken and is the startup process's now. */
static void
helper_count_given_back(void)
{
	pg_atomic_write_u64(&helper_me->given_back, pg_atomic_read_u64(&helper_me->given_back) + 1);
}

/* ---- Failures ------------------------------------------------------------- */

/* Leaves it to the startup process to say what ends this process while it executes a record. */
static void
helper_instead_of_log(ErrorData *error)
{
	if (helper_executing == NULL || error->elevel < FATAL)
		return;
	helper_publish_failure(error);
	helper_wake_startup();
	if (error->elevel >= PANIC)
	{
		for (int i = 0; i < LS_PANIC_WAIT / LS_PANIC_NAP; i++)
		{
			if (!PostmasterIsAlive())
				_exit(2);
			pg_usleep(LS_PANIC_NAP * 1000L);
		}
		return;
	}
	helper_log_failure();
	error->output_to_server = false;
}

/* This process ends, without an error that says so, while it has claimed a record: nobody else may execute it. */
static void
helper_publish_end(void)
{
	char		context[64];
	const ErrorData error = {
		.elevel = FATAL,
		.sqlerrcode = ERRCODE_INTERNAL_ERROR,
		.message = "a replay helper ended in the middle of a WAL record",
		.detail = "Nobody knows whether its pages are as they should be. Recovery that is begun again replays it.",
		.context = context
	};

	snprintf(context, sizeof(context), "WAL redo at %X/%X, in a replay helper",
			 LSN_FORMAT_ARGS(helper_claimed->record->lsn));
	helper_publish_failure(&error);
	helper_wake_startup();
}

static void
helper_publish_failure(const ErrorData *error)
{
	LsFailure  *failure = &helper_me->failure;

	helper_copy_text(failure->message, error->message, sizeof(failure->message));
	helper_copy_text(failure->detail, error->detail, sizeof(failure->detail));
	helper_copy_text(failure->context, error->context, sizeof(failure->context));
	failure->sqlerrcode = error->sqlerrcode;
	failure->level = error->elevel;
	failure->number = helper_claimed->number;
	pg_write_barrier();
	pg_atomic_exchange_u32(&helper_claimed->state, LS_FAILED);
	helper_claimed = helper_executing = NULL;
}

static void
helper_copy_text(char *to, const char *from, size_t size)
{
	strlcpy(to, from == NULL ? "" : from, size);
}

static void
helper_wake_startup(void)
{
	uint32		procno = pg_atomic_read_u32(&ls_queue->startup_procno);

	if (pg_atomic_read_u32(&ls_queue->startup_sleeps) != 0 && procno != PG_UINT32_MAX)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/*
 * The startup process may stand in a conflict for hours before it comes to the record. What
 * it will say then is in the log from now on.
 */
static void
helper_log_failure(void)
{
	const LsFailure *failure = &helper_me->failure;
	ErrorContextCallback *context = error_context_stack;

	error_context_stack = NULL;
	ereport(LOG,
			(errcode(failure->sqlerrcode),
			 errmsg("a replay helper has failed: %s", failure->message),
			 errdetail("Recovery ends with this error when replay comes to the record."),
			 errcontext("%s", failure->context)));
	error_context_stack = context;
}
