/*
 * record_class.c - which records may run ahead of their retirement.
 *
 * A record may run ahead only if its redo is known to touch nothing but the blocks
 * that it registers, and the free space map, and to use no state of the startup
 * process. The set below was read in PostgreSQL's sources, kind by kind; all other
 * kinds are executed by the startup process when their turn comes, as in stock.
 *
 *  Heap: insert, update, delete, lock. They change their registered blocks, the
 *    free space map (each heap block has an entry of its own, so any order of blocks gives
 *    the same), and clear bits of the visibility map if their flags say so (rule 4). PostgreSQL
 *    17.12 and 18.6 register the map's page, like any block that a record changes, and set its
 *    LSN, but only where a bit was set; 15.18 and 15.20 do neither.
 *  Heap2: prune, freeze, vacuum, multi-insert, lock of an updated tuple. The same. What sets bits
 *    of a visibility map is inline.
 *    A cleanup lock waits only for checkpointer and background writer, since nobody
 *    reads before consistency; that is why rules 2, 3 and 5 are skipped here.
 *  B-tree: insertion, split, deduplication, delete, vacuum: registered blocks only.
 *  Full-page images of main forks, alone or in the records above, which may also have one of the
 *    visibility map. Other records with an image of another fork are inline (rule 4).
 *
 * Inline are kinds without blocks that change other memory than pages (commits
 * without further effect, CLOG, running transactions), and resource managers that
 * change only blocks that they register. Barriers are all that drop, create or
 * truncate files, change the state of recovery, or are not known here (rule 8).
 *
 * In hot standby fewer kinds run ahead (ls_classify_hot()).
 *
 * No state, no I/O.
 */
#include "postgres.h"

#include "access/brin_xlog.h"
#include "access/clog.h"
#include "access/commit_ts.h"
#include "access/heapam_xlog.h"
#include "access/multixact.h"
#include "access/nbtxlog.h"
#include "access/rmgr.h"
#include "access/transam.h"
#include "access/visibilitymapdefs.h"
#include "access/xact.h"
#include "access/xlog_internal.h"
#include "catalog/pg_control.h"
#include "storage/fsm_internals.h"
#include "storage/standbydefs.h"

#include "compat.h"
#include "replay/broken_rule.h"
#include "replay/record_class.h"

/* As in visibilitymap.c, which does not export it. */
#define LS_HEAP_BLOCKS_PER_MAP_PAGE \
	((BLCKSZ - MAXALIGN(SizeOfPageHeaderData)) * (BITS_PER_BYTE / BITS_PER_HEAPBLOCK))

/* What a commit may have besides its transaction's end to be no barrier. */
#define HARMLESS_XINFO \
	(XACT_XINFO_HAS_DBINFO | XACT_XINFO_HAS_SUBXACTS | XACT_XINFO_HAS_ORIGIN | \
	 XACT_COMPLETION_APPLY_FEEDBACK)

static LsClass record_class_heap(const DecodedXLogRecord *record, LsCause *cause);
static inline uint8 record_class_operation(const DecodedXLogRecord *record);
static LsClass record_class_ahead_or_clears_map(const DecodedXLogRecord *record, LsCause *cause);
static bool record_class_clears_bits_of(const DecodedXLogRecord *record, int id);
static bool record_class_names_map(const DecodedXLogRecord *record, const DecodedBkpBlock *block);
static LsClass record_class_inline_because(LsCause *cause, LsCause why);
static LsClass record_class_barrier_because(LsCause *cause, LsCause why);
static LsClass record_class_heap2(const DecodedXLogRecord *record, LsCause *cause);
static LsClass record_class_btree(const DecodedXLogRecord *record, LsCause *cause);
static LsClass record_class_xlog(const DecodedXLogRecord *record, LsCause *cause);
static LsClass record_class_xact(const DecodedXLogRecord *record, LsCause *cause);
static LsClass record_class_other(const DecodedXLogRecord *record, LsCause *cause);
static ForkNumber record_class_last_fork(const DecodedXLogRecord *record);
static LsClass record_class_btree_hot(const DecodedXLogRecord *record, LsCause *cause);
static LsClass record_class_heap2_hot(const DecodedXLogRecord *record, LsClass class, LsCause *cause);

