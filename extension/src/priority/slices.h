/*
 * slices.h - short time slices for what makes commits visible.
 */
#ifndef LOCKSTEP_SLICES_H
#define LOCKSTEP_SLICES_H

extern void ls_slices_init(void);
extern void ls_slices_step(bool in_recovery);
extern bool ls_slices_in_force(void);

#endif							/* LOCKSTEP_SLICES_H */
