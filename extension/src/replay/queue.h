/*
 * queue.h - records that run ahead of their retirement: what the startup process and
 * the replay helpers share. README.md says how it works.
 *
 * A record has a number, in the order of the WAL, from 1 in each recovery. Its entry
 * is entries[number % LS_QUEUE_LENGTH], until the record with that many more takes
 * it. Where a process must be sure that an entry is still that of the number it
 * thinks of, it compares them after it has claimed the entry.
 */
#ifndef LOCKSTEP_QUEUE_H
#define LOCKSTEP_QUEUE_H

#include "access/xlogreader.h"
#include "port/atomics.h"
#include "storage/s_lock.h"

#include "replay/memory_hints.h"
#include "replay/wal_stretch.h"
#include "state/settings.h"

#define LS_QUEUE_LENGTH 1024	/* a power of two */

/* Most records ahead of the current one. */
#define LS_AHEAD_MAX (LS_QUEUE_LENGTH / 2)

#define LS_CACHE_LINE 128

/* Number of looks at what another process is about to write, before a sleep. */
#define LS_SPINS 2000

/*
 * Entry of a record whose memory is in the shared decode buffer:
 *
 *   startup, at dispatch -> AT_RETIREMENT or QUEUED
 *   QUEUED -> CLAIMED    by whoever executes it, by compare-and-swap
 *   CLAIMED -> QUEUED    by a helper that may not execute it, or thought it was another record
 *   CLAIMED -> DONE      by who executed it, who touches the record no more
 *   CLAIMED -> FAILED    by a helper whose redo raised an error, or that ends
 *   AT_RETIREMENT -> DONE by startup, in whose order it was executed
 */
typedef enum LsEntryState
{
	LS_AT_RETIREMENT,
	LS_QUEUED,
	LS_CLAIMED,
	LS_DONE,
	LS_FAILED
} LsEntryState;

/* Written by startup before it sets the state; the state by those named above. */
typedef struct LsEntry
{
	pg_atomic_uint32 state;		/* LsEntryState */
	uint32		generation;		/* files opened before it are closed first */
	uint64		number;
	DecodedXLogRecord *record;
	uint64		after[LS_BLOCKS];	/* these records must be done before */
	uint64		heap_before;	/* rule 2: see dispatch_note_transaction() */
} LsEntry;

/* What went wrong in a helper; written before the entry is FAILED. */
typedef struct LsFailure
{
	uint64		number;			/* of the record, 0: none */
	int			level;			/* ERROR, FATAL or PANIC */
	int			sqlerrcode;
	char		message[512];
	char		detail[512];
	char		context[512];
} LsFailure;

/* One for each helper, which writes it unless said otherwise. */
typedef struct LsHelper
{
	pg_atomic_uint32 procno;	/* PG_UINT32_MAX: not there */
	pg_atomic_uint32 pid;		/* 0: not there */
	pg_atomic_uint32 sleeps;	/* 1: wants its latch set when there is work */
	pg_atomic_uint32 queue_depth;	/* records taken, or to be tried again */
	pg_atomic_uint64 at;		/* number of the record that it executes, or the last */
	pg_atomic_uint64 records;	/* records executed */
	pg_atomic_uint64 blocks;	/* blocks that these records name */
	pg_atomic_uint64 bytes;		/* bytes of WAL: length of these records */
	pg_atomic_uint64 given_back;	/* taken, then left to startup */
	pg_atomic_uint64 waits;		/* waits for another process's record */
	pg_atomic_uint64 wait_us;	/* duration of these */
	pg_atomic_uint64 lsn;		/* end of the last record executed */
	pg_atomic_uint64 blocked;	/* sleeps in the middle of a record */
	pg_atomic_uint64 pages_read;	/* pages read that were in no memory */
	LsFailure	failure;
	char		pad[LS_CACHE_LINE];
} LsHelper;

/* Why a record stopped what comes after it, or was not dispatched. */
typedef enum LsCause
{
	LS_CAUSE_NONE,				/* the record could have run ahead, had it been read before its turn */
	LS_CAUSE_KIND,				/* records of this kind are replayed at retirement */
	LS_CAUSE_MISSING,			/* a block of it does not exist, or may be new */
	LS_CAUSE_MAP,				/* the record changes the visibility map */
	LS_CAUSE_LARGE,				/* too many blocks, or no room in the queue */
	LS_CAUSE_DDL,				/* barrier: files, relations, locks */
	LS_CAUSE_CHECKPOINT,		/* barrier: checkpoints and other changes of state */
	LS_CAUSE_UNKNOWN,			/* barrier: all other kinds */
	LS_CAUSES					/* their number */
} LsCause;

/* What a helper did when the startup process began to sleep until it has done a record. */
typedef enum LsWaitCause
{
	LS_WAIT_CPU,				/* the helper ran, or waited for a core */
	LS_WAIT_IO,					/* a wait event of type IO */
	LS_WAIT_LOCK,				/* any other wait event: a lock or a pin of a page */
	LS_WAIT_CAUSES				/* their number */
} LsWaitCause;

