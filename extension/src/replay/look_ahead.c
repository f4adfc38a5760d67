/*
 * look_ahead.c - the startup process decodes the next records before it replays
 * the current one, and asks early for the memory that they will change.
 *
 * Purpose: before each record's redo ls_look_ahead() decodes up to
 * lockstep.replay_look_ahead more records, and memory_hints.c asks for the memory
 * that they will change. lockstep.replay_workers decodes further ahead
 * (pipeline.c), by rules 1 to 3 of this file.
 *
 * What it changes: PostgreSQL's own recovery_prefetch in this process, see below,
 * and what memory_hints.c names.
 *
 * Rules, each tested in test/t/018_look_ahead.pl, the last one in t/037_reading_helpers.pl:
 *  1. It never waits. Records are read only from the WAL segment that is open:
 *     another one may have to come from the archive or the walreceiver, and the
 *     current record would stand still meanwhile, neither replayed nor paused. And
 *     PostgreSQL may take a new timeline there.
 *  2. It reads nothing beyond a shutdown checkpoint or an end-of-recovery record
 *     until that is replayed: the records after it may be of another timeline.
 *  3. It begins with the second record: PostgreSQL reads the first one with
 *     errors as PANIC, and such a read must not reach further pages.
 *  4. Each eighth use of a remembered buffer is left to the mapping of buffers:
 *     the way through prefetch_buffer does not raise the usage count, and a
 *     block in constant use would be evicted (memory_hints.c).
 *  5. It reads no page of another timeline than the page before: PostgreSQL compares the timeline of the
 *     page that was read last with those it may replay, for each record. It would refuse records
 *     that come before that page.
 *
 * PostgreSQL's prefetcher: it looks up each block, which is only worth its price
 * where blocks are read from files. While nearly all blocks are found in buffers
 * it is off (its variable in this process only, SHOW in a session still says
 * what is configured), and it is on again, as configured, where more than one
 * block in 64 is missing. Only one of the two decodes ahead at a time.
 *
 * Runs in the startup process. Shared state: LsLookAheadShared, counters.
 * Promotion: the process ends. Crash: so too.
 */
#include "postgres.h"

#include "access/xlog_internal.h"
#include "access/xlogprefetcher.h"
#include "catalog/pg_control.h"
#include "utils/guc.h"

#include "replay/look_ahead.h"
#include "replay/memory_hints.h"
#include "replay/wal_stretch.h"
#include "state/settings.h"

/* Blocks after which it is decided whether PostgreSQL's prefetcher is needed. */
#define LS_WINDOW 4096

/* PostgreSQL's prefetcher is needed when more than one block in this number was missing. */
#define LS_MISSING_SHARE 64

/* Records after which the counters are added to those in shared memory. */
#define LS_PUBLISH_EVERY 256

LsLookAheadShared *ls_look_ahead_shared = NULL;

static bool look_ahead_is_first = true; /* rule 3 */
static XLogRecPtr look_ahead_barrier = InvalidXLogRecPtr;	/* rule 2: begins here */
static XLogRecPtr look_ahead_exhausted = InvalidXLogRecPtr; /* no more WAL after it */

static uint32 look_ahead_window_blocks = 0;
static uint32 look_ahead_window_missing = 0;
static bool look_ahead_wants_prefetcher = false;
static bool look_ahead_active = true;	/* switched on, as far as is known */

/* Counters not yet in shared memory. */
static struct
{
	uint64		records;
	uint64		ahead;
}			look_ahead_fresh;

static bool look_ahead_would_wait = false;	/* rule 1 kept the last page from being read */

static XLogPageReadCB look_ahead_stock_page_read = NULL;

static void look_ahead_publish(void);
static void look_ahead_leave_to_postgres(void);
static void look_ahead_advance(DecodedXLogRecord *record);
static void look_ahead_set_prefetcher(int value);
static int look_ahead_configured_prefetch(void);
static void look_ahead_choose_prefetcher(void);
static void look_ahead_fill_ring(XLogReaderState *reader);
static DecodedXLogRecord *look_ahead_decode_one(XLogReaderState *reader);
static int look_ahead_read_page_of_open_segment(XLogReaderState *reader, XLogRecPtr page, int length,
												XLogRecPtr record, char *buffer);

/* Sets first values. Postmaster. */
void
ls_look_ahead_init_shared(void)
{
	pg_atomic_init_u64(&ls_look_ahead_shared->records, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->ahead, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->blocks, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->found, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->missing, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->prefetching, 1);
}

/* Startup process, before the first record of a recovery. */
void
ls_look_ahead_begin(void)
{
	look_ahead_is_first = true;
	/* as without us, until blocks are found in buffers */
	look_ahead_wants_prefetcher = recovery_prefetch != RECOVERY_PREFETCH_OFF;
}

