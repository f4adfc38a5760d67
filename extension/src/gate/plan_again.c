/*
 * plan_again.c - a new plan for a query whose plan became stale as it waited.
 *
 * Purpose: a query that has waited at the gate executes a plan made before with
 * a snapshot taken after. That can give wrong rows. DROP INDEX CONCURRENTLY and
 * REINDEX CONCURRENTLY on the primary first end the upkeep of the old index, in
 * a commit of its own, and drop it later. On the primary they wait in between for
 * the sessions that use the table, on the standby for none. Rows that came after
 * that commit are in the new snapshot and not in the index. What the planner has
 * proved from a unique index can be wrong likewise.
 *
 * So the session notes, as the server's cache of plans does, whether a relation of
 * the plan is changed while it waits. A query holds no lock on anything else, and its
 * plan does not name all that it stands on: a function that the planner has evaluated,
 * a type, a collation, the role for which row security chose policies, the right to use
 * a schema. So any change of these kinds counts, whatever object it is of. The session
 * then makes a new plan from the
 * statement: from the parse tree that a named statement keeps, otherwise from
 * the text, which still stands as the client sent it. The new plan takes
 * the place of the old one in the QueryDesc, before the executor starts.
 *
 * Limits:
 * - Several statements in one string, and a backslash in it: an earlier one may
 *   have changed standard_conforming_strings, and the text would now read
 *   differently. Such a query does not wait at the gate.
 * - A client that was told the columns before it asked for the rows gets an error if
 *   other columns come of the new plan, as with the server's cache of plans.
 *
 * Runs in backends. State: of this process, while it waits.
 */
#include "postgres.h"

#include "commands/prepare.h"
#include "nodes/nodeFuncs.h"
#include "parser/analyze.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/inval.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "executor_hooks.h"
#include "gate/plan_again.h"

/* A statement and its parameters, as far as planning needs them. */
typedef struct Statement
{
	RawStmt    *raw;
	const Oid  *param_types;
	int			nparams;
} Statement;

/* The plan that waits, NULL: none does. stale: it may be wrong by now. */
static const PlannedStmt *plan_again_watched = NULL;
static bool plan_again_stale = false;

static CachedPlanSource *plan_again_named_statement(void);
static void plan_again_register_callbacks(void);
static void plan_again_relation_changed(Datum arg, Oid relid);
static void plan_again_anything_changed(Datum arg, int cacheid, uint32 hashvalue);
static PlannedStmt *plan_again_make(const QueryDesc *queryDesc);
static Statement plan_again_statement_of(const QueryDesc *queryDesc);
static RawStmt *plan_again_parse_text(const QueryDesc *queryDesc);
static bool plan_again_columns_may_be_known(void);
static List *plan_again_column_types(const PlannedStmt *stmt);

bool
ls_can_plan_again(const QueryDesc *queryDesc)
{
	CachedPlanSource *source = plan_again_named_statement();

	if (queryDesc->queryEnv != NULL)
		return false;
	if (source != NULL)
		return source->parserSetup == NULL && source->raw_parse_tree != NULL;
	return queryDesc->plannedstmt->stmt_location <= 0 ||
		strchr(queryDesc->sourceText, '\\') == NULL;
}

void
ls_watch_plan(const PlannedStmt *stmt)
{
	static bool registered = false;

	if (!registered)
	{
		plan_again_register_callbacks();
		registered = true;
	}
	plan_again_stale = false;
	plan_again_watched = stmt;
}

void
ls_stop_watching_plan(void)
{
	plan_again_watched = NULL;
}

/* For what the caller has found out by itself. */
void
ls_plan_is_stale(void)
{
	plan_again_stale = true;
}

bool
ls_must_plan_again(void)
{
	return plan_again_stale;
}

/*
 * Called with all invalidations accepted and no snapshot. What planning evaluates
 * must not wait at the gate, so it counts as nested.
 */
void
ls_plan_again(QueryDesc *queryDesc)
{
	PlannedStmt *stmt;

	ls_nesting++;
	PG_TRY();
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		stmt = plan_again_make(queryDesc);
		PopActiveSnapshot();
	}
	PG_FINALLY();
	{
		ls_nesting--;
	}
	PG_END_TRY();

	/* as the server says it of a prepared statement */
	if (plan_again_columns_may_be_known() &&
		!equal(plan_again_column_types(stmt), plan_again_column_types(queryDesc->plannedstmt)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("columns of the query changed while it waited at the gate"),
				 errhint("Prepare the statement again.")));
	queryDesc->plannedstmt = stmt;
}

