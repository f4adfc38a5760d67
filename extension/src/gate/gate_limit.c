/*
 * gate_limit.c - how many queries the gate lets in.
 *
 * Runs in the controller, which alone writes the limit. The rules, by which the
 * limit moves with lag and the places are counted, are in limit_rule.c; this file
 * measures what they need and does what they say.
 *
 * The limit: its ceiling is lockstep.read_throttle_max, or one query for each
 * core. With more than one core a busy startup process has one of them for itself. While other
 * programs want the cores and replay has what it needs, places are added to it.
 *
 * The capacity is what queries without a place leave of the limit, though at
 * least lockstep.read_throttle_min: otherwise a few sessions that may not wait,
 * with open cursors for example, would keep all others out for good.
 *
 * To it are added the exceptions: sessions inside that use no CPU, because they
 * wait for their client, a lock, a sleep or I/O, and those inside for longer
 * than lockstep.read_throttle_long_query. Without exceptions a few sleeping or
 * very long queries would keep all other sessions out. With them a few queries
 * for each core are inside. While lag counts, neither waiting for I/O nor a
 * long query is an exception. Long queries then leave at least
 * lockstep.read_throttle_min to others.
 *
 * Replay that waits for a lock lets those go on who hold it and wait in the queue.
 *
 * Lag that fewer reads cannot cure does not lower the limit: replay that waits
 * for a query to end, is held back on purpose, or is busy on a core of its own
 * without a break. Where only a trial tells, limit_rule.c makes one.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "gate/gate.h"
#include "gate/gate_limit.h"
#include "gate/limit_rule.h"
#include "priority/cpu_account.h"
#include "priority/sched_linux.h"
#include "replay/replay_lag.h"
#include "replay/startup_process.h"
#include "state/clock.h"
#include "state/session.h"
#include "state/settings.h"

/* Time between two steps of the limit. */
#define LIMIT_EVERY_US INT64CONST(100000)
/* Share of the time on a core from which startup counts as busy. */
#define BUSY_SHARE 0.9
/* Share of a core from which replay works. */
#define REPLAY_WORKS 0.01
/* Part of the last step in the average of startup's share. */
#define SHARE_PART 8
/* Rounds from one sample of resting sessions to the next: each reads procfs. */
#define REST_ROUNDS 4

static LsLimitState gate_limit_state;
static LsCrowdState gate_limit_crowd;
static int64 gate_limit_stepped_at = 0;
static int64 gate_limit_startup_cpu_ns = 0;
static double gate_limit_average_share = 0;
static bool gate_limit_core_for_startup = false;
static double gate_limit_average_resting = 0;

/* What a session is that is inside. */
typedef enum Kind
{
	COUNTS = 0,
	EXCEPTION,					/* uses nothing that the limit is about, or has
								 * had so much of it that others come first */
	RESTING,					/* uses nothing either: between two queries of its turn */
	LONG						/* executes for long, while lag counts */
} Kind;

static void gate_limit_forget(void);
static void gate_limit_move(int64 now);
static void gate_limit_move_crowd(const LsLimitInput *limit);
static int gate_limit_now(void);
static double gate_limit_startup_share(int64 since_us);
static int64 gate_limit_curable_lag_us(void);
static bool gate_limit_replay_is_held(void);
static void gate_limit_set_capacity(int64 now);
static LsGateCensus gate_limit_take_census(uint8 *kinds, int64 now, bool lag_counts);
static Kind gate_limit_kind_of(int procno, LsGateState held, int64 now, bool lag_counts);
static bool gate_limit_is_long(LsSession *s, int64 now);
static void gate_limit_average_resting_step(const uint8 *kinds, bool lag_counts);
static int gate_limit_count_resting(const uint8 *kinds);
static void gate_limit_mark_exceptions(const uint8 *kinds, const LsGatePlaces *places);
static bool gate_limit_is_over(LsSession *s, Kind kind);

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
	ls_gate_end_turns(now);
	if (!ls_enabled || ls_read_throttle == LS_THROTTLE_OFF)
	{
		gate_limit_forget();
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
	gate_limit_move(now);
	gate_limit_set_capacity(now);
	ls_gate_drain();
}

/* There is no limit: it begins anew when there is one again. */
static void
gate_limit_forget(void)
{
	memset(&gate_limit_state, 0, sizeof(gate_limit_state));
	memset(&gate_limit_crowd, 0, sizeof(gate_limit_crowd));
	gate_limit_average_resting = 0;
	pg_atomic_write_u32(&ls_gate->limit, 0);
}

