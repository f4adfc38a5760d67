/*
 * settings.h - the values of the lockstep.* settings.
 */
#ifndef LOCKSTEP_SETTINGS_H
#define LOCKSTEP_SETTINGS_H

typedef enum LsThrottleMode
{
	LS_THROTTLE_OFF,
	LS_THROTTLE_LOG,
	LS_THROTTLE_ON
} LsThrottleMode;

typedef enum LsReplayPriority
{
	LS_PRIORITY_OFF,
	LS_PRIORITY_ON,
	LS_PRIORITY_ALWAYS
} LsReplayPriority;

typedef enum LsAutoSwitch
{
	LS_OFF,
	LS_ON,
	LS_AUTO						/* as start_rule.c or stretch_rule.c decides */
} LsAutoSwitch;

/* The program's too: a test holds both against CHANGELOG.md. */
#define LS_VERSION "0.2.0"

/* Limit of lockstep.replay_look_ahead. */
#define LS_MAX_LOOK_AHEAD 32

/* Limit of lockstep.replay_workers. */
#define LS_MAX_REPLAY_WORKERS 16

/* Least lockstep.replay_queue_size. */
#define LS_MIN_QUEUE_KB 512

/* Value of lockstep.replay_workers: as many as start_limits.c finds room for. */
#define LS_WORKERS_AUTO (-1)

extern bool ls_enabled;
extern int	ls_replay_priority;
extern bool ls_priority_irreversible;
extern int	ls_read_throttle;
extern int	ls_read_throttle_lag;
extern int	ls_read_throttle_give_up;
extern int	ls_read_throttle_min;
extern int	ls_read_throttle_max;
extern int	ls_read_throttle_timeout;
extern int	ls_read_throttle_long_query;
extern int	ls_read_throttle_turn;
extern bool ls_report_token;
extern int	ls_wait_timeout;
extern int	ls_replay_look_ahead;
extern int	ls_replay_workers;
extern int	ls_replay_queue_size;
extern int	ls_replay_hot_standby;
extern int	ls_replay_min_backlog;
extern int	ls_replay_read_helpers;	/* LsAutoSwitch */
extern int	ls_wal_segments_ahead;
extern char *ls_wait_for_lsn;
extern char *ls_replay_token;
extern char *ls_proc_root;

extern void ls_define_settings(void);

#endif							/* LOCKSTEP_SETTINGS_H */
