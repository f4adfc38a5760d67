/*
 * gate.c - the admission gate in front of the executor.
 *
 * Purpose: of the read queries of a standby only as many execute at once as the
 * capacity allows (gate_limit.c); the others queue (gate_lines.c). That bounds
 * how many demoted readers can hold buffer locks that replay needs, and how much
 * CPU and I/O readers take when lag grows.
 *
 * Runs in backends. The controller sets the capacity, and gives the places
 * that become free by that to sessions in the queue. A place is counted in
 * LsGateShared.running by the process that gives it: the session itself on the
 * fast path, or the process that takes the session's entry from the queue.
 *
 * A turn: while others wait, a session that got in keeps its place for
 * lockstep.read_throttle_turn and so executes several queries in a row.
 * Letting in another session for each query would cost a wake-up and cold
 * caches each time. With W sessions waiting for P places the last of them waits
 * W / P turns. Sessions whose clients leave them idle in their turn do not keep
 * others out: gate_limit.c adds places for them.
 *
 * An express place is for one short query of a user who has nothing inside (line_rule.c), beside
 * the capacity. A query that turns out to be long counts in running from then on.
 *
 * What passes without waiting: exempt sessions, utility commands, parallel
 * workers, cursors, nested and later calls, transactions above READ COMMITTED,
 * those that keep a snapshot, those that hold a lock another process waits for, and
 * those whose transaction replay may wait for.
 *
 * A query that may not wait executes without a place, and so does each call of the
 * executor that came here by another way: of EXECUTE, FETCH or a later fetch of a
 * portal. Both count while they execute: gate_limit.c leaves as many places fewer
 * for the others as there are of these, but never less than lockstep.read_throttle_min. Exempt sessions,
 * and commands that do their work without the executor, are not counted.
 *
 * Limit: portals that are bound before the first of them executes share one
 * place.
 *
 * A waiting query has no snapshot, so it holds back neither replay nor, with
 * hot_standby_feedback, the primary's vacuum. It keeps AccessShare locks on
 * its relations and their indexes (plan_indexes.c); when replay waits for one of
 * them the controller lets it go on.
 *
 * Crash: shared memory is made anew. Promotion: the controller opens the gate.
 * No controller: no query waits.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/inval.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "controller.h"
#include "executor_hooks.h"
#include "gate/express.h"
#include "gate/gate.h"
#include "gate/gate_lines.h"
#include "gate/held_locks.h"
#include "gate/limit_rule.h"
#include "gate/plan_again.h"
#include "gate/plan_indexes.h"
#include "replay/replay_lag.h"
#include "state/clock.h"
#include "state/session.h"
#include "state/settings.h"
#include "state/shared_state.h"

/* Interval at which a waiter looks by itself, in ms, even if no process wakes it. */
#define RECHECK_MS 1000
/* Interval of looks for a waiter with locks that others may come to wait for, in ms. */
#define RECHECK_LOCKS_MS 100
/*
 * Time until a waiter looks by itself first: replay can have begun to wait for this transaction
 * just before its snapshot was given up, and show it a moment later.
 */
#define RECHECK_FIRST_MS 10
/* Least time between two messages of log mode. */
#define LOG_EVERY_US INT64CONST(1000000)

LsGateShared *ls_gate = NULL;

/* Has this process a place, or executes without one; the query for which. */
static bool gate_inside = false;
static const QueryDesc *gate_inside_query = NULL;

/* Time that this process has executed in its last turn, and when it began to execute now. */
static int64 gate_used_us = 0;
static int64 gate_began_us = 0;

static bool gate_may_wait(const QueryDesc *queryDesc);
static bool gate_client_sent(const QueryDesc *queryDesc);
static bool gate_applies(void);
static bool gate_resume_turn(LsSession *s, const QueryDesc *queryDesc);
static bool gate_turn_is_over(LsSession *s, int64 now);
static void gate_at_xact_end(XactEvent event, void *arg);
static void gate_at_subxact_end(SubXactEvent event, SubTransactionId subxact,
								SubTransactionId parent, void *arg);
