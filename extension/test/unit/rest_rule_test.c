/*
 * rest_rule_test.c - for how many records helpers rest where processes wait for cores, and models
 * of servers that the rule must do well on.
 */
#include "postgres.h"

#include "replay/rest_rule.h"
#include "tap.h"

/* Records between two looks at the cores. */
#define LOOK 200000

/* So many records of 100 bytes, at a speed of records in a microsecond. */
static LsReplayed
replayed_at(uint64 records, double speed)
{
	LsReplayed	replayed = {.records = records,.bytes = records * 100,
	.us = (uint64) ((double) records / speed)};

	return replayed;
}

static uint32
step(LsRestState *state, bool crowded, double speed)
{
	LsReplayed	replayed = replayed_at(LOOK, speed);

	return ls_rest_step(state, crowded, &replayed);
}

static void
rest(LsRestState *state, uint32 records, double speed)
{
	LsReplayed	replayed = replayed_at(records, speed);
	LsReplayed	unknown = {0};

	ls_rest_ended(state, speed > 0 ? &replayed : &unknown);
}

static void
test_steps(void)
{
	LsRestState state;
	uint32		records;
	LsReplayed	large = {.records = LOOK / 4,.bytes = (uint64) LOOK * 400,.us = LOOK};

	ls_rest_begin(&state);
	ok(step(&state, false, 1) == 0, "while nobody waits for a core, helpers go on");
	ok(step(&state, true, 1) == LS_REST, "when one first does, they rest");
	rest(&state, LS_REST, 0.9);
	ok(step(&state, true, 1) == 0, "faster than in the rest: they go on");
	records = LOOK;
	while (step(&state, true, 0.1) == 0)
		records += LOOK;
	ok(records >= 4 * LS_REST && records < 6 * LS_REST,
	   "for a while, slow or not (%u records), and rest again", records);
	rest(&state, LS_REST, 0.9);
	ok(step(&state, true, 1) == 0, "faster again");
	for (records = 0; step(&state, true, 1) == 0;)
		records += LOOK;
	ok(records >= 7 * LS_REST && records < 10 * LS_REST,
	   "they go on for twice as long (%u records)", records);

	ls_rest_begin(&state);
	records = step(&state, true, 1);
	rest(&state, records, 1.1);
	ok(step(&state, true, 1) == 2 * LS_REST, "slower than in the rest: they rest for longer");
	rest(&state, 2 * LS_REST, 1);
	ok(step(&state, true, 1) == 4 * LS_REST, "no faster is not enough");
	for (int i = 0; i < 10; i++)
	{
		rest(&state, LS_REST, 1.1);
		records = step(&state, true, 1);
	}
	ok(records == 16 * LS_REST, "no rest is longer than %u records", records);
	rest(&state, records, 0);
	ok(step(&state, true, 1) == LS_REST, "where replay waited for WAL, nothing is known");
	rest(&state, LS_REST, 1.1);
	for (int i = 0; i < 7; i++)
		step(&state, false, 1);
	ok(step(&state, true, 1.2) == LS_REST, "what is long ago does not count");
	rest(&state, LS_REST, 2);
	ok(ls_rest_step(&state, true, &large) != 0, "large records count for their bytes, a quarter of them");
	large.us /= 4;
	rest(&state, LS_REST, 2);
	ok(ls_rest_step(&state, true, &large) == 0, "and can be faster");
}

typedef struct Model
{
	const char *name;
	double		helped;			/* records in a microsecond with helpers */
	double		alone;			/* and without */
	double		least;			/* share of the better of the two that must be reached */
} Model;

/* Somebody waits for a core at each look. */
static const Model models[] = {
	{"a walreceiver takes little", 1.3, 1.0, 0.96},
	{"other processes take slices", 0.8, 1.0, 0.97},
	{"no difference", 1.0, 1.0, 1.0},
	{"helpers stand still", 0.1, 1.0, 0.95},
};

static void
test_models(void)
{
	for (int i = 0; i < lengthof(models); i++)
	{
		const Model *model = &models[i];
		double		best = Max(model->helped, model->alone);
		double		us = 0;
		double		records = 0;
		LsRestState state;

		ls_rest_begin(&state);
		while (records < 100e6)
		{
			/* a look comes after a tenth of a second */
			LsReplayed	replayed = replayed_at((uint64) (model->helped * 100000), model->helped);
			uint32		resting = ls_rest_step(&state, true, &replayed);

			records += (double) replayed.records + resting;
			us += (double) replayed.us + resting / model->alone;
			if (resting > 0)
				rest(&state, resting, model->alone);
		}
		ok(records / us >= model->least * best * 0.999, "%s: %.2f of what is best (%.2f is asked for)",
		   model->name, records / us / best, model->least);
	}
}

int
main(void)
{
	test_steps();
	test_models();
	return done_testing();
}