static void
gate_limit_move(int64 now)
{
	LsLimitInput in = {0};
	double		share;

	if (gate_limit_state.limit != 0 && now - gate_limit_stepped_at < LIMIT_EVERY_US)
		return;
	share = gate_limit_startup_share(now - gate_limit_stepped_at);
	gate_limit_average_share += (share - gate_limit_average_share) / SHARE_PART;
	gate_limit_core_for_startup = ls_limit_core_for_startup(gate_limit_core_for_startup,
															gate_limit_average_share);
	gate_limit_stepped_at = now;

	in.now = now;
	in.lag_unknown = !ls_is_streaming();
	in.lag_us = gate_limit_curable_lag_us();
	in.allowed_us = (int64) ls_read_throttle_lag * 1000;
	/* where no query is held back a trial would show nothing */
	if (ls_read_throttle == LS_THROTTLE_ON)
		in.give_up_us = (int64) ls_read_throttle_give_up * 1000;
	in.replayed = GetXLogReplayRecPtr(NULL);
	in.startup_busy = share >= BUSY_SHARE;
	in.floor = ls_read_throttle_min;
	in.ceiling = ls_limit_ceiling(ls_read_throttle_max, in.floor, ls_cpu_account()->cores,
								  gate_limit_core_for_startup);
	ls_limit_step(&gate_limit_state, &in);
	gate_limit_move_crowd(&in);
	pg_atomic_write_u32(&ls_gate->limit, (uint32) gate_limit_now());
	pg_atomic_write_u32(&ls_gate->beside_others, (uint32) gate_limit_crowd.places);
	pg_atomic_write_u32(&ls_gate->phase, (uint32) gate_limit_state.phase);
}

/* Places beside other programs. */
static void
gate_limit_move_crowd(const LsLimitInput *limit)
{
	const LsCpuAccount *account = ls_cpu_account();
	double		period_us = Max(account->period_us, 1);
	double		wait_us = account->heavy_wait_us + account->light_wait_us;
	double		cpu_us = account->heavy_cpu_us + account->light_cpu_us;
	LsCrowdInput in = {
		.now = limit->now,
		.automatic = ls_read_throttle_max == 0,
		.lag_counts = ls_limit_lag_counts(gate_limit_state.phase),
		.waiting = (int) pg_atomic_read_u32(&ls_gate->waiting),
		.others = ls_account_foreign(account),
		.readers_wait = wait_us / Max(wait_us + cpu_us, 1),
		.replay_wait = account->replay_wait_us / period_us,
		.replay_works = account->replay_cpu_us / period_us > REPLAY_WORKS,
		.lag_us = (int64) pg_atomic_read_u64(&ls_lag->lag_us),
		.allowed_us = limit->allowed_us
	};

	ls_limit_step_crowd(&gate_limit_crowd, &in);
}

/* The limit with the places beside other programs. */
static int
gate_limit_now(void)
{
	return gate_limit_state.limit + gate_limit_crowd.places;
}

/* Part of the time since the last step that the startup process was on a core. */
static double
gate_limit_startup_share(int64 since_us)
{
	int64		before_ns = gate_limit_startup_cpu_ns;

	gate_limit_startup_cpu_ns = ls_sched_cpu_ns(ls_startup_pid());
	if (before_ns <= 0 || gate_limit_startup_cpu_ns < before_ns || since_us <= 0)
		return 0;
	return (double) (gate_limit_startup_cpu_ns - before_ns) / 1000 / since_us;
}

/* Lag that fewer reads might cure. */
static int64
gate_limit_curable_lag_us(void)
{
	if (gate_limit_replay_is_held() || ls_replay_in_conflict())
		return 0;
	return (int64) pg_atomic_read_u64(&ls_lag->lag_us);
}

static bool
gate_limit_replay_is_held(void)
{
	return recovery_min_apply_delay > 0 ||
		GetRecoveryPauseState() != RECOVERY_NOT_PAUSED;
}

static void
gate_limit_set_capacity(int64 now)
{
	static uint8 *kinds = NULL;
	bool		lag_counts = ls_limit_lag_counts(gate_limit_state.phase);
	LsGateCensus census;
	LsGatePlaces places;

	if (kinds == NULL)
		kinds = MemoryContextAlloc(TopMemoryContext, ls_nsessions);
	census = gate_limit_take_census(kinds, now, lag_counts);
	gate_limit_average_resting_step(kinds, lag_counts);
	places = ls_limit_places(gate_limit_now(), ls_read_throttle_min,
							 gate_limit_average_resting, &census);
	pg_atomic_write_u32(&ls_gate->steady, (uint32) places.steady);
	pg_atomic_exchange_u32(&ls_gate->capacity,
						   (uint32) (places.steady + places.for_exceptions +
									 places.for_resting + places.for_longs));
	gate_limit_mark_exceptions(kinds, &places);
}

