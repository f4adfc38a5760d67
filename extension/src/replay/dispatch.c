/*
 * dispatch.c - enters a record into the queue: who may execute it, and after which others.
 *
 * Kept here are rules 1, 2, 4 and 6 of README.md, and the part of rule 10 that begins a new
 * generation.
 *
 * Runs in the startup process, which alone writes entries. Shared state: the entry, until
 * its state says that helpers may claim it. Memory: tables of the startup process, made
 * when they are first needed.
 */
#include "postgres.h"

#include "access/transam.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "replay/broken_rule.h"
#include "replay/dispatch.h"
#include "replay/known_files.h"
#include "replay/queue.h"
#include "replay/record_class.h"
#include "replay/removal.h"

/* Most blocks by which a relation is extended at dispatch. */
#define LS_MAX_EXTENSION 64

/* Distance at which the memory of entries is asked for. */
#define LS_ENTRIES_AHEAD 4

LsDispatched ls_dispatched;

/* Number of the last record that has a block, by ls_block_slot(). */
static uint64 *dispatch_last_of_block = NULL;

/* Slots of the table of pages of maps; two pages of one slot count as the same page. */
#define LS_MAP_SLOTS 1024

/*
 * Number of the last record that has a page of a visibility map or a free space map as a block, by a hash of
 * the page's name.
 */
static uint64 dispatch_last_of_map[LS_MAP_SLOTS];

/* Number of the last heap record of a transaction, by ls_xid_slot(). */
static uint64 dispatch_last_of_xid[LS_XID_SLOTS];

static void dispatch_note_blocks(LsEntry *entry, const LsFacts *facts);
static inline uint64 *dispatch_map_slot(const DecodedBkpBlock *block, ForkNumber map, BlockNumber map_block);
static void dispatch_note_transaction(LsEntry *entry);
static bool dispatch_is_for_helpers(DecodedXLogRecord *record, const LsFacts *facts, bool may_run_ahead);
static bool dispatch_may_clear_map(const DecodedXLogRecord *record);
static bool dispatch_map_is_free(const DecodedBkpBlock *block, ForkNumber map, BlockNumber map_block);
static bool dispatch_may_enter_space(const DecodedXLogRecord *record, const LsFacts *facts);
static bool dispatch_blocks_exist(DecodedXLogRecord *record, const LsFacts *facts);
static bool dispatch_make_exist(const DecodedXLogRecord *record, DecodedBkpBlock *block);
static void dispatch_append_block(const DecodedXLogRecord *record, DecodedBkpBlock *block);
static void dispatch_say_for_which_record(void *arg);

bool
ls_dispatch_has_memory(void)
{
	if (dispatch_last_of_block == NULL)
		dispatch_last_of_block = MemoryContextAllocExtended(TopMemoryContext,
															LS_BLOCK_SLOTS * sizeof(uint64),
															MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO);
	return dispatch_last_of_block != NULL;
}

/* A record will be dispatched soon: asks for the memory of the table of blocks. */
void
ls_dispatch_expect(const LsFacts *facts)
{
	for (int id = 0; id < facts->blocks; id++)
		__builtin_prefetch(&dispatch_last_of_block[facts->slots[id]], 1);
}

/*
 * Enters the record after the tail. Helpers see it once the caller has published it. facts: what the
 * process that decoded it says of it, NULL: nothing.
 */
void
ls_dispatch(DecodedXLogRecord *record, const LsFacts *facts, bool may_run_ahead)
{
	LsEntry    *entry = ls_entry(++ls_dispatched.tail);
	bool		hot = pg_atomic_read_u32(&ls_queue->hot) != 0;
	bool		for_helpers;
	LsFacts		own;

	/* helpers have read the one that lies there */
	__builtin_prefetch(ls_entry(ls_dispatched.tail + LS_ENTRIES_AHEAD), 1);
	if (facts == NULL || facts->hot != hot)
	{
		ls_facts_of(record, hot, &own);
		facts = &own;
	}
	ls_dispatch_expect(facts);
	entry->record = record;
	entry->number = ls_dispatched.tail;
	dispatch_note_transaction(entry);
	for_helpers = dispatch_is_for_helpers(record, facts, may_run_ahead);
	dispatch_note_blocks(entry, facts);
	entry->generation = pg_atomic_read_u32(&ls_queue->generation);
	/* a helper that thinks of an earlier number may claim it from here on */
	pg_write_barrier();
	pg_atomic_write_u32(&entry->state, for_helpers ? LS_QUEUED : LS_AT_RETIREMENT);
}

