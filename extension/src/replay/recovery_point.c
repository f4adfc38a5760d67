/*
 * recovery_point.c - how far records may run ahead, for the minimum recovery point (rule 9
 * of README.md).
 *
 * A page on disk that is newer than the minimum recovery point would be seen too early
 * after a crash. PostgreSQL moves that point when it writes a page, but never beyond the
 * record that is being replayed. So no record is published to helpers before the point
 * lies at its end or beyond.
 *
 * Before consistency the point stays where it is and limits them, except in a backup.
 *
 * In hot standby the point is raised in the control file. That costs a write with fsync, so
 * it is raised by up to LS_STRIDE at a time, at most 50 times in a second and by little at most 20 times
 * (raise_rule.c), and only while at least lockstep.replay_min_backlog of WAL waits for replay. It is raised to the end of a
 * record, since a server whose WAL ends before the point can neither be read nor promoted; and
 * only to what is on disk for good: what the walreceiver has flushed, or in a segment that is
 * known to be complete (point_segment_is_complete()). Where a record ends is read from the
 * headers of WAL pages (point_end_of_record()), so nothing is decoded for it.
 *
 * And it is raised only to what PostgreSQL can read without asking for more WAL: from the
 * segment that is open, as far as the walreceiver had flushed when it last asked (point_last_page()).
 * A standby takes a new timeline only when it asks. By then it has replayed all that it
 * could read, so also all up to the point, and it refuses a timeline that forked before
 * what it has replayed. So no timeline that it follows forks before the point: nothing need be
 * taken back, as PostgreSQL could not, since each process remembers the point (its
 * LocalMinRecoveryPoint) and moves it only for a page that is beyond what it remembers. The
 * same holds for records: none runs ahead that PostgreSQL would not replay before it asks.
 *
 * When the startup process ends it takes back what no page needs (point_lower()): a server
 * that is started again with a new timeline, or with damaged WAL, is bound by what had run
 * ahead only, not by all up to the point. After a crash the point stays as it is.
 *
 * What a larger point means for users is in docs/explanation.md.
 *
 * Runs in the startup process. Lock: PostgreSQL's own of the control file.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "port/pg_iovec.h"
#include "replication/walreceiver.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "replay/broken_rule.h"
#include "replay/dispatch.h"
#include "replay/look_ahead.h"
#include "replay/raise_rule.h"
#include "replay/recovery_point.h"
#include "replay/wal_stretch.h"
#include "state/clock.h"
#include "state/settings.h"

/* Most bytes by which the point is raised at a time. */
#define LS_STRIDE (16 * 1024 * 1024)

/* WAL pages looked at for a record's end; a record of an index that is built spans 33. */
#define LS_PAGES_BACK 64

/* Questions answered from memory before a segment is looked at again. */
#define LS_ASK_AGAIN 64

static ControlFileData *point_control = NULL;	/* in shared memory */
static bool point_in_backup = false;	/* then its end is the limit */
static XLogRecPtr point_known = InvalidXLogRecPtr;	/* as far as this process knows */
static XLogRecPtr point_searched = InvalidXLogRecPtr;	/* no later end of a record up to here */
static LsRaiseState point_raises = {0}; /* how many raises were made of late */

static bool point_backup_goes_on(void);
static XLogRecPtr point_wal_on_disk(XLogReaderState *reader, XLogRecPtr from, TimeLineID *timeline);
static bool point_segment_is_complete(TimeLineID timeline, XLogSegNo segment);
static bool point_read_page_header(TimeLineID timeline, XLogRecPtr page, XLogLongPageHeaderData *header);
static XLogRecPtr point_end_of_record(XLogReaderState *reader, TimeLineID timeline, XLogRecPtr from,
									  XLogRecPtr until);
static XLogRecPtr point_end_of_decoded(XLogReaderState *reader, DecodedXLogRecord *record);
static XLogRecPtr point_last_page(XLogReaderState *reader, TimeLineID timeline, XLogRecPtr from,
								  XLogRecPtr until);
static bool point_is_there(XLogReaderState *reader, TimeLineID timeline, XLogRecPtr page);
static void point_lower_at_exit(void);
static void point_lower(int code, Datum arg);

