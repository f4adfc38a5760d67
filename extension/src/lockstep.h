/*
 * lockstep.h - what the files of the extension share.
 *
 * One shared structure (LsShared) and one slot for each process that can run
 * queries (LsSession). The standby's controller, a background worker, reads
 * all of it every few milliseconds and is the only process that changes
 * scheduling priorities and limits; sessions only say what they are and ask.
 *
 * Locks: text_lock guards the few texts and is taken with nothing else held;
 * everything else is atomic. No lock of ours is on the way of a query, since
 * its holder may be demoted, and the startup process takes none at all.
 */
#ifndef LOCKSTEP_H
#define LOCKSTEP_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "executor/executor.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/guc.h"

#include <time.h>

/*
 * Microseconds of a clock that nobody sets: for every interval. TimestampTz is
 * only for what users see.
 */
static inline int64
ls_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64) t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- settings.c ---- */

typedef enum LsThrottleMode
{
	LS_THROTTLE_OFF,
	LS_THROTTLE_LOG,
	LS_THROTTLE_ON
} LsThrottleMode;

extern bool ls_enabled;
extern bool ls_replay_priority;
extern bool ls_priority_irreversible;
extern int	ls_read_throttle;
extern int	ls_read_throttle_lag;
extern int	ls_read_throttle_min;
extern int	ls_read_throttle_max;
extern int	ls_read_throttle_timeout;
extern int	ls_read_throttle_long_query;
extern int	ls_read_throttle_turn;
extern int	ls_wait_timeout;
extern int	ls_wal_segments_ahead;
extern char *ls_wait_for_lsn;
extern char *ls_proc_root;

extern void ls_define_settings(void);

/* ---- shared_state.c ---- */

/* Text in shared memory: writers and readers hold text_lock. */
#define LS_TEXT_SIZE 256

#define LS_NO_PROCNO (-1)

/* What a session holds at the gate (LsSession.gate). */
typedef enum LsGateState
{
	LS_GATE_OUTSIDE = 0,		/* nothing held; set by the owner */
	LS_GATE_QUEUED,				/* waiting; set by the owner */
	LS_GATE_GRANTED,			/* has a place and is being woken; from QUEUED
								 * by who grants */
	LS_GATE_INSIDE,				/* executing; set by the owner */
	LS_GATE_KEPT				/* between two queries of a turn, the place is
								 * kept; by the owner. Taken away by the
								 * controller when the turn is over */
} LsGateState;

/* What the controller did to a process (LsSession.sched). */
typedef enum LsSchedState
{
	LS_SCHED_NORMAL = 0,
	LS_SCHED_AUTOGROUP,			/* its scheduling group has nice 19 */
	LS_SCHED_IDLE,				/* it runs under SCHED_IDLE */
	LS_SCHED_REFUSED,			/* the kernel said no; not tried again */
	LS_SCHED_STUCK				/* demoted, and the kernel refuses the way back */
} LsSchedState;

/*
 * One for each regular process, indexed like ProcGlobal->allProcs. Fields are
 * written by the owner unless the comment names somebody else.
 */
typedef struct LsSession
{
	pg_atomic_uint32 pid;		/* 0: slot not in use */
	pg_atomic_uint32 wants_low; /* 1: this session's reads may be demoted */
	pg_atomic_uint32 heavy;		/* 1: its statements are long; controller, or
								 * a parallel worker of itself */
	pg_atomic_uint32 statements;	/* top-level statements begun so far */
	pg_atomic_uint32 sched;		/* LsSchedState; controller, reset by owner */
	pg_atomic_uint32 gate;		/* LsGateState */
	pg_atomic_uint32 in_ring;	/* 1: the queue has an entry; set by the
								 * owner, cleared by who takes it */
	pg_atomic_uint32 excepted;	/* 1: the capacity has one place more because
								 * this session does not count; set by the
								 * controller, cleared by who undoes that */
	pg_atomic_uint64 inside_since;	/* ls_now_us() when the place was given; by
									 * who gave it */
	pg_atomic_uint64 wait_lsn;	/* LSN waited for, 0: none */
} LsSession;

/* Why and how the controller can or cannot demote. */
typedef enum LsPriorityMethod
{
	LS_METHOD_NONE,
	LS_METHOD_AUTOGROUP,
	LS_METHOD_SCHED_IDLE
} LsPriorityMethod;

/* The gate's queue; see gate_queue.c. */
typedef struct LsQueueCell
{
	pg_atomic_uint32 turn;
	int			procno;			/* who holds the turn */
} LsQueueCell;

typedef struct LsQueue
{
	uint32		mask;			/* number of cells - 1; constant */
	pg_atomic_uint32 head;		/* consumers */
	pg_atomic_uint32 tail;		/* producers */
	LsQueueCell cells[FLEXIBLE_ARRAY_MEMBER];
} LsQueue;

