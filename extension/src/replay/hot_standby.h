/*
 * hot_standby.h - whether records may run ahead while sessions read.
 */
#ifndef LOCKSTEP_HOT_STANDBY_H
#define LOCKSTEP_HOT_STANDBY_H

#include "replay/queue.h"

extern bool ls_replays_in_hot_standby(void);
extern LsPipelineState ls_why_not_hot(void);

#endif							/* LOCKSTEP_HOT_STANDBY_H */