/*
 * Where records that run ahead must end, InvalidXLogRecPtr if none may. The point in the
 * control file only ever grows. Called before the first record of a recovery.
 */
XLogRecPtr
ls_limit_before_consistency(void)
{
	bool		found;

	point_control = ShmemInitStruct("Control File", sizeof(ControlFileData), &found);
	if (!found)
		point_control = NULL;
	point_known = point_searched = InvalidXLogRecPtr;
	point_in_backup = false;
	if (point_control == NULL)
		return InvalidXLogRecPtr;
	if (GetRecoveryState() == RECOVERY_STATE_CRASH && !InArchiveRecovery)
		return XLogRecPtrIsInvalid(point_control->minRecoveryPoint) ? PG_UINT64_MAX : InvalidXLogRecPtr;
	point_in_backup = point_backup_goes_on();
	if (point_in_backup || LS_BREAKS(RECOVERY_POINT))
		return PG_UINT64_MAX;
	return point_control->minRecoveryPoint;
}

bool
ls_backup_has_ended(void)
{
	return point_in_backup && !point_backup_goes_on();
}

/*
 * In a backup: records up to end are about to be published. A process that writes
 * their pages compares these with the point and would warn of them. Nothing waits for the
 * point to be on disk, since the backup's end does not depend on it; where it gets there
 * all the same, this much WAL has been read already and is replayed again.
 */
void
ls_raise_point_in_backup(XLogRecPtr end)
{
	if (!point_in_backup || LS_BREAKS(BACKUP_POINT))
		return;
	LWLockAcquire(ControlFileLock, LW_EXCLUSIVE);
	if (point_control->minRecoveryPoint < end)
	{
		point_control->minRecoveryPoint = end;
		/* rule 8: nothing is dispatched beyond a change of timeline */
		(void) GetCurrentReplayRecPtr(&point_control->minRecoveryPointTLI);
	}
	LWLockRelease(ControlFileLock);
}

/* Does enough WAL wait for replay that helpers are worth it? */
bool
ls_backlog_is_worth(XLogReaderState *reader)
{
	TimeLineID	timeline;

	return point_wal_on_disk(reader, reader->EndRecPtr, &timeline) - reader->EndRecPtr >=
		(uint64) ls_replay_min_backlog * 1024;
}

/*
 * A record that has been read is to run ahead. True: it may, the point in the control file lies at
 * its end or beyond. If no later end of a record is found in the headers of pages the record does not run
 * ahead; with a backlog of 0, which tests set, what can be decoded does. Nor does any while a later
 * timeline is known, since this one may go on beyond its fork in the segment that is open.
 */
bool
ls_raise_point(XLogReaderState *reader, DecodedXLogRecord *record)
{
	TimeLineID	timeline;
	XLogRecPtr	end = record->next_lsn;
	XLogRecPtr	until;
	int64		now;

	if (end <= point_known || LS_BREAKS(HOT_POINT))
		return true;
	now = ls_now_us();
	if (end <= point_searched && (ls_replay_min_backlog > 0 || !ls_raise_is_due(&point_raises, 0, now)))
		return false;
	/* before anything is searched: what was searched counts as without a record's end from then on */
	if (!ls_raise_is_due(&point_raises, LS_LARGE_RAISE, now))
		return false;
	if (point_control == NULL || !ls_backlog_is_worth(reader))
		return false;
	until = point_wal_on_disk(reader, end, &timeline);
	if (reader->seg.ws_tli != timeline || recoveryTargetTLI != timeline)
		return false;
	until = point_end_of_record(reader, timeline, end, Min(until, end + LS_STRIDE));
	if (until <= end)
	{
		if (ls_replay_min_backlog > 0)
			return false;
		until = point_end_of_decoded(reader, record);
	}
	if (!ls_raise_is_due(&point_raises, until - end, now))
		return false;
	point_lower_at_exit();
	LWLockAcquire(ControlFileLock, LW_EXCLUSIVE);
	if (XLogRecPtrIsInvalid(point_control->minRecoveryPoint) ||
		point_control->state != DB_IN_ARCHIVE_RECOVERY)
	{
		LWLockRelease(ControlFileLock);
		return false;
	}
	if (point_control->minRecoveryPoint < until)
	{
		point_control->minRecoveryPoint = until;
		point_control->minRecoveryPointTLI = timeline;
		update_controlfile(DataDir, point_control, true);
		ls_raise_made(&point_raises, until - end, now);
	}
	point_known = point_control->minRecoveryPoint;
	LWLockRelease(ControlFileLock);
	return true;
}

