/*
 * memory_hints.h - the memory that the next records will change is asked for
 * before their redo.
 */
#ifndef LOCKSTEP_MEMORY_HINTS_H
#define LOCKSTEP_MEMORY_HINTS_H

#include "access/xlogreader.h"
#include "storage/buf.h"

#include "state/settings.h"

/* Blocks looked for in one record, at most; few records have more. */
#define LS_BLOCKS 4

/* Slots of the ring: a power of two above the setting's limit. */
#define LS_RING (LS_MAX_LOOK_AHEAD * 2)

/* The steps of memory_hints.c. */
#define LS_STEPS 6

/* A record that waits for its redo. */
typedef struct LsAhead
{
	DecodedXLogRecord *record;	/* NULL: nothing to ask for */
	XLogRecPtr	lsn;			/* the record's start: the memory is used again */
	bool		ours;			/* look_ahead.c: decoded by us */
	uint64		number;			/* pipeline: its place in the queue */
	Buffer		buffer[LS_BLOCKS];	/* InvalidBuffer: nothing to ask for */
} LsAhead;

/*
 * The records whose redo this process will call next. They are numbered in that
 * order; a process has one ring.
 */
typedef struct LsHints
{
	LsAhead		ring[LS_RING];	/* ring[number % LS_RING] */
	uint64		current;		/* the one whose redo comes now */
	uint64		tail;			/* the last one; current: none follows */
	uint64		step_done[LS_STEPS];	/* the last one that took this step */
	uint64		blocks;			/* looked for, not yet counted by the owner */
	uint64		found;			/* blocks of these in the buffer we remembered */
	uint64		missing;		/* blocks of these in no buffer */
	/* a helper: all records and their data lie in here, and may be other ones by now */
	const char *memory;
	Size		memory_size;
} LsHints;

extern LsHints ls_hints;

extern bool ls_hints_have_memory(void);
extern void ls_hints_restart(void);
extern LsAhead *ls_hints_add(DecodedXLogRecord *record);
extern void ls_hints_take_steps(void);
extern void ls_hints_give_buffers(const LsAhead *ahead, DecodedXLogRecord *record);
extern bool ls_hints_know_page(const DecodedBkpBlock *block);
extern void ls_hints_remember(const DecodedBkpBlock *block, Buffer buffer);

static inline LsAhead *
ls_hint_at(uint64 number)
{
	return &ls_hints.ring[number % LS_RING];
}

/* Do these bytes lie within the memory? start may be anything, and end beyond all addresses. */
static inline bool
ls_is_within(const void *start, Size size, const char *memory, Size memory_size)
{
	Size		at = (Size) ((uintptr_t) start - (uintptr_t) memory);

	return size <= memory_size && at <= memory_size - size;
}

/* Is the block read as it is, so that knowing its buffer helps? */
static inline bool
ls_block_is_read(const DecodedBkpBlock *block)
{
	return block->in_use && !block->apply_image &&
		(block->flags & BKPBLOCK_WILL_INIT) == 0;
}

#endif							/* LOCKSTEP_MEMORY_HINTS_H */
