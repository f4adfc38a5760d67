/*
 * look_ahead.c - the startup process decodes the next records before it replays
 * the current one, and asks early for the memory that they will change.
 *
 * Purpose: replay of data in shared buffers mostly waits for memory. A record
 * touches a buffer descriptor, a page's header, a line pointer and a tuple, one
 * after the other, and none of them is in the processor's caches. Before each
 * record's redo ls_look_ahead() decodes up to lockstep.replay_look_ahead more
 * records and takes each of them one step nearer: the slot of a table that
 * remembers in which buffer a block was last, the buffer's descriptor, the
 * page, its line pointer, its tuple. What redo touches then has arrived.
 *
 * What it changes: only DecodedBkpBlock.prefetch_buffer, a hint that
 * ReadRecentBuffer() checks before it is used, and PostgreSQL's own
 * recovery_prefetch in this process, see below. Everything else is only read, and
 * decides only which memory the processor is asked for. Descriptors and pages are
 * read without a lock, so what is read may be torn. The one lock that is taken is
 * that of a partition of the mapping of buffers, shared, as redo itself takes it.
 *
 * Rules, each tested in test/t/018_look_ahead.pl:
 *  1. It never waits. Records are read only from the WAL segment that is open:
 *     another one may have to come from the archive or the walreceiver, and the
 *     current record would stand still meanwhile, neither replayed nor paused.
 *  2. It reads nothing beyond a shutdown checkpoint or an end-of-recovery record
 *     until that is replayed: the records behind may be of another timeline.
 *  3. It begins with the second record: PostgreSQL reads the first one with
 *     errors as PANIC, and such a read must not reach further pages.
 *  4. Each eighth use of a remembered buffer is left to the mapping of buffers:
 *     the way through prefetch_buffer does not raise the usage count, and a
 *     block in constant use would be evicted.
 *
 * PostgreSQL's prefetcher: it looks up each block, which is only worth its price
 * where blocks are read from files. While nearly all blocks are found in buffers
 * it is off (its variable in this process only, SHOW in a session still says
 * what is configured), and it is on again, as configured, where more than one
 * block in 64 is missing. Only one of the two decodes ahead at a time.
 *
 * Runs in the startup process. Memory: one table, which lives as long as the
 * process; without memory for it nothing is looked for. Shared state:
 * LsLookAheadShared, counters. Promotion: the process ends. Crash: so too.
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/nbtxlog.h"
#include "access/xlog_internal.h"
#include "access/xlogprefetcher.h"
#include "catalog/pg_control.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "replay/look_ahead.h"
#include "state/settings.h"

/* Blocks looked for in one record, at most; few records have more. */
#define LS_BLOCKS 4

/* Slots of the ring: a power of two above the setting's limit. */
#define LS_RING (LS_MAX_LOOK_AHEAD * 2)

/* Largest table: enough for half of 32 GB of buffers to be remembered at once. */
#define LS_MAX_SLOTS (4 * 1024 * 1024)

/* Blocks after which it is decided whether PostgreSQL's prefetcher is needed. */
#define LS_WINDOW 4096

/* It is needed when more than one block in this number was missing. */
#define LS_MISSING_SHARE 64

/* See rule 4. */
#define LS_USES_A_LOOKUP 8

/* Records after which the counters are added to those in shared memory. */
#define LS_PUBLISH_EVERY 256

/* The steps, and how many records before its own redo a record takes them. */
enum
{
	STEP_SLOT,					/* right after decoding */
	STEP_DESCRIPTOR,
	STEP_PAGE,
	STEP_LINE_POINTER,
	STEP_TUPLE,
	STEPS
};
static const int step_distance[STEPS] = {LS_MAX_LOOK_AHEAD, 6, 4, 2, 1};

/* A record that waits for its redo. */
typedef struct Ahead
{
	DecodedXLogRecord *record;
	XLogRecPtr	lsn;			/* its start: the memory is used again */
	bool		ours;			/* decoded by us */
	Buffer		buffer[LS_BLOCKS];	/* InvalidBuffer: nothing to ask for */
} Ahead;

