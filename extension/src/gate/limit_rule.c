/*
 * limit_rule.c - how the gate's limit moves, decided without I/O and clock.
 *
 * Purpose: what gate_limit.c measures comes in as arguments, and what it does with
 * the answer is its affair. extension/test/unit/limit_rule_test.c holds these rules
 * as tables and drives them with models of a standby.
 *
 * The limit: while lag is within bounds it grows by one with each step, up to its
 * ceiling. Lag over the bound halves it with each step, down to its floor.
 *
 * Fewer reads cannot cure every lag. If the startup process has a core for itself
 * they would give it nothing, so above the floor such lag is no reason to shrink.
 * Slow storage stays slow without reads, so at the floor lag is watched. If it has
 * not fallen after lockstep.read_throttle_give_up the limit goes back to its ceiling
 * for as long, which is a trial. If replay is no slower beside all these reads the
 * limit stays there, and lag counts no more; RETRY times later all is tried anew. If
 * replay is slower the limit goes back to its floor, and the next trial comes after
 * REST times as long.
 *
 * Beside other programs: the kernel divides a core among all that want it. Where 128 sessions
 * read and one executes at a time, a busy program of others gets half a core instead of a
 * 129th. So while others have a good part of a core, and sessions inside wait for it, places
 * are added to the limit, as long as replay has what it needs: lag far below the bound, and
 * processes that get a core when they want one. Added
 * places hide what others would take beside the limit alone. So from time to time the
 * limit is that alone for a moment, if replay works; where it does not, the places cost it nothing.
 *
 * Rates are of bytes: WAL that differs from one piece to the next can mislead a
 * trial. That costs reads, or lag, until the next one.
 *
 * Runs in the controller; no shared state.
 */
#include "postgres.h"

#include "gate/limit_rule.h"

/* Lag that falls by this part of the time or more is being cured: one eighth. */
#define CURED_PART 8
/* Replay at this share of its rate at the floor is no slower. */
#define NO_SLOWER 0.9
/* Periods of lockstep.read_throttle_give_up from a trial to the next one. */
#define REST 8
/* Such periods from giving up until all is tried anew. */
#define RETRY 16

/* Share of a core from which startup gets one, and below which it loses it. */
#define CORE_FROM 0.5
#define CORE_UNTIL 0.25

/* Part of a sample in the average of resting sessions, and of forgetting it. */
#define SAMPLE_PART 4
#define FORGET_PART 256

/* Cores from which others count, and part of the time that sessions wait for a core. */
#define OTHERS_FROM 0.45
#define READERS_WAIT_FROM 0.2
/*
 * Divisors of the allowed lag: up to a sixth of it places are added, above a third half of them are taken away.
 */
#define ADD_PART 6
#define TAKE_PART 3
/* The bound where the user has set none. */
#define USUAL_ALLOWED_US INT64CONST(100000)
/*
 * Parts of the time that replay waits for a core: below ADD_BELOW places are added, from TAKE_FROM on half of
 * them are taken away. Lag alone is not enough: it does not count WAL that a walreceiver without a core has
 * not received yet.
 */
#define ADD_BELOW 0.5
#define TAKE_FROM 0.9
/* Time between two looks at what others take. */
#define LOOK_EVERY_US INT64CONST(60000000)
/* Steps until accounts are of the look alone, and then of a look. */
#define SETTLE_STEPS 3
#define LOOK_STEPS 15

static void limit_rule_look_at_others(LsCrowdState *state, const LsCrowdInput *in);
static void limit_rule_choose_phase(LsLimitState *state, const LsLimitInput *in);
static void limit_rule_enter(LsLimitState *state, const LsLimitInput *in, LsLimitPhase phase, int64 watch_us);
static void limit_rule_judge_lowest(LsLimitState *state, const LsLimitInput *in);
static double limit_rule_rate_since(const LsLimitState *state, const LsLimitInput *in);
static void limit_rule_judge_trial(LsLimitState *state, const LsLimitInput *in);
static int limit_rule_next(const LsLimitState *state, const LsLimitInput *in);

