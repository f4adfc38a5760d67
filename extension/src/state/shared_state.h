/*
 * shared_state.h - the extension's shared memory as a whole.
 *
 * Each subsystem's header has the structure of its own part, the pointer to
 * it, and the function that sets its first values. Only shared_state.c knows
 * how the parts lie together. A new part is one field of LsShared there.
 *
 * Locks: one LWLock guards the texts. It is taken with nothing else held, for
 * the time of one copy, and never by the startup process. Everything else is
 * atomic: no lock of ours is on the way of a query, since the process that
 * holds it may be demoted.
 */
#ifndef LOCKSTEP_SHARED_STATE_H
#define LOCKSTEP_SHARED_STATE_H

/* A text in shared memory; its writers and readers hold the lock of texts. */
#define LS_TEXT_SIZE 256

typedef struct LsShared LsShared;

extern LsShared *ls_shared;		/* NULL: the library was not preloaded */

/* Wait events, 0 before ls_resolve_wait_events(). */
extern uint32 ls_event_throttle;
extern uint32 ls_event_wait_lsn;
extern uint32 ls_event_replay_helper;
extern uint32 ls_event_replay_queue;
extern uint32 ls_event_replay_record;

extern void ls_request_shared_memory(void);
extern void ls_attach_shared_memory(void);
extern void ls_resolve_wait_events(void);
extern void ls_set_text(char *dst, const char *src);
extern void ls_get_text(char *dst, const char *src);

#endif							/* LOCKSTEP_SHARED_STATE_H */
