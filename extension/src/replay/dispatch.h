/*
 * dispatch.h - enters a record into the queue: who may execute it, and after which others.
 */
#ifndef LOCKSTEP_DISPATCH_H
#define LOCKSTEP_DISPATCH_H

#include "access/xlogreader.h"

#include "replay/queue.h"
#include "replay/record_facts.h"

/* State of dispatch in the startup process. The caller publishes the counters, and sets them to 0. */
typedef struct LsDispatched
{
	uint64		retired;		/* all up to this number have retired: set by the caller */
	uint64		tail;			/* number of the last record that was entered */
	uint64		barrier;		/* number of the last barrier */
	uint64		count;			/* records that helpers may execute */
	uint64		causes[LS_CAUSES];	/* records that helpers may not execute, by cause */
	XLogRecPtr	until;			/* end of the last that they may */
} LsDispatched;

extern LsDispatched ls_dispatched;

extern bool ls_dispatch_has_memory(void);
extern void ls_dispatch_expect(const LsFacts *facts);
extern void ls_dispatch(DecodedXLogRecord *record, const LsFacts *facts, bool may_run_ahead);
extern void ls_begin_generation(void);

#endif							/* LOCKSTEP_DISPATCH_H */
