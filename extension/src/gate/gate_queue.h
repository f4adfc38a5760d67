/*
 * gate_queue.h - a queue of sessions; gate_queue.c says how it works.
 */
#ifndef LOCKSTEP_GATE_QUEUE_H
#define LOCKSTEP_GATE_QUEUE_H

#include "port/atomics.h"

#define LS_NO_PROCNO (-1)

typedef struct LsQueueCell
{
	pg_atomic_uint32 turn;		/* producers and consumers, in turns */
	int			procno;			/* the process that has the turn */
} LsQueueCell;

typedef struct LsQueue
{
	uint32		mask;			/* number of cells - 1; constant */
	pg_atomic_uint32 head;		/* consumers */
	pg_atomic_uint32 tail;		/* producers */
	LsQueueCell cells[FLEXIBLE_ARRAY_MEMBER];
} LsQueue;

extern Size ls_queue_size(int nsessions);
extern void ls_queue_init(LsQueue *q, int nsessions);
extern bool ls_queue_push(LsQueue *q, int procno);
extern int	ls_queue_pop(LsQueue *q);
extern uint32 ls_queue_length(LsQueue *q);
extern bool ls_queue_is_empty(LsQueue *q);

#endif							/* LOCKSTEP_GATE_QUEUE_H */
