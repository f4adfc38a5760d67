/*
 * stat_views.c - the SQL functions: statistics, resets, the replay token.
 *
 * Each works on any server that has the extension created: one that did not
 * preload the library gets an error that says so, a primary gets a row whose
 * standby columns are null or zero.
 */
#include "lockstep.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogrecovery.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/walreceiver.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(lockstep_replay_token);
PG_FUNCTION_INFO_V1(lockstep_stat_replay);
PG_FUNCTION_INFO_V1(lockstep_stat_priority);
PG_FUNCTION_INFO_V1(lockstep_stat_throttle);
PG_FUNCTION_INFO_V1(lockstep_stat_replay_reset);
PG_FUNCTION_INFO_V1(lockstep_stat_priority_reset);
PG_FUNCTION_INFO_V1(lockstep_stat_throttle_reset);

#define MAX_COLUMNS 10

/* A row being built, column by column. */
typedef struct Row
{
	Datum		values[MAX_COLUMNS];
	bool		nulls[MAX_COLUMNS];
	int			n;
} Row;

static void
require_preload(void)
{
	if (ls_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lockstep is not loaded on this server"),
				 errhint("Add lockstep to shared_preload_libraries and restart the server.")));
}

static void
put(Row *row, Datum value)
{
	row->nulls[row->n] = false;
	row->values[row->n++] = value;
}

static void
put_null(Row *row)
{
	row->nulls[row->n] = true;
	row->values[row->n++] = (Datum) 0;
}

static void
put_counter(Row *row, pg_atomic_uint64 *counter)
{
	put(row, Int64GetDatum((int64) pg_atomic_read_u64(counter)));
}

static void
put_ms(Row *row, uint64 us)
{
	put(row, Float8GetDatum((double) us / 1000.0));
}

static void
put_lsn(Row *row, XLogRecPtr lsn)
{
	if (lsn == InvalidXLogRecPtr)
		put_null(row);
	else
		put(row, LSNGetDatum(lsn));
}

static void
put_text(Row *row, const char *shared_text)
{
	char		text[LS_TEXT_SIZE];

	ls_get_text(text, shared_text);
	if (text[0] == '\0')
		put_null(row);
	else
		put(row, CStringGetTextDatum(text));
}

static Datum
finish(FunctionCallInfo fcinfo, Row *row)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (tupdesc->natts != row->n)
		elog(ERROR, "row has %d columns, expected %d", row->n, tupdesc->natts);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
											 row->values, row->nulls));
}

/*
 * The end of the last record inserted. The server's own function gives the
 * start of the next one, which on a fresh page lies behind the page's header.
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
 * commit of this session, and every commit of others that was acknowledged as
 * durable. It is always the end of a record that is flushed, or a standby
 * might not get there before the primary writes again: the WAL writer flushes
 * whole pages, so a position on a page boundary can be amid a record.
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

static void
put_last_conflict(Row *row)
{
	uint32		event = (uint32) pg_atomic_read_u64(&ls_shared->conflict_event);

	put_counter(row, &ls_shared->conflicts);
	if (event == 0)
	{
		put_null(row);
		put_null(row);
		put_null(row);
		return;
	}
	put(row, PointerGetDatum(cstring_to_text(psprintf("%s:%s",
													  pgstat_get_wait_event_type(event),
													  pgstat_get_wait_event(event)))));
	put(row, TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&ls_shared->conflict_at)));
	put_ms(row, pg_atomic_read_u64(&ls_shared->conflict_us));
}

Datum
lockstep_stat_replay(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};
	bool		standby = RecoveryInProgress();
	XLogRecPtr	received;
	XLogRecPtr	replayed;

	require_preload();
	put(&row, BoolGetDatum(standby));
	/* in this order, so that replay never looks ahead of receipt by itself */
	replayed = standby ? GetXLogReplayRecPtr(NULL) : InvalidXLogRecPtr;
	received = standby ? GetWalRcvFlushRecPtr(NULL, NULL) : InvalidXLogRecPtr;
	put_lsn(&row, received);
	put_lsn(&row, replayed);
	if (received == InvalidXLogRecPtr || received < replayed)
	{
		/* nothing streamed, or replaying the archive: not known here */
		put_null(&row);
		put_null(&row);
	}
	else
	{
		put(&row, Int64GetDatum((int64) (received - replayed)));
		put_ms(&row, received > replayed ? pg_atomic_read_u64(&ls_shared->lag_us) : 0);
	}
	put_last_conflict(&row);
	put_counter(&row, &ls_shared->replay_reset_at);
	return finish(fcinfo, &row);
}

