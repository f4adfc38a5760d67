/*
 * helper_count.h - what helpers do and wait for, and how many of them it is worth.
 */
#ifndef LOCKSTEP_HELPER_COUNT_H
#define LOCKSTEP_HELPER_COUNT_H

#include "replay/queue.h"

extern int	ls_helper_count_begin(void);
extern void ls_helper_count_limit(int started);
extern void ls_helper_count_read(void);
extern LsPipelineState ls_helper_count_record(bool by_helper, int *wanted);
extern void ls_helper_note_waits(LsHelper *helper);
extern void ls_helper_skip_waits(void);

#endif							/* LOCKSTEP_HELPER_COUNT_H */
