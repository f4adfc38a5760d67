/*
 * cgroup_linux.c - the cgroups that schedule this server and limit its memory, if any.
 *
 * A task belongs to the CPU controller's nearest group above it. Autogroup
 * only counts for tasks of the root group. In version 2 a group has the
 * controller exactly when it has a file cpu.weight, which the real root never
 * has; in version 1 only the real root has release_agent, so a container whose
 * root looks like "/" is told apart.
 *
 * Limits: expects the hierarchies where systemd and container runtimes mount
 * them, under /sys/fs/cgroup. A group that cannot be looked up counts as root;
 * demotion may then have no effect although it is reported as in force, and its
 * limits are not seen.
 */
#include "postgres.h"

#include <unistd.h>

#include "priority/cgroup_linux.h"
#include "priority/sched_linux.h"
#include "state/settings.h"

static const char *const cgroup_v1_mounts[] = {
	"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"
};
static const char *const cgroup_v1_memory_mounts[] = {
	"/sys/fs/cgroup/memory"
};
static const char *const cgroup_v2_mounts[] = {
	"/sys/fs/cgroup", "/sys/fs/cgroup/unified"
};

/* What a folder of a group says; 0: no limit. */
typedef double (*CgroupLimit) (const char *folder);

static bool cgroup_own_group(const char *controller, int *version, char *group, int size);
static bool cgroup_names(const char *list, const char *end, const char *controller);
static bool cgroup_v1_owns_cpu(const char *group);
static bool cgroup_v2_owns_cpu(char *group);
static bool cgroup_to_parent(char *group);
static double cgroup_least(const char *const *mounts, int nmounts, const char *group, CgroupLimit limit);
static double cgroup_v1_quota(const char *folder);
static double cgroup_v2_quota(const char *folder);
static double cgroup_v1_memory(const char *folder);
static double cgroup_v2_memory(const char *folder);
static double cgroup_number(const char *folder, const char *file);

/* True if a cgroup below the root schedules us; group has LS_CGROUP_NAME_SIZE bytes. */
bool
ls_cgroup_owns_cpu(char *group)
{
	int			version;

	if (!cgroup_own_group("cpu", &version, group, LS_CGROUP_NAME_SIZE))
		return false;
	return version == 1 ? cgroup_v1_owns_cpu(group) : cgroup_v2_owns_cpu(group);
}

/* CPU that the cgroups' quotas allow, in cores; 0 without a quota. */
double
ls_cgroup_cpu_quota(void)
{
	char		group[MAXPGPATH];
	int			version;

	if (!cgroup_own_group("cpu", &version, group, sizeof(group)))
		return 0;
	return version == 1 ?
		cgroup_least(cgroup_v1_mounts, lengthof(cgroup_v1_mounts), group, cgroup_v1_quota) :
		cgroup_least(cgroup_v2_mounts, lengthof(cgroup_v2_mounts), group, cgroup_v2_quota);
}

/* Bytes of memory that the cgroups allow; 0 without a limit. */
double
ls_cgroup_memory(void)
{
	char		group[MAXPGPATH];
	int			version;

	if (!cgroup_own_group("memory", &version, group, sizeof(group)))
		return 0;
	return version == 1 ?
		cgroup_least(cgroup_v1_memory_mounts, lengthof(cgroup_v1_memory_mounts), group, cgroup_v1_memory) :
		cgroup_least(cgroup_v2_mounts, lengthof(cgroup_v2_mounts), group, cgroup_v2_memory);
}

/*
 * This process's group in the hierarchy of a controller: version 1 or 2
 * and the path, false if none is named in /proc/self/cgroup. Lines look like
 * "3:cpu,cpuacct:/path" and "0::/path".
 */
