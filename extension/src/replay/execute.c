/*
 * execute.c - a helper executes a record that it has claimed.
 *
 * Redo is PostgreSQL's own. What is different in a helper: it has no table of
 * invalid pages that anybody checks, it never extends a relation, and it hears
 * nothing of dropped files. The rules below see to each (numbers as in README.md).
 *
 * Runs in replay helpers. Shared state: the entry that the helper has claimed.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"

#include "compat.h"
#include "replay/broken_rule.h"
#include "replay/execute.h"
#include "replay/known_files.h"
#include "replay/record_class.h"
#include "replay/removal.h"
#include "replay/rmgr_table.h"

/* What redo functions see as the reader: only the record and where it is. */
static XLogReaderState *execute_reader = NULL;

static MemoryContext execute_redo_context = NULL;
static ErrorContextCallback execute_record_context;

/* Generation at which this process last closed its files. */
static uint32 execute_generation = 0;

static char *execute_image = NULL;	/* rule 13 */
static char *execute_replayed = NULL;

static void execute_enter(LsEntry *entry);
static void execute_say_which_record(void *arg);
static bool execute_has_all_blocks(const LsEntry *entry);
static void execute_forget_files(uint32 generation);
static void execute_refresh_size(SMgrRelation smgr, ForkNumber fork, BlockNumber block);
static bool execute_is_initialized(const DecodedBkpBlock *block);
static void execute_leave(void);
static void execute_check_consistency(void);
static void execute_check_block(int id);

