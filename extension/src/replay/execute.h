/*
 * execute.h - a helper executes a record that it has claimed.
 */
#ifndef LOCKSTEP_EXECUTE_H
#define LOCKSTEP_EXECUTE_H

#include "replay/queue.h"

extern void ls_execute_init(void);
extern bool ls_may_execute(LsEntry *entry);
extern void ls_execute(LsEntry *entry);

#endif							/* LOCKSTEP_EXECUTE_H */