static bool gate_try_take_place(void);
static void gate_go_in_unasked(const QueryDesc *queryDesc);
static void gate_go_inside(const QueryDesc *queryDesc, LsGateState state);
static pg_atomic_uint32 *gate_count_of(LsGateState state);
static bool gate_give_back(LsSession *s, LsGateState from);
static bool gate_take_away(LsSession *s, LsGateState from);
static void gate_say_would_wait(void);
static void gate_wait_for_place(QueryDesc *queryDesc, LsLine line);
static void gate_line_up_and_wait(QueryDesc *queryDesc, LsLine line);
static bool gate_prepare_to_wait(QueryDesc *queryDesc, bool *has_shared_locks);
static bool gate_wait_in_line(LsSession *s, LsLine line, bool has_shared_locks);
static bool gate_line_up(LsSession *s, LsLine line);
static bool gate_wait_in_queue(LsSession *s, bool has_shared_locks);
static bool gate_is_granted(LsSession *s);
static void gate_report_timeout(void);
static void gate_count_wait(int64 began);
static void gate_catch_up(QueryDesc *queryDesc);
static bool gate_let_go_of_snapshot(QueryDesc *queryDesc);
static void gate_take_fresh_snapshot(QueryDesc *queryDesc);

void
ls_gate_init_shared(char *queues)
{
	pg_atomic_init_u32(&ls_gate->limit, 0);
	pg_atomic_init_u32(&ls_gate->phase, LS_LIMIT_CALM);
	pg_atomic_init_u32(&ls_gate->beside_others, 0);
	pg_atomic_init_u32(&ls_gate->steady, 0);
	/* until the controller has measured anything, every query passes */
	pg_atomic_init_u32(&ls_gate->capacity, LS_GATE_OPEN);
	pg_atomic_init_u32(&ls_gate->running, 0);
	pg_atomic_init_u32(&ls_gate->express, 0);
	pg_atomic_init_u32(&ls_gate->unasked, 0);
	pg_atomic_init_u32(&ls_gate->waiting, 0);
	pg_atomic_init_u64(&ls_gate->waits, 0);
	pg_atomic_init_u64(&ls_gate->wait_us, 0);
	pg_atomic_init_u64(&ls_gate->would_wait, 0);
	pg_atomic_init_u64(&ls_gate->timeouts, 0);
	pg_atomic_init_u64(&ls_gate->logged_at, 0);
	pg_atomic_init_u64(&ls_gate->reset_at, (uint64) GetCurrentTimestamp());
	ls_init_lines(queues);
}

/*
 * Called before the executor starts a query on a standby. True if the query
 * now holds a place, which ls_gate_leave() gives back.
 */
bool
ls_gate_enter(QueryDesc *queryDesc)
{
	if (!gate_may_wait(queryDesc) || !gate_applies() || ls_session_attach() == NULL)
		return false;

	if (gate_inside)
	{
		/* a query bound earlier never executed: its place serves this one */
		gate_inside_query = queryDesc;
		return true;
	}

	if (gate_resume_turn(ls_my_session, queryDesc))
		return true;
	if (pg_atomic_read_u32(&ls_gate->waiting) == 0 && gate_try_take_place())
		gate_go_inside(queryDesc, LS_GATE_INSIDE);
	else if (ls_read_throttle == LS_THROTTLE_LOG)
	{
		gate_say_would_wait();
		gate_go_in_unasked(queryDesc);
	}
	else
	{
		LsLine		line = ls_line_for(queryDesc, gate_used_us);

		if (line == LS_LINE_EXPRESS && ls_express_line_is_empty() && ls_express_take())
			gate_go_inside(queryDesc, LS_GATE_EXPRESS);
		else
			gate_wait_for_place(queryDesc, line);
	}
	return true;
}

