/*
 * session.h - one slot in shared memory for each process that can run queries.
 *
 * A session says in its slot what it is and what it asks for; the controller
 * reads all slots in each round. There are MaxBackends slots, indexed like
 * ProcGlobal->allProcs. The fields of one session lie together, in a cache line that
 * it shares with no other session's.
 */
#ifndef LOCKSTEP_SESSION_H
#define LOCKSTEP_SESSION_H

#include "port/atomics.h"

/* A cache line, in bytes. */
#define LS_SESSION_SIZE 64

/* LsSession.ends_at of a session that ends nothing, and of one that has left while it was demoted. */
#define LS_NEVER PG_UINT32_MAX
#define LS_LEFT (PG_UINT32_MAX - 1)

/*
 * Every field is written by the session itself, the owner, unless its comment
 * names another writer.
 */
typedef struct LsSession
{
	pg_atomic_uint32 pid;		/* 0: slot not in use */

	/* priority (priority/) */
	pg_atomic_uint32 wants_low; /* 1: this session's reads may be demoted */
	pg_atomic_uint32 heavy;		/* 1: its statements are long; written by the
								 * controller, by a parallel worker for itself */
	pg_atomic_uint32 statements;	/* top-level statements begun so far */
	pg_atomic_uint32 sched;		/* LsSchedState; written by the controller,
								 * reset by the owner */
	pg_atomic_uint32 leader;	/* parallel worker: its leader's slot + 1; others: 0 */
	pg_atomic_uint32 ends_at;	/* statements when the controller saw that this
								 * session is to end its statement and has no
								 * CPU for that; LS_NEVER; LS_LEFT, by the owner */
	pg_atomic_uint32 client_here;	/* 1: its client runs on this machine */

	/* gate (gate/) */
	pg_atomic_uint32 gate;		/* LsGateState, which names the writers */
	pg_atomic_uint32 in_ring;	/* 1: a queue has an entry of this session;
								 * set by the owner, cleared by the process
								 * that takes the entry */
	pg_atomic_uint32 excepted;	/* 1: the capacity has one place more because
								 * this session does not count; set by the
								 * controller, cleared by it and by the process
								 * that takes that place back */
	pg_atomic_uint32 in_the_way;	/* 1: replay waits for this session; written
									 * by the controller */
	pg_atomic_uint64 inside_since;	/* ls_now_us() when it went inside; set
									 * before gate says so */

	/* wait for an LSN (wait/) */
	pg_atomic_uint64 wait_lsn;	/* LSN at which to wake it, 0: it does not wait,
								 * highest: only on another timeline */
} pg_attribute_aligned(LS_SESSION_SIZE) LsSession;

StaticAssertDecl(sizeof(LsSession) == LS_SESSION_SIZE, "a session's slot is one cache line");

extern LsSession *ls_sessions;
extern int	ls_nsessions;
extern LsSession *ls_my_session;	/* NULL: this process has no slot */

extern void ls_sessions_init_shared(void);
extern LsSession *ls_session_attach(void);
extern bool ls_session_is_exempt(void);
extern void ls_session_count_statement(void);

#endif							/* LOCKSTEP_SESSION_H */
