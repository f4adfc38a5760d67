/*
 * demotion_rule.h - whether replay needs that sessions are demoted, decided without I/O and clock.
 */
#ifndef LOCKSTEP_DEMOTION_RULE_H
#define LOCKSTEP_DEMOTION_RULE_H

/* What is to be done next. */
typedef enum LsDemotionStep
{
	LS_DEMOTE_NONE = 0,			/* restore every session that is demoted, one after the other */
	LS_DEMOTE_AS_NOW,
	LS_DEMOTE_ONE_MORE
} LsDemotionStep;

/* Shares are of one core, in the last period. */
typedef struct LsDemotionInput
{
	bool		always;			/* by lockstep.replay_priority */
	bool		short_slices;	/* the kernel gives replay short time slices */
	double		replay_wait;	/* part of the time that replay was ready to run and had no
								 * core; below 0: not known */
	double		readers;		/* what heavy sessions used */
	double		normal_readers; /* the part of those that are not demoted */
	int64		lag_us;
	int64		allowed_us;		/* lag up to here is within bounds; 0: there is no bound */
} LsDemotionInput;

extern LsDemotionStep ls_demotion_step(const LsDemotionInput *in);
extern const char *ls_demotion_step_name(LsDemotionStep step);

#endif							/* LOCKSTEP_DEMOTION_RULE_H */