/*
 * Called before the executor runs on a standby what has no place. True if this call
 * counts from here on, until ls_gate_leave(). It never waits: it may be in the middle
 * of its rows, with a snapshot.
 */
bool
ls_gate_count(const QueryDesc *queryDesc)
{
	if (gate_inside || !gate_applies() || ls_session_attach() == NULL)
		return false;
	if (!gate_resume_turn(ls_my_session, queryDesc))
		gate_go_in_unasked(queryDesc);
	return true;
}

/* The query has executed, or failed. */
void
ls_gate_leave(void)
{
	LsSession  *s = ls_my_session;
	int64		now;

	if (!gate_inside)
		return;
	gate_inside = false;
	gate_inside_query = NULL;
	now = ls_now_us();
	gate_used_us += now - gate_began_us;
	ls_express_judge(now - gate_began_us);
	/* a turn is for those who have waited for it, or would have */
	if (gate_give_back(s, LS_GATE_UNASKED) || gate_give_back(s, LS_GATE_EXPRESS))
		return;
	if (gate_turn_is_over(s, now))
	{
		(void) gate_give_back(s, LS_GATE_INSIDE);
		return;
	}
	/* looked at again, or the place stays kept if the gate was opened in between */
	pg_atomic_exchange_u32(&s->gate, LS_GATE_KEPT);
	if (gate_turn_is_over(s, ls_now_us()))
		(void) gate_give_back(s, LS_GATE_KEPT);
}

/*
 * The session counts again, or has left: the place that the controller added
 * for it goes as well. Left until the controller's next round, that place would
 * let in one query too many, which may be a long one. Who clears the mark takes
 * the place away, the session or the controller (gate_limit_mark_exceptions() of
 * gate_limit.c), so it goes once.
 */
void
ls_gate_end_exception(LsSession *s)
{
	uint32		steady = pg_atomic_read_u32(&ls_gate->steady);
	uint32		capacity;

	if (pg_atomic_read_u32(&s->excepted) == 0 ||
		pg_atomic_exchange_u32(&s->excepted, 0) == 0)
		return;
	capacity = pg_atomic_read_u32(&ls_gate->capacity);
	while (capacity > steady && capacity < LS_GATE_OPEN &&
		   !pg_atomic_compare_exchange_u32(&ls_gate->capacity,
										   &capacity, capacity - 1))
		;
}

bool
ls_gate_is_mine(const QueryDesc *queryDesc)
{
	return gate_inside && gate_inside_query == queryDesc;
}

/*
 * Lets in as many waiting sessions as there are places. Any process but the
 * startup process.
 *
 * A place is taken before an entry is, so the queue can turn out to be empty
 * with a place in hand. Then the place is given back and the queue looked at
 * again, or a session that queued in between, and found no place, would not be
 * let in. Express places come first, as who waits for one may be moved to another line by that.
 */
void
ls_gate_drain(void)
{
	/*
	 * The caller has just published one of the three that must meet here: an
	 * entry in the queue, a free place, or a larger capacity; next it looks
	 * for the others. So does the process that publishes another one at the
	 * same time. Without a full barrier between store and load both may see
	 * the state before, each leaves it to the other, and a session waits
	 * beside a free place until the controller's next round. The CPU must
	 * therefore have made the store visible before it loads anything below.
	 * Atomic additions and exchanges do that by themselves; the stores that
	 * fill a cell of the queue and set the capacity do not.
	 */
	pg_memory_barrier();
	while (!ls_express_line_is_empty() && ls_express_take())
	{
		int			procno = ls_grant_next_express();

		if (procno == LS_NO_PROCNO)
			pg_atomic_fetch_sub_u32(&ls_gate->express, 1);
		else
			SetLatch(&GetPGProcByNumber(procno)->procLatch);
	}
	/* entries were moved */
	pg_memory_barrier();
	while (pg_atomic_read_u32(&ls_gate->waiting) > 0 && gate_try_take_place())
	{
		int			procno = ls_grant_next();

		if (procno == LS_NO_PROCNO)
		{
			pg_atomic_fetch_sub_u32(&ls_gate->running, 1);
			if (ls_lines_are_empty())
				return;
			continue;
		}
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
	}
}

