/*
 * rmgr_table.h - what of ours PostgreSQL's table of resource managers calls.
 */
#ifndef LOCKSTEP_RMGR_TABLE_H
#define LOCKSTEP_RMGR_TABLE_H

#include "access/rmgr.h"
#include "access/xlog_internal.h"
#include "access/xlogreader.h"

extern void ls_install_rmgr_callbacks(void);
extern void ls_stock_redo(XLogReaderState *record);
extern const RmgrData *ls_rmgr(RmgrId id);
extern const char *ls_rmgr_table_difference(void);

#endif							/* LOCKSTEP_RMGR_TABLE_H */
