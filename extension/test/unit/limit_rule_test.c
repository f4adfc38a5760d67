/*
 * limit_rule_test.c - tables of the gate's limit, and models of a standby that the
 * rules must do well on.
 *
 * A model says how fast replay is beside a number of reads. Everything else, the clock
 * included, is made up here.
 */
#include "postgres.h"

#include "gate/limit_rule.h"
#include "tap.h"

#define STEP_US 100000
#define SECOND_US 1000000
#define CEILING 8
#define FLOOR 1
#define ALLOWED_US 100000
#define GIVE_UP_US (5 * SECOND_US)
/* WAL that the models' primary writes in a us. */
#define WRITTEN_RATE 10.0

/* ---- One step ---- */

/* A step of 0.1 s to a lag that is within bounds or not, from a phase and a limit. */
typedef struct StepRow
{
	const char *name;
	LsLimitPhase from;
	int			limit;
	bool		lagging;
	bool		busy;
	LsLimitPhase to;
	int			next;
} StepRow;

static const StepRow step_rows[] = {
	{"the first limit is the ceiling", LS_LIMIT_CALM, 0, false, false, LS_LIMIT_CALM, 8},
	{"also while replay lags", LS_LIMIT_CALM, 0, true, false, LS_LIMIT_CALM, 8},
	{"it grows by one", LS_LIMIT_CALM, 3, false, false, LS_LIMIT_CALM, 4},
	{"up to the ceiling", LS_LIMIT_CALM, 8, false, false, LS_LIMIT_CALM, 8},
	{"a ceiling that has fallen counts at once", LS_LIMIT_CALM, 20, false, false, LS_LIMIT_CALM, 8},
	{"the floor is held while it is watched", LS_LIMIT_LOWEST, 1, true, false, LS_LIMIT_LOWEST, 1},
	{"lag halves it", LS_LIMIT_CALM, 8, true, false, LS_LIMIT_SHRINKING, 4},
	{"and again", LS_LIMIT_SHRINKING, 5, true, false, LS_LIMIT_SHRINKING, 2},
	{"down to the floor", LS_LIMIT_SHRINKING, 1, true, false, LS_LIMIT_LOWEST, 1},
	{"lag of a busy startup process does not", LS_LIMIT_CALM, 6, true, true, LS_LIMIT_CALM, 7},
	{"nor any more once it is busy", LS_LIMIT_SHRINKING, 4, true, true, LS_LIMIT_CALM, 5},
	{"but lag is watched at the floor", LS_LIMIT_SHRINKING, 1, true, true, LS_LIMIT_LOWEST, 1},
	{"where being busy is not enough to leave", LS_LIMIT_LOWEST, 1, true, true, LS_LIMIT_LOWEST, 1},
	{"the end of lag ends shrinking", LS_LIMIT_SHRINKING, 2, false, false, LS_LIMIT_CALM, 3},
	{"the watch", LS_LIMIT_LOWEST, 1, false, false, LS_LIMIT_CALM, 2},
	{"the trial", LS_LIMIT_TRIAL, 8, false, false, LS_LIMIT_CALM, 8},
	{"and giving up", LS_LIMIT_GIVEN_UP, 8, false, false, LS_LIMIT_CALM, 8},
	{"a trial is held at the ceiling", LS_LIMIT_TRIAL, 3, true, false, LS_LIMIT_TRIAL, 8},
	{"as is what was given up", LS_LIMIT_GIVEN_UP, 3, true, false, LS_LIMIT_GIVEN_UP, 8},
};

