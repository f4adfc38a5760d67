/*
 * gate_queue.c - a queue of sessions: first come, first served, without a lock.
 *
 * A lock would be wrong here. The sessions at the gate are the ones that the
 * kernel runs last, so the holder of a lock can be off the CPU for long. All
 * other sessions, with their snapshots, then wait for the lock instead of the
 * gate (seen: 118 of 128).
 *
 * It is a bounded ring for many producers and consumers. Each cell carries a
 * turn number: turn == position means free for the producer of that position,
 * turn == position + 1 means filled for its consumer. A producer claims a
 * position by moving the tail, fills the cell, then publishes it by the turn;
 * a consumer the same with the head. While a process is stopped between claim
 * and publication, others see an empty queue, never a wrong entry.
 *
 * An entry is the number of a session, and a session has at most one entry
 * (LsSession.in_ring), so the ring cannot fill up. A session that gives up
 * waiting leaves its entry behind; the process that takes the entry finds the
 * session not queued and takes the next. If that session queues again in
 * between, its old entry serves, so it gets its place somewhat early.
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "gate/gate_queue.h"

Size
ls_queue_size(int nsessions)
{
	return offsetof(LsQueue, cells) +
		sizeof(LsQueueCell) * pg_nextpower2_32(Max(nsessions, 1) * 2);
}

void
ls_queue_init(LsQueue *q, int nsessions)
{
	uint32		ncells = pg_nextpower2_32(Max(nsessions, 1) * 2);

	q->mask = ncells - 1;
	pg_atomic_init_u32(&q->head, 0);
	pg_atomic_init_u32(&q->tail, 0);
	for (uint32 i = 0; i < ncells; i++)
	{
		pg_atomic_init_u32(&q->cells[i].turn, i);
		q->cells[i].procno = LS_NO_PROCNO;
	}
}

/* False if the ring is full. */
bool
ls_queue_push(LsQueue *q, int procno)
{
	uint32		at = pg_atomic_read_u32(&q->tail);
	LsQueueCell *cell;

	for (;;)
	{
		int32		ahead;

		cell = &q->cells[at & q->mask];
		ahead = (int32) (pg_atomic_read_u32(&cell->turn) - at);
		pg_read_barrier();
		if (ahead < 0)
			return false;
		if (ahead > 0)
			at = pg_atomic_read_u32(&q->tail);
		else if (pg_atomic_compare_exchange_u32(&q->tail, &at, at + 1))
			break;
	}
	cell->procno = procno;
	pg_write_barrier();
	pg_atomic_write_u32(&cell->turn, at + 1);
	return true;
}

/* The longest-waiting entry, or LS_NO_PROCNO. */
int
ls_queue_pop(LsQueue *q)
{
	uint32		at = pg_atomic_read_u32(&q->head);
	LsQueueCell *cell;
	int			procno;

	for (;;)
	{
		int32		ahead;

		cell = &q->cells[at & q->mask];
		ahead = (int32) (pg_atomic_read_u32(&cell->turn) - (at + 1));
		pg_read_barrier();
		if (ahead < 0)
			return LS_NO_PROCNO;
		if (ahead > 0)
			at = pg_atomic_read_u32(&q->head);
		else if (pg_atomic_compare_exchange_u32(&q->head, &at, at + 1))
			break;
	}
	procno = cell->procno;
	pg_memory_barrier();
	pg_atomic_write_u32(&cell->turn, at + q->mask + 1);
	return procno;
}

/* About how many entries there are, those of sessions that gave up included. */
uint32
ls_queue_length(LsQueue *q)
{
	int32		length = (int32) (pg_atomic_read_u32(&q->tail) - pg_atomic_read_u32(&q->head));

	return (uint32) Max(length, 0);
}

/* True if there is no entry to pop at this moment. */
bool
ls_queue_is_empty(LsQueue *q)
{
	uint32		at = pg_atomic_read_u32(&q->head);

	return (int32) (pg_atomic_read_u32(&q->cells[at & q->mask].turn) - (at + 1)) < 0;
}