/* The record's class before consistency; cause is set unless the class is AHEAD. */
LsClass
ls_classify(const DecodedXLogRecord *record, LsCause *cause)
{
	LsClass		class;

	switch (record->header.xl_rmid)
	{
		case RM_HEAP_ID:
			class = record_class_heap(record, cause);
			break;
		case RM_HEAP2_ID:
			class = record_class_heap2(record, cause);
			break;
		case RM_BTREE_ID:
			class = record_class_btree(record, cause);
			break;
		case RM_XLOG_ID:
			class = record_class_xlog(record, cause);
			break;
		case RM_XACT_ID:
			class = record_class_xact(record, cause);
			break;
		default:
			class = record_class_other(record, cause);
			break;
	}
	if (class != LS_CLASS_AHEAD && class != LS_CLASS_CLEARS_MAP)
		return class;
	switch (record_class_last_fork(record))
	{
		case MAIN_FORKNUM:
			break;
		case VISIBILITYMAP_FORKNUM:
			if (!ls_clears_visibility_map(record))
				return record_class_inline_because(cause, LS_CAUSE_MAP);
			break;
		default:
			return record_class_inline_because(cause, LS_CAUSE_MAP);
	}
	if (record->oversized || record->max_block_id >= LS_BLOCKS)
		return record_class_inline_because(cause, LS_CAUSE_LARGE);
	return class;
}

/*
 * Like ls_classify(), while sessions read: fewer kinds run ahead.
 *
 * Heap: insert, multi-insert, update, delete, lock. No snapshot sees what they write before
 *   its transaction has ended at retirement; tests of visibility that need no snapshot take
 *   transactions for running that are newer than all that ended.
 * B-tree: what adds an item, once the tuple is there (rule 2), or a downlink, once its
 *   page is there, since the record has the block of the page that was split.
 * Images for hint bits. They hold what earlier records have left of the page, and bits that
 *   snapshots are asked about all the same.
 * Heap2: pruning, if nobody sees what it removes (removal.c).
 * At retirement is what else removes or reveals (rule 3): freezing, visibility, deletion and
 *   vacuum of B-trees; and what might: deduplication, other images (they may freeze), locks
 *   of updated tuples. Deletion of items of a B-tree names a horizon, too, but not of rows whose
 *   line pointers an earlier record has marked as dead: it relies on that record's.
 * Barriers in addition: all of multixacts (rule 7): a session that meets one in a tuple reads
 *   its members. Reuse of a B-tree's page: it resolves conflicts, and its page is in none of its
 *   blocks.
 */
LsClass
ls_classify_hot(const DecodedXLogRecord *record, LsCause *cause)
{
	LsClass		class = ls_classify(record, cause);

	switch (record->header.xl_rmid)
	{
		case RM_MULTIXACT_ID:
			return LS_BREAKS(MULTIXACT) ? class : record_class_barrier_because(cause, LS_CAUSE_UNKNOWN);
		case RM_BTREE_ID:
			if (class == LS_CLASS_AHEAD || record_class_operation(record) == XLOG_BTREE_REUSE_PAGE)
				return record_class_btree_hot(record, cause);
			return class;
		case RM_HEAP2_ID:
			return class == LS_CLASS_AHEAD || class == LS_CLASS_CLEARS_MAP ?
				record_class_heap2_hot(record, class, cause) : class;
		case RM_XLOG_ID:
			if (class == LS_CLASS_AHEAD && record_class_operation(record) == XLOG_FPI)
				return record_class_inline_because(cause, LS_CAUSE_KIND);
			return class;
		default:
			return class;
	}
}

/*
 * Rule 2: may an item of a B-tree that the same transaction inserts later point to a tuple
 * of this record? And what changes tuples counts as well; pruning and the like do not.
 */
bool
ls_adds_heap_tuples(const DecodedXLogRecord *record)
{
	uint8		operation = record_class_operation(record) & XLOG_HEAP_OPMASK;

	return record->header.xl_rmid == RM_HEAP_ID ||
		(record->header.xl_rmid == RM_HEAP2_ID && operation == XLOG_HEAP2_MULTI_INSERT);
}

/*
 * Does redo clear bits of the visibility map? The flags that say so lie elsewhere in each kind. Asked of
 * records of all kinds.
 */