/* Whether replay is parallel, and if not, why. */
typedef enum LsPipelineState
{
	LS_NO_RECOVERY,
	LS_NO_WORKERS,
	LS_NO_MEMORY,
	LS_NO_SWITCH,
	LS_NO_TARGET,
	LS_NO_CORE,
	LS_NO_MAJOR,
	LS_NO_CHECK,
	LS_NO_SLOT,
	LS_NO_CONSISTENT,
	LS_NO_LIMIT,
	LS_NO_DELAY,
	LS_NO_SNAPSHOT,
	LS_NO_PAUSE,
	LS_NO_BACKLOG,
	LS_NO_USE,
	LS_NO_SPARE_CORE,
	LS_NO_GONE,
	LS_NO_ENDED,
	LS_NOT_YET,
	LS_PARALLEL
} LsPipelineState;

typedef struct LsQueueShared
{
	/* written by startup */
	pg_atomic_uint64 retired;	/* all up to this number are done */
	char		pad1[LS_CACHE_LINE];
	pg_atomic_uint64 published; /* entries up to this number may be claimed */
	pg_atomic_uint32 closed;	/* 1: helpers end */
	pg_atomic_uint32 generation;	/* generation of the last entry: see LsEntry */
	pg_atomic_uint32 hot;		/* 1: sessions may read; helpers begin after it is set */
	pg_atomic_uint32 used;		/* number of helpers that take records, the first ones */
	char		pad2[LS_CACHE_LINE];
	pg_atomic_uint32 startup_sleeps;	/* 1: wants its latch set when a record is
										 * done */
	pg_atomic_uint32 startup_procno;
	char		pad3[LS_CACHE_LINE];

	/* written by helpers, by compare-and-swap */
	pg_atomic_uint64 next;		/* the first that no helper has taken */
	char		pad4[LS_CACHE_LINE];

	/* written by startup, for the view */
	pg_atomic_uint64 dispatched;
	pg_atomic_uint64 by_helpers;	/* records that a helper had done when startup came to them */
	pg_atomic_uint64 causes[LS_CAUSES]; /* not dispatched */
	pg_atomic_uint64 waits;		/* waits for a helper, to retire a record */
	pg_atomic_uint64 wait_us[LS_WAIT_CAUSES];	/* time of waits that took longer than LS_SPINS */
	pg_atomic_uint64 dispatched_until;	/* end of the last that was dispatched */
	pg_atomic_uint64 entered_until; /* end of the last published, dispatched or not */
	pg_atomic_uint64 retired_records;	/* never set back */
	pg_atomic_uint64 asked_for; /* blocks: read_ahead.c */
	pg_atomic_uint32 state;		/* LsPipelineState */
	pg_atomic_uint32 used_why;	/* LsHelperWhy */

	LsStretch	stretch;		/* wal_stretch.h says who writes it */
	char		pad6[LS_CACHE_LINE];

	/* written by who resets the view */
	pg_atomic_uint64 retired_before;	/* the part of retired_records that is not shown any more */
	char		pad5[LS_CACHE_LINE];

	LsHelper	helpers[LS_MAX_REPLAY_WORKERS];
	/* each in cache lines of its own */
	LsEntry		entries[LS_QUEUE_LENGTH] pg_attribute_aligned(LS_CACHE_LINE);
} LsQueueShared;

extern LsQueueShared *ls_queue;
extern char *ls_decode_buffer;	/* NULL: there are no helpers */

extern Size ls_decode_buffer_size(void);
extern void ls_queue_init_shared(void);
extern const char *ls_pipeline_state_name(void);
extern const char *ls_pipeline_state_words(LsPipelineState state);
extern uint64 ls_records_ahead(void);
extern uint64 ls_bytes_ahead(void);
extern uint32 ls_helper_wait_event(LsHelper *helper);

/* Slots of a table of transactions; two transactions of one slot count as the same. */
#define LS_XID_SLOTS 1024

static inline uint32
ls_xid_slot(TransactionId xid)
{
	return xid % LS_XID_SLOTS;
}

static inline LsEntry *
ls_entry(uint64 number)
{
	return &ls_queue->entries[number % LS_QUEUE_LENGTH];
}

static inline bool
ls_claim(LsEntry *entry)
{
	uint32		expected = LS_QUEUED;

	return pg_atomic_compare_exchange_u32(&entry->state, &expected, LS_CLAIMED);
}

/* Is this number's record done? False may be out of date at once. */
static inline bool
ls_is_done(uint64 number)
{
	return pg_atomic_read_u32(&ls_entry(number)->state) == LS_DONE ||
		number <= pg_atomic_read_u64(&ls_queue->retired);
}

#endif							/* LOCKSTEP_QUEUE_H */
