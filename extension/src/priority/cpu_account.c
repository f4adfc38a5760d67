/*
 * cpu_account.c - what sessions and replay have had of the CPU.
 *
 * Purpose: five times a second the controller reads how much CPU each process has used,
 * and for how long it was ready to run and had no core. From that follow which
 * sessions are heavy (weight.c), whether replay gets what it wants (demotion_rule.c),
 * whether other programs take the cores from readers (limit_rule.c), and
 * what lockstep_stat_priority says about both.
 *
 * A session that waits for its client, and has begun nothing since it was last read, is
 * not read again.
 *
 * Runs in the controller. Shared state: counters of LsPriorityShared, and
 * LsSession.ends_at. Crash and promotion: nothing is kept.
 *
 * Limits: the kernel tells how long a process waited, not for whom. The time is divided
 * among those who had the cores meanwhile, in proportion. What a process used
 * after its last reading is lost: parallel workers that live for less than a period count
 * as programs of others.
 */
#include "postgres.h"

#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "priority/cpu_account.h"
#include "priority/priority.h"
#include "priority/sched_linux.h"
#include "priority/weight.h"
#include "replay/replay_processes.h"
#include "state/session.h"

/* Time between two accounts, and between two looks at the number of cores. */
#define ACCOUNT_EVERY_US INT64CONST(200000)
#define CORES_EVERY_US INT64CONST(5000000)
/* Time without a core in one period from which a demoted session may be unable to end. */
#define STARVED_US INT64CONST(50000)

/* What a process had at its last reading. */
typedef struct Reading
{
	int			pid;			/* 0: it was not read yet */
	LsSchedTimes times;
	uint32		statements;		/* sessions */
} Reading;

static Reading *cpu_account_sessions = NULL;
static Reading cpu_account_replay[LS_REPLAY_PROCESSES];
static int64 cpu_account_taken_at = 0;
static int64 cpu_account_cores_at = 0;
static int64 cpu_account_idle_us = -1;	/* of all time, at the last reading */
static LsCpuAccount cpu_account_last = {.cores = 1,.replay_wait_us = -1};

static void cpu_account_add_session(LsCpuAccount *account, int slot, int64 *demoted_wait_us);
static bool cpu_account_at_rest(int slot, const Reading *last);
static void cpu_account_look_for_end(LsSession *s, int pid);
static void cpu_account_add_replay(LsCpuAccount *account);
static void cpu_account_add_idle(LsCpuAccount *account);
static bool cpu_account_read(Reading *reading, int pid, int64 *cpu_us, int64 *wait_us);
static void cpu_account_publish(const LsCpuAccount *account, int64 demoted_wait_us);

/* Controller, each round. True if there is a new account. */
bool
ls_account_step(int64 now)
{
	LsCpuAccount account = {.cores = cpu_account_last.cores,.replay_wait_us = -1};
	int64		demoted_wait_us = 0;

	if (now - cpu_account_taken_at < ACCOUNT_EVERY_US)
		return false;
	if (now - cpu_account_cores_at >= CORES_EVERY_US)
	{
		account.cores = ls_sched_cores();
		cpu_account_cores_at = now;
	}
	/* the first one has nothing to compare with */
	if (cpu_account_sessions == NULL)
		cpu_account_sessions = MemoryContextAllocZero(TopMemoryContext, sizeof(Reading) * ls_nsessions);
	else
		account.period_us = now - cpu_account_taken_at;
	cpu_account_taken_at = now;

	for (int i = 0; i < ls_nsessions; i++)
		cpu_account_add_session(&account, i, &demoted_wait_us);
	cpu_account_add_replay(&account);
	cpu_account_add_idle(&account);
	cpu_account_last = account;
	cpu_account_publish(&account, demoted_wait_us);
	return true;
}

/* Controller: the last account. */
const LsCpuAccount *
ls_cpu_account(void)
{
	return &cpu_account_last;
}

/* Cores that other programs had, in the last period. Those that nobody had are nobody's loss. */
double
ls_account_others(const LsCpuAccount *account)
{
	int64		not_theirs_us = account->light_cpu_us + account->heavy_cpu_us + account->replay_cpu_us +
		account->idle_us;

	if (account->period_us == 0)
		return 0;
	return Max(account->cores - (double) not_theirs_us / account->period_us, 0);
}

/*
 * Cores that other programs use, without our clients: clients of short statements use
 * about as much of the CPU as their sessions do.
 */
double
ls_account_foreign(const LsCpuAccount *account)
{
	if (account->period_us == 0)
		return 0;
	return Max(ls_account_others(account) - (double) account->near_cpu_us / account->period_us, 0);
}

