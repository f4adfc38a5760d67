/*
 * stat_views.c - the SQL functions behind the statistics views, and resets.
 *
 * Each works on any server that has the extension created: one that did not
 * preload the library gets an error that says so, a primary gets a row whose
 * standby columns are null or zero.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "fmgr.h"
#include "funcapi.h"
#include "replication/walreceiver.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "gate/gate.h"
#include "gate/limit_rule.h"
#include "priority/priority.h"
#include "replay/look_ahead.h"
#include "replay/queue.h"
#include "replay/replay_lag.h"
#include "state/shared_state.h"

PG_FUNCTION_INFO_V1(lockstep_stat_replay);
PG_FUNCTION_INFO_V1(lockstep_stat_replay_pipeline);
PG_FUNCTION_INFO_V1(lockstep_stat_replay_workers);
PG_FUNCTION_INFO_V1(lockstep_stat_priority);
PG_FUNCTION_INFO_V1(lockstep_stat_throttle);
PG_FUNCTION_INFO_V1(lockstep_stat_replay_reset);
PG_FUNCTION_INFO_V1(lockstep_stat_priority_reset);
PG_FUNCTION_INFO_V1(lockstep_stat_throttle_reset);

#define MAX_COLUMNS 32

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

/* Its type and its name, 0: none. */
static void
put_wait_event(Row *row, uint32 event)
{
	const char *type = pgstat_get_wait_event_type(event);
	const char *name = pgstat_get_wait_event(event);

	if (type == NULL || name == NULL)
	{
		put_null(row);
		put_null(row);
		return;
	}
	put(row, CStringGetTextDatum(type));
	put(row, CStringGetTextDatum(name));
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

/* The last columns are missing where an earlier version was created. */
static void
check_columns(TupleDesc tupdesc, const Row *row)
{
	if (tupdesc->natts > row->n)
		elog(ERROR, "row has %d columns, expected %d", row->n, tupdesc->natts);
}

static Datum
finish(FunctionCallInfo fcinfo, Row *row)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	check_columns(tupdesc, row);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
											 row->values, row->nulls));
}

static void
put_last_conflict(Row *row)
{
	uint32		event = (uint32) pg_atomic_read_u64(&ls_lag->conflict_event);

	put_counter(row, &ls_lag->conflicts);
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
	put(row, TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&ls_lag->conflict_at)));
	put_ms(row, pg_atomic_read_u64(&ls_lag->conflict_us));
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
		put_ms(&row, received > replayed ? pg_atomic_read_u64(&ls_lag->lag_us) : 0);
	}
	put_last_conflict(&row);
	put_counter(&row, &ls_lag->reset_at);
	return finish(fcinfo, &row);
}

Datum
lockstep_stat_replay_pipeline(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};
	uint64		wait_us[LS_WAIT_CAUSES];
	uint64		all_wait_us = 0;
	uint64		before;

	require_preload();
	put_counter(&row, &ls_look_ahead_shared->records);
	put_counter(&row, &ls_look_ahead_shared->ahead);
	put_counter(&row, &ls_look_ahead_shared->blocks);
	put_counter(&row, &ls_look_ahead_shared->found);
	put_counter(&row, &ls_look_ahead_shared->missing);
	put(&row, BoolGetDatum(pg_atomic_read_u64(&ls_look_ahead_shared->prefetching) != 0));
	put_counter(&row, &ls_lag->reset_at);
	put(&row, CStringGetTextDatum(ls_pipeline_state_name()));
	put_counter(&row, &ls_queue->dispatched);
	put_counter(&row, &ls_queue->by_helpers);
	for (int cause = LS_CAUSE_NONE + 1; cause < LS_CAUSES; cause++)
		put_counter(&row, &ls_queue->causes[cause]);
	put_counter(&row, &ls_queue->waits);
	for (int cause = 0; cause < LS_WAIT_CAUSES; cause++)
	{
		wait_us[cause] = pg_atomic_read_u64(&ls_queue->wait_us[cause]);
		all_wait_us += wait_us[cause];
	}
	put_ms(&row, all_wait_us);
	put_lsn(&row, pg_atomic_read_u64(&ls_queue->dispatched_until));
	put_counter(&row, &ls_queue->asked_for);
	/* in this order: it is never above the other */
	before = pg_atomic_read_u64(&ls_queue->retired_before);
	put(&row, Int64GetDatum((int64) (pg_atomic_read_u64(&ls_queue->retired_records) - before)));
	put(&row, Int64GetDatum((int64) ls_records_ahead()));
	put(&row, Int64GetDatum((int64) ls_bytes_ahead()));
	for (int cause = 0; cause < LS_WAIT_CAUSES; cause++)
		put_ms(&row, wait_us[cause]);
	put_counter(&row, &ls_queue->causes[LS_CAUSE_NONE]);
	return finish(fcinfo, &row);
}