void
ls_execute_init(void)
{
	execute_reader = XLogReaderAllocate(wal_segment_size, NULL, XL_ROUTINE(), NULL);
	if (execute_reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	execute_redo_context = AllocSetContextCreate(TopMemoryContext, "lockstep redo",
												 ALLOCSET_DEFAULT_SIZES);
	execute_image = palloc(BLCKSZ);
	execute_replayed = palloc(BLCKSZ);
	/* keeps a memory context of its own; the other kinds that run ahead do not */
	ls_rmgr(RM_BTREE_ID)->rm_startup();
}

/* May this process execute the record? False: the startup process must. */
bool
ls_may_execute(LsEntry *entry)
{
	bool		may;

	execute_enter(entry);
	may = execute_has_all_blocks(entry) &&
		/* rule 3 */
		(pg_atomic_read_u32(&ls_queue->hot) == 0 || ls_lock_for_removal(entry->record));
	execute_leave();
	return may;
}

/*
 * The caller has asked ls_may_execute(). An error is the caller's to handle; the
 * record is done when this returns.
 */
void
ls_execute(LsEntry *entry)
{
	MemoryContext caller = MemoryContextSwitchTo(execute_redo_context);

	execute_enter(entry);
	if (!ls_remove(execute_reader))
		ls_stock_redo(execute_reader);
	execute_check_consistency();
	execute_leave();
	MemoryContextSwitchTo(caller);
	MemoryContextReset(execute_redo_context);
}

/* From here on errors name this record, and redo functions see it. */
static void
execute_enter(LsEntry *entry)
{
	execute_reader->record = entry->record;
	execute_reader->ReadRecPtr = entry->record->lsn;
	execute_reader->EndRecPtr = entry->record->next_lsn;
	execute_record_context.callback = execute_say_which_record;
	execute_record_context.arg = entry->record;
	execute_record_context.previous = error_context_stack;
	error_context_stack = &execute_record_context;
}

/* Names the record in the context of an error as PostgreSQL does. */
static void
execute_say_which_record(void *arg)
{
	const DecodedXLogRecord *record = arg;
	const RmgrData *rmgr = ls_rmgr(record->header.xl_rmid);
	const char *operation = rmgr->rm_identify(record->header.xl_info);
	StringInfoData description;

	initStringInfo(&description);
	rmgr->rm_desc(&description, execute_reader);
	errcontext("WAL redo at %X/%X for %s/%s: %s, in a replay helper",
			   LSN_FORMAT_ARGS(record->lsn), rmgr->rm_name,
			   operation == NULL ? "UNKNOWN" : operation, description.data);
	pfree(description.data);
}

static bool
execute_has_all_blocks(const LsEntry *entry)
{
	const DecodedXLogRecord *record = entry->record;
	bool		clears_map = ls_clears_visibility_map(record);

	execute_forget_files(entry->generation);
	for (int id = 0; id <= record->max_block_id; id++)
	{
		const DecodedBkpBlock *block = &record->blocks[id];
		SMgrRelation smgr;

		if (!block->in_use)
			continue;
		smgr = ls_known_files(block);
		execute_refresh_size(smgr, block->forknum, block->blkno);
		if (id == 0 && ls_may_change_free_space_map(record))
			execute_refresh_size(smgr, FSM_FORKNUM, ls_free_space_map_block(block->blkno));
		if (clears_map && block->forknum == MAIN_FORKNUM)
			execute_refresh_size(smgr, VISIBILITYMAP_FORKNUM, ls_visibility_map_block(block->blkno));
		if (ls_block_is_read(block) && !execute_is_initialized(block))
			return false;
	}
	return true;
}

/*
 * Rule 10: files that were dropped or truncated since, and the sizes of those, are
 * forgotten before anything is done with them.
 */
static void
execute_forget_files(uint32 generation)
{
	if (generation == execute_generation || LS_BREAKS(FILES))
		return;
	ls_close_files();
	execute_generation = generation;
}

/*
 * Rule 6: startup has made the block exist before it dispatched the record. A size
 * that was remembered earlier would have redo extend the file.
 */
static void
execute_refresh_size(SMgrRelation smgr, ForkNumber fork, BlockNumber block)
{
	if (LS_BREAKS(SIZE))
		return;
	if (smgr->smgr_cached_nblocks[fork] != InvalidBlockNumber &&
		smgr->smgr_cached_nblocks[fork] <= block)
		smgr->smgr_cached_nblocks[fork] = InvalidBlockNumber;
}

/*
 * In place of rule 11: redo in a helper must not come across a page that is missing
 * or all zeros, since only the startup process's list of these counts. Nobody else
 * changes the block meanwhile (rule 1), so what is seen here stays so.
 */
static bool
execute_is_initialized(const DecodedBkpBlock *block)
{
	Buffer		buffer;
	bool		is_new;

	if (ls_hints_know_page(block) || LS_BREAKS(NEW_PAGE))
		return true;
	buffer = ls_read_block(block, RBM_NORMAL_NO_LOG);
	if (!BufferIsValid(buffer))
		return false;
	is_new = PageIsNew(BufferGetPage(buffer));
	if (!is_new)
		ls_hints_remember(block, buffer);
	ReleaseBuffer(buffer);
	return !is_new;
}

static void
execute_leave(void)
{
	error_context_stack = execute_record_context.previous;
	execute_reader->record = NULL;
}

static void
execute_check_consistency(void)
{
	if ((execute_reader->record->header.xl_info & XLR_CHECK_CONSISTENCY) == 0 || LS_BREAKS(PAGE_CHECK))
		return;
	for (int id = 0; id <= execute_reader->record->max_block_id; id++)
		execute_check_block(id);
}

/*
 * Rule 13: under wal_consistency_checking the page is compared by whoever executed
 * the record, at once. The startup process would come too late: it leaves out pages
 * that a later record has changed.
 */
static void
execute_check_block(int id)
{
	DecodedBkpBlock *block = &execute_reader->record->blocks[id];
	void		(*mask) (char *page, BlockNumber blkno) =
		ls_rmgr(execute_reader->record->header.xl_rmid)->rm_mask;
	Buffer		buffer;

	if (!block->in_use || !block->has_image || block->apply_image)
		return;
	buffer = ls_read_block(block, RBM_NORMAL_NO_LOG);
	if (!BufferIsValid(buffer))
		return;
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	memcpy(execute_replayed, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
	/* as stock: the block was at a later state on disk */
	if (PageGetLSN((Page) execute_replayed) > execute_reader->EndRecPtr)
		return;
	if (!RestoreBlockImage(execute_reader, id, execute_image))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg_internal("%s", execute_reader->errormsg_buf)));
	if (mask != NULL)
	{
		mask(execute_replayed, block->blkno);
		mask(execute_image, block->blkno);
	}
	if (memcmp(execute_replayed, execute_image, BLCKSZ) != 0)
		elog(FATAL, "inconsistent page found, relation %u, forknum %u, blkno %u",
			 LS_BLOCK_RELATION(block), block->forknum, block->blkno);
}
