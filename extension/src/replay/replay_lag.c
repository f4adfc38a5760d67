/*
 * replay_lag.c - how far replay is behind what this standby has received.
 *
 * The controller notes when each stretch of WAL was received and flushed; the
 * age of the oldest stretch not yet replayed is the lag. It is the standby's
 * own clock and only what has arrived, so an idle primary, a slow network or a
 * wrong clock is not lag here.
 *
 * WAL can be flushed up to the middle of a record, and on an idle primary the
 * rest may come much later. So WAL that is received but not replayed is not
 * lag while the startup process sleeps waiting for more, from the walreceiver
 * or until it tries again to start one. Its wait event alone does not tell: a
 * starved startup process has been woken but still reports that wait. The
 * kernel's state of the process tells.
 *
 * Runs in the controller. Shared state: LsLagShared, read by views and by the
 * gate. Crash: measured anew. Promotion: the controller sets the lag to zero.
 */
#include "postgres.h"

#include "access/xlogrecovery.h"
#include "replication/walreceiver.h"
#include "storage/spin.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "replay/replay_lag.h"
#include "replay/startup_process.h"

/* Stretches of WAL remembered; when full, every second one is forgotten. */
#define ARRIVALS 4096
/* Time that startup must have slept for lack of WAL: then it is no lag. */
#define ASLEEP_US INT64CONST(20000)
/* Time without a wait after which a conflict has ended: startup waits in short stretches. */
#define CONFLICT_OVER_US INT64CONST(50000)

LsLagShared *ls_lag = NULL;

typedef struct Arrival
{
	XLogRecPtr	end;
	int64		at;
} Arrival;

/* Stretches of WAL not yet replayed, oldest first; controller only. */
static Arrival replay_lag_arrivals[ARRIVALS];
static int	replay_lag_narrivals = 0;
static XLogRecPtr replay_lag_last_received = InvalidXLogRecPtr;
static XLogRecPtr replay_lag_last_replayed = InvalidXLogRecPtr;
static int64 replay_lag_asleep_since = 0;

/* The conflict that startup waits for now; controller only. */
static uint32 replay_lag_conflict_now = 0;
static int64 replay_lag_conflict_began = 0;
static int64 replay_lag_conflict_seen = 0;

static void replay_lag_note_arrival(XLogRecPtr end, int64 now);
static void replay_lag_forget_replayed(XLogRecPtr replayed);
static bool replay_lag_startup_wants_more(bool moved, int64 now);
static void replay_lag_watch_conflicts(int64 now);
static bool replay_lag_is_conflict(uint32 event);
static bool replay_lag_awaits_transactions(uint32 event);

void
ls_lag_init_shared(void)
{
	pg_atomic_init_u64(&ls_lag->lag_us, 0);
	pg_atomic_init_u64(&ls_lag->conflicts, 0);
	pg_atomic_init_u64(&ls_lag->conflict_event, 0);
	pg_atomic_init_u64(&ls_lag->conflict_at, 0);
	pg_atomic_init_u64(&ls_lag->conflict_us, 0);
	pg_atomic_init_u64(&ls_lag->reset_at, (uint64) GetCurrentTimestamp());
	pg_atomic_init_u64(&ls_lag->awaits_at, 0);
	pg_atomic_init_u64(&ls_lag->awaits_after, InvalidXLogRecPtr);
}

/* Controller, each round while in recovery. */
void
ls_lag_step(int64 now)
{
	XLogRecPtr	received = GetWalRcvFlushRecPtr(NULL, NULL);
	XLogRecPtr	replayed = GetXLogReplayRecPtr(NULL);
	bool		moved = received != replay_lag_last_received || replayed != replay_lag_last_replayed;

	if (received > replay_lag_last_received && received > replayed)
		replay_lag_note_arrival(received, now);
	else if (received < replay_lag_last_received)
		replay_lag_narrivals = 0;			/* the walreceiver began again further back */
	replay_lag_last_received = received;
	replay_lag_last_replayed = replayed;

	replay_lag_forget_replayed(replayed);
	if (replay_lag_narrivals > 0 && replay_lag_startup_wants_more(moved, now))
		replay_lag_narrivals = 0;
	pg_atomic_write_u64(&ls_lag->lag_us,
						replay_lag_narrivals == 0 ? 0 : (uint64) Max(now - replay_lag_arrivals[0].at, 0));
	replay_lag_watch_conflicts(now);
}

/*
 * Any process of a standby: does a walreceiver stream WAL at this moment? If none does, nobody
 * knows what the primary has written since, so lag of 0 would say nothing. A walreceiver that does not
 * reach the primary streams by its state for a moment at each try, but has no connection to show.
 */
