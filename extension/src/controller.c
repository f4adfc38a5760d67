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
 * How the capacity moves. The limit's ceiling is one query for each core; with
 * those that do not count, below, a few for each core are inside.
 * While lag is over lockstep.read_throttle_lag the limit is halved, down to
 * lockstep.read_throttle_min, and else it grows by one, each at most once in
 * LIMIT_EVERY_US. Sessions inside that use no CPU, because they wait for
 * their client, a lock, a sleep, or (unless replay lags) I/O, do not count, nor,
 * unless replay lags, those inside for lockstep.read_throttle_long_query: the
 * capacity is the limit plus those, or a few sleeping or very long queries
 * would keep everybody else out.
 *
 * Lag that fewer reads cannot cure moves nothing: replay waiting for a query to
 * end, held back on purpose, or busy on a core of its own without a break.
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

#define ROUND_MS 10
/* While somebody waits for an LSN and replay moves; only wake-ups, no round. */
#define WAKING_MS 1
/* Replay that has stood still for so long is looked at each round only. */
#define STANDSTILL_US INT64CONST(1000000)
/* While nothing has happened for IDLE_ROUNDS. */
#define ROUND_IDLE_MS 100
#define IDLE_ROUNDS 100

#define QUERIES_PER_CORE 1
#define LIMIT_EVERY_US INT64CONST(100000)
#define CORES_EVERY_US INT64CONST(5000000)
/* Share of the time on a core from which startup counts as busy, in percent. */
#define BUSY_PERCENT 90

static int	cores = 1;
static int64 cores_at = 0;
static int	limit = 0;
static int64 limit_at = 0;
static int64 startup_cpu_ns = 0;

static bool
replay_is_held_on_purpose(void)
{
	return recovery_min_apply_delay > 0 ||
		GetRecoveryPauseState() != RECOVERY_NOT_PAUSED;
}

/* Since the last call: was startup on a core nearly all the time? */
static bool
startup_was_busy(int64 since_us)
{
	int64		cpu_ns = ls_sched_cpu_ns(ls_startup_pid());
	int64		used_us = (cpu_ns - startup_cpu_ns) / 1000;

	startup_cpu_ns = cpu_ns;
	return cpu_ns > 0 && used_us * 100 >= since_us * BUSY_PERCENT;
}

static void
move_limit(int64 now, bool lagging)
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
	else
	{
		bool		busy = startup_was_busy(now - limit_at);

		if (lagging && !busy)
			limit = limit / 2;
		else if (!lagging && limit < ceiling)
			limit++;
	}
	limit = Max(limit, ls_read_throttle_min);
	limit_at = now;
	pg_atomic_write_u32(&ls_shared->gate_limit, (uint32) limit);
}

/* Has it executed so long that others must not wait for it any more? */
static bool
is_long(LsSession *s, int64 now)
{
	int64		inside_us = now - (int64) pg_atomic_read_u64(&s->inside_since);

	return ls_read_throttle_long_query > 0 &&
		inside_us > (int64) ls_read_throttle_long_query * 1000;
}

/*
 * Sessions inside the gate that do not count at this moment. Marked, so that the
 * place goes when they do (end_exception() in gate.c).
 */
static int
count_exceptions(int64 now, bool lagging)
{
	int			exceptions = 0;

	for (int i = 0; i < ls_shared->nsessions; i++)
	{
		LsSession  *s = &ls_shared->sessions[i];
		uint32		class;
		uint32		gate = pg_atomic_read_u32(&s->gate);

		if (pg_atomic_read_u32(&s->excepted) != 0)
			pg_atomic_exchange_u32(&s->excepted, 0);
		if (gate != LS_GATE_INSIDE && gate != LS_GATE_KEPT)
			continue;
		class = *(volatile uint32 *) &GetPGProcByNumber(i)->wait_event_info & 0xFF000000U;
		if (class == PG_WAIT_CLIENT || class == PG_WAIT_LOCK ||
			class == PG_WAIT_TIMEOUT || class == PG_WAIT_EXTENSION ||
			class == LS_WAIT_BUFFER_PIN || (class == PG_WAIT_IO && !lagging) ||
			(!lagging && gate == LS_GATE_INSIDE && is_long(s, now)))
		{
			pg_atomic_exchange_u32(&s->excepted, 1);
			exceptions++;
		}
	}
	return exceptions;
}