/* Counts the sessions inside by their kinds, and writes each session's into kinds. */
static LsGateCensus
gate_limit_take_census(uint8 *kinds, int64 now, bool lag_counts)
{
	LsGateCensus census = {0};

	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];
		LsGateState held = pg_atomic_read_u32(&s->gate);

		kinds[i] = COUNTS;
		if (held == LS_GATE_UNASKED)
			census.unasked += gate_limit_kind_of(i, held, now, lag_counts) == EXCEPTION ? 0 : 1;
		else if (held == LS_GATE_INSIDE || held == LS_GATE_KEPT)
		{
			kinds[i] = gate_limit_kind_of(i, held, now, lag_counts);
			census.exceptions += kinds[i] == EXCEPTION;
			census.resting += kinds[i] == RESTING;
			census.longs += kinds[i] == LONG;
		}
	}
	return census;
}

static Kind
gate_limit_kind_of(int procno, LsGateState held, int64 now, bool lag_counts)
{
	uint32		event = *(volatile uint32 *) &GetPGProcByNumber(procno)->wait_event_info;
	uint32		class = event & 0xFF000000U;

	if (class == PG_WAIT_CLIENT)
		return held == LS_GATE_KEPT ? RESTING : EXCEPTION;
	if (class == PG_WAIT_LOCK || class == PG_WAIT_TIMEOUT || class == PG_WAIT_EXTENSION ||
		ls_waits_for_buffer_pin(event) || (class == PG_WAIT_IO && !lag_counts))
		return EXCEPTION;
	if (held != LS_GATE_KEPT && gate_limit_is_long(&ls_sessions[procno], now))
		return lag_counts ? LONG : EXCEPTION;
	return COUNTS;
}

/* Has the session been inside for longer than lockstep.read_throttle_long_query? */
static bool
gate_limit_is_long(LsSession *s, int64 now)
{
	int64		inside_us;

	pg_read_barrier();			/* the caller has read the state; as in
								 * gate_go_inside() of gate.c */
	inside_us = now - (int64) pg_atomic_read_u64(&s->inside_since);
	return ls_read_throttle_long_query > 0 &&
		inside_us > (int64) ls_read_throttle_long_query * 1000;
}

static void
gate_limit_average_resting_step(const uint8 *kinds, bool lag_counts)
{
	static int	rounds = 0;
	bool		any_waits = pg_atomic_read_u32(&ls_gate->waiting) > 0;

	if (ls_read_throttle_turn == 0)
		gate_limit_average_resting = 0;
	else if (++rounds % REST_ROUNDS == 0)
		gate_limit_average_resting = ls_limit_average_resting(gate_limit_average_resting,
															  any_waits ? gate_limit_count_resting(kinds) : 0,
															  any_waits, lag_counts);
}

/*
 * Sessions that keep a place for their turn and sleep. One that has been woken and
 * has no CPU yet still says that it waits for its client; the kernel knows.
 */
static int
gate_limit_count_resting(const uint8 *kinds)
{
	int			resting = 0;

	for (int i = 0; i < ls_nsessions; i++)
	{
		if (kinds[i] == RESTING &&
			ls_sched_state((int) pg_atomic_read_u32(&ls_sessions[i].pid)) == 'S')
			resting++;
	}
	return resting;
}

/*
 * Marks the sessions for which places were added, so that ls_gate_end_exception()
 * takes the added place away when one of them counts again, or leaves.
 *
 * Called with those places added. Until here the marks of the last round stand: the
 * place of one that leaves in between goes from the capacity of that round at once.
 * Such a one is still among those counted, so its new mark is looked at again. A mark
 * that ends between the two steps takes a place from the new capacity which was not
 * in it. That is one too few until the next round, but never less than steady.
 */
static void
gate_limit_mark_exceptions(const uint8 *kinds, const LsGatePlaces *places)
{
	int			left[] = {
		[COUNTS] = 0,
		[EXCEPTION] = places->for_exceptions,
		[RESTING] = places->for_resting,
		[LONG] = places->for_longs
	};

	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];

		if (left[kinds[i]] == 0)
		{
			if (pg_atomic_read_u32(&s->excepted) != 0)
				pg_atomic_exchange_u32(&s->excepted, 0);
			continue;
		}
		left[kinds[i]]--;
		pg_atomic_exchange_u32(&s->excepted, 1);
		if (gate_limit_is_over(s, kinds[i]))
			ls_gate_end_exception(s);
	}
}

/* Has the session left, or gone on with its turn, since the census? */
static bool
gate_limit_is_over(LsSession *s, Kind kind)
{
	LsGateState held = pg_atomic_read_u32(&s->gate);

	return held != LS_GATE_KEPT && (kind == RESTING || held != LS_GATE_INSIDE);
}
