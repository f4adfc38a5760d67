/*
 * wait_lsn.c - SET lockstep.wait_for_lsn on a standby: read your writes.
 *
 * Purpose: the statement returns once replay has reached the token. It runs
 * in the utility hook, before the setting itself is assigned; an assign hook
 * would also be called by rollback. Only SET as a statement of its own waits; RESET and
 * set_config() only assign, and all other ways to set it are refused (settings.c).
 *
 * Timelines: after a failover the new primary may come to the same position
 * without the write. So for a token of timeline T, on a server of timeline R (the
 * one that is replayed, or the primary's own):
 *
 *   T = R                          the position counts
 *   T < R, and R comes from T      up to where T was left it is REACHED, beyond GONE
 *   T < R, and R does not          GONE
 *   T < R, no history of R         NOT_KNOWN: the file may still come
 *   T > R                          NOT_KNOWN, wherever replay is: R may come to T
 *
 * GONE is an error at once. NOT_KNOWN waits and looks again when R changes, and
 * every RECHECK_MS; on a primary it is an error, since nothing changes there. A
 * history cannot tell two timelines of the same number apart, which arise when two
 * standbys are promoted that know nothing of each other.
 *
 * The waiter holds no snapshot and no lock that replay could want, or it could
 * wait for itself. The controller looks at the replay position each
 * millisecond while a session waits: the position moves after a record's redo
 * returned, and after the very last record nothing else happens. Each waiter
 * also looks by itself, every RECHECK_MS, in case there is no controller.
 *
 * Promotion: a waiter with a token is answered as on any primary; one with a bare
 * position fails, unless it was replayed.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/snapmgr.h"

#include "controller.h"
#include "gate/held_locks.h"
#include "state/clock.h"
#include "state/session.h"
#include "state/settings.h"
#include "state/shared_state.h"
#include "wait/timeline_history.h"
#include "wait/token.h"
#include "wait/wait_lsn.h"

/* Interval at which a waiter looks by itself, in ms. */
#define RECHECK_MS 100
/* A position that replay never reaches: only another timeline wakes the waiter. */
#define LSN_NEVER PG_UINT64_MAX

typedef enum VerdictState
{
	REACHED,
	NOT_YET,					/* replay will come to wake_at, if WAL does */
	NOT_KNOWN,					/* only another timeline or a history file can tell */
	GONE						/* the server's history does not have it */
} VerdictState;

/* What this server can say of a token. */
typedef struct Verdict
{
	VerdictState state;
	XLogRecPtr	wake_at;		/* NOT_YET, NOT_KNOWN: when to look again */
	char		detail[LS_HISTORY_PROBLEM_SIZE];	/* NOT_KNOWN, GONE: why */
} Verdict;

LsLsnWaitShared *ls_lsn_wait = NULL;

static void wait_lsn_refuse_unfit_context(bool top_level);
static bool wait_lsn_statement_token(VariableSetStmt *stmt, LsToken *token);
static bool wait_lsn_is_replayed(const LsToken *token, const char *what, Verdict *v);
static void wait_lsn_registered(const LsToken *token, const char *what);
static void wait_lsn_until_replayed(LsSession *s, const LsToken *token, const char *what);
static void wait_lsn_check_on_primary(const LsToken *token, const char *what);
static void wait_lsn_stop(LsSession *s);
static void wait_lsn_judge_on_standby(const LsToken *token, Verdict *v);
static void wait_lsn_judge_by_history(const LsToken *token, TimeLineID tli, Verdict *v);
static void wait_lsn_judge_on_primary(const LsToken *token, Verdict *v);
static void wait_lsn_report_gone(const char *what, const Verdict *v);
static void wait_lsn_report_not_known(const char *what, const Verdict *v);
static void wait_lsn_report_promotion(const char *what);
static void wait_lsn_report_timeout(const char *what, const Verdict *v);
static void wait_lsn_refuse_primary(const char *what);

void
ls_wait_lsn_init_shared(void)
{
	pg_atomic_init_u32(&ls_lsn_wait->waiters, 0);
}

/*
 * Called for every SET. A value that is no token is left to the setting's own
 * check, which raises the error.
 */
void
ls_wait_for_lsn_statement(Node *stmt, bool top_level)
{
	LsToken		token;
	char		what[LS_TOKEN_DESCRIPTION_SIZE];
	Verdict		v;

	if (ls_shared == NULL || !wait_lsn_statement_token((VariableSetStmt *) stmt, &token))
		return;
	wait_lsn_refuse_unfit_context(top_level);
	ls_describe_token(&token, what);
	if (RecoveryInProgress())
	{
		if (!wait_lsn_is_replayed(&token, what, &v))
			wait_lsn_registered(&token, what);
	}
	else if (token.tli > 0)
		wait_lsn_check_on_primary(&token, what);
	else
		wait_lsn_refuse_primary(what);
}

