/*
 * recovery_point.h - how far records may run ahead, for the minimum recovery point.
 */
#ifndef LOCKSTEP_RECOVERY_POINT_H
#define LOCKSTEP_RECOVERY_POINT_H

#include "access/xlogreader.h"

extern XLogRecPtr ls_limit_before_consistency(void);
extern bool ls_backup_has_ended(void);
extern void ls_raise_point_in_backup(XLogRecPtr end);
extern bool ls_backlog_is_worth(XLogReaderState *reader);
extern bool ls_raise_point(XLogReaderState *reader, DecodedXLogRecord *record);

#endif							/* LOCKSTEP_RECOVERY_POINT_H */