/* Rule 10: makes helpers close their files before they execute what is dispatched from now on. */
void
ls_begin_generation(void)
{
	ls_forget_known_files();
	pg_atomic_write_u32(&ls_queue->generation,
						pg_atomic_read_u32(&ls_queue->generation) + 1);
}

/* Rule 1: notes what must be done before this record, and that later ones wait for it. */
static void
dispatch_note_blocks(LsEntry *entry, const LsFacts *facts)
{
	const DecodedXLogRecord *record = entry->record;

	memset(entry->after, 0, sizeof(entry->after));
	for (int id = 0; id < facts->blocks; id++)
		if (record->blocks[id].in_use && !LS_BREAKS(ORDER))
			entry->after[id] = dispatch_last_of_block[facts->slots[id]];
	for (int id = 0; id <= record->max_block_id; id++)
	{
		const DecodedBkpBlock *block = &record->blocks[id];

		if (!block->in_use)
			continue;
		dispatch_last_of_block[id < LS_BLOCKS ? facts->slots[id] : ls_block_slot(block)] = entry->number;
		if (block->forknum != MAIN_FORKNUM)
			*dispatch_map_slot(block, block->forknum, block->blkno) = entry->number;
	}
}

static inline uint64 *
dispatch_map_slot(const DecodedBkpBlock *block, ForkNumber map, BlockNumber map_block)
{
	uint32		hash = LS_BLOCK_RELATION(block) * 0x9E3779B1U;

	hash = (hash ^ map_block ^ ((uint32) map << 28)) * 0x85EBCA6BU;
	return &dispatch_last_of_map[(hash ^ (hash >> 15)) % LS_MAP_SLOTS];
}

/*
 * Rule 2: the heap records of a transaction are a chain, from the last to the first. Its
 * records of B-trees have the chain's end.
 */
static void
dispatch_note_transaction(LsEntry *entry)
{
	const DecodedXLogRecord *record = entry->record;
	TransactionId xid = record->header.xl_xid;

	entry->heap_before = 0;
	if (!TransactionIdIsValid(xid))
		return;
	if (record->header.xl_rmid == RM_BTREE_ID)
		entry->heap_before = dispatch_last_of_xid[ls_xid_slot(xid)];
	else if (ls_adds_heap_tuples(record))
	{
		entry->heap_before = dispatch_last_of_xid[ls_xid_slot(xid)];
		dispatch_last_of_xid[ls_xid_slot(xid)] = entry->number;
	}
}

/* May helpers execute the record? Counts it by its cause. */
static bool
dispatch_is_for_helpers(DecodedXLogRecord *record, const LsFacts *facts, bool may_run_ahead)
{
	LsCause		cause = (LsCause) facts->cause;
	LsClass		class = (LsClass) facts->class;

	if (class == LS_CLASS_REMOVAL)
		class = may_run_ahead && ls_nobody_sees(record) ? LS_CLASS_AHEAD : LS_CLASS_INLINE;
	if (class == LS_CLASS_CLEARS_MAP)
		class = may_run_ahead && dispatch_may_clear_map(record) ? LS_CLASS_AHEAD : LS_CLASS_INLINE;
	if (class == LS_CLASS_BARRIER)
	{
		ls_dispatched.barrier = ls_dispatched.tail;
		/* rule 10: what follows is of the next generation */
		if (!ls_keeps_files(record) && !LS_BREAKS(GENERATION))
			ls_begin_generation();
	}
	else if (class == LS_CLASS_AHEAD && may_run_ahead)
	{
		if (!dispatch_blocks_exist(record, facts))
			cause = LS_CAUSE_MISSING;
		else if (!dispatch_may_enter_space(record, facts))
			cause = LS_CAUSE_MAP;
		else
			cause = LS_CAUSE_NONE;
		class = cause == LS_CAUSE_NONE ? LS_CLASS_AHEAD : LS_CLASS_INLINE;
	}
	if (class == LS_CLASS_AHEAD && may_run_ahead)
	{
		ls_dispatched.count++;
		ls_dispatched.until = record->next_lsn;
		return true;
	}
	ls_dispatched.causes[cause]++;
	return false;
}

