/*
 * sched_linux.h - what Linux says about processes and does to their priority.
 */
#ifndef LOCKSTEP_SCHED_LINUX_H
#define LOCKSTEP_SCHED_LINUX_H

#include "port/atomics.h"

/* Why and how the controller can or cannot demote. */
typedef enum LsPriorityMethod
{
	LS_METHOD_NONE,
	LS_METHOD_AUTOGROUP,
	LS_METHOD_SCHED_IDLE
} LsPriorityMethod;

typedef enum LsKernelAnswer
{
	LS_KERNEL_DONE,
	LS_KERNEL_LATER,			/* rate limit: try again in 100 ms */
	LS_KERNEL_GONE,				/* no such process any more */
	LS_KERNEL_REFUSED			/* errno says why */
} LsKernelAnswer;

/* What a process has had of the CPU since it began, and what not. */
typedef struct LsSchedTimes
{
	int64		cpu_ns;
	int64		queued_us;		/* ready to run, without a core; -1: not known */
} LsSchedTimes;

/* Autogroup nice value of a demoted session and of a normal one. */
#define LS_NICE_LOW 19
#define LS_NICE_NORMAL 0

extern LsPriorityMethod ls_sched_detect(bool allow_irreversible, char *detail);
extern LsKernelAnswer ls_sched_autogroup(int pid, int nice,
										 const pg_atomic_uint32 *still_pid);
extern LsKernelAnswer ls_sched_policy(int pid, bool idle,
									  const pg_atomic_uint32 *still_pid);
extern uint64 ls_sched_slice_ns(int pid);
extern int	ls_sched_set_slice(int pid, uint64 slice_ns, uint64 *has_ns);
extern int	ls_sched_cores(void);
extern double ls_sched_cpu(void);
extern int64 ls_sched_idle_us(void);
extern uint64 ls_sched_memory_kb(void);
extern bool ls_sched_times(int pid, LsSchedTimes *times);
extern bool ls_sched_is_asked_to_end(int pid);
extern int64 ls_sched_cpu_ns(int pid);
extern char ls_sched_state(int pid);
extern int	ls_read_small_file(const char *path, char *buf, int size);

#endif							/* LOCKSTEP_SCHED_LINUX_H */
