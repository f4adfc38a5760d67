/*
 * self_check.h - is the server what parallel replay was written for?
 */
#ifndef LOCKSTEP_SELF_CHECK_H
#define LOCKSTEP_SELF_CHECK_H

#include "access/xlog_internal.h"
#include "access/xlogreader.h"

extern const char *ls_reader_difference(const XLogReaderState *reader, int segment_size);
extern const char *ls_redo_difference(const RmgrData *table, void (*ours) (XLogReaderState *record),
									  void (*const *stock) (XLogReaderState *record));

#endif							/* LOCKSTEP_SELF_CHECK_H */
