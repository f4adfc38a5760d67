/*
 * rest_rule.c - do helpers rest where other processes need the cores?
 *
 * Decided without I/O and clock; extension/test/unit/rest_rule_test.c has the table, and models
 * of servers. A step is made when it was looked how long processes waited for a core
 * (helper_count.c).
 *
 * A helper that waits for a core keeps the record that it has begun, and all that come after it.
 * Whether replay is still faster with it depends on who has the cores: the walreceiver takes
 * them for microseconds, a query for a slice of some milliseconds. That they waited does not say
 * which. So where processes wait, helpers rest for a while, and work again. If replay is faster with
 * them than it was in the rest, they go on for so long, whoever waits, and twice as long each
 * time that this is found. If not, they rest, and twice as long each time.
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

/* A trust is so many records at first; when nobody has waited for so long, all begins anew. */
#define LS_GOOD_WHILE (4 * LS_REST)

/* A record costs as much as so many bytes do: some 400 ns, at 1 GB/s. */
#define LS_RECORD_BYTES 400

void
ls_rest_begin(LsRestState *state)
{
	state->next = LS_REST;
	state->next_trust = LS_GOOD_WHILE;
	state->trust = state->calm = 0;
	state->alone = 0;
}

static double
speed(const LsReplayed *replayed)
{
	if (replayed->us == 0)
		return 0;
	return ((double) replayed->bytes + (double) replayed->records * LS_RECORD_BYTES) /
		(double) replayed->us;
}

/* Replayed by helpers since the last step. Returns for how many records they rest, 0: they go on. */
uint32
ls_rest_step(LsRestState *state, bool crowded, const LsReplayed *replayed)
{
	uint32		rest = LS_REST;

	if (state->trust > 0)
	{
		state->trust -= Min(state->trust, replayed->records);
		if (state->trust == 0)
			state->alone = 0;
		return 0;
	}
	if (!crowded)
	{
		state->calm += replayed->records;
		if (state->calm >= LS_GOOD_WHILE)
			ls_rest_begin(state);
		return 0;
	}
	state->calm = 0;
	if (state->alone > 0 && speed(replayed) > state->alone)
	{
		state->trust = state->next_trust;
		state->next_trust = Min(state->next_trust * 2, LS_LONG_TRUST);
		state->next = LS_REST;
		return 0;
	}
	if (state->alone > 0)
	{
		state->next = Min(state->next * 2, LS_LONG_REST);
		state->next_trust = LS_GOOD_WHILE;
		rest = state->next;
	}
	return rest;
}

/* A rest is over. What was replayed in it is all 0 if replay has waited for WAL. */
void
ls_rest_ended(LsRestState *state, const LsReplayed *replayed)
{
	state->alone = speed(replayed);
}
