/*
 * replay_token.c - lockstep_replay_token(): on the primary, the value to pass
 * to SET lockstep.wait_for_lsn on a standby.
 *
 * Runs in the calling backend, needs no preload and no shared state of ours.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "fmgr.h"
#include "utils/pg_lsn.h"

PG_FUNCTION_INFO_V1(lockstep_replay_token);

/*
 * The end of the last record inserted. The server's own function gives the
 * start of the next record, which on a new page lies behind the page's header.
 */
static XLogRecPtr
end_of_inserted_wal(void)
{
	XLogRecPtr	insert = GetXLogInsertRecPtr();
	uint64		in_page = insert % XLOG_BLCKSZ;
	uint64		in_segment = XLogSegmentOffset(insert, wal_segment_size);

	if (in_segment == SizeOfXLogLongPHD)
		return insert - SizeOfXLogLongPHD;
	if (in_page == SizeOfXLogShortPHD && in_segment != in_page)
		return insert - SizeOfXLogShortPHD;
	return insert;
}

/*
 * The value to give to lockstep.wait_for_lsn on a standby: it covers every
 * commit of this session, and every commit of other sessions that was
 * acknowledged as durable. It is always the end of a record that is flushed.
 * Otherwise a standby might not get there before the primary writes again: the
 * WAL writer flushes whole pages, so the end of a page can be amid a record.
 */
Datum
lockstep_replay_token(PG_FUNCTION_ARGS)
{
	XLogRecPtr	token;

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("Call lockstep_replay_token() on the primary, after the commit to wait for.")));

	token = Max(XactLastCommitEnd, GetFlushRecPtr(NULL));
	if (token % XLOG_BLCKSZ == 0)
	{
		token = end_of_inserted_wal();
		XLogFlush(token);
	}
	PG_RETURN_LSN(token);
}
