/*
 * hot_blocks.c - lockstep_hot_blocks(): which blocks are in shared buffers;
 * lockstep_read_blocks(): reads blocks into them. `lockstep pool add` warms a
 * new node with the blocks of one that serves.
 *
 * Both run in the calling backend, on primaries and standbys, and need no
 * preload and no shared state of ours. They are for members of pg_monitor.
 *
 * The list takes no lock at all. It looks at each buffer's header twice, and
 * leaves out a buffer that changes meanwhile; a wrong entry would cost a read
 * in vain, since whoever reads blocks checks first that they exist.
 *
 * Reading holds a lock on the relation, so that no file is dropped or cut off
 * under a page that is on its way into shared buffers. The lock is taken only
 * if it is free, and a call reads READ_MOST_BLOCKS at most: replay, which may
 * want the lock for itself, waits no longer than that takes. Bounding the rate
 * is for callers, who hold neither lock nor snapshot between two calls. A
 * crash or promotion changes nothing.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/smgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"

/* Most blocks of one lockstep_read_blocks(): 8 MB. */
#define READ_MOST_BLOCKS 1024

/* Buffers between two checks for interrupts. */
#define BUFFERS_PER_CHECK 4096

#define HOT_COLUMNS 6

PG_FUNCTION_INFO_V1(lockstep_hot_blocks);
PG_FUNCTION_INFO_V1(lockstep_read_blocks);

static void hot_require_right(void);
static bool hot_look(int buffer, BufferTag *tag, int *usage);
static bool hot_is_worth_reading(uint64 state);
static int	hot_block_numbers(ArrayType *array, BlockNumber **numbers);
static Relation hot_open(Oid tablespace, Oid filenode);
static int	hot_read(Relation relation, ForkNumber fork, const BlockNumber *numbers, int count);

