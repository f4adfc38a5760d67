/*
 * raise_rule.c - when raising the minimum recovery point is worth a write of the control file.
 *
 * Decided without I/O and clock; extension/test/unit/raise_rule_test.c has the table and a model.
 * Each write is an fsync. Of those that let much WAL run ahead at most 50 are made in a second, of the
 * others at most 20. The first ones need not wait, since replay may be about to stand still, and nothing
 * can be dispatched then. One that has to wait covers what is flushed meanwhile.
 */
#include "postgres.h"

#include "replay/raise_rule.h"

/* May the point be raised by this much now? With 0 bytes: may it be raised by however little? */
bool
ls_raise_is_due(const LsRaiseState *state, uint64 bytes, int64 now_us)
{
	if (bytes >= LS_LARGE_RAISE)
		return state->large_spaced_until - now_us <= (LS_LARGE_RAISES_AT_ONCE - 1) * LS_LARGE_RAISE_EVERY_US;
	return state->spaced_until - now_us <= (LS_RAISES_AT_ONCE - 1) * LS_RAISE_EVERY_US;
}

/* The point was raised by this much. */
void
ls_raise_made(LsRaiseState *state, uint64 bytes, int64 now_us)
{
	if (bytes >= LS_LARGE_RAISE)
		state->large_spaced_until = Max(state->large_spaced_until, now_us) + LS_LARGE_RAISE_EVERY_US;
	else
		state->spaced_until = Max(state->spaced_until, now_us) + LS_RAISE_EVERY_US;
}
