/*
 * priority.c - which sessions run at low priority, and making it so.
 *
 * A session says once whether it may be demoted (ls_priority_note), weight.c
 * whether demoting it is worth it, and demotion_rule.c whether replay needs it. The
 * controller changes sessions one after the other, so promotion, a reload and the kill
 * switch need no help from sessions, idle ones included. Only the controller changes
 * priorities. No query ever fails because the kernel refuses one.
 *
 * Never demoted are sessions that others wait for and that would get no CPU: those in
 * replay's way, those that were cancelled or end, and a parallel worker whose leader is
 * not demoted. A leader is demoted before its workers, and restored after them.
 *
 * The kernel takes one autogroup change in 100 ms from all unprivileged
 * processes of a machine together: 128 sessions are demoted within 13 s.
 * No query waits for that. What the rule asks for has this pace with every method. In recovery
 * restores and demotions take turns, or
 * sessions that keep changing would prevent the demotion of others. Before both come
 * the sessions that others wait for; each of them was demoted once, so they cannot
 * take all changes.
 */
#include "postgres.h"

#include <errno.h>

#include "access/xlog.h"
#include "lib/stringinfo.h"
#include "utils/timestamp.h"

#include "controller.h"
#include "priority/cpu_account.h"
#include "priority/demotion_rule.h"
#include "priority/priority.h"
#include "priority/sched_linux.h"
#include "priority/slices.h"
#include "replay/replay_lag.h"
#include "state/session.h"
#include "state/settings.h"
#include "state/shared_state.h"

/* The kernel's own limit, 100 ms (HZ / 10), and 1 ms more. */
#define PACE_US INT64CONST(101000)
/* Number of stuck processes that a message names. */
#define STUCK_NAMED 10

LsPriorityShared *ls_priority = NULL;

/* State of the controller: when the next paced change is allowed, and whose turn it is. */
static int64 priority_next_paced = 0;
static bool priority_refusal_logged = false;
static int	priority_cursor = 0;
static bool priority_demote_first = false;

/* What priority_change_sessions() is to do. */
typedef enum Change
{
	CLEAR_WAY,					/* restore sessions that others wait for */
	RESTORE,
	DEMOTE
} Change;

static bool priority_change_sessions(bool low_allowed, Change change, int64 now);
static void priority_choose_step(bool low_allowed);
static bool priority_is_due(LsSession *s, Change change, bool low_allowed);
static bool priority_may_be_low(LsSession *s);
static bool priority_is_awaited(LsSession *s);
static LsSession *priority_leader_of(LsSession *s);
static bool priority_has_low_workers(LsSession *s);
static void priority_set_sched(LsSession *s, int pid, LsSchedState from, LsSchedState to);
static void priority_free_left(LsSession *s, int pid);
static LsKernelAnswer priority_demote(LsSession *s, int pid, LsPriorityMethod method);
static LsKernelAnswer priority_restore(LsSession *s, int pid, LsSchedState was);

