/*
 * cgroup_linux.h - the cgroups that schedule this server and limit its memory, if any.
 */
#ifndef LOCKSTEP_CGROUP_LINUX_H
#define LOCKSTEP_CGROUP_LINUX_H

/* Bytes of the text that names a group. */
#define LS_CGROUP_NAME_SIZE 128

extern bool ls_cgroup_owns_cpu(char *group);
extern double ls_cgroup_cpu_quota(void);
extern double ls_cgroup_memory(void);

#endif							/* LOCKSTEP_CGROUP_LINUX_H */
