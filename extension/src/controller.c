/*
 * controller.c - the standby's background worker.
 *
 * Purpose: every round it measures replay lag, changes the priorities that
 * should be different, moves the gate's capacity, and wakes those whose WAL
 * position has been replayed. Sessions never do any of that for each other.
 *
 * Starts when the standby is consistent. On promotion it opens the gate, wakes
 * everybody, gives open sessions their priority back and exits; on a primary
 * it exits at once. After a crash the postmaster starts it again.
 *
 * How the capacity moves. The limit's ceiling is a few queries for each core.
 * While lag is over lockstep.read_throttle_lag the limit is halved, down to
 * lockstep.read_throttle_min, and else it grows by one, each at most once in
 * LIMIT_EVERY_US. Sessions inside that use no CPU, because they wait for
 * their client, a lock, a sleep, or (unless replay lags) I/O, do not count:
 * the capacity is the limit plus those, or a few sleeping queries would keep
 * everybody else out.
 */
#include "lockstep.h"

#include <signal.h>

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define ROUND_MS 10
/* While somebody waits for an LSN. */
#define ROUND_WAKING_MS 1
/* While nothing has happened for IDLE_ROUNDS. */
#define ROUND_IDLE_MS 100
#define IDLE_ROUNDS 100

#define QUERIES_PER_CORE 2
#define LIMIT_EVERY_US INT64CONST(100000)
#define CORES_EVERY_US INT64CONST(5000000)

static int	cores = 1;
static TimestampTz cores_at = 0;
static int	limit = 0;
static TimestampTz limit_at = 0;

static bool
replay_is_held_on_purpose(void)
{
	return recovery_min_apply_delay > 0 ||
		GetRecoveryPauseState() != RECOVERY_NOT_PAUSED;
}

static void
move_limit(TimestampTz now, bool lagging)
{
	int			ceiling;

	if (now - cores_at >= CORES_EVERY_US)
	{
		cores = ls_sched_cores();
		cores_at = now;
	}
	ceiling = ls_read_throttle_max > 0 ? ls_read_throttle_max : cores * QUERIES_PER_CORE;
	ceiling = Max(ceiling, ls_read_throttle_min);

	if (limit == 0 || limit > ceiling)
		limit = ceiling;
	else if (now - limit_at < LIMIT_EVERY_US)
		return;
	else if (lagging)
		limit = limit / 2;
	else if (limit < ceiling)
		limit++;
	limit = Max(limit, ls_read_throttle_min);
	limit_at = now;
	pg_atomic_write_u32(&ls_shared->gate_limit, (uint32) limit);
}

/* Sessions inside the gate that use no CPU at this moment. */
static int
count_resting(bool lagging)
{
	int			resting = 0;

	for (int i = 0; i < ls_shared->nsessions; i++)
	{
		uint32		class;

		if (pg_atomic_read_u32(&ls_shared->sessions[i].gate) != LS_GATE_INSIDE)
			continue;
		class = *(volatile uint32 *) &GetPGProcByNumber(i)->wait_event_info & 0xFF000000U;
		if (class == PG_WAIT_CLIENT || class == PG_WAIT_LOCK ||
			class == PG_WAIT_TIMEOUT || class == PG_WAIT_EXTENSION ||
			class == LS_WAIT_BUFFER_PIN || (class == PG_WAIT_IO && !lagging))
			resting++;
	}
	return resting;
}

static void
open_gate(void)
{
	pg_atomic_write_u32(&ls_shared->gate_capacity, LS_GATE_OPEN);
	ls_gate_drain();
}

static void
gate_step(TimestampTz now)
{
	uint32		startup_waits_for = ls_startup_wait_event() & 0xFF000000U;
	bool		lagging = false;

	if (!ls_enabled || ls_read_throttle == LS_THROTTLE_OFF)
	{
		limit = 0;
		pg_atomic_write_u32(&ls_shared->gate_limit, 0);
		open_gate();
		return;
	}
	/* replay waits for a lock that a query, perhaps one in the queue, holds */
	if (startup_waits_for == PG_WAIT_LOCK)
	{
		open_gate();
		return;
	}
	if (ls_read_throttle_lag > 0 && !replay_is_held_on_purpose())
		lagging = pg_atomic_read_u64(&ls_shared->lag_us) >
			(uint64) ls_read_throttle_lag * 1000;

	move_limit(now, lagging);
	pg_atomic_write_u32(&ls_shared->gate_capacity,
						(uint32) (limit + count_resting(lagging)));
	ls_gate_drain();
}

/* One round; true if there was something to do. */
static bool
one_round(void)
{
	TimestampTz now = GetCurrentTimestamp();

	pg_atomic_write_u64(&ls_shared->controller_beat, (uint64) now);
	ls_lag_step(now);
	ls_wait_lsn_step();
	gate_step(now);
	ls_weigh_sessions(now);
	ls_priority_step(now, true);

	return pg_atomic_read_u64(&ls_shared->lag_us) > 0 ||
		pg_atomic_read_u32(&ls_shared->gate_running) > 0 ||
		pg_atomic_read_u32(&ls_shared->gate_waiting) > 0 ||
		pg_atomic_read_u32(&ls_shared->lsn_waiters) > 0;
}

static void
sleep_until_next_round(int quiet_rounds)
{
	long		ms = ROUND_MS;

	if (pg_atomic_read_u32(&ls_shared->lsn_waiters) > 0)
		ms = ROUND_WAKING_MS;
	else if (quiet_rounds >= IDLE_ROUNDS)
		ms = ROUND_IDLE_MS;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		ls_priority_init();
	}
}

/* Promoted: everybody goes on, and open sessions become normal again. */
static void
retire(void)
{
	open_gate();
	pg_atomic_write_u32(&ls_shared->gate_limit, 0);
	pg_atomic_write_u64(&ls_shared->lag_us, 0);
	ls_wait_lsn_step();
	while (ls_priority_left() > 0)
	{
		pg_atomic_write_u64(&ls_shared->controller_beat, (uint64) GetCurrentTimestamp());
		ls_priority_step(GetCurrentTimestamp(), false);
		sleep_until_next_round(0);
	}
	ls_priority_report_stuck();
	pg_atomic_write_u32(&ls_shared->method, LS_METHOD_NONE);
	ls_set_text(ls_shared->method_detail, "not in recovery: every session runs at normal priority");
}

static void
controller_exit(int code, Datum arg)
{
	pg_atomic_write_u32(&ls_shared->controller_procno, PG_UINT32_MAX);
	pg_atomic_write_u32(&ls_shared->gate_capacity, LS_GATE_OPEN);
}

void
lockstep_controller_main(Datum arg)
{
	int			quiet_rounds = 0;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(controller_exit, (Datum) 0);
	pg_atomic_write_u64(&ls_shared->controller_beat, (uint64) GetCurrentTimestamp());
	pg_atomic_write_u32(&ls_shared->controller_procno, (uint32) LS_MY_PROCNO);
	ls_priority_init();

	while (RecoveryInProgress() && !ShutdownRequestPending)
	{
		quiet_rounds = one_round() ? 0 : quiet_rounds + 1;
		sleep_until_next_round(quiet_rounds);
	}
	if (!ShutdownRequestPending)
		retire();
	/* status 0: not to be started again before the next server start */
	proc_exit(0);
}

void
ls_register_controller(void)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "lockstep", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "lockstep_controller_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "lockstep controller", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "lockstep controller", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}
