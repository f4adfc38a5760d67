/*
 * limit_rule.h - how the gate's limit moves, decided without I/O and clock.
 */
#ifndef LOCKSTEP_LIMIT_RULE_H
#define LOCKSTEP_LIMIT_RULE_H

/* What is done about lag at this moment (LsLimitState.phase). */
typedef enum LsLimitPhase
{
	LS_LIMIT_CALM = 0,			/* lag is within bounds, or startup busy;
								 * entered from every phase as soon as lag is
								 * within bounds, and from SHRINKING if
								 * startup is busy */
	LS_LIMIT_SHRINKING,			/* lag is over the bound: the limit is halved
								 * with each step; entered from CALM, and from
								 * GIVEN_UP to try again */
	LS_LIMIT_LOWEST,			/* the limit is at its floor, and lag is
								 * watched; entered from SHRINKING, and from
								 * TRIAL if more reads made replay slower */
	LS_LIMIT_TRIAL,				/* lag has not fallen at the floor: the limit
								 * is at its ceiling, to see whether replay is
								 * any slower then; entered from LOWEST */
	LS_LIMIT_GIVEN_UP,			/* replay was no slower in the trial, so fewer
								 * reads do not help: as if nothing lagged;
								 * entered from TRIAL */
	LS_LIMIT_UNKNOWN			/* nobody knows whether replay lags, as nothing
								 * is streamed: as if it did not; entered from
								 * every phase, left to CALM, or as that is */
} LsLimitPhase;

typedef struct LsLimitInput
{
	int64		now;			/* us */
	bool		lag_unknown;	/* nothing is streamed: lag is lag_us or more */
	int64		lag_us;
	int64		allowed_us;		/* lag up to here is within bounds; 0: any is */
	int64		give_up_us;		/* time to watch at the floor; 0: for good */
	uint64		replayed;		/* position in the WAL */
	bool		startup_busy;	/* the startup process has had a core for
								 * itself since the last step */
	int			ceiling;
	int			floor;			/* at most the ceiling */
} LsLimitInput;

/* All zero: no step was made yet. */
typedef struct LsLimitState
{
	LsLimitPhase phase;
	int			limit;			/* 0: not decided yet */
	int64		since;			/* LOWEST, TRIAL: start of what is watched;
								 * GIVEN_UP: its start */
	int64		lag_us;			/* then */
	uint64		replayed;		/* then */
	int64		watch_us;		/* LOWEST: how long it is watched */
	double		lowest_rate;	/* TRIAL: bytes replayed in a us at the floor */
} LsLimitState;

/* What has the cores beside the sessions at the gate. */
typedef struct LsCrowdInput
{
	int64		now;			/* us */
	bool		automatic;		/* the ceiling is not the user's */
	bool		lag_counts;		/* ls_limit_lag_counts() */
	int			waiting;		/* sessions at the gate */
	double		others;			/* cores that other programs had in the last period, clients not counted */
	double		readers_wait;	/* part of the time that sessions inside waited for a core */
	double		replay_wait;	/* replay's wait for a core; below 0: not known */
	bool		replay_works;	/* replay has used a core in the last period */
	int64		lag_us;
	int64		allowed_us;		/* as in LsLimitInput */
} LsCrowdInput;

/* All zero: no step was made yet. */
typedef struct LsCrowdState
{
	int			places;			/* added to the limit */
	int			places_before;	/* while others are looked at: what is added again
								 * if they are still there */
	int64		looked_at;		/* when others were looked at last */
	int			steps;			/* without places, in this look */
	double		others;			/* averages of the look so far */
	double		readers_wait;
} LsCrowdState;

/* Sessions by what they use of what the limit is about. */
typedef struct LsGateCensus
{
	int			unasked;		/* execute without a place */
	int			exceptions;		/* have a place and do not need it now */
	int			resting;		/* have a place and do not need it, between two queries of a turn */
	int			longs;			/* have executed for long, while lag counts */
} LsGateCensus;

typedef struct LsGatePlaces
{
	int			steady;			/* whatever single sessions do next */
	int			for_exceptions;
	int			for_resting;
	int			for_longs;
} LsGatePlaces;

extern const char *ls_limit_phase_name(LsLimitPhase phase);
extern bool ls_limit_lag_counts(LsLimitPhase phase);
extern void ls_limit_step(LsLimitState *state, const LsLimitInput *in);
extern void ls_limit_step_crowd(LsCrowdState *state, const LsCrowdInput *in);
extern int	ls_limit_ceiling(int max, int floor, int cores, bool core_for_startup);
extern bool ls_limit_core_for_startup(bool before, double busy_share);
extern double ls_limit_average_resting(double average, int resting, bool any_waits, bool lag_counts);
extern LsGatePlaces ls_limit_places(int limit, int floor, double average_resting,
									const LsGateCensus *census);

#endif							/* LOCKSTEP_LIMIT_RULE_H */
