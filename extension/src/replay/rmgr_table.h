/*
 * rmgr_table.h - what of ours PostgreSQL's table of resource managers calls.
 */
#ifndef LOCKSTEP_RMGR_TABLE_H
#define LOCKSTEP_RMGR_TABLE_H

#include "access/xlogreader.h"

extern void ls_install_rmgr_callbacks(void);
extern void ls_stock_redo(XLogReaderState *record);

#endif							/* LOCKSTEP_RMGR_TABLE_H */
