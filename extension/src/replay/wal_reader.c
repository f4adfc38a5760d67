/*
 * wal_reader.c - a helper reads, checks and decodes the records of a stretch of WAL (wal_stretch.c).
 *
 * PostgreSQL's own reader does it, in the state of the startup process's reader and by the same
 * checks. It reads whole pages only, from the segment that the startup process has open, and as
 * far as that one could read without asking for more. The file is opened anew for each stretch: only the
 * startup process puts another one in its place, when it asks for WAL, and then no stretch is left.
 *
 * The stretch ends before a record that cannot be read so (damage, the end of the WAL, the next segment,
 * too little memory), that replaces a broken one (XLP_FIRST_IS_OVERWRITE_CONTRECORD), that is on a page of
 * another timeline, or that another extension replays. It ends after a record that may change the timeline.
 * Nothing is said about the reason: the startup process comes to the same record.
 *
 * Runs in replay helpers. Shared state: LsStretch, which is the helper's own from its claim to
 * its end; the helper ends it also if it fails or exits.
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "replay/broken_rule.h"
#include "replay/look_ahead.h"
#include "replay/queue.h"
#include "replay/record_class.h"

static XLogReaderState *wal_reader = NULL;
static int	wal_reader_file = -1;
static bool wal_reader_has_claimed = false;

static void wal_reader_begin(const LsStretch *stretch);
static void wal_reader_read_records(LsStretch *stretch);
static DecodedXLogRecord *wal_reader_next(const LsStretch *stretch);
static int wal_reader_read_page(XLogReaderState *reader, XLogRecPtr page, int length, XLogRecPtr record,
								char *buffer);
static void wal_reader_wake_startup(void);

void
ls_wal_reader_init(void)
{
	wal_reader = XLogReaderAllocate(wal_segment_size, NULL,
									XL_ROUTINE(.page_read = wal_reader_read_page), NULL);
	if (wal_reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
}

bool
ls_stretch_is_asked(void)
{
	return pg_atomic_read_u32(&ls_queue->stretch.state) == LS_STRETCH_ASKED;
}

/* Reads the stretch that is asked for, if there is one. True: it did. */
bool
ls_stretch_read(void)
{
	LsStretch  *stretch = &ls_queue->stretch;
	uint32		expected = LS_STRETCH_ASKED;
	MemoryContext caller;
	char		path[MAXPGPATH];
	XLogSegNo	segment;

	if (!ls_stretch_is_asked() ||
		!pg_atomic_compare_exchange_u32(&stretch->state, &expected, LS_STRETCH_READING))
		return false;
	wal_reader_has_claimed = true;
	/* the reader may make its buffer larger */
	caller = MemoryContextSwitchTo(TopMemoryContext);
	XLByteToSeg(stretch->first, segment, wal_segment_size);
	XLogFilePath(path, stretch->file_timeline, segment, wal_segment_size);
	wal_reader_file = BasicOpenFile(path, O_RDONLY | PG_BINARY);
	if (wal_reader_file >= 0)
		wal_reader_read_records(stretch);
	MemoryContextSwitchTo(caller);
	ls_stretch_leave();
	return true;
}

/* Ends the stretch that this process reads, if there is one. */
void
ls_stretch_leave(void)
{
	if (!wal_reader_has_claimed)
		return;
	if (wal_reader_file >= 0)
		close(wal_reader_file);
	wal_reader_file = -1;
	wal_reader_has_claimed = false;
	pg_atomic_exchange_u32(&ls_queue->stretch.state, LS_STRETCH_ENDED);
	wal_reader_wake_startup();
}

/* ---- Reading --------------------------------------------------------------- */

static void
wal_reader_read_records(LsStretch *stretch)
{
	wal_reader_begin(stretch);
	for (uint32 count = 0; count < LS_STRETCH_RECORDS; count++)
	{
		DecodedXLogRecord *record;

		if (ShutdownRequestPending || pg_atomic_read_u32(&stretch->stop) != 0)
			break;
		record = wal_reader_next(stretch);
		if (record == NULL)
			break;
		stretch->records[count].record = record;
		stretch->records[count].page = wal_reader->latestPagePtr;
		ls_facts_of(record, pg_atomic_read_u32(&ls_queue->hot) != 0, &stretch->records[count].facts);
		if (LS_BREAKS(FACTS))
			stretch->records[count].facts.class = LS_CLASS_AHEAD;
		pg_write_barrier();
		pg_atomic_write_u32(&stretch->read, count + 1);
		if (pg_atomic_read_u32(&ls_queue->startup_sleeps) != 0)
			wal_reader_wake_startup();
		if (ls_may_change_timeline(record))
			break;
	}
}

/* The reader as the startup process's is, which has read up to the stretch. */
static void
wal_reader_begin(const LsStretch *stretch)
{
	wal_reader->decode_buffer = stretch->memory;
	wal_reader->decode_buffer_size = stretch->memory_size;
	wal_reader->free_decode_buffer = false;
	wal_reader->decode_queue_head = wal_reader->decode_queue_tail = NULL;
	XLogBeginRead(wal_reader, stretch->first);
	/* so that the record's link to the one before is compared with it */
	wal_reader->DecodeRecPtr = stretch->before;
	wal_reader->system_identifier = stretch->system_identifier;
	wal_reader->latestPagePtr = stretch->latest_page;
	wal_reader->latestPageTLI = stretch->page_timeline;
	/* what it remembers of pages may be of another file */
	wal_reader->seg.ws_segno = 0;
	wal_reader->segoff = 0;
	wal_reader->readLen = 0;
	wal_reader->overwrittenRecPtr = InvalidXLogRecPtr;
}

/* The next record; NULL: it is the startup process's. */
static DecodedXLogRecord *
wal_reader_next(const LsStretch *stretch)
{
	DecodedXLogRecord *record = XLogReadAhead(wal_reader, true);

	/* the startup process links records, and may have released this one by the next call */
	wal_reader->decode_queue_head = wal_reader->decode_queue_tail = NULL;
	if (record == NULL || record->header.xl_rmid > RM_MAX_BUILTIN_ID ||
		!XLogRecPtrIsInvalid(wal_reader->overwrittenRecPtr) ||
		wal_reader->latestPageTLI != stretch->page_timeline)
		return NULL;
	return record;
}

static int
wal_reader_read_page(XLogReaderState *reader, XLogRecPtr page, int length, XLogRecPtr record, char *buffer)
{
	const LsStretch *stretch = &ls_queue->stretch;
	ssize_t		size;

	if (page / wal_segment_size != stretch->first / wal_segment_size || page + XLOG_BLCKSZ > stretch->until)
		return XLREAD_WOULDBLOCK;
	pgstat_report_wait_start(WAIT_EVENT_WAL_READ);
	size = pg_pread(wal_reader_file, buffer, XLOG_BLCKSZ, XLogSegmentOffset(page, wal_segment_size));
	pgstat_report_wait_end();
	if (size != XLOG_BLCKSZ)
		return XLREAD_WOULDBLOCK;
	reader->seg.ws_tli = stretch->file_timeline;
	return XLOG_BLCKSZ;
}

static void
wal_reader_wake_startup(void)
{
	uint32		procno = pg_atomic_read_u32(&ls_queue->startup_procno);

	if (pg_atomic_read_u32(&ls_queue->startup_sleeps) != 0 && procno != PG_UINT32_MAX)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}
