/*
 * rmgr_table.c - the one place that changes PostgreSQL's table of resource
 * managers.
 *
 * RmgrTable is writable and belongs to each process. The postmaster changes
 * it while the library is loaded, and the startup process inherits the change
 * by fork. What is entered here runs in the startup process, so it must keep
 * the rule in ARCHITECTURE.md, first invariant.
 *
 * Entered today: the callback rm_startup of resource manager Standby, which
 * PostgreSQL leaves empty. The startup process calls it once in each recovery
 * that replays anything, before the first record. No redo function is wrapped:
 * every record's redo is PostgreSQL's own.
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xlog_internal.h"

#include "replay/rmgr_table.h"
#include "replay/startup_process.h"

/* In the postmaster, as the library is loaded. */
void
ls_install_rmgr_callbacks(void)
{
	if (RmgrTable[RM_STANDBY_ID].rm_startup != NULL)
		elog(ERROR, "resource manager Standby has a startup callback already");
	RmgrTable[RM_STANDBY_ID].rm_startup = ls_startup_announce;
}
