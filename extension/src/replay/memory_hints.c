/*
 * memory_hints.c - asks for the memory that the next records will change, one
 * step at a time, before their redo.
 *
 * Purpose: replay of data in shared buffers mostly waits for memory. A record
 * touches a buffer descriptor, a page's header, a line pointer and a tuple, one
 * after the other, and none of them is in the processor's caches. Each of the next
 * records is taken one step nearer before each redo: the slot of a table that
 * remembers in which buffer a block was last, the buffer's descriptor, the page, its
 * line pointer, its tuple. What redo touches then has arrived.
 *
 * What it changes: only DecodedBkpBlock.prefetch_buffer, a hint that
 * ReadRecentBuffer() checks before it is used. Everything else is only read, and
 * decides only which memory the processor is asked for. Descriptors and pages are
 * read without a lock, so what is read may be torn. The one lock that is taken is
 * that of a partition of the mapping of buffers, shared, as redo itself takes it.
 *
 * In a helper also the records may be torn: it claims one only when it begins it, and until
 * then the startup process may have executed and released it, so that its memory holds
 * another. So a helper writes nothing to a record before that (ls_hints_give_buffers()), and
 * follows a pointer of it only within the memory of all records (hints_is_in_memory()).
 *
 * Each eighth use of a remembered buffer is left to the mapping of buffers: the way
 * through prefetch_buffer does not raise the usage count, and a block in constant
 * use would be evicted (rule 4 of look_ahead.c).
 *
 * Runs in the startup process (look_ahead.c, pipeline.c) and in replay helpers
 * (helper.c). Memory: one table for each process, which lives as long as the
 * process; without memory for it nothing is looked for. Nothing is shared.
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/nbtxlog.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "replay/memory_hints.h"

/* Largest table: enough for half of 32 GB of buffers to be remembered at once. */
#define LS_MAX_SLOTS (4 * 1024 * 1024)

/* Uses of remembered buffers of which one is looked up all the same. */
#define LS_USES_A_LOOKUP 8

/* No line pointer lies beyond the page. */
#define LS_MAX_OFFSET ((BLCKSZ - SizeOfPageHeaderData) / sizeof(ItemIdData))

/* Bytes of a decoded record with two blocks and little data. */
#define LS_RECORD_BYTES 384

/* The steps, and how many records before its own redo a record takes them. */
enum
{
	STEP_RECORD,				/* at once: another process may have decoded it */
	STEP_SLOT,
	STEP_DESCRIPTOR,
	STEP_PAGE,
	STEP_LINE_POINTER,
	STEP_TUPLE
};
static const int hints_step_distance[LS_STEPS] = {LS_MAX_LOOK_AHEAD, 8, 6, 4, 2, 1};

LsHints		ls_hints;

/* The buffer that each block was in last, by a hash of the block's name. */
static Buffer *hints_slots = NULL;
static uint32 hints_slot_mask = 0;
static bool hints_no_memory = false;

static uint32 hints_uses = 0;	/* uses of remembered buffers */

static inline bool hints_is_in_memory(const void *start, Size size);
static inline int hints_last_block(const DecodedXLogRecord *record);
static inline Buffer *hints_slot_of(const DecodedBkpBlock *block);
static void hints_ask_for_record(LsAhead *ahead);
static void hints_ask_for_slots(LsAhead *ahead);
static void hints_ask_for_descriptors(LsAhead *ahead);
static void hints_ask_for_pages(LsAhead *ahead);
static Buffer hints_buffer_of(DecodedBkpBlock *block);
static Buffer hints_look_up(BufferTag *tag);
static void hints_give_buffer(DecodedBkpBlock *block, Buffer buffer);
static void hints_ask_for_line_pointers(LsAhead *ahead);
static ItemId hints_line_pointer_of(LsAhead *ahead, Page *page);
static OffsetNumber hints_offset_of(DecodedXLogRecord *record, int *id);
static bool hints_moves_tuples(DecodedXLogRecord *record);
static void hints_ask_for_range(PageHeader page, int from, int to);
static void hints_ask_for_tuples(LsAhead *ahead);
static BufferDesc *hints_remembered(const DecodedBkpBlock *block, BufferTag *tag);

