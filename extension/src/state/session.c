/*
 * session.c - this process's slot in shared memory, and whether it is exempt.
 *
 * Runs in backends and parallel workers. The slot is taken at the first query
 * and given back as the process exits, also after FATAL. A session that exits while it is
 * demoted leaves that to the controller.
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "access/parallel.h"
#include "access/xlogdefs.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/pquery.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/portal.h"

#include "compat.h"
#include "controller.h"
#include "executor_hooks.h"
#include "gate/gate.h"
#include "priority/priority.h"
#include "state/session.h"
#include "wait/wait_lsn.h"

LsSession  *ls_sessions = NULL;
int			ls_nsessions = 0;
LsSession  *ls_my_session = NULL;

static Oid	session_exempt_decided_for = InvalidOid;
static bool session_exempt = false;

static bool session_client_is_here(void);
static void session_init(LsSession *s);
static void session_exit(int code, Datum arg);

void
ls_sessions_init_shared(void)
{
	for (int i = 0; i < ls_nsessions; i++)
		session_init(&ls_sessions[i]);
}

/* This process's slot; NULL if it has none (auxiliary processes run no queries). */
LsSession *
ls_session_attach(void)
{
	LsSession  *s;

	if (ls_my_session != NULL)
		return ls_my_session;
	if (ls_sessions == NULL || LS_MY_PROCNO >= ls_nsessions)
		return NULL;

	s = &ls_sessions[LS_MY_PROCNO];
	pg_atomic_write_u32(&s->wants_low, 0);
	pg_atomic_write_u32(&s->heavy, IsParallelWorker() ? 1 : 0);
	pg_atomic_write_u32(&s->statements, 0);
	pg_atomic_write_u32(&s->sched, LS_SCHED_NORMAL);
	pg_atomic_write_u32(&s->leader, IsParallelWorker() ? (uint32) ls_my_leader_procno() + 1 : 0);
	pg_atomic_write_u32(&s->ends_at, LS_NEVER);
	pg_atomic_write_u32(&s->client_here, session_client_is_here() ? 1 : 0);
	pg_atomic_write_u32(&s->gate, LS_GATE_OUTSIDE);
	pg_atomic_write_u64(&s->wait_lsn, InvalidXLogRecPtr);
	pg_write_barrier();
	pg_atomic_write_u32(&s->pid, (uint32) MyProcPid);

	ls_my_session = s;
	before_shmem_exit(session_exit, (Datum) 0);
	return s;
}

/*
 * Superusers, replication and pg_monitor sessions are never demoted or held
 * back. The session's user decides, not a role that it has set; decided once
 * for each session user, so a role granted later counts from the next
 * connection. Needs a transaction.
 */
bool
ls_session_is_exempt(void)
{
	Oid			user = GetSessionUserId();

	if (user != session_exempt_decided_for)
	{
		session_exempt = am_walsender || superuser_arg(user) ||
			has_rolreplication(user) ||
			has_privs_of_role(user, ROLE_PG_MONITOR);
		session_exempt_decided_for = user;
	}
	return session_exempt;
}

/*
 * Counts what the client sent, for weight.c: a query as its portal starts, or
 * a utility command; not the queries that those run inside.
 */
void
ls_session_count_statement(void)
{
	LsSession  *s = ls_my_session;

	if (s == NULL || ls_nesting > 0 || ActivePortal == NULL ||
		(ActivePortal->status != PORTAL_DEFINED &&
		 ActivePortal->strategy != PORTAL_MULTI_QUERY &&
		 ActivePortal->strategy != PORTAL_UTIL_SELECT))
		return;
	/* only this process writes it: no need for an atomic addition */
	pg_atomic_write_u32(&s->statements, pg_atomic_read_u32(&s->statements) + 1);
}

/* Does the client, or the pool in front of it, run on this machine? */
static bool
session_client_is_here(void)
{
	const struct sockaddr *address;

	if (MyBEEntry == NULL)
		return false;
	address = (const struct sockaddr *) &MyBEEntry->st_clientaddr.addr;
	switch (address->sa_family)
	{
		case AF_UNIX:
			return true;
		case AF_INET:
			return ntohl(((const struct sockaddr_in *) address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
		case AF_INET6:
			return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *) address)->sin6_addr);
		default:
			return false;
	}
}

static void
session_init(LsSession *s)
{
	pg_atomic_init_u32(&s->pid, 0);
	pg_atomic_init_u32(&s->wants_low, 0);
	pg_atomic_init_u32(&s->heavy, 0);
	pg_atomic_init_u32(&s->statements, 0);
	pg_atomic_init_u32(&s->sched, LS_SCHED_NORMAL);
	pg_atomic_init_u32(&s->leader, 0);
	pg_atomic_init_u32(&s->ends_at, LS_NEVER);
	pg_atomic_init_u32(&s->client_here, 0);
	pg_atomic_init_u32(&s->gate, LS_GATE_OUTSIDE);
	pg_atomic_init_u32(&s->in_ring, 0);
	pg_atomic_init_u32(&s->excepted, 0);
	pg_atomic_init_u32(&s->in_the_way, 0);
	pg_atomic_init_u64(&s->inside_since, 0);
	pg_atomic_init_u64(&s->wait_lsn, InvalidXLogRecPtr);
}

static void
session_exit(int code, Datum arg)
{
	LsSession  *s = ls_my_session;

	ls_gate_forget();
	ls_my_session = NULL;
	if (pg_atomic_exchange_u64(&s->wait_lsn, InvalidXLogRecPtr) != InvalidXLogRecPtr)
		pg_atomic_fetch_sub_u32(&ls_lsn_wait->waiters, 1);
	pg_atomic_write_u32(&s->wants_low, 0);
	/* a demoted one needs the CPU for the rest of its end: the controller restores it, and frees the slot */
	if (ls_session_is_demoted(s) && ls_controller_alive())
	{
		pg_atomic_write_u32(&s->ends_at, LS_LEFT);
		ls_nudge_controller();
		return;
	}
	pg_atomic_write_u32(&s->pid, 0);
	pg_atomic_write_u32(&s->sched, LS_SCHED_NORMAL);
}
