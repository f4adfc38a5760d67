/*
 * sched_linux.c - what Linux offers for "this process later than that one".
 *
 * Autogroup: every session is a child that called setsid(), so with
 * kernel.sched_autogroup_enabled it is a scheduling group of its own, and nice
 * or SCHED_IDLE only order tasks inside that group. What counts then is the
 * group's nice value in /proc/PID/autogroup; the owner may raise and lower it.
 *
 * SCHED_IDLE: where autogroup is off, or void because a cgroup schedules the
 * server, the policy counts; going back from it needs RLIMIT_NICE.
 *
 * Slices (slices.c): system calls that older C libraries have no function for, with a
 * structure of the first size that the kernel has had.
 *
 * Only the controller calls these functions. None raises an error: a refusal of
 * the kernel is reported, and no query fails by it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "postgres.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "miscadmin.h"

#include "priority/cgroup_linux.h"
#include "priority/sched_linux.h"
#include "state/settings.h"
#include "state/shared_state.h"

#ifndef __linux__
#error "lockstep needs Linux"
#endif

#ifndef SCHED_IDLE
#define SCHED_IDLE 5
#endif

/* The first part of /proc/stat: lines of up to a thousand cores. */
#define IDLE_TEXT_SIZE (128 * 1024)

/* A signal in the kernel's masks. */
#define SIGNAL_BIT(signal) (UINT64CONST(1) << ((signal) - 1))

/* What the kernel takes and gives for a process; sched_setattr(2) names the fields. */
typedef struct SchedAttributes
{
	uint32		size;
	uint32		policy;
	uint64		flags;
	int32		nice;
	uint32		priority;
	uint64		runtime;		/* SCHED_OTHER: the slice, in ns */
	uint64		deadline;
	uint64		period;
} SchedAttributes;

static bool sched_autogroup_counts(char *why);
static bool sched_idle_can_be_undone(long *limit, long *needed);
static bool sched_is_ending(const char *file);
static LsKernelAnswer sched_kernel_error(int pid);
static int sched_get_attributes(int pid, SchedAttributes *attributes);

/*
 * Which of the two methods works here. detail (LS_TEXT_SIZE bytes) says why, in
 * words for lockstep_stat_priority.
 */
LsPriorityMethod
ls_sched_detect(bool allow_irreversible, char *detail)
{
	char		why[LS_TEXT_SIZE];
	long		limit;
	long		needed;
	pg_atomic_uint32 self;

	pg_atomic_init_u32(&self, (uint32) MyProcPid);
	if (sched_autogroup_counts(why))
	{
		/* a write that changes nothing tells whether writes are allowed */
		if (ls_sched_autogroup(MyProcPid, LS_NICE_NORMAL, &self) != LS_KERNEL_REFUSED)
		{
			snprintf(detail, LS_TEXT_SIZE, "scheduling groups of reading sessions get nice %d",
					 LS_NICE_LOW);
			return LS_METHOD_AUTOGROUP;
		}
		snprintf(detail, LS_TEXT_SIZE,
				 "autogroup is in force but %s/PID/autogroup cannot be written: %s",
				 ls_proc_root, strerror(errno));
		return LS_METHOD_NONE;
	}

	if (sched_idle_can_be_undone(&limit, &needed))
	{
		snprintf(detail, LS_TEXT_SIZE, "SCHED_IDLE for reading sessions, as %.180s", why);
		return LS_METHOD_SCHED_IDLE;
	}
	if (allow_irreversible)
	{
		snprintf(detail, LS_TEXT_SIZE,
				 "SCHED_IDLE for reading sessions, not undone before they reconnect; %.150s", why);
		return LS_METHOD_SCHED_IDLE;
	}
	snprintf(detail, LS_TEXT_SIZE,
			 "%.120s, and SCHED_IDLE could not be undone: RLIMIT_NICE is %ld, needs %ld (systemd: LimitNICE=+0)",
			 why, limit, needed);
	return LS_METHOD_NONE;
}

/*
 * Sets the nice value of a process's scheduling group. still_pid is the slot's
 * pid, looked at again once the file is open: from then on the kernel answers
 * ESRCH if the process is replaced by another of the same number.
 */
LsKernelAnswer
ls_sched_autogroup(int pid, int nice, const pg_atomic_uint32 *still_pid)
{
	char		path[MAXPGPATH];
	char		value[16];
	int			len = snprintf(value, sizeof(value), "%d", nice);
	int			fd;
	ssize_t		written;
	LsKernelAnswer answer = LS_KERNEL_DONE;

	snprintf(path, sizeof(path), "%s/%d/autogroup", ls_proc_root, pid);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
	{
		if (errno == EACCES && sched_is_ending(path))
			return LS_KERNEL_GONE;
		return sched_kernel_error(pid);
	}
	if (pg_atomic_read_u32(unconstify(pg_atomic_uint32 *, still_pid)) != (uint32) pid)
	{
		close(fd);
		return LS_KERNEL_GONE;
	}
	written = write(fd, value, len);
	if (written != len)
		answer = sched_kernel_error(pid);
	close(fd);
	return answer;
}