/* Controller: wakes sessions whose position has been replayed, all on a new timeline. */
void
ls_wait_lsn_step(void)
{
	static TimeLineID last_tli = 0;
	TimeLineID	tli;
	XLogRecPtr	replayed;
	bool		all;

	if (pg_atomic_read_u32(&ls_lsn_wait->waiters) == 0)
		return;
	all = !RecoveryInProgress();
	replayed = GetXLogReplayRecPtr(&tli);
	all = all || tli != last_tli;
	last_tli = tli;
	for (int i = 0; i < ls_nsessions; i++)
	{
		XLogRecPtr	target = pg_atomic_read_u64(&ls_sessions[i].wait_lsn);

		if (target != InvalidXLogRecPtr && (all || target <= replayed))
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}

static void
wait_lsn_refuse_unfit_context(bool top_level)
{
	if (!top_level)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("SET lockstep.wait_for_lsn must be a statement of its own"),
				 errdetail("In a function or a block of code it would wait with a snapshot held."),
				 errhint("Send it alone, before the query that must see the changes.")));

	/*
	 * Looking up a name, as SET ROLE before it in the same string does, leaves
	 * a snapshot for catalogs, which the next look-up would replace anyway.
	 */
	InvalidateCatalogSnapshot();
	if (FirstSnapshotSet || ActiveSnapshotSet() ||
		TransactionIdIsValid(MyProc->xmin) || ls_holds_lock_replay_may_want())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("SET lockstep.wait_for_lsn must come before any query of its transaction"),
				 errdetail("The transaction holds a snapshot or locks, which could hold back the replay it would wait for."),
				 errhint("Send it before BEGIN, or as the first statement after it.")));
}

/* ---- Waiting ---- */

/* The token that the statement names; false if it names none. */
static bool
wait_lsn_statement_token(VariableSetStmt *stmt, LsToken *token)
{
	A_Const    *value;

	if (stmt->kind != VAR_SET_VALUE || stmt->name == NULL ||
		pg_strcasecmp(stmt->name, "lockstep.wait_for_lsn") != 0 ||
		list_length(stmt->args) != 1)
		return false;
	value = linitial(stmt->args);
	if (!IsA(value, A_Const) || value->isnull || nodeTag(&value->val) != T_String)
		return false;
	return ls_parse_token(strVal(&value->val), token);
}

/* Fails if replay can never come to the token. */
static bool
wait_lsn_is_replayed(const LsToken *token, const char *what, Verdict *v)
{
	wait_lsn_judge_on_standby(token, v);
	if (v->state == GONE)
		wait_lsn_report_gone(what, v);
	return v->state == REACHED;
}

static void
wait_lsn_registered(const LsToken *token, const char *what)
{
	LsSession  *s = ls_session_attach();

	/* returning would say that it is replayed */
	if (s == NULL)
		elog(ERROR, "process %d has no slot in which to wait", MyProcPid);
	ls_resolve_wait_events();
	pg_atomic_write_u64(&s->wait_lsn, LSN_NEVER);
	pg_atomic_fetch_add_u32(&ls_lsn_wait->waiters, 1);
	ls_nudge_controller();

	PG_TRY();
	{
		wait_lsn_until_replayed(s, token, what);
	}
	PG_FINALLY();
	{
		wait_lsn_stop(s);
	}
	PG_END_TRY();
}

static void
wait_lsn_until_replayed(LsSession *s, const LsToken *token, const char *what)
{
	int64		began = ls_now_us();
	Verdict		v;

	while (!wait_lsn_is_replayed(token, what, &v))
	{
		long		timeout = RECHECK_MS;

		CHECK_FOR_INTERRUPTS();
		if (!RecoveryInProgress())
		{
			if (token->tli > 0)
			{
				wait_lsn_check_on_primary(token, what);
				return;
			}
			/* the last record may have been replayed since the look above */
			if (GetXLogReplayRecPtr(NULL) >= token->lsn)
				return;
			wait_lsn_report_promotion(what);
		}
		pg_atomic_write_u64(&s->wait_lsn, v.wake_at);
		if (ls_wait_timeout > 0)
		{
			long		waited = (long) ((ls_now_us() - began) / 1000);

			if (waited >= ls_wait_timeout)
				wait_lsn_report_timeout(what, &v);
			timeout = Min(timeout, ls_wait_timeout - waited);
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, ls_event_wait_lsn);
		ResetLatch(MyLatch);
	}
}

/* Returns if the primary that this server is, or has become, has the token's WAL. */
static void
wait_lsn_check_on_primary(const LsToken *token, const char *what)
{
	Verdict		v;

	wait_lsn_judge_on_primary(token, &v);
	if (v.state == GONE)
		wait_lsn_report_gone(what, &v);
	if (v.state == NOT_KNOWN)
		wait_lsn_report_not_known(what, &v);
}

