/*
 * broken_rule.h - a rule of parallel replay that a test breaks on purpose.
 *
 * A test of a rule counts only if it fails without the rule. A library that is built with
 * BREAKABLE=1 (extension/Makefile) has the setting lockstep.broken_rule, which names the
 * rule that it does not keep. Such a library destroys data: scripts/test-extension builds
 * it for t/021_replay_rules.pl and t/026_hot_rules.pl, and nothing installs it. In every other
 * library the compiler sees the constant false where a rule could be broken, and there is no
 * setting.
 */
#ifndef LOCKSTEP_BROKEN_RULE_H
#define LOCKSTEP_BROKEN_RULE_H

#ifdef LS_BREAKABLE

/* The numbers are those of README.md. */
typedef enum LsBrokenRule
{
	LS_BREAK_NONE,
	LS_BREAK_ORDER,				/* 1: earlier records of a block are not waited for */
	LS_BREAK_HEAP_FIRST,		/* 2: insertions into B-trees do not wait for the heap */
	LS_BREAK_REMOVAL,			/* 3: what removes runs ahead */
	LS_BREAK_SEEN,				/* 3: rows are removed that a snapshot may see */
	LS_BREAK_PIN,				/* 3: helpers prune pages that sessions have pinned */
	LS_BREAK_MAP_CLEAR,			/* 4: maps are cleared before earlier records have set bits */
	LS_BREAK_MAP_IMAGE,			/* 4: free space is entered before earlier images of the map */
	LS_BREAK_CONFLICT,			/* 5: nobody resolves conflicts */
	LS_BREAK_EXTENSION,			/* 6: startup appends nothing at dispatch */
	LS_BREAK_SIZE,				/* 6: helpers trust the size that they remember */
	LS_BREAK_MULTIXACT,			/* 7: the making of multixacts is no barrier */
	LS_BREAK_BARRIER,			/* 8: what is after a barrier is dispatched */
	LS_BREAK_RECOVERY_POINT,	/* 9: the minimum recovery point limits nothing */
	LS_BREAK_BACKUP_POINT,		/* 9: in a backup it is not raised before dispatch */
	LS_BREAK_HOT_POINT,			/* 9: in hot standby it is not raised before dispatch */
	LS_BREAK_FILES,				/* 10: helpers keep files open */
	LS_BREAK_GENERATION,		/* 10: barriers begin no generation */
	LS_BREAK_NEW_PAGE,			/* in place of 11: helpers execute on pages of zeros */
	LS_BREAK_TARGET,			/* 11: a recovery target stops nothing */
	LS_BREAK_DELAY,				/* 11: nor does recovery_min_apply_delay */
	LS_BREAK_FAILURE,			/* 12: a helper's error counts as done */
	LS_BREAK_LEAVE,				/* 12: a helper ends in the middle of a record */
	LS_BREAK_PAGE_CHECK,		/* 13: helpers do not check pages */
	LS_BREAK_STRETCH_END,		/* 14: a stretch goes on when PostgreSQL reads */
	LS_BREAK_FACTS				/* 14: helpers say of all records that they may run ahead */
} LsBrokenRule;

extern int	ls_broken_rule;

extern void ls_define_broken_rule(void);

#define LS_BREAKS(rule) (ls_broken_rule == LS_BREAK_##rule)

#else

#define LS_BREAKS(rule) false

#endif

#endif							/* LOCKSTEP_BROKEN_RULE_H */
