/*
 * priority.c - which sessions run at low priority, and making it so.
 *
 * A session says once whether it may be demoted (ls_priority_note), weight.c
 * whether demoting it is worth it. The controller compares the priority that
 * each session should have with the one it has and changes those that differ,
 * so promotion, a reload and the kill switch need no help from sessions, idle
 * ones included. Only the controller changes priorities. No query ever fails
 * because the kernel refuses one.
 *
 * The kernel takes one autogroup change in 100 ms from all unprivileged
 * processes of a machine together: 128 new sessions are demoted within 13 s.
 * No query waits for that. In recovery restores and demotions take turns, or
 * sessions that keep changing would prevent the demotion of others. Before both come
 * the sessions that replay waits for; each of them was demoted once, so they cannot
 * take all changes.
 */
#include "postgres.h"

#include <errno.h>

#include "access/xlog.h"
#include "lib/stringinfo.h"
#include "utils/timestamp.h"

#include "controller.h"
#include "priority/priority.h"
#include "priority/sched_linux.h"
#include "priority/slices.h"
#include "state/session.h"
#include "state/settings.h"
#include "state/shared_state.h"

/* The kernel's own limit, 100 ms (HZ / 10), and 1 ms more. */
#define AUTOGROUP_PACE_US INT64CONST(101000)
/* Number of stuck processes that a message names. */
#define STUCK_NAMED 10

LsPriorityShared *ls_priority = NULL;

/* State of the controller: when the next autogroup change is allowed, and whose turn it is. */
static int64 priority_next_autogroup = 0;
static bool priority_refusal_logged = false;
static int	priority_cursor = 0;
static bool priority_demote_first = false;

/* What priority_change_sessions() is to do. */
typedef enum Change
{
	CLEAR_WAY,					/* restore sessions that replay waits for */
	RESTORE,
	DEMOTE
} Change;

static bool priority_change_sessions(bool low_allowed, Change change, int64 now);
static bool priority_should_be_low(LsSession *s);
static void priority_set_sched(LsSession *s, int pid, LsSchedState from, LsSchedState to);
static bool priority_is_due(LsSession *s, Change change, uint32 sched, bool low);
static bool priority_is_demoted(uint32 sched);
static LsKernelAnswer priority_demote(LsSession *s, int pid, LsPriorityMethod method);
static LsKernelAnswer priority_restore(LsSession *s, int pid, LsSchedState was);

void
ls_priority_init_shared(void)
{
	pg_atomic_init_u32(&ls_priority->method, LS_METHOD_NONE);
	strlcpy(ls_priority->method_detail,
			"the controller has not run since this server started", LS_TEXT_SIZE);
	pg_atomic_init_u64(&ls_priority->demotions, 0);
	pg_atomic_init_u64(&ls_priority->restores, 0);
	pg_atomic_init_u64(&ls_priority->refusals, 0);
	pg_atomic_init_u32(&ls_priority->short_slices, 0);
	strlcpy(ls_priority->slice_detail, ls_priority->method_detail, LS_TEXT_SIZE);
	pg_atomic_init_u64(&ls_priority->reset_at, (uint64) GetCurrentTimestamp());
}

/*
 * Notes whether this process may be demoted. Backend or parallel worker, at each start of a
 * query in recovery, and of a command that may be as long. Needs a transaction.
 */
void
ls_priority_note(void)
{
	LsSession  *s = ls_session_attach();
	uint32		wants;

	if (s == NULL)
		return;
	wants = ls_session_is_exempt() ? 0 : 1;
	if (pg_atomic_read_u32(&s->wants_low) == wants)
		return;
	pg_atomic_write_u32(&s->wants_low, wants);
	ls_nudge_controller();
}

/* Chooses the method. Controller, as it starts and at each reload. */
void
ls_priority_init(void)
{
	char		detail[LS_TEXT_SIZE];
	LsPriorityMethod method;

	method = ls_sched_detect(ls_priority_irreversible, detail);
	pg_atomic_write_u32(&ls_priority->method, method);
	ls_set_text(ls_priority->method_detail, detail);
	ls_slices_init();

	/* the kernel may allow now what it refused before */
	for (int i = 0; i < ls_nsessions; i++)
	{
		uint32		refused = LS_SCHED_REFUSED;

		pg_atomic_compare_exchange_u32(&ls_sessions[i].sched,
									   &refused, LS_SCHED_NORMAL);
	}
}