typedef struct LsShared
{
	LWLock	   *text_lock;

	/* written once by the startup process */
	pg_atomic_uint32 startup_procno;	/* PG_UINT32_MAX: not seen yet */

	/* written by the controller as it starts and stops */
	pg_atomic_uint32 controller_procno; /* PG_UINT32_MAX: not running */
	pg_atomic_uint64 controller_beat;	/* ls_now_us() of the last round */

	/* replay lag; controller */
	pg_atomic_uint64 lag_us;
	pg_atomic_uint64 conflicts;
	pg_atomic_uint64 conflict_event;	/* wait event, 0: none since reset */
	pg_atomic_uint64 conflict_at;	/* TimestampTz of its start */
	pg_atomic_uint64 conflict_us;
	pg_atomic_uint64 replay_reset_at;	/* resetting session */

	/* priority; controller */
	pg_atomic_uint32 method;	/* LsPriorityMethod */
	char		method_detail[LS_TEXT_SIZE];
	pg_atomic_uint64 demotions;
	pg_atomic_uint64 restores;
	pg_atomic_uint64 refusals;
	char		last_refusal[LS_TEXT_SIZE];
	pg_atomic_uint64 priority_reset_at; /* resetting session */

	/* gate; who writes is said in gate.c */
	pg_atomic_uint32 gate_limit;	/* what the controller aims at */
	pg_atomic_uint32 gate_capacity; /* limit and what it lets in besides */
	pg_atomic_uint32 gate_running;
	pg_atomic_uint32 gate_waiting;
	LsQueue    *gate_queue;
	pg_atomic_uint64 gate_waits;
	pg_atomic_uint64 gate_wait_us;
	pg_atomic_uint64 gate_would_wait;
	pg_atomic_uint64 gate_timeouts;
	pg_atomic_uint64 gate_logged_at;	/* ls_now_us(), last message of log mode */
	pg_atomic_uint64 throttle_reset_at; /* resetting session */

	/* wait for an LSN; sessions */
	pg_atomic_uint32 lsn_waiters;

	int			nsessions;
	LsSession	sessions[FLEXIBLE_ARRAY_MEMBER];
} LsShared;

extern LsShared *ls_shared;		/* NULL: not preloaded */
extern uint32 ls_event_throttle;
extern uint32 ls_event_wait_lsn;

extern void ls_request_shared_memory(void);
extern void ls_attach_shared_memory(void);
extern void ls_resolve_wait_events(void);
extern void ls_set_text(char *dst, const char *src);
extern void ls_get_text(char *dst, const char *src);
extern void ls_nudge_controller(void);
extern bool ls_controller_alive(void);

/* ---- session.c ---- */

extern LsSession *ls_my_session;

extern LsSession *ls_session_attach(void);
extern bool ls_session_is_exempt(void);
extern void ls_session_count_statement(void);

/* ---- executor_hooks.c ---- */

extern int	ls_nesting;

extern void ls_install_hooks(void);

/* ---- gate.c ---- */

/* A capacity that no number of sessions reaches: everybody passes. */
#define LS_GATE_OPEN (PG_INT32_MAX / 2)

extern bool ls_gate_enter(QueryDesc *queryDesc);
extern void ls_gate_leave(void);
extern bool ls_gate_is_mine(const QueryDesc *queryDesc);
extern void ls_gate_drain(void);
extern void ls_gate_register_callbacks(void);
extern void ls_gate_forget(void);
extern void ls_gate_end_turns(int64 now);

/* ---- gate_queue.c ---- */

extern Size ls_queue_size(int nsessions);
extern void ls_queue_init(LsQueue *q, int nsessions);
extern bool ls_queue_push(LsQueue *q, int procno);
extern int	ls_queue_pop(LsQueue *q);
extern bool ls_queue_is_empty(LsQueue *q);

/* ---- held_locks.c ---- */

extern bool ls_others_wait_for_us(void);
extern bool ls_holds_shared_locks(void);
extern bool ls_holds_lock_replay_may_want(void);

/* ---- priority.c ---- */

extern void ls_priority_note(void);
extern void ls_priority_init(void);
extern void ls_priority_step(int64 now, bool in_recovery);
extern int	ls_priority_left(void);
extern void ls_priority_report_stuck(void);
extern void ls_priority_count(int *demoted, int *pending, int *stuck);

/* ---- weight.c ---- */

extern void ls_weigh_sessions(int64 now);

/* ---- sched_linux.c, cgroup_linux.c ---- */

typedef enum LsKernelAnswer
{
	LS_KERNEL_DONE,
	LS_KERNEL_LATER,			/* rate limit: try again in 100 ms */
	LS_KERNEL_GONE,				/* no such process any more */
	LS_KERNEL_REFUSED			/* errno says why */
} LsKernelAnswer;

/* Autogroup nice value of a demoted session and of a normal one. */
#define LS_NICE_LOW 19
#define LS_NICE_NORMAL 0

extern LsPriorityMethod ls_sched_detect(bool allow_irreversible, char *detail);
extern LsKernelAnswer ls_sched_autogroup(int pid, int nice,
										 const pg_atomic_uint32 *still_pid);
extern LsKernelAnswer ls_sched_policy(int pid, bool idle,
									  const pg_atomic_uint32 *still_pid);
extern int	ls_sched_cores(void);
extern int64 ls_sched_cpu_ns(int pid);
extern bool ls_cgroup_owns_cpu(char *group);
extern int	ls_cgroup_cpu_quota(void);
extern int	ls_read_small_file(const char *path, char *buf, int size);

/* ---- controller.c ---- */

extern PGDLLEXPORT void lockstep_controller_main(Datum arg);

/* ---- wal_segments.c ---- */

extern PGDLLEXPORT void lockstep_wal_segments_main(Datum arg);

/* ---- replay_lag.c ---- */

extern void ls_watch_startup(void);
extern void ls_lag_step(int64 now);
extern uint32 ls_startup_wait_event(void);
extern int	ls_startup_pid(void);
extern bool ls_replay_in_conflict(void);

/* ---- wait_lsn.c ---- */

extern bool ls_parse_lsn(const char *text, XLogRecPtr *lsn);
extern void ls_wait_for_lsn_statement(Node *stmt, bool top_level);
extern void ls_wait_lsn_step(void);

#endif							/* LOCKSTEP_H */
