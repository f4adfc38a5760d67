/*
 * line_rule.h - in which of the gate's lines a session waits, and from which the next one comes.
 */
#ifndef LOCKSTEP_LINE_RULE_H
#define LOCKSTEP_LINE_RULE_H

typedef enum LsLine
{
	LS_LINE_LIGHT = 0,			/* used little of their last turn, or had none */
	LS_LINE_HEAVY,
	LS_LINE_EXPRESS				/* short queries of users who have nothing inside */
} LsLine;

#define LS_LINES 3
/* Fewest light sessions that go before a heavy one while they wait. */
#define LS_LIGHTS_FIRST 4

/* A query that executes for longer is not short. */
#define LS_SHORT_US INT64CONST(5000)

/* What is known of a session that is about to wait. */
typedef struct LsLineInput
{
	int64		used_us;		/* time executed in its last turn */
	int64		turn_us;
	double		cost;			/* of its query, as the planner sees it */
	bool		was_misjudged;	/* its last query that seemed short was not */
	bool		user_is_inside; /* another session of its user executes, or keeps its place */
} LsLineInput;

extern LsLine ls_line_of(const LsLineInput *in);
extern bool ls_express_is_open(uint32 express, uint32 running, uint32 capacity, uint32 limit);
extern LsLine ls_line_to_serve(uint32 lights, uint32 heavies, uint32 lights_since);

#endif							/* LOCKSTEP_LINE_RULE_H */
