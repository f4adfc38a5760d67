/*
 * helper_rule_test.c - tables of how many helpers take records, and models of replay that the
 * rule must do well on.
 */
#include "postgres.h"

#include "replay/helper_rule.h"
#include "tap.h"

#define RECORDS 8192

/* ---- The first number ---- */

typedef struct BeginRow
{
	int			workers;
	int			cores;
	int			used;
} BeginRow;

static const BeginRow begin_rows[] = {
	{1, 2, 1}, {2, 2, 1}, {2, 4, 2}, {16, 4, 3}, {16, 64, 16},
	/* asked while there is one core: then nobody starts helpers */
	{2, 1, 1},
};

static void
test_begin(void)
{
	for (int i = 0; i < lengthof(begin_rows); i++)
	{
		const BeginRow *row = &begin_rows[i];
		LsHelperState state = {.used = 7,.hold = 7,.why = LS_HELPERS_FEWER};

		ls_helpers_begin(&state, row->workers, row->cores);
		ok(state.used == row->used && state.hold == 0 && state.why == LS_HELPERS_PLAIN,
		   "%d workers and %d cores: %d helpers (is %d)",
		   row->workers, row->cores, row->used, state.used);
	}
}

/* ---- One step ---- */

typedef struct StepRow
{
	const char *name;
	int			used;
	int			hold;
	uint64		done;
	uint64		given_back;
	uint64		executed;
	uint64		blocked;
	uint64		pages_read;
	int			next;
	LsHelperWhy why;
	bool		enough;
} StepRow;

/* A step of 8 workers on 4 cores. */
static const StepRow step_rows[] = {
	{"helpers that do their part stay", 3, 0, 6000, 100, 6000, 0, 0, 3, LS_HELPERS_PLAIN, true},
	{"a quarter is enough", 3, 0, RECORDS / 4, 0, 2048, 0, 0, 3, LS_HELPERS_PLAIN, true},
	{"less is not", 3, 0, RECORDS / 4 - 1, 0, 2048, 0, 0, 3, LS_HELPERS_PLAIN, false},
	{"who mostly gives back makes one fewer", 3, 0, 3000, 3001, 3000, 0, 0, 2, LS_HELPERS_FEWER, true},
	{"half is not mostly", 3, 0, 3000, 3000, 3000, 0, 0, 3, LS_HELPERS_PLAIN, true},
	{"the last one stays, and should rest", 1, 9, 10, 8000, 10, 0, 0, 1, LS_HELPERS_FEWER, false},
	{"one that is missing comes back", 1, 0, 6000, 100, 6000, 0, 0, 2, LS_HELPERS_FEWER, true},
	{"but not soon", 1, 2, 6000, 100, 6000, 0, 0, 1, LS_HELPERS_FEWER, true},
	{"then it does", 2, 1, 6000, 100, 6000, 0, 0, 3, LS_HELPERS_PLAIN, true},
	{"storage: more than cores", 3, 0, 6000, 100, 6000, 600, 900, 4, LS_HELPERS_STORAGE, true},
	{"up to all", 8, 0, 6000, 100, 6000, 600, 900, 8, LS_HELPERS_STORAGE, true},
	{"where they give back, fewer", 8, 0, 3000, 4000, 6000, 600, 900, 7, LS_HELPERS_STORAGE, true},
	{"and not soon more", 7, 5, 6000, 100, 6000, 600, 900, 7, LS_HELPERS_STORAGE, true},
	{"one read in 16 records is storage", 3, 0, 6000, 100, 6000, 375, 375, 4, LS_HELPERS_STORAGE, true},
	{"seldom reads are not", 3, 0, 6000, 100, 6000, 374, 374, 3, LS_HELPERS_PLAIN, true},
	{"nor sleeps that read nothing", 3, 0, 6000, 100, 6000, 600, 299, 3, LS_HELPERS_PLAIN, true},
	{"nor what was read without a sleep", 3, 0, 6000, 100, 6000, 0, 6000, 3, LS_HELPERS_PLAIN, true},
	{"few records say nothing", 3, 0, 6000, 100, 255, 200, 200, 3, LS_HELPERS_PLAIN, true},
	{"when reads are over, spare cores count at once", 8, 0, 6000, 100, 6000, 0, 0, 3, LS_HELPERS_PLAIN, true},
	{"also while nobody may come", 8, 9, 6000, 9000, 6000, 0, 0, 3, LS_HELPERS_PLAIN, true},
};

static void
test_steps(void)
{
	for (int i = 0; i < lengthof(step_rows); i++)
	{
		const StepRow *row = &step_rows[i];
		LsHelperState state = {.used = row->used,.hold = row->hold};
		LsHelperInput in = {
			.workers = 8,.cores = 4,.records = RECORDS,.done = row->done,
			.given_back = row->given_back,.executed = row->executed,
			.blocked = row->blocked,.pages_read = row->pages_read
		};
		bool		enough = ls_helpers_step(&state, &in);

		ok(state.used == row->next && state.why == row->why && enough == row->enough,
		   "%s: from %d to %d (is %d, why %d, %s)", row->name, row->used, row->next,
		   state.used, state.why, enough ? "enough" : "too little");
	}
}