bool
ls_clears_visibility_map(const DecodedXLogRecord *record)
{
	uint8		operation = record_class_operation(record) & XLOG_HEAP_OPMASK;
	const char *data = record->main_data;

	if (record->header.xl_rmid == RM_HEAP_ID)
		switch (operation)
		{
			case XLOG_HEAP_INSERT:
				return ((const xl_heap_insert *) data)->flags & XLH_INSERT_ALL_VISIBLE_CLEARED;
			case XLOG_HEAP_DELETE:
				return ((const xl_heap_delete *) data)->flags & XLH_DELETE_ALL_VISIBLE_CLEARED;
			case XLOG_HEAP_UPDATE:
			case XLOG_HEAP_HOT_UPDATE:
				return ((const xl_heap_update *) data)->flags &
					(XLH_UPDATE_OLD_ALL_VISIBLE_CLEARED | XLH_UPDATE_NEW_ALL_VISIBLE_CLEARED);
			case XLOG_HEAP_LOCK:
				return ((const xl_heap_lock *) data)->flags & XLH_LOCK_ALL_FROZEN_CLEARED;
			default:
				return false;
		}
	if (record->header.xl_rmid == RM_HEAP2_ID && operation == XLOG_HEAP2_MULTI_INSERT)
		return ((const xl_heap_multi_insert *) data)->flags & XLH_INSERT_ALL_VISIBLE_CLEARED;
	if (record->header.xl_rmid == RM_HEAP2_ID && operation == XLOG_HEAP2_LOCK_UPDATED)
		return ((const xl_heap_lock_updated *) data)->flags & XLH_LOCK_ALL_FROZEN_CLEARED;
	return false;
}

/* The block of the visibility map that has a heap block's bits. */
BlockNumber
ls_visibility_map_block(BlockNumber heap_block)
{
	return heap_block / LS_HEAP_BLOCKS_PER_MAP_PAGE;
}

/*
 * Rule 10: does redo of this barrier leave the files of all relations as they are? Its resource manager
 * neither makes nor drops nor truncates any, on all of 15 to 18: multixacts have files of their own, and the
 * others' barriers change a row in place, make a session wait, or resolve a conflict. Others might.
 */
bool
ls_keeps_files(const DecodedXLogRecord *record)
{
	switch (record->header.xl_rmid)
	{
		case RM_MULTIXACT_ID:
		case RM_BTREE_ID:
		case RM_HEAP_ID:
		case RM_STANDBY_ID:
			return true;
		default:
			return false;
	}
}

/* May redo record the free space of block 0? Asked of records that may run ahead. */
bool
ls_may_change_free_space_map(const DecodedXLogRecord *record)
{
	uint8		operation = record_class_operation(record) & XLOG_HEAP_OPMASK;

	switch (record->header.xl_rmid)
	{
		case RM_HEAP_ID:
			return operation == XLOG_HEAP_INSERT || operation == XLOG_HEAP_UPDATE;
		case RM_HEAP2_ID:
			return operation != XLOG_HEAP2_LOCK_UPDATED;
		default:
			return false;
	}
}

/*
 * The block of the free space map that has a heap block's entry. Before each leaf
 * page come the pages of upper levels that begin at or before it.
 */
BlockNumber
ls_free_space_map_block(BlockNumber heap_block)
{
	BlockNumber block = 0;
	BlockNumber before = heap_block / SlotsPerFSMPage;

	/* the depth that suffices for all block numbers */
	for (int level = 0; level < 3; level++)
	{
		block += before + 1;
		before /= SlotsPerFSMPage;
	}
	return block - 1;
}

static LsClass
record_class_heap(const DecodedXLogRecord *record, LsCause *cause)
{
	uint8		operation = record_class_operation(record) & XLOG_HEAP_OPMASK;

	switch (operation)
	{
		case XLOG_HEAP_INSERT:
		case XLOG_HEAP_DELETE:
		case XLOG_HEAP_UPDATE:
		case XLOG_HEAP_HOT_UPDATE:
		case XLOG_HEAP_LOCK:
			return record_class_ahead_or_clears_map(record, cause);
		case XLOG_HEAP_CONFIRM:
		case XLOG_HEAP_TRUNCATE:	/* for logical decoding, no redo */
			return record_class_inline_because(cause, LS_CAUSE_KIND);
		default:
			/* changes in place */
			return record_class_barrier_because(cause, LS_CAUSE_DDL);
	}
}

static inline uint8
record_class_operation(const DecodedXLogRecord *record)
{
	return record->header.xl_info & ~XLR_INFO_MASK;
}

/*
 * Rule 4: a record that names each page of the map in which it clears bits waits for others of these pages as
 * for those of any block. One that names none is asked about at dispatch. An update whose tuples have their bits
 * in two pages may name one, and then waits for its turn.
 */
