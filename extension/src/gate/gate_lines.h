/*
 * gate_lines.h - the lines of sessions that wait at the gate.
 */
#ifndef LOCKSTEP_GATE_LINES_H
#define LOCKSTEP_GATE_LINES_H

#include "gate/line_rule.h"
#include "state/session.h"

extern void ls_init_lines(char *queues);
extern bool ls_join_line(LsSession *s, LsLine line);
extern bool ls_leave_line(LsSession *s);
extern int	ls_grant_next(void);
extern int	ls_grant_next_express(void);
extern bool ls_user_is_inside(int procno);
extern bool ls_lines_are_empty(void);
extern bool ls_express_line_is_empty(void);

#endif							/* LOCKSTEP_GATE_LINES_H */
