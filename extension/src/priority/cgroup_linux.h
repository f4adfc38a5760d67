/*
 * cgroup_linux.h - the cgroup that schedules this server, if any.
 */
#ifndef LOCKSTEP_CGROUP_LINUX_H
#define LOCKSTEP_CGROUP_LINUX_H

/* Bytes of the text that names a group. */
#define LS_CGROUP_NAME_SIZE 128

extern bool ls_cgroup_owns_cpu(char *group);
extern int	ls_cgroup_cpu_quota(void);

#endif							/* LOCKSTEP_CGROUP_LINUX_H */
