/*
 * wal_stretch.h - a stretch of WAL that a helper reads for the startup process.
 */
#ifndef LOCKSTEP_WAL_STRETCH_H
#define LOCKSTEP_WAL_STRETCH_H

#include "access/xlogreader.h"
#include "port/atomics.h"

#include "replay/record_facts.h"

/* Most records of a stretch. */
#define LS_STRETCH_RECORDS 128

/*
 * NONE -> ASKED      by the startup process, which has written what to read
 * ASKED -> READING   by the helper that reads it, by compare-and-swap
 * ASKED -> NONE      by the startup process, if no helper has come, by compare-and-swap
 * READING -> ENDED   by that helper, which touches the stretch and its memory no more
 * ENDED -> NONE      by the startup process
 */
typedef enum LsStretchState
{
	LS_STRETCH_NONE,
	LS_STRETCH_ASKED,
	LS_STRETCH_READING,
	LS_STRETCH_ENDED
} LsStretchState;

/* A record that was read, the last page that it is on, and what the helper says of it. */
typedef struct LsStretchRecord
{
	DecodedXLogRecord *record;
	XLogRecPtr	page;
	LsFacts		facts;
} LsStretchRecord;

typedef struct LsStretch
{
	pg_atomic_uint32 state;		/* LsStretchState */
	pg_atomic_uint32 stop;		/* 1: the startup process waits for its end */

	/* written by startup before it is asked for: the reader's state, as it would read on */
	XLogRecPtr	before;			/* start of the record before the first one */
	XLogRecPtr	first;			/* where that one ended */
	XLogRecPtr	until;			/* pages up to here may be read */
	XLogRecPtr	latest_page;
	TimeLineID	page_timeline;	/* of latest_page; a page of another one ends the stretch */
	TimeLineID	file_timeline;
	uint64		system_identifier;
	char	   *memory;
	Size		memory_size;

	/* written by the helper */
	pg_atomic_uint32 read;		/* records that are whole */
	LsStretchRecord records[LS_STRETCH_RECORDS];
} LsStretch;

/* Startup process. */
extern void ls_stretch_allow(bool allowed);
extern bool ls_stretch_next(XLogReaderState *reader, DecodedXLogRecord *last, DecodedXLogRecord **record);
extern const LsFacts *ls_stretch_facts(const DecodedXLogRecord *record);
extern void ls_stretch_settle(XLogReaderState *reader, DecodedXLogRecord *last);
extern void ls_stretch_count(const DecodedXLogRecord *record);
extern void ls_stretch_forget_limit(void);
extern void ls_stretch_read_here(uint32 records);
extern uint64 ls_stretch_records(void);

/* Helpers. */
extern void ls_wal_reader_init(void);
extern bool ls_stretch_is_asked(void);
extern bool ls_stretch_read(void);
extern void ls_stretch_leave(void);

#endif							/* LOCKSTEP_WAL_STRETCH_H */
