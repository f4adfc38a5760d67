/*
 * clock.h - the clock of every interval, and of CPU time.
 */
#ifndef LOCKSTEP_CLOCK_H
#define LOCKSTEP_CLOCK_H

#include <time.h>

/*
 * Microseconds of a clock that no administrator sets. TimestampTz is only for
 * points in time that users see.
 */
static inline int64
ls_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64) t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* CPU time that this process has used. */
static inline int64
ls_my_cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (int64) t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

#endif							/* LOCKSTEP_CLOCK_H */
