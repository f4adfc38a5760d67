/*
 * shared_state.c - the extension's shared memory.
 *
 * Made by the postmaster, inherited by fork, made anew after a crash. One
 * allocation holds the parts of all subsystems; each subsystem's header says
 * what is in its part and which process writes it.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "compat.h"
#include "controller.h"
#include "gate/gate.h"
#include "priority/priority.h"
#include "replay/look_ahead.h"
#include "replay/queue.h"
#include "replay/replay_lag.h"
#include "replay/start_limits.h"
#include "replay/startup_process.h"
#include "state/session.h"
#include "state/shared_state.h"
#include "wait/wait_lsn.h"

/* The gate's queues follow the sessions. */
struct LsShared
{
	LWLock	   *text_lock;		/* constant */
	LsStartupShared startup;
	LsControllerShared controller;
	LsLagShared lag;
	LsLookAheadShared look_ahead;
	LsQueueShared queue;
	LsPriorityShared priority;
	LsGateShared gate;
	LsLsnWaitShared lsn_wait;
	LsSession	sessions[FLEXIBLE_ARRAY_MEMBER];
};

static const char shared_state_tranche[] = "lockstep";
static const char shared_state_event_throttle[] = "LockstepReadThrottle";
static const char shared_state_event_wait_lsn[] = "LockstepWaitForLsn";
static const char shared_state_event_replay_helper[] = "LockstepReplayHelper";
static const char shared_state_event_replay_queue[] = "LockstepReplayQueue";
static const char shared_state_event_replay_record[] = "LockstepReplayRecord";

LsShared   *ls_shared = NULL;
uint32		ls_event_throttle = 0;
uint32		ls_event_wait_lsn = 0;
uint32		ls_event_replay_helper = 0;
uint32		ls_event_replay_queue = 0;
uint32		ls_event_replay_record = 0;

static Size shared_state_size(void);
static Size shared_state_small_size(void);
static Size shared_state_sessions_size(void);
static void shared_state_point_at_parts(LsShared *s);
static void shared_state_init_parts(LsShared *s);

void
ls_request_shared_memory(void)
{
	RequestAddinShmemSpace(shared_state_size());
	RequestNamedLWLockTranche(shared_state_tranche, 1);
	if (LS_WAIT_EVENT_LWLOCKS > 0)
	{
		RequestNamedLWLockTranche(shared_state_event_throttle, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(shared_state_event_wait_lsn, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(shared_state_event_replay_helper, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(shared_state_event_replay_queue, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(shared_state_event_replay_record, LS_WAIT_EVENT_LWLOCKS);
	}
}

void
ls_attach_shared_memory(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	ls_shared = ShmemInitStruct("lockstep", shared_state_size(), &found);
	shared_state_point_at_parts(ls_shared);
	if (!found)
		shared_state_init_parts(ls_shared);
	LWLockRelease(AddinShmemInitLock);
}

/* Once in each process that waits: since 17 the look-up takes a lock. */
void
ls_resolve_wait_events(void)
{
	if (ls_event_throttle != 0)
		return;
	ls_event_wait_lsn = ls_named_wait_event(shared_state_event_wait_lsn);
	ls_event_replay_helper = ls_named_wait_event(shared_state_event_replay_helper);
	ls_event_replay_queue = ls_named_wait_event(shared_state_event_replay_queue);
	ls_event_replay_record = ls_named_wait_event(shared_state_event_replay_record);
	ls_event_throttle = ls_named_wait_event(shared_state_event_throttle);
}

void
ls_set_text(char *dst, const char *src)
{
	LWLockAcquire(ls_shared->text_lock, LW_EXCLUSIVE);
	strlcpy(dst, src, LS_TEXT_SIZE);
	LWLockRelease(ls_shared->text_lock);
}

void
ls_get_text(char *dst, const char *src)
{
	LWLockAcquire(ls_shared->text_lock, LW_SHARED);
	strlcpy(dst, src, LS_TEXT_SIZE);
	LWLockRelease(ls_shared->text_lock);
}

/* The decode buffer comes last. */
static Size
shared_state_size(void)
{
	return add_size(shared_state_small_size(), ls_decode_buffer_size());
}

static Size
shared_state_small_size(void)
{
	return CACHELINEALIGN(add_size(shared_state_sessions_size(), ls_gate_queues_size()));
}

static Size
shared_state_sessions_size(void)
{
	return MAXALIGN(add_size(offsetof(LsShared, sessions),
							 mul_size(MaxBackends, sizeof(LsSession))));
}

/* In the postmaster: its children inherit the pointers. */
static void
shared_state_point_at_parts(LsShared *s)
{
	ls_startup = &s->startup;
	ls_controller = &s->controller;
	ls_lag = &s->lag;
	ls_look_ahead_shared = &s->look_ahead;
	ls_queue = &s->queue;
	ls_decode_buffer = ls_most_helpers == 0 ? NULL : (char *) s + shared_state_small_size();
	ls_priority = &s->priority;
	ls_gate = &s->gate;
	ls_lsn_wait = &s->lsn_wait;
	ls_sessions = s->sessions;
	ls_nsessions = MaxBackends;
}

static void
shared_state_init_parts(LsShared *s)
{
	memset(s, 0, shared_state_small_size());
	s->text_lock = &GetNamedLWLockTranche(shared_state_tranche)[0].lock;
	ls_startup_init_shared();
	ls_controller_init_shared();
	ls_lag_init_shared();
	ls_look_ahead_init_shared();
	ls_queue_init_shared();
	ls_priority_init_shared();
	ls_gate_init_shared((char *) s + shared_state_sessions_size());
	ls_wait_lsn_init_shared();
	ls_sessions_init_shared();
}
