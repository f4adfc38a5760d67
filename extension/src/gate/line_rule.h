/*
 * line_rule.h - which of the gate's two lines the next session comes from.
 */
#ifndef LOCKSTEP_LINE_RULE_H
#define LOCKSTEP_LINE_RULE_H

typedef enum LsLine
{
	LS_LINE_LIGHT = 0,			/* used little of their last turn, or had none */
	LS_LINE_HEAVY
} LsLine;

#define LS_LINES 2
/* Fewest light sessions that go before a heavy one while they wait. */
#define LS_LIGHTS_FIRST 4

extern LsLine ls_line_of(int64 used_us, int64 turn_us);
extern LsLine ls_line_to_serve(uint32 lights, uint32 heavies, uint32 lights_since);

#endif							/* LOCKSTEP_LINE_RULE_H */
