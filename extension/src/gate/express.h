/*
 * express.h - express places at the gate; express.c says what they are.
 */
#ifndef LOCKSTEP_EXPRESS_H
#define LOCKSTEP_EXPRESS_H

#include "executor/execdesc.h"
#include "gate/line_rule.h"
#include "state/session.h"

extern LsLine ls_line_for(const QueryDesc *queryDesc, int64 used_us);
extern bool ls_express_take(void);
extern void ls_express_begin(void);
extern void ls_express_judge(int64 used_us);
extern void ls_express_count_as_long(LsSession *s, int64 now);

#endif							/* LOCKSTEP_EXPRESS_H */
