/*
 * gate_limit.c - how many queries the gate lets in.
 *
 * Runs in the controller, which alone writes the limit.
 *
 * The limit: its ceiling is lockstep.read_throttle_max, or one query for each
 * core. While lag is over lockstep.read_throttle_lag the limit is halved, down
 * to lockstep.read_throttle_min; otherwise it grows by one. Each happens at
 * most once in LIMIT_EVERY_US.
 *
 * The capacity is what queries without a place leave of the limit, though at
 * least lockstep.read_throttle_min: otherwise a few sessions that may not wait,
 * with open cursors for example, would keep all others out for good.
 *
 * To it are added the exceptions: sessions inside that use no CPU, because they
 * wait for their client, a lock, a sleep or I/O, and those inside for longer
 * than lockstep.read_throttle_long_query. Without exceptions a few sleeping or
 * very long queries would keep all other sessions out. With them a few queries
 * for each core are inside. While replay lags, neither waiting for I/O nor a
 * long query is an exception.
 *
 * Replay that waits for a lock lets those go on who hold it and wait in the queue.
 *
 * Lag that fewer reads cannot cure does not lower the limit: replay that waits
 * for a query to end, is held back on purpose, or is busy on a core of its own
 * without a break.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "gate/gate.h"
#include "gate/gate_limit.h"
#include "priority/sched_linux.h"
#include "replay/replay_lag.h"
#include "replay/startup_process.h"
#include "state/clock.h"
#include "state/session.h"
#include "state/settings.h"

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
	pg_atomic_write_u32(&ls_gate->limit, (uint32) limit);
}

/* Has it been inside for longer than lockstep.read_throttle_long_query? */
static bool
is_long(LsSession *s, int64 now)
{
	int64		inside_us;

	pg_read_barrier();			/* the caller has read the state; as in
								 * go_inside() of gate.c */
	inside_us = now - (int64) pg_atomic_read_u64(&s->inside_since);
	return ls_read_throttle_long_query > 0 &&
		inside_us > (int64) ls_read_throttle_long_query * 1000;
}

/*
 * Does the session use nothing that the limit is about, or has it had so much of
 * it that others come first? It is inside.
 */
static bool
is_exception(int procno, LsGateState state, int64 now, bool lagging)
{
	uint32		event = *(volatile uint32 *) &GetPGProcByNumber(procno)->wait_event_info;
	uint32		class = event & 0xFF000000U;

	return class == PG_WAIT_CLIENT || class == PG_WAIT_LOCK ||
		class == PG_WAIT_TIMEOUT || class == PG_WAIT_EXTENSION ||
		ls_waits_for_buffer_pin(event) || (class == PG_WAIT_IO && !lagging) ||
		(!lagging && state != LS_GATE_KEPT && is_long(&ls_sessions[procno], now));
}

/*
 * The number of places that there are at this moment. Exceptions that have a
 * place are marked, so that end_exception() in gate.c takes the added place away
 * when they count again.
 */
static uint32
count_places(int64 now, bool lagging)
{
	int			exceptions = 0;
	int			unasked = 0;

	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];
		LsGateState state = pg_atomic_read_u32(&s->gate);

		if (pg_atomic_read_u32(&s->excepted) != 0)
			pg_atomic_exchange_u32(&s->excepted, 0);
		if (state == LS_GATE_UNASKED)
			unasked += is_exception(i, state, now, lagging) ? 0 : 1;
		else if ((state == LS_GATE_INSIDE || state == LS_GATE_KEPT) &&
				 is_exception(i, state, now, lagging))
		{
			pg_atomic_exchange_u32(&s->excepted, 1);
			exceptions++;
		}
	}
	return Max(limit - unasked, ls_read_throttle_min) + exceptions;
}

/* Controller: every query passes, and those that wait are let in. */
void
ls_gate_open(void)
{
	pg_atomic_exchange_u32(&ls_gate->capacity, LS_GATE_OPEN);
	ls_gate_end_turns(ls_now_us());
	ls_gate_drain();
}

/* Controller, each round. */
void
ls_gate_step(int64 now)
{
	LOCKTAG		wanted;
	bool		lagging = false;

	ls_gate_end_turns(now);
	if (!ls_enabled || ls_read_throttle == LS_THROTTLE_OFF)
	{
		limit = 0;
		pg_atomic_write_u32(&ls_gate->limit, 0);
		ls_gate_open();
		return;
	}

	/* the mode has left "on", and sessions that wait have not read that */
	if (ls_read_throttle != LS_THROTTLE_ON &&
		pg_atomic_read_u32(&ls_gate->waiting) > 0)
	{
		ls_gate_open();
		return;
	}
	if ((ls_startup_wait_event() & 0xFF000000U) == PG_WAIT_LOCK &&
		ls_startup_waits_for_lock(&wanted))
		ls_gate_clear_way(&wanted);
	if (ls_read_throttle_lag > 0 && !replay_is_held_on_purpose() &&
		!ls_replay_in_conflict())
		lagging = pg_atomic_read_u64(&ls_lag->lag_us) >
			(uint64) ls_read_throttle_lag * 1000;

	move_limit(now, lagging);
	pg_atomic_write_u32(&ls_gate->capacity, count_places(now, lagging));
	ls_gate_drain();
}