static LsClass
record_class_ahead_or_clears_map(const DecodedXLogRecord *record, LsCause *cause)
{
	bool		names_all = true;

	if (!ls_clears_visibility_map(record))
		return LS_CLASS_AHEAD;
	for (int id = 0; id <= record->max_block_id; id++)
		if (record_class_clears_bits_of(record, id) && !record_class_names_map(record, &record->blocks[id]))
			names_all = false;
	if (names_all)
		return LS_CLASS_AHEAD;
	if (record_class_last_fork(record) == VISIBILITYMAP_FORKNUM)
		return record_class_inline_because(cause, LS_CAUSE_MAP);
	*cause = LS_CAUSE_MAP;
	return LS_CLASS_CLEARS_MAP;
}

/* Is it a heap page whose bits a record clears that clears some? An update has flags for both of its pages. */
static bool
record_class_clears_bits_of(const DecodedXLogRecord *record, int id)
{
	uint8		operation = record_class_operation(record) & XLOG_HEAP_OPMASK;
	bool		has_old_page = record->max_block_id >= 1 && record->blocks[1].in_use &&
		record->blocks[1].forknum == MAIN_FORKNUM;
	uint8		flags;

	if (!record->blocks[id].in_use || record->blocks[id].forknum != MAIN_FORKNUM)
		return false;
	if (record->header.xl_rmid != RM_HEAP_ID ||
		(operation != XLOG_HEAP_UPDATE && operation != XLOG_HEAP_HOT_UPDATE))
		return true;
	flags = id == 1 ? XLH_UPDATE_OLD_ALL_VISIBLE_CLEARED : XLH_UPDATE_NEW_ALL_VISIBLE_CLEARED;
	if (!has_old_page)
		flags |= XLH_UPDATE_OLD_ALL_VISIBLE_CLEARED;
	return ((const xl_heap_update *) record->main_data)->flags & flags;
}

/* Is the page of the map that has this heap block's bits among the record's blocks? */
static bool
record_class_names_map(const DecodedXLogRecord *record, const DecodedBkpBlock *block)
{
	for (int id = 0; id <= record->max_block_id; id++)
		if (record->blocks[id].in_use && record->blocks[id].forknum == VISIBILITYMAP_FORKNUM &&
			record->blocks[id].blkno == ls_visibility_map_block(block->blkno))
			return true;
	return false;
}

static LsClass
record_class_inline_because(LsCause *cause, LsCause why)
{
	*cause = why;
	return LS_CLASS_INLINE;
}

static LsClass
record_class_barrier_because(LsCause *cause, LsCause why)
{
	*cause = why;
	return LS_CLASS_BARRIER;
}

static LsClass
record_class_heap2(const DecodedXLogRecord *record, LsCause *cause)
{
	uint8		operation = record_class_operation(record) & XLOG_HEAP_OPMASK;

	if (ls_is_heap_cleanup(operation))
		return LS_CLASS_AHEAD;
	switch (operation)
	{
		case XLOG_HEAP2_MULTI_INSERT:
			/* it makes rows visible, and from 19 on sets bits of the map */
			if (((xl_heap_multi_insert *) record->main_data)->flags & XLH_INSERT_ALL_FROZEN_SET)
				return record_class_inline_because(cause, LS_CAUSE_MAP);
			return record_class_ahead_or_clears_map(record, cause);
		case XLOG_HEAP2_LOCK_UPDATED:
			return record_class_ahead_or_clears_map(record, cause);
		case XLOG_HEAP2_REWRITE:
			return record_class_barrier_because(cause, LS_CAUSE_DDL);
		case XLOG_HEAP2_NEW_CID:	/* for logical decoding, no redo */
			return record_class_inline_because(cause, LS_CAUSE_KIND);
		default:
			/* visible, on versions that have it */
			return record_class_inline_because(cause, LS_CAUSE_MAP);
	}
}

static LsClass
record_class_btree(const DecodedXLogRecord *record, LsCause *cause)
{
	switch (record_class_operation(record))
	{
		case XLOG_BTREE_INSERT_LEAF:
		case XLOG_BTREE_INSERT_UPPER:
		case XLOG_BTREE_INSERT_META:
		case XLOG_BTREE_INSERT_POST:
		case XLOG_BTREE_SPLIT_L:
		case XLOG_BTREE_SPLIT_R:
		case XLOG_BTREE_DEDUP:
		case XLOG_BTREE_DELETE:
		case XLOG_BTREE_VACUUM:
			return LS_CLASS_AHEAD;
		default:
			/* page deletion and reuse, new roots */
			return record_class_inline_because(cause, LS_CAUSE_KIND);
	}
}

static LsClass
record_class_xlog(const DecodedXLogRecord *record, LsCause *cause)
{
	uint8		operation = record_class_operation(record);

	if (operation != XLOG_FPI && operation != XLOG_FPI_FOR_HINT)
		return record_class_barrier_because(cause, LS_CAUSE_CHECKPOINT);
	return LS_CLASS_AHEAD;
}

