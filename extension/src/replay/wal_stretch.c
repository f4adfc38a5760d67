/*
 * wal_stretch.c - the startup process has a helper read the next records, and links them to its reader.
 *
 * Rule 14 of README.md is kept here. To read is to get pages of WAL from the segment that is open, to check
 * and to decode. A helper (wal_reader.c) does this with a reader of its own, which begins in the state of
 * the startup process's and decodes into the part of the same buffer where that one would go on
 * (stretch_rule.c). A record that is linked leaves the startup process's reader as if it had read it.
 *
 * At most one stretch is asked for at a time. While there is one the startup process decodes nothing
 * itself. What the helper cannot read ends its stretch, and the startup process decodes that record: all
 * that is to be said of it is said by PostgreSQL.
 *
 * Runs in the startup process. Shared state: LsStretch. No lock. Crash: shared memory is made anew.
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "storage/latch.h"

#include "compat.h"
#include "replay/broken_rule.h"
#include "replay/dispatch.h"
#include "replay/helper_count.h"
#include "replay/helper_processes.h"
#include "replay/look_ahead.h"
#include "replay/queue.h"
#include "replay/stretch_rule.h"
#include "state/settings.h"
#include "state/shared_state.h"

/* Fewest pages that are worth a stretch. */
#define LS_WORTH_PAGES 4

/* Longest part of the buffer for a stretch: a fraction of it, so that there is room for the next one. */
#define LS_BUFFER_SHARE 4

/* Times that the next record is wanted before it is read without a helper, if none has come. */
#define LS_PATIENCE 16

/* Records that the startup process decodes itself then: the queue must not run empty. */
#define LS_OWN_RECORDS LS_AHEAD_MAX

/* Records of the stretch from one that was linked to the one whose memory is asked for. */
#define LS_LATER 3

/* Bytes of a decoded record that dispatch reads: with two blocks and little data. */
#define LS_RECORD_BYTES 256
#define LS_LINE 64

/* Longest sleep before interrupts are looked at, in ms. */
#define LS_NAP 10

static struct
{
	bool		allowed;		/* the pipeline runs */
	uint32		linked;			/* records of the stretch */
	const LsStretchRecord *last_linked; /* NULL: the caller of ls_stretch_next() got none */
	uint32		wanted;			/* times that it was asked for a record of it, before a helper had come */
	uint32		own;			/* records to decode before a stretch is asked for */
	bool		limit_is_known;
	XLogRecPtr	limit;			/* as far as PostgreSQL can read from the open segment */
	XLogSegNo	limit_segment;
	uint64		records;		/* all that were linked */
	LsImages	images;			/* in what was decoded of late */
}			wal_stretch;

static bool wal_stretch_link(XLogReaderState *reader, DecodedXLogRecord **record);
static void wal_stretch_expect(void);
static bool wal_stretch_has_more(void);
static void wal_stretch_wait(void);
static void wal_stretch_end(void);
static bool wal_stretch_ask(XLogReaderState *reader);
static bool wal_stretch_is_wanted(void);
static void wal_stretch_write(XLogReaderState *reader, Size begin, Size size);
static XLogRecPtr wal_stretch_limit(XLogReaderState *reader);

/* The pipeline begins, or it has ended: then no stretch is left. */
void
ls_stretch_allow(bool allowed)
{
	if (!allowed)
		wal_stretch_end();
	wal_stretch.allowed = allowed;
	wal_stretch.own = 0;
	wal_stretch.limit_is_known = false;
}

/* A record runs ahead, whoever has decoded it. */
void
ls_stretch_count(const DecodedXLogRecord *record)
{
	uint32		images = 0;

	for (int id = 0; id <= record->max_block_id; id++)
		if (record->blocks[id].in_use && record->blocks[id].has_image)
			images += record->blocks[id].bimg_len;
	ls_images_count(&wal_stretch.images, record->header.xl_tot_len, images);
}

/* PostgreSQL has read: it may have opened another file, and may know of more WAL. */
void
ls_stretch_forget_limit(void)
{
	wal_stretch.limit_is_known = false;
}

/* That many more records are not asked for: the caller needs them now. 0: records are asked for again. */
void
ls_stretch_read_here(uint32 records)
{
	wal_stretch.own = records;
}

/* Records that helpers have read, in this process's life. */
uint64
ls_stretch_records(void)
{
	return wal_stretch.records;
}

/*
 * The record after last, the last one decoded. False: the caller decodes it. True with NULL: it is
 * not there yet.
 */
