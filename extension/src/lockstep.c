/*
 * lockstep.c - module start: settings, shared memory, hooks, worker.
 *
 * Loaded through shared_preload_libraries this runs once, in the postmaster.
 * Loaded later, by a call of one of our functions, it runs in that session
 * and installs nothing; the functions then say that preloading is missing.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"

#include "compat.h"
#include "executor_hooks.h"
#include "gate/gate.h"
#include "replay/rmgr_table.h"
#include "replay/start_limits.h"
#include "state/settings.h"
#include "state/shared_state.h"
#include "wait/report_token.h"

LS_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static shmem_request_hook_type lockstep_prev_shmem_request = NULL;
static shmem_startup_hook_type lockstep_prev_shmem_startup = NULL;

static void lockstep_shmem_request(void);
static void lockstep_shmem_startup(void);
static void lockstep_register_worker(const char *name, const char *function, int restart_s);

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	ls_define_settings();

	lockstep_prev_shmem_request = shmem_request_hook;
	shmem_request_hook = lockstep_shmem_request;
	lockstep_prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = lockstep_shmem_startup;

	ls_install_rmgr_callbacks();
	ls_install_hooks();
	ls_gate_register_callbacks();
	ls_report_token_register_callback();
	/* single-user mode has no background workers */
	if (!IsPostmasterEnvironment)
		return;
	/* first: with room for one worker it is the one that runs */
	lockstep_register_worker("lockstep controller", "lockstep_controller_main", 1);
	/* not sooner: its errors come from the disk, a full one for example */
	lockstep_register_worker("lockstep WAL segments", "lockstep_wal_segments_main", 60);
	ls_decide_start_limits();
}

static void
lockstep_shmem_request(void)
{
	if (lockstep_prev_shmem_request)
		lockstep_prev_shmem_request();
	ls_request_shared_memory();
}

static void
lockstep_shmem_startup(void)
{
	if (lockstep_prev_shmem_startup)
		lockstep_prev_shmem_startup();
	ls_attach_shared_memory();
}

/*
 * restart_s: seconds until the postmaster starts it again after an error.
 *
 * The server takes up workers in the order of registration, and says only that
 * there were too many, not which one will be missing.
 */
static void
lockstep_register_worker(const char *name, const char *function, int restart_s)
{
	BackgroundWorker worker = {0};

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = restart_s;
	strlcpy(worker.bgw_library_name, "lockstep", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker.bgw_name, name, BGW_MAXLEN);
	strlcpy(worker.bgw_type, name, BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
	if (ls_registered_workers(name) == 0)
		ereport(WARNING,
				(errmsg("%s cannot run: max_worker_processes (%d) leaves no background worker for it",
						name, max_worker_processes),
				 errhint("If this server is a standby, raise max_worker_processes and restart it.")));
}
