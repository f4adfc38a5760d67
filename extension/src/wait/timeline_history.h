/*
 * timeline_history.h - from which timelines a timeline descends.
 */
#ifndef LOCKSTEP_TIMELINE_HISTORY_H
#define LOCKSTEP_TIMELINE_HISTORY_H

#include "access/xlogdefs.h"

typedef enum LsAncestry
{
	LS_ANCESTOR,				/* its WAL up to the fork belongs to the timeline */
	LS_NOT_ANCESTOR,
	LS_ANCESTRY_UNKNOWN			/* the history file is missing or of no use */
} LsAncestry;

/* Why the ancestry is unknown, for a message's detail. */
#define LS_HISTORY_PROBLEM_SIZE 256

extern LsAncestry ls_find_fork(TimeLineID tli, TimeLineID ancestor, XLogRecPtr *fork,
							   char problem[LS_HISTORY_PROBLEM_SIZE]);

#endif							/* LOCKSTEP_TIMELINE_HISTORY_H */