static bool
cgroup_own_group(const char *controller, int *version, char *group, int size)
{
	char		path[MAXPGPATH];
	char		buf[8192];
	char	   *save = NULL;

	*version = 0;
	snprintf(path, sizeof(path), "%s/self/cgroup", ls_proc_root);
	if (ls_read_small_file(path, buf, sizeof(buf)) <= 0)
		return false;

	for (char *line = strtok_r(buf, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
	{
		char	   *controllers = strchr(line, ':');
		char	   *name = controllers ? strchr(controllers + 1, ':') : NULL;

		if (name == NULL)
			continue;
		if (cgroup_names(controllers + 1, name, controller))
		{
			*version = 1;
			strlcpy(group, name + 1, size);
			return true;
		}
		if (name == controllers + 1)
		{
			*version = 2;
			strlcpy(group, name + 1, size);
		}
	}
	return *version == 2;
}

/* Is the controller one of those in the comma-separated list? */
static bool
cgroup_names(const char *list, const char *end, const char *controller)
{
	while (list < end)
	{
		const char *comma = memchr(list, ',', end - list);
		const char *stop = comma ? comma : end;

		if (stop - list == strlen(controller) && memcmp(list, controller, stop - list) == 0)
			return true;
		list = stop + 1;
	}
	return false;
}

static bool
cgroup_v1_owns_cpu(const char *group)
{
	if (strcmp(group, "/") != 0)
		return true;
	for (int i = 0; i < lengthof(cgroup_v1_mounts); i++)
	{
		char		file[MAXPGPATH];

		snprintf(file, sizeof(file), "%s/release_agent", cgroup_v1_mounts[i]);
		if (access(cgroup_v1_mounts[i], F_OK) == 0)
			return access(file, F_OK) != 0;
	}
	return false;
}

static bool
cgroup_v2_owns_cpu(char *group)
{
	char		at[MAXPGPATH];

	/* from the own group up to the mount itself, which is "" */
	strlcpy(at, strcmp(group, "/") == 0 ? "" : group, sizeof(at));
	do
	{
		for (int i = 0; i < lengthof(cgroup_v2_mounts); i++)
		{
			char		file[MAXPGPATH * 2];

			snprintf(file, sizeof(file), "%s%s/cpu.weight", cgroup_v2_mounts[i], at);
			if (access(file, F_OK) == 0)
				return true;
		}
	} while (cgroup_to_parent(at));
	return false;
}

/* Cuts the last component off; false once nothing is left above. */
static bool
cgroup_to_parent(char *group)
{
	char	   *slash = strrchr(group, '/');

	if (slash == NULL || group[0] == '\0')
		return false;
	*slash = '\0';
	return true;
}

/* The least limit of the group and those above it; 0 without one. */
static double
cgroup_least(const char *const *mounts, int nmounts, const char *group, CgroupLimit limit)
{
	double		least = 0;

	for (int i = 0; i < nmounts; i++)
	{
		char		at[MAXPGPATH];

		strlcpy(at, strcmp(group, "/") == 0 ? "" : group, sizeof(at));
		do
		{
			char		folder[MAXPGPATH * 2];
			double		one;

			snprintf(folder, sizeof(folder), "%s%s", mounts[i], at);
			one = limit(folder);
			if (one > 0)
				least = least == 0 ? one : Min(least, one);
		} while (cgroup_to_parent(at));
	}
	return least;
}

static double
cgroup_v1_quota(const char *folder)
{
	double		quota = cgroup_number(folder, "cpu.cfs_quota_us");
	double		period = cgroup_number(folder, "cpu.cfs_period_us");

	return quota > 0 && period > 0 ? quota / period : 0;
}

/* The file has "quota period", or "max period". */
static double
cgroup_v2_quota(const char *folder)
{
	char		file[MAXPGPATH * 2 + 32];
	char		text[64];
	double		quota;
	double		period;

	snprintf(file, sizeof(file), "%s/cpu.max", folder);
	if (ls_read_small_file(file, text, sizeof(text)) <= 0 ||
		sscanf(text, "%lf %lf", &quota, &period) != 2)
		return 0;
	return quota > 0 && period > 0 ? quota / period : 0;
}

/* Without a limit the file has a number beyond all memory. */
static double
cgroup_v1_memory(const char *folder)
{
	return cgroup_number(folder, "memory.limit_in_bytes");
}

static double
cgroup_v2_memory(const char *folder)
{
	return cgroup_number(folder, "memory.max");
}

/* The number in a file, 0 if there is none. */
static double
cgroup_number(const char *folder, const char *file)
{
	char		path[MAXPGPATH * 2 + 32];
	char		text[64];

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	return ls_read_small_file(path, text, sizeof(text)) > 0 ? atof(text) : 0;
}
