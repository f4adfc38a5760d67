/*
 * plan_indexes.h - locks on the indexes of a plan that waits.
 */
#ifndef LOCKSTEP_PLAN_INDEXES_H
#define LOCKSTEP_PLAN_INDEXES_H

#include "nodes/plannodes.h"

extern bool ls_lock_plan_indexes(const PlannedStmt *stmt);

#endif							/* LOCKSTEP_PLAN_INDEXES_H */