LsLookAheadShared *ls_look_ahead_shared = NULL;

static Ahead ring[LS_RING];

/* Records are numbered as they are replayed; ring[number % LS_RING]. */
static uint64 current = 0;		/* the one whose redo comes now */
static uint64 tail = 0;			/* the last one decoded; current: none */
static uint64 step_done[STEPS]; /* the last one that took this step */

static bool is_first = true;	/* rule 3 */
static XLogRecPtr barrier = InvalidXLogRecPtr;	/* rule 2: begins here */
static XLogRecPtr exhausted = InvalidXLogRecPtr;	/* no more WAL behind it */

/* In which buffer a block was last, by a hash of its name. */
static Buffer *slots = NULL;
static uint32 slot_mask = 0;
static bool no_memory = false;

static uint32 uses = 0;			/* rule 4 */
static uint32 window_blocks = 0;
static uint32 window_missing = 0;
static bool wants_prefetcher = false;
static bool active = true;		/* switched on, as far as is known */

/* Not yet in shared memory. */
static struct
{
	uint64		records;
	uint64		ahead;
	uint64		blocks;
	uint64		found;
	uint64		missing;
}			fresh;

static XLogPageReadCB stock_page_read = NULL;

/* Postmaster. */
void
ls_look_ahead_init_shared(void)
{
	pg_atomic_init_u64(&ls_look_ahead_shared->records, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->ahead, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->blocks, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->found, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->missing, 0);
	pg_atomic_init_u64(&ls_look_ahead_shared->prefetching, 1);
}

/* Startup process, before the first record of a recovery. */
void
ls_look_ahead_begin(void)
{
	is_first = true;
	/* as without us, until blocks are found in buffers */
	wants_prefetcher = recovery_prefetch != RECOVERY_PREFETCH_OFF;
}

static void
publish(void)
{
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->records, fresh.records);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->ahead, fresh.ahead);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->blocks, fresh.blocks);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->found, fresh.found);
	pg_atomic_fetch_add_u64(&ls_look_ahead_shared->missing, fresh.missing);
	pg_atomic_write_u64(&ls_look_ahead_shared->prefetching,
						recovery_prefetch != RECOVERY_PREFETCH_OFF);
	memset(&fresh, 0, sizeof(fresh));
}

static bool
have_slots(void)
{
	uint32		count = 1024;

	if (slots != NULL || no_memory)
		return slots != NULL;
	while (count < LS_MAX_SLOTS && count / 2 < (uint32) NBuffers)
		count *= 2;
	slots = MemoryContextAllocExtended(TopMemoryContext, count * sizeof(Buffer),
									   MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO);
	no_memory = slots == NULL;
	slot_mask = count - 1;
	return slots != NULL;
}

/* Equal for two blocks only by chance; then both share a slot. */
static inline Buffer *
slot_of(const DecodedBkpBlock *block)
{
	uint32		hash = LS_BLOCK_RELATION(block) * 0x9E3779B1U;

	hash = (hash ^ block->blkno ^ ((uint32) block->forknum << 28)) * 0x85EBCA6BU;
	return &slots[(hash ^ (hash >> 15)) & slot_mask];
}

/* Is the block read as it is, so that knowing its buffer helps? */
static inline bool
is_read(const DecodedBkpBlock *block)
{
	return block->in_use && !block->apply_image &&
		(block->flags & BKPBLOCK_WILL_INIT) == 0;
}

static inline int
last_block(const DecodedXLogRecord *record)
{
	return Min(record->max_block_id, LS_BLOCKS - 1);
}

/* ---- Decoding ahead ---------------------------------------------------- */

/*
 * In place of the reader's own function while we decode, for rule 1. The segment
 * that is open is the one from which the last page came.
 */
