/*
 * start_rule.h - what "auto" means, and what is more than the server has, decided without I/O.
 */
#ifndef LOCKSTEP_START_RULE_H
#define LOCKSTEP_START_RULE_H

#include "state/settings.h"

/* Most helpers that "auto" starts. */
#define LS_MOST_AUTOMATIC 4

/* Lists of majors end with 0. */
extern const int ls_tested_majors[];
extern const int ls_soaked_majors[];

extern bool ls_is_listed(int major, const int *majors);
extern int	ls_automatic_helpers(bool is_tested, double cores, int room);
extern int	ls_automatic_hot_helpers(int helpers, int room);
extern int	ls_queue_within_memory(int wanted_kb, uint64 memory_kb);
extern bool ls_hot_standby_is_on(LsAutoSwitch setting, bool is_soaked);

#endif							/* LOCKSTEP_START_RULE_H */
