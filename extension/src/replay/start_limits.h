/*
 * start_limits.h - how many helpers there may be, and the size of their queue.
 */
#ifndef LOCKSTEP_START_LIMITS_H
#define LOCKSTEP_START_LIMITS_H

#include "replay/queue.h"

extern int	ls_most_helpers;
extern int	ls_most_hot_helpers;
extern LsPipelineState ls_why_no_helpers;
extern int	ls_queue_kb;

extern void ls_decide_start_limits(void);

#endif							/* LOCKSTEP_START_LIMITS_H */
