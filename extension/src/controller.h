/*
 * controller.h - what other processes see of the controller.
 */
#ifndef LOCKSTEP_CONTROLLER_H
#define LOCKSTEP_CONTROLLER_H

#include "port/atomics.h"

/* Written by the controller only. */
typedef struct LsControllerShared
{
	pg_atomic_uint32 procno;	/* PG_UINT32_MAX: not running */
	pg_atomic_uint64 beat;		/* ls_now_us() of the last round */
} LsControllerShared;

extern LsControllerShared *ls_controller;

extern void ls_controller_init_shared(void);
extern void ls_nudge_controller(void);
extern bool ls_controller_alive(void);

#endif							/* LOCKSTEP_CONTROLLER_H */
