/*
 * raise_rule_test.c - which raises of the minimum recovery point are worth a write of the
 * control file, and how many are made at most.
 */
#include "postgres.h"

#include "replay/raise_rule.h"
#include "tap.h"

#define SMALL 8192
#define SECOND_US INT64CONST(1000000)
/* a clock begins anywhere */
#define START_US INT64CONST(77000000000)

/* ---- One question ---- */

typedef struct DueRow
{
	const char *name;
	uint64		bytes;
	int			taken;			/* raises by little just now */
	int64		since_us;		/* time since then */
	bool		due;
} DueRow;

static const DueRow due_rows[] = {
	{"the first small one", SMALL, 0, 0, true},
	{"by however little", 0, 0, 0, true},
	{"the last of those at once", SMALL, LS_RAISES_AT_ONCE - 1, 0, true},
	{"one too many", SMALL, LS_RAISES_AT_ONCE, 0, false},
	{"one too many, by however little", 0, LS_RAISES_AT_ONCE, 0, false},
	{"just before the next becomes possible", SMALL, LS_RAISES_AT_ONCE, LS_RAISE_EVERY_US - 1, false},
	{"when the next becomes possible", SMALL, LS_RAISES_AT_ONCE, LS_RAISE_EVERY_US, true},
	{"a byte less than a large one", LS_LARGE_RAISE - 1, LS_RAISES_AT_ONCE, 0, false},
	{"a large one at any time", LS_LARGE_RAISE, LS_RAISES_AT_ONCE, 0, true},
	{"a larger one, too", UINT64CONST(16) * 1024 * 1024, LS_RAISES_AT_ONCE, 0, true},
};

static void
test_due(void)
{
	for (int i = 0; i < lengthof(due_rows); i++)
	{
		const DueRow *row = &due_rows[i];
		LsRaiseState state = {0};

		for (int n = 0; n < row->taken; n++)
			ls_raise_made(&state, SMALL, START_US);
		ok(ls_raise_is_due(&state, row->bytes, START_US + row->since_us) == row->due, "%s: %s",
		   row->name, row->due ? "due" : "not due");
	}
}

/* ---- Over time ---- */

#define MODEL_SECONDS 10
#define MODEL_RAISES 1000

/* When small raises are made if one is wanted each every_us; how many. */
static int
model_raises(int64 every_us, bool large_between, int64 made[MODEL_RAISES])
{
	LsRaiseState state = {0};
	int			count = 0;

	for (int64 now = START_US; now < START_US + MODEL_SECONDS * SECOND_US; now += every_us)
	{
		if (large_between)
			ls_raise_made(&state, LS_LARGE_RAISE, now);
		if (!ls_raise_is_due(&state, SMALL, now))
			continue;
		ls_raise_made(&state, SMALL, now);
		if (count < MODEL_RAISES)
			made[count] = now;
		count++;
	}
	return Min(count, MODEL_RAISES);
}

/* The most raises in any second. */
static int
model_most_in_a_second(const int64 made[], int count)
{
	int			most = 0;

	for (int first = 0, last = 0; last < count; last++)
	{
		while (made[last] - made[first] >= SECOND_US)
			first++;
		most = Max(most, last - first + 1);
	}
	return most;
}

static void
test_bound(void)
{
	static int64 made[MODEL_RAISES];
	int			count = model_raises(100, false, made);
	int			most = model_most_in_a_second(made, count);

	ok(count < MODEL_RAISES && most > 15 && most <= 20,
	   "wanted each 0.1 ms, at most 20 small ones are made in a second (is %d)", most);
	ok(count >= MODEL_SECONDS * 15 && count <= MODEL_SECONDS * 15 + LS_RAISES_AT_ONCE,
	   "and 15 a second in the long run (%d in %d s)", count, MODEL_SECONDS);
	ok(model_raises(100, true, made) == count, "large ones between them take nothing away");
	count = model_raises(100000, false, made);
	ok(count == MODEL_SECONDS * 10, "wanted each 100 ms, all are made (is %d)", count);
}

/* Bursts are possible again after a rest, no larger than the first. */
static void
test_rest(void)
{
	LsRaiseState state = {0};

	for (int round = 0; round < 3; round++)
	{
		int64		now = START_US + round * 60 * SECOND_US;
		int			count = 0;

		for (; ls_raise_is_due(&state, SMALL, now); count++)
			ls_raise_made(&state, SMALL, now);
		ok(count == LS_RAISES_AT_ONCE, "after %s %d at once (is %d)", round == 0 ? "the start" : "a rest",
		   LS_RAISES_AT_ONCE, count);
	}
}

int
main(void)
{
	test_due();
	test_bound();
	test_rest();
	return done_testing();
}
