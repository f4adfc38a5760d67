/*
 * read_ahead.c - asks the kernel for blocks that dispatched records will read from files.
 *
 * PostgreSQL's own prefetcher is off while records run ahead (look_ahead.c). Where data is larger
 * than shared buffers, each missing block would be read when its record is executed, and all
 * that come after it on a page would wait. So the startup process looks up the blocks of records that
 * it has dispatched, and asks the kernel for those in no buffer, as PostgreSQL's prefetcher
 * does: a hint, after which redo finds them in the kernel's cache. Nothing is read into
 * buffers, and nothing depends on it.
 *
 * How much: up to maintenance_io_concurrency blocks for the startup process and for each helper
 * that takes records. A block counts until its record has retired. recovery_prefetch = off and
 * maintenance_io_concurrency = 0 switch it off.
 *
 * To look each block up has its price, so where data is in buffers only one record in
 * LS_SAMPLE is looked at, to see whether that still holds.
 *
 * Runs in the startup process. Shared state: a counter. Lock: PostgreSQL's own of a partition of
 * the mapping of buffers, shared.
 */
#include "postgres.h"

#include "storage/bufmgr.h"

#include "replay/dispatch.h"
#include "replay/known_files.h"
#include "replay/look_ahead.h"
#include "replay/queue.h"
#include "replay/read_ahead.h"

/* While blocks are found in buffers, one record in this number is looked at. */
#define LS_SAMPLE 16

/* Blocks after which it is decided anew, while they are found in buffers and while not. */
#define LS_SAMPLED 64
#define LS_LOOKED_UP 4096

/* Blocks are missing when more than one in this number is. */
#define LS_MISSING_SHARE 64

static bool read_ahead_are_missing = false;
static bool read_ahead_configured = false;
static uint32 read_ahead_looked_up = 0; /* since it was last decided */
static uint32 read_ahead_missing = 0;

static uint64 read_ahead_walked = 0;	/* number of the last record that was looked at */

/* Numbers of the records whose blocks are on their way: on_way[first .. last - 1]. */
static uint64 read_ahead_on_way[LS_AHEAD_MAX];
static uint32 read_ahead_first = 0;
static uint32 read_ahead_last = 0;

static uint32 read_ahead_most_on_way(void);
static void read_ahead_look_up(const LsEntry *entry, int id, uint64 current);
static void read_ahead_decide(void);

/* The queue begins. Nothing is known of this WAL. */
void
ls_read_ahead_begin(void)
{
	read_ahead_are_missing = false;
	read_ahead_configured = ls_prefetch_is_configured();
	read_ahead_looked_up = read_ahead_missing = 0;
	read_ahead_first = read_ahead_last = 0;
}

/* Startup process, before the record of this number is retired. */
void
ls_read_ahead(uint64 current)
{
	while (read_ahead_first != read_ahead_last &&
		   read_ahead_on_way[read_ahead_first % LS_AHEAD_MAX] <= current)
		read_ahead_first++;
	read_ahead_walked = Max(read_ahead_walked, current);
	while (read_ahead_walked < ls_dispatched.tail && read_ahead_configured &&
		   read_ahead_last - read_ahead_first < read_ahead_most_on_way())
	{
		LsEntry    *entry = ls_entry(++read_ahead_walked);

		if (!read_ahead_are_missing && read_ahead_walked % LS_SAMPLE != 0)
			continue;
		for (int id = 0; id <= entry->record->max_block_id; id++)
			read_ahead_look_up(entry, id, current);
		read_ahead_decide();
	}
}

static uint32
read_ahead_most_on_way(void)
{
	uint32		processes = 1 + pg_atomic_read_u32(&ls_queue->used);

	return Min((uint32) maintenance_io_concurrency * processes, LS_AHEAD_MAX);
}

/* Asks for a block, but for one that an earlier record ahead has: that was asked for then. */
static void
read_ahead_look_up(const LsEntry *entry, int id, uint64 current)
{
	const DecodedBkpBlock *block = &entry->record->blocks[id];
	SMgrRelation files;
	PrefetchBufferResult result;

	if (!ls_block_is_read(block) || (id < LS_BLOCKS && entry->after[id] > current))
		return;
	files = ls_known_files(block);
	if (block->blkno >= ls_size_of_fork(files, block->forknum))
		return;
	result = PrefetchSharedBuffer(files, block->forknum, block->blkno);
	read_ahead_looked_up++;
	if (BufferIsValid(result.recent_buffer))
		return;
	read_ahead_missing++;
	if (!result.initiated_io || read_ahead_last - read_ahead_first >= LS_AHEAD_MAX)
		return;
	read_ahead_on_way[read_ahead_last++ % LS_AHEAD_MAX] = entry->number;
	pg_atomic_write_u64(&ls_queue->asked_for, pg_atomic_read_u64(&ls_queue->asked_for) + 1);
}

static void
read_ahead_decide(void)
{
	if (read_ahead_looked_up < (read_ahead_are_missing ? LS_LOOKED_UP : LS_SAMPLED))
		return;
	read_ahead_configured = ls_prefetch_is_configured();
	read_ahead_are_missing = read_ahead_missing > read_ahead_looked_up / LS_MISSING_SHARE;
	read_ahead_looked_up = read_ahead_missing = 0;
}