static void
cpu_account_add_session(LsCpuAccount *account, int slot, int64 *demoted_wait_us)
{
	LsSession  *s = &ls_sessions[slot];
	Reading    *last = &cpu_account_sessions[slot];
	int			pid = (int) pg_atomic_read_u32(&s->pid);
	bool		demoted = ls_session_is_demoted(s);
	int64		cpu_us;
	int64		wait_us;

	if (pid == 0 || pg_atomic_read_u32(&s->wants_low) == 0 || cpu_account_at_rest(slot, last) ||
		!cpu_account_read(last, pid, &cpu_us, &wait_us))
		return;
	last->statements = pg_atomic_read_u32(&s->statements);
	ls_weigh_session(slot, pid, last->times.cpu_ns, last->statements);
	if (pg_atomic_read_u32(&s->heavy) == 0)
	{
		account->light_cpu_us += cpu_us;
		account->near_cpu_us += pg_atomic_read_u32(&s->client_here) != 0 ? cpu_us : 0;
		account->light_wait_us += Max(wait_us, 0);
		return;
	}
	account->heavy_cpu_us += cpu_us;
	account->normal_cpu_us += demoted ? 0 : cpu_us;
	account->heavy_wait_us += Max(wait_us, 0);
	*demoted_wait_us += demoted ? Max(wait_us, 0) : 0;
	if (demoted && wait_us >= STARVED_US)
		cpu_account_look_for_end(s, pid);
}

/* Has the session waited for its client since it was last read? */
static bool
cpu_account_at_rest(int slot, const Reading *last)
{
	LsSession  *s = &ls_sessions[slot];

	return last->pid == (int) pg_atomic_read_u32(&s->pid) &&
		last->statements == pg_atomic_read_u32(&s->statements) &&
		(*(volatile uint32 *) &GetPGProcByNumber(slot)->wait_event_info & 0xFF000000U) == PG_WAIT_CLIENT;
}

/* Who was cancelled, or is to end, and gets no core for that, is restored (priority.c). */
static void
cpu_account_look_for_end(LsSession *s, int pid)
{
	if (ls_sched_is_asked_to_end(pid))
		pg_atomic_write_u32(&s->ends_at, pg_atomic_read_u32(&s->statements));
}

static void
cpu_account_add_replay(LsCpuAccount *account)
{
	for (int i = 0; i < LS_REPLAY_PROCESSES; i++)
	{
		int			pid = ls_replay_pid(i);
		int64		cpu_us;
		int64		wait_us;

		if (pid == 0 || !cpu_account_read(&cpu_account_replay[i], pid, &cpu_us, &wait_us))
			continue;
		account->replay_cpu_us += cpu_us;
		account->replay_wait_us = Max(account->replay_wait_us, wait_us);
	}
}

/* Sessions that are bound to fewer cores than the server may wait although others are free. */
static void
cpu_account_add_idle(LsCpuAccount *account)
{
	int64		before = cpu_account_idle_us;

	cpu_account_idle_us = ls_sched_idle_us();
	if (before >= 0 && cpu_account_idle_us > before)
		account->idle_us = cpu_account_idle_us - before;
}

/*
 * Reads a process, and sets what it has had since it was read before. False if there is
 * nothing to compare with. wait_us is -1 where the kernel keeps no account of it.
 */
static bool
cpu_account_read(Reading *reading, int pid, int64 *cpu_us, int64 *wait_us)
{
	LsSchedTimes before = reading->times;
	bool		known = reading->pid == pid;

	if (!ls_sched_times(pid, &reading->times))
	{
		reading->pid = 0;
		return false;
	}
	reading->pid = pid;
	*cpu_us = known ? Max(reading->times.cpu_ns - before.cpu_ns, 0) / 1000 : 0;
	*wait_us = reading->times.queued_us < 0 || before.queued_us < 0 ? -1 :
		known ? Max(reading->times.queued_us - before.queued_us, 0) : 0;
	return true;
}

/* Adds the account to what lockstep_stat_priority shows. */
static void
cpu_account_publish(const LsCpuAccount *account, int64 demoted_wait_us)
{
	double		all_us = (double) account->cores * account->period_us;
	double		others_us = ls_account_others(account) * account->period_us;

	if (all_us == 0)
		return;
	pg_atomic_fetch_add_u64(&ls_priority->wait_us, account->heavy_wait_us);
	pg_atomic_fetch_add_u64(&ls_priority->demoted_wait_us, demoted_wait_us);
	pg_atomic_fetch_add_u64(&ls_priority->lost_to_replay_us,
							(int64) (account->heavy_wait_us * (account->replay_cpu_us / all_us)));
	pg_atomic_fetch_add_u64(&ls_priority->lost_to_others_us,
							(int64) (account->heavy_wait_us * (others_us / all_us)));
	pg_atomic_fetch_add_u64(&ls_priority->replay_wait_us, Max(account->replay_wait_us, 0));
}
