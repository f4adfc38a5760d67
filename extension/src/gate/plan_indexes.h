/*
 * plan_indexes.h - locks on the indexes of a plan that waits.
 */
#ifndef LOCKSTEP_PLAN_INDEXES_H
#define LOCKSTEP_PLAN_INDEXES_H

#include "nodes/plannodes.h"

typedef enum LsIndexLocks
{
	LS_INDEXES_LOCKED,
	LS_INDEXES_CHANGED,			/* one is gone, or being changed: the plan is
								 * stale */
	LS_INDEXES_TOO_MANY
} LsIndexLocks;

extern LsIndexLocks ls_lock_plan_indexes(const PlannedStmt *stmt);

#endif							/* LOCKSTEP_PLAN_INDEXES_H */
