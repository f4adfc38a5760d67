/*
 * removal.c - pruning of rows that nobody can see may run ahead in hot standby (rule 3 of
 * README.md).
 *
 * A record that prunes a heap page names its horizon: the newest transaction whose deletions it
 * takes away. Stock waits in its redo for all snapshots that may see one of them. The record may
 * run ahead if there is no such snapshot, and can be none before its turn comes: if the
 * horizon is older than all transactions that a session, a replication slot or the standby's
 * list of running transactions knows as running. That is what PostgreSQL computes for vacuum,
 * as GetOldestNonRemovableTransactionId(). For snapshots it never goes back on a standby: a
 * later one can only know transactions that are not yet replayed completely, or are newer.
 * What an aborted transaction has left is in no horizon. Before its abort is replayed it
 * counts as running, so nobody sees it then either. PostgreSQL computes it without a lock that
 * keeps sessions from handing a snapshot to each other meanwhile, for vacuum as here.
 *
 * Pruning moves tuples, so nobody may hold a pointer into the page: it needs a cleanup lock. A
 * helper never waits for that lock, since only the startup process can end the session that is
 * in its way: it gives the record back. Redo of PostgreSQL would wait; so a helper does here
 * what that does, with the functions that it uses.
 *
 * ls_nobody_sees() runs in the startup process, ls_lock_for_removal() and ls_remove() in
 * helpers. Lock: the page's. PostgreSQL takes ProcArrayLock, shared, to compute the horizon.
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/transam.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/procarray.h"

#include "compat.h"
#include "replay/broken_rule.h"
#include "replay/removal.h"

/* Startup: rows that older transactions deleted nobody sees, now or later. Invalid: not known. */
static TransactionId removal_unseen_before = InvalidTransactionId;

/* A helper: the page that it has locked to prune it. */
static Buffer removal_locked = InvalidBuffer;

/*
 * Called before records are dispatched. A horizon that was computed long ago would hold as well,
 * but could not be compared any more once two thousand million transactions have passed.
 */
void
ls_forget_horizon(void)
{
	removal_unseen_before = InvalidTransactionId;
}

/* Does nobody see, now or later, what a record of LS_CLASS_REMOVAL removes? */
bool
ls_nobody_sees(const DecodedXLogRecord *record)
{
	TransactionId horizon = ls_prune_horizon(record);

	/* it removes only what was never visible to others */
	if (!TransactionIdIsValid(horizon) || LS_BREAKS(SEEN))
		return true;
	if (!TransactionIdIsValid(removal_unseen_before))
		removal_unseen_before = GetOldestNonRemovableTransactionId(NULL);
	return TransactionIdPrecedes(horizon, removal_unseen_before);
}

/* Locks the page of a record that prunes. False: its cleanup lock is not free. Else ls_remove() is next. */
bool
ls_lock_for_removal(const DecodedXLogRecord *record)
{
	Buffer		buffer;

	if (record->header.xl_rmid != RM_HEAP2_ID || !ls_only_prunes(record))
		return true;
	buffer = ls_read_block(&record->blocks[0], RBM_NORMAL_NO_LOG);
	if (!BufferIsValid(buffer))
		return false;
	if (LS_BREAKS(PIN))
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	else if (!ConditionalLockBufferForCleanup(buffer))
	{
		ReleaseBuffer(buffer);
		return false;
	}
	removal_locked = buffer;
	return true;
}

/* Prunes the page that is locked. False: PostgreSQL's own redo shall execute the record. */
bool
ls_remove(XLogReaderState *reader)
{
	Page		page;
	Size		space;

	if (!BufferIsValid(removal_locked))
		return false;
	page = BufferGetPage(removal_locked);
	/* as stock: the block was at a later state on disk */
	if (PageGetLSN(page) < reader->EndRecPtr)
	{
		ls_prune_page(removal_locked, reader);
		PageSetLSN(page, reader->EndRecPtr);
		MarkBufferDirty(removal_locked);
	}
	space = PageGetHeapFreeSpace(page);
	UnlockReleaseBuffer(removal_locked);
	removal_locked = InvalidBuffer;
	ls_record_free_space(&reader->record->blocks[0], space);
	return true;
}
