/*
 * clear_way.c - sessions that replay waits for.
 *
 * A session is in replay's way if it holds a lock that replay wants, or if replay
 * has asked it to end its query. Replay goes on when it does, so whatever holds
 * the session back holds back replay. A demoted one gets no CPU while programs of
 * normal priority want it (seen: 30 clients, DDL on the primary, and the primary
 * on the same cores; replay fell behind by 161 MB in 75 s, stock's by 17). One
 * that waits at the gate waits for the sessions inside. Both go on as if there
 * were no Lockstep: priority/ restores their priority, gate/ lets them in without
 * a place.
 *
 * Who has pinned a buffer that replay wants, or holds its content lock, is not known.
 *
 * Runs in the controller. State: LsSession.in_the_way, which it alone writes. What a
 * session reads there is at most one round old.
 */
#include "postgres.h"

#include "storage/latch.h"
#include "storage/proc.h"

#include "compat.h"
#include "gate/gate.h"
#include "replay/clear_way.h"
#include "replay/startup_process.h"
#include "state/session.h"

static void clear_way_mark_lock_holders(const LOCKTAG *tag);
static void clear_way_wake_waiters(void);

/* Marks the sessions that replay waits for. Controller, each round, and with false after promotion. */
void
ls_clear_way(bool in_recovery)
{
	LOCKTAG		wanted;

	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];
		uint32		in_the_way = in_recovery && pg_atomic_read_u32(&s->pid) != 0 &&
			ls_is_in_conflict(GetPGProcByNumber(i));

		/* a store for nothing would take the cache line from the session */
		if (pg_atomic_read_u32(&s->in_the_way) != in_the_way)
			pg_atomic_write_u32(&s->in_the_way, in_the_way);
	}

	/*
	 * Its wait event would not do: once max_standby_streaming_delay is over, the
	 * startup process has none while it waits for those whom it cancelled.
	 */
	if (in_recovery && ls_startup_waits_for_lock(&wanted))
	{
		clear_way_mark_lock_holders(&wanted);
		clear_way_wake_waiters();
	}
}

static void
clear_way_mark_lock_holders(const LOCKTAG *tag)
{
	int			count;
	VirtualTransactionId *holders = GetLockConflicts(tag, AccessExclusiveLock, &count);

	for (int i = 0; i < count; i++)
	{
		int			procno = ls_procno_of(holders[i]);

		if (procno >= 0 && procno < ls_nsessions)
			pg_atomic_write_u32(&ls_sessions[procno].in_the_way, 1);
	}
	pfree(holders);
}

/* Wakes sessions in the way that wait at the gate. Who comes later finds out by itself. */
static void
clear_way_wake_waiters(void)
{
	for (int i = 0; i < ls_nsessions; i++)
	{
		if (pg_atomic_read_u32(&ls_sessions[i].in_the_way) != 0 &&
			pg_atomic_read_u32(&ls_sessions[i].gate) == LS_GATE_QUEUED)
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}