/* Nothing is streamed: the limit grows from any phase, and the phase says why. */
static void
test_unknown(void)
{
	for (int from = LS_LIMIT_CALM; from <= LS_LIMIT_UNKNOWN; from++)
	{
		LsLimitState state = {.phase = from,.limit = 3};
		LsLimitInput in = {
			.now = STEP_US,.lag_unknown = true,.allowed_us = ALLOWED_US,.give_up_us = GIVE_UP_US,
			.ceiling = CEILING,.floor = FLOOR
		};

		ls_limit_step(&state, &in);
		ok(state.phase == LS_LIMIT_UNKNOWN && state.limit == 4 && !ls_limit_lag_counts(state.phase),
		   "not known whether replay lags, from %s: %s, %d", ls_limit_phase_name(from),
		   ls_limit_phase_name(state.phase), state.limit);
		in.lag_us = ALLOWED_US + 1;
		ls_limit_step(&state, &in);
		ok(state.phase == LS_LIMIT_SHRINKING, "lag in what was received: %s", ls_limit_phase_name(state.phase));
		in.lag_us = ALLOWED_US;
		ls_limit_step(&state, &in);
		ok(state.phase == LS_LIMIT_UNKNOWN, "replayed in part: %s", ls_limit_phase_name(state.phase));
		in.lag_unknown = false;
		ls_limit_step(&state, &in);
		ok(state.phase == LS_LIMIT_CALM, "streamed again without lag: %s", ls_limit_phase_name(state.phase));
	}
}

static void
test_steps(void)
{
	for (int i = 0; i < lengthof(step_rows); i++)
	{
		const StepRow *row = &step_rows[i];
		LsLimitState state = {.phase = row->from,.limit = row->limit,.watch_us = GIVE_UP_US};
		LsLimitInput in = {
			.now = STEP_US,.allowed_us = ALLOWED_US,.give_up_us = GIVE_UP_US,
			.lag_us = row->lagging ? ALLOWED_US + 1 : ALLOWED_US,
			.startup_busy = row->busy,.ceiling = CEILING,.floor = FLOOR
		};

		ls_limit_step(&state, &in);
		ok(state.phase == row->to && state.limit == row->next,
		   "%s: from %s, %d to %s, %d (is %s, %d)", row->name,
		   ls_limit_phase_name(row->from), row->limit, ls_limit_phase_name(row->to), row->next,
		   ls_limit_phase_name(state.phase), state.limit);
	}
}

/* ---- The end of a watch, a trial and of giving up ---- */

typedef struct JudgeRow
{
	const char *name;
	LsLimitPhase from;
	int64		elapsed_us;
	int64		lag_fell_us;	/* since the phase began */
	double		rate;			/* since then; at the floor it was 10 */
	int64		give_up_us;
	LsLimitPhase to;
	int64		watch_us;
} JudgeRow;

static const JudgeRow judge_rows[] = {
	{"a watch takes its time",
	LS_LIMIT_LOWEST, GIVE_UP_US - 1, 0, 10, GIVE_UP_US, LS_LIMIT_LOWEST, GIVE_UP_US},
	{"lag that stays leads to a trial",
	LS_LIMIT_LOWEST, GIVE_UP_US, 0, 10, GIVE_UP_US, LS_LIMIT_TRIAL, GIVE_UP_US},
	{"lag that grows, too",
	LS_LIMIT_LOWEST, GIVE_UP_US, -SECOND_US, 10, GIVE_UP_US, LS_LIMIT_TRIAL, GIVE_UP_US},
	{"so does lag that hardly falls",
	LS_LIMIT_LOWEST, GIVE_UP_US, GIVE_UP_US / 8 - 1, 10, GIVE_UP_US, LS_LIMIT_TRIAL, GIVE_UP_US},
	{"lag that falls is watched on",
	LS_LIMIT_LOWEST, GIVE_UP_US, GIVE_UP_US / 8, 10, GIVE_UP_US, LS_LIMIT_LOWEST, GIVE_UP_US},
	{"0 never gives up", LS_LIMIT_LOWEST, 100 * GIVE_UP_US, 0, 0, 0, LS_LIMIT_LOWEST, GIVE_UP_US},
	{"a trial takes its time", LS_LIMIT_TRIAL, GIVE_UP_US - 1, 0, 10, GIVE_UP_US, LS_LIMIT_TRIAL, GIVE_UP_US},
	{"replay that is as fast beside reads: given up",
	LS_LIMIT_TRIAL, GIVE_UP_US, 0, 10, GIVE_UP_US, LS_LIMIT_GIVEN_UP, 16 * GIVE_UP_US},
	{"nearly as fast: given up",
	LS_LIMIT_TRIAL, GIVE_UP_US, 0, 9.01, GIVE_UP_US, LS_LIMIT_GIVEN_UP, 16 * GIVE_UP_US},
	{"slower: back to the floor, for longer",
	LS_LIMIT_TRIAL, GIVE_UP_US, 0, 8.9, GIVE_UP_US, LS_LIMIT_LOWEST, 8 * GIVE_UP_US},
	{"a new attempt takes its time",
	LS_LIMIT_GIVEN_UP, GIVE_UP_US - 1, 0, 10, GIVE_UP_US, LS_LIMIT_GIVEN_UP, GIVE_UP_US},
	{"and comes", LS_LIMIT_GIVEN_UP, GIVE_UP_US, 0, 10, GIVE_UP_US, LS_LIMIT_SHRINKING, GIVE_UP_US},
};

