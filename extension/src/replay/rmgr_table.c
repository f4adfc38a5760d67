/*
 * rmgr_table.c - the one place that changes PostgreSQL's table of resource
 * managers.
 *
 * RmgrTable is writable and belongs to each process. The postmaster changes
 * it while the library is loaded, and the startup process inherits the change
 * by fork. What is entered here runs in the startup process, so it must keep
 * the rule of extension/src/README.md, "In the startup process".
 *
 * Entered are the callback rm_startup of resource manager Standby, which PostgreSQL
 * leaves empty and the startup process calls once in each recovery that replays
 * anything, before the first record; its callback rm_cleanup, empty too, which follows
 * the last record; and rmgr_table_redo(), which looks ahead or lets the pipeline replay, in both
 * cases by PostgreSQL's own function. Resource managers of other extensions are left
 * alone.
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xlog_internal.h"

#include "replay/look_ahead.h"
#include "replay/pipeline.h"
#include "replay/rmgr_table.h"
#include "replay/self_check.h"
#include "replay/startup_process.h"

static void (*rmgr_table_stock_redo[RM_MAX_BUILTIN_ID + 1]) (XLogReaderState *record);

static void rmgr_table_begin_recovery(void);
static void rmgr_table_end_recovery(void);
static void rmgr_table_redo(XLogReaderState *record);

/* Enters our callbacks. Postmaster, as the library is loaded. */
void
ls_install_rmgr_callbacks(void)
{
	if (RmgrTable[RM_STANDBY_ID].rm_startup != NULL)
		elog(ERROR, "resource manager Standby has a startup callback already");
	RmgrTable[RM_STANDBY_ID].rm_startup = rmgr_table_begin_recovery;
	if (RmgrTable[RM_STANDBY_ID].rm_cleanup != NULL)
		elog(ERROR, "resource manager Standby has a cleanup callback already");
	RmgrTable[RM_STANDBY_ID].rm_cleanup = rmgr_table_end_recovery;
	for (int id = 0; id <= RM_MAX_BUILTIN_ID; id++)
	{
		rmgr_table_stock_redo[id] = RmgrTable[id].rm_redo;
		RmgrTable[id].rm_redo = rmgr_table_redo;
	}
}

/* PostgreSQL's own function for the record. */
void
ls_stock_redo(XLogReaderState *record)
{
	RmgrId		rmid = XLogRecGetRmid(record);

	if (rmid <= RM_MAX_BUILTIN_ID)
		rmgr_table_stock_redo[rmid] (record);
	else
		RmgrTable[rmid].rm_redo(record);
}

/* A resource manager, for what is only read. */
const RmgrData *
ls_rmgr(RmgrId id)
{
	return &RmgrTable[id];
}

/* What somebody has changed in the table, beside us; NULL: nothing. */
const char *
ls_rmgr_table_difference(void)
{
	return ls_redo_difference(RmgrTable, rmgr_table_redo, rmgr_table_stock_redo);
}

static void
rmgr_table_begin_recovery(void)
{
	ls_startup_announce();
	ls_look_ahead_begin();
	ls_pipeline_begin();
}

static void
rmgr_table_end_recovery(void)
{
	ls_pipeline_end();
}

static void
rmgr_table_redo(XLogReaderState *record)
{
	if (ls_pipeline_replay(record))
		return;
	ls_look_ahead(record);
	ls_stock_redo(record);
}