const char *
ls_limit_phase_name(LsLimitPhase phase)
{
	switch (phase)
	{
		case LS_LIMIT_CALM:
			return "calm";
		case LS_LIMIT_SHRINKING:
			return "shrinking";
		case LS_LIMIT_LOWEST:
			return "lowest";
		case LS_LIMIT_TRIAL:
			return "trial";
		case LS_LIMIT_GIVEN_UP:
			return "given up";
		case LS_LIMIT_UNKNOWN:
			return "unknown";
	}
	return "unknown";
}

/* Is lag a reason to hold queries back at this moment? */
bool
ls_limit_lag_counts(LsLimitPhase phase)
{
	return phase == LS_LIMIT_SHRINKING || phase == LS_LIMIT_LOWEST;
}

/* To be called once in each period of equal length. */
void
ls_limit_step(LsLimitState *state, const LsLimitInput *in)
{
	if (state->limit == 0)
		state->limit = in->ceiling;
	else
	{
		limit_rule_choose_phase(state, in);
		state->limit = limit_rule_next(state, in);
	}
	state->limit = Min(Max(state->limit, in->floor), in->ceiling);
}

/* Places beside other programs. To be called once in each period of equal length. */
void
ls_limit_step_crowd(LsCrowdState *state, const LsCrowdInput *in)
{
	int64		allowed_us = in->allowed_us > 0 ? in->allowed_us : USUAL_ALLOWED_US;

	if (!in->automatic || in->lag_counts)
	{
		memset(state, 0, sizeof(*state));
		return;
	}
	if (state->places == 0 || in->now - state->looked_at >= LOOK_EVERY_US)
	{
		limit_rule_look_at_others(state, in);
		return;
	}
	if (in->lag_us > allowed_us / TAKE_PART || in->replay_wait >= TAKE_FROM)
		state->places /= 2;
	else if (in->waiting > 0 && in->lag_us <= allowed_us / ADD_PART && in->replay_wait < ADD_BELOW)
		state->places += state->places / 4 + 1;
}

/*
 * max: lockstep.read_throttle_max. Without one it is a query for each core, but
 * for the core that a busy startup process needs, if there is more than one.
 */
int
ls_limit_ceiling(int max, int floor, int cores, bool core_for_startup)
{
	int			ceiling = max;

	if (max == 0)
		ceiling = core_for_startup && cores > 1 ? cores - 1 : cores;
	return Max(ceiling, floor);
}

/* busy_share: part of the time that the startup process has been on a core. */
bool
ls_limit_core_for_startup(bool before, double busy_share)
{
	return busy_share >= (before ? CORE_UNTIL : CORE_FROM);
}

/*
 * The average number of sessions that rest between two queries of a turn, with one
 * sample more. While nobody waits no session keeps its place, so there is nothing to
 * be seen. What is known then holds for a while: otherwise clients with short
 * queries would wait at the gate again and again until it is found out.
 */
double
ls_limit_average_resting(double average, int resting, bool any_waits, bool lag_counts)
{
	if (any_waits || lag_counts)
		return average + (resting - average) / SAMPLE_PART;
	return average - average / FORGET_PART;
}

/*
 * Places: what queries without a place leave of the limit, though at least the
 * floor, and those that are added.
 *
 * Sessions that rest need no CPU. As many places more as rest on average stay added
 * whatever one of them does next. Without that, sessions with short queries would
 * keep their places while they wait for their clients, and the cores be idle.
 *
 * While lag counts, long queries count as well, but always leave the floor to
 * others: one report does not keep all short queries out.
 */
LsGatePlaces
ls_limit_places(int limit, int floor, double average_resting, const LsGateCensus *census)
{
	LsGatePlaces places;
	int			always = (int) (average_resting + 0.5);
	int			others = Max(limit - census->unasked, floor);

	places.steady = others + always;
	places.for_exceptions = census->exceptions;
	places.for_resting = Max(census->resting - always, 0);
	places.for_longs = Max(floor - (others - census->longs), 0);
	return places;
}

