/*
 * wait_lsn.c - SET lockstep.wait_for_lsn on a standby: read your writes.
 *
 * Purpose: the statement returns once replay has reached the position. It runs
 * in the utility hook, before the setting itself is assigned; an assign hook
 * would also be called by rollback and at connection start. Only SET as a
 * statement of its own waits; RESET, set_config(), ALTER ROLE and options at
 * connection start only assign.
 *
 * The waiter holds no snapshot and no lock that replay could want, or it could
 * wait for itself. The controller looks at the replay position each
 * millisecond while a session waits: the position moves after a record's redo
 * returned, and after the very last record nothing else happens. Each waiter
 * also looks by itself, every RECHECK_MS, in case there is no controller.
 */
#include "postgres.h"

#include <ctype.h>

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
#include "wait/wait_lsn.h"

/* How often a waiter looks by itself, in ms. */
#define RECHECK_MS 100
/* Eight hexadecimal digits fit 32 bits. */
#define LSN_HALF_DIGITS 8

LsLsnWaitShared *ls_lsn_wait = NULL;

void
ls_wait_lsn_init_shared(void)
{
	pg_atomic_init_u32(&ls_lsn_wait->waiters, 0);
}

static bool
parse_half(const char **at, uint32 *half)
{
	int			digits = 0;

	*half = 0;
	while (isxdigit((unsigned char) **at) && digits < LSN_HALF_DIGITS)
	{
		char		c = pg_tolower((unsigned char) **at);

		*half = *half * 16 + (c >= 'a' ? c - 'a' + 10 : c - '0');
		(*at)++;
		digits++;
	}
	return digits > 0;
}

/* Reads a position in the form of type pg_lsn; false leaves *lsn undefined. */
bool
ls_parse_lsn(const char *text, XLogRecPtr *lsn)
{
	uint32		high;
	uint32		low;

	if (!parse_half(&text, &high) || *text++ != '/' ||
		!parse_half(&text, &low) || *text != '\0')
		return false;
	*lsn = ((uint64) high << 32) | low;
	return true;
}

static void
refuse_unfit_context(bool top_level)
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

static void
refuse_primary(XLogRecPtr target)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot wait for WAL position %X/%X: this server is not in recovery",
					LSN_FORMAT_ARGS(target)),
			 errhint("lockstep.wait_for_lsn is for standbys; a primary shows its own commits at once.")));
}

static void
report_timeout(XLogRecPtr target)
{
	ereport(ERROR,
			(errcode(ERRCODE_QUERY_CANCELED),
			 errmsg("WAL position %X/%X was not replayed within lockstep.wait_timeout (%d ms)",
					LSN_FORMAT_ARGS(target), ls_wait_timeout),
			 errdetail("Replay has reached %X/%X.",
					   LSN_FORMAT_ARGS(GetXLogReplayRecPtr(NULL))),
			 errhint("Retry, read from the primary, or raise lockstep.wait_timeout.")));
}

static void
report_promotion(XLogRecPtr target)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("recovery ended before WAL position %X/%X was replayed",
					LSN_FORMAT_ARGS(target)),
			 errdetail("This server was promoted; it had replayed up to %X/%X.",
					   LSN_FORMAT_ARGS(GetXLogReplayRecPtr(NULL))),
			 errhint("The changes up to that position may be missing here.")));
}

static void
wait_until_replayed(XLogRecPtr target)
{
	int64		began = ls_now_us();

	while (GetXLogReplayRecPtr(NULL) < target)
	{
		long		timeout = RECHECK_MS;

		CHECK_FOR_INTERRUPTS();
		if (!RecoveryInProgress())
		{
			/* the last record may have been replayed since the look above */
			if (GetXLogReplayRecPtr(NULL) >= target)
				return;
			report_promotion(target);
		}
		if (ls_wait_timeout > 0)
		{
			long		waited = (long) ((ls_now_us() - began) / 1000);

			if (waited >= ls_wait_timeout)
				report_timeout(target);
			timeout = Min(timeout, ls_wait_timeout - waited);
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, ls_event_wait_lsn);
		ResetLatch(MyLatch);
	}
}

static void
stop_waiting(LsSession *s)
{
	pg_atomic_write_u64(&s->wait_lsn, InvalidXLogRecPtr);
	pg_atomic_fetch_sub_u32(&ls_lsn_wait->waiters, 1);
}

static void
wait_registered(XLogRecPtr target)
{
	LsSession  *s = ls_session_attach();

	if (s == NULL)
		return;
	ls_resolve_wait_events();
	pg_atomic_write_u64(&s->wait_lsn, target);
	pg_atomic_fetch_add_u32(&ls_lsn_wait->waiters, 1);
	ls_nudge_controller();

	PG_TRY();
	{
		wait_until_replayed(target);
	}
	PG_FINALLY();
	{
		stop_waiting(s);
	}
	PG_END_TRY();
}

/* The position that the statement names; false if it names none. */
static bool
statement_target(VariableSetStmt *stmt, XLogRecPtr *target)
{
	A_Const    *value;

	if (stmt->kind != VAR_SET_VALUE || stmt->name == NULL ||
		pg_strcasecmp(stmt->name, "lockstep.wait_for_lsn") != 0 ||
		list_length(stmt->args) != 1)
		return false;
	value = linitial(stmt->args);
	if (!IsA(value, A_Const) || value->isnull || nodeTag(&value->val) != T_String)
		return false;
	return ls_parse_lsn(strVal(&value->val), target);
}

/*
 * Called for every SET. A value that is not a position is left to the
 * setting's own check, which raises the error.
 */
void
ls_wait_for_lsn_statement(Node *stmt, bool top_level)
{
	XLogRecPtr	target;

	if (ls_shared == NULL || !statement_target((VariableSetStmt *) stmt, &target))
		return;
	refuse_unfit_context(top_level);
	if (!RecoveryInProgress())
		refuse_primary(target);
	if (GetXLogReplayRecPtr(NULL) < target)
		wait_registered(target);
}

/* Controller: wakes sessions whose position has been replayed. */
void
ls_wait_lsn_step(void)
{
	XLogRecPtr	replayed;
	bool		ended;

	if (pg_atomic_read_u32(&ls_lsn_wait->waiters) == 0)
		return;
	ended = !RecoveryInProgress();
	replayed = GetXLogReplayRecPtr(NULL);
	for (int i = 0; i < ls_nsessions; i++)
	{
		XLogRecPtr	target = pg_atomic_read_u64(&ls_sessions[i].wait_lsn);

		if (target != InvalidXLogRecPtr && (ended || target <= replayed))
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}
