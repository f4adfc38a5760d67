/*
 * priority.h - which sessions run at low priority.
 */
#ifndef LOCKSTEP_PRIORITY_H
#define LOCKSTEP_PRIORITY_H

#include "port/atomics.h"
#include "state/shared_state.h"

/* What the controller did to a process (LsSession.sched). */
typedef enum LsSchedState
{
	LS_SCHED_NORMAL = 0,
	LS_SCHED_AUTOGROUP,			/* its scheduling group has nice 19 */
	LS_SCHED_IDLE,				/* it runs under SCHED_IDLE */
	LS_SCHED_REFUSED,			/* the kernel said no; not tried again */
	LS_SCHED_STUCK				/* demoted, and the kernel refuses the way
								 * back */
} LsSchedState;

/*
 * Written by the controller; the session that resets the statistics sets the
 * counters to zero, empties last_refusal and writes reset_at.
 */
typedef struct LsPriorityShared
{
	pg_atomic_uint32 method;	/* LsPriorityMethod */
	char		method_detail[LS_TEXT_SIZE];	/* lock of texts */
	pg_atomic_uint32 step;		/* LsDemotionStep */
	pg_atomic_uint64 demotions;
	pg_atomic_uint64 restores;
	pg_atomic_uint64 refusals;
	char		last_refusal[LS_TEXT_SIZE]; /* lock of texts */
	pg_atomic_uint32 short_slices;	/* processes that have the short one */
	char		slice_detail[LS_TEXT_SIZE]; /* lock of texts */
	/* cpu_account.c: times of sessions with long statements, but the last */
	pg_atomic_uint64 wait_us;	/* time in which they were ready to run, without a core */
	pg_atomic_uint64 demoted_wait_us;	/* the part of wait_us while demoted */
	pg_atomic_uint64 lost_to_replay_us; /* the part of wait_us while replay had the core */
	pg_atomic_uint64 lost_to_others_us; /* the part of wait_us while other programs had the core */
	pg_atomic_uint64 replay_wait_us;	/* time for which replay was ready to run, without a core */
	pg_atomic_uint64 reset_at;	/* TimestampTz */
} LsPriorityShared;

extern LsPriorityShared *ls_priority;

struct LsSession;

extern void ls_priority_init_shared(void);
extern void ls_priority_note(void);
extern void ls_priority_init(void);
extern void ls_priority_step(int64 now, bool in_recovery);
extern void ls_priority_refused(int pid, const char *what);
extern int	ls_priority_left(void);
extern void ls_priority_report_stuck(void);
extern bool ls_session_is_demoted(struct LsSession *s);
extern void ls_priority_count(int *demoted, int *pending, int *stuck);

#endif							/* LOCKSTEP_PRIORITY_H */
