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
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "replication/walreceiver.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "gate/gate.h"
#include "gate/limit_rule.h"
#include "priority/demotion_rule.h"
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

static void views_require_preload(void);
static void views_require_right_to_read(void);
static void views_require_right_to_reset(void);
static void views_put(Row *row, Datum value);
static void views_put_lsn(Row *row, XLogRecPtr lsn);
static void views_put_null(Row *row);
static void views_put_ms(Row *row, uint64 us);
static void views_put_last_conflict(Row *row);
static void views_put_counter(Row *row, pg_atomic_uint64 *counter);
static Datum views_finish(FunctionCallInfo fcinfo, Row *row);
static void views_check_columns(TupleDesc tupdesc, const Row *row);
static void views_put_worker(Row *row, int number, LsHelper *helper);
static void views_put_wait_event(Row *row, uint32 event);
static void views_put_text(Row *row, const char *shared_text);
static void views_zero(pg_atomic_uint64 *counter);
static void views_stamp(pg_atomic_uint64 *reset_at);

Datum
lockstep_stat_replay(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};
	bool		standby = RecoveryInProgress();
	bool		streaming;
	XLogRecPtr	received;
	XLogRecPtr	replayed;

	views_require_preload();
	views_require_right_to_read();
	views_put(&row, BoolGetDatum(standby));
	/* in this order, so that replay never looks ahead of receipt by itself */
	replayed = standby ? GetXLogReplayRecPtr(NULL) : InvalidXLogRecPtr;
	received = standby ? GetWalRcvFlushRecPtr(NULL, NULL) : InvalidXLogRecPtr;
	views_put_lsn(&row, received);
	views_put_lsn(&row, replayed);
	streaming = standby && ls_is_streaming();
	if (!streaming || received == InvalidXLogRecPtr || received < replayed)
	{
		/* what the primary has written since is not known, or replay is of the archive */
		views_put_null(&row);
		views_put_null(&row);
	}
	else
	{
		views_put(&row, Int64GetDatum((int64) (received - replayed)));
		views_put_ms(&row, received > replayed ? pg_atomic_read_u64(&ls_lag->lag_us) : 0);
	}
	views_put_last_conflict(&row);
	views_put_counter(&row, &ls_lag->reset_at);
	if (standby)
		views_put(&row, BoolGetDatum(streaming));
	else
		views_put_null(&row);
	return views_finish(fcinfo, &row);
}

Datum
lockstep_stat_replay_pipeline(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};
	uint64		wait_us[LS_WAIT_CAUSES];
	uint64		all_wait_us = 0;
	uint64		before;

	views_require_preload();
	views_require_right_to_read();
	views_put_counter(&row, &ls_look_ahead_shared->records);
	views_put_counter(&row, &ls_look_ahead_shared->ahead);
	views_put_counter(&row, &ls_look_ahead_shared->blocks);
	views_put_counter(&row, &ls_look_ahead_shared->found);
	views_put_counter(&row, &ls_look_ahead_shared->missing);
	views_put(&row, BoolGetDatum(pg_atomic_read_u64(&ls_look_ahead_shared->prefetching) != 0));
	views_put_counter(&row, &ls_lag->reset_at);
	views_put(&row, CStringGetTextDatum(ls_pipeline_state_name()));
	views_put_counter(&row, &ls_queue->dispatched);
	views_put_counter(&row, &ls_queue->by_helpers);
	for (int cause = LS_CAUSE_NONE + 1; cause < LS_CAUSES; cause++)
		views_put_counter(&row, &ls_queue->causes[cause]);
	views_put_counter(&row, &ls_queue->waits);
	for (int cause = 0; cause < LS_WAIT_CAUSES; cause++)
	{
		wait_us[cause] = pg_atomic_read_u64(&ls_queue->wait_us[cause]);
		all_wait_us += wait_us[cause];
	}
	views_put_ms(&row, all_wait_us);
	views_put_lsn(&row, pg_atomic_read_u64(&ls_queue->dispatched_until));
	views_put_counter(&row, &ls_queue->asked_for);
	/* in this order: it is never above the other */
	before = pg_atomic_read_u64(&ls_queue->retired_before);
	views_put(&row, Int64GetDatum((int64) (pg_atomic_read_u64(&ls_queue->retired_records) - before)));
	views_put(&row, Int64GetDatum((int64) ls_records_ahead()));
	views_put(&row, Int64GetDatum((int64) ls_bytes_ahead()));
	for (int cause = 0; cause < LS_WAIT_CAUSES; cause++)
		views_put_ms(&row, wait_us[cause]);
	views_put_counter(&row, &ls_queue->causes[LS_CAUSE_NONE]);
	return views_finish(fcinfo, &row);
}

