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
 * Crash: the server removes temporary files at its next start. Promotion: the
 * worker ends. A segment made ahead on a timeline that then ends is removed or
 * reused by the server like those that a restartpoint has prepared. An error,
 * such as a full disk, ends the worker with its message in the log; it is
 * started again after a minute.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/walreceiver.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

#include "state/settings.h"

extern PGDLLEXPORT void lockstep_wal_segments_main(Datum arg);

/* How often the worker looks, in ms: while WAL comes in, while none does. */
#define LOOK_MS 50
#define LOOK_IDLE_MS 1000
#define AHEAD_BYTES (256 * 1024 * 1024)

static int
segments_ahead(void)
{
	return Min(ls_wal_segments_ahead, Max(AHEAD_BYTES / wal_segment_size, 1));
}

static bool
segment_exists(XLogSegNo segno, TimeLineID tli)
{
	char		path[MAXPGPATH];

	XLogFilePath(path, tli, segno, wal_segment_size);
	return access(path, F_OK) == 0;
}

/* Creates the next missing segment; false if there is none to create. */
static bool
create_next(void)
{
	TimeLineID	tli;
	XLogRecPtr	received;
	XLogSegNo	current;

	if (!ls_enabled || !WalRcvStreaming())
		return false;
	received = GetWalRcvFlushRecPtr(NULL, &tli);
	if (XLogRecPtrIsInvalid(received) || tli == 0)
		return false;
	XLByteToSeg(received, current, wal_segment_size);

	for (int i = 1; i <= segments_ahead(); i++)
	{
		if (segment_exists(current + i, tli))
			continue;
		close(XLogFileInit(current + i, tli));
		return true;
	}
	return false;
}

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
		bool		more = create_next();

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
	/* 0 ends it for good; after a SIGTERM it is started again */
	proc_exit(ShutdownRequestPending ? 1 : 0);
}