static LsClass
record_class_xact(const DecodedXLogRecord *record, LsCause *cause)
{
	uint8		info = record->header.xl_info;
	uint32		xinfo = 0;

	switch (info & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
			if (info & XLOG_XACT_HAS_INFO)
				xinfo = ((xl_xact_xinfo *) (record->main_data + MinSizeOfXactCommit))->xinfo;
			break;
		case XLOG_XACT_ABORT:
			if (info & XLOG_XACT_HAS_INFO)
				xinfo = ((xl_xact_xinfo *) (record->main_data + MinSizeOfXactAbort))->xinfo;
			break;
		case XLOG_XACT_ASSIGNMENT:
		case XLOG_XACT_INVALIDATIONS:
			break;
		default:
			/* two-phase */
			return record_class_barrier_because(cause, LS_CAUSE_UNKNOWN);
	}
	/* dropped relations and statistics, invalidations, locks, forced commits */
	if (xinfo & ~HARMLESS_XINFO)
		return record_class_barrier_because(cause, LS_CAUSE_DDL);
	return record_class_inline_because(cause, LS_CAUSE_KIND);
}

static LsClass
record_class_other(const DecodedXLogRecord *record, LsCause *cause)
{
	uint8		operation = record_class_operation(record);
	bool		harmless = false;

	switch (record->header.xl_rmid)
	{
		case RM_GIN_ID:
		case RM_GIST_ID:
		case RM_SPGIST_ID:
		case RM_HASH_ID:
		case RM_BRIN_ID:
		case RM_GENERIC_ID:
		case RM_SEQ_ID:
		case RM_LOGICALMSG_ID:
			/* they change only blocks that they register, if any */
			harmless = true;
			break;
		case RM_CLOG_ID:
			harmless = operation == CLOG_ZEROPAGE;
			break;
		case RM_MULTIXACT_ID:
			harmless = operation != XLOG_MULTIXACT_TRUNCATE_ID;
			break;
		case RM_STANDBY_ID:
			harmless = operation == XLOG_RUNNING_XACTS || operation == XLOG_INVALIDATIONS;
			break;
		default:
			/* files, databases, tablespaces, the relation map, other extensions */
			break;
	}
	return harmless ? record_class_inline_because(cause, LS_CAUSE_KIND) :
		record_class_barrier_because(cause, LS_CAUSE_UNKNOWN);
}

/* The last fork, in the order of their numbers, of which the record has a block. */
static ForkNumber
record_class_last_fork(const DecodedXLogRecord *record)
{
	ForkNumber	last = MAIN_FORKNUM;

	for (int id = 0; id <= record->max_block_id; id++)
		if (record->blocks[id].in_use)
			last = Max(last, record->blocks[id].forknum);
	return last;
}

/* ---- Hot standby ------------------------------------------------------- */

static LsClass
record_class_btree_hot(const DecodedXLogRecord *record, LsCause *cause)
{
	switch (record_class_operation(record))
	{
		case XLOG_BTREE_INSERT_LEAF:
		case XLOG_BTREE_INSERT_POST:
		case XLOG_BTREE_SPLIT_L:
		case XLOG_BTREE_SPLIT_R:
			/* rule 2: whose heap record it must come after is not known */
			if (!TransactionIdIsValid(record->header.xl_xid))
				return record_class_inline_because(cause, LS_CAUSE_KIND);
			return LS_CLASS_AHEAD;
		case XLOG_BTREE_INSERT_UPPER:
			return LS_CLASS_AHEAD;
		case XLOG_BTREE_REUSE_PAGE:
			/* names its page only in its data */
			return record_class_barrier_because(cause, LS_CAUSE_UNKNOWN);
		default:
			if (LS_BREAKS(REMOVAL))
				return LS_CLASS_AHEAD;
			return record_class_inline_because(cause, LS_CAUSE_KIND);
	}
}

/* Rule 3: pruning with an image waits for its turn, since restoring one takes a cleanup lock, too. */
static LsClass
record_class_heap2_hot(const DecodedXLogRecord *record, LsClass class, LsCause *cause)
{
	if ((record_class_operation(record) & XLOG_HEAP_OPMASK) == XLOG_HEAP2_MULTI_INSERT ||
		LS_BREAKS(REMOVAL))
		return class;
	*cause = LS_CAUSE_KIND;
	return ls_only_prunes(record) && !record->blocks[0].apply_image ? LS_CLASS_REMOVAL :
		LS_CLASS_INLINE;
}
