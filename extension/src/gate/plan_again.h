/*
 * plan_again.h - a new plan for a query whose plan became stale as it waited.
 */
#ifndef LOCKSTEP_PLAN_AGAIN_H
#define LOCKSTEP_PLAN_AGAIN_H

#include "executor/execdesc.h"

extern bool ls_can_plan_again(const QueryDesc *queryDesc);
extern void ls_watch_plan(const PlannedStmt *stmt);
extern void ls_stop_watching_plan(void);
extern void ls_plan_is_stale(void);
extern bool ls_must_plan_again(void);
extern void ls_plan_again(QueryDesc *queryDesc);

#endif							/* LOCKSTEP_PLAN_AGAIN_H */