/* Controller, each round. */
void
ls_priority_step(int64 now, bool in_recovery)
{
	bool		low_allowed = in_recovery && ls_enabled && ls_replay_priority;
	bool		used;

	if (priority_change_sessions(low_allowed, CLEAR_WAY, now))
		return;
	if (!low_allowed)
		priority_demote_first = false;
	used = priority_change_sessions(low_allowed, priority_demote_first ? DEMOTE : RESTORE, now);
	if (!used && low_allowed)
		used = priority_change_sessions(low_allowed, priority_demote_first ? RESTORE : DEMOTE, now);
	if (used)
		priority_demote_first = !priority_demote_first;
}

/* Counts and describes what the kernel refused (errno); logs the first one. */
void
ls_priority_refused(int pid, const char *what)
{
	char		text[LS_TEXT_SIZE];
	int			save_errno = errno;

	snprintf(text, sizeof(text), "%s of process %d: %s", what, pid,
			 strerror(save_errno));
	ls_set_text(ls_priority->last_refusal, text);
	pg_atomic_fetch_add_u64(&ls_priority->refusals, 1);
	if (priority_refusal_logged)
		return;
	priority_refusal_logged = true;
	ereport(LOG,
			(errmsg("lockstep could not change the priority of process %d: %s",
					pid, strerror(save_errno)),
			 errdetail("Queries go on as before. Further refusals are only counted in lockstep_stat_priority.")));
}

/* Number of sessions that are still demoted. */
int
ls_priority_left(void)
{
	int			left = 0;

	for (int i = 0; i < ls_nsessions; i++)
	{
		if (pg_atomic_read_u32(&ls_sessions[i].pid) != 0 &&
			priority_is_demoted(pg_atomic_read_u32(&ls_sessions[i].sched)))
			left++;
	}
	return left;
}

/* After promotion: logs which sessions stay at low priority. */
void
ls_priority_report_stuck(void)
{
	StringInfoData pids;
	int			stuck = 0;

	initStringInfo(&pids);
	for (int i = 0; i < ls_nsessions; i++)
	{
		int			pid = (int) pg_atomic_read_u32(&ls_sessions[i].pid);

		if (pid == 0 ||
			pg_atomic_read_u32(&ls_sessions[i].sched) != LS_SCHED_STUCK)
			continue;
		if (stuck < STUCK_NAMED)
			appendStringInfo(&pids, "%s%d", stuck ? ", " : "", pid);
		stuck++;
	}
	if (stuck > 0)
		ereport(LOG,
				(errmsg("%d sessions stay at low priority after promotion", stuck),
				 errdetail("The kernel refused to restore processes %s%s.",
						   pids.data, stuck > STUCK_NAMED ? ", ..." : ""),
				 errhint("They are back to normal when they reconnect. LimitNICE=+0 in the systemd unit, or lockstep.priority_irreversible=off, avoids this.")));
	pfree(pids.data);
}

/* Counts sessions for view lockstep_stat_priority; any process. */
void
ls_priority_count(int *demoted, int *pending, int *stuck)
{
	bool		low_allowed = RecoveryInProgress() && ls_enabled && ls_replay_priority &&
		pg_atomic_read_u32(&ls_priority->method) != LS_METHOD_NONE;

	*demoted = *pending = *stuck = 0;
	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];
		uint32		sched = pg_atomic_read_u32(&s->sched);

		if (pg_atomic_read_u32(&s->pid) == 0)
			continue;
		if (priority_is_demoted(sched))
			(*demoted)++;
		else if (sched == LS_SCHED_STUCK)
			(*stuck)++;
		else if (sched == LS_SCHED_NORMAL && low_allowed &&
				 priority_should_be_low(s))
			(*pending)++;
	}
}

/*
 * Changes sessions, all of them in one way, starting after the one that was
 * changed last. Stops, and is true, once it has used up the kernel's rate of
 * autogroup changes.
 */
