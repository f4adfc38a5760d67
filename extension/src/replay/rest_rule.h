/*
 * rest_rule.h - for how many records replay helpers rest, decided without I/O and clock.
 */
#ifndef LOCKSTEP_REST_RULE_H
#define LOCKSTEP_REST_RULE_H

/* Helpers rest for so many records at first. */
#define LS_REST (256 * 1024)

/* What was replayed, and in how long. */
typedef struct LsReplayed
{
	uint64		records;
	uint64		done;			/* of these, by helpers when their turn came */
	uint64		bytes;			/* of WAL */
	uint64		us;
} LsReplayed;

typedef struct LsRestState
{
	uint32		rest;			/* records of the last rest */
	uint32		next_trust;		/* records of the next trust */
	uint64		trust;			/* records for which helpers go on, whatever speaks against it */
	uint64		trial;			/* the same, to learn how fast replay is */
	LsReplayed	tried;			/* since the trial began */
	uint64		calm;			/* records since anything spoke against helpers */
	double		alone;			/* speed without helpers in the last rest; 0: not known */
} LsRestState;

extern void ls_rest_begin(LsRestState *state);
extern uint32 ls_rest_step(LsRestState *state, bool crowded, const LsReplayed *replayed);
extern void ls_rest_ended(LsRestState *state, const LsReplayed *replayed);

#endif							/* LOCKSTEP_REST_RULE_H */