/* Startup process, before each record's redo. */
void
ls_look_ahead(XLogReaderState *reader)
{
	if (look_ahead_is_first || reader->record == NULL)
	{
		look_ahead_is_first = false;
		ls_hints_restart();
		return;
	}
	if (!ls_enabled || ls_replay_look_ahead == 0 || !ls_hints_have_memory())
	{
		look_ahead_leave_to_postgres();
		return;
	}
	look_ahead_active = true;
	look_ahead_advance(reader->record);
	look_ahead_choose_prefetcher();
	look_ahead_fill_ring(reader);
	ls_hints_take_steps();
	if (look_ahead_fresh.records >= LS_PUBLISH_EVERY || ls_hints.tail == ls_hints.current)
		look_ahead_publish();
}

/* The record after the last one, read here or by a helper if need and rules allow it, or NULL. */
DecodedXLogRecord *
ls_next_decoded(XLogReaderState *reader, DecodedXLogRecord *last, bool *ours)
{
	DecodedXLogRecord *record;

	*ours = false;
	if (last->next != NULL)
		return last->next;
	if (recovery_prefetch != RECOVERY_PREFETCH_OFF || look_ahead_wants_prefetcher ||
		reader->ReadRecPtr <= look_ahead_barrier || reader->ReadRecPtr <= look_ahead_exhausted)
		return NULL;
	if (ls_may_change_timeline(last))
	{
		look_ahead_barrier = last->lsn;
		return NULL;
	}
	if (ls_stretch_next(reader, last, &record))
	{
		*ours = record != NULL;
		return record;
	}
	*ours = true;
	return look_ahead_decode_one(reader);
}

/* Rule 2: may the record after this one be of another timeline? */
bool
ls_may_change_timeline(const DecodedXLogRecord *record)
{
	uint8		info = record->header.xl_info & ~XLR_INFO_MASK;

	return record->header.xl_rmid == RM_XLOG_ID &&
		(info == XLOG_CHECKPOINT_SHUTDOWN || info == XLOG_END_OF_RECOVERY);
}

/* Can this page of the segment that is open be read whole, by the same rule? */
bool
ls_can_read_page(XLogReaderState *reader, XLogRecPtr page)
{
	static PGAlignedXLogBlock unused;
	uint64		size = reader->segcxt.ws_segsize;
	XLogRecPtr	latest = reader->latestPagePtr;
	TimeLineID	latest_timeline = reader->latestPageTLI;
	bool		nonblocking = reader->nonblocking;
	int			length;

	if (page / size != latest / size)
		return false;
	reader->nonblocking = true;
	length = reader->routine.page_read(reader, page, XLOG_BLCKSZ, page, unused.data);
	reader->nonblocking = nonblocking;
	reader->latestPagePtr = latest;
	reader->latestPageTLI = latest_timeline;
	return length == XLOG_BLCKSZ;
}

/* The pipeline decodes from now on, and alone. */
void
ls_look_ahead_pause(void)
{
	look_ahead_set_prefetcher(RECOVERY_PREFETCH_OFF);
	look_ahead_wants_prefetcher = false;
	ls_hints_restart();
}

/*
 * The pipeline, after each record, since a configuration reload turns the prefetcher on if it is
 * set in a file. It would read beyond the segment that is open, and could so take a timeline
 * that forked before records that have run ahead.
 */
void
ls_look_ahead_stay_paused(void)
{
	look_ahead_set_prefetcher(RECOVERY_PREFETCH_OFF);
}

bool
ls_prefetch_is_configured(void)
{
	return look_ahead_configured_prefetch() != RECOVERY_PREFETCH_OFF;
}

/* Counts a record that the pipeline replayed. ours: we decoded it. */
void
ls_look_ahead_count(bool ours)
{
	look_ahead_fresh.records++;
	look_ahead_fresh.ahead += ours;
	if (look_ahead_fresh.records >= LS_PUBLISH_EVERY)
		look_ahead_publish();
}

/* The pipeline has ended: the state is as at the beginning of a recovery. */
void
ls_look_ahead_resume(void)
{
	ls_hints_restart();
	look_ahead_set_prefetcher(look_ahead_configured_prefetch());
	look_ahead_wants_prefetcher = recovery_prefetch != RECOVERY_PREFETCH_OFF;
	look_ahead_publish();
}

/* Adds what was counted to shared memory. */
static void
look_ahead_publish(void)
{
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->records, look_ahead_fresh.records);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->ahead, look_ahead_fresh.ahead);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->blocks, ls_hints.blocks);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->found, ls_hints.found);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->missing, ls_hints.missing);
	pg_atomic_write_u64(&ls_look_ahead_shared->prefetching,
						recovery_prefetch != RECOVERY_PREFETCH_OFF);
	memset(&look_ahead_fresh, 0, sizeof(look_ahead_fresh));
	look_ahead_window_blocks += ls_hints.blocks;
	look_ahead_window_missing += ls_hints.missing;
	ls_hints.blocks = ls_hints.found = ls_hints.missing = 0;
}