bool
ls_is_streaming(void)
{
	bool		streaming;

	SpinLockAcquire(&WalRcv->mutex);
	streaming = WalRcv->walRcvState == WALRCV_STREAMING && WalRcv->ready_to_display;
	SpinLockRelease(&WalRcv->mutex);
	return streaming;
}

/* Controller: does replay wait for a query, now or a moment ago? */
bool
ls_replay_in_conflict(void)
{
	return replay_lag_conflict_now != 0;
}

/*
 * Session, with no snapshot any more: may replay wait for the end of this transaction? It
 * has written down the transactions whose snapshot was too old when its wait began, and
 * waits for their ends, whatever has become of the snapshot. One that began after that is
 * not among them. What the controller has not seen yet has begun a round ago at most.
 */
bool
ls_replay_may_await_us(void)
{
	uint64		after;

	if (!replay_lag_awaits_transactions(ls_startup_wait_event()))
		return false;
	after = pg_atomic_read_u64(&ls_lag->awaits_after);
	pg_read_barrier();
	return after != GetXLogReplayRecPtr(NULL) ||
		GetCurrentTransactionStartTimestamp() <= (TimestampTz) pg_atomic_read_u64(&ls_lag->awaits_at);
}

static void
replay_lag_note_arrival(XLogRecPtr end, int64 now)
{
	if (replay_lag_narrivals == ARRIVALS)
	{
		for (int i = 0; i < ARRIVALS / 2; i++)
			replay_lag_arrivals[i] = replay_lag_arrivals[i * 2];
		replay_lag_narrivals = ARRIVALS / 2;
	}
	replay_lag_arrivals[replay_lag_narrivals].end = end;
	replay_lag_arrivals[replay_lag_narrivals].at = now;
	replay_lag_narrivals++;
}

static void
replay_lag_forget_replayed(XLogRecPtr replayed)
{
	int			done = 0;

	while (done < replay_lag_narrivals && replay_lag_arrivals[done].end <= replayed)
		done++;
	if (done > 0)
	{
		replay_lag_narrivals -= done;
		memmove(replay_lag_arrivals, replay_lag_arrivals + done, replay_lag_narrivals * sizeof(Arrival));
	}
}

/* Has startup used up everything that it can replay of what was received? */
static bool
replay_lag_startup_wants_more(bool moved, int64 now)
{
	uint32		event = ls_startup_wait_event();

	/* if it is runnable it has been woken, whatever its wait event says */
	if (moved || ls_startup_is_runnable() ||
		(event != WAIT_EVENT_RECOVERY_WAL_STREAM &&
		 event != WAIT_EVENT_RECOVERY_RETRIEVE_RETRY_INTERVAL))
	{
		replay_lag_asleep_since = 0;
		return false;
	}
	if (replay_lag_asleep_since == 0)
		replay_lag_asleep_since = now;
	return now - replay_lag_asleep_since >= ASLEEP_US;
}

static void
replay_lag_watch_conflicts(int64 now)
{
	uint32		event = ls_startup_wait_event();

	if (!replay_lag_is_conflict(event))
	{
		if (now - replay_lag_conflict_seen > CONFLICT_OVER_US)
			replay_lag_conflict_now = 0;
		return;
	}
	replay_lag_conflict_seen = now;
	if (replay_lag_awaits_transactions(event) &&
		pg_atomic_read_u64(&ls_lag->awaits_after) != GetXLogReplayRecPtr(NULL))
	{
		pg_atomic_write_u64(&ls_lag->awaits_at, (uint64) GetCurrentTimestamp());
		pg_write_barrier();
		pg_atomic_write_u64(&ls_lag->awaits_after, GetXLogReplayRecPtr(NULL));
	}
	if (event != replay_lag_conflict_now)
	{
		replay_lag_conflict_now = event;
		replay_lag_conflict_began = now;
		pg_atomic_fetch_add_u64(&ls_lag->conflicts, 1);
		pg_atomic_write_u64(&ls_lag->conflict_event, event);
		pg_atomic_write_u64(&ls_lag->conflict_at, (uint64) GetCurrentTimestamp());
	}
	pg_atomic_write_u64(&ls_lag->conflict_us, (uint64) Max(now - replay_lag_conflict_began, 0));
}

static bool
replay_lag_is_conflict(uint32 event)
{
	uint32		class = event & 0xFF000000U;

	return class == PG_WAIT_LOCK || ls_waits_for_buffer_pin(event) ||
		replay_lag_awaits_transactions(event);
}

/* Does replay wait for transactions to end? */
static bool
replay_lag_awaits_transactions(uint32 event)
{
	return event == WAIT_EVENT_RECOVERY_CONFLICT_SNAPSHOT ||
		event == WAIT_EVENT_RECOVERY_CONFLICT_TABLESPACE;
}