static int
read_page_of_open_segment(XLogReaderState *reader, XLogRecPtr page, int length,
						  XLogRecPtr record, char *buffer)
{
	uint64		size = reader->segcxt.ws_segsize;

	if (page / size != reader->latestPagePtr / size)
		return XLREAD_WOULDBLOCK;
	return stock_page_read(reader, page, length, record, buffer);
}

static DecodedXLogRecord *
decode_one(XLogReaderState *reader)
{
	DecodedXLogRecord *record;

	stock_page_read = reader->routine.page_read;
	reader->routine.page_read = read_page_of_open_segment;
	record = XLogReadAhead(reader, true);
	reader->routine.page_read = stock_page_read;
	if (record == NULL)
		exhausted = reader->decode_queue_tail->lsn;
	return record;
}

static inline bool
may_change_timeline(const DecodedXLogRecord *record)
{
	uint8		info = record->header.xl_info & ~XLR_INFO_MASK;

	return record->header.xl_rmid == RM_XLOG_ID &&
		(info == XLOG_CHECKPOINT_SHUTDOWN || info == XLOG_END_OF_RECOVERY);
}

/* The next record of the queue, decoded if need and rules allow it, or NULL. */
static DecodedXLogRecord *
next_in_queue(XLogReaderState *reader, DecodedXLogRecord *last, bool *ours)
{
	*ours = false;
	if (last->next != NULL)
		return last->next;
	if (recovery_prefetch != RECOVERY_PREFETCH_OFF || wants_prefetcher ||
		reader->ReadRecPtr <= barrier || reader->ReadRecPtr <= exhausted)
		return NULL;
	if (may_change_timeline(last))
	{
		barrier = last->lsn;
		return NULL;
	}
	*ours = true;
	return decode_one(reader);
}

static void
fill_ring(XLogReaderState *reader)
{
	DecodedXLogRecord *last = ring[tail % LS_RING].record;

	while (tail - current < (uint64) ls_replay_look_ahead)
	{
		bool		ours;
		DecodedXLogRecord *record = next_in_queue(reader, last, &ours);
		Ahead	   *ahead;

		if (record == NULL)
			break;
		ahead = &ring[++tail % LS_RING];
		ahead->record = last = record;
		ahead->lsn = record->lsn;
		ahead->ours = ours;
		for (int id = 0; id < LS_BLOCKS; id++)
			ahead->buffer[id] = InvalidBuffer;
	}
}

/* ---- The steps --------------------------------------------------------- */

static void
ask_for_slots(Ahead *ahead)
{
	DecodedXLogRecord *record = ahead->record;

	for (int id = 0; id <= last_block(record); id++)
		if (is_read(&record->blocks[id]))
			__builtin_prefetch(slot_of(&record->blocks[id]));
}

static void
ask_for_descriptors(Ahead *ahead)
{
	DecodedXLogRecord *record = ahead->record;

	for (int id = 0; id <= last_block(record); id++)
	{
		Buffer		buffer;

		if (!is_read(&record->blocks[id]))
			continue;
		buffer = *slot_of(&record->blocks[id]);
		if (BufferIsValid(buffer))
			__builtin_prefetch(GetBufferDescriptor(buffer - 1));
	}
}

/* The block's buffer by PostgreSQL's own mapping, InvalidBuffer if it has none. */
static Buffer
look_up(BufferTag *tag)
{
	uint32		hash = BufTableHashCode(tag);
	LWLock	   *partition = BufMappingPartitionLock(hash);
	int			id;

	LWLockAcquire(partition, LW_SHARED);
	id = BufTableLookup(tag, hash);
	LWLockRelease(partition);
	return id < 0 ? InvalidBuffer : id + 1;
}

