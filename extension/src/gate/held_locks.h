/*
 * held_locks.h - what this transaction has locked, as far as waiting matters.
 */
#ifndef LOCKSTEP_HELD_LOCKS_H
#define LOCKSTEP_HELD_LOCKS_H

extern bool ls_others_wait_for_us(void);
extern bool ls_holds_shared_locks(void);
extern bool ls_holds_lock_replay_may_want(void);

#endif							/* LOCKSTEP_HELD_LOCKS_H */