/* A row for each permanent block that was used of late. */
Datum
lockstep_hot_blocks(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	hot_require_right();
	ls_init_materialized(fcinfo);
	if (result->setDesc->natts != HOT_COLUMNS)
		elog(ERROR, "lockstep_hot_blocks() has %d columns, not %d", result->setDesc->natts, HOT_COLUMNS);
	for (int i = 0; i < NBuffers; i++)
	{
		BufferTag	tag;
		int			usage;
		Datum		values[HOT_COLUMNS];
		bool		nulls[HOT_COLUMNS] = {false};

		if (i % BUFFERS_PER_CHECK == 0)
			CHECK_FOR_INTERRUPTS();
		if (!hot_look(i, &tag, &usage))
			continue;
		values[0] = ObjectIdGetDatum(LS_TAG_DATABASE(&tag));
		values[1] = ObjectIdGetDatum(LS_TAG_TABLESPACE(&tag));
		values[2] = ObjectIdGetDatum(LS_TAG_RELATION(&tag));
		values[3] = Int32GetDatum((int32) tag.forkNum);
		values[4] = Int64GetDatum((int64) tag.blockNum);
		values[5] = Int32GetDatum(usage);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Reads blocks of a relation of this database, or of one that all databases share. Returns how many are in
 * shared buffers now: fewer than were asked for if the file is shorter, none if it is gone or if the relation
 * is locked.
 */
Datum
lockstep_read_blocks(PG_FUNCTION_ARGS)
{
	Oid			tablespace = PG_GETARG_OID(0);
	Oid			filenode = PG_GETARG_OID(1);
	int32		fork = PG_GETARG_INT32(2);
	BlockNumber *numbers;
	int			count;
	int			read = 0;
	Relation	relation;

	hot_require_right();
	if (fork < 0 || fork > MAX_FORKNUM)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fork number %d is out of range: from 0 to %d", fork, MAX_FORKNUM)));
	count = hot_block_numbers(PG_GETARG_ARRAYTYPE_P(3), &numbers);
	relation = hot_open(tablespace, filenode);
	if (relation != NULL)
	{
		read = hot_read(relation, (ForkNumber) fork, numbers, count);
		relation_close(relation, AccessShareLock);
	}
	PG_RETURN_INT32(read);
}

static void
hot_require_right(void)
{
	if (!has_privs_of_role(GetUserId(), ROLE_PG_MONITOR))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be a member of pg_monitor to list or read blocks in shared buffers")));
}

/* Does the buffer have a block that is worth reading? Then which one, and how much it was used of late. */
static bool
hot_look(int buffer, BufferTag *tag, int *usage)
{
	BufferDesc *header = GetBufferDescriptor(buffer);
	uint64		state = ls_buffer_state(header);
	BufferTag	again;

	if (!hot_is_worth_reading(state))
		return false;
	pg_read_barrier();
	*tag = header->tag;
	pg_read_barrier();
	again = header->tag;
	pg_read_barrier();
	*usage = (int) BUF_STATE_GET_USAGECOUNT(state);
	return hot_is_worth_reading(ls_buffer_state(header)) && ls_tags_equal(tag, &again) &&
		tag->forkNum != INIT_FORKNUM;
}

/* A page of a permanent relation, read completely, that was used since the clock hand last came by. */
static bool
hot_is_worth_reading(uint64 state)
{
	uint64		wanted = BM_VALID | BM_TAG_VALID | BM_PERMANENT;

	return (state & wanted) == wanted && (state & BM_LOCKED) == 0 && BUF_STATE_GET_USAGECOUNT(state) > 0;
}

static int
hot_block_numbers(ArrayType *array, BlockNumber **numbers)
{
	Datum	   *values;
	bool	   *nulls;
	int			count;
	int16		length;
	bool		by_value;
	char		align;

	get_typlenbyvalalign(INT8OID, &length, &by_value, &align);
	deconstruct_array(array, INT8OID, length, by_value, align, &values, &nulls, &count);
	if (count > READ_MOST_BLOCKS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%d blocks are more than one call reads: at most %d", count, READ_MOST_BLOCKS)));
	*numbers = palloc(count * sizeof(BlockNumber));
	for (int i = 0; i < count; i++)
	{
		int64		number = nulls[i] ? -1 : DatumGetInt64(values[i]);

		if (number < 0 || number > MaxBlockNumber)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("a block number is null or out of range: from 0 to %u", MaxBlockNumber)));
		(*numbers)[i] = (BlockNumber) number;
	}
	return count;
}

/* The permanent relation that has this file, locked; NULL if there is none or its lock is not free. */
static Relation
hot_open(Oid tablespace, Oid filenode)
{
	/* pg_class has 0 for mapped catalogs, which the look-up does not take */
	Oid			oid = OidIsValid(filenode) ? ls_relation_of_file(tablespace, filenode) : InvalidOid;
	Relation	relation;

	if (!OidIsValid(oid) || !ConditionalLockRelationOid(oid, AccessShareLock))
		return NULL;
	relation = try_relation_open(oid, NoLock);
	if (relation == NULL)
	{
		UnlockRelationOid(oid, AccessShareLock);
		return NULL;
	}
	/* it may have got another file before it was locked */
	if (!RELKIND_HAS_STORAGE(relation->rd_rel->relkind) ||
		relation->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT ||
		LS_FILE_OF(relation) != filenode)
	{
		relation_close(relation, AccessShareLock);
		return NULL;
	}
	return relation;
}

static int
hot_read(Relation relation, ForkNumber fork, const BlockNumber *numbers, int count)
{
	BlockNumber end;
	int			read = 0;

	if (!smgrexists(RelationGetSmgr(relation), fork))
		return 0;
	end = RelationGetNumberOfBlocksInFork(relation, fork);
	/* the kernel reads all of them while the first one is waited for */
	for (int i = 0; i < count; i++)
	{
		if (numbers[i] < end)
			PrefetchBuffer(relation, fork, numbers[i]);
	}
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (numbers[i] >= end)
			continue;
		ReleaseBuffer(ReadBufferExtended(relation, fork, numbers[i], RBM_NORMAL, NULL));
		read++;
	}
	return read;
}
