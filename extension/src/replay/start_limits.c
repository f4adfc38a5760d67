/*
 * start_limits.c - how many helpers there may be, and the size of their queue.
 *
 * Both are decided once, as the library is loaded: shared memory has their size, also when it is made anew after
 * a crash. The settings say what is wanted; cores, memory and background workers say what can be (start_rule.c).
 * The log says where that is not the same, and what "auto" means.
 *
 * Runs in the postmaster. Its children inherit the values by fork. Limits: cores and memory that the server gets
 * or loses later count only as far as helper_rule.c looks at cores.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "compat.h"
#include "priority/sched_linux.h"
#include "replay/hot_standby.h"
#include "replay/start_limits.h"
#include "replay/start_rule.h"

int			ls_most_helpers = 0;
int			ls_most_hot_helpers = 0;	/* in hot standby */
LsPipelineState ls_why_no_helpers = LS_NO_SLOT; /* while ls_most_helpers is 0 */
int			ls_queue_kb = 0;	/* 0: there are no helpers */

static void start_limits_choose_helpers(int room);
static const char *start_limits_say_when(bool is_tested);
static void start_limits_say_missing(int room);
static void start_limits_size_queue(void);

/* After our other background workers were registered. Not in single-user mode, which has none. */
void
ls_decide_start_limits(void)
{
	/* libraries that are loaded later may take more */
	int			room = Max(max_worker_processes - ls_registered_workers(NULL), 0);

	if (ls_replay_workers == LS_WORKERS_AUTO)
		start_limits_choose_helpers(room);
	else
	{
		ls_most_helpers = ls_most_hot_helpers = Min(ls_replay_workers, room);
		if (ls_replay_workers == 0)
			ls_why_no_helpers = LS_NO_WORKERS;
		start_limits_say_missing(room);
	}
	if (ls_most_helpers > 0)
		start_limits_size_queue();
}

/* For lockstep.replay_workers = auto. */
static void
start_limits_choose_helpers(int room)
{
	double		cores = ls_sched_cpu();
	bool		is_tested = ls_is_listed(PG_MAJORVERSION_NUM, ls_tested_majors);

	ls_most_helpers = ls_automatic_helpers(is_tested, cores, room);
	ls_most_hot_helpers = ls_automatic_hot_helpers(ls_most_helpers, room);
	if (!is_tested)
		ls_why_no_helpers = LS_NO_MAJOR;
	else if (cores < 2)
		ls_why_no_helpers = LS_NO_CORE;
	ereport(LOG,
			(errmsg("lockstep.replay_workers is \"auto\", which means %d", ls_most_helpers),
			 errdetail("Cores that the server may use: %.4g. Background workers that max_worker_processes leaves: %d. %s",
					   cores, room, start_limits_say_when(is_tested))));
}

static const char *
start_limits_say_when(bool is_tested)
{
	if (!is_tested)
		return "One process replays, since the long tests with more have not run on PostgreSQL " PG_MAJORVERSION ".";
	if (ls_most_helpers == 0)
		return "One process replays.";
	if (!ls_replays_in_hot_standby())
		return "Replay helpers work until recovery is consistent, and not in hot standby.";
	return psprintf("By lockstep.replay_hot_standby replay helpers also work in hot standby, at most %d.",
					ls_most_hot_helpers);
}

/*
 * Helpers are started when there is something to replay. That too few background workers are left for
 * them is known now.
 */
static void
start_limits_say_missing(int room)
{
	if (ls_replay_workers <= room)
		return;
	ereport(WARNING,
			(errmsg("lockstep.replay_workers is %d, but max_worker_processes (%d) leaves background workers for %d",
					ls_replay_workers, max_worker_processes, room),
			 errdetail("At most %d replay helpers will run.", room),
			 errhint("Raise max_worker_processes by %d and restart the server.", ls_replay_workers - room)));
}

static void
start_limits_size_queue(void)
{
	uint64		memory_kb = ls_sched_memory_kb();

	ls_queue_kb = ls_queue_within_memory(ls_replay_queue_size, memory_kb);
	if (ls_queue_kb == ls_replay_queue_size)
		return;
	ereport(WARNING,
			(errmsg("lockstep.replay_queue_size is %d kB, more than a quarter of the memory that the server may use (" UINT64_FORMAT " kB)",
					ls_replay_queue_size, memory_kb),
			 errdetail("The queue gets %d kB.", ls_queue_kb),
			 errhint("Lower lockstep.replay_queue_size; its default suffices for most servers.")));
}