static void
test_judgements(void)
{
	for (int i = 0; i < lengthof(judge_rows); i++)
	{
		const JudgeRow *row = &judge_rows[i];
		int64		lag_us = 100 * SECOND_US;
		LsLimitState state = {
			.phase = row->from,.limit = row->from == LS_LIMIT_LOWEST ? FLOOR : CEILING,
			.lag_us = lag_us,.watch_us = GIVE_UP_US,.lowest_rate = 10
		};
		LsLimitInput in = {
			.now = row->elapsed_us,.allowed_us = ALLOWED_US,.give_up_us = row->give_up_us,
			.lag_us = lag_us - row->lag_fell_us,
			.replayed = (uint64) (row->rate * row->elapsed_us),
			.ceiling = CEILING,.floor = FLOOR
		};

		ls_limit_step(&state, &in);
		ok(state.phase == row->to && state.watch_us == row->watch_us,
		   "%s (is %s for " INT64_FORMAT " us)",
		   row->name, ls_limit_phase_name(state.phase), state.watch_us);
	}
}

/* ---- Models ---- */

typedef struct Model
{
	const char *name;
	double		rate_alone;		/* bytes replayed in a us beside no read */
	double		rate_per_read;	/* what each read takes from that */
	double		least_at_floor; /* parts of the time, of the second half */
	double		least_at_ceiling;
	int64		most_lag_us;	/* at the end */
} Model;

#define RUN_US (INT64CONST(600) * SECOND_US)
#define ANY_LAG RUN_US

static const Model models[] = {
	{"replay that keeps up beside all reads", 20, 1, 0, 1, ALLOWED_US},
	{"slow storage, which reads do not touch", 5, 0, 0, 0.85, ANY_LAG},
	{"replay that is stopped", 0, 0, 0, 0.85, ANY_LAG},
	{"reads that cost replay what it needs", 14, 1, 0, 0, 2 * SECOND_US},
	{"replay that falls behind, but less with fewer reads", 9, 0.8, 0.85, 0, ANY_LAG},
	{"the same, where reads cost hardly anything", 9, 0.05, 0, 0.85, ANY_LAG},
};

/* Lag is the age of the oldest byte that is not replayed. */
static void
run(const Model *model)
{
	LsLimitState state = {0};
	double		replayed = 0;
	int64		lag_us = 0;
	int			steps = 0;
	int			at_floor = 0;
	int			at_ceiling = 0;

	for (int64 now = STEP_US; now <= RUN_US; now += STEP_US)
	{
		LsLimitInput in = {
			.now = now,.lag_us = lag_us,.allowed_us = ALLOWED_US,.give_up_us = GIVE_UP_US,
			.replayed = (uint64) replayed,.ceiling = CEILING,.floor = FLOOR
		};

		ls_limit_step(&state, &in);
		replayed += (model->rate_alone - model->rate_per_read * state.limit) * STEP_US;
		replayed = Min(replayed, WRITTEN_RATE * now);
		lag_us = now - (int64) (replayed / WRITTEN_RATE);
		if (now <= RUN_US / 2)
			continue;
		steps++;
		at_floor += state.limit == FLOOR;
		at_ceiling += state.limit == CEILING;
	}
	ok(at_floor >= model->least_at_floor * steps && at_ceiling >= model->least_at_ceiling * steps &&
	   lag_us <= model->most_lag_us,
	   "%s: at the floor %d %% of the time, at the ceiling %d %%, lag at the end " INT64_FORMAT " ms",
	   model->name, at_floor * 100 / steps, at_ceiling * 100 / steps, lag_us / 1000);
}

