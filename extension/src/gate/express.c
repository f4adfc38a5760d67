/*
 * express.c - express places at the gate, for short queries of users who have nothing inside.
 *
 * line_rule.c decides which queries these are and how many such places there are, beside the capacity. Whether a
 * query is short is seen as it executes: the controller lets one that is not count with the others.
 *
 * Runs in backends, but for what its comment gives to the controller. Shared state: LsGateShared.express, and
 * LsSession.gate of sessions with an express place. Promotion and crash: as gate.c.
 */
#include "postgres.h"

#include "compat.h"
#include "gate/express.h"
#include "gate/gate.h"
#include "gate/gate_lines.h"
#include "state/clock.h"
#include "state/settings.h"

/* CPU time of this process when its query got an express place; -1: it has none. */
static int64 express_cpu_us = -1;
static bool express_was_misjudged = false;	/* its last query with such a place was long */

/* The line for a query whose session has executed for used_us in its last turn. */
LsLine
ls_line_for(const QueryDesc *queryDesc, int64 used_us)
{
	LsLineInput in = {
		.used_us = used_us,
		.turn_us = (int64) ls_read_throttle_turn * 1000,
		.cost = queryDesc->plannedstmt->planTree->total_cost,
		.was_misjudged = express_was_misjudged,
		.user_is_inside = ls_user_is_inside(LS_MY_PROCNO)
	};

	return ls_line_of(&in);
}

/* Takes an express place; false if none is free. */
bool
ls_express_take(void)
{
	uint32		express = pg_atomic_read_u32(&ls_gate->express);

	while (ls_express_is_open(express, pg_atomic_read_u32(&ls_gate->running),
							  pg_atomic_read_u32(&ls_gate->capacity),
							  pg_atomic_read_u32(&ls_gate->limit)))
	{
		if (pg_atomic_compare_exchange_u32(&ls_gate->express, &express, express + 1))
			return true;
	}
	return false;
}

/* This session's query has an express place and begins to execute. */
void
ls_express_begin(void)
{
	express_cpu_us = ls_my_cpu_us();
}

/*
 * A query of this session has executed for used_us. Of one that had an express place the CPU time counts, since a
 * short one may have waited for the CPU.
 */
void
ls_express_judge(int64 used_us)
{
	if (used_us <= LS_SHORT_US)
		express_was_misjudged = false;
	else if (express_cpu_us >= 0)
		express_was_misjudged = ls_my_cpu_us() - express_cpu_us > LS_SHORT_US;
	express_cpu_us = -1;
}

/* Controller: a query with an express place that is not short has one of the others from now on. */
void
ls_express_count_as_long(LsSession *s, int64 now)
{
	uint32		express = LS_GATE_EXPRESS;

	if (pg_atomic_read_u32(&s->gate) != LS_GATE_EXPRESS)
		return;
	pg_read_barrier();			/* as in gate_go_inside() of gate.c */
	if (now - (int64) pg_atomic_read_u64(&s->inside_since) <= LS_SHORT_US)
		return;
	/* before the state, by which the session knows what to give back */
	pg_atomic_fetch_add_u32(&ls_gate->running, 1);
	if (pg_atomic_compare_exchange_u32(&s->gate, &express, LS_GATE_INSIDE))
		pg_atomic_fetch_sub_u32(&ls_gate->express, 1);
	else
		pg_atomic_fetch_sub_u32(&ls_gate->running, 1);
}
