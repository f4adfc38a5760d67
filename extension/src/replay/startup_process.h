/*
 * startup_process.h - which process replays, and what it does at this moment.
 */
#ifndef LOCKSTEP_STARTUP_PROCESS_H
#define LOCKSTEP_STARTUP_PROCESS_H

#include "port/atomics.h"
#include "storage/lock.h"

typedef struct LsStartupShared
{
	pg_atomic_uint32 procno;	/* PG_UINT32_MAX: not seen yet; written by the
								 * startup process, once in each recovery */
} LsStartupShared;

extern LsStartupShared *ls_startup;

extern void ls_startup_init_shared(void);
extern void ls_startup_announce(void);
extern uint32 ls_startup_wait_event(void);
extern bool ls_startup_waits_for_lock(LOCKTAG *tag);
extern int	ls_startup_pid(void);
extern bool ls_startup_is_runnable(void);

#endif							/* LOCKSTEP_STARTUP_PROCESS_H */
