/*
 * clear_way.h - sessions that replay waits for.
 */
#ifndef LOCKSTEP_CLEAR_WAY_H
#define LOCKSTEP_CLEAR_WAY_H

extern void ls_clear_way(bool in_recovery);

#endif							/* LOCKSTEP_CLEAR_WAY_H */