/* What others take is seen while no places are added, as an average: a single account says little. */
static void
limit_rule_look_at_others(LsCrowdState *state, const LsCrowdInput *in)
{
	if (state->places > 0)
	{
		state->looked_at = in->now;
		if (!in->replay_works)
			return;
		state->places_before = state->places;
		state->places = 0;
		return;
	}
	state->steps++;
	if (state->steps <= SETTLE_STEPS)
		return;
	state->others += in->others / LOOK_STEPS;
	state->readers_wait += in->readers_wait / LOOK_STEPS;
	if (state->steps < SETTLE_STEPS + LOOK_STEPS)
		return;
	if (state->others >= OTHERS_FROM && state->readers_wait >= READERS_WAIT_FROM && in->waiting > 0)
		state->places = Max(state->places_before, 1);
	state->places_before = 0;
	state->looked_at = in->now;
	state->steps = 0;
	state->others = state->readers_wait = 0;
}

static void
limit_rule_choose_phase(LsLimitState *state, const LsLimitInput *in)
{
	if (in->allowed_us == 0 || in->lag_us <= in->allowed_us)
	{
		state->phase = in->lag_unknown ? LS_LIMIT_UNKNOWN : LS_LIMIT_CALM;
		return;
	}
	switch (state->phase)
	{
		case LS_LIMIT_CALM:
		case LS_LIMIT_UNKNOWN:
			if (!in->startup_busy)
				state->phase = LS_LIMIT_SHRINKING;
			break;
		case LS_LIMIT_SHRINKING:
			if (state->limit <= in->floor)
				limit_rule_enter(state, in, LS_LIMIT_LOWEST, in->give_up_us);
			else if (in->startup_busy)
				state->phase = LS_LIMIT_CALM;
			break;
		case LS_LIMIT_LOWEST:
			limit_rule_judge_lowest(state, in);
			break;
		case LS_LIMIT_TRIAL:
			limit_rule_judge_trial(state, in);
			break;
		case LS_LIMIT_GIVEN_UP:
			if (in->now - state->since >= state->watch_us)
				state->phase = LS_LIMIT_SHRINKING;
			break;
	}
}

static void
limit_rule_enter(LsLimitState *state, const LsLimitInput *in, LsLimitPhase phase, int64 watch_us)
{
	state->phase = phase;
	state->since = in->now;
	state->lag_us = in->lag_us;
	state->replayed = in->replayed;
	state->watch_us = watch_us;
}

static void
limit_rule_judge_lowest(LsLimitState *state, const LsLimitInput *in)
{
	int64		elapsed = in->now - state->since;

	if (in->give_up_us == 0 || elapsed < state->watch_us)
		return;
	if ((state->lag_us - in->lag_us) * CURED_PART >= elapsed)
	{
		limit_rule_enter(state, in, LS_LIMIT_LOWEST, in->give_up_us);
		return;
	}
	state->lowest_rate = limit_rule_rate_since(state, in);
	limit_rule_enter(state, in, LS_LIMIT_TRIAL, in->give_up_us);
}

static double
limit_rule_rate_since(const LsLimitState *state, const LsLimitInput *in)
{
	return (double) (in->replayed - state->replayed) / (double) Max(in->now - state->since, 1);
}

static void
limit_rule_judge_trial(LsLimitState *state, const LsLimitInput *in)
{
	if (in->now - state->since < state->watch_us)
		return;
	if (limit_rule_rate_since(state, in) >= state->lowest_rate * NO_SLOWER)
		limit_rule_enter(state, in, LS_LIMIT_GIVEN_UP, in->give_up_us * RETRY);
	else
		limit_rule_enter(state, in, LS_LIMIT_LOWEST, in->give_up_us * REST);
}

static int
limit_rule_next(const LsLimitState *state, const LsLimitInput *in)
{
	switch (state->phase)
	{
		case LS_LIMIT_CALM:
		case LS_LIMIT_UNKNOWN:
			return state->limit + 1;
		case LS_LIMIT_SHRINKING:
			return state->limit / 2;
		case LS_LIMIT_LOWEST:
			return in->floor;
		case LS_LIMIT_TRIAL:
		case LS_LIMIT_GIVEN_UP:
			return in->ceiling;
	}
	return state->limit;
}