/* Number of queries inside the gate, with a place of either kind and without. */
uint32
ls_gate_executing(void)
{
	return pg_atomic_read_u32(&ls_gate->running) + pg_atomic_read_u32(&ls_gate->express) +
		pg_atomic_read_u32(&ls_gate->unasked);
}

void
ls_gate_register_callbacks(void)
{
	RegisterXactCallback(gate_at_xact_end, NULL);
	RegisterSubXactCallback(gate_at_subxact_end, NULL);
}

/*
 * Gives up what this process has at the gate: a place, an entry in the queue,
 * or a place granted a moment ago. For errors while waiting, and for exit:
 * FATAL exits without passing any PG_CATCH.
 */
void
ls_gate_forget(void)
{
	LsSession  *s = ls_my_session;

	gate_inside = false;
	gate_inside_query = NULL;
	if (s == NULL || pg_atomic_read_u32(&s->gate) == LS_GATE_OUTSIDE)
		return;
	if (gate_give_back(s, LS_GATE_EXPRESS) || gate_give_back(s, LS_GATE_KEPT) ||
		gate_give_back(s, LS_GATE_INSIDE) || gate_give_back(s, LS_GATE_UNASKED))
		return;
	if (pg_atomic_read_u32(&s->gate) != LS_GATE_OUTSIDE && ls_leave_line(s) &&
		!gate_give_back(s, LS_GATE_GRANTED))
		(void) gate_give_back(s, LS_GATE_EXPRESS_GRANTED);
}

/*
 * Controller, each round: ends turns of clients that did not come back, and takes express places from
 * long queries. Others are let in once the controller knows how many places there are now.
 */
void
ls_gate_end_turns(int64 now)
{
	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];

		if (pg_atomic_read_u32(&s->gate) == LS_GATE_KEPT && gate_turn_is_over(s, now))
			(void) gate_take_away(s, LS_GATE_KEPT);
		ls_express_count_as_long(s, now);
	}
}

/* ---- entry and exit ---- */

/* May this query wait? */
static bool
gate_may_wait(const QueryDesc *queryDesc)
{
	/* a protocol-level query just being started; no cursor, no nested call */
	return ls_nesting == 0 && ActivePortal != NULL &&
		ActivePortal->status == PORTAL_DEFINED &&
		ActivePortal->strategy == PORTAL_ONE_SELECT &&
		!IsolationUsesXactSnapshot() && gate_client_sent(queryDesc);
}

/*
 * A client's portal starts with no active snapshot but its own. A cursor that a
 * function opens while a query is planned, or a parameter read, starts within that
 * one's. Only the client's portal can be without a name.
 */
static bool
gate_client_sent(const QueryDesc *queryDesc)
{
	bool		is_only_one;

	if (ActivePortal->name[0] == '\0')
		return true;
	if (!ActiveSnapshotSet() || GetActiveSnapshot() != queryDesc->snapshot)
		return false;
	PopActiveSnapshot();
	is_only_one = !ActiveSnapshotSet();
	PushActiveSnapshot(queryDesc->snapshot);
	return is_only_one;
}

static bool
gate_applies(void)
{
	if (ls_read_throttle == LS_THROTTLE_OFF || ls_gate == NULL)
		return false;
	return MyBackendType == B_BACKEND && !IsParallelWorker() &&
		!ls_session_is_exempt();
}

