/*
 * cgroup_linux.c - the cgroup that schedules this server, if any.
 *
 * A task belongs to the CPU controller's nearest group above it. Autogroup
 * only counts for tasks of the root group. In version 2 a group has the
 * controller exactly when it has a file cpu.weight, which the real root never
 * has; in version 1 only the real root has release_agent, so a container whose
 * root looks like "/" is told apart.
 *
 * Limits: expects the hierarchies where systemd and container runtimes mount
 * them, under /sys/fs/cgroup. A group that cannot be looked up counts as root;
 * demotion may then have no effect although it is reported as in force.
 */
#include "postgres.h"

#include <unistd.h>

#include "priority/cgroup_linux.h"
#include "priority/sched_linux.h"
#include "state/settings.h"

static const char *const v1_mounts[] = {
	"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"
};
static const char *const v2_mounts[] = {
	"/sys/fs/cgroup", "/sys/fs/cgroup/unified"
};

/* Is "cpu" one of the comma-separated controllers? */
static bool
names_cpu(const char *list, const char *end)
{
	while (list < end)
	{
		const char *comma = memchr(list, ',', end - list);
		const char *stop = comma ? comma : end;

		if (stop - list == 3 && memcmp(list, "cpu", 3) == 0)
			return true;
		list = stop + 1;
	}
	return false;
}

/*
 * This process's group in the hierarchy of the CPU controller: version 1 or 2
 * and the path, false if none is named in /proc/self/cgroup. Lines look like
 * "3:cpu,cpuacct:/path" and "0::/path".
 */
static bool
own_group(int *version, char *group, int size)
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
		if (names_cpu(controllers + 1, name))
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

/* Cuts the last component off; false once nothing is left above. */
static bool
to_parent(char *group)
{
	char	   *slash = strrchr(group, '/');

	if (slash == NULL || group[0] == '\0')
		return false;
	*slash = '\0';
	return true;
}

static bool
v2_owns_cpu(char *group)
{
	char		at[MAXPGPATH];

	/* from the own group up to the mount itself, which is "" */
	strlcpy(at, strcmp(group, "/") == 0 ? "" : group, sizeof(at));
	do
	{
		for (int i = 0; i < lengthof(v2_mounts); i++)
		{
			char		file[MAXPGPATH * 2];

			snprintf(file, sizeof(file), "%s%s/cpu.weight", v2_mounts[i], at);
			if (access(file, F_OK) == 0)
				return true;
		}
	} while (to_parent(at));
	return false;
}

static bool
v1_owns_cpu(const char *group)
{
	if (strcmp(group, "/") != 0)
		return true;
	for (int i = 0; i < lengthof(v1_mounts); i++)
	{
		char		file[MAXPGPATH];

		snprintf(file, sizeof(file), "%s/release_agent", v1_mounts[i]);
		if (access(v1_mounts[i], F_OK) == 0)
			return access(file, F_OK) != 0;
	}
	return false;
}

/* True if a cgroup below the root schedules us; group has LS_CGROUP_NAME_SIZE bytes. */
bool
ls_cgroup_owns_cpu(char *group)
{
	int			version;

	if (!own_group(&version, group, LS_CGROUP_NAME_SIZE))
		return false;
	return version == 1 ? v1_owns_cpu(group) : v2_owns_cpu(group);
}

/* Whole cores granted by "quota period", 0 for no quota. */
static int
quota_cores(const char *quota, const char *period)
{
	double		q = atof(quota);
	double		p = atof(period);

	if (q <= 0 || p <= 0)
		return 0;
	return Max((int) ((q + p - 1) / p), 1);
}

static int
v2_quota(const char *mount, const char *group)
{
	char		at[MAXPGPATH];
	int			least = 0;

	strlcpy(at, strcmp(group, "/") == 0 ? "" : group, sizeof(at));
	do
	{
		char		file[MAXPGPATH * 2];
		char		buf[64];
		char	   *space;
		int			cores;

		snprintf(file, sizeof(file), "%s%s/cpu.max", mount, at);
		if (ls_read_small_file(file, buf, sizeof(buf)) <= 0 ||
			(space = strchr(buf, ' ')) == NULL)
			continue;
		cores = quota_cores(buf, space + 1);
		if (cores > 0)
			least = least == 0 ? cores : Min(least, cores);
	} while (to_parent(at));
	return least;
}

static int
v1_quota(const char *mount, const char *group)
{
	char		file[MAXPGPATH * 2];
	char		quota[32];
	char		period[32];

	snprintf(file, sizeof(file), "%s%s/cpu.cfs_quota_us", mount, group);
	if (ls_read_small_file(file, quota, sizeof(quota)) <= 0)
		return 0;
	snprintf(file, sizeof(file), "%s%s/cpu.cfs_period_us", mount, group);
	if (ls_read_small_file(file, period, sizeof(period)) <= 0)
		return 0;
	return quota_cores(quota, period);
}

/* Cores that the cgroups' quotas allow, rounded up; 0 without a quota. */
int
ls_cgroup_cpu_quota(void)
{
	char		group[MAXPGPATH];
	int			version;
	int			least = 0;
	int			nmounts;

	if (!own_group(&version, group, sizeof(group)))
		return 0;
	nmounts = version == 1 ? lengthof(v1_mounts) : lengthof(v2_mounts);
	for (int i = 0; i < nmounts; i++)
	{
		int			cores = version == 1 ? v1_quota(v1_mounts[i], group)
			: v2_quota(v2_mounts[i], group);

		if (cores > 0)
			least = least == 0 ? cores : Min(least, cores);
	}
	return least;
}
