/*
 * rmgr_table.h - what of ours PostgreSQL's table of resource managers calls.
 */
#ifndef LOCKSTEP_RMGR_TABLE_H
#define LOCKSTEP_RMGR_TABLE_H

extern void ls_install_rmgr_callbacks(void);

#endif							/* LOCKSTEP_RMGR_TABLE_H */