/* Goes on with the session's turn; false if it has none, or it is over. */
static bool
gate_resume_turn(LsSession *s, const QueryDesc *queryDesc)
{
	uint32		kept = LS_GATE_KEPT;
	int64		now;

	if (pg_atomic_read_u32(&s->gate) != LS_GATE_KEPT)
		return false;
	now = ls_now_us();
	if (gate_turn_is_over(s, now))
	{
		(void) gate_give_back(s, LS_GATE_KEPT);
		return false;
	}
	if (!pg_atomic_compare_exchange_u32(&s->gate, &kept, LS_GATE_INSIDE))
		return false;
	ls_gate_end_exception(s);
	gate_inside = true;
	gate_inside_query = queryDesc;
	gate_began_us = now;
	return true;
}

/* The caller has seen that the session is inside. */
static bool
gate_turn_is_over(LsSession *s, int64 now)
{
	pg_read_barrier();			/* as in gate_go_inside() */
	return now - (int64) pg_atomic_read_u64(&s->inside_since) >= (int64) ls_read_throttle_turn * 1000 ||
		pg_atomic_read_u32(&ls_gate->waiting) == 0 ||
		pg_atomic_read_u32(&ls_gate->capacity) >= LS_GATE_OPEN;
}

/* A query that was started and never run gives its place back here. */
static void
gate_at_xact_end(XactEvent event, void *arg)
{
	if (gate_inside && (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT ||
						event == XACT_EVENT_PREPARE))
		ls_gate_leave();
}

/*
 * A query that was started before an error does not run any more either, if the transaction
 * goes on at a savepoint. Within a query that goes on, such as a function that catches
 * an error, the place is still that query's.
 */
static void
gate_at_subxact_end(SubXactEvent event, SubTransactionId subxact, SubTransactionId parent, void *arg)
{
	if (gate_inside && event == SUBXACT_EVENT_ABORT_SUB && ls_nesting == 0)
		ls_gate_leave();
}

/* ---- places ---- */

static bool
gate_try_take_place(void)
{
	uint32		running = pg_atomic_read_u32(&ls_gate->running);

	while (running < pg_atomic_read_u32(&ls_gate->capacity))
	{
		if (pg_atomic_compare_exchange_u32(&ls_gate->running,
										   &running, running + 1))
			return true;
	}
	return false;
}

/* For a query that may not wait. */
static void
gate_go_in_unasked(const QueryDesc *queryDesc)
{
	pg_atomic_fetch_add_u32(&ls_gate->unasked, 1);
	gate_go_inside(queryDesc, LS_GATE_UNASKED);
}
/*
 * The clock is set before the state says that it counts: the controller looks
 * at the state first.
 */
static void
gate_go_inside(const QueryDesc *queryDesc, LsGateState state)
{
	gate_inside = true;
	gate_inside_query = queryDesc;
	gate_used_us = 0;
	if (state == LS_GATE_EXPRESS)
		ls_express_begin();
	gate_began_us = ls_now_us();
	pg_atomic_write_u64(&ls_my_session->inside_since, (uint64) gate_began_us);
	pg_write_barrier();
	pg_atomic_write_u32(&ls_my_session->gate, state);
}

/* Takes away what a session has inside, if it is in that state, and lets others in. */
static bool
gate_give_back(LsSession *s, LsGateState from)
{
	if (!gate_take_away(s, from))
		return false;
	ls_gate_drain();
	return true;
}

/*
 * Takes away what a session has inside, if the session is in that state. The caller
 * lets others in.
 */
static bool
gate_take_away(LsSession *s, LsGateState from)
{
	uint32		expected = from;

	if (!pg_atomic_compare_exchange_u32(&s->gate, &expected, LS_GATE_OUTSIDE))
		return false;
	ls_gate_end_exception(s);
	pg_atomic_fetch_sub_u32(gate_count_of(from), 1);
	return true;
}