/* Puts a process under SCHED_IDLE, or back to the normal policy. */
LsKernelAnswer
ls_sched_policy(int pid, bool idle, const pg_atomic_uint32 *still_pid)
{
	struct sched_param param = {0};

	if (pg_atomic_read_u32(unconstify(pg_atomic_uint32 *, still_pid)) != (uint32) pid)
		return LS_KERNEL_GONE;
	if (sched_setscheduler(pid, idle ? SCHED_IDLE : SCHED_OTHER, &param) == 0)
		return LS_KERNEL_DONE;
	return sched_kernel_error(pid);
}

/* A process's slice; 0 if the kernel does not tell. */
uint64
ls_sched_slice_ns(int pid)
{
	SchedAttributes attributes;

	if (sched_get_attributes(pid, &attributes) != 0 || attributes.policy != SCHED_OTHER)
		return 0;
	return attributes.runtime;
}

/*
 * Asks for a slice; 0 asks for the kernel's default. Returns errno of what failed, or
 * 0 and what the process has now, which is 0 under another policy: that stays.
 */
int
ls_sched_set_slice(int pid, uint64 slice_ns, uint64 *has_ns)
{
	SchedAttributes attributes;
	int			error = sched_get_attributes(pid, &attributes);

	*has_ns = 0;
	if (error != 0)
		return error;
	if (attributes.policy != SCHED_OTHER)
		return 0;
	attributes.size = sizeof(attributes);
	attributes.runtime = slice_ns;
	if (syscall(SYS_sched_setattr, pid, &attributes, 0) != 0)
		return errno;
	error = sched_get_attributes(pid, &attributes);
	*has_ns = attributes.runtime;
	return error;
}

/* Cores that this server may use, a part of one counted as one. */
int
ls_sched_cores(void)
{
	double		cpu = ls_sched_cpu();
	int			cores = (int) cpu;

	return Max(cores + (cpu > cores), 1);
}

/* CPU that this server may use, in cores: its affinity, and its cgroups' quotas. */
double
ls_sched_cpu(void)
{
	cpu_set_t	set;
	double		cores;
	double		quota = ls_cgroup_cpu_quota();

	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cores = CPU_COUNT(&set);
	else
		cores = sysconf(_SC_NPROCESSORS_ONLN);
	return quota > 0 ? Min(cores, quota) : cores;
}

/* Time in which the cores that this process may use had nothing to do, in us; -1: not known. */
int64
ls_sched_idle_us(void)
{
	static char text[IDLE_TEXT_SIZE];
	char		path[MAXPGPATH];
	cpu_set_t	set;
	int64		ticks = 0;
	long		per_second = sysconf(_SC_CLK_TCK);

	snprintf(path, sizeof(path), "%s/stat", ls_proc_root);
	CPU_ZERO(&set);
	if (per_second <= 0 || sched_getaffinity(0, sizeof(set), &set) != 0 ||
		ls_read_small_file(path, text, sizeof(text)) <= 0)
		return -1;
	/* a line for each core: its number, and ticks as user, nice, system, idle, and idle with I/O of its own */
	for (char *line = strstr(text, "cpu"); line != NULL; line = strstr(line + 1, "\ncpu"))
	{
		unsigned int core;
		uint64		idle;
		uint64		waits_io;

		if (sscanf(line + (*line == '\n'), "cpu%u %*u %*u %*u " UINT64_FORMAT " " UINT64_FORMAT,
				   &core, &idle, &waits_io) == 3 &&
			core < CPU_SETSIZE && CPU_ISSET(core, &set))
			ticks += (int64) (idle + waits_io);
	}
	return ticks * (1000000 / per_second);
}

/* Memory that this server may use, in kB: the machine's, and its cgroups' limits. 0: not known. */
uint64
ls_sched_memory_kb(void)
{
	char		path[MAXPGPATH];
	char		text[4096];
	char	   *total;
	uint64		limit_kb = (uint64) (ls_cgroup_memory() / 1024);
	uint64		memory_kb = 0;

	snprintf(path, sizeof(path), "%s/meminfo", ls_proc_root);
	if (ls_read_small_file(path, text, sizeof(text)) > 0 && (total = strstr(text, "MemTotal:")) != NULL)
		(void) sscanf(total, "MemTotal: " UINT64_FORMAT, &memory_kb);
	if (limit_kb > 0 && (memory_kb == 0 || limit_kb < memory_kb))
		memory_kb = limit_kb;
	return memory_kb;
}

/*
 * CPU time that a process has used, and the time that it was ready to run and waited for
 * a core. Where the kernel keeps no account of waiting, queued_us is -1. False if the
 * process is gone.
 */