static void
wait_lsn_stop(LsSession *s)
{
	pg_atomic_write_u64(&s->wait_lsn, InvalidXLogRecPtr);
	pg_atomic_fetch_sub_u32(&ls_lsn_wait->waiters, 1);
}

/* ---- What a token means here ---- */

/* What a server in recovery can say of the token. */
static void
wait_lsn_judge_on_standby(const LsToken *token, Verdict *v)
{
	TimeLineID	tli;
	XLogRecPtr	replayed = GetXLogReplayRecPtr(&tli);

	v->state = REACHED;
	v->wake_at = token->lsn;
	if (token->tli > tli)
	{
		/* replayed may be anything: it is a position of another timeline */
		v->state = NOT_KNOWN;
		snprintf(v->detail, sizeof(v->detail), "This server has not come to timeline %u yet.",
				 token->tli);
	}
	else if (token->tli > 0 && token->tli < tli)
		wait_lsn_judge_by_history(token, tli, v);

	if (v->state == REACHED && replayed < token->lsn)
		v->state = NOT_YET;
	if (v->state == NOT_KNOWN)
		v->wake_at = LSN_NEVER;
}

/*
 * A token of a lower timeline than tli: is its WAL in the history of tli? If it
 * is, the state is REACHED.
 */
static void
wait_lsn_judge_by_history(const LsToken *token, TimeLineID tli, Verdict *v)
{
	XLogRecPtr	fork;

	switch (ls_find_fork(tli, token->tli, &fork, v->detail))
	{
		case LS_ANCESTOR:
			v->state = REACHED;
			if (token->lsn <= fork)
				break;
			v->state = GONE;
			snprintf(v->detail, sizeof(v->detail),
					 "This server's timeline %u comes from timeline %u only up to %X/%X.",
					 tli, token->tli, LSN_FORMAT_ARGS(fork));
			break;
		case LS_NOT_ANCESTOR:
			v->state = GONE;
			snprintf(v->detail, sizeof(v->detail),
					 "This server's timeline %u does not come from timeline %u.",
					 tli, token->tli);
			break;
		case LS_ANCESTRY_UNKNOWN:
			v->state = NOT_KNOWN;
			break;
	}
}

/* What a primary can say of the token; its timeline stays what it is. */
static void
wait_lsn_judge_on_primary(const LsToken *token, Verdict *v)
{
	XLogRecPtr	end = GetXLogInsertRecPtr();
	TimeLineID	tli = GetWALInsertionTimeLine();

	v->state = REACHED;
	if (token->tli > tli)
	{
		v->state = GONE;
		snprintf(v->detail, sizeof(v->detail), "This server is a primary of timeline %u.", tli);
	}
	else if (token->tli < tli)
		wait_lsn_judge_by_history(token, tli, v);
	else if (token->lsn > end)
	{
		/* commits that were not flushed are lost in a crash */
		v->state = GONE;
		snprintf(v->detail, sizeof(v->detail), "This server's WAL ends at %X/%X.",
				 LSN_FORMAT_ARGS(end));
	}
}

/* ---- Errors ---- */

static void
wait_lsn_report_gone(const char *what, const Verdict *v)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("%s is not in the history of this server", what),
			 errdetail("%s", v->detail),
			 errhint("The write may be lost: check on the current primary whether it is there.")));
}

static void
wait_lsn_report_not_known(const char *what, const Verdict *v)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot tell whether %s is in the history of this server", what),
			 errdetail("%s", v->detail),
			 errhint("Check on this server, which is a primary, whether the write is there.")));
}

static void
wait_lsn_report_promotion(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("recovery ended before %s was replayed", what),
			 errdetail("This server was promoted; it had replayed up to %X/%X.",
					   LSN_FORMAT_ARGS(GetXLogReplayRecPtr(NULL))),
			 errhint("The changes up to that position may be missing here.")));
}

static void
wait_lsn_report_timeout(const char *what, const Verdict *v)
{
	TimeLineID	tli;
	XLogRecPtr	replayed = GetXLogReplayRecPtr(&tli);

	ereport(ERROR,
			(errcode(ERRCODE_QUERY_CANCELED),
			 errmsg("%s was not replayed within lockstep.wait_timeout (%d ms)",
					what, ls_wait_timeout),
			 errdetail("Replay has reached %X/%X of timeline %u.%s%s", LSN_FORMAT_ARGS(replayed), tli,
					   v->state == NOT_KNOWN ? " " : "", v->state == NOT_KNOWN ? v->detail : ""),
			 errhint("Retry, read from the primary, or raise lockstep.wait_timeout.")));
}

static void
wait_lsn_refuse_primary(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot wait for %s: this server is not in recovery", what),
			 errhint("lockstep.wait_for_lsn is for standbys; a primary shows its own commits at once.")));
}