/* Where a session with that state is counted. */
static pg_atomic_uint32 *
gate_count_of(LsGateState state)
{
	if (state == LS_GATE_UNASKED)
		return &ls_gate->unasked;
	if (state == LS_GATE_EXPRESS || state == LS_GATE_EXPRESS_GRANTED)
		return &ls_gate->express;
	return &ls_gate->running;
}

/* ---- log mode ---- */

static void
gate_say_would_wait(void)
{
	uint64		now = (uint64) ls_now_us();
	uint64		last = pg_atomic_read_u64(&ls_gate->logged_at);

	pg_atomic_fetch_add_u64(&ls_gate->would_wait, 1);
	if (now - last < LOG_EVERY_US ||
		!pg_atomic_compare_exchange_u64(&ls_gate->logged_at, &last, now))
		return;
	ereport(LOG,
			(errmsg("lockstep.read_throttle would have held back a read query"),
			 errdetail("%u read queries execute, the limit is %u; replay lag is " UINT64_FORMAT " ms.",
					   ls_gate_executing(),
					   pg_atomic_read_u32(&ls_gate->limit),
					   pg_atomic_read_u64(&ls_lag->lag_us) / 1000),
			 errhidestmt(true)));
}

/* ---- waiting ---- */

static void
gate_wait_for_place(QueryDesc *queryDesc, LsLine line)
{
	ls_watch_plan(queryDesc->plannedstmt);
	PG_TRY();
	{
		gate_line_up_and_wait(queryDesc, line);
	}
	PG_FINALLY();
	{
		ls_stop_watching_plan();
	}
	PG_END_TRY();
}

static void
gate_line_up_and_wait(QueryDesc *queryDesc, LsLine line)
{
	bool		has_shared_locks = false;

	if (!gate_prepare_to_wait(queryDesc, &has_shared_locks))
	{
		gate_go_in_unasked(queryDesc);
		if (ls_must_plan_again() && gate_let_go_of_snapshot(queryDesc))
			gate_catch_up(queryDesc);
		return;
	}

	if (gate_wait_in_line(ls_my_session, line, has_shared_locks))
		gate_go_inside(queryDesc, pg_atomic_read_u32(&ls_my_session->gate) == LS_GATE_GRANTED ?
					   LS_GATE_INSIDE : LS_GATE_EXPRESS);
	else
		gate_go_in_unasked(queryDesc);
	gate_catch_up(queryDesc);
}

/* False: the query must not wait. Otherwise it has no snapshot any more. */
static bool
gate_prepare_to_wait(QueryDesc *queryDesc, bool *has_shared_locks)
{
	if (!ls_can_plan_again(queryDesc))
		return false;
	switch (ls_lock_plan_indexes(queryDesc->plannedstmt))
	{
		case LS_INDEXES_LOCKED:
			break;
		case LS_INDEXES_CHANGED:
			ls_plan_is_stale();
			return false;
		case LS_INDEXES_TOO_MANY:
			return false;
	}
	*has_shared_locks = ls_holds_shared_locks();
	return !(*has_shared_locks && ls_others_wait_for_us()) &&
		gate_let_go_of_snapshot(queryDesc);
}

/* Returns whether the session has a place now. */
static bool
gate_wait_in_line(LsSession *s, LsLine line, bool has_shared_locks)
{
	int64		began = ls_now_us();
	volatile bool granted = false;

	ls_resolve_wait_events();
	pg_atomic_fetch_add_u64(&ls_gate->waits, 1);

	PG_TRY();
	{
		granted = gate_line_up(s, line) && gate_wait_in_queue(s, has_shared_locks);
	}
	PG_CATCH();
	{
		gate_count_wait(began);
		ls_gate_forget();
		PG_RE_THROW();
	}
	PG_END_TRY();

	gate_count_wait(began);
	return granted;
}

/* Puts the session into its line; returns what ls_join_line() does. */
static bool
gate_line_up(LsSession *s, LsLine line)
{
	if (!ls_join_line(s, line))
		return false;
	/* a place may have become free since this session looked */
	ls_gate_drain();
	return true;
}

