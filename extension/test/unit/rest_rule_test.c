/*
 * rest_rule_test.c - when and for how many records helpers rest, and models of servers that the
 * rule must do well on.
 */
#include "postgres.h"

#include "replay/rest_rule.h"
#include "tap.h"

/* Records between two looks at the cores. */
#define LOOK (100 * 1000)

/* So many records of 100 bytes, at a speed of records in a microsecond. */
static LsReplayed
replayed_at(uint64 records, double speed)
{
	LsReplayed	replayed = {.records = records,.done = records / 2,.bytes = records * 100,
	.us = (uint64) ((double) records / speed)};

	return replayed;
}

static uint32
step(LsRestState *state, bool crowded, double speed)
{
	LsReplayed	replayed = replayed_at(LOOK, speed);

	return ls_rest_step(state, crowded, &replayed);
}

/* A rest at one speed, 0: not known, and steps until the trial after it is judged. */
static uint32
judged(LsRestState *state, double alone, double helped)
{
	LsReplayed	resting = replayed_at(LS_REST, alone > 0 ? alone : 1);
	LsReplayed	unknown = {0};
	uint32		rest = 0;

	ls_rest_ended(state, alone > 0 ? &resting : &unknown);
	while (rest == 0 && state->trial > 0)
		rest = step(state, true, helped);
	return rest;
}

/* Steps until helpers rest, in records. */
static uint32
goes_on(LsRestState *state)
{
	uint32		records = 0;

	while (step(state, true, 0.1) == 0)
		records += LOOK;
	return records;
}

static void
test_steps(void)
{
	LsRestState state;
	LsReplayed	little = replayed_at(LOOK, 1);
	LsReplayed	large = {.records = LOOK / 4,.done = LOOK / 4,.bytes = (uint64) LOOK * 400,.us = LOOK};
	uint32		rest;

	ls_rest_begin(&state);
	ok(step(&state, false, 1) == 0, "while nobody waits for a core, helpers go on");
	ok(step(&state, true, 1) == LS_REST, "when one first does, they rest");
	ok(judged(&state, 0.9, 1) == 0, "faster than in the rest: they go on");
	rest = goes_on(&state);
	ok(rest >= 8 * LS_REST && rest < 8 * LS_REST + LOOK, "whatever comes, for %u records", rest);
	ok(judged(&state, 0.9, 1) == 0, "faster again");
	rest = goes_on(&state);
	ok(rest >= 16 * LS_REST && rest < 16 * LS_REST + LOOK, "for twice as many: %u", rest);

	little.done = LOOK / 4;
	ls_rest_begin(&state);
	ok(ls_rest_step(&state, false, &little) == 0, "of four records one is enough");
	little.done--;
	ok(ls_rest_step(&state, false, &little) == LS_REST, "who does less rests");
	ok(judged(&state, 0.9, 1) == 0, "but if replay is faster with it, it goes on");

	ls_rest_begin(&state);
	(void) step(&state, true, 1);
	ok(judged(&state, 1.1, 1) == 2 * LS_REST, "slower than in the rest: they rest for longer");
	ok(judged(&state, 1, 1) == 4 * LS_REST, "no faster is not enough");
	for (int i = 0; i < 10; i++)
		rest = judged(&state, 1.1, 1);
	ok(rest == 16 * LS_REST, "no rest is longer than %u records", rest);
	ok(judged(&state, 0, 1) == 0 && step(&state, true, 1) == LS_REST,
	   "where replay waited for WAL, nothing is known");
	(void) judged(&state, 1.1, 1);
	state.trial = 0;
	for (int i = 0; i < 8 * LS_REST / LOOK + 1; i++)
		step(&state, false, 1);
	ok(step(&state, true, 1) == LS_REST, "when nothing was wrong for a while, it begins anew");

	ls_rest_ended(&state, &(LsReplayed) {.records = 1000,.bytes = 400000,.us = 1000});
	state.trial = LOOK / 4;
	ok(ls_rest_step(&state, false, &large) != 0, "large records count for their bytes");
	ls_rest_ended(&state, &(LsReplayed) {.records = 1000,.bytes = 99000,.us = 1000});
	state.trial = LOOK / 4;
	ok(ls_rest_step(&state, false, &large) == 0, "and can be faster");
}

typedef struct Model
{
	const char *name;
	double		helped;			/* records in a microsecond with helpers */
	double		alone;			/* and without */
	double		least;			/* share of the better of the two that must be reached */
} Model;

/* At each look something speaks against helpers. */
static const Model models[] = {
	{"a walreceiver takes little", 1.3, 1.0, 0.96},
	{"other processes take slices", 0.8, 1.0, 0.97},
	{"no difference", 1.0, 1.0, 1.0},
	{"helpers hardly move", 0.1, 1.0, 0.6},
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
			LsReplayed	replayed = replayed_at((uint64) (model->helped * LOOK), model->helped);
			uint32		resting = ls_rest_step(&state, true, &replayed);
			LsReplayed	rested = replayed_at(resting, model->alone);

			records += (double) (replayed.records + rested.records);
			us += (double) (replayed.us + rested.us);
			if (resting > 0)
				ls_rest_ended(&state, &rested);
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