/* One row for each helper that has run. */
Datum
lockstep_stat_replay_workers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	views_require_preload();
	views_require_right_to_read();
	ls_init_materialized(fcinfo);
	for (int i = 0; i < LS_MAX_REPLAY_WORKERS; i++)
	{
		LsHelper   *helper = &ls_queue->helpers[i];
		Row			row = {.n = 0};

		if (pg_atomic_read_u32(&helper->pid) == 0 && pg_atomic_read_u64(&helper->records) == 0)
			continue;
		views_put_worker(&row, i + 1, helper);
		views_check_columns(result->setDesc, &row);
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

	views_require_preload();
	views_require_right_to_read();
	ls_priority_count(&demoted, &pending, &stuck);
	views_put(&row, CStringGetTextDatum(names[pg_atomic_read_u32(&ls_priority->method)]));
	views_put_text(&row, ls_priority->method_detail);
	views_put(&row, Int32GetDatum(demoted));
	views_put(&row, Int32GetDatum(pending));
	views_put(&row, Int32GetDatum(stuck));
	views_put_counter(&row, &ls_priority->demotions);
	views_put_counter(&row, &ls_priority->restores);
	views_put_counter(&row, &ls_priority->refusals);
	views_put_text(&row, ls_priority->last_refusal);
	views_put_counter(&row, &ls_priority->reset_at);
	views_put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&ls_priority->short_slices)));
	views_put_text(&row, ls_priority->slice_detail);
	views_put(&row, CStringGetTextDatum(ls_demotion_step_name(pg_atomic_read_u32(&ls_priority->step))));
	views_put_ms(&row, pg_atomic_read_u64(&ls_priority->replay_wait_us));
	views_put_ms(&row, pg_atomic_read_u64(&ls_priority->wait_us));
	views_put_ms(&row, pg_atomic_read_u64(&ls_priority->demoted_wait_us));
	views_put_ms(&row, pg_atomic_read_u64(&ls_priority->lost_to_replay_us));
	views_put_ms(&row, pg_atomic_read_u64(&ls_priority->lost_to_others_us));
	return views_finish(fcinfo, &row);
}

Datum
lockstep_stat_throttle(PG_FUNCTION_ARGS)
{
	Row			row = {.n = 0};
	uint32		limit;

	views_require_preload();
	views_require_right_to_read();
	limit = pg_atomic_read_u32(&ls_gate->limit);
	views_put(&row, CStringGetTextDatum(GetConfigOption("lockstep.read_throttle", false, false)));
	if (limit == 0 || !RecoveryInProgress())
		views_put_null(&row);
	else
		views_put(&row, Int32GetDatum((int32) limit));
	views_put(&row, Int32GetDatum((int32) ls_gate_executing()));
	views_put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&ls_gate->waiting)));
	views_put_counter(&row, &ls_gate->waits);
	views_put_ms(&row, pg_atomic_read_u64(&ls_gate->wait_us));
	views_put_counter(&row, &ls_gate->would_wait);
	views_put_counter(&row, &ls_gate->timeouts);
	views_put_counter(&row, &ls_gate->reset_at);
	if (limit == 0 || !RecoveryInProgress())
	{
		views_put_null(&row);
		views_put_null(&row);
	}
	else
	{
		views_put(&row, CStringGetTextDatum(ls_limit_phase_name(pg_atomic_read_u32(&ls_gate->phase))));
		views_put(&row, Int32GetDatum((int32) pg_atomic_read_u32(&ls_gate->beside_others)));
	}
	return views_finish(fcinfo, &row);
}

Datum
lockstep_stat_replay_reset(PG_FUNCTION_ARGS)
{
	views_require_preload();
	views_require_right_to_reset();
	views_zero(&ls_lag->conflicts);
	views_zero(&ls_lag->conflict_event);
	views_zero(&ls_lag->conflict_us);
	views_zero(&ls_look_ahead_shared->records);
	views_zero(&ls_look_ahead_shared->ahead);
	views_zero(&ls_look_ahead_shared->blocks);
	views_zero(&ls_look_ahead_shared->found);
	views_zero(&ls_look_ahead_shared->missing);
	views_zero(&ls_queue->dispatched);
	views_zero(&ls_queue->by_helpers);
	views_zero(&ls_queue->asked_for);
	for (int cause = 0; cause < LS_CAUSES; cause++)
		views_zero(&ls_queue->causes[cause]);
	views_zero(&ls_queue->waits);
	for (int cause = 0; cause < LS_WAIT_CAUSES; cause++)
		views_zero(&ls_queue->wait_us[cause]);
	pg_atomic_write_u64(&ls_queue->retired_before,
						pg_atomic_read_u64(&ls_queue->retired_records));
	views_stamp(&ls_lag->reset_at);
	PG_RETURN_VOID();
}

Datum
lockstep_stat_priority_reset(PG_FUNCTION_ARGS)
{
	views_require_preload();
	views_require_right_to_reset();
	views_zero(&ls_priority->demotions);
	views_zero(&ls_priority->restores);
	views_zero(&ls_priority->refusals);
	views_zero(&ls_priority->replay_wait_us);
	views_zero(&ls_priority->wait_us);
	views_zero(&ls_priority->demoted_wait_us);
	views_zero(&ls_priority->lost_to_replay_us);
	views_zero(&ls_priority->lost_to_others_us);
	ls_set_text(ls_priority->last_refusal, "");
	views_stamp(&ls_priority->reset_at);
	PG_RETURN_VOID();
}