Datum
lockstep_stat_priority(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"none", "autogroup", "sched_idle"};
	Row			row = {.n = 0};
	int			demoted;
	int			pending;
	int			stuck;

	require_preload();
	ls_priority_count(&demoted, &pending, &stuck);
	put(&row, CStringGetTextDatum(names[pg_atomic_read_u32(&ls_shared->method)]));
	put_text(&row, ls_shared->method_detail);
	put(&row, Int32GetDatum(demoted));
	put(&row, Int32GetDatum(pending));
	put(&row, Int32GetDatum(stuck));
	put_counter(&row, &ls_shared->demotions);
	put_counter(&row, &ls_shared->restores);
	put_counter(&row, &ls_shared->refusals);
	put_text(&row, ls_shared->last_refusal);
	put_counter(&row, &ls_shared->priority_reset_at);
	return finish(fcinfo, &row);
}

Datum
lockstep_stat_throttle(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};
	uint32		limit;

	require_preload();
	limit = pg_atomic_read_u32(&ls_shared->gate_limit);
	put(&row, CStringGetTextDatum(GetConfigOption("lockstep.read_throttle", false, false)));
	if (limit == 0 || !RecoveryInProgress())
		put_null(&row);
	else
		put(&row, Int32GetDatum((int32) limit));
	put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&ls_shared->gate_running)));
	put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&ls_shared->gate_waiting)));
	put_counter(&row, &ls_shared->gate_waits);
	put_ms(&row, pg_atomic_read_u64(&ls_shared->gate_wait_us));
	put_counter(&row, &ls_shared->gate_would_wait);
	put_counter(&row, &ls_shared->gate_timeouts);
	put_counter(&row, &ls_shared->throttle_reset_at);
	return finish(fcinfo, &row);
}

static void
zero(pg_atomic_uint64 *counter)
{
	pg_atomic_write_u64(counter, 0);
}

static void
stamp(pg_atomic_uint64 *reset_at)
{
	pg_atomic_write_u64(reset_at, (uint64) GetCurrentTimestamp());
}

Datum
lockstep_stat_replay_reset(PG_FUNCTION_ARGS)
{
	require_preload();
	zero(&ls_shared->conflicts);
	zero(&ls_shared->conflict_event);
	zero(&ls_shared->conflict_us);
	stamp(&ls_shared->replay_reset_at);
	PG_RETURN_VOID();
}

Datum
lockstep_stat_priority_reset(PG_FUNCTION_ARGS)
{
	require_preload();
	zero(&ls_shared->demotions);
	zero(&ls_shared->restores);
	zero(&ls_shared->refusals);
	ls_set_text(ls_shared->last_refusal, "");
	stamp(&ls_shared->priority_reset_at);
	PG_RETURN_VOID();
}

Datum
lockstep_stat_throttle_reset(PG_FUNCTION_ARGS)
{
	require_preload();
	zero(&ls_shared->gate_waits);
	zero(&ls_shared->gate_wait_us);
	zero(&ls_shared->gate_would_wait);
	zero(&ls_shared->gate_timeouts);
	stamp(&ls_shared->throttle_reset_at);
	PG_RETURN_VOID();
}
