/*
 * helper_processes.h - starts, wakes and ends the processes of replay helpers.
 */
#ifndef LOCKSTEP_HELPER_PROCESSES_H
#define LOCKSTEP_HELPER_PROCESSES_H

#include "replay/queue.h"

extern bool ls_helpers_are_gone(void);
extern void ls_helpers_start(int wanted);
extern void ls_helpers_start_first(bool hot);
extern int	ls_helpers_started(void);
extern void ls_helpers_wake(void);
extern void ls_helpers_stop(void);
extern LsWaitCause ls_helpers_wait_cause(uint64 number);

#endif							/* LOCKSTEP_HELPER_PROCESSES_H */