void
ls_priority_init_shared(void)
{
	pg_atomic_init_u32(&ls_priority->method, LS_METHOD_NONE);
	strlcpy(ls_priority->method_detail,
			"the controller has not run since this server started", LS_TEXT_SIZE);
	pg_atomic_init_u32(&ls_priority->step, LS_DEMOTE_NONE);
	pg_atomic_init_u64(&ls_priority->demotions, 0);
	pg_atomic_init_u64(&ls_priority->restores, 0);
	pg_atomic_init_u64(&ls_priority->refusals, 0);
	pg_atomic_init_u32(&ls_priority->short_slices, 0);
	strlcpy(ls_priority->slice_detail, ls_priority->method_detail, LS_TEXT_SIZE);
	pg_atomic_init_u64(&ls_priority->wait_us, 0);
	pg_atomic_init_u64(&ls_priority->demoted_wait_us, 0);
	pg_atomic_init_u64(&ls_priority->lost_to_replay_us, 0);
	pg_atomic_init_u64(&ls_priority->lost_to_others_us, 0);
	pg_atomic_init_u64(&ls_priority->replay_wait_us, 0);
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
	bool		low_allowed = in_recovery && ls_enabled && ls_replay_priority != LS_PRIORITY_OFF;
	bool		used;

	priority_choose_step(low_allowed);
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
		if (pg_atomic_read_u32(&ls_sessions[i].pid) != 0 && ls_session_is_demoted(&ls_sessions[i]))
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

/* Any process. */
bool
ls_session_is_demoted(LsSession *s)
{
	uint32		sched = pg_atomic_read_u32(&s->sched);

	return sched == LS_SCHED_AUTOGROUP || sched == LS_SCHED_IDLE;
}

/* Counts sessions for view lockstep_stat_priority; any process. */
void
ls_priority_count(int *demoted, int *pending, int *stuck)
{
	bool		demoting = RecoveryInProgress() && ls_enabled && ls_replay_priority != LS_PRIORITY_OFF &&
		pg_atomic_read_u32(&ls_priority->method) != LS_METHOD_NONE &&
		pg_atomic_read_u32(&ls_priority->step) == LS_DEMOTE_ONE_MORE;

	*demoted = *pending = *stuck = 0;
	for (int i = 0; i < ls_nsessions; i++)
	{
		LsSession  *s = &ls_sessions[i];
		uint32		sched = pg_atomic_read_u32(&s->sched);

		if (pg_atomic_read_u32(&s->pid) == 0 || pg_atomic_read_u32(&s->ends_at) == LS_LEFT)
			continue;
		if (ls_session_is_demoted(s))
			(*demoted)++;
		else if (sched == LS_SCHED_STUCK)
			(*stuck)++;
		else if (sched == LS_SCHED_NORMAL && demoting && priority_may_be_low(s))
			(*pending)++;
	}
}

/* What replay needs at this moment. */
static void
priority_choose_step(bool low_allowed)
{
	const LsCpuAccount *account = ls_cpu_account();
	double		period_us = Max(account->period_us, 1);
	LsDemotionInput in = {
		.always = ls_replay_priority == LS_PRIORITY_ALWAYS,
		.short_slices = ls_slices_in_force(),
		.replay_wait = account->replay_wait_us / period_us,
		.readers = account->heavy_cpu_us / period_us,
		.normal_readers = account->normal_cpu_us / period_us,
		.lag_us = (int64) pg_atomic_read_u64(&ls_lag->lag_us),
		.allowed_us = (int64) ls_read_throttle_lag * 1000
	};

	pg_atomic_write_u32(&ls_priority->step, low_allowed ? ls_demotion_step(&in) : LS_DEMOTE_NONE);
}

/*
 * Changes sessions, all of them in one way, starting after the one that was
 * changed last. Stops, and is true, after one change that has to keep the pace.
 */
static bool
priority_change_sessions(bool low_allowed, Change change, int64 now)
{
	LsPriorityMethod method = pg_atomic_read_u32(&ls_priority->method);
	bool		by_rule = low_allowed && change != CLEAR_WAY && ls_replay_priority != LS_PRIORITY_ALWAYS;

	low_allowed = low_allowed && method != LS_METHOD_NONE;

	for (int n = 0; n < ls_nsessions; n++)
	{
		int			i = (priority_cursor + n) % ls_nsessions;
		LsSession  *s = &ls_sessions[i];
		int			pid = (int) pg_atomic_read_u32(&s->pid);
		uint32		sched = pg_atomic_read_u32(&s->sched);
		bool		paced;
		LsKernelAnswer answer;

		if (pid == 0)
			continue;
		if (sched == LS_SCHED_STUCK && priority_is_due(s, DEMOTE, low_allowed))
			priority_set_sched(s, pid, LS_SCHED_STUCK, LS_SCHED_IDLE);
		if (sched == LS_SCHED_STUCK || sched == LS_SCHED_REFUSED || ls_session_is_demoted(s) == (change == DEMOTE))
			continue;
		paced = by_rule ||
			(change == DEMOTE ? method == LS_METHOD_AUTOGROUP : sched == LS_SCHED_AUTOGROUP);
		if ((paced && now < priority_next_paced) || !priority_is_due(s, change, low_allowed))
			continue;
		answer = change == DEMOTE ? priority_demote(s, pid, method) : priority_restore(s, pid, sched);
		if (paced && (answer == LS_KERNEL_DONE || answer == LS_KERNEL_LATER))
		{
			priority_cursor = i + 1;
			priority_next_paced = now + PACE_US;
			return true;
		}
	}
	return false;
}

/* Is this change due for the session, which is demoted, or for DEMOTE is not? */
static bool
priority_is_due(LsSession *s, Change change, bool low_allowed)
{
	LsDemotionStep step = pg_atomic_read_u32(&ls_priority->step);

	switch (change)
	{
		case CLEAR_WAY:
			return priority_is_awaited(s) && !priority_has_low_workers(s);
		case RESTORE:
			return (!low_allowed || step == LS_DEMOTE_NONE || !priority_may_be_low(s)) &&
				!priority_has_low_workers(s);
		case DEMOTE:
			return low_allowed && step == LS_DEMOTE_ONE_MORE && priority_may_be_low(s);
	}
	return false;
}

/* May the session be demoted, if replay needs it? */
static bool
priority_may_be_low(LsSession *s)
{
	LsSession  *leader = priority_leader_of(s);

	return pg_atomic_read_u32(&s->wants_low) != 0 && pg_atomic_read_u32(&s->heavy) != 0 &&
		!priority_is_awaited(s) && (leader == NULL || ls_session_is_demoted(leader));
}

/* Do others wait for the session, or for a worker's leader? */
static bool
priority_is_awaited(LsSession *s)
{
	LsSession  *leader = priority_leader_of(s);
	uint32		ends_at = pg_atomic_read_u32(&s->ends_at);

	return pg_atomic_read_u32(&s->in_the_way) != 0 ||
		ends_at == LS_LEFT || ends_at == pg_atomic_read_u32(&s->statements) ||
		(leader != NULL && priority_is_awaited(leader));
}

/* The leader of a parallel worker; NULL for other sessions. */
static LsSession *
priority_leader_of(LsSession *s)
{
	uint32		leader = pg_atomic_read_u32(&s->leader);

	return leader == 0 ? NULL : &ls_sessions[leader - 1];
}

static bool
priority_has_low_workers(LsSession *s)
{
	for (int i = 0; i < ls_nsessions; i++)
	{
		if (pg_atomic_read_u32(&ls_sessions[i].pid) != 0 &&
			priority_leader_of(&ls_sessions[i]) == s && ls_session_is_demoted(&ls_sessions[i]))
			return true;
	}
	return false;
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

/* The slot of a session that has exited is free once nothing is left to be restored. */
static void
priority_free_left(LsSession *s, int pid)
{
	uint32		expected = (uint32) pid;

	if (pg_atomic_read_u32(&s->ends_at) == LS_LEFT)
		(void) pg_atomic_compare_exchange_u32(&s->pid, &expected, 0);
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
			return answer;
		case LS_KERNEL_GONE:
			break;
	}
	priority_free_left(s, pid);
	return answer;
}
