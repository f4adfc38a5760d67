/*
 * flush_buffers.c - lockstep_flush_buffers(): write every changed page out.
 *
 * For comparing a paused standby's files with another's: a CHECKPOINT there
 * does nothing unless a checkpoint was replayed since the last, and then only
 * what it must. This function writes the shared buffers of all databases and of
 * the relations they share, without syncing: programs that read the files on
 * this machine see the pages.
 *
 * Runs in the calling backend, needs no preload and no shared state of ours.
 * Writing a page in recovery moves the minimum recovery point, as evicting it
 * would. Nothing is lost on a crash or promotion. Changes made while it runs
 * may or may not be written: callers pause replay first. For superusers.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_database.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(lockstep_flush_buffers);

static List *flush_buffers_databases(void);

/* Returns the number of databases. */
Datum
lockstep_flush_buffers(PG_FUNCTION_ARGS)
{
	List	   *oids;
	ListCell   *cell;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to write out all buffers")));

	oids = flush_buffers_databases();
	FlushDatabaseBuffers(InvalidOid);	/* what all databases share */
	foreach(cell, oids)
	{
		CHECK_FOR_INTERRUPTS();
		FlushDatabaseBuffers(lfirst_oid(cell));
	}
	PG_RETURN_INT32(list_length(oids));
}

/* OIDs of every database, those that allow no connections included. */
static List *
flush_buffers_databases(void)
{
	List	   *oids = NIL;
	Relation	databases = table_open(DatabaseRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(databases, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		oids = lappend_oid(oids, ((Form_pg_database) GETSTRUCT(tuple))->oid);
	systable_endscan(scan);
	table_close(databases, AccessShareLock);
	return oids;
}