bool
ls_stretch_next(XLogReaderState *reader, DecodedXLogRecord *last, DecodedXLogRecord **record)
{
	*record = NULL;
	wal_stretch.last_linked = NULL;
	/* PostgreSQL does not call us for a record of another extension, and reads after it */
	if (!wal_stretch.allowed || last->header.xl_rmid > RM_MAX_BUILTIN_ID)
		return false;
	for (;;)
	{
		switch ((LsStretchState) pg_atomic_read_u32(&ls_queue->stretch.state))
		{
			case LS_STRETCH_NONE:
				if (wal_stretch.own > 0)
				{
					wal_stretch.own--;
					return false;
				}
				return wal_stretch_ask(reader);
			case LS_STRETCH_ASKED:
				if (last != reader->record && wal_stretch.own == 0 && ++wal_stretch.wanted < LS_PATIENCE)
					return true;
				wal_stretch_end();
				wal_stretch.own = Max(wal_stretch.own, LS_OWN_RECORDS);
				break;
			case LS_STRETCH_READING:
				if (wal_stretch_link(reader, record) || wal_stretch.own == 0)
					return true;
				wal_stretch_wait();
				break;
			case LS_STRETCH_ENDED:
				if (wal_stretch_link(reader, record))
					return true;
				/* the helper could not read on, unless it has read all that it may */
				if (wal_stretch.own == 0 && wal_stretch.linked < LS_STRETCH_RECORDS)
					wal_stretch.own = 1;
				wal_stretch_end();
				break;
		}
	}
}

/* What the helper that has read the record says of it; NULL: ls_stretch_next() returned another one last. */
const LsFacts *
ls_stretch_facts(const DecodedXLogRecord *record)
{
	const LsStretchRecord *read = wal_stretch.last_linked;

	return read != NULL && read->record == record ? &read->facts : NULL;
}

/*
 * All that was decoded has been replayed, last as the last one, and PostgreSQL is about to read. It does
 * not if another record is linked. Otherwise no stretch may be left: PostgreSQL begins its buffer anew.
 */
void
ls_stretch_settle(XLogReaderState *reader, DecodedXLogRecord *last)
{
	DecodedXLogRecord *record;

	wal_stretch.last_linked = NULL;
	if (LS_BREAKS(STRETCH_END))
		return;
	if (wal_stretch.allowed && ls_enabled && !ls_may_change_timeline(last))
	{
		while (pg_atomic_read_u32(&ls_queue->stretch.state) == LS_STRETCH_READING &&
			   !wal_stretch_has_more())
			wal_stretch_wait();
		if (wal_stretch_link(reader, &record))
		{
			/* PostgreSQL gets it */
			wal_stretch.last_linked = NULL;
			return;
		}
	}
	if (pg_atomic_read_u32(&ls_queue->stretch.state) == LS_STRETCH_ASKED)
		wal_stretch.own = LS_OWN_RECORDS;
	wal_stretch_end();
}

/* ---- What was read --------------------------------------------------------- */

/* Links the next record of the stretch, if it is there, to the end of the reader's queue. */
static bool
wal_stretch_link(XLogReaderState *reader, DecodedXLogRecord **linked)
{
	const LsStretchRecord *read = &ls_queue->stretch.records[wal_stretch.linked];
	DecodedXLogRecord *record;

	if (!wal_stretch_has_more())
		return false;
	pg_read_barrier();
	record = read->record;
	if (record->header.xl_prev != reader->DecodeRecPtr)
		elog(PANIC, "a replay helper has read WAL at another place than the startup process");
	reader->decode_queue_tail->next = record;
	reader->decode_queue_tail = record;
	reader->decode_buffer_tail = (char *) record + record->size;
	reader->DecodeRecPtr = record->lsn;
	reader->NextRecPtr = record->next_lsn;
	reader->latestPagePtr = read->page;
	reader->latestPageTLI = ls_queue->stretch.page_timeline;
	reader->abortedRecPtr = reader->missingContrecPtr = InvalidXLogRecPtr;
	reader->errormsg_buf[0] = '\0';
	wal_stretch.last_linked = read;
	wal_stretch.linked++;
	wal_stretch.records++;
	ls_helper_count_read();
	wal_stretch_expect();
	*linked = record;
	return true;
}

/* Asks for the memory of the record that will be linked LS_LATER after the last one, if it is there. */
static void
wal_stretch_expect(void)
{
	LsStretch  *stretch = &ls_queue->stretch;
	uint32		later = wal_stretch.linked - 1 + LS_LATER;

	if (later >= pg_atomic_read_u32(&stretch->read))
		return;
	pg_read_barrier();
	for (int at = 0; at < LS_RECORD_BYTES; at += LS_LINE)
		__builtin_prefetch((char *) stretch->records[later].record + at);
	ls_dispatch_expect(&stretch->records[later].facts);
}

static bool
wal_stretch_has_more(void)
{
	uint32		state = pg_atomic_read_u32(&ls_queue->stretch.state);

	pg_read_barrier();
	return (state == LS_STRETCH_READING || state == LS_STRETCH_ENDED) &&
		wal_stretch.linked < pg_atomic_read_u32(&ls_queue->stretch.read);
}

