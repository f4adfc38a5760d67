/*
 * slices.c - short time slices for what makes commits visible.
 *
 * Purpose: demoted readers take little of the CPU, but replay still waits for them.
 * A process that wakes up beside one that runs gets its turn after that one's time
 * slice, which is some milliseconds. From Linux 6.12 on a process may choose a slice
 * of its own. One with a shorter slice than the process that runs goes first as it
 * wakes up. How much CPU each gets in the long run stays the same.
 *
 * Who gets the shortest slice there is: the walreceiver, the startup process and replay
 * helpers; the controller, which wakes sessions that wait for an LSN; and walsenders, on which
 * standbys of this standby wait.
 *
 * It needs no privilege, for any process of the same user, and can be undone. A
 * kernel without it changes nothing: ls_slices_init() finds out by a trial with the
 * controller itself.
 *
 * Runs in the controller. Shared state: two fields of LsPriorityShared.
 * Promotion: the controller sets slices back to the kernel's default before it ends.
 * The startup process and the walreceiver have ended by then.
 * Crash of the controller: the next one finds short slices as they are, and takes
 * them for its own.
 *
 * Limits: a slice that an administrator has set for one of these processes is
 * replaced. A process under another policy than SCHED_OTHER is left alone.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/memutils.h"

#include "priority/priority.h"
#include "priority/sched_linux.h"
#include "priority/slice_rule.h"
#include "priority/slices.h"
#include "replay/replay_processes.h"
#include "state/settings.h"
#include "state/shared_state.h"

typedef enum SliceState
{
	NOT_SEEN = 0,				/* the process's slice is to be read */
	DEFAULT_SLICE,				/* has the kernel's default */
	SHORT_SLICE,				/* has the short one */
	LEFT_ALONE					/* the kernel did not give it what was asked
								 * for; not tried again before a reload */
} SliceState;

typedef struct Process
{
	int			pid;			/* 0: there is none */
	SliceState	state;
} Process;

enum
{
	CONTROLLER = 0,
	FIRST_OF_REPLAY = 1,
	FIRST_WALSENDER = FIRST_OF_REPLAY + LS_REPLAY_PROCESSES
};

static Process *slices_processes = NULL;
static bool slices_kernel_has_them = false;

static int slices_process_count(void);
static int slices_pid_of(int which);
static void slices_step_one(Process *process, bool want_short);
static void slices_ask_for(Process *process, uint64 slice_ns);

/* Controller, as it starts and at each reload. */
void
ls_slices_init(void)
{
	uint64		has_ns = 0;
	int			error = ls_sched_set_slice(MyProcPid, LS_SLICE_SHORT_NS, &has_ns);
	char		detail[LS_TEXT_SIZE];

	if (slices_processes == NULL)
		slices_processes = MemoryContextAllocZero(TopMemoryContext, sizeof(Process) * slices_process_count());
	/* the kernel may allow now what it refused before */
	for (int i = 0; i < slices_process_count(); i++)
		slices_processes[i].state = NOT_SEEN;

	slices_kernel_has_them = false;
	switch (ls_slice_answer(error, LS_SLICE_SHORT_NS, has_ns))
	{
		case LS_SLICE_DONE:
			slices_kernel_has_them = true;
			strlcpy(detail, "0.1 ms for startup process, walreceiver, replay helpers, walsenders and controller",
					sizeof(detail));
			break;
		case LS_SLICE_REFUSED:
			snprintf(detail, sizeof(detail), "the kernel refuses slices: %s", strerror(error));
			break;
		default:
			strlcpy(detail,
					"the kernel gives no process a slice of its own "
					"(Linux from 6.12 on does, under SCHED_OTHER)",
					sizeof(detail));
			break;
	}
	ls_set_text(ls_priority->slice_detail, detail);
}

/* Controller, each round; asks the kernel only where something is to be changed. */
void
ls_slices_step(bool in_recovery)
{
	bool		want_short = in_recovery && ls_enabled && ls_replay_priority != LS_PRIORITY_OFF;
	uint32		has_short = 0;

	if (!slices_kernel_has_them)
		return;
	for (int i = 0; i < slices_process_count(); i++)
	{
		Process    *process = &slices_processes[i];
		int			pid = slices_pid_of(i);

		if (pid != process->pid)
		{
			process->pid = pid;
			process->state = NOT_SEEN;
		}
		if (pid == 0)
			continue;
		slices_step_one(process, want_short);
		has_short += process->state == SHORT_SLICE ? 1 : 0;
	}
	pg_atomic_write_u32(&ls_priority->short_slices, has_short);
}

/* Controller: has replay short time slices, as far as it runs? */
bool
ls_slices_in_force(void)
{
	return slices_kernel_has_them;
}

static int
slices_process_count(void)
{
	return FIRST_WALSENDER + max_wal_senders;
}

/* The process's number, read without a lock: one that is too old shows in the next round. */
static int
slices_pid_of(int which)
{
	if (which == CONTROLLER)
		return MyProcPid;
	if (which < FIRST_WALSENDER)
		return ls_replay_pid(which - FIRST_OF_REPLAY);
	return (int) *(volatile pid_t *) &WalSndCtl->walsnds[which - FIRST_WALSENDER].pid;
}

static void
slices_step_one(Process *process, bool want_short)
{
	if (process->state == NOT_SEEN)
		process->state = ls_sched_slice_ns(process->pid) == LS_SLICE_SHORT_NS ? SHORT_SLICE : DEFAULT_SLICE;
	if (want_short && process->state == DEFAULT_SLICE)
		slices_ask_for(process, LS_SLICE_SHORT_NS);
	else if (!want_short && process->state == SHORT_SLICE)
		slices_ask_for(process, LS_SLICE_DEFAULT);
}

static void
slices_ask_for(Process *process, uint64 slice_ns)
{
	uint64		has_ns = 0;
	int			error = ls_sched_set_slice(process->pid, slice_ns, &has_ns);

	switch (ls_slice_answer(error, slice_ns, has_ns))
	{
		case LS_SLICE_DONE:
			process->state = slice_ns == LS_SLICE_SHORT_NS ? SHORT_SLICE : DEFAULT_SLICE;
			break;
		case LS_SLICE_GONE:
			process->pid = 0;
			break;
		case LS_SLICE_REFUSED:
			errno = error;
			ls_priority_refused(process->pid, "slice");
			process->state = LEFT_ALONE;
			break;
		case LS_SLICE_UNKNOWN:
			process->state = LEFT_ALONE;
			break;
	}
}
