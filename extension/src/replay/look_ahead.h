/*
 * look_ahead.h - records decoded, and their blocks looked for, before replay
 * comes to them.
 */
#ifndef LOCKSTEP_LOOK_AHEAD_H
#define LOCKSTEP_LOOK_AHEAD_H

#include "access/xlogreader.h"
#include "port/atomics.h"

/*
 * Written by the startup process once in LS_PUBLISH_EVERY records and at the
 * end of a run of WAL; each is a total since the server started.
 */
typedef struct LsLookAheadShared
{
	pg_atomic_uint64 records;	/* records replayed */
	pg_atomic_uint64 ahead;		/* records of these that we decoded ahead */
	pg_atomic_uint64 blocks;	/* blocks looked for before their record */
	pg_atomic_uint64 found;		/* blocks of these in the buffer we remembered */
	pg_atomic_uint64 missing;	/* blocks of these in no buffer */
	pg_atomic_uint64 prefetching;	/* 1: PostgreSQL's prefetcher reads ahead */
} LsLookAheadShared;

extern LsLookAheadShared *ls_look_ahead_shared;

extern void ls_look_ahead_init_shared(void);
extern void ls_look_ahead_begin(void);
extern void ls_look_ahead(XLogReaderState *reader);
extern DecodedXLogRecord *ls_next_decoded(XLogReaderState *reader, DecodedXLogRecord *last,
										  bool *ours);
extern bool ls_may_change_timeline(const DecodedXLogRecord *record);
extern bool ls_can_read_page(XLogReaderState *reader, XLogRecPtr page);
extern void ls_look_ahead_pause(void);
extern void ls_look_ahead_stay_paused(void);
extern bool ls_prefetch_is_configured(void);
extern void ls_look_ahead_count(bool ours);
extern void ls_look_ahead_resume(void);

#endif							/* LOCKSTEP_LOOK_AHEAD_H */
