/*
 * weight.c - which sessions are worth demoting: those with long statements.
 *
 * Purpose: a session that looks up one row and waits for its client gives the
 * CPU back in well under a time slice; 128 of them delay replay by a few
 * milliseconds at most. At low priority, however, such a session is preempted
 * by its own client at every answer (seen: a third fewer look-ups a second).
 * So only sessions with statements of some length are demoted.
 *
 * The controller compares, five times a second (cpu_account.c), the CPU time that a
 * session's process has used with the number of statements it has begun. That costs a
 * session one increment for each statement. Parallel workers are heavy from
 * the start (session.c).
 *
 * Limits: CPU time of the whole process, so planning counts as well.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "priority/weight.h"
#include "state/session.h"

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

/* controller only: a session as it was last judged, by slot */
typedef struct Judged
{
	int			pid;
	int64		cpu_ns;
	uint32		statements;
} Judged;

static Judged *weight_judged = NULL;

/* Controller: the CPU time that a session's process has used so far, and its statements. */
void
ls_weigh_session(int slot, int pid, int64 cpu_ns, uint32 statements)
{
	LsSession  *s = &ls_sessions[slot];
	Judged	   *last;
	int64		used;
	uint32		begun;
	bool		known;
	bool		early;

	if (weight_judged == NULL)
		weight_judged = MemoryContextAllocZero(TopMemoryContext, sizeof(Judged) * ls_nsessions);
	last = &weight_judged[slot];
	used = cpu_ns - last->cpu_ns;
	begun = statements - last->statements;
	known = last->pid == pid;
	early = last->statements < FIRST_JUDGED;

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
