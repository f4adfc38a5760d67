/*
 * compat.h - the one place that knows which PostgreSQL it is compiled for.
 *
 * Everything else is written against the names defined here. Each shim says
 * which commit of PostgreSQL made it necessary (subject line and version).
 */
#ifndef LOCKSTEP_COMPAT_H
#define LOCKSTEP_COMPAT_H

#include "access/heapam.h"
#include "access/heapam_xlog.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "fmgr.h"
#include "funcapi.h"
#include "postmaster/bgworker.h"
#include "postmaster/bgworker_internals.h"
#include "postmaster/startup.h"
#include "replication/slot.h"
#include "storage/buf_internals.h"
#include "storage/freespace.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "storage/smgr.h"
#include "utils/rel.h"
#if PG_VERSION_NUM >= 160000
#include "utils/relfilenumbermap.h"
#else
#include "utils/relfilenodemap.h"
#endif
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 200000
#error "lockstep supports PostgreSQL 15 to 19"
#endif

/*
 * 18, commit 9324c8c580 "Introduce PG_MODULE_MAGIC_EXT macro": pg_get_loaded_modules() shows a library's
 * name and version.
 */
#if PG_VERSION_NUM >= 180000
#define LS_MODULE_MAGIC PG_MODULE_MAGIC_EXT(.name = "lockstep", .version = LS_VERSION)
#else
#define LS_MODULE_MAGIC PG_MODULE_MAGIC
#endif

/*
 * 17, commits 28f3915b73 "Remove superfluous 'pgprocno' field from PGPROC" and
 * 024c521117 "Replace BackendIds with 0-based ProcNumbers": a process's index
 * in ProcGlobal->allProcs moved out of PGPROC.
 */
#if PG_VERSION_NUM >= 170000
#define LS_MY_PROCNO ((int) MyProcNumber)
#else
#define LS_MY_PROCNO (MyProc->pgprocno)
#endif

/*
 * 17, commits c9af054653 "Support custom wait events for wait event type
 * Extension" and af720b4c50 "Change custom wait events to use dynamic shared
 * hash tables". Before them an extension can only show the nameless event
 * "Extension"; a named LWLock tranche is the one thing of ours that
 * pg_stat_activity will print by name, so older servers show our waits as
 * wait_event_type LWLock with the same wait_event name.
 *
 * Call only once shared memory is attached.
 */
static inline uint32
ls_named_wait_event(const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_LWLOCK | (uint32) GetNamedLWLockTranche(name)[0].lock.tranche;
#endif
}

/* LWLocks that must be reserved under each wait event's name. */
#if PG_VERSION_NUM >= 170000
#define LS_WAIT_EVENT_LWLOCKS 0
#else
#define LS_WAIT_EVENT_LWLOCKS 1
#endif

/*
 * 17, commit fa88928470 "Generate automatically code and documentation
 * related to wait events": the class of buffer pins changed its spelling.
 * 19, commits 6c5c393b740 "Rename BUFFERPIN wait event class to BUFFER" and
 * fcb9c977aa5 "bufmgr: Implement buffer content locks independently of
 * lwlocks": the class also has waits for the lock of a buffer's content, so the
 * event counts. True for an event that waits until no other process pins a
 * buffer.
 */
static inline bool
ls_waits_for_buffer_pin(uint32 event)
{
#if PG_VERSION_NUM >= 190000
	return event == WAIT_EVENT_BUFFER_CLEANUP;
#elif PG_VERSION_NUM >= 170000
	return (event & 0xFF000000U) == PG_WAIT_BUFFERPIN;
#else
	return (event & 0xFF000000U) == PG_WAIT_BUFFER_PIN;
#endif
}

/*
 * 18, commit 3eea7a0c97 "Simplify executor's determination of whether to use
 * parallelism": ExecutorRun lost its execute_once argument.
 */
#if PG_VERSION_NUM >= 180000
#define LS_EXECUTOR_RUN_PARAMS \
	QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define LS_EXECUTOR_RUN_ARGS queryDesc, direction, count