/* ---- Places beside other programs ---- */

typedef struct CrowdRow
{
	const char *name;
	bool		automatic;
	bool		lag_counts;
	double		others;
	double		readers_wait;
	double		replay_wait;
	int64		lag_us;
	int			before;
	int			after;
} CrowdRow;

static const CrowdRow crowd_rows[] = {
	{"others have half a core", true, false, 0.5, 0.5, 0, 0, 0, 1},
	{"others have little of it", true, false, 0.32, 0.5, 0, 0, 0, 0},
	{"sessions do not wait for it", true, false, 3, 0.1, 0, 0, 0, 0},
	{"the user's maximum stands", false, false, 0.5, 0.5, 0, 0, 0, 0},
	{"no places while lag counts", true, true, 0.5, 0.5, 0, 0, 16, 0},
	{"more are added", true, false, 0.1, 0.5, 0.49, ALLOWED_US / 6, 16, 21},
	{"not while replay waits", true, false, 0.1, 0.5, 0.5, 0, 16, 16},
	{"replay that gets no core takes half of them", true, false, 0.1, 0.5, 0.9, 0, 16, 8},
	{"with some lag no more are added", true, false, 0.1, 0.5, 0, ALLOWED_US / 6 + 1, 16, 16},
	{"more lag takes half of them", true, false, 0.1, 0.5, 0, ALLOWED_US / 3 + 1, 16, 8},
};

/* A core that its processes share; replay wants part of it. */
typedef struct CrowdModel
{
	const char *name;
	int			others;
	double		replay_wants;
	double		least_readers;	/* part of the core, on average over the second half */
	double		most_readers;
	int64		most_lag_us;	/* then */
} CrowdModel;

#define SESSIONS 128
/* Steps of a look at others. */
#define LOOK 18

static const CrowdModel crowd_models[] = {
	{"nothing else wants the core", 0, 0.1, 0.89, 0.9, 0},
	{"one other program, an idle primary", 1, 0, 0.98, 1, 0},
	{"12 of them", 12, 0, 0.9, 1, 0},
	{"one, and replay that needs little", 1, 0.02, 0.9, 1, 60000},
	{"12, and replay that needs little", 12, 0.02, 0.65, 1, 60000},
	{"12, and replay that needs more than it gets", 12, 0.2, 0, 0.1, INT64CONST(1000) * SECOND_US},
};

static void
run_crowd(const CrowdModel *model)
{
	LsCrowdState state = {0};
	double		backlog_us = 0;	/* CPU that replay still needs */
	double		readers_sum = 0;
	int64		most_lag_us = 0;
	const int	steps = 6000;

	for (int step = 0; step < steps; step++)
	{
		int			inside = Min(1 + state.places, SESSIONS);
		double		fair = 1.0 / (1 + inside + model->others);
		double		wants = model->replay_wants + backlog_us / STEP_US;
		double		replay = Min(wants, fair);
		double		readers = (1 - replay) * inside / (inside + model->others);
		int64		lag_us;

		backlog_us += (model->replay_wants - replay) * STEP_US;
		lag_us = model->replay_wants == 0 ? 0 : (int64) (backlog_us / model->replay_wants);
		ls_limit_step_crowd(&state, &(LsCrowdInput) {
			.now = (int64) step * STEP_US,.automatic = true,
				.lag_counts = lag_us > ALLOWED_US,.waiting = SESSIONS - inside,
				.others = 1 - readers - replay,.readers_wait = 1 - readers / inside,
				.replay_wait = wants > replay ? 1 - replay : 0,
				.replay_works = replay > 0.01,.lag_us = lag_us,.allowed_us = ALLOWED_US
		});
		if (step < steps / 2)
			continue;
		readers_sum += readers / (steps / 2);
		most_lag_us = Max(most_lag_us, lag_us);
	}
	ok(readers_sum >= model->least_readers && readers_sum <= model->most_readers &&
	   most_lag_us <= model->most_lag_us,
	   "%s: readers have %.3f of the core, lag is " INT64_FORMAT " ms at most",
	   model->name, readers_sum, most_lag_us / 1000);
}

