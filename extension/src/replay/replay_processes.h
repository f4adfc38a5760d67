/*
 * replay_processes.h - the processes that bring a standby's data up to date.
 */
#ifndef LOCKSTEP_REPLAY_PROCESSES_H
#define LOCKSTEP_REPLAY_PROCESSES_H

#include "state/settings.h"

/* The startup process, the walreceiver and replay helpers, as many as there may be. */
#define LS_REPLAY_PROCESSES (2 + LS_MAX_REPLAY_WORKERS)

extern int	ls_replay_pid(int which);

#endif							/* LOCKSTEP_REPLAY_PROCESSES_H */
