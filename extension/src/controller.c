/*
 * controller.c - the standby's background worker.
 *
 * Purpose: in each round it measures replay lag, changes the priorities that
 * should be different, moves the gate's capacity, and wakes the sessions whose
 * WAL position has been replayed. Sessions do none of that for each other.
 *
 * Starts when the standby is consistent. On promotion it opens the gate, wakes
 * all waiting sessions, gives open sessions their priority back and exits; on a
 * primary it exits at once. After a crash the postmaster starts it again.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "controller.h"
#include "gate/gate.h"
#include "gate/gate_limit.h"
#include "priority/cpu_account.h"
#include "priority/priority.h"
#include "priority/sched_linux.h"
#include "priority/slices.h"
#include "replay/clear_way.h"
#include "replay/replay_lag.h"
#include "state/clock.h"
#include "state/shared_state.h"
#include "wait/wait_lsn.h"

extern PGDLLEXPORT void lockstep_controller_main(Datum arg);

/* Time between rounds. */
#define ROUND_MS 10
/* While a session waits for an LSN and replay moves: time between wake-ups. */
#define WAKING_MS 1
/* Once replay has stood still for this long, wake-ups come with rounds only. */
#define STANDSTILL_US INT64CONST(1000000)
/* Time between rounds once IDLE_ROUNDS in a row had nothing to do. */
#define ROUND_IDLE_MS 100
#define IDLE_ROUNDS 100

/* A controller that has been silent this long holds no query back. */
#define CONTROLLER_SILENCE_US INT64CONST(5000000)

LsControllerShared *ls_controller = NULL;

static void controller_exit(int code, Datum arg);
static bool controller_round(void);
static void controller_sleep(int quiet_rounds);
static bool controller_is_awaited(void);
static bool controller_doze(long ms);
static void controller_retire(void);

void
lockstep_controller_main(Datum arg)
{
	int			quiet_rounds = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(controller_exit, (Datum) 0);
	pg_atomic_write_u64(&ls_controller->beat, (uint64) ls_now_us());
	pg_atomic_write_u32(&ls_controller->procno, (uint32) LS_MY_PROCNO);
	ls_priority_init();

	while (RecoveryInProgress() && !ShutdownRequestPending)
	{
		quiet_rounds = controller_round() ? 0 : quiet_rounds + 1;
		controller_sleep(quiet_rounds);
	}
	if (!ShutdownRequestPending)
		controller_retire();

	/*
	 * 0: not to be started again before the next server start. After a
	 * SIGTERM of an administrator the next controller takes over. (In a
	 * shutdown the postmaster starts none.)
	 */
	proc_exit(ShutdownRequestPending ? 1 : 0);
}

void
ls_controller_init_shared(void)
{
	pg_atomic_init_u32(&ls_controller->procno, PG_UINT32_MAX);
	pg_atomic_init_u64(&ls_controller->beat, 0);
}

/* Makes the controller look now instead of at its next round. */
void
ls_nudge_controller(void)
{
	uint32		procno = pg_atomic_read_u32(&ls_controller->procno);

	/* a process that has taken the slot since then wakes once in vain */
	if (procno != PG_UINT32_MAX)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/* Has the controller had a round in the last seconds? */
bool
ls_controller_alive(void)
{
	int64		beat = (int64) pg_atomic_read_u64(&ls_controller->beat);

	if (pg_atomic_read_u32(&ls_controller->procno) == PG_UINT32_MAX)
		return false;
	return ls_now_us() - beat < CONTROLLER_SILENCE_US;
}

static void
controller_exit(int code, Datum arg)
{
	pg_atomic_write_u32(&ls_controller->procno, PG_UINT32_MAX);
	pg_atomic_write_u32(&ls_gate->capacity, LS_GATE_OPEN);
}

/* One round; true if there was something to do. */
static bool
controller_round(void)
{
	int64		now = ls_now_us();

	pg_atomic_write_u64(&ls_controller->beat, (uint64) now);
	ls_lag_step(now);
	ls_wait_lsn_step();
	ls_clear_way(true);
	ls_account_step(now);
	ls_gate_step(now);
	ls_priority_step(now, true);
	ls_slices_step(true);

	return pg_atomic_read_u64(&ls_lag->lag_us) > 0 ||
		ls_gate_executing() > 0 ||
		pg_atomic_read_u32(&ls_gate->waiting) > 0 ||
		pg_atomic_read_u32(&ls_lsn_wait->waiters) > 0;
}

static void
controller_sleep(int quiet_rounds)
{
	if (controller_is_awaited())
	{
		for (int slept = 0; slept < ROUND_MS; slept += WAKING_MS)
		{
			if (controller_doze(WAKING_MS))
				break;
			ls_wait_lsn_step();
		}
	}
	else
		(void) controller_doze(quiet_rounds >= IDLE_ROUNDS ? ROUND_IDLE_MS : ROUND_MS);
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		ls_priority_init();
	}
}

/* Is it worth looking each millisecond for sessions that wait for an LSN? */
static bool
controller_is_awaited(void)
{
	static XLogRecPtr last_replayed = InvalidXLogRecPtr;
	static uint32 last_waiters = 0;
	static int64 moved_at = 0;
	uint32		waiters = pg_atomic_read_u32(&ls_lsn_wait->waiters);
	XLogRecPtr	replayed;

	if (waiters == 0)
	{
		last_waiters = 0;
		return false;
	}
	replayed = GetXLogReplayRecPtr(NULL);
	if (replayed != last_replayed || waiters > last_waiters)
		moved_at = ls_now_us();
	last_replayed = replayed;
	last_waiters = waiters;
	return ls_now_us() - moved_at < STANDSTILL_US;
}

static bool
controller_doze(long ms)
{
	int			events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
								   ms, PG_WAIT_EXTENSION);

	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return (events & WL_LATCH_SET) != 0;
}

/* Promoted: waiting sessions go on, and demoted ones become normal again. */
static void
controller_retire(void)
{
	ls_gate_open();
	ls_clear_way(false);
	pg_atomic_write_u32(&ls_gate->limit, 0);
	pg_atomic_write_u64(&ls_lag->lag_us, 0);
	ls_wait_lsn_step();
	ls_slices_step(false);
	while (ls_priority_left() > 0 && !ShutdownRequestPending)
	{
		int64		now = ls_now_us();

		pg_atomic_write_u64(&ls_controller->beat, (uint64) now);
		ls_priority_step(now, false);
		controller_sleep(0);
	}
	ls_priority_report_stuck();
	pg_atomic_write_u32(&ls_priority->method, LS_METHOD_NONE);
	ls_set_text(ls_priority->method_detail, "not in recovery: every session runs at normal priority");
	ls_set_text(ls_priority->slice_detail, "not in recovery: every process has the kernel's slice");
}
