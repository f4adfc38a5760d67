/*
 * executor_hooks.h - hooks of the executor and of utility commands.
 */
#ifndef LOCKSTEP_EXECUTOR_HOOKS_H
#define LOCKSTEP_EXECUTOR_HOOKS_H

/* Number of executor calls and utility commands around the present point. */
extern int	ls_nesting;

extern void ls_install_hooks(void);

#endif							/* LOCKSTEP_EXECUTOR_HOOKS_H */
