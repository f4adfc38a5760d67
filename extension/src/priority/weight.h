/*
 * weight.h - which sessions are worth demoting.
 */
#ifndef LOCKSTEP_WEIGHT_H
#define LOCKSTEP_WEIGHT_H

extern void ls_weigh_session(int slot, int pid, int64 cpu_ns, uint32 statements);

#endif							/* LOCKSTEP_WEIGHT_H */