/* One account in four says that others have most of the core: the clients of a moment, not a program. */
static void
test_no_crowd(void)
{
	LsCrowdState state = {0};
	int			most = 0;

	for (int step = 0; step < 6000; step++)
	{
		ls_limit_step_crowd(&state, &(LsCrowdInput) {
			.now = (int64) step * STEP_US,.automatic = true,.waiting = 100,
				.others = step % 4 == 0 ? 0.8 : 0.1,.readers_wait = 0.9,.replay_wait = 0.05,
				.replay_works = true,.allowed_us = ALLOWED_US
		});
		most = Max(most, state.places);
	}
	ok(most == 0, "no places for what only seems to be others (at most %d)", most);
}

static void
test_crowd(void)
{
	for (int i = 0; i < lengthof(crowd_rows); i++)
	{
		const CrowdRow *row = &crowd_rows[i];
		LsCrowdState state = {.places = row->before};

		/* without places: as long as others are looked at */
		for (int step = 0; step < (row->before > 0 ? 1 : LOOK); step++)
			ls_limit_step_crowd(&state, &(LsCrowdInput) {
				.now = STEP_US,.automatic = row->automatic,.lag_counts = row->lag_counts,.waiting = 100,
					.others = row->others,.readers_wait = row->readers_wait,.replay_wait = row->replay_wait,
					.replay_works = true,.lag_us = row->lag_us,.allowed_us = ALLOWED_US
			});
		ok(state.places == row->after, "%s: from %d to %d (is %d)", row->name, row->before, row->after,
		   state.places);
	}
	for (int i = 0; i < lengthof(crowd_models); i++)
		run_crowd(&crowd_models[i]);
	test_no_crowd();
}

/* ---- The ceiling ---- */

typedef struct CeilingRow
{
	int			max;
	int			floor;
	int			cores;
	bool		core_for_startup;
	int			ceiling;
} CeilingRow;

static const CeilingRow ceiling_rows[] = {
	{0, 1, 1, false, 1}, {0, 1, 1, true, 1},
	{0, 1, 2, false, 2}, {0, 1, 2, true, 1},
	{0, 1, 8, false, 8}, {0, 1, 8, true, 7},
	/* a floor above that is the user's word, and so is a maximum */
	{0, 8, 8, true, 8}, {0, 20, 8, false, 20},
	{8, 1, 8, true, 8}, {5, 1, 2, true, 5}, {2, 3, 8, false, 3},
};

static void
test_ceiling(void)
{
	bool		kept = false;
	static const struct
	{
		double		share;
		bool		kept;
	}			shares[] = {
		{0.1, false}, {0.49, false}, {0.5, true}, {0.3, true}, {0.25, true}, {0.24, false}, {0.4, false}
	};

	for (int i = 0; i < lengthof(ceiling_rows); i++)
	{
		const CeilingRow *row = &ceiling_rows[i];
		int			ceiling = ls_limit_ceiling(row->max, row->floor, row->cores, row->core_for_startup);

		ok(ceiling == row->ceiling, "maximum %d, floor %d, %d cores, startup %s: ceiling %d (is %d)",
		   row->max, row->floor, row->cores, row->core_for_startup ? "busy" : "not busy",
		   row->ceiling, ceiling);
	}
	for (int i = 0; i < lengthof(shares); i++)
	{
		kept = ls_limit_core_for_startup(kept, shares[i].share);
		ok(kept == shares[i].kept, "startup on a core %.0f %% of the time, next: its own core: %s",
		   shares[i].share * 100, shares[i].kept ? "yes" : "no");
	}
}

/* ---- Places ---- */

typedef struct PlacesRow
{
	const char *name;
	int			limit;
	int			floor;
	double		average_resting;
	LsGateCensus census;		/* unasked, exceptions, resting, longs */
	int			steady;
	int			all;
} PlacesRow;

