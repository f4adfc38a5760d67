/*
 * rest_rule.c - is replay faster without helpers?
 *
 * Decided without I/O and clock; extension/test/unit/rest_rule_test.c has the table, and models
 * of servers. A step is made ten times a second (helper_count.c).
 *
 * Two things speak against helpers. They do too little: each record that they look at costs
 * the startup process some memory that they have touched, and the end of what may be read ahead. Or
 * other processes need the cores: a helper that waits for one keeps the record that it has begun,
 * and all that come after it. Neither says that replay is slower with them. The walreceiver takes a
 * core for microseconds, a query for a slice of some milliseconds, and replay may wait for
 * a core for as long in both cases.
 *
 * So then they rest for a while, and then work for as many records. If replay was faster with them,
 * they go on for a longer time, whatever speaks against it, and twice as long each time that this is
 * found. If not, they rest, and twice as long each time. Not only moments at which something
 * spoke against them are compared: these are the worst ones.
 *
 * Speed is bytes of WAL and records together, since there are small and large ones. It is not known
 * of a rest in which replay waited for WAL. WAL may change meanwhile; then a wrong answer lasts for one
 * rest or one trust.
 */
#include "postgres.h"

#include "replay/rest_rule.h"

/* A rest, and a trust, are at most so many records. */
#define LS_LONG_REST (16 * LS_REST)
#define LS_LONG_TRUST (64 * LS_REST)

/* A trust is so many records at first; when nothing was wrong for so long, all begins anew. */
#define LS_GOOD_WHILE (8 * LS_REST)

/* Of so many records helpers must have done one. */
#define LS_MIN_SHARE 4

/* A record costs as much as so many bytes do: some 400 ns, at 1 GB/s. */
#define LS_RECORD_BYTES 400

void
ls_rest_begin(LsRestState *state)
{
	memset(state, 0, sizeof(*state));
	state->next_trust = LS_GOOD_WHILE;
}

static double
speed(const LsReplayed *replayed)
{
	if (replayed->us == 0)
		return 0;
	return ((double) replayed->bytes + (double) replayed->records * LS_RECORD_BYTES) /
		(double) replayed->us;
}

/* The trial is over. Returns as ls_rest_step(). */
static uint32
judge(LsRestState *state)
{
	if (speed(&state->tried) > state->alone)
	{
		state->trust = state->next_trust;
		state->next_trust = Min(state->next_trust * 2, LS_LONG_TRUST);
		state->rest = 0;
		return 0;
	}
	state->next_trust = LS_GOOD_WHILE;
	state->rest = Min(state->rest * 2, LS_LONG_REST);
	return state->rest;
}

/*
 * Replayed with helpers since the last step; crowded: other processes need the last one's core.
 * Returns for how many records helpers rest, 0: they go on.
 */
uint32
ls_rest_step(LsRestState *state, bool crowded, const LsReplayed *replayed)
{
	if (state->trial > 0)
	{
		state->tried.records += replayed->records;
		state->tried.bytes += replayed->bytes;
		state->tried.us += replayed->us;
		state->trial -= Min(state->trial, replayed->records);
		return state->trial == 0 ? judge(state) : 0;
	}
	if (state->trust > 0)
	{
		state->trust -= Min(state->trust, replayed->records);
		return 0;
	}
	if (!crowded && replayed->done >= replayed->records / LS_MIN_SHARE)
	{
		state->calm += replayed->records;
		if (state->calm >= LS_GOOD_WHILE)
			ls_rest_begin(state);
		return 0;
	}
	state->calm = 0;
	state->rest = LS_REST;
	return LS_REST;
}

/* A rest is over. What was replayed in it is all 0 if replay has waited for WAL. */
void
ls_rest_ended(LsRestState *state, const LsReplayed *replayed)
{
	state->alone = speed(replayed);
	state->trial = state->alone > 0 ? LS_REST : 0;
	memset(&state->tried, 0, sizeof(state->tried));
}