static void
put_worker(Row *row, int number, LsHelper *helper)
{
	uint32		pid = pg_atomic_read_u32(&helper->pid);

	put(row, Int32GetDatum(number));
	if (pid == 0)
		put_null(row);
	else
		put(row, Int32GetDatum((int32) pid));
	put_counter(row, &helper->records);
	put_counter(row, &helper->blocks);
	put_counter(row, &helper->given_back);
	put_counter(row, &helper->waits);
	put_ms(row, pg_atomic_read_u64(&helper->wait_us));
	put_lsn(row, pg_atomic_read_u64(&helper->lsn));
	put_counter(row, &helper->bytes);
	put(row, Int32GetDatum((int32) pg_atomic_read_u32(&helper->queue_depth)));
	put_wait_event(row, ls_helper_wait_event(helper));
}

/* One row for each helper that has run. */
Datum
lockstep_stat_replay_workers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	require_preload();
	ls_init_materialized(fcinfo);
	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
	{
		LsHelper   *helper = &ls_queue->helpers[i];
		Row			row = {.n = 0};

		if (pg_atomic_read_u32(&helper->pid) == 0 && pg_atomic_read_u64(&helper->records) == 0)
			continue;
		put_worker(&row, i + 1, helper);
		check_columns(result->setDesc, &row);
		tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
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
	put(&row, CStringGetTextDatum(names[pg_atomic_read_u32(&ls_priority->method)]));
	put_text(&row, ls_priority->method_detail);
	put(&row, Int32GetDatum(demoted));
	put(&row, Int32GetDatum(pending));
	put(&row, Int32GetDatum(stuck));
	put_counter(&row, &ls_priority->demotions);
	put_counter(&row, &ls_priority->restores);
	put_counter(&row, &ls_priority->refusals);
	put_text(&row, ls_priority->last_refusal);
	put_counter(&row, &ls_priority->reset_at);
	put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&ls_priority->short_slices)));
	put_text(&row, ls_priority->slice_detail);
	return finish(fcinfo, &row);
}

Datum
lockstep_stat_throttle(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};
	uint32		limit;

	require_preload();
	limit = pg_atomic_read_u32(&ls_gate->limit);
	put(&row, CStringGetTextDatum(GetConfigOption("lockstep.read_throttle", false, false)));
	if (limit == 0 || !RecoveryInProgress())
		put_null(&row);
	else
		put(&row, Int32GetDatum((int32) limit));
	put(&row, Int32GetDatum((int32) ls_gate_executing()));
	put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&ls_gate->waiting)));
	put_counter(&row, &ls_gate->waits);
	put_ms(&row, pg_atomic_read_u64(&ls_gate->wait_us));
	put_counter(&row, &ls_gate->would_wait);
	put_counter(&row, &ls_gate->timeouts);
	put_counter(&row, &ls_gate->reset_at);
	if (limit == 0 || !RecoveryInProgress())
		put_null(&row);
	else
		put(&row, CStringGetTextDatum(ls_limit_phase_name(pg_atomic_read_u32(&ls_gate->phase))));
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
	zero(&ls_lag->conflicts);
	zero(&ls_lag->conflict_event);
	zero(&ls_lag->conflict_us);
	zero(&ls_look_ahead_shared->records);
	zero(&ls_look_ahead_shared->ahead);
	zero(&ls_look_ahead_shared->blocks);
	zero(&ls_look_ahead_shared->found);
	zero(&ls_look_ahead_shared->missing);
	zero(&ls_queue->dispatched);
	zero(&ls_queue->by_helpers);
	zero(&ls_queue->asked_for);
	for (int cause = 0; cause < LS_CAUSES; cause++)
		zero(&ls_queue->causes[cause]);
	zero(&ls_queue->waits);
	for (int cause = 0; cause < LS_WAIT_CAUSES; cause++)
		zero(&ls_queue->wait_us[cause]);
	pg_atomic_write_u64(&ls_queue->retired_before,
						pg_atomic_read_u64(&ls_queue->retired_records));
	stamp(&ls_lag->reset_at);
	PG_RETURN_VOID();
}

Datum
lockstep_stat_priority_reset(PG_FUNCTION_ARGS)
{
	require_preload();
	zero(&ls_priority->demotions);
	zero(&ls_priority->restores);
	zero(&ls_priority->refusals);
	ls_set_text(ls_priority->last_refusal, "");
	stamp(&ls_priority->reset_at);
	PG_RETURN_VOID();
}

Datum
lockstep_stat_throttle_reset(PG_FUNCTION_ARGS)
{
	require_preload();
	zero(&ls_gate->waits);
	zero(&ls_gate->wait_us);
	zero(&ls_gate->would_wait);
	zero(&ls_gate->timeouts);
	stamp(&ls_gate->reset_at);
	PG_RETURN_VOID();
}