static const PlacesRow places_rows[] = {
	{"the limit", 4, 1, 0, {0, 0, 0, 0}, 4, 4},
	{"those without a place count", 4, 1, 0, {2, 0, 0, 0}, 2, 2},
	{"but leave the floor", 4, 2, 0, {9, 0, 0, 0}, 2, 2},
	{"exceptions are added", 4, 1, 0, {0, 3, 0, 0}, 4, 7},
	{"one long query beside the floor", 1, 1, 0, {0, 0, 0, 1}, 1, 2},
	{"five of them", 1, 1, 0, {0, 0, 0, 5}, 1, 6},
	{"a higher floor", 2, 2, 0, {0, 0, 0, 2}, 2, 4},
	{"long queries count above the floor", 8, 1, 0, {0, 0, 0, 5}, 8, 8},
	{"and leave it", 8, 2, 0, {0, 0, 0, 7}, 8, 9},
	{"with queries without a place", 4, 1, 0, {9, 0, 0, 2}, 1, 3},
	{"a session that rests", 1, 1, 0, {0, 0, 1, 0}, 1, 2},
	{"one on average", 1, 1, 1, {0, 0, 0, 0}, 2, 2},
	{"the same one is not added twice", 1, 1, 1, {0, 0, 1, 0}, 2, 2},
	{"more than on average", 1, 1, 1.4, {0, 0, 3, 0}, 2, 4},
	{"the average is rounded", 1, 1, 0.5, {0, 0, 0, 0}, 2, 2},
	{"down as well", 1, 1, 0.49, {0, 0, 0, 0}, 1, 1},
};

static void
test_places(void)
{
	for (int i = 0; i < lengthof(places_rows); i++)
	{
		const PlacesRow *row = &places_rows[i];
		LsGatePlaces places = ls_limit_places(row->limit, row->floor, row->average_resting, &row->census);
		int			all = places.steady + places.for_exceptions + places.for_resting + places.for_longs;

		ok(places.steady == row->steady && all == row->all, "%s: %d places, %d of them steady (are %d, %d)",
		   row->name, row->all, row->steady, all, places.steady);
	}
}

/*
 * Clients that leave their sessions idle for most of the time: as many sessions are
 * inside as the limit is about, which is how many execute.
 */
static void
test_resting(void)
{
	static const struct
	{
		int			limit;
		double		idle;		/* part of the time, of each session */
		int			clients;
		int			inside;		/* in the end */
	}			rows[] = {
		{1, 0, 128, 1}, {1, 0.3, 128, 1}, {1, 0.5, 128, 2}, {2, 0.5, 128, 4},
		{2, 0.9, 6, 6}, {1, 0.9, 6, 6}, {8, 0.05, 128, 8}
	};

	for (int i = 0; i < lengthof(rows); i++)
	{
		double		average = 0;
		int			inside = rows[i].limit;

		for (int sample = 0; sample < 1000; sample++)
		{
			LsGateCensus none = {0};
			int			resting = (int) (rows[i].idle * inside + 0.5);

			average = ls_limit_average_resting(average, resting, inside < rows[i].clients, false);
			inside = Min(ls_limit_places(rows[i].limit, FLOOR, average, &none).steady, rows[i].clients);
		}
		ok(abs(inside - rows[i].inside) <= 1,
		   "%d clients that are idle %.0f %% of the time, limit %d: %d inside (are %d)",
		   rows[i].clients, rows[i].idle * 100, rows[i].limit, rows[i].inside, inside);
	}
	ok(ls_limit_average_resting(4, 0, false, false) > 3.9,
	   "what was seen holds for a while when nobody waits");
	ok(ls_limit_average_resting(4, 0, false, true) < 3.1, "but not while lag counts");
}

int
main(void)
{
	test_steps();
	test_unknown();
	test_judgements();
	for (int i = 0; i < lengthof(models); i++)
		run(&models[i]);
	test_crowd();
	test_ceiling();
	test_places();
	test_resting();
	return done_testing();
}