/* Waits for a place; false if it must go on without one. */
static bool
gate_wait_in_queue(LsSession *s, bool has_shared_locks)
{
	int64		began = ls_now_us();
	bool		first = true;

	while (!gate_is_granted(s))
	{
		long		timeout = has_shared_locks ? RECHECK_LOCKS_MS : RECHECK_MS;

		if (first)
			timeout = RECHECK_FIRST_MS;
		first = false;
		CHECK_FOR_INTERRUPTS();
		if (!ls_controller_alive() || !RecoveryInProgress() ||
			pg_atomic_read_u32(&s->in_the_way) != 0 || ls_replay_may_await_us() ||
			(has_shared_locks && ls_others_wait_for_us()))
			return ls_leave_line(s);
		if (ls_read_throttle_timeout > 0)
		{
			long		waited = (long) ((ls_now_us() - began) / 1000);

			if (waited >= ls_read_throttle_timeout)
				gate_report_timeout();
			timeout = Min(timeout, ls_read_throttle_timeout - waited);
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, ls_event_throttle);
		ResetLatch(MyLatch);
	}
	return true;
}

static bool
gate_is_granted(LsSession *s)
{
	uint32		state = pg_atomic_read_u32(&s->gate);

	return state == LS_GATE_GRANTED || state == LS_GATE_EXPRESS_GRANTED;
}

static void
gate_report_timeout(void)
{
	pg_atomic_fetch_add_u64(&ls_gate->timeouts, 1);
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("read query was held back for longer than lockstep.read_throttle_timeout (%d ms)",
					ls_read_throttle_timeout),
			 errdetail("%u read queries execute on this standby, %u wait.",
					   ls_gate_executing(),
					   pg_atomic_read_u32(&ls_gate->waiting)),
			 errhint("Retry, send it to another standby, or raise lockstep.read_throttle_timeout.")));
}

static void
gate_count_wait(int64 began)
{
	pg_atomic_fetch_add_u64(&ls_gate->wait_us, ls_now_us() - began);
}

/*
 * Makes what has been replayed up to now count, a REVOKE for example: the executor
 * checks privileges next, and it hears of changes only as it takes a lock, which
 * this transaction has taken already. The query has no snapshot before and a
 * fresh one afterwards.
 */
static void
gate_catch_up(QueryDesc *queryDesc)
{
	AcceptInvalidationMessages();
	if (ls_must_plan_again())
		ls_plan_again(queryDesc);
	gate_take_fresh_snapshot(queryDesc);
}

/* ---- what a waiter must not hold ---- */

/*
 * Gives up the query's snapshot as PortalStart took it: pushed once and
 * registered once. False, with a snapshot in place again, if the transaction
 * keeps another one, for then waiting would hold back replay.
 */
static bool
gate_let_go_of_snapshot(QueryDesc *queryDesc)
{
	Snapshot	snapshot = queryDesc->snapshot;

	if (!ActiveSnapshotSet() || GetActiveSnapshot() != snapshot ||
		queryDesc->crosscheck_snapshot != InvalidSnapshot)
		return false;

	PopActiveSnapshot();
	if (ActiveSnapshotSet())
	{
		PushActiveSnapshot(snapshot);
		return false;
	}

	UnregisterSnapshot(snapshot);
	queryDesc->snapshot = InvalidSnapshot;
	InvalidateCatalogSnapshot();
	if (TransactionIdIsValid(MyProc->xmin))
	{
		gate_take_fresh_snapshot(queryDesc);
		return false;
	}
	return true;
}

static void
gate_take_fresh_snapshot(QueryDesc *queryDesc)
{
	PushActiveSnapshot(GetTransactionSnapshot());
	queryDesc->snapshot = RegisterSnapshot(GetActiveSnapshot());
}
