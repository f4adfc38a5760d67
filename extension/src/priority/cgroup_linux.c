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

static const char *const cgroup_v1_mounts[] = {
	"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"
};
static const char *const cgroup_v2_mounts[] = {
	"/sys/fs/cgroup", "/sys/fs/cgroup/unified"
};

static bool cgroup_own_group(int *version, char *group, int size);
static bool cgroup_names_cpu(const char *list, const char *end);
static bool cgroup_v1_owns_cpu(const char *group);
static bool cgroup_v2_owns_cpu(char *group);
static bool cgroup_to_parent(char *group);
static int cgroup_v1_quota(const char *mount, const char *group);
static int cgroup_quota_cores(const char *quota, const char *period);
static int cgroup_v2_quota(const char *mount, const char *group);

/* True if a cgroup below the root schedules us; group has LS_CGROUP_NAME_SIZE bytes. */
bool
ls_cgroup_owns_cpu(char *group)
{
	int			version;

	if (!cgroup_own_group(&version, group, LS_CGROUP_NAME_SIZE))
		return false;
	return version == 1 ? cgroup_v1_owns_cpu(group) : cgroup_v2_owns_cpu(group);
}

/* Cores that the cgroups' quotas allow, rounded up; 0 without a quota. */
int
ls_cgroup_cpu_quota(void)
{
	char		group[MAXPGPATH];
	int			version;
	int			least = 0;
	int			nmounts;

	if (!cgroup_own_group(&version, group, sizeof(group)))
		return 0;
	nmounts = version == 1 ? lengthof(cgroup_v1_mounts) : lengthof(cgroup_v2_mounts);
	for (int i = 0; i < nmounts; i++)
	{
		int			cores = version == 1 ? cgroup_v1_quota(cgroup_v1_mounts[i], group)
			: cgroup_v2_quota(cgroup_v2_mounts[i], group);

		if (cores > 0)
			least = least == 0 ? cores : Min(least, cores);
	}
	return least;
}

/*
 * This process's group in the hierarchy of the CPU controller: version 1 or 2
 * and the path, false if none is named in /proc/self/cgroup. Lines look like
 * "3:cpu,cpuacct:/path" and "0::/path".
 */
static bool
cgroup_own_group(int *version, char *group, int size)
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
		if (cgroup_names_cpu(controllers + 1, name))
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

/* Is "cpu" one of the comma-separated controllers? */
static bool
cgroup_names_cpu(const char *list, const char *end)
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

static int
cgroup_v1_quota(const char *mount, const char *group)
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
	return cgroup_quota_cores(quota, period);
}

/* Whole cores granted by "quota period", 0 for no quota. */
static int
cgroup_quota_cores(const char *quota, const char *period)
{
	double		q = atof(quota);
	double		p = atof(period);

	if (q <= 0 || p <= 0)
		return 0;
	return Max((int) ((q + p - 1) / p), 1);
}

static int
cgroup_v2_quota(const char *mount, const char *group)
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
		cores = cgroup_quota_cores(buf, space + 1);
		if (cores > 0)
			least = least == 0 ? cores : Min(least, cores);
	} while (cgroup_to_parent(at));
	return least;
}
