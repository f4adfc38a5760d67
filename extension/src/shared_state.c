/*
 * shared_state.c - the extension's shared memory.
 *
 * Made by the postmaster, inherited by fork, made anew after a crash. Each
 * field's writer is named in lockstep.h.
 */
#include "lockstep.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

/* A controller that has been silent this long holds nobody back. */
#define CONTROLLER_SILENCE_US INT64CONST(5000000)

static const char TRANCHE_TEXT[] = "lockstep";
static const char EVENT_THROTTLE[] = "LockstepReadThrottle";
static const char EVENT_WAIT_LSN[] = "LockstepWaitForLsn";

LsShared   *ls_shared = NULL;
uint32		ls_event_throttle = 0;
uint32		ls_event_wait_lsn = 0;

static Size
sessions_size(void)
{
	return MAXALIGN(add_size(offsetof(LsShared, sessions),
							 mul_size(MaxBackends, sizeof(LsSession))));
}

static Size
shared_size(void)
{
	return add_size(sessions_size(), ls_queue_size(MaxBackends));
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
	}
}

static void
init_session(LsSession *s)
{
	pg_atomic_init_u32(&s->pid, 0);
	pg_atomic_init_u32(&s->wants_low, 0);
	pg_atomic_init_u32(&s->heavy, 0);
	pg_atomic_init_u32(&s->statements, 0);
	pg_atomic_init_u32(&s->sched, LS_SCHED_NORMAL);
	pg_atomic_init_u32(&s->gate, LS_GATE_OUTSIDE);
	pg_atomic_init_u32(&s->in_ring, 0);
	pg_atomic_init_u32(&s->excepted, 0);
	pg_atomic_init_u64(&s->inside_since, 0);
	pg_atomic_init_u64(&s->wait_lsn, InvalidXLogRecPtr);
}

static void
init_shared(LsShared *s)
{
	uint64		now = (uint64) GetCurrentTimestamp();

	memset(s, 0, shared_size());
	pg_atomic_init_u32(&s->startup_procno, PG_UINT32_MAX);
	pg_atomic_init_u32(&s->controller_procno, PG_UINT32_MAX);
	pg_atomic_init_u64(&s->controller_beat, 0);
	pg_atomic_init_u64(&s->lag_us, 0);
	pg_atomic_init_u64(&s->conflicts, 0);
	pg_atomic_init_u64(&s->conflict_event, 0);
	pg_atomic_init_u64(&s->conflict_at, 0);
	pg_atomic_init_u64(&s->conflict_us, 0);
	pg_atomic_init_u64(&s->replay_reset_at, now);
	pg_atomic_init_u32(&s->method, LS_METHOD_NONE);
	strlcpy(s->method_detail, "the controller has not run since this server started",
			LS_TEXT_SIZE);
	pg_atomic_init_u64(&s->demotions, 0);
	pg_atomic_init_u64(&s->restores, 0);
	pg_atomic_init_u64(&s->refusals, 0);
	pg_atomic_init_u64(&s->priority_reset_at, now);
	s->text_lock = &GetNamedLWLockTranche(TRANCHE_TEXT)[0].lock;
	pg_atomic_init_u32(&s->gate_limit, 0);
	/* until the controller has measured anything, everybody passes */
	pg_atomic_init_u32(&s->gate_capacity, LS_GATE_OPEN);
	pg_atomic_init_u32(&s->gate_running, 0);
	pg_atomic_init_u32(&s->gate_waiting, 0);
	pg_atomic_init_u64(&s->gate_waits, 0);
	pg_atomic_init_u64(&s->gate_wait_us, 0);
	pg_atomic_init_u64(&s->gate_would_wait, 0);
	pg_atomic_init_u64(&s->gate_timeouts, 0);
	pg_atomic_init_u64(&s->gate_logged_at, 0);
	pg_atomic_init_u64(&s->throttle_reset_at, now);
	pg_atomic_init_u32(&s->lsn_waiters, 0);
	s->nsessions = MaxBackends;
	for (int i = 0; i < s->nsessions; i++)
		init_session(&s->sessions[i]);
	s->gate_queue = (LsQueue *) ((char *) s + sessions_size());
	ls_queue_init(s->gate_queue, s->nsessions);
}

void
ls_attach_shared_memory(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	ls_shared = ShmemInitStruct("lockstep", shared_size(), &found);
	if (!found)
		init_shared(ls_shared);
	LWLockRelease(AddinShmemInitLock);
}

/* Once in each process that waits: 17's registry needs a lock for the look-up. */
void
ls_resolve_wait_events(void)
{
	if (ls_event_throttle != 0)
		return;
	ls_event_wait_lsn = ls_named_wait_event(EVENT_WAIT_LSN);
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

/* Makes the controller look now instead of at its next round. */
void
ls_nudge_controller(void)
{
	uint32		procno = pg_atomic_read_u32(&ls_shared->controller_procno);

	/* a process that took over the slot since then only wakes once for nothing */
	if (procno != PG_UINT32_MAX)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/* False also for one that exists but has not come round for seconds. */
bool
ls_controller_alive(void)
{
	int64		beat = (int64) pg_atomic_read_u64(&ls_shared->controller_beat);

	if (pg_atomic_read_u32(&ls_shared->controller_procno) == PG_UINT32_MAX)
		return false;
	return ls_now_us() - beat < CONTROLLER_SILENCE_US;
}