/* ---- Each record ------------------------------------------------------- */

/* Looking ahead is switched off. Nothing is counted either. */
static void
look_ahead_leave_to_postgres(void)
{
	if (!look_ahead_active)
		return;
	look_ahead_active = false;
	ls_hints_restart();
	look_ahead_set_prefetcher(look_ahead_configured_prefetch());
	look_ahead_wants_prefetcher = recovery_prefetch != RECOVERY_PREFETCH_OFF;
	look_ahead_publish();
}

/* The current record is the next of the ring, or the ring begins anew with it. */
static void
look_ahead_advance(DecodedXLogRecord *record)
{
	LsAhead    *ahead = ls_hint_at(++ls_hints.current);

	look_ahead_fresh.records++;
	if (ls_hints.current <= ls_hints.tail && ahead->record == record &&
		ahead->lsn == record->lsn)
	{
		look_ahead_fresh.ahead += ahead->ours;
		return;
	}
	ls_hints_restart();
	ahead->record = record;
	ahead->lsn = record->lsn;
}

/* ---- PostgreSQL's prefetcher ------------------------------------------- */

static void
look_ahead_set_prefetcher(int value)
{
	if (recovery_prefetch == value)
		return;
	recovery_prefetch = value;
	XLogPrefetchReconfigure();
}

/* The configured value of recovery_prefetch, whatever we have set. */
static int
look_ahead_configured_prefetch(void)
{
	const char *value = GetConfigOptionResetString("recovery_prefetch");

	return strcmp(value, "off") == 0 ? RECOVERY_PREFETCH_OFF :
		strcmp(value, "on") == 0 ? RECOVERY_PREFETCH_ON : RECOVERY_PREFETCH_TRY;
}

/* Turns the prefetcher off, or on, but on only when all that we have decoded is replayed. */
static void
look_ahead_choose_prefetcher(void)
{
	if (look_ahead_window_blocks >= LS_WINDOW)
	{
		look_ahead_wants_prefetcher =
			look_ahead_window_missing > look_ahead_window_blocks / LS_MISSING_SHARE &&
			look_ahead_configured_prefetch() != RECOVERY_PREFETCH_OFF;
		look_ahead_window_blocks = look_ahead_window_missing = 0;
	}
	if (!look_ahead_wants_prefetcher)
		look_ahead_set_prefetcher(RECOVERY_PREFETCH_OFF);
	else if (ls_hints.tail == ls_hints.current && recovery_prefetch == RECOVERY_PREFETCH_OFF)
		look_ahead_set_prefetcher(look_ahead_configured_prefetch());
}

/* ---- Decoding ahead ---------------------------------------------------- */

static void
look_ahead_fill_ring(XLogReaderState *reader)
{
	DecodedXLogRecord *last = ls_hint_at(ls_hints.tail)->record;

	while (ls_hints.tail - ls_hints.current < (uint64) ls_replay_look_ahead)
	{
		bool		ours;
		LsAhead    *ahead;

		last = ls_next_decoded(reader, last, &ours);
		if (last == NULL)
			break;
		ahead = ls_hints_add(last);
		ahead->lsn = last->lsn;
		ahead->ours = ours;
	}
}

static DecodedXLogRecord *
look_ahead_decode_one(XLogReaderState *reader)
{
	DecodedXLogRecord *record;

	look_ahead_stock_page_read = reader->routine.page_read;
	reader->routine.page_read = look_ahead_read_page_of_open_segment;
	look_ahead_would_wait = false;
	record = XLogReadAhead(reader, true);
	reader->routine.page_read = look_ahead_stock_page_read;
	/* otherwise there is no room for it, until the current record is replayed */
	if (record == NULL && (look_ahead_would_wait || reader->errormsg_deferred))
		look_ahead_exhausted = reader->decode_queue_tail->lsn;
	return record;
}

/*
 * In place of the reader's own function while we decode, for rules 1 and 5. The segment
 * that is open is the one from which the last page came.
 */
static int
look_ahead_read_page_of_open_segment(XLogReaderState *reader, XLogRecPtr page, int length,
									 XLogRecPtr record, char *buffer)
{
	uint64		size = reader->segcxt.ws_segsize;
	int			read;

	if (page / size != reader->latestPagePtr / size)
	{
		look_ahead_would_wait = true;
		return XLREAD_WOULDBLOCK;
	}
	read = look_ahead_stock_page_read(reader, page, length, record, buffer);
	if (read >= (int) SizeOfXLogShortPHD && ((XLogPageHeader) buffer)->xlp_tli != reader->latestPageTLI)
	{
		look_ahead_would_wait = true;
		return XLREAD_WOULDBLOCK;
	}
	return read;
}
