/*
 * demotion_rule_test.c - when sessions are demoted, as a table and with models of a core.
 */
#include "postgres.h"

#include "priority/demotion_rule.h"
#include "tap.h"

#define MS INT64CONST(1000)

/* ---- One step ---- */

typedef struct StepRow
{
	const char *name;
	bool		always;
	bool		short_slices;
	double		replay_wait;
	double		readers;
	double		normal_readers;
	int64		lag_us;
	int64		allowed_us;
	LsDemotionStep step;
} StepRow;

static const StepRow rows[] = {
	{"nothing to replay, readers have the core", false, false, 0, 1, 1, 0, 100 * MS, LS_DEMOTE_NONE},
	{"the same with slices", false, true, 0, 1, 1, 0, 100 * MS, LS_DEMOTE_NONE},
	{"replay waits for a core that readers have", false, false, 0.3, 0.8, 0.8, 5 * MS, 100 * MS, LS_DEMOTE_ONE_MORE},
	{"with slices only once it lags", false, true, 0.3, 0.8, 0.8, 5 * MS, 100 * MS, LS_DEMOTE_NONE},
	{"near the bound nothing changes", false, true, 0.3, 0.8, 0.8, 60 * MS, 100 * MS, LS_DEMOTE_AS_NOW},
	{"it lags", false, true, 0.3, 0.8, 0.8, 101 * MS, 100 * MS, LS_DEMOTE_ONE_MORE},
	{"it lags for another reason than the CPU", false, true, 0, 0.8, 0.8, 5000 * MS, 100 * MS, LS_DEMOTE_NONE},
	{"and without slices", false, false, 0, 0.8, 0.8, 5000 * MS, 100 * MS, LS_DEMOTE_NONE},
	{"the user's bound counts", false, true, 0.3, 0.8, 0.8, 101 * MS, 1000 * MS, LS_DEMOTE_NONE},
	{"no bound: the usual one", false, true, 0.3, 0.8, 0.8, 101 * MS, 0, LS_DEMOTE_ONE_MORE},
	{"a short wait is no lack", false, false, 0.05, 0.8, 0.8, 5 * MS, 100 * MS, LS_DEMOTE_NONE},
	{"a longer one changes nothing", false, false, 0.07, 0.8, 0.8, 5 * MS, 100 * MS, LS_DEMOTE_AS_NOW},
	{"all who have the core are demoted", false, false, 0.3, 0.8, 0.05, 5 * MS, 100 * MS, LS_DEMOTE_AS_NOW},
	{"others have it, not readers", false, false, 0.9, 0.07, 0.07, 500 * MS, 100 * MS, LS_DEMOTE_AS_NOW},
	{"demoted readers have nothing left", false, false, 0.9, 0.02, 0, 500 * MS, 100 * MS, LS_DEMOTE_NONE},
	{"nor with slices", false, true, 0.9, 0.02, 0, 500 * MS, 100 * MS, LS_DEMOTE_NONE},
	{"waits are not known, and it lags", false, false, -1, 0.8, 0.8, 101 * MS, 100 * MS, LS_DEMOTE_ONE_MORE},
	{"or does not", false, false, -1, 0.8, 0.8, 50 * MS, 100 * MS, LS_DEMOTE_NONE},
	{"or hardly", false, false, -1, 0.8, 0.8, 51 * MS, 100 * MS, LS_DEMOTE_AS_NOW},
	{"always", true, true, 0, 0, 0, 0, 100 * MS, LS_DEMOTE_ONE_MORE},
};

/* ---- Models ---- */

#define NORMAL_WEIGHT 1024.0
#define LOW_WEIGHT 15.0

/*
 * A core without slices that its processes share by weight. Replay wants a part of it; so
 * many readers, and programs of others, want all that they can get.
 */
typedef struct Model
{
	const char *name;
	double		replay_wants;
	int			readers;
	int			others;
	double		least_replay;	/* part of the core, on average over the second half */
	double		least_readers;
} Model;

static const Model models[] = {
	{"an idle primary", 0, 8, 0, 0, 0.99},
	{"an idle primary beside 12 programs", 0, 8, 12, 0, 8.0 / 20 - 0.001},
	{"a busy one: replay has what it wants", 0.5, 8, 0, 0.45, 0.4},
	{"replay that wants it all", 1, 8, 0, 0.85, 0.05},
	{"beside 12 programs: readers keep something", 0.5, 8, 12, 0.05, 0.02},
};

static void
run(const Model *model)
{
	int			low = 0;
	double		replay_sum = 0;
	double		readers_sum = 0;
	const int	steps = 2000;

	for (int step = 0; step < steps; step++)
	{
		double		normal = (model->readers - low) * NORMAL_WEIGHT;
		double		rest = normal + low * LOW_WEIGHT + model->others * NORMAL_WEIGHT;
		double		fair = NORMAL_WEIGHT / (NORMAL_WEIGHT + rest);
		double		replay = Min(model->replay_wants, fair);
		double		left = 1 - replay;
		LsDemotionInput in = {
			.replay_wait = model->replay_wants > replay ? 1 - replay : 0,
			.readers = left * (normal + low * LOW_WEIGHT) / rest,
			.normal_readers = left * normal / rest,
			.lag_us = 0,.allowed_us = 100 * MS
		};
		LsDemotionStep next = ls_demotion_step(&in);

		if (next == LS_DEMOTE_ONE_MORE)
			low = Min(low + 1, model->readers);
		else if (next == LS_DEMOTE_NONE)
			low = Max(low - 1, 0);
		if (step >= steps / 2)
		{
			replay_sum += replay / (steps / 2);
			readers_sum += in.readers / (steps / 2);
		}
	}
	ok(replay_sum >= model->least_replay && readers_sum >= model->least_readers,
	   "%s: replay has %.3f of the core, readers %.3f", model->name, replay_sum, readers_sum);
}

int
main(void)
{
	for (int i = 0; i < lengthof(rows); i++)
	{
		LsDemotionInput in = {
			.always = rows[i].always,.short_slices = rows[i].short_slices,
			.replay_wait = rows[i].replay_wait,.readers = rows[i].readers,
			.normal_readers = rows[i].normal_readers,
			.lag_us = rows[i].lag_us,.allowed_us = rows[i].allowed_us
		};
		LsDemotionStep step = ls_demotion_step(&in);

		ok(step == rows[i].step, "%s: %s (is %s)", rows[i].name,
		   ls_demotion_step_name(rows[i].step), ls_demotion_step_name(step));
	}
	for (int i = 0; i < lengthof(models); i++)
		run(&models[i]);
	return done_testing();
}
