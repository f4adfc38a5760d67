/*
 * replay_token.c - lockstep_replay_token(): on the primary, the value to pass
 * to SET lockstep.wait_for_lsn on a standby.
 *
 * Runs in the calling backend, needs no preload and no shared state of ours.
 * SQL of version 0.1 calls the function without a timeline, which stays for
 * databases in which the extension is not updated yet.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#include "wait/token.h"

PG_FUNCTION_INFO_V1(lockstep_replay_token);
PG_FUNCTION_INFO_V1(lockstep_replay_token_0_2);

static XLogRecPtr replay_token_end_of_commits(void);
static XLogRecPtr replay_token_end_of_inserted_wal(void);

/* The function of version 0.1, which returns pg_lsn. */
Datum
lockstep_replay_token(PG_FUNCTION_ARGS)
{
	PG_RETURN_LSN(replay_token_end_of_commits());
}

/* The function from version 0.2 on, which returns text. */
Datum
lockstep_replay_token_0_2(PG_FUNCTION_ARGS)
{
	LsToken		token = {.lsn = replay_token_end_of_commits()};
	char		text[LS_TOKEN_TEXT_SIZE];

	token.tli = GetWALInsertionTimeLine();
	ls_print_token(&token, text);
	PG_RETURN_TEXT_P(cstring_to_text(text));
}

/*
 * The position to give to lockstep.wait_for_lsn on a standby: it covers every
 * commit of this session, and every commit of other sessions that was
 * acknowledged as durable. It is always the end of a record that is flushed.
 * Otherwise a standby might not get there before the primary writes again: the
 * WAL writer flushes whole pages, so the end of a page can be amid a record.
 */
static XLogRecPtr
replay_token_end_of_commits(void)
{
	XLogRecPtr	end;

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("Call lockstep_replay_token() on the primary, after the commit to wait for.")));

	end = Max(XactLastCommitEnd, GetFlushRecPtr(NULL));
	if (end % XLOG_BLCKSZ == 0)
	{
		end = replay_token_end_of_inserted_wal();
		XLogFlush(end);
	}
	return end;
}

/*
 * The end of the last record inserted. The server's own function gives the
 * start of the next record, which on a new page lies behind the page's header.
 */
static XLogRecPtr
replay_token_end_of_inserted_wal(void)
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