/* ---- Before consistency ------------------------------------------------ */

/* Is a backup restored whose end is a record of the WAL, and lies ahead? */
static bool
point_backup_goes_on(void)
{
	return point_control->backupEndRequired && XLogRecPtrIsInvalid(point_control->backupEndPoint);
}

/* ---- Hot standby: what WAL is there ------------------------------------ */

/* Position up to which WAL of the replayed timeline is on disk for good; from: not known. */
static XLogRecPtr
point_wal_on_disk(XLogReaderState *reader, XLogRecPtr from, TimeLineID *timeline)
{
	TimeLineID	received;
	XLogRecPtr	until;
	XLogSegNo	segment;

	(void) GetCurrentReplayRecPtr(timeline);
	if (reader->seg.ws_tli != *timeline)
		return from;
	until = GetWalRcvFlushRecPtr(NULL, &received);
	if (received == *timeline && until > from)
		return until;
	XLByteToSeg(from, segment, wal_segment_size);
	if (!point_segment_is_complete(*timeline, segment))
		return from;
	XLogSegNoOffsetToRecPtr(segment + 1, 0, wal_segment_size, until);
	return until;
}

/*
 * Was the segment written to its end, and flushed? PostgreSQL says so in archive_status, of
 * those that it has restored too. And the walreceiver flushes a segment before it writes to
 * the next one.
 */
static bool
point_segment_is_complete(TimeLineID timeline, XLogSegNo segment)
{
	static XLogSegNo asked = 0;
	static TimeLineID asked_timeline = 0;
	static bool complete = false;
	static int	questions = 0;
	char		name[MAXFNAMELEN];
	char		path[MAXPGPATH];
	struct stat file;
	XLogRecPtr	next;
	XLogLongPageHeaderData header;

	if (segment == asked && timeline == asked_timeline && (complete || ++questions < LS_ASK_AGAIN))
		return complete;
	asked = segment;
	asked_timeline = timeline;
	questions = 0;
	XLogFileName(name, timeline, segment, wal_segment_size);
	StatusFilePath(path, name, ".done");
	complete = stat(path, &file) == 0;
	StatusFilePath(path, name, ".ready");
	complete = complete || stat(path, &file) == 0;
	XLogSegNoOffsetToRecPtr(segment + 1, 0, wal_segment_size, next);
	complete = complete || point_read_page_header(timeline, next, &header);
	return complete;
}

/* The header of a page of WAL of this timeline; false if there is no such page. */
static bool
point_read_page_header(TimeLineID timeline, XLogRecPtr page, XLogLongPageHeaderData *header)
{
	char		path[MAXPGPATH];
	XLogSegNo	segment;
	ssize_t		size;
	int			file;

	XLByteToSeg(page, segment, wal_segment_size);
	XLogFilePath(path, timeline, segment, wal_segment_size);
	file = BasicOpenFile(path, O_RDONLY | PG_BINARY);
	if (file < 0)
		return false;
	size = pg_pread(file, header, sizeof(*header), XLogSegmentOffset(page, wal_segment_size));
	close(file);
	return size == sizeof(*header) && header->std.xlp_magic == XLOG_PAGE_MAGIC &&
		header->std.xlp_pageaddr == page && header->std.xlp_tli == timeline &&
		(header->std.xlp_info & XLP_FIRST_IS_OVERWRITE_CONTRECORD) == 0;
}

/*
 * The end of a record between from and until, which is on disk, or from if none is found. A
 * page says in its header how much of a record it begins with; if none, one ended before it.
 * Of the last page only the header counts: pg_basebackup --wal-method=fetch marks the last segment
 * of a standby as complete, too, where a page may have been cut.
 */
