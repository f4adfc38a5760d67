/*
 * wait_lsn.h - SET lockstep.wait_for_lsn on a standby.
 */
#ifndef LOCKSTEP_WAIT_LSN_H
#define LOCKSTEP_WAIT_LSN_H

#include "nodes/nodes.h"
#include "port/atomics.h"

typedef struct LsLsnWaitShared
{
	pg_atomic_uint32 waiters;	/* sessions whose wait_lsn is set; counted by
								 * those sessions */
} LsLsnWaitShared;

extern LsLsnWaitShared *ls_lsn_wait;

extern void ls_wait_lsn_init_shared(void);
extern void ls_wait_for_lsn_statement(Node *stmt, bool top_level);
extern void ls_wait_lsn_step(void);

#endif							/* LOCKSTEP_WAIT_LSN_H */