static void (*const hints_step[LS_STEPS]) (LsAhead *) = {
	hints_ask_for_record,
	hints_ask_for_slots,
	hints_ask_for_descriptors,
	hints_ask_for_pages,
	hints_ask_for_line_pointers,
	hints_ask_for_tuples,
};

bool
ls_hints_have_memory(void)
{
	uint32		count = 1024;

	if (hints_slots != NULL || hints_no_memory)
		return hints_slots != NULL;
	while (count < LS_MAX_SLOTS && count / 2 < (uint32) NBuffers)
		count *= 2;
	hints_slots = MemoryContextAllocExtended(TopMemoryContext, count * sizeof(Buffer),
											 MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO);
	hints_no_memory = hints_slots == NULL;
	hints_slot_mask = count - 1;
	return hints_slots != NULL;
}

/* Empties the ring: nothing follows the current record. */
void
ls_hints_restart(void)
{
	ls_hints.tail = ls_hints.current;
	for (int i = 0; i < LS_STEPS; i++)
		ls_hints.step_done[i] = ls_hints.current;
}

/* Adds a record to the ring, in which the caller has left room. */
LsAhead *
ls_hints_add(DecodedXLogRecord *record)
{
	LsAhead    *ahead = ls_hint_at(++ls_hints.tail);

	/* with all blocks that are looked for: whatever it is by now, none is beyond */
	ahead->record = hints_is_in_memory(record, sizeof(*record) + LS_BLOCKS * sizeof(DecodedBkpBlock)) ?
		record : NULL;
	for (int id = 0; id < LS_BLOCKS; id++)
		ahead->buffer[id] = InvalidBuffer;
	return ahead;
}

/* Each record takes the steps that it is near enough for. */
void
ls_hints_take_steps(void)
{
	for (int i = 0; i < LS_STEPS; i++)
	{
		uint64		until = Min(ls_hints.tail, ls_hints.current + hints_step_distance[i]);

		ls_hints.step_done[i] = Max(ls_hints.step_done[i], ls_hints.current);
		while (ls_hints.step_done[i] < until)
		{
			LsAhead    *ahead = ls_hint_at(++ls_hints.step_done[i]);

			if (ahead->record != NULL)
				hints_step[i] (ahead);
		}
	}
}

/* Gives a helper's record its buffers, once it cannot become another one any more. */
void
ls_hints_give_buffers(const LsAhead *ahead, DecodedXLogRecord *record)
{
	for (int id = 0; id <= hints_last_block(record); id++)
		if (BufferIsValid(ahead->buffer[id]))
			hints_give_buffer(&record->blocks[id], ahead->buffer[id]);
}

/*
 * Was the block in a buffer a moment ago, read completely and not all zeros? False:
 * not known. The buffer is not pinned: what is read of the page counts only if the
 * buffer had the block before and after.
 */
bool
ls_hints_know_page(const DecodedBkpBlock *block)
{
	BufferTag	tag;
	BufferDesc *desc = hints_remembered(block, &tag);
	bool		is_new;

	if (desc == NULL || !ls_buffer_is_valid(desc))
		return false;
	pg_read_barrier();
	is_new = PageIsNew((Page) BufferGetBlock(BufferDescriptorGetBuffer(desc)));
	pg_read_barrier();
	return !is_new && ls_tags_equal(&tag, &desc->tag) && ls_buffer_is_valid(desc);
}

void
ls_hints_remember(const DecodedBkpBlock *block, Buffer buffer)
{
	if (ls_hints_have_memory())
		*hints_slot_of(block) = buffer;
}

static inline bool
hints_is_in_memory(const void *start, Size size)
{
	return ls_hints.memory == NULL ||
		ls_is_within(start, size, ls_hints.memory, ls_hints.memory_size);
}

static inline int
hints_last_block(const DecodedXLogRecord *record)
{
	/* read once: in a helper it may change meanwhile */
	int			last = *(volatile const int *) &record->max_block_id;

	return Min(last, LS_BLOCKS - 1);
}