static XLogRecPtr
point_end_of_record(XLogReaderState *reader, TimeLineID timeline, XLogRecPtr from, XLogRecPtr until)
{
	XLogRecPtr	page = point_last_page(reader, timeline, from, until);

	if (!XLogRecPtrIsInvalid(page))
		point_searched = page + XLOG_BLCKSZ;
	for (int i = 0; i < LS_PAGES_BACK && page > from; i++, page -= XLOG_BLCKSZ)
	{
		XLogLongPageHeaderData header;
		XLogRecPtr	end;

		if (!point_read_page_header(timeline, page, &header))
			break;
		if ((header.std.xlp_info & XLP_FIRST_IS_CONTRECORD) == 0)
			return page;
		end = page + XLogPageHeaderSize(&header.std) + MAXALIGN(header.std.xlp_rem_len);
		if (i > 0 && end <= page + XLOG_BLCKSZ)
			return end;
	}
	return from;
}

/* The end of the last record after this one that fits into the queue, decoded for that. */
static XLogRecPtr
point_end_of_decoded(XLogReaderState *reader, DecodedXLogRecord *record)
{
	ls_stretch_read_here(LS_AHEAD_MAX);
	for (int i = 0; i < LS_AHEAD_MAX; i++)
	{
		bool		ours;
		DecodedXLogRecord *next = ls_next_decoded(reader, record, &ours);

		if (next == NULL)
			break;
		record = next;
	}
	ls_stretch_read_here(0);
	return record->next_lsn;
}

/*
 * The last page between from and until that is whole and can be read without asking for more
 * WAL, InvalidXLogRecPtr if the page of from is not. After a switch of segments the rest of
 * one is not there either.
 */
static XLogRecPtr
point_last_page(XLogReaderState *reader, TimeLineID timeline, XLogRecPtr from, XLogRecPtr until)
{
	XLogRecPtr	first = from - from % XLOG_BLCKSZ;
	XLogRecPtr	end = from - XLogSegmentOffset(from, wal_segment_size) + wal_segment_size;
	uint64		there = 0;
	uint64		missing;

	end = Min(until, end);
	if (end < first + XLOG_BLCKSZ || !point_is_there(reader, timeline, first))
		return InvalidXLogRecPtr;
	missing = (end - first) / XLOG_BLCKSZ;
	if (point_is_there(reader, timeline, first + (missing - 1) * XLOG_BLCKSZ))
		return first + (missing - 1) * XLOG_BLCKSZ;
	while (missing - there > 1)
	{
		uint64		middle = there + (missing - there) / 2;

		if (point_is_there(reader, timeline, first + middle * XLOG_BLCKSZ))
			there = middle;
		else
			missing = middle;
	}
	return first + there * XLOG_BLCKSZ;
}

static bool
point_is_there(XLogReaderState *reader, TimeLineID timeline, XLogRecPtr page)
{
	XLogLongPageHeaderData header;

	return point_read_page_header(timeline, page, &header) && ls_can_read_page(reader, page);
}

/* ---- Hot standby: the point -------------------------------------------- */

/* Has the point lowered when this process ends; asked for once. */
static void
point_lower_at_exit(void)
{
	static bool asked = false;

	if (!asked)
		before_shmem_exit(point_lower, 0);
	asked = true;
}

/*
 * The startup process ends, at a shutdown or an error. No page is newer than what is replayed
 * or what has run ahead, and nothing more will: helpers that still execute do so up to there.
 * So it does no harm that other processes remember the higher point, and write pages up to
 * it without raising it again. A point that PostgreSQL has moved itself stays.
 */
static void
point_lower(int code, Datum arg)
{
	TimeLineID	timeline;
	XLogRecPtr	needed = Max(ls_dispatched.until, GetCurrentReplayRecPtr(&timeline));

	if (point_control == NULL || XLogRecPtrIsInvalid(point_known) || needed >= point_known ||
		LWLockHeldByMe(ControlFileLock))
		return;
	LWLockAcquire(ControlFileLock, LW_EXCLUSIVE);
	if (point_control->state == DB_IN_ARCHIVE_RECOVERY && point_control->minRecoveryPoint == point_known &&
		point_control->minRecoveryPointTLI == timeline)
	{
		point_control->minRecoveryPoint = needed;
		update_controlfile(DataDir, point_control, true);
	}
	LWLockRelease(ControlFileLock);
	point_known = InvalidXLogRecPtr;
}
