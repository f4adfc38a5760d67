/*
 * replay_lag.h - how far replay is behind what this standby has received.
 */
#ifndef LOCKSTEP_REPLAY_LAG_H
#define LOCKSTEP_REPLAY_LAG_H

#include "port/atomics.h"

/*
 * Written by the controller; the session that resets the statistics sets
 * conflicts, conflict_event and conflict_us to zero and writes reset_at.
 */
typedef struct LsLagShared
{
	pg_atomic_uint64 lag_us;
	pg_atomic_uint64 conflicts;
	pg_atomic_uint64 conflict_event;	/* wait event, 0: none since reset */
	pg_atomic_uint64 conflict_at;	/* TimestampTz of its start */
	pg_atomic_uint64 conflict_us;
	pg_atomic_uint64 reset_at;	/* TimestampTz */

	/* the record that waits for the end of transactions, by the end of the one before */
	pg_atomic_uint64 awaits_at;	/* TimestampTz: since then at the latest */
	pg_atomic_uint64 awaits_after;	/* LSN; written after that */
} LsLagShared;

extern LsLagShared *ls_lag;

extern void ls_lag_init_shared(void);
extern void ls_lag_step(int64 now);
extern bool ls_is_streaming(void);
extern bool ls_replay_in_conflict(void);
extern bool ls_replay_may_await_us(void);

#endif							/* LOCKSTEP_REPLAY_LAG_H */