static bool
priority_change_sessions(bool low_allowed, Change change, int64 now)
{
	LsPriorityMethod method = pg_atomic_read_u32(&ls_priority->method);

	low_allowed = low_allowed && method != LS_METHOD_NONE;

	for (int n = 0; n < ls_nsessions; n++)
	{
		int			i = (priority_cursor + n) % ls_nsessions;
		LsSession  *s = &ls_sessions[i];
		int			pid = (int) pg_atomic_read_u32(&s->pid);
		uint32		sched = pg_atomic_read_u32(&s->sched);
		bool		low = low_allowed && priority_should_be_low(s);
		bool		autogroup;
		LsKernelAnswer answer;

		if (pid == 0)
			continue;
		if (low && sched == LS_SCHED_STUCK)
			priority_set_sched(s, pid, LS_SCHED_STUCK, LS_SCHED_IDLE);
		if (!priority_is_due(s, change, sched, low))
			continue;

		autogroup = change == DEMOTE ? method == LS_METHOD_AUTOGROUP : sched == LS_SCHED_AUTOGROUP;
		if (autogroup && now < priority_next_autogroup)
			continue;
		answer = change == DEMOTE ? priority_demote(s, pid, method) : priority_restore(s, pid, sched);
		if (autogroup && (answer == LS_KERNEL_DONE || answer == LS_KERNEL_LATER))
		{
			priority_cursor = i + 1;
			priority_next_autogroup = now + AUTOGROUP_PACE_US;
			return true;
		}
	}
	return false;
}

static bool
priority_should_be_low(LsSession *s)
{
	return pg_atomic_read_u32(&s->wants_low) != 0 &&
		pg_atomic_read_u32(&s->heavy) != 0 &&
		pg_atomic_read_u32(&s->in_the_way) == 0;
}

/* Sets the state unless the process left and its slot was taken again. */
static void
priority_set_sched(LsSession *s, int pid, LsSchedState from, LsSchedState to)
{
	uint32		expected = from;

	if (pg_atomic_read_u32(&s->pid) != (uint32) pid ||
		!pg_atomic_compare_exchange_u32(&s->sched, &expected, to))
		return;
	/* a new process took the slot in between: undo */
	expected = to;
	if (pg_atomic_read_u32(&s->pid) != (uint32) pid)
		pg_atomic_compare_exchange_u32(&s->sched, &expected, from);
}

/* Is the session due for this change? low: it should have low priority. */
static bool
priority_is_due(LsSession *s, Change change, uint32 sched, bool low)
{
	if (change == DEMOTE)
		return low && sched == LS_SCHED_NORMAL;
	return priority_is_demoted(sched) && !low &&
		(change == RESTORE || pg_atomic_read_u32(&s->in_the_way) != 0);
}

static bool
priority_is_demoted(uint32 sched)
{
	return sched == LS_SCHED_AUTOGROUP || sched == LS_SCHED_IDLE;
}

static LsKernelAnswer
priority_demote(LsSession *s, int pid, LsPriorityMethod method)
{
	LsKernelAnswer answer;

	if (method == LS_METHOD_AUTOGROUP)
		answer = ls_sched_autogroup(pid, LS_NICE_LOW, &s->pid);
	else
		answer = ls_sched_policy(pid, true, &s->pid);

	switch (answer)
	{
		case LS_KERNEL_DONE:
			pg_atomic_fetch_add_u64(&ls_priority->demotions, 1);
			priority_set_sched(s, pid, LS_SCHED_NORMAL,
							   method == LS_METHOD_AUTOGROUP ? LS_SCHED_AUTOGROUP : LS_SCHED_IDLE);
			break;
		case LS_KERNEL_REFUSED:
			ls_priority_refused(pid, "lowering");
			priority_set_sched(s, pid, LS_SCHED_NORMAL, LS_SCHED_REFUSED);
			break;
		case LS_KERNEL_LATER:
		case LS_KERNEL_GONE:
			break;
	}
	return answer;
}

static LsKernelAnswer
priority_restore(LsSession *s, int pid, LsSchedState was)
{
	LsKernelAnswer answer;

	if (was == LS_SCHED_AUTOGROUP)
		answer = ls_sched_autogroup(pid, LS_NICE_NORMAL, &s->pid);
	else
		answer = ls_sched_policy(pid, false, &s->pid);

	switch (answer)
	{
		case LS_KERNEL_DONE:
			pg_atomic_fetch_add_u64(&ls_priority->restores, 1);
			priority_set_sched(s, pid, was, LS_SCHED_NORMAL);
			break;
		case LS_KERNEL_REFUSED:
			ls_priority_refused(pid, "restoring");
			priority_set_sched(s, pid, was, LS_SCHED_STUCK);
			break;
		case LS_KERNEL_LATER:
		case LS_KERNEL_GONE:
			break;
	}
	return answer;
}
