/*
 * raise_rule.h - when raising the minimum recovery point is worth a write of the control file.
 */
#ifndef LOCKSTEP_RAISE_RULE_H
#define LOCKSTEP_RAISE_RULE_H

/* Raises by less than this are bounded, in bytes. */
#define LS_LARGE_RAISE (512 * 1024)

/* Raises by less that may follow one another without delay. */
#define LS_RAISES_AT_ONCE 5

/* Time in which one more of them becomes possible, in us: 15 in a second, 20 with those at once. */
#define LS_RAISE_EVERY_US INT64CONST(66667)

/* All zero: no raise was made yet. */
typedef struct LsRaiseState
{
	int64		spaced_until;	/* us from which all LS_RAISES_AT_ONCE are possible again */
} LsRaiseState;

extern bool ls_raise_is_due(const LsRaiseState *state, uint64 bytes, int64 now_us);
extern void ls_raise_made(LsRaiseState *state, uint64 bytes, int64 now_us);

#endif							/* LOCKSTEP_RAISE_RULE_H */
