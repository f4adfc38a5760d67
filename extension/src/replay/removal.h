/*
 * removal.h - pruning of rows that nobody can see may run ahead in hot standby.
 */
#ifndef LOCKSTEP_REMOVAL_H
#define LOCKSTEP_REMOVAL_H

#include "access/xlogreader.h"

extern void ls_forget_horizon(void);
extern bool ls_nobody_sees(const DecodedXLogRecord *record);
extern bool ls_lock_for_removal(const DecodedXLogRecord *record);
extern bool ls_remove(XLogReaderState *reader);

#endif							/* LOCKSTEP_REMOVAL_H */
