/*
 * raise_rule.h - when raising the minimum recovery point is worth a write of the control file.
 */
#ifndef LOCKSTEP_RAISE_RULE_H
#define LOCKSTEP_RAISE_RULE_H

/* Raises by this much and more are large, in bytes; they are bounded by themselves. */
#define LS_LARGE_RAISE (512 * 1024)

/* Small raises that may follow one another without delay. */
#define LS_RAISES_AT_ONCE 5

/* Time in which one more small one becomes possible, in us: 15 in a second, 20 with those at once. */
#define LS_RAISE_EVERY_US INT64CONST(66667)

/* Large raises that may follow one another without delay: as many segments that have piled up. */
#define LS_LARGE_RAISES_AT_ONCE 25

/* Time in which one more large one becomes possible, in us: 25 in a second, 50 with those at once. */
#define LS_LARGE_RAISE_EVERY_US INT64CONST(40000)

/* All zero: no raise was made yet. */
typedef struct LsRaiseState
{
	int64		spaced_until;	/* us from which all small ones at once are possible again */
	int64		large_spaced_until; /* the same of large ones */
} LsRaiseState;

extern bool ls_raise_is_due(const LsRaiseState *state, uint64 bytes, int64 now_us);
extern void ls_raise_made(LsRaiseState *state, uint64 bytes, int64 now_us);

#endif							/* LOCKSTEP_RAISE_RULE_H */