/* The block's slot; two blocks share one only by chance. */
static inline Buffer *
hints_slot_of(const DecodedBkpBlock *block)
{
	uint32		hash = LS_BLOCK_RELATION(block) * 0x9E3779B1U;

	hash = (hash ^ block->blkno ^ ((uint32) block->forknum << 28)) * 0x85EBCA6BU;
	return &hints_slots[(hash ^ (hash >> 15)) & hints_slot_mask];
}

/* ---- The steps --------------------------------------------------------- */

static void
hints_ask_for_record(LsAhead *ahead)
{
	for (int at = 0; at < LS_RECORD_BYTES; at += 64)
		__builtin_prefetch((char *) ahead->record + at);
}

static void
hints_ask_for_slots(LsAhead *ahead)
{
	DecodedXLogRecord *record = ahead->record;

	for (int id = 0; id <= hints_last_block(record); id++)
		if (ls_block_is_read(&record->blocks[id]))
			__builtin_prefetch(hints_slot_of(&record->blocks[id]));
}

static void
hints_ask_for_descriptors(LsAhead *ahead)
{
	DecodedXLogRecord *record = ahead->record;

	for (int id = 0; id <= hints_last_block(record); id++)
	{
		Buffer		buffer;

		if (!ls_block_is_read(&record->blocks[id]))
			continue;
		buffer = *hints_slot_of(&record->blocks[id]);
		if (BufferIsValid(buffer))
			__builtin_prefetch(GetBufferDescriptor(buffer - 1));
	}
}

static void
hints_ask_for_pages(LsAhead *ahead)
{
	DecodedXLogRecord *record = ahead->record;

	for (int id = 0; id <= hints_last_block(record); id++)
	{
		DecodedBkpBlock *block = &record->blocks[id];
		Buffer		buffer;

		if (!ls_block_is_read(block))
			continue;
		buffer = hints_buffer_of(block);
		ahead->buffer[id] = buffer;
		if (!BufferIsValid(buffer))
			continue;
		__builtin_prefetch(BufferGetBlock(buffer));
		if (ls_hints.memory == NULL)
			hints_give_buffer(block, buffer);
	}
}

/* The buffer that most likely has the block when its record's redo wants it. */
static Buffer
hints_buffer_of(DecodedBkpBlock *block)
{
	Buffer	   *slot = hints_slot_of(block);
	Buffer		buffer = *slot;
	BufferTag	tag;

	ls_hints.blocks++;
	ls_block_tag(block, &tag);
	if (BufferIsValid(buffer) &&
		ls_tags_equal(&tag, &GetBufferDescriptor(buffer - 1)->tag))
	{
		ls_hints.found++;
		return buffer;
	}
	buffer = hints_look_up(&tag);
	if (BufferIsValid(buffer))
		*slot = buffer;
	else
		ls_hints.missing++;
	return buffer;
}

/* The block's buffer by PostgreSQL's own mapping, InvalidBuffer if it has none. */
static Buffer
hints_look_up(BufferTag *tag)
{
	uint32		hash = BufTableHashCode(tag);
	LWLock	   *partition = BufMappingPartitionLock(hash);
	int			id;

	LWLockAcquire(partition, LW_SHARED);
	id = BufTableLookup(tag, hash);
	LWLockRelease(partition);
	return id < 0 ? InvalidBuffer : id + 1;
}

static void
hints_give_buffer(DecodedBkpBlock *block, Buffer buffer)
{
	if (!BufferIsValid(block->prefetch_buffer) && ++hints_uses % LS_USES_A_LOOKUP != 0)
		block->prefetch_buffer = buffer;
}

/* What adds a tuple changes both ends of the page's free space. */
static void
hints_ask_for_line_pointers(LsAhead *ahead)
{
	Page		its_page = NULL;
	ItemId		pointer = hints_line_pointer_of(ahead, &its_page);

	for (int id = 0; id <= hints_last_block(ahead->record); id++)
	{
		PageHeader	page;

		if (!BufferIsValid(ahead->buffer[id]))
			continue;
		page = (PageHeader) BufferGetBlock(ahead->buffer[id]);
		if (page->pd_lower < BLCKSZ)
			__builtin_prefetch((char *) page + page->pd_lower);
		if (page->pd_upper <= BLCKSZ && page->pd_upper >= 64)
			__builtin_prefetch((char *) page + page->pd_upper - 64, 1);
	}
	if (pointer != NULL)
		__builtin_prefetch(pointer);
	if (hints_moves_tuples(ahead->record) && BufferIsValid(ahead->buffer[0]))
	{
		PageHeader	page = (PageHeader) BufferGetBlock(ahead->buffer[0]);

		hints_ask_for_range(page, 64, page->pd_lower);
	}
}

