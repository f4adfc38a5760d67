/*
 * rmgr_table.c - the one place that changes PostgreSQL's table of resource
 * managers.
 *
 * RmgrTable is writable and belongs to each process. The postmaster changes
 * it while the library is loaded, and the startup process inherits the change
 * by fork. What is entered here runs in the startup process, so it must keep
 * the rule in ARCHITECTURE.md, first invariant.
 *
 * Entered are the callback rm_startup of resource manager Standby, which PostgreSQL
 * leaves empty and the startup process calls once in each recovery that replays
 * anything, before the first record; and redo(), which looks ahead and then calls
 * PostgreSQL's own function. Resource managers of other extensions are left alone.
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xlog_internal.h"

#include "replay/look_ahead.h"
#include "replay/rmgr_table.h"
#include "replay/startup_process.h"

static void (*stock_redo[RM_MAX_BUILTIN_ID + 1]) (XLogReaderState *record);

static void
begin_recovery(void)
{
	ls_startup_announce();
	ls_look_ahead_begin();
}

static void
redo(XLogReaderState *record)
{
	ls_look_ahead(record);
	stock_redo[XLogRecGetRmid(record)] (record);
}

/* In the postmaster, as the library is loaded. */
void
ls_install_rmgr_callbacks(void)
{
	if (RmgrTable[RM_STANDBY_ID].rm_startup != NULL)
		elog(ERROR, "resource manager Standby has a startup callback already");
	RmgrTable[RM_STANDBY_ID].rm_startup = begin_recovery;
	for (int id = 0; id <= RM_MAX_BUILTIN_ID; id++)
	{
		stock_redo[id] = RmgrTable[id].rm_redo;
		RmgrTable[id].rm_redo = redo;
	}
}
