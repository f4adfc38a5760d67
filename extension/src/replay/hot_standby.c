/*
 * hot_standby.c - whether records may run ahead while sessions read (rule 11 of README.md).
 *
 * A record that has run ahead cannot be taken back. So nothing runs ahead of a place at which
 * replay may be told to stop or to stand still: a recovery target, a delay, a pause. And
 * only once each snapshot knows which transactions have not ended: what these write is then
 * invisible, whether replay has come to it or not.
 *
 * No state. Runs in the startup process, and in those that show the views.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "access/xlogutils.h"

#include "replay/broken_rule.h"
#include "replay/hot_standby.h"
#include "replay/start_rule.h"
#include "state/settings.h"

/* Are records to run ahead while sessions read, by lockstep.replay_hot_standby? */
bool
ls_replays_in_hot_standby(void)
{
	return ls_hot_standby_is_on(ls_replay_hot_standby, ls_is_listed(PG_MAJORVERSION_NUM, ls_soaked_majors));
}

/* May records run ahead while sessions read? LS_PARALLEL: they may. */
LsPipelineState
ls_why_not_hot(void)
{
	if (!ls_enabled)
		return LS_NO_SWITCH;
	if (!ls_replays_in_hot_standby())
		return LS_NO_CONSISTENT;
	if (recoveryTarget != RECOVERY_TARGET_UNSET && !LS_BREAKS(TARGET))
		return LS_NO_TARGET;
	if (recovery_min_apply_delay > 0 && !LS_BREAKS(DELAY))
		return LS_NO_DELAY;
	if (!reachedConsistency || standbyState != STANDBY_SNAPSHOT_READY)
		return LS_NO_SNAPSHOT;
	if (GetRecoveryPauseState() != RECOVERY_NOT_PAUSED)
		return LS_NO_PAUSE;
	return LS_PARALLEL;
}
