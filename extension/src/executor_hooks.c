/*
 * executor_hooks.c - where a query meets priority, gate and wait-for-LSN.
 *
 * Chained hooks in backends and parallel workers. They do nothing on a server
 * that is not in recovery, and nothing with lockstep.enabled=off, except that
 * SET lockstep.wait_for_lsn always waits.
 *
 * A place at the gate is taken before the executor starts and given back when
 * ExecutorRun returns or fails, so that a suspended portal holds none. An
 * ExecutorRun without a place, such as a later fetch, counts while it lasts.
 *
 * ls_nesting tells the query that the client sent from those that run inside
 * it: of functions, of their cursors, and of what the start of the executor
 * evaluates.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "executor/executor.h"
#include "tcop/utility.h"

#include "compat.h"
#include "executor_hooks.h"
#include "gate/gate.h"
#include "priority/priority.h"
#include "state/session.h"
#include "state/settings.h"
#include "wait/wait_lsn.h"

/* Number of executor calls and utility commands around the present point. */
int			ls_nesting = 0;

static ExecutorStart_hook_type executor_prev_start = NULL;
static ExecutorRun_hook_type executor_prev_run = NULL;
static ProcessUtility_hook_type executor_prev_utility = NULL;

static void executor_start(QueryDesc *queryDesc, int eflags);
static void executor_call_start(QueryDesc *queryDesc, int eflags);
static void executor_run(LS_EXECUTOR_RUN_PARAMS);
static void executor_call_run(LS_EXECUTOR_RUN_PARAMS);
static void executor_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
							 ProcessUtilityContext context, ParamListInfo params,
							 QueryEnvironment *queryEnv, DestReceiver *dest,
							 QueryCompletion *qc);
static bool executor_is_bypassed(const Node *command);

void
ls_install_hooks(void)
{
	executor_prev_start = ExecutorStart_hook;
	ExecutorStart_hook = executor_start;
	executor_prev_run = ExecutorRun_hook;
	ExecutorRun_hook = executor_run;
	executor_prev_utility = ProcessUtility_hook;
	ProcessUtility_hook = executor_utility;
}

static void
executor_start(QueryDesc *queryDesc, int eflags)
{
	volatile bool entered = false;

	if (!RecoveryInProgress())
	{
		executor_call_start(queryDesc, eflags);
		return;
	}
	if (ls_enabled)
	{
		ls_priority_note();
		ls_session_count_statement();
		entered = ls_gate_enter(queryDesc);
	}

	ls_nesting++;
	PG_TRY();
	{
		executor_call_start(queryDesc, eflags);
	}
	PG_CATCH();
	{
		ls_nesting--;
		if (entered)
			ls_gate_leave();
		PG_RE_THROW();
	}
	PG_END_TRY();
	ls_nesting--;
}

static void
executor_call_start(QueryDesc *queryDesc, int eflags)
{
	if (executor_prev_start)
		executor_prev_start(queryDesc, eflags);
	else
		standard_ExecutorStart(queryDesc, eflags);
}

static void
executor_run(LS_EXECUTOR_RUN_PARAMS)
{
	bool		mine = ls_gate_is_mine(queryDesc) ||
		(ls_enabled && RecoveryInProgress() && ls_gate_count(queryDesc));

	/* a place taken before promotion is given back after it */
	if (!mine && !RecoveryInProgress())
	{
		executor_call_run(LS_EXECUTOR_RUN_ARGS);
		return;
	}

	ls_nesting++;
	PG_TRY();
	{
		executor_call_run(LS_EXECUTOR_RUN_ARGS);
	}
	PG_FINALLY();
	{
		ls_nesting--;
		if (mine)
			ls_gate_leave();
	}
	PG_END_TRY();
}

static void
executor_call_run(LS_EXECUTOR_RUN_PARAMS)
{
	if (executor_prev_run)
		executor_prev_run(LS_EXECUTOR_RUN_ARGS);
	else
		standard_ExecutorRun(LS_EXECUTOR_RUN_ARGS);
}

static void
executor_utility(PlannedStmt *pstmt, const char *queryString,
				 bool readOnlyTree, ProcessUtilityContext context,
				 ParamListInfo params, QueryEnvironment *queryEnv,
				 DestReceiver *dest, QueryCompletion *qc)
{
	if (IsA(pstmt->utilityStmt, VariableSetStmt))
		ls_wait_for_lsn_statement(pstmt->utilityStmt,
								  context == PROCESS_UTILITY_TOPLEVEL);

	if (executor_is_bypassed(pstmt->utilityStmt) && ls_enabled && RecoveryInProgress())
		ls_priority_note();
	if (ls_my_session != NULL)
		ls_session_count_statement();
	ls_nesting++;
	PG_TRY();
	{
		if (executor_prev_utility)
			executor_prev_utility(pstmt, queryString, readOnlyTree, context,
								  params, queryEnv, dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
									params, queryEnv, dest, qc);
	}
	PG_FINALLY();
	{
		ls_nesting--;
	}
	PG_END_TRY();
}

/* Commands that can be long and need not start a query of their own. */
static bool
executor_is_bypassed(const Node *command)
{
	return IsA(command, DoStmt) || IsA(command, CallStmt) || IsA(command, CopyStmt);
}
