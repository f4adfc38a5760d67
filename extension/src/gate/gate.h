/*
 * gate.h - the admission gate in front of the executor.
 */
#ifndef LOCKSTEP_GATE_H
#define LOCKSTEP_GATE_H

#include "executor/execdesc.h"
#include "gate/gate_queue.h"
#include "gate/line_rule.h"
#include "port/atomics.h"
#include "state/session.h"
#include "storage/lock.h"

/* What a session holds at the gate (LsSession.gate). */
typedef enum LsGateState
{
	LS_GATE_OUTSIDE = 0,		/* nothing held; set by the owner */
	LS_GATE_QUEUED,				/* waiting; set by the owner */
	LS_GATE_GRANTED,			/* has a place and is being woken; set, from
								 * QUEUED, by the process that grants */
	LS_GATE_EXPRESS_GRANTED,	/* the same with an express place */
	LS_GATE_INSIDE,				/* executing, with a place; set by the owner */
	LS_GATE_EXPRESS,			/* executing with an express place; set by the
								 * owner, and to INSIDE by the controller if
								 * the query turns out to be long */
	LS_GATE_UNASKED,			/* executing without a place; set by the owner */
	LS_GATE_KEPT				/* between two queries of a turn, the place is
								 * kept; set by the owner. Taken away by the
								 * controller when the turn is over */
} LsGateState;

typedef struct LsGateShared
{
	pg_atomic_uint32 limit;		/* what the controller aims at; controller */
	pg_atomic_uint32 phase;		/* LsLimitPhase; controller */
	pg_atomic_uint32 beside_others; /* part of the limit, for other programs that
									 * want the cores; controller */
	pg_atomic_uint32 steady;	/* places that do not depend on single
								 * sessions: the least that an end of an
								 * exception leaves; controller */
	pg_atomic_uint32 capacity;	/* places to give: what queries without a
								 * place leave of the limit, and exceptions;
								 * controller, and the process that ends an
								 * exception */
	pg_atomic_uint32 running;	/* places given; counted up by the process
								 * that gives one, down by the one that takes
								 * it back */
	pg_atomic_uint32 express;	/* express places given, counted likewise */
	pg_atomic_uint32 unasked;	/* queries that execute without having been
								 * given a place, because they may not wait;
								 * the sessions that execute them */
	pg_atomic_uint32 waiting;	/* sessions in QUEUED; counted up by the
								 * session, down by itself or by the process
								 * that grants */
	pg_atomic_uint32 lights_since;	/* light sessions let in since the last
									 * heavy one; the processes that grant */
	LsQueue    *queues[LS_LINES];	/* constant */

	/* statistics; sessions that wait, and the session that resets them */
	pg_atomic_uint64 waits;
	pg_atomic_uint64 wait_us;
	pg_atomic_uint64 would_wait;
	pg_atomic_uint64 timeouts;
	pg_atomic_uint64 logged_at; /* ls_now_us() of log mode's last message; the
								 * session that wrote it */
	pg_atomic_uint64 reset_at;	/* TimestampTz; resetting session */
} LsGateShared;

/* A capacity that no number of sessions reaches: every query passes. */
#define LS_GATE_OPEN (PG_INT32_MAX / 2)

extern LsGateShared *ls_gate;

extern Size ls_gate_queues_size(void);
extern void ls_gate_init_shared(char *queues);
extern bool ls_gate_enter(QueryDesc *queryDesc);
extern bool ls_gate_count(const QueryDesc *queryDesc);
extern void ls_gate_leave(void);
extern void ls_gate_end_exception(LsSession *s);
extern bool ls_gate_is_mine(const QueryDesc *queryDesc);
extern void ls_gate_drain(void);
extern uint32 ls_gate_executing(void);
extern void ls_gate_register_callbacks(void);
extern void ls_gate_forget(void);
extern void ls_gate_end_turns(int64 now);

#endif							/* LOCKSTEP_GATE_H */