#else
#define LS_EXECUTOR_RUN_PARAMS \
	QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool execute_once
#define LS_EXECUTOR_RUN_ARGS queryDesc, direction, count, execute_once
#endif

/*
 * 16, commit 5764f611e1 "Use dlist/dclist instead of PROC_QUEUE / SHM_QUEUE
 * for heavyweight locks": a process's locks are a dlist. The next of this
 * process's locks in a partition after prev (NULL: the first), NULL at the
 * end. The caller holds the partition's lock.
 */
static inline PROCLOCK *
ls_next_proclock(int partition, PROCLOCK *prev)
{
#if PG_VERSION_NUM >= 160000
	dlist_head *locks = &MyProc->myProcLocks[partition];

	if (prev == NULL)
		return dlist_is_empty(locks) ? NULL :
			dlist_head_element(PROCLOCK, procLink, locks);
	return dlist_has_next(locks, &prev->procLink) ?
		dlist_container(PROCLOCK, procLink,
						dlist_next_node(locks, &prev->procLink)) : NULL;
#else
	SHM_QUEUE  *locks = &MyProc->myProcLocks[partition];

	return (PROCLOCK *) SHMQueueNext(locks, prev ? &prev->procLink : locks,
									 offsetof(PROCLOCK, procLink));
#endif
}

/* 16, the commit above: has this process no lock in a partition? */
static inline bool
ls_partition_is_empty(int partition)
{
#if PG_VERSION_NUM >= 160000
	return dlist_is_empty(&MyProc->myProcLocks[partition]);
#else
	return SHMQueueEmpty(&MyProc->myProcLocks[partition]);
#endif
}

/*
 * 18, commit c4d5cb71d2 "Increase the number of fast-path lock slots": the
 * bits became an array. True if this process holds a fast-path lock.
 */
static inline bool
ls_holds_fast_path_locks(void)
{
	bool		held = false;

	LWLockAcquire(&MyProc->fpInfoLock, LW_SHARED);
#if PG_VERSION_NUM >= 180000
	for (int group = 0; group < FastPathLockGroupsPerBackend; group++)
		held = held || MyProc->fpLockBits[group] != 0;
#else
	held = MyProc->fpLockBits != 0;
#endif
	LWLockRelease(&MyProc->fpInfoLock);
	return held;
}

/*
 * 18 logs failures to get a lock, if asked to: LockAcquireExtended() got one more
 * argument. Takes a lock for the transaction
 * if it is free; if not, or if there is no memory for it, LOCKACQUIRE_NOT_AVAIL.
 */
static inline LockAcquireResult
ls_lock_if_free(const LOCKTAG *tag, LOCKMODE mode)
{
	LOCALLOCK  *locallock;
#if PG_VERSION_NUM >= 180000
	return LockAcquireExtended(tag, mode, false, true, false, &locallock, false);
#else
	return LockAcquireExtended(tag, mode, false, true, false, &locallock);
#endif
}

/*
 * 17, commit bf279ddd1c "Introduce a new GUC 'standby_slot_names'" (renamed in
 * 17 to synchronized_standby_slots): the walsender of a failover slot waits
 * for standbys even where WAL is flushed already, so nothing may be held.
 */
static inline bool
ls_may_hold_commits(void)
{
#if PG_VERSION_NUM >= 170000
	return MyReplicationSlot == NULL || !MyReplicationSlot->data.failover;
#else
	return true;
#endif
}

/*
 * 17, commit 024c521117 "Replace BackendIds with 0-based ProcNumbers": the index in
 * ProcGlobal->allProcs of the process that has a virtual transaction, -1 if none.
 */
static inline int
ls_procno_of(VirtualTransactionId vxid)
{
#if PG_VERSION_NUM >= 170000
	return (int) vxid.procNumber;
#else
	PGPROC	   *proc = BackendIdGetProc(vxid.backendId);

	return proc == NULL ? -1 : proc->pgprocno;
#endif
}