Datum
lockstep_stat_throttle_reset(PG_FUNCTION_ARGS)
{
	views_require_preload();
	views_require_right_to_reset();
	views_zero(&ls_gate->waits);
	views_zero(&ls_gate->wait_us);
	views_zero(&ls_gate->would_wait);
	views_zero(&ls_gate->timeouts);
	views_stamp(&ls_gate->reset_at);
	PG_RETURN_VOID();
}

static void
views_require_preload(void)
{
	if (ls_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("lockstep is not loaded on this server"),
				 errhint("Add lockstep to shared_preload_libraries and restart the server.")));
}

/*
 * Looked at here, too, since GRANT EXECUTE ON ALL FUNCTIONS gives the functions to everybody. What replay
 * helpers wait for is shown to those to whom PostgreSQL shows what its processes wait for.
 */
static void
views_require_right_to_read(void)
{
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser or a member of pg_monitor to read statistics")));
}

/* Looked at here, too, for the same reason. */
static void
views_require_right_to_reset(void)
{
	if (!superuser() && !has_privs_of_role(GetUserId(), ROLE_PG_MONITOR))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser or a member of pg_monitor to reset statistics")));
}

static void
views_put(Row *row, Datum value)
{
	row->nulls[row->n] = false;
	row->values[row->n++] = value;
}

static void
views_put_lsn(Row *row, XLogRecPtr lsn)
{
	if (lsn == InvalidXLogRecPtr)
		views_put_null(row);
	else
		views_put(row, LSNGetDatum(lsn));
}

static void
views_put_null(Row *row)
{
	row->nulls[row->n] = true;
	row->values[row->n++] = (Datum) 0;
}

static void
views_put_ms(Row *row, uint64 us)
{
	views_put(row, Float8GetDatum((double) us / 1000.0));
}

static void
views_put_last_conflict(Row *row)
{
	uint32		event = (uint32) pg_atomic_read_u64(&ls_lag->conflict_event);

	views_put_counter(row, &ls_lag->conflicts);
	if (event == 0)
	{
		views_put_null(row);
		views_put_null(row);
		views_put_null(row);
		return;
	}
	views_put(row, PointerGetDatum(cstring_to_text(psprintf("%s:%s",
															pgstat_get_wait_event_type(event),
															pgstat_get_wait_event(event)))));
	views_put(row, TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&ls_lag->conflict_at)));
	views_put_ms(row, pg_atomic_read_u64(&ls_lag->conflict_us));
}

static void
views_put_counter(Row *row, pg_atomic_uint64 *counter)
{
	views_put(row, Int64GetDatum((int64) pg_atomic_read_u64(counter)));
}

static Datum
views_finish(FunctionCallInfo fcinfo, Row *row)
{
	TupleDesc	tupdesc;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	views_check_columns(tupdesc, row);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc),
											 row->values, row->nulls));
}

/* The last columns are missing where an earlier version was created. */
static void
views_check_columns(TupleDesc tupdesc, const Row *row)
{
	if (tupdesc->natts > row->n)
		elog(ERROR, "row has %d columns, expected %d", row->n, tupdesc->natts);
}

static void
views_put_worker(Row *row, int number, LsHelper *helper)
{
	uint32		pid = pg_atomic_read_u32(&helper->pid);

	views_put(row, Int32GetDatum(number));
	if (pid == 0)
		views_put_null(row);
	else
		views_put(row, Int32GetDatum((int32) pid));
	views_put_counter(row, &helper->records);
	views_put_counter(row, &helper->blocks);
	views_put_counter(row, &helper->given_back);
	views_put_counter(row, &helper->waits);
	views_put_ms(row, pg_atomic_read_u64(&helper->wait_us));
	views_put_lsn(row, pg_atomic_read_u64(&helper->lsn));
	views_put_counter(row, &helper->bytes);
	views_put(row, Int32GetDatum((int32) pg_atomic_read_u32(&helper->queue_depth)));
	views_put_wait_event(row, ls_helper_wait_event(helper));
}

/* The wait event's type and name; 0: none. */
static void
views_put_wait_event(Row *row, uint32 event)
{
	const char *type = pgstat_get_wait_event_type(event);
	const char *name = pgstat_get_wait_event(event);

	if (type == NULL || name == NULL)
	{
		views_put_null(row);
		views_put_null(row);
		return;
	}
	views_put(row, CStringGetTextDatum(type));
	views_put(row, CStringGetTextDatum(name));
}

static void
views_put_text(Row *row, const char *shared_text)
{
	char		text[LS_TEXT_SIZE];

	ls_get_text(text, shared_text);
	if (text[0] == '\0')
		views_put_null(row);
	else
		views_put(row, CStringGetTextDatum(text));
}

static void
views_zero(pg_atomic_uint64 *counter)
{
	pg_atomic_write_u64(counter, 0);
}

static void
views_stamp(pg_atomic_uint64 *reset_at)
{
	pg_atomic_write_u64(reset_at, (uint64) GetCurrentTimestamp());
}
