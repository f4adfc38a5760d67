/*
 * read_ahead.h - asks the kernel for blocks that dispatched records will read from files.
 */
#ifndef LOCKSTEP_READ_AHEAD_H
#define LOCKSTEP_READ_AHEAD_H

extern void ls_read_ahead_begin(void);
extern void ls_read_ahead(uint64 current);

#endif							/* LOCKSTEP_READ_AHEAD_H */
