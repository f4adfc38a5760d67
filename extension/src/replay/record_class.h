/*
 * record_class.h - which records may run ahead of their retirement.
 */
#ifndef LOCKSTEP_RECORD_CLASS_H
#define LOCKSTEP_RECORD_CLASS_H

#include "access/xlogreader.h"

#include "replay/queue.h"

typedef enum LsClass
{
	LS_CLASS_AHEAD,				/* a helper may execute it */
	LS_CLASS_INLINE,			/* startup executes it, at retirement */
	LS_CLASS_BARRIER,			/* and nothing after it has started before */
	LS_CLASS_REMOVAL,			/* AHEAD if nobody sees what it removes, else INLINE */
	LS_CLASS_CLEARS_MAP			/* AHEAD if the visibility map's page is free (rule 4), else INLINE */
} LsClass;

extern LsClass ls_classify(const DecodedXLogRecord *record, LsCause *cause);
extern LsClass ls_classify_hot(const DecodedXLogRecord *record, LsCause *cause);
extern bool ls_adds_heap_tuples(const DecodedXLogRecord *record);
extern bool ls_clears_visibility_map(const DecodedXLogRecord *record);
extern BlockNumber ls_visibility_map_block(BlockNumber heap_block);
extern bool ls_keeps_files(const DecodedXLogRecord *record);
extern bool ls_may_change_free_space_map(const DecodedXLogRecord *record);
extern BlockNumber ls_free_space_map_block(BlockNumber heap_block);

#endif							/* LOCKSTEP_RECORD_CLASS_H */
