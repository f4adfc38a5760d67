/*
 * weight.c - which sessions are worth demoting: those with long statements.
 *
 * Purpose: a session that looks up one row and waits for its client gives the
 * CPU back in well under a time slice; 128 of them delay replay by a few
 * milliseconds at most. At low priority, however, such a session is preempted
 * by its own client at every answer (seen: a third fewer look-ups a second).
 * So only sessions with statements of some length are demoted.
 *
 * The controller compares, five times a second, the CPU time that a session's
 * process has used with the number of statements it has begun. That costs a
 * session one increment for each statement. Parallel workers are heavy from
 * the start (session.c).
 *
 * Limits: CPU time of the whole process, so planning counts as well.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "priority/sched_linux.h"
#include "priority/weight.h"
#include "state/session.h"

#define WEIGH_EVERY_US INT64CONST(200000)
/* CPU time of each statement from which a session becomes heavy. */
#define HEAVY_NS INT64CONST(250000)
/* CPU time of each statement below which a session becomes light again. */
#define LIGHT_NS INT64CONST(125000)
/*
 * CPU time from which a statement that still runs makes its session heavy. More
 * than a session needs for its first look-ups in empty caches.
 */
#define LONG_RUNNING_NS INT64CONST(20000000)
/* A session is judged from its second statement on: the first fills caches. */
#define FIRST_JUDGED 2

/* controller only: what was read last, by slot */
typedef struct Reading
{
	int			pid;
	int64		cpu_ns;
	uint32		statements;
} Reading;

static Reading *weight_readings = NULL;
static int64 weight_taken_at = 0;

static void weight_of_session(LsSession *s, Reading *last);

/* Controller, each round. */
void
ls_weigh_sessions(int64 now)
{
	if (now - weight_taken_at < WEIGH_EVERY_US)
		return;
	weight_taken_at = now;
	if (weight_readings == NULL)
		weight_readings = MemoryContextAllocZero(TopMemoryContext,
												 sizeof(Reading) * ls_nsessions);

	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];

		if (pg_atomic_read_u32(&s->pid) != 0 &&
			pg_atomic_read_u32(&s->wants_low) != 0)
			weight_of_session(s, &weight_readings[i]);
	}
}

static void
weight_of_session(LsSession *s, Reading *last)
{
	int			pid = (int) pg_atomic_read_u32(&s->pid);
	uint32		statements = pg_atomic_read_u32(&s->statements);
	int64		cpu_ns = ls_sched_cpu_ns(pid);
	int64		used = cpu_ns - last->cpu_ns;
	uint32		begun = statements - last->statements;
	bool		known = last->pid == pid;
	bool		early = last->statements < FIRST_JUDGED;

	if (cpu_ns < 0)
		return;
	/* too little to judge by: let it add up */
	if (known && begun == 0 && used < LONG_RUNNING_NS)
		return;
	last->pid = pid;
	last->cpu_ns = cpu_ns;
	last->statements = statements;
	if (!known || (early && begun > 0))
		return;

	if (begun == 0 || used / begun >= HEAVY_NS)
		pg_atomic_write_u32(&s->heavy, 1);
	else if (used / begun < LIGHT_NS)
		pg_atomic_write_u32(&s->heavy, 0);
}