/* Where the line pointer is, or would be, and on which page; NULL if no page has it. */
static ItemId
hints_line_pointer_of(LsAhead *ahead, Page *page)
{
	int			id;
	OffsetNumber offset = hints_offset_of(ahead->record, &id);

	if (offset == InvalidOffsetNumber || offset > LS_MAX_OFFSET ||
		!BufferIsValid(ahead->buffer[id]))
		return NULL;
	*page = (Page) BufferGetBlock(ahead->buffer[id]);
	return PageGetItemId(*page, offset);
}

/*
 * The line pointer that the record's redo goes to, in which of its blocks, or
 * InvalidOffsetNumber.
 */
static OffsetNumber
hints_offset_of(DecodedXLogRecord *record, int *id)
{
	uint8		info = record->header.xl_info;
	const char *data = *(char *const volatile *) &record->main_data;

	*id = 0;
	if (!hints_is_in_memory(data, sizeof(xl_heap_update)))
		return InvalidOffsetNumber;
	if (record->header.xl_rmid == RM_HEAP_ID)
	{
		switch (info & XLOG_HEAP_OPMASK)
		{
			case XLOG_HEAP_DELETE:
				return ((const xl_heap_delete *) data)->offnum;
			case XLOG_HEAP_LOCK:
				return ((const xl_heap_lock *) data)->offnum;
			case XLOG_HEAP_UPDATE:
			case XLOG_HEAP_HOT_UPDATE:
				/* the old tuple is in the second block, if there are two */
				*id = record->max_block_id > 0 ? 1 : 0;
				return ((const xl_heap_update *) data)->old_offnum;
			default:
				return InvalidOffsetNumber;
		}
	}
	if (record->header.xl_rmid == RM_BTREE_ID &&
		(info & ~XLR_INFO_MASK) == XLOG_BTREE_INSERT_LEAF)
		return ((const xl_btree_insert *) data)->offnum;
	return InvalidOffsetNumber;
}

/* Does redo of the first block read all its line pointers and move its tuples? */
static bool
hints_moves_tuples(DecodedXLogRecord *record)
{
	return record->header.xl_rmid == RM_HEAP2_ID &&
		ls_is_prune(record->header.xl_info & XLOG_HEAP_OPMASK);
}

static void
hints_ask_for_range(PageHeader page, int from, int to)
{
	for (int at = from; at < Min(to, BLCKSZ); at += 64)
		__builtin_prefetch((char *) page + at, 1);
}

static void
hints_ask_for_tuples(LsAhead *ahead)
{
	Page		its_page = NULL;
	ItemId		pointer = hints_line_pointer_of(ahead, &its_page);
	unsigned	offset;

	if (hints_moves_tuples(ahead->record) && BufferIsValid(ahead->buffer[0]))
	{
		PageHeader	page = (PageHeader) BufferGetBlock(ahead->buffer[0]);

		hints_ask_for_range(page, page->pd_upper, BLCKSZ);
	}
	if (pointer == NULL || ahead->record->header.xl_rmid != RM_HEAP_ID)
		return;
	offset = ItemIdGetOffset(pointer);
	if (offset < BLCKSZ)
		__builtin_prefetch((char *) its_page + offset, 1);
}

/* ---- What the table says of a block ------------------------------------ */

/* The descriptor of the remembered buffer if it has the block now, or NULL. */
static BufferDesc *
hints_remembered(const DecodedBkpBlock *block, BufferTag *tag)
{
	Buffer		buffer;

	if (!ls_hints_have_memory())
		return NULL;
	buffer = *hints_slot_of(block);
	ls_block_tag(block, tag);
	if (!BufferIsValid(buffer) || !ls_tags_equal(tag, &GetBufferDescriptor(buffer - 1)->tag))
		return NULL;
	return GetBufferDescriptor(buffer - 1);
}