static void
open_gate(void)
{
	pg_atomic_exchange_u32(&ls_shared->gate_capacity, LS_GATE_OPEN);
	ls_gate_end_turns(ls_now_us());
	ls_gate_drain();
}

static void
gate_step(int64 now)
{
	uint32		startup_waits_for = ls_startup_wait_event() & 0xFF000000U;
	bool		lagging = false;

	ls_gate_end_turns(now);
	if (!ls_enabled || ls_read_throttle == LS_THROTTLE_OFF)
	{
		limit = 0;
		pg_atomic_write_u32(&ls_shared->gate_limit, 0);
		open_gate();
		return;
	}
	/*
	 * Replay waits for a lock that a query, perhaps one in the queue, holds;
	 * or the mode has left "on", and who waits has not read the new one.
	 */
	if (startup_waits_for == PG_WAIT_LOCK ||
		(ls_read_throttle != LS_THROTTLE_ON &&
		 pg_atomic_read_u32(&ls_shared->gate_waiting) > 0))
	{
		open_gate();
		return;
	}
	if (ls_read_throttle_lag > 0 && !replay_is_held_on_purpose() &&
		!ls_replay_in_conflict())
		lagging = pg_atomic_read_u64(&ls_shared->lag_us) >
			(uint64) ls_read_throttle_lag * 1000;

	move_limit(now, lagging);
	pg_atomic_write_u32(&ls_shared->gate_capacity,
						(uint32) (limit + count_exceptions(now, lagging)));
	ls_gate_drain();
}

/* One round; true if there was something to do. */
static bool
one_round(void)
{
	int64		now = ls_now_us();

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

static bool
doze(long ms)
{
	int			events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
								   ms, PG_WAIT_EXTENSION);

	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	return (events & WL_LATCH_SET) != 0;
}

/* Is it worth looking each millisecond for those who wait for an LSN? */
static bool
somebody_waits_for_moving_replay(void)
{
	static XLogRecPtr last_replayed = InvalidXLogRecPtr;
	static uint32 last_waiters = 0;
	static int64 moved_at = 0;
	uint32		waiters = pg_atomic_read_u32(&ls_shared->lsn_waiters);
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

static void
sleep_until_next_round(int quiet_rounds)
{
	if (somebody_waits_for_moving_replay())
	{
		for (int slept = 0; slept < ROUND_MS; slept += WAKING_MS)
		{
			if (doze(WAKING_MS))
				break;
			ls_wait_lsn_step();
		}
	}
	else
		(void) doze(quiet_rounds >= IDLE_ROUNDS ? ROUND_IDLE_MS : ROUND_MS);
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
	while (ls_priority_left() > 0 && !ShutdownRequestPending)
	{
		int64		now = ls_now_us();

		pg_atomic_write_u64(&ls_shared->controller_beat, (uint64) now);
		ls_priority_step(now, false);
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
	pg_atomic_write_u64(&ls_shared->controller_beat, (uint64) ls_now_us());
	pg_atomic_write_u32(&ls_shared->controller_procno, (uint32) LS_MY_PROCNO);
	ls_priority_init();

	while (RecoveryInProgress() && !ShutdownRequestPending)
	{
		quiet_rounds = one_round() ? 0 : quiet_rounds + 1;
		sleep_until_next_round(quiet_rounds);
	}
	if (!ShutdownRequestPending)
		retire();

	/*
	 * 0: not to be started again before the next server start. Somebody's
	 * SIGTERM is not that: the next one takes over. (In a shutdown the
	 * postmaster starts none.)
	 */
	proc_exit(ShutdownRequestPending ? 1 : 0);
}