/* The buffer that most likely has the block when its record's redo wants it. */
static Buffer
buffer_of(DecodedBkpBlock *block)
{
	Buffer	   *slot = slot_of(block);
	Buffer		buffer = *slot;
	BufferTag	tag;

	fresh.blocks++;
	window_blocks++;
	ls_block_tag(block, &tag);
	if (BufferIsValid(buffer) &&
		ls_tags_equal(&tag, &GetBufferDescriptor(buffer - 1)->tag))
	{
		fresh.found++;
		return buffer;
	}
	buffer = look_up(&tag);
	if (BufferIsValid(buffer))
		*slot = buffer;
	else
	{
		fresh.missing++;
		window_missing++;
	}
	return buffer;
}

static void
ask_for_pages(Ahead *ahead)
{
	DecodedXLogRecord *record = ahead->record;

	for (int id = 0; id <= last_block(record); id++)
	{
		DecodedBkpBlock *block = &record->blocks[id];
		Buffer		buffer;

		if (!is_read(block))
			continue;
		buffer = buffer_of(block);
		ahead->buffer[id] = buffer;
		if (!BufferIsValid(buffer))
			continue;
		__builtin_prefetch(BufferGetBlock(buffer));
		if (!BufferIsValid(block->prefetch_buffer) && ++uses % LS_USES_A_LOOKUP != 0)
			block->prefetch_buffer = buffer;
	}
}

/*
 * The line pointer that the record's redo goes to, in which of its blocks, or
 * InvalidOffsetNumber.
 */
static OffsetNumber
offset_of(DecodedXLogRecord *record, int *id)
{
	uint8		info = record->header.xl_info;

	*id = 0;
	if (record->header.xl_rmid == RM_HEAP_ID)
	{
		switch (info & XLOG_HEAP_OPMASK)
		{
			case XLOG_HEAP_DELETE:
				return ((xl_heap_delete *) record->main_data)->offnum;
			case XLOG_HEAP_LOCK:
				return ((xl_heap_lock *) record->main_data)->offnum;
			case XLOG_HEAP_UPDATE:
			case XLOG_HEAP_HOT_UPDATE:
				/* the old tuple is in the second block, if there are two */
				*id = record->max_block_id > 0 ? 1 : 0;
				return ((xl_heap_update *) record->main_data)->old_offnum;
			default:
				return InvalidOffsetNumber;
		}
	}
	if (record->header.xl_rmid == RM_BTREE_ID &&
		(info & ~XLR_INFO_MASK) == XLOG_BTREE_INSERT_LEAF)
		return ((xl_btree_insert *) record->main_data)->offnum;
	return InvalidOffsetNumber;
}

/* Where the line pointer is, or would be; NULL if no page has it. */
static ItemId
line_pointer_of(Ahead *ahead)
{
	int			id;
	OffsetNumber offset = offset_of(ahead->record, &id);

	if (offset == InvalidOffsetNumber || offset > MaxOffsetNumber ||
		!BufferIsValid(ahead->buffer[id]))
		return NULL;
	return PageGetItemId((Page) BufferGetBlock(ahead->buffer[id]), offset);
}

/* Does redo of the first block read all its line pointers and move its tuples? */
static bool
moves_tuples(DecodedXLogRecord *record)
{
	return record->header.xl_rmid == RM_HEAP2_ID &&
		ls_is_prune(record->header.xl_info & XLOG_HEAP_OPMASK);
}

static void
ask_for_range(PageHeader page, int from, int to)
{
	for (int at = from; at < Min(to, BLCKSZ); at += 64)
		__builtin_prefetch((char *) page + at, 1);
}

/* What adds a tuple changes both ends of the page's free space. */
static void
ask_for_line_pointers(Ahead *ahead)
{
	ItemId		pointer = line_pointer_of(ahead);

	for (int id = 0; id <= last_block(ahead->record); id++)
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
	if (moves_tuples(ahead->record) && BufferIsValid(ahead->buffer[0]))
	{
		PageHeader	page = (PageHeader) BufferGetBlock(ahead->buffer[0]);

		ask_for_range(page, 64, page->pd_lower);
	}
}

