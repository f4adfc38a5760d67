/*
 * raise_rule_test.c - which raises of the minimum recovery point are worth a write of the
 * control file, and how many are made at most.
 */
#include "postgres.h"

#include "replay/raise_rule.h"
#include "tap.h"

#define SMALL 8192
#define LARGER (UINT64CONST(16) * 1024 * 1024)
#define SECOND_US INT64CONST(1000000)
/* a clock begins anywhere */
#define START_US INT64CONST(77000000000)

/* ---- One question ---- */

typedef struct DueRow
{
	const char *name;
	uint64		bytes;
	int			taken;			/* raises by little just now */
	int			large;			/* large ones just now */
	int64		since_us;		/* time since then */
	bool		due;
} DueRow;

static const DueRow due_rows[] = {
	{"the first small one", SMALL, 0, 0, 0, true},
	{"by however little", 0, 0, 0, 0, true},
	{"the last of those at once", SMALL, LS_RAISES_AT_ONCE - 1, 0, 0, true},
	{"one too many", SMALL, LS_RAISES_AT_ONCE, 0, 0, false},
	{"one too many, by however little", 0, LS_RAISES_AT_ONCE, 0, 0, false},
	{"just before the next becomes possible", SMALL, LS_RAISES_AT_ONCE, 0, LS_RAISE_EVERY_US - 1, false},
	{"when the next becomes possible", SMALL, LS_RAISES_AT_ONCE, 0, LS_RAISE_EVERY_US, true},
	{"a small one after large ones", SMALL, 0, LS_LARGE_RAISES_AT_ONCE, 0, true},
	{"a byte less than a large one", LS_LARGE_RAISE - 1, LS_RAISES_AT_ONCE, 0, 0, false},
	{"a large one after small ones", LS_LARGE_RAISE, LS_RAISES_AT_ONCE, 0, 0, true},
	{"the last large one of those at once", LS_LARGE_RAISE, 0, LS_LARGE_RAISES_AT_ONCE - 1, 0, true},
	{"a large one too many", LS_LARGE_RAISE, 0, LS_LARGE_RAISES_AT_ONCE, 0, false},
	{"a larger one, too", LARGER, 0, LS_LARGE_RAISES_AT_ONCE, 0, false},
	{"just before the next large one becomes possible", LARGER, 0, LS_LARGE_RAISES_AT_ONCE,
	LS_LARGE_RAISE_EVERY_US - 1, false},
	{"when the next large one becomes possible", LARGER, 0, LS_LARGE_RAISES_AT_ONCE, LS_LARGE_RAISE_EVERY_US, true},
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
		for (int n = 0; n < row->large; n++)
			ls_raise_made(&state, LARGER, START_US);
		ok(ls_raise_is_due(&state, row->bytes, START_US + row->since_us) == row->due, "%s: %s",
		   row->name, row->due ? "due" : "not due");
	}
}

/* ---- Over time ---- */

#define MODEL_SECONDS 10
#define MODEL_RAISES 1000

/* When raises by bytes are made if one is wanted each every_us, and by others between; how many. */
static int
model_raises(uint64 bytes, int64 every_us, uint64 between, int64 made[MODEL_RAISES])
{
	LsRaiseState state = {0};
	int			count = 0;

	for (int64 now = START_US; now < START_US + MODEL_SECONDS * SECOND_US; now += every_us)
	{
		if (between > 0)
			ls_raise_made(&state, between, now);
		if (!ls_raise_is_due(&state, bytes, now))
			continue;
		ls_raise_made(&state, bytes, now);
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
test_bound(uint64 bytes, const char *kind, int in_the_long_run, int at_once, uint64 others)
{
	static int64 made[MODEL_RAISES];
	int			count = model_raises(bytes, 100, 0, made);
	int			most = model_most_in_a_second(made, count);

	ok(count < MODEL_RAISES && most > in_the_long_run &&
	   most <= in_the_long_run + at_once,
	   "wanted each 0.1 ms, at most %d %s ones are made in a second (is %d)",
	   in_the_long_run + at_once, kind, most);
	ok(count >= MODEL_SECONDS * in_the_long_run &&
	   count <= MODEL_SECONDS * in_the_long_run + at_once,
	   "and %d a second in the long run (%d in %d s)", in_the_long_run, count, MODEL_SECONDS);
	ok(model_raises(bytes, 100, others, made) == count, "others between them take nothing away");
	count = model_raises(bytes, 100000, 0, made);
	ok(count == MODEL_SECONDS * 10, "wanted each 100 ms, all are made (is %d)", count);
}

/* Bursts are possible again after a rest, no larger than the first. */
static void
test_rest(uint64 bytes, int at_once)
{
	LsRaiseState state = {0};

	for (int round = 0; round < 3; round++)
	{
		int64		now = START_US + round * 60 * SECOND_US;
		int			count = 0;

		for (; count <= at_once && ls_raise_is_due(&state, bytes, now); count++)
			ls_raise_made(&state, bytes, now);
		ok(count == at_once, "after %s %d at once (is %d)", round == 0 ? "the start" : "a rest",
		   at_once, count);
	}
}

int
main(void)
{
	test_due();
	test_bound(SMALL, "small", 15, LS_RAISES_AT_ONCE, LS_LARGE_RAISE);
	test_bound(LS_LARGE_RAISE, "large", 25, LS_LARGE_RAISES_AT_ONCE, SMALL);
	test_rest(SMALL, LS_RAISES_AT_ONCE);
	test_rest(LARGER, LS_LARGE_RAISES_AT_ONCE);
	return done_testing();
}
