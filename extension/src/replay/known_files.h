/*
 * known_files.h - PostgreSQL's handles of the files that records of late were about.
 */
#ifndef LOCKSTEP_KNOWN_FILES_H
#define LOCKSTEP_KNOWN_FILES_H

#include "access/xlogreader.h"
#include "storage/smgr.h"

extern SMgrRelation ls_known_files(const DecodedBkpBlock *block);
extern BlockNumber ls_size_of_fork(SMgrRelation files, ForkNumber fork);
extern void ls_forget_known_files(void);
extern void ls_close_files(void);

#endif							/* LOCKSTEP_KNOWN_FILES_H */
