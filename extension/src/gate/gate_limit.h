/*
 * gate_limit.h - how many queries the gate lets in.
 */
#ifndef LOCKSTEP_GATE_LIMIT_H
#define LOCKSTEP_GATE_LIMIT_H

extern void ls_gate_open(void);
extern void ls_gate_step(int64 now);

#endif							/* LOCKSTEP_GATE_LIMIT_H */