/* The prepared statement with a name that the portal was bound from, or NULL. */
static CachedPlanSource *
plan_again_named_statement(void)
{
	PreparedStatement *prepared;

	if (ActivePortal->prepStmtName == NULL || ActivePortal->prepStmtName[0] == '\0')
		return NULL;
	prepared = FetchPreparedStatement(ActivePortal->prepStmtName, false);
	return prepared == NULL ? NULL : prepared->plansource;
}

static void
plan_again_register_callbacks(void)
{
	static const int kinds[] = {
		PROCOID, TYPEOID, OPEROID, CLAOID, OPFAMILYOID, COLLOID, TSCONFIGOID, TSDICTOID,
		AUTHOID, AUTHMEMROLEMEM, NAMESPACEOID
	};

	CacheRegisterRelcacheCallback(plan_again_relation_changed, (Datum) 0);
	for (int i = 0; i < lengthof(kinds); i++)
		CacheRegisterSyscacheCallback(kinds[i], plan_again_anything_changed, (Datum) 0);
}

/* relid: InvalidOid means any relation. */
static void
plan_again_relation_changed(Datum arg, Oid relid)
{
	if (plan_again_watched != NULL &&
		(!OidIsValid(relid) || list_member_oid(plan_again_watched->relationOids, relid)))
		plan_again_stale = true;
}

static void
plan_again_anything_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	if (plan_again_watched != NULL)
		plan_again_stale = true;
}

static PlannedStmt *
plan_again_make(const QueryDesc *queryDesc)
{
	Statement	statement = plan_again_statement_of(queryDesc);
	List	   *plans;

	plans = pg_plan_queries(pg_analyze_and_rewrite_fixedparams(statement.raw, queryDesc->sourceText,
															   statement.param_types,
															   statement.nparams, NULL),
							queryDesc->sourceText, CURSOR_OPT_PARALLEL_OK, queryDesc->params);
	if (list_length(plans) != 1 || linitial_node(PlannedStmt, plans)->commandType != CMD_SELECT)
		elog(ERROR, "a query that was planned again is no longer one query");
	return linitial_node(PlannedStmt, plans);
}

static Statement
plan_again_statement_of(const QueryDesc *queryDesc)
{
	CachedPlanSource *source = plan_again_named_statement();
	ParamListInfo params = queryDesc->params;
	Statement	statement = {0};
	Oid		   *types;

	if (source != NULL)
	{
		statement.raw = copyObject(source->raw_parse_tree);
		statement.param_types = source->param_types;
		statement.nparams = source->num_params;
		return statement;
	}
	statement.raw = plan_again_parse_text(queryDesc);
	if (params != NULL && params->numParams > 0)
	{
		types = palloc(sizeof(Oid) * params->numParams);
		for (int i = 0; i < params->numParams; i++)
			types[i] = params->params[i].ptype;
		statement.param_types = types;
		statement.nparams = params->numParams;
	}
	return statement;
}

static RawStmt *
plan_again_parse_text(const QueryDesc *queryDesc)
{
	List	   *all = pg_parse_query(queryDesc->sourceText);
	ListCell   *cell;

	foreach(cell, all)
	{
		RawStmt    *raw = lfirst_node(RawStmt, cell);

		if (list_length(all) == 1 ||
			raw->stmt_location == queryDesc->plannedstmt->stmt_location)
			return raw;
	}
	elog(ERROR, "the statement to plan again is not in its string");
	return NULL;				/* not reached */
}

/*
 * May the client know the columns already? It is told those of a simple query, whose
 * plan is in no cache, once the executor has started.
 */
static bool
plan_again_columns_may_be_known(void)
{
	return ActivePortal->cplan != NULL;
}

/* Types of the columns that the client gets. */
static List *
plan_again_column_types(const PlannedStmt *stmt)
{
	List	   *types = NIL;
	ListCell   *cell;

	foreach(cell, stmt->planTree->targetlist)
	{
		TargetEntry *entry = lfirst_node(TargetEntry, cell);

		if (!entry->resjunk)
			types = lappend_oid(types, exprType((Node *) entry->expr));
	}
	return types;
}
