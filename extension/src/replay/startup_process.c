/*
 * startup_process.c - which process replays, and what it does at this moment.
 *
 * No function of PostgreSQL tells an extension which process the startup
 * process is. So it announces itself, through a callback that rmgr_table.c
 * installs. The other functions run in the controller: they read what the
 * startup process publishes in its PGPROC, and what the kernel says of it, and
 * never make it wait.
 *
 * Shared state: LsStartupShared. Crash: made anew, like all shared memory, and
 * announced by the next startup process. Promotion: the entry stays, and no
 * process reads it once the controller has ended.
 */
#include "postgres.h"

#include "storage/proc.h"

#include "compat.h"
#include "priority/sched_linux.h"
#include "replay/startup_process.h"

LsStartupShared *ls_startup = NULL;

static PGPROC *startup_proc(void);

void
ls_startup_init_shared(void)
{
	pg_atomic_init_u32(&ls_startup->procno, PG_UINT32_MAX);
}

/* Startup process, before the first record of a recovery. */
void
ls_startup_announce(void)
{
	if (ls_startup != NULL && MyProc != NULL)
		pg_atomic_write_u32(&ls_startup->procno, (uint32) LS_MY_PROCNO);
}

/* What the startup process waits for, 0: nothing, or not known. */
uint32
ls_startup_wait_event(void)
{
	PGPROC	   *proc = startup_proc();

	return proc == NULL ? 0 : *(volatile uint32 *) &proc->wait_event_info;
}

/*
 * The lock that the startup process waits for; false if it waits for none. What
 * was read without the lock's partition being locked is looked at again with it:
 * a process starts and ends to wait for a lock only with that.
 */
bool
ls_startup_waits_for_lock(LOCKTAG *tag)
{
	PGPROC	   *proc = startup_proc();
	LOCK	   *lock = proc == NULL ? NULL : *(LOCK *volatile *) &proc->waitLock;
	LWLock	   *partition;
	bool		found;

	if (lock == NULL)
		return false;
	*tag = lock->tag;
	partition = LockHashPartitionLock(LockTagHashCode(tag));
	LWLockAcquire(partition, LW_SHARED);
	found = proc->waitLock == lock && memcmp(tag, &lock->tag, sizeof(LOCKTAG)) == 0;
	LWLockRelease(partition);
	return found;
}

/* Number of the startup process, 0: not known. */
int
ls_startup_pid(void)
{
	PGPROC	   *proc = startup_proc();

	return proc == NULL ? 0 : proc->pid;
}

/* Does the startup process run, or wait for a CPU? False if not known. */
bool
ls_startup_is_runnable(void)
{
	PGPROC	   *proc = startup_proc();

	return proc != NULL && ls_sched_state(proc->pid) == 'R';
}

static PGPROC *
startup_proc(void)
{
	uint32		procno = pg_atomic_read_u32(&ls_startup->procno);

	return procno == PG_UINT32_MAX ? NULL : GetPGProcByNumber(procno);
}
