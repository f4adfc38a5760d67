/*
 * plan_indexes.c - locks on the indexes of a plan that waits at the gate.
 *
 * Purpose: a plan stays executable while its session waits. For a plan that was
 * made earlier (the generic plan of a prepared statement) the server has locked
 * the tables and no index; the executor locks each index when it opens it. If
 * replay drops one of them in between, as REINDEX CONCURRENTLY on the primary
 * lets it, the query fails: could not open relation with OID. Without the gate
 * those are microseconds, with it they are as long as the wait. So the session
 * takes the executor's locks before it waits, to the end of its transaction, as
 * the executor does.
 *
 * A plan made in the same transaction has them already.
 *
 * Which indexes: those of the plan's scans, found in the tree of the plan. The
 * lists in PlannedStmt name tables only. Indexes of partitions that the executor
 * would prune when it starts are locked as well; the server has locked those
 * partitions, too.
 *
 * Rules:
 * - It never waits for a lock, and never fails for want of memory for one. If a
 *   lock cannot be had, or the index is gone already, the session does not wait
 *   but executes at once, with a new plan (plan_again.c).
 * - It takes at most max_locks_per_transaction locks. The server has room for that many of
 *   each session; more of them, at once, would leave none for others, and those fail.
 *   A session with a plan that needs more does not wait.
 * - Replay that comes to want one of the locks finds it held by a session at the
 *   gate; the controller lets that session go on, as it does for locks on tables.
 *
 * Runs in backends. State: of this process, while it takes the locks.
 */
#include "postgres.h"

#include "catalog/catalog.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/inval.h"
#include "utils/syscache.h"

#include "compat.h"
#include "gate/plan_indexes.h"

/* Locks taken so far, and what the caller is told if not all can be had. */
static int	plan_indexes_taken = 0;
static LsIndexLocks plan_indexes_why_not = LS_INDEXES_CHANGED;

static bool plan_indexes_lock(const Plan *plan);
static bool plan_indexes_lock_node(const Plan *plan);
static bool plan_indexes_lock_one(Oid index);
static bool plan_indexes_lock_all(const List *plans);

/* If the session may not wait, some may be locked all the same. */
LsIndexLocks
ls_lock_plan_indexes(const PlannedStmt *stmt)
{
	plan_indexes_taken = 0;
	plan_indexes_why_not = LS_INDEXES_CHANGED;
	/* subplans: also those of initplans and common table expressions */
	if (plan_indexes_lock(stmt->planTree) && plan_indexes_lock_all(stmt->subplans))
		return LS_INDEXES_LOCKED;
	return plan_indexes_why_not;
}

static bool
plan_indexes_lock(const Plan *plan)
{
	if (plan == NULL)
		return true;
	check_stack_depth();
	return plan_indexes_lock_node(plan) &&
		plan_indexes_lock(plan->lefttree) && plan_indexes_lock(plan->righttree);
}

/* What this node scans, and its children that are not left or right of it. */
static bool
plan_indexes_lock_node(const Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_IndexScan:
			return plan_indexes_lock_one(((const IndexScan *) plan)->indexid);
		case T_IndexOnlyScan:
			return plan_indexes_lock_one(((const IndexOnlyScan *) plan)->indexid);
		case T_BitmapIndexScan:
			return plan_indexes_lock_one(((const BitmapIndexScan *) plan)->indexid);
		case T_Append:
			return plan_indexes_lock_all(((const Append *) plan)->appendplans);
		case T_MergeAppend:
			return plan_indexes_lock_all(((const MergeAppend *) plan)->mergeplans);
		case T_BitmapAnd:
			return plan_indexes_lock_all(((const BitmapAnd *) plan)->bitmapplans);
		case T_BitmapOr:
			return plan_indexes_lock_all(((const BitmapOr *) plan)->bitmapplans);
		case T_SubqueryScan:
			return plan_indexes_lock(((const SubqueryScan *) plan)->subplan);
		case T_CustomScan:
			return plan_indexes_lock_all(((const CustomScan *) plan)->custom_plans);
		default:
			return true;
	}
}

static bool
plan_indexes_lock_one(Oid index)
{
	LOCKTAG		tag;

	if (plan_indexes_taken >= max_locks_per_xact)
	{
		plan_indexes_why_not = LS_INDEXES_TOO_MANY;
		return false;
	}
	SET_LOCKTAG_RELATION(tag, IsSharedRelation(index) ? InvalidOid : MyDatabaseId, index);
	switch (ls_lock_if_free(&tag, AccessShareLock))
	{
		case LOCKACQUIRE_NOT_AVAIL:
			return false;
		case LOCKACQUIRE_OK:
			plan_indexes_taken++;
			/* with the lock in hand, hear what happened to the index before */
			AcceptInvalidationMessages();
			return SearchSysCacheExists1(RELOID, ObjectIdGetDatum(index));
		case LOCKACQUIRE_ALREADY_HELD:
		case LOCKACQUIRE_ALREADY_CLEAR:
			return true;
	}
	return false;
}

static bool
plan_indexes_lock_all(const List *plans)
{
	ListCell   *cell;

	foreach(cell, plans)
	{
		if (!plan_indexes_lock(lfirst(cell)))
			return false;
	}
	return true;
}
