/*
 * held_locks.c - what this transaction has locked, as far as waiting matters.
 *
 * Runs in backends that wait, or are about to wait, for the gate or for an LSN. Reads
 * only this process's own entries, each partition under its lock. A partition in
 * which it has none is not locked: only the startup process can add an entry there
 * meanwhile, as it takes a relation lock off the fast path to wait for it, and of
 * that clear_way.c tells.
 */
#include "postgres.h"

#include "storage/lock.h"

#include "compat.h"
#include "gate/held_locks.h"

/* Called with a partition's lock held; true ends the walk. */
typedef bool (*ProcLockTest) (const PROCLOCK *proclock);

static bool held_locks_any(ProcLockTest test);
static bool held_locks_is_waited_for(const PROCLOCK *proclock);
static bool held_locks_is_held(const PROCLOCK *proclock);
static bool held_locks_replay_may_want(const PROCLOCK *proclock);

/*
 * True if another process waits for a lock of this transaction. Relation locks
 * on the fast path have no entry in the shared table, and no process can be
 * waiting for those.
 */
bool
ls_others_wait_for_us(void)
{
	return held_locks_any(held_locks_is_waited_for);
}

/* True if it has a lock in the shared table, where others may wait for it. */
bool
ls_holds_shared_locks(void)
{
	return held_locks_any(held_locks_is_held);
}

/* Could replay come to wait for a lock of this transaction? */
bool
ls_holds_lock_replay_may_want(void)
{
	return ls_holds_fast_path_locks() || held_locks_any(held_locks_replay_may_want);
}

static bool
held_locks_any(ProcLockTest test)
{
	for (int partition = 0; partition < NUM_LOCK_PARTITIONS; partition++)
	{
		LWLock	   *lock = LockHashPartitionLockByIndex(partition);
		PROCLOCK   *proclock = NULL;
		bool		found = false;

		if (ls_partition_is_empty(partition))
			continue;
		LWLockAcquire(lock, LW_SHARED);
		while (!found &&
			   (proclock = ls_next_proclock(partition, proclock)) != NULL)
			found = test(proclock);
		LWLockRelease(lock);
		if (found)
			return true;
	}
	return false;
}

static bool
held_locks_is_waited_for(const PROCLOCK *proclock)
{
	LOCK	   *lock = proclock->tag.myLock;
	LockMethod	method = GetLocksMethodTable(lock);

	for (LOCKMODE mode = 1; mode <= method->numLockModes; mode++)
	{
		if ((proclock->holdMask & LOCKBIT_ON(mode)) &&
			(lock->waitMask & method->conflictTab[mode]))
			return true;
	}
	return false;
}

static bool
held_locks_is_held(const PROCLOCK *proclock)
{
	return proclock->holdMask != 0;
}

static bool
held_locks_replay_may_want(const PROCLOCK *proclock)
{
	LOCK	   *lock = proclock->tag.myLock;

	return proclock->holdMask != 0 &&
		lock->tag.locktag_type != LOCKTAG_ADVISORY &&
		lock->tag.locktag_type != LOCKTAG_VIRTUALTRANSACTION;
}
