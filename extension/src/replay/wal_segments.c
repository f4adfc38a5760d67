/*
 * wal_segments.c - a background worker that creates WAL segments ahead of the
 * walreceiver.
 *
 * Purpose: where no old segment was left to reuse, the walreceiver creates each
 * new one itself: it writes 16 MB of zeroes and waits until they are on disk.
 * Nothing is received meanwhile (seen: 40 to 130 ms, once a second at 13 MB/s),
 * and that is most of what the 99th percentile of lag consists of once readers
 * no longer hold back replay. Reused segments come from restartpoints only, so
 * a young standby, or one whose rate of WAL has risen, has none.
 *
 * It uses the server's own XLogFileInit(), which writes a temporary file and
 * renames it under ControlFileLock, as the walreceiver and the checkpointer do.
 * It allows two processes to create the same segment at a time: the second
 * file becomes the next segment that is missing. During promotion it installs
 * none.
 *
 * Rules:
 * - Only while WAL streams, only on the timeline that is being received, and
 *   never the segment that is being received or one before it.
 * - At most lockstep.wal_segments_ahead segments, and at most AHEAD_BYTES.
 *
 * When WAL stops streaming while a segment is being filled, the server does not
 * install it; that is no error here. The next round looks anew.
 *
 * Crash: the server removes temporary files at its next start. Promotion: the
 * worker ends. A segment made ahead on a timeline that then ends is removed or
 * reused by the server like those that a restartpoint has prepared. One that is
 * installed after that would stay, all zero, and come into the archive under the
 * name of a real one. So a segment is in doubt if WAL did not stream on its
 * timeline any more after it was installed. Once it is known how the server goes
 * on, a segment in doubt that lies beyond the end of its timeline is removed.
 * If WAL still streamed, whatever removes segments of the timeline comes later.
 *
 * An error, such as a full disk, ends the worker with its message in the log; it
 * is started again after a minute.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/timeline.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogarchive.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/walreceiver.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

#include "state/settings.h"

extern PGDLLEXPORT void lockstep_wal_segments_main(Datum arg);

/* Interval at which the worker looks, in ms: while WAL comes in, while none does. */
#define LOOK_MS 50
#define LOOK_IDLE_MS 1000
/* Most bytes of segments ahead. */
#define AHEAD_BYTES (256 * 1024 * 1024)

/* This process's segment in doubt; timeline 0: there is none. */
static TimeLineID wal_segments_doubtful_tli = 0;
static XLogSegNo wal_segments_doubtful_segno = 0;

static void wal_segments_settle_doubt(void);
static TimeLineID wal_segments_streaming_timeline(XLogRecPtr *received);
static void wal_segments_remove_if_beyond_end(XLogSegNo segno, TimeLineID tli, TimeLineID now_tli);
static bool wal_segments_exists(XLogSegNo segno, TimeLineID tli);
static bool wal_segments_create_next(void);
static int wal_segments_ahead(void);
static bool wal_segments_make(XLogSegNo segno, TimeLineID tli);

void
lockstep_wal_segments_main(Datum arg)
{
	XLogRecPtr	last = InvalidXLogRecPtr;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	while (RecoveryInProgress() && !ShutdownRequestPending)
	{
		XLogRecPtr	received;
		bool		more;

		wal_segments_settle_doubt();
		more = wal_segments_create_next();

		received = GetWalRcvFlushRecPtr(NULL, NULL);
		if (!more)
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 received == last ? LOOK_IDLE_MS : LOOK_MS, PG_WAIT_EXTENSION);
		last = received;
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
	if (!RecoveryInProgress())
		wal_segments_settle_doubt();
	/* 0 ends it for good; after a SIGTERM it is started again */
	proc_exit(ShutdownRequestPending ? 1 : 0);
}

static void
wal_segments_settle_doubt(void)
{
	XLogRecPtr	received;
	TimeLineID	now_tli;

	if (wal_segments_doubtful_tli == 0)
		return;
	now_tli = RecoveryInProgress() ? wal_segments_streaming_timeline(&received) : GetWALInsertionTimeLine();
	if (now_tli == 0)
		return;
	if (now_tli != wal_segments_doubtful_tli)
		wal_segments_remove_if_beyond_end(wal_segments_doubtful_segno, wal_segments_doubtful_tli, now_tli);
	wal_segments_doubtful_tli = 0;
}

/* The timeline on which WAL streams, and how far it is on disk; 0: none does. */
static TimeLineID
wal_segments_streaming_timeline(XLogRecPtr *received)
{
	TimeLineID	tli;

	if (!WalRcvStreaming())
		return 0;
	*received = GetWalRcvFlushRecPtr(NULL, &tli);
	return XLogRecPtrIsInvalid(*received) ? 0 : tli;
}

/* Removes a segment of a timeline that ended before it. */
static void
wal_segments_remove_if_beyond_end(XLogSegNo segno, TimeLineID tli, TimeLineID now_tli)
{
	List	   *history = readTimeLineHistory(now_tli);
	char		path[MAXPGPATH];
	char		name[MAXFNAMELEN];
	XLogSegNo	last;

	if (!tliInHistory(tli, history))
		return;
	XLByteToSeg(tliSwitchPoint(tli, history, NULL), last, wal_segment_size);
	if (segno <= last || !wal_segments_exists(segno, tli))
		return;
	XLogFilePath(path, tli, segno, wal_segment_size);
	XLogFileName(name, tli, segno, wal_segment_size);
	if (durable_unlink(path, LOG) == 0)
		XLogArchiveCleanup(name);
}

static bool
wal_segments_exists(XLogSegNo segno, TimeLineID tli)
{
	char		path[MAXPGPATH];

	XLogFilePath(path, tli, segno, wal_segment_size);
	return access(path, F_OK) == 0;
}

/* Creates the next missing segment; false if there is none to create. */
static bool
wal_segments_create_next(void)
{
	XLogRecPtr	received;
	XLogSegNo	current;
	TimeLineID	tli = ls_enabled ? wal_segments_streaming_timeline(&received) : 0;

	if (tli == 0 || wal_segments_doubtful_tli != 0)
		return false;
	/* at the exact end of a segment the next one is what is needed first */
	XLByteToPrevSeg(received, current, wal_segment_size);

	for (int i = 1; i <= wal_segments_ahead(); i++)
	{
		if (wal_segments_exists(current + i, tli))
			continue;
		if (!wal_segments_make(current + i, tli))
			return false;
		if (wal_segments_streaming_timeline(&received) != tli)
		{
			wal_segments_doubtful_tli = tli;
			wal_segments_doubtful_segno = current + i;
		}
		return true;
	}
	return false;
}

static int
wal_segments_ahead(void)
{
	return Min(ls_wal_segments_ahead, Max(AHEAD_BYTES / wal_segment_size, 1));
}

/* False if the server did not install it, since WAL has stopped streaming. */
static bool
wal_segments_make(XLogSegNo segno, TimeLineID tli)
{
	volatile bool made = true;

	PG_TRY();
	{
		close(XLogFileInit(segno, tli));
	}
	PG_CATCH();
	{
		/* then it fails to open the segment */
		if (geterrcode() != ERRCODE_UNDEFINED_FILE)
			PG_RE_THROW();
		FlushErrorState();
		made = false;
	}
	PG_END_TRY();
	return made;
}