/* Returns when the helper has read more or has ended, or an interrupt was looked at. */
static void
wal_stretch_wait(void)
{
	LsStretch  *stretch = &ls_queue->stretch;

	for (int i = 0; i < LS_SPINS; i++)
	{
		if (pg_atomic_read_u32(&stretch->state) != LS_STRETCH_READING || wal_stretch_has_more())
			return;
		SPIN_DELAY();
	}
	pg_atomic_write_u32(&ls_queue->startup_sleeps, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u32(&stretch->state) == LS_STRETCH_READING && !wal_stretch_has_more())
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LS_NAP, ls_event_replay_helper);
		ResetLatch(MyLatch);
		ls_check_startup_interrupts();
	}
	pg_atomic_write_u32(&ls_queue->startup_sleeps, 0);
}

/* Gives the stretch up, with what was read and is not linked. A helper that reads is waited for. */
static void
wal_stretch_end(void)
{
	LsStretch  *stretch = &ls_queue->stretch;
	uint32		asked = LS_STRETCH_ASKED;

	wal_stretch.last_linked = NULL;
	if (pg_atomic_compare_exchange_u32(&stretch->state, &asked, LS_STRETCH_NONE) ||
		asked == LS_STRETCH_NONE)
		return;
	pg_atomic_write_u32(&stretch->stop, 1);
	/* what has been read since must not end the wait */
	wal_stretch.linked = LS_STRETCH_RECORDS;
	while (pg_atomic_read_u32(&stretch->state) == LS_STRETCH_READING)
		wal_stretch_wait();
	pg_atomic_write_u32(&stretch->state, LS_STRETCH_NONE);
}

/* ---- What is to be read ---------------------------------------------------- */

/* Asks for a stretch. True: it was, or it is better to wait. False: the startup process reads on itself. */
static bool
wal_stretch_ask(XLogReaderState *reader)
{
	Size		size = reader->decode_buffer_size;
	Size		head = reader->decode_buffer_head - reader->decode_buffer;
	Size		tail = reader->decode_buffer_tail - reader->decode_buffer;
	Size		begin;
	Size		room;

	if (!wal_stretch_is_wanted() || reader->errormsg_deferred ||
		wal_stretch_limit(reader) < reader->NextRecPtr + LS_WORTH_PAGES * XLOG_BLCKSZ)
		return false;
	room = ls_stretch_room(size, head, tail, &begin);
	if (room == 0)
		return ls_stretch_may_wait(size, head, tail);
	wal_stretch_write(reader, begin, Min(room, Max(size / LS_BUFFER_SHARE, LS_STRETCH_LEAST)));
	ls_helpers_wake();
	return true;
}

static bool
wal_stretch_is_wanted(void)
{
	return ls_replay_read_helpers == LS_AUTO ? wal_stretch.images.dominate : ls_replay_read_helpers == LS_ON;
}

static void
wal_stretch_write(XLogReaderState *reader, Size begin, Size size)
{
	LsStretch  *stretch = &ls_queue->stretch;

	stretch->before = reader->DecodeRecPtr;
	stretch->first = reader->NextRecPtr;
	stretch->until = wal_stretch.limit;
	stretch->latest_page = reader->latestPagePtr;
	stretch->page_timeline = reader->latestPageTLI;
	stretch->file_timeline = reader->seg.ws_tli;
	stretch->system_identifier = reader->system_identifier;
	stretch->memory = reader->decode_buffer + begin;
	stretch->memory_size = size;
	pg_atomic_write_u32(&stretch->read, 0);
	pg_atomic_write_u32(&stretch->stop, 0);
	wal_stretch.linked = wal_stretch.wanted = 0;
	pg_write_barrier();
	pg_atomic_write_u32(&stretch->state, LS_STRETCH_ASKED);
}

/*
 * The end of the last page of the open segment that PostgreSQL can read without asking for more WAL. That
 * stays so until it reads itself.
 */
static XLogRecPtr
wal_stretch_limit(XLogReaderState *reader)
{
	uint64		size = reader->segcxt.ws_segsize;
	XLogRecPtr	first = reader->latestPagePtr;
	uint64		there = 0;
	uint64		missing = (size - first % size) / XLOG_BLCKSZ;

	if (wal_stretch.limit_is_known && wal_stretch.limit_segment == first / size)
		return wal_stretch.limit;
	wal_stretch.limit_is_known = true;
	wal_stretch.limit_segment = first / size;
	if (missing > 1 && ls_can_read_page(reader, first + (missing - 1) * XLOG_BLCKSZ))
		there = missing - 1;
	while (missing - there > 1)
	{
		uint64		middle = there + (missing - there) / 2;

		if (ls_can_read_page(reader, first + middle * XLOG_BLCKSZ))
			there = middle;
		else
			missing = middle;
	}
	/* the first page itself may be one that is not whole yet */
	wal_stretch.limit = first + (there > 0 ? there + 1 : 0) * XLOG_BLCKSZ;
	return wal_stretch.limit;
}