/* ---- Other processes ---- */

typedef struct CrowdRow
{
	const char *name;
	int			used;
	bool		crowded;		/* when it was last looked at */
	uint64		queued_us;
	uint64		elapsed_us;
	int			next;
	LsHelperWhy why;
	bool		enough;
} CrowdRow;

/* A step of 8 workers on 4 cores; helpers do their part. */
static const CrowdRow crowd_rows[] = {
	{"nobody waits for a core", 3, false, 0, 100000, 3, LS_HELPERS_PLAIN, true},
	{"a quarter of the time is not too long", 3, false, 25000, 100000, 3, LS_HELPERS_PLAIN, true},
	{"more is", 3, false, 25001, 100000, 2, LS_HELPERS_CROWDED, true},
	{"who has not looked does not know", 3, false, 0, 0, 3, LS_HELPERS_PLAIN, true},
	{"and nobody comes back before", 2, true, 0, 0, 2, LS_HELPERS_CROWDED, true},
	{"then one does", 2, true, 0, 100000, 3, LS_HELPERS_PLAIN, true},
	{"the last one rests", 1, false, 40000, 100000, 1, LS_HELPERS_PLAIN, false},
	{"once", 1, true, 0, 0, 1, LS_HELPERS_CROWDED, true},
};

static void
test_crowds(void)
{
	for (int i = 0; i < lengthof(crowd_rows); i++)
	{
		const CrowdRow *row = &crowd_rows[i];
		LsHelperState state = {.used = row->used,.crowded = row->crowded};
		LsHelperInput in = {
			.workers = 8,.cores = 4,.records = RECORDS,.done = 6000,.executed = 6000,
			.queued_us = row->queued_us,.elapsed_us = row->elapsed_us
		};
		bool		enough = ls_helpers_step(&state, &in);

		ok(state.used == row->next && state.why == row->why && enough == row->enough,
		   "%s: from %d to %d (is %d, why %d, %s)", row->name, row->used, row->next,
		   state.used, state.why, enough ? "goes on" : "rests");
	}
}

/* ---- Cores that are lost ---- */

static void
test_lost_cores(void)
{
	for (int cores = 1; cores <= 3; cores++)
	{
		LsHelperState state = {.used = 1};
		LsHelperInput in = {.workers = 1,.cores = cores,.records = RECORDS,.done = RECORDS,.executed = RECORDS};
		bool		enough = ls_helpers_step(&state, &in);

		ok(enough == (cores >= 2) && state.used == 1, "%d cores: the helper %s", cores, enough ? "goes on" : "rests");
	}
}

/* ---- Models ---- */

/* Replay in which a number of helpers find work, and each more gives back what it takes. */
static LsHelperInput
replayed_by(int used, int useful, bool reads, int cores)
{
	LsHelperInput in = {.workers = 8,.cores = cores,.records = RECORDS};

	in.executed = in.done = Min(used, useful) * (RECORDS / 10);
	in.given_back = Max(used - useful, 0) * RECORDS;
	in.blocked = in.pages_read = reads ? in.executed / 2 : 0;
	return in;
}

typedef struct Model
{
	const char *name;
	int			cores;
	int			useful;
	bool		reads;
	int			expected;		/* nearly all the time */
} Model;

static const Model models[] = {
	{"all that spare cores do", 4, 8, false, 3},
	{"one core to spare", 2, 8, false, 1},
	{"no more than find work", 8, 4, false, 4},
	{"storage: all", 2, 8, true, 8},
	{"storage: no more than find work", 2, 5, true, 5},
};

static void
test_models(void)
{
	for (int i = 0; i < lengthof(models); i++)
	{
		const Model *model = &models[i];
		LsHelperState state = {0};
		int			fits = 0;
		int			most = 0;

		ls_helpers_begin(&state, 8, model->cores);
		for (int step = 0; step < 1000; step++)
		{
			LsHelperInput in = replayed_by(state.used, model->useful, model->reads, model->cores);

			ls_helpers_step(&state, &in);
			if (step >= 10)
				fits += state.used == model->expected;
			most = Max(most, state.used);
		}
		ok(fits >= 950 && most <= Max(model->expected + 1, model->cores - 1),
		   "%s: %d helpers (in %d of 990 steps, at most %d)",
		   model->name, model->expected, fits, most);
	}
}

int
main(void)
{
	test_begin();
	test_steps();
	test_crowds();
	test_lost_cores();
	test_models();
	return done_testing();
}