static void
ask_for_tuples(Ahead *ahead)
{
	int			id;
	ItemId		pointer = line_pointer_of(ahead);
	unsigned	offset;

	if (moves_tuples(ahead->record) && BufferIsValid(ahead->buffer[0]))
	{
		PageHeader	page = (PageHeader) BufferGetBlock(ahead->buffer[0]);

		ask_for_range(page, page->pd_upper, BLCKSZ);
	}
	if (pointer == NULL || ahead->record->header.xl_rmid != RM_HEAP_ID)
		return;
	(void) offset_of(ahead->record, &id);
	offset = ItemIdGetOffset(pointer);
	if (offset < BLCKSZ)
		__builtin_prefetch((char *) BufferGetBlock(ahead->buffer[id]) + offset, 1);
}

static void (*const step[STEPS]) (Ahead *) = {
	ask_for_slots,
	ask_for_descriptors,
	ask_for_pages,
	ask_for_line_pointers,
	ask_for_tuples,
};

static void
take_steps(void)
{
	for (int i = 0; i < STEPS; i++)
	{
		uint64		until = Min(tail, current + step_distance[i]);

		step_done[i] = Max(step_done[i], current);
		while (step_done[i] < until)
			step[i] (&ring[++step_done[i] % LS_RING]);
	}
}

/* ---- PostgreSQL's prefetcher ------------------------------------------- */

/* What is configured, whatever we have set. */
static int
configured_prefetch(void)
{
	const char *value = GetConfigOptionResetString("recovery_prefetch");

	return strcmp(value, "off") == 0 ? RECOVERY_PREFETCH_OFF :
		strcmp(value, "on") == 0 ? RECOVERY_PREFETCH_ON : RECOVERY_PREFETCH_TRY;
}

static void
set_prefetcher(int value)
{
	if (recovery_prefetch == value)
		return;
	recovery_prefetch = value;
	XLogPrefetchReconfigure();
}

/* Turned on only when all that we have decoded is replayed. */
static void
choose_prefetcher(void)
{
	if (window_blocks >= LS_WINDOW)
	{
		wants_prefetcher = window_missing > window_blocks / LS_MISSING_SHARE &&
			configured_prefetch() != RECOVERY_PREFETCH_OFF;
		window_blocks = window_missing = 0;
	}
	if (!wants_prefetcher)
		set_prefetcher(RECOVERY_PREFETCH_OFF);
	else if (tail == current && recovery_prefetch == RECOVERY_PREFETCH_OFF)
		set_prefetcher(configured_prefetch());
}

/* ---- Each record ------------------------------------------------------- */

/* The current record is the next of the ring, or the ring begins anew with it. */
static void
advance(DecodedXLogRecord *record)
{
	Ahead	   *ahead = &ring[++current % LS_RING];

	fresh.records++;
	if (current <= tail && ahead->record == record && ahead->lsn == record->lsn)
	{
		fresh.ahead += ahead->ours;
		return;
	}
	tail = current;
	ahead->record = record;
	ahead->lsn = record->lsn;
	for (int i = 0; i < STEPS; i++)
		step_done[i] = current;
}

/* Switched off. Nothing is counted either. */
static void
leave_to_postgres(void)
{
	if (!active)
		return;
	active = false;
	tail = current;
	set_prefetcher(configured_prefetch());
	wants_prefetcher = recovery_prefetch != RECOVERY_PREFETCH_OFF;
	publish();
}

/* Startup process, before each record's redo. */
void
ls_look_ahead(XLogReaderState *reader)
{
	if (is_first || reader->record == NULL)
	{
		is_first = false;
		tail = current;
		return;
	}
	if (!ls_enabled || ls_replay_look_ahead == 0 || !have_slots())
	{
		leave_to_postgres();
		return;
	}
	active = true;
	advance(reader->record);
	choose_prefetcher();
	fill_ring(reader);
	take_steps();
	if (fresh.records >= LS_PUBLISH_EVERY || tail == current)
		publish();
}