/*
 * Rule 4: have all records retired that name the map's pages in which this one clears bits? And does each
 * page exist? Redo in a helper would append it (rule 6).
 */
static bool
dispatch_may_clear_map(const DecodedXLogRecord *record)
{
	for (int id = 0; id <= record->max_block_id; id++)
	{
		const DecodedBkpBlock *block = &record->blocks[id];
		BlockNumber map_block;

		if (!block->in_use)
			continue;
		map_block = ls_visibility_map_block(block->blkno);
		if (!dispatch_map_is_free(block, VISIBILITYMAP_FORKNUM, map_block) && !LS_BREAKS(MAP_CLEAR))
			return false;
		if (map_block >= ls_size_of_fork(ls_known_files(block), VISIBILITYMAP_FORKNUM))
			return false;
	}
	return true;
}

/* Have all records retired that name the page of a map of the block's relation? */
static bool
dispatch_map_is_free(const DecodedBkpBlock *block, ForkNumber map, BlockNumber map_block)
{
	return *dispatch_map_slot(block, map, map_block) <= ls_dispatched.retired;
}

/*
 * Rule 4: have all images retired of the free space map's page in which this record enters what is left of
 * its block? An image would take the entry back.
 */
static bool
dispatch_may_enter_space(const DecodedXLogRecord *record, const LsFacts *facts)
{
	return !facts->enters_space || LS_BREAKS(MAP_IMAGE) ||
		dispatch_map_is_free(&record->blocks[0], FSM_FORKNUM, facts->space_block);
}

static bool
dispatch_blocks_exist(DecodedXLogRecord *record, const LsFacts *facts)
{
	for (int id = 0; id <= record->max_block_id; id++)
	{
		DecodedBkpBlock *block = &record->blocks[id];

		if (!block->in_use)
			continue;
		if (!dispatch_make_exist(record, block))
			return false;
		if (id == 0 && facts->enters_space &&
			ls_size_of_fork(ls_known_files(block), FSM_FORKNUM) <= facts->space_block)
			return false;
	}
	return true;
}

/*
 * Rule 6: does the block exist, or is it made to? One that redo would append is appended now, as zeros,
 * before any later record is published. No earlier record in the queue can truncate
 * the relation: that would be a barrier.
 */
static bool
dispatch_make_exist(const DecodedXLogRecord *record, DecodedBkpBlock *block)
{
	BlockNumber size = ls_size_of_fork(ls_known_files(block), block->forknum);

	if (block->blkno < size)
		return true;
	if (size == 0 || ls_block_is_read(block) || block->blkno - size >= LS_MAX_EXTENSION)
		return false;
	if (!LS_BREAKS(EXTENSION))
		dispatch_append_block(record, block);
	return true;
}

/* Appends a block. PostgreSQL's CONTEXT of an error (disk full) would name another record. */
static void
dispatch_append_block(const DecodedXLogRecord *record, DecodedBkpBlock *block)
{
	ErrorContextCallback context = {
		.callback = dispatch_say_for_which_record,
		.arg = (void *) record,
		.previous = error_context_stack
	};

	error_context_stack = &context;
	UnlockReleaseBuffer(ls_read_block(block, RBM_ZERO_AND_LOCK));
	error_context_stack = context.previous;
}

static void
dispatch_say_for_which_record(void *arg)
{
	const DecodedXLogRecord *record = arg;

	errcontext("appending a block ahead of replay, for the WAL record at %X/%X",
			   LSN_FORMAT_ARGS(record->lsn));
}
