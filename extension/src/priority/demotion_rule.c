/*
 * demotion_rule.c - whether replay needs that sessions are demoted, decided without I/O and clock.
 *
 * extension/test/unit/demotion_rule_test.c has the table.
 *
 * A demoted session loses to every program of the machine, not only to replay. So sessions
 * are demoted only while that gives replay what it lacks: while replay is ready to run and
 * has no core, and sessions that could be demoted have it. One more session is demoted, or
 * restored, at a time, so as many are demoted in the end as replay needs.
 *
 * With short time slices replay gets a core as it wakes up, as long as it uses less than
 * its fair share. More than that it needs only when it has fallen behind: there lag has to
 * be out of bounds as well.
 *
 * Where demoted sessions have hardly any of the CPU, and replay lacks it all the same,
 * replay loses to other programs. Then sessions are restored.
 *
 * Where the kernel does not tell how long a process waits for a core, lag stands for it.
 */
#include "postgres.h"

#include "priority/demotion_rule.h"

/* Share from which replay lacks a core, and up to which it does not. */
#define LACKS_FROM 0.10
#define LACKS_UNTIL 0.05
/* What sessions have of a core so that taking it from them helps replay. */
#define WORTH_TAKING 0.10
/* What is too little for that. */
#define NOTHING_TO_TAKE 0.05
/* Lag that is out of bounds where the user has set no bound. */
#define USUAL_LAG_US INT64CONST(100000)

const char *
ls_demotion_step_name(LsDemotionStep step)
{
	switch (step)
	{
		case LS_DEMOTE_NONE:
			return "no";
		case LS_DEMOTE_AS_NOW:
			return "as now";
		case LS_DEMOTE_ONE_MORE:
			return "more";
	}
	return "unknown";
}

LsDemotionStep
ls_demotion_step(const LsDemotionInput *in)
{
	bool		known = in->replay_wait >= 0;
	int64		bound_us = in->allowed_us > 0 ? in->allowed_us : USUAL_LAG_US;
	bool		lagging = in->lag_us > bound_us;
	bool		lacks = known ? in->replay_wait >= LACKS_FROM : lagging;
	bool		has_all = known ? in->replay_wait <= LACKS_UNTIL : in->lag_us <= bound_us / 2;

	if (in->always)
		return LS_DEMOTE_ONE_MORE;
	if (in->short_slices)
	{
		lacks = lacks && lagging;
		has_all = has_all || in->lag_us <= bound_us / 2;
	}
	if (has_all || (lacks && in->readers < NOTHING_TO_TAKE))
		return LS_DEMOTE_NONE;
	return lacks && in->normal_readers >= WORTH_TAKING ? LS_DEMOTE_ONE_MORE : LS_DEMOTE_AS_NOW;
}
