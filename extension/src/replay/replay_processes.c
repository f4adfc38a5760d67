/*
 * replay_processes.c - the processes that bring a standby's data up to date.
 *
 * Runs in the controller, which gives them short time slices (priority/slices.c) and
 * sees what they get of the CPU (priority/cpu_account.c). Reads what each of them
 * publishes about itself, without a lock: a process number that is too old shows in the
 * next round.
 */
#include "postgres.h"

#include "replication/walreceiver.h"

#include "replay/queue.h"
#include "replay/replay_processes.h"
#include "replay/startup_process.h"

/* Process number of one of LS_REPLAY_PROCESSES; 0: there is none. */
int
ls_replay_pid(int which)
{
	switch (which)
	{
		case 0:
			return ls_startup_pid();
		case 1:
			return (int) *(volatile pid_t *) &WalRcv->pid;
		default:
			return (int) pg_atomic_read_u32(&ls_queue->helpers[which - 2].pid);
	}
}
