/*
 * helper_rule.h - how many replay helpers take records, decided without I/O and clock.
 */
#ifndef LOCKSTEP_HELPER_RULE_H
#define LOCKSTEP_HELPER_RULE_H

/* Cores below which nobody helps: two processes that replay would only take turns. */
#define LS_LEAST_CORES 2

/* Reason for the number of helpers. */
typedef enum LsHelperWhy
{
	LS_HELPERS_PLAIN = 0,		/* one for each spare core, or all that there may be */
	LS_HELPERS_STORAGE,			/* more than that: they wait for storage */
	LS_HELPERS_CROWDED,			/* less than that: other processes need the cores */
	LS_HELPERS_FEWER			/* less than that: they left too much to others */
} LsHelperWhy;

/* What happened since the last step. */
typedef struct LsHelperInput
{
	int			workers;		/* most that there may be */
	int			cores;			/* cores that the server may use */
	uint64		records;		/* replayed */
	uint64		done;			/* records of these that helpers had done when their turn came */
	uint64		given_back;		/* taken by helpers, and left to the startup process */
	uint64		executed;		/* by helpers */
	uint64		blocked;		/* times that helpers slept in the middle of a record */
	uint64		pages_read;		/* pages that helpers had to read from storage */
	uint64		queued_us;		/* longest wait of one of the processes for a core */
	uint64		elapsed_us;		/* time over which that was looked at; 0: it was not */
} LsHelperInput;

/* All zero: no step was made yet. */
typedef struct LsHelperState
{
	int			used;			/* 0: not decided yet */
	int			hold;			/* steps until there may be more again */
	LsHelperWhy why;
	bool		crowded;		/* when it was last looked at */
} LsHelperState;

extern void ls_helpers_begin(LsHelperState *state, int workers, int cores);
extern bool ls_helpers_step(LsHelperState *state, const LsHelperInput *in);

#endif							/* LOCKSTEP_HELPER_RULE_H */