/* The slot (index in the PGPROC array) of this parallel worker's leader; 17 removed PGPROC.pgprocno. */
static inline int
ls_my_leader_procno(void)
{
#if PG_VERSION_NUM >= 170000
	return GetNumberFromPGProc(MyProc->lockGroupLeader);
#else
	return MyProc->lockGroupLeader->pgprocno;
#endif
}

/*
 * Has the startup process asked this process to end its query or transaction? 19 notes
 * each reason, in a mask.
 */
static inline bool
ls_is_in_conflict(PGPROC *proc)
{
#if PG_VERSION_NUM >= 190000
	return pg_atomic_read_u32(&proc->pendingRecoveryConflicts) != 0;
#else
	return *(volatile bool *) &proc->recoveryConflictPending;
#endif
}

/*
 * 18 has a doubly-linked list of workers. Postmaster only: how many workers of this name has it taken
 * up, or of any name if it is NULL? RegisterBackgroundWorker() does not say.
 */
static inline int
ls_registered_workers(const char *name)
{
	int			count = 0;
#if PG_VERSION_NUM >= 180000
	dlist_iter	at;

	dlist_foreach(at, &BackgroundWorkerList)
	{
		RegisteredBgWorker *worker = dlist_container(RegisteredBgWorker, rw_lnode, at.cur);
#else
	slist_iter	at;

	slist_foreach(at, &BackgroundWorkerList)
	{
		RegisteredBgWorker *worker = slist_container(RegisteredBgWorker, rw_lnode, at.cur);
#endif

		if (name == NULL || strcmp(worker->rw_worker.bgw_name, name) == 0)
			count++;
	}
	return count;
}

/*
 * 19, commit 2633dae2e4 "Standardize LSN formatting by zero padding": of the lower half of
 * an LSN in a timeline's history file eight characters are read at most.
 */
#if PG_VERSION_NUM >= 190000
#define LS_HISTORY_LINE "%u\t%X/%08X"
#else
#define LS_HISTORY_LINE "%u\t%X/%X"
#endif

/*
 * 16, commits b0a55e4329 "Change internal RelFileNode references to RelFileNumber or
 * RelFileLocator" and 82ac34db0f "Include RelFileLocator fields individually in
 * BufferTag": names of a block.
 */
#if PG_VERSION_NUM >= 160000
#define LS_BLOCK_RELATION(block) ((block)->rlocator.relNumber)

static inline void
ls_block_tag(const DecodedBkpBlock *block, BufferTag *tag)
{
	InitBufferTag(tag, &block->rlocator, block->forknum, block->blkno);
}

static inline bool
ls_tags_equal(const BufferTag *a, const BufferTag *b)
{
	return BufferTagsEqual(a, b);
}
#else
#define LS_BLOCK_RELATION(block) ((block)->rnode.relNode)

static inline void
ls_block_tag(const DecodedBkpBlock *block, BufferTag *tag)
{
	INIT_BUFFERTAG(*tag, block->rnode, block->forknum, block->blkno);
}

static inline bool
ls_tags_equal(const BufferTag *a, const BufferTag *b)
{
	return BUFFERTAGS_EQUAL(*a, *b);
}
#endif

/*
 * 17, commit f83d709760 "Merge prune, freeze and vacuum WAL record formats": three
 * records in place of one for pruning. Asked of operations of resource manager Heap2.
 */
static inline bool
ls_is_prune(uint8 operation)
{
#if PG_VERSION_NUM >= 170000
	return operation == XLOG_HEAP2_PRUNE_ON_ACCESS ||
		operation == XLOG_HEAP2_PRUNE_VACUUM_SCAN ||
		operation == XLOG_HEAP2_PRUNE_VACUUM_CLEANUP;
#else
	return operation == XLOG_HEAP2_PRUNE;
#endif
}

/* 17, the commit above: does the operation remove, freeze or reuse heap tuples? */
static inline bool
ls_is_heap_cleanup(uint8 operation)
{
#if PG_VERSION_NUM >= 170000
	return ls_is_prune(operation);
#else
	return operation == XLOG_HEAP2_PRUNE || operation == XLOG_HEAP2_VACUUM ||
		operation == XLOG_HEAP2_FREEZE_PAGE;
#endif
}

/*
 * 17, that commit: does the record, of resource manager Heap2, prune a page and nothing else?
 * 19 may set the visibility map in the same record.
 */
static inline bool
ls_only_prunes(const DecodedXLogRecord *record)
{
	uint8		operation = record->header.xl_info & XLOG_HEAP_OPMASK;

#if PG_VERSION_NUM >= 190000
	return false;
#elif PG_VERSION_NUM >= 170000
	uint8		flags = ((const xl_heap_prune *) record->main_data)->flags;

	return ls_is_prune(operation) && (flags & XLHP_CLEANUP_LOCK) != 0 &&
		(flags & XLHP_HAS_FREEZE_PLANS) == 0 &&
		(flags & (XLHP_HAS_REDIRECTIONS | XLHP_HAS_DEAD_ITEMS | XLHP_HAS_NOW_UNUSED_ITEMS)) != 0;
#else
	return ls_is_prune(operation);
#endif
}

/*
 * 16, commit 1489b1ce72 "Standardize rmgrdesc recovery conflict XID output", and the commit
 * above: the newest transaction whose rows such a record removes.
 */
static inline TransactionId
ls_prune_horizon(const DecodedXLogRecord *record)
{
#if PG_VERSION_NUM >= 170000
	TransactionId horizon;

	if ((((const xl_heap_prune *) record->main_data)->flags & XLHP_HAS_CONFLICT_HORIZON) == 0)
		return InvalidTransactionId;
	memcpy(&horizon, record->main_data + SizeOfHeapPrune, sizeof(TransactionId));
	return horizon;
#elif PG_VERSION_NUM >= 160000
	return ((const xl_heap_prune *) record->main_data)->snapshotConflictHorizon;
#else
	return ((const xl_heap_prune *) record->main_data)->latestRemovedXid;
#endif
}

/* Prunes the page, which has been locked for cleanup, as redo of such a record does. */
static inline void
ls_prune_page(Buffer buffer, XLogReaderState *reader)
{
	Size		size;
	char	   *data = XLogRecGetBlockData(reader, 0, &size);
	OffsetNumber *redirected;
	OffsetNumber *dead;
	OffsetNumber *unused;
	int			nredirected;
	int			ndead;
	int			nunused;

#if PG_VERSION_NUM >= 190000
	elog(PANIC, "a replay helper prunes no page of PostgreSQL 19");
#elif PG_VERSION_NUM >= 170000
	int			nplans;
	xlhp_freeze_plan *plans;
	OffsetNumber *frozen;

	heap_xlog_deserialize_prune_and_freeze(data, ((xl_heap_prune *) XLogRecGetData(reader))->flags,
										   &nplans, &plans, &frozen,
										   &nredirected, &redirected, &ndead, &dead,
										   &nunused, &unused);
	heap_page_prune_execute(buffer, false, redirected, nredirected, dead, ndead, unused, nunused);
#else
	const xl_heap_prune *prune = (const xl_heap_prune *) XLogRecGetData(reader);

	redirected = (OffsetNumber *) data;
	nredirected = prune->nredirected;
	dead = redirected + 2 * nredirected;
	ndead = prune->ndead;
	unused = dead + ndead;
	nunused = (OffsetNumber *) (data + size) - unused;
	heap_page_prune_execute(buffer, redirected, nredirected, dead, ndead, unused, nunused);
#endif
}

/*
 * 16, the commits above, and 17, commit 024c521117 "Replace BackendIds with 0-based
 * ProcNumbers": a block's relation, opened.
 */
static inline SMgrRelation
ls_smgr_of(const DecodedBkpBlock *block)
{
#if PG_VERSION_NUM >= 170000
	return smgropen(block->rlocator, INVALID_PROC_NUMBER);
#elif PG_VERSION_NUM >= 160000
	return smgropen(block->rlocator, InvalidBackendId);
#else
	return smgropen(block->rnode, InvalidBackendId);
#endif
}

/*
 * 17 keeps relations that smgrcloseall() closes. Closes all files of this process and frees PostgreSQL's
 * handles of them, which nobody may use any more.
 */
static inline void
ls_free_handles(void)
{
#if PG_VERSION_NUM >= 170000
	smgrdestroyall();
#else
	smgrcloseall();
#endif
}

/* 16, the commits above: a block as redo reads it, but without the hint of its buffer. */
static inline Buffer
ls_read_block(const DecodedBkpBlock *block, ReadBufferMode mode)
{
#if PG_VERSION_NUM >= 160000
	return XLogReadBufferExtended(block->rlocator, block->forknum, block->blkno, mode,
								  InvalidBuffer);
#else
	return XLogReadBufferExtended(block->rnode, block->forknum, block->blkno, mode,
								  InvalidBuffer);
#endif
}

/* 16, the commits above: the free space of a block, into the free space map. */
static inline void
ls_record_free_space(const DecodedBkpBlock *block, Size space)
{
#if PG_VERSION_NUM >= 160000
	XLogRecordPageWithFreeSpace(block->rlocator, block->blkno, space);
#else
	XLogRecordPageWithFreeSpace(block->rnode, block->blkno, space);
#endif
}

/* 19 has 64 bits of state. The state of a buffer, read without its header's lock. */
static inline uint64
ls_buffer_state(BufferDesc *buffer)
{
#if PG_VERSION_NUM >= 190000
	return pg_atomic_read_u64(&buffer->state);
#else
	return pg_atomic_read_u32(&buffer->state);
#endif
}

/* Has the buffer been read completely? */
static inline bool
ls_buffer_is_valid(BufferDesc *buffer)
{
	return (ls_buffer_state(buffer) & BM_VALID) != 0;
}

/*
 * 16, the commits above: parts of a buffer's tag, the file of a relation, and the relation of this database
 * (or a shared one) that has a file, InvalidOid if none.
 */
#if PG_VERSION_NUM >= 160000
#define LS_TAG_DATABASE(tag) ((tag)->dbOid)
#define LS_TAG_TABLESPACE(tag) ((tag)->spcOid)
#define LS_TAG_RELATION(tag) ((tag)->relNumber)
#define LS_FILE_OF(relation) ((relation)->rd_locator.relNumber)

static inline Oid
ls_relation_of_file(Oid tablespace, Oid filenode)
{
	return RelidByRelfilenumber(tablespace, filenode);
}
#else
#define LS_TAG_DATABASE(tag) ((tag)->rnode.dbNode)
#define LS_TAG_TABLESPACE(tag) ((tag)->rnode.spcNode)
#define LS_TAG_RELATION(tag) ((tag)->rnode.relNode)
#define LS_FILE_OF(relation) ((relation)->rd_node.relNode)

static inline Oid
ls_relation_of_file(Oid tablespace, Oid filenode)
{
	return RelidByRelfilenode(tablespace, filenode);
}
#endif

/* 18: the startup process's check for interrupts has another name. */
static inline void
ls_check_startup_interrupts(void)
{
#if PG_VERSION_NUM >= 180000
	ProcessStartupProcInterrupts();
#else
	HandleStartupProcInterrupts();
#endif
}

/* 16: the function that begins a set of rows has another name, which early releases of 15 have not. */
static inline void
ls_init_materialized(FunctionCallInfo fcinfo)
{
#if PG_VERSION_NUM >= 160000
	InitMaterializedSRF(fcinfo, 0);
#else
	SetSingleFuncCall(fcinfo, 0);
#endif
}

#endif							/* LOCKSTEP_COMPAT_H */