bool
ls_sched_times(int pid, LsSchedTimes *times)
{
	char		path[MAXPGPATH];
	char		text[96];
	uint64		cpu_ns;
	uint64		queued_ns;

	times->queued_us = -1;
	snprintf(path, sizeof(path), "%s/%d/schedstat", ls_proc_root, pid);
	/* time on a core, time in a queue, number of turns */
	if (ls_read_small_file(path, text, sizeof(text)) > 0 &&
		sscanf(text, UINT64_FORMAT " " UINT64_FORMAT, &cpu_ns, &queued_ns) == 2)
	{
		times->cpu_ns = (int64) cpu_ns;
		times->queued_us = (int64) (queued_ns / 1000);
		return true;
	}
	times->cpu_ns = ls_sched_cpu_ns(pid);
	return times->cpu_ns >= 0;
}

/* Is a signal pending that ends the process or its query? It had no CPU to receive it then. */
bool
ls_sched_is_asked_to_end(int pid)
{
	char		path[MAXPGPATH];
	char		text[4096];
	char	   *pending;
	unsigned long long signals;

	snprintf(path, sizeof(path), "%s/%d/status", ls_proc_root, pid);
	if (ls_read_small_file(path, text, sizeof(text)) <= 0 ||
		(pending = strstr(text, "\nShdPnd:")) == NULL ||
		sscanf(pending + strlen("\nShdPnd:"), "%llx", &signals) != 1)
		return false;
	return (signals & (SIGNAL_BIT(SIGINT) | SIGNAL_BIT(SIGTERM) |
					   SIGNAL_BIT(SIGQUIT) | SIGNAL_BIT(SIGALRM))) != 0;
}

/* CPU time that a process has used, in ns; -1 if it is gone or not known. */
int64
ls_sched_cpu_ns(int pid)
{
	clockid_t	clock;
	struct timespec t;

	/* for the kernel 0 is the caller */
	if (pid <= 0)
		return -1;
	if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
		return -1;
	return (int64) t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The kernel's letter for a process's state: R, S, D ...; 0 if unknown. */
char
ls_sched_state(int pid)
{
	char		path[MAXPGPATH];
	char		buf[512];
	char	   *paren;

	snprintf(path, sizeof(path), "%s/%d/stat", ls_proc_root, pid);
	if (ls_read_small_file(path, buf, sizeof(buf)) <= 0)
		return 0;
	paren = strrchr(buf, ')');
	if (paren == NULL || paren[1] != ' ')
		return 0;
	return paren[2];
}

/* Bytes read, 0-terminated; -1 and errno if the file cannot be read. */
int
ls_read_small_file(const char *path, char *buf, int size)
{
	int			fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t		n;

	if (fd < 0)
		return -1;
	n = read(fd, buf, size - 1);
	close(fd);
	if (n < 0)
		return -1;
	buf[n] = '\0';
	return (int) n;
}

/* True if the group's nice value would count; else why says why not. */
static bool
sched_autogroup_counts(char *why)
{
	char		path[MAXPGPATH];
	char		buf[64];
	char		group[LS_CGROUP_NAME_SIZE];

	snprintf(path, sizeof(path), "%s/self/autogroup", ls_proc_root);
	if (ls_read_small_file(path, buf, sizeof(buf)) <= 0)
	{
		snprintf(why, LS_TEXT_SIZE, "no %s", path);
		return false;
	}
	snprintf(path, sizeof(path), "%s/sys/kernel/sched_autogroup_enabled", ls_proc_root);
	if (ls_read_small_file(path, buf, sizeof(buf)) <= 0 || buf[0] != '1')
	{
		strlcpy(why, "kernel.sched_autogroup_enabled is not 1", LS_TEXT_SIZE);
		return false;
	}
	if (ls_cgroup_owns_cpu(group))
	{
		snprintf(why, LS_TEXT_SIZE, "cgroup \"%s\" schedules this server's CPU", group);
		return false;
	}
	return true;
}

static bool
sched_idle_can_be_undone(long *limit, long *needed)
{
	struct rlimit rl;

	/* RLIMIT_NICE counts 20 - nice */
	*needed = 20 - getpriority(PRIO_PROCESS, 0);
	*limit = 0;
	if (getrlimit(RLIMIT_NICE, &rl) != 0)
		return false;
	*limit = rl.rlim_cur == RLIM_INFINITY ? 40 : (long) rl.rlim_cur;
	return *limit >= *needed;
}

/* Has the process of this file in /proc given up its memory? Then the file is root's. Keeps errno. */
static bool
sched_is_ending(const char *file)
{
	int			save_errno = errno;
	struct stat status;
	bool		ending = stat(file, &status) != 0 || status.st_uid != geteuid();

	errno = save_errno;
	return ending;
}

static LsKernelAnswer
sched_kernel_error(int pid)
{
	int			save_errno = errno;

	if (save_errno == EAGAIN)
		return LS_KERNEL_LATER;
	if (save_errno == ESRCH || (save_errno == ENOENT && kill(pid, 0) != 0))
		return LS_KERNEL_GONE;
	errno = save_errno;
	return LS_KERNEL_REFUSED;
}

/* What the kernel says of a process. Returns 0, or errno. */
static int
sched_get_attributes(int pid, SchedAttributes *attributes)
{
	memset(attributes, 0, sizeof(*attributes));
	return syscall(SYS_sched_getattr, pid, attributes, sizeof(*attributes), 0) == 0 ? 0 : errno;
}
