/*
 * weight.h - which sessions are worth demoting.
 */
#ifndef LOCKSTEP_WEIGHT_H
#define LOCKSTEP_WEIGHT_H

extern void ls_weigh_sessions(int64 now);

#endif							/* LOCKSTEP_WEIGHT_H */
