/*
 * pipeline.h - replay by several processes, with retirement in the order of the WAL.
 */
#ifndef LOCKSTEP_PIPELINE_H
#define LOCKSTEP_PIPELINE_H

#include "access/xlogreader.h"

extern void ls_pipeline_begin(void);
extern bool ls_pipeline_replay(XLogReaderState *reader);
extern void ls_pipeline_end(void);

#endif							/* LOCKSTEP_PIPELINE_H */
