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

static const char TRANCHE_TEXT[] = "lockstep";
static const char EVENT_THROTTLE[] = "LockstepReadThrottle";
static const char EVENT_WAIT_LSN[] = "LockstepWaitForLsn";
static const char EVENT_REPLAY_HELPER[] = "LockstepReplayHelper";
static const char EVENT_REPLAY_QUEUE[] = "LockstepReplayQueue";
static const char EVENT_REPLAY_RECORD[] = "LockstepReplayRecord";

LsShared   *ls_shared = NULL;
uint32		ls_event_throttle = 0;
uint32		ls_event_wait_lsn = 0;
uint32		ls_event_replay_helper = 0;
uint32		ls_event_replay_queue = 0;
uint32		ls_event_replay_record = 0;

static Size
sessions_size(void)
{
	return MAXALIGN(add_size(offsetof(LsShared, sessions),
							 mul_size(MaxBackends, sizeof(LsSession))));
}

static Size
small_size(void)
{
	return CACHELINEALIGN(add_size(sessions_size(), ls_gate_queues_size()));
}

/* The decode buffer comes last. */
static Size
shared_size(void)
{
	return add_size(small_size(), ls_decode_buffer_size());
}

void
ls_request_shared_memory(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche(TRANCHE_TEXT, 1);
	if (LS_WAIT_EVENT_LWLOCKS > 0)
	{
		RequestNamedLWLockTranche(EVENT_THROTTLE, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(EVENT_WAIT_LSN, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(EVENT_REPLAY_HELPER, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(EVENT_REPLAY_QUEUE, LS_WAIT_EVENT_LWLOCKS);
		RequestNamedLWLockTranche(EVENT_REPLAY_RECORD, LS_WAIT_EVENT_LWLOCKS);
	}
}

/* In the postmaster: its children inherit the pointers. */
static void
point_at_parts(LsShared *s)
{
	ls_startup = &s->startup;
	ls_controller = &s->controller;
	ls_lag = &s->lag;
	ls_look_ahead_shared = &s->look_ahead;
	ls_queue = &s->queue;
	ls_decode_buffer = ls_replay_workers == 0 ? NULL : (char *) s + small_size();
	ls_priority = &s->priority;
	ls_gate = &s->gate;
	ls_lsn_wait = &s->lsn_wait;
	ls_sessions = s->sessions;
	ls_nsessions = MaxBackends;
}

static void
init_parts(LsShared *s)
{
	memset(s, 0, small_size());
	s->text_lock = &GetNamedLWLockTranche(TRANCHE_TEXT)[0].lock;
	ls_startup_init_shared();
	ls_controller_init_shared();
	ls_lag_init_shared();
	ls_look_ahead_init_shared();
	ls_queue_init_shared();
	ls_priority_init_shared();
	ls_gate_init_shared((char *) s + sessions_size());
	ls_wait_lsn_init_shared();
	ls_sessions_init_shared();
}

void
ls_attach_shared_memory(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	ls_shared = ShmemInitStruct("lockstep", shared_size(), &found);
	point_at_parts(ls_shared);
	if (!found)
		init_parts(ls_shared);
	LWLockRelease(AddinShmemInitLock);
}

/* Once in each process that waits: since 17 the look-up takes a lock. */
void
ls_resolve_wait_events(void)
{
	if (ls_event_throttle != 0)
		return;
	ls_event_wait_lsn = ls_named_wait_event(EVENT_WAIT_LSN);
	ls_event_replay_helper = ls_named_wait_event(EVENT_REPLAY_HELPER);
	ls_event_replay_queue = ls_named_wait_event(EVENT_REPLAY_QUEUE);
	ls_event_replay_record = ls_named_wait_event(EVENT_REPLAY_RECORD);
	ls_event_throttle = ls_named_wait_event(EVENT_THROTTLE);
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
