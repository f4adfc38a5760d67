/*
 * lockstep.c - module start: settings, shared memory, hooks, worker.
 *
 * Loaded through shared_preload_libraries this runs once, in the postmaster.
 * Loaded later, by a call of one of our functions, it runs in that session
 * and installs nothing; the functions then say that preloading is missing.
 */
#include "lockstep.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/ipc.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

static void
shmem_request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();
	ls_request_shared_memory();
}

static void
shmem_startup(void)
{
	if (prev_shmem_startup)
		prev_shmem_startup();
	ls_attach_shared_memory();
}

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;

	ls_define_settings();

	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;

	ls_watch_startup();
	ls_install_hooks();
	ls_gate_register_callbacks();
	ls_register_controller();
	ls_register_wal_segments();
}
