/*
 * helper_rule.c - how many replay helpers take records.
 *
 * Decided without I/O and clock; extension/test/unit/helper_rule_test.c has the table. A step
 * is made after each LS_WINDOW records while helpers run (helper_count.c).
 *
 * More processes that run than cores are far slower than one, as they wait for one another
 * without sleeping. So there is one helper for each core besides the startup process's. More
 * than that only while helpers sleep for storage in the middle of records: they take no
 * core then. To sleep is not enough: a helper also sleeps for a page that a query has locked.
 * So what it has read from storage must account for it.
 *
 * Others may need the cores that look spare. A helper that waits for a core keeps the record that
 * it has begun, and all that come after it. So where one of the processes waits for a
 * quarter of the time, there is one fewer, and if it is the last one nobody helps for a while. Nor
 * does anybody where the server has lost all cores but one.
 *
 * Helpers that mostly give records back, since what comes before them is not begun or the
 * startup process was there first, cost more than they do: one fewer, and none more for a
 * while. Where helpers altogether do too little, nobody helps for a while.
 */
#include "postgres.h"

#include "replay/helper_rule.h"

/* Helpers rest unless they have done one of this number of records. */
#define LS_MIN_SHARE 4

/* Helpers wait for storage if they slept in one of this number of records, or in more. */
#define LS_BLOCKED_SHARE 16

/* Fewest records that say something of what helpers wait for. */
#define LS_LEAST_EXECUTED 256

/* A process waits for a core for too long if that takes more than one part in this number of the time. */
#define LS_QUEUED_SHARE 4

/* Steps without a further helper after one was too many. */
#define LS_HOLD 64

static int helper_rule_spare(int workers, int cores);
static bool helper_rule_wait_for_storage(const LsHelperInput *in);

/* Sets the state before helpers start. */
void
ls_helpers_begin(LsHelperState *state, int workers, int cores)
{
	state->used = helper_rule_spare(workers, cores);
	state->hold = 0;
	state->why = LS_HELPERS_PLAIN;
	state->crowded = false;
}

/* Decides how many helpers take records from now on. False: they do too little, and should rest. */
bool
ls_helpers_step(LsHelperState *state, const LsHelperInput *in)
{
	int			plain = helper_rule_spare(in->workers, in->cores);
	int			most = helper_rule_wait_for_storage(in) ? in->workers : plain;
	bool		looked = in->elapsed_us > 0;

	if (looked)
		state->crowded = in->queued_us > in->elapsed_us / LS_QUEUED_SHARE;
	if (state->hold > 0)
		state->hold--;
	if (state->used > most)
		state->used = most;
	else if (state->used > 1 && (in->given_back > in->done || (looked && state->crowded)))
	{
		state->used--;
		state->hold = LS_HOLD;
	}
	else if (looked && state->crowded)
		return false;
	else if (state->used < most && state->hold == 0 && !state->crowded)
		state->used++;
	state->why = state->used > plain ? LS_HELPERS_STORAGE :
		state->used == plain ? LS_HELPERS_PLAIN :
		state->crowded ? LS_HELPERS_CROWDED : LS_HELPERS_FEWER;
	return in->cores >= LS_LEAST_CORES && in->done >= in->records / LS_MIN_SHARE;
}

static int
helper_rule_spare(int workers, int cores)
{
	return Max(Min(workers, cores - 1), 1);
}

static bool
helper_rule_wait_for_storage(const LsHelperInput *in)
{
	return in->executed >= LS_LEAST_EXECUTED &&
		in->blocked >= in->executed / LS_BLOCKED_SHARE &&
		in->pages_read >= in->blocked / 2;
}
