//! The figures that doctor quotes, measured without any of its code: own SQL, own clock, own
//! view of `/proc`, while it looks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_bench::fault::faults::{
    ARCHIVE_CONFLICT, BEHIND_RELAY, BLOCKED_BELOW, COPY_LACKS_COLUMN, GENERATED_COLUMN,
    HANGING_ARCHIVER, NARROW, NO_ROLE, RENAMED_COLUMN, SHARD, SUBSCRIBER_NETWORK, UNPARTED,
};
use lockstep_bench::fault::stage::Which;
use lockstep_bench::fault::{Fault, Stage};
use lockstep_client::Connection;
use lockstep_lab::server::SUPERUSER;
use lockstep_lag::Cause;

/// Interval between two looks; doctor looks ten times a second.
const EVERY: Duration = Duration::from_millis(60);

/// How far two shares of the same time may be apart: each is of some forty moments, and one
/// begins a little earlier.
const SHARE_APART: f64 = 0.3;

/// The part of a growing figure that is there when doctor asks for the last time.
const CLOSE: f64 = 0.6;

/// The part of the first figure that doctor's has at least: a record may come between two looks.
const RECORDS: f64 = 0.999;

/// Most bytes that a walsender sends at once: a window may have one message more.
const MESSAGE: f64 = 131_072.0;

/// What is made of the answers.
#[derive(Clone, Copy)]
enum Kind {
    /// A figure that only grows: doctor's is between the first and the last, and close to that.
    Between,
    /// The part of the answers that are true, of those that are not null.
    Share,
    /// The part of the time that the process was ready and had no core, or had one, between
    /// answers that are not null.
    Queued,
    Ran,
    /// How much it has grown; doctor began later.
    Growth,
    /// Growth in each second, in steps of a message.
    Rate,
    /// How long the statement takes, milliseconds, in the middle.
    Time,
}

/// A figure, and who is asked for it.
struct Question {
    fact: &'static str,
    kind: Kind,
    which: Which,
    sql: String,
}

fn question(fault: &Fault) -> Question {
    let cause = fault.cause();
    of_tables(fault)
        .or_else(|| of_standby(fault))
        .or_else(|| of_subscriber(fault))
        .or_else(|| halted(cause))
        .or_else(|| unseen(fault))
        .unwrap_or_else(|| panic!("nothing is measured for {cause:?}"))
}

fn of(fact: &'static str, kind: Kind, which: Which, sql: &str) -> Question {
    Question {
        fact,
        kind,
        which,
        sql: sql.to_owned(),
    }
}

/// The part of the answers in which a process does this.
fn waits(fact: &'static str, which: Which, process: &str, condition: &str) -> Question {
    let sql = format!("SELECT coalesce({condition}, false) FROM pg_stat_activity WHERE {process}");
    of(fact, Kind::Share, which, &sql)
}

/// A question about the startup process while it has something to replay.
fn startup(fact: &'static str, kind: Kind, what: &str) -> Question {
    let sql = format!(
        "SELECT {what} FROM pg_stat_activity WHERE backend_type = 'startup' \
         AND pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()"
    );
    of(fact, kind, Which::Standby, &sql)
}

/// Copies of tables, and what is missing at one end.
fn of_tables(fault: &Fault) -> Option<Question> {
    let once = |fact| of(fact, Kind::Between, Which::Primary, "SELECT 1");
    Some(match fault.cause() {
        Cause::InitialSyncBlocked if fault.name == BLOCKED_BELOW => waits(
            "blocked_share",
            Which::Second,
            "pid IN (SELECT pid FROM pg_stat_subscription WHERE relid IS NOT NULL)",
            "wait_event_type = 'Lock'",
        ),
        Cause::InitialSyncBlocked => waits(
            "blocked_share",
            Which::Primary,
            "backend_type = 'walsender' AND application_name LIKE 'pg%sync%'",
            "wait_event_type = 'Lock'",
        ),
        Cause::InitialSyncFails => of(
            "unsynced_tables",
            Kind::Between,
            Which::Second,
            "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'",
        ),
        Cause::TableRenamed => once("renamed_tables"),
        Cause::OwnerLacksRights => once("denied_tables"),
        Cause::NoReplicaIdentity => once("unidentified_tables"),
        Cause::ColumnsMissing if [RENAMED_COLUMN, COPY_LACKS_COLUMN].contains(&fault.name) => {
            once("missing_columns")
        }
        Cause::TableMissing => once("unmade_tables"),
        Cause::ApplyStopped if fault.name == NARROW => once("narrow_columns"),
        Cause::ApplyStopped if fault.name == UNPARTED => once("open_tables"),
        Cause::KeyMissing => once("keyless_tables"),
        Cause::ValueMissing => of(
            "unfilled_columns",
            Kind::Between,
            Which::Second,
            "SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'own' AND attnotnull",
        ),
        Cause::PartlyPublished => once("unsent_changes"),
        Cause::SubscriptionSlotMissing if fault.name == SHARD => once("missing_slots"),
        Cause::TableFollowedTwice => once("tables_followed_twice"),
        Cause::OwnerRefused => of(
            "refused_owners",
            Kind::Between,
            Which::Second,
            "SELECT count(*) FROM pg_roles WHERE rolname = 'keeper' AND NOT rolcanlogin",
        ),
        Cause::ColumnListsDiffer => of(
            "differing_lists",
            Kind::Between,
            Which::Primary,
            "SELECT count(*) FROM pg_publication WHERE pubname LIKE 'lists%'",
        ),
        Cause::ProbeLeft => of(
            "left_tables",
            Kind::Between,
            Which::Primary,
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'lockstep_probe'",
        ),
        Cause::ReplicaRowsMissing => once("missing_rows"),
        Cause::ReplicaIncomplete => once("unreplicated_tables"),
        Cause::ColumnsMissing if fault.name == GENERATED_COLUMN => of(
            "generated_columns",
            Kind::Between,
            Which::Second,
            "SELECT count(*) FROM pg_attribute WHERE attgenerated = 's' AND attrelid IN \
               (SELECT srrelid FROM pg_subscription_rel)",
        ),
        Cause::SlotUnsuitable => of(
            "unsuitable_slots",
            Kind::Between,
            Which::Primary,
            "SELECT count(*) FROM pg_replication_slots WHERE plugin = 'test_decoding'",
        ),
        Cause::TablesUnlogged => once("unlogged_tables"),
        Cause::PartitionRootDiffers => once("tables_published_otherwise"),
        Cause::RoleRefused if fault.name == NO_ROLE => once("refused_roles"),
        _ => return None,
    })
}

/// Receiving and replaying.
fn of_standby(fault: &Fault) -> Option<Question> {
    Some(match fault.cause() {
        Cause::RecoveryConflict if fault.name == ARCHIVE_CONFLICT => waits(
            "conflict_share",
            Which::Standby,
            "backend_type = 'startup'",
            "wait_event_type = 'Lock' OR wait_event LIKE 'RecoveryConflict%'",
        ),
        Cause::ReplayPaused
        | Cause::RecoveryTarget
        | Cause::StandbySettingsTooLow
        | Cause::ReplayDelayed
        | Cause::ReplayHalted
        | Cause::RecoveryConflict
        | Cause::CleanupLock => of(
            "unreplayed_bytes",
            Kind::Between,
            Which::Standby,
            "SELECT pg_last_wal_receive_lsn() - pg_last_wal_replay_lsn()",
        ),
        Cause::ConnectionLost => of(
            "upstream_up_ms",
            Kind::Between,
            Which::Primary,
            "SELECT 1000 * extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())",
        ),
        Cause::FeedbackBloat => of(
            "transaction_age_ms",
            Kind::Between,
            Which::Standby,
            "SELECT 1000 * extract(epoch FROM clock_timestamp() - xact_start) \
             FROM pg_stat_activity WHERE application_name = 'lockstep holder'",
        ),
        Cause::WalRemoved | Cause::NotStreaming => of(
            "not_streaming_share",
            Kind::Share,
            Which::Standby,
            "SELECT count(written_lsn) = 0 FROM pg_stat_wal_receiver",
        ),
        Cause::SlotTaken => of("taken_slots", Kind::Between, Which::Primary, "SELECT 1"),
        Cause::NoUpstream => of(
            "absent_upstreams",
            Kind::Between,
            Which::Primary,
            "SELECT 1",
        ),
        Cause::NoWayToPrimary => of(
            "standbys_in_ring",
            Kind::Between,
            Which::Primary,
            "SELECT 2",
        ),
        Cause::TwoPrimaries | Cause::TimelineDiverged => of(
            "timeline",
            Kind::Between,
            Which::Primary,
            "SELECT timeline_id + 1 FROM pg_control_checkpoint()",
        ),
        Cause::UpstreamNotAsked => of(
            "streaming_share",
            Kind::Share,
            Which::Standby,
            "SELECT count(*) > 0 FROM pg_stat_wal_receiver WHERE status = 'streaming'",
        ),
        Cause::RestoreFails => waits(
            "asking_share",
            Which::Standby,
            "backend_type = 'startup'",
            "wait_event IN ('RestoreCommand', 'RecoveryRetrieveRetryInterval')",
        ),
        Cause::RestoreSlow => waits(
            "restoring_share",
            Which::Standby,
            "backend_type = 'startup'",
            "wait_event = 'RestoreCommand'",
        ),
        Cause::NotArchivedYet => of(
            "archived_age_ms",
            Kind::Between,
            Which::Primary,
            "SELECT 1000 * extract(epoch FROM clock_timestamp() - last_archived_time) FROM pg_stat_archiver",
        ),
        Cause::ReplayStarved => startup("queued_share", Kind::Queued, "pid"),
        Cause::ReplayAtCoreLimit => startup("startup_cpu_share", Kind::Ran, "pid"),
        Cause::ReplayWaitsForStorage => startup(
            "storage_share",
            Kind::Share,
            "coalesce(wait_event_type = 'IO', false)",
        ),
        Cause::SlowWalFlush => waits(
            "walreceiver_storage_share",
            Which::Standby,
            "backend_type = 'walreceiver'",
            "wait_event_type = 'IO'",
        ),
        Cause::SlowNetwork if fault.name != SUBSCRIBER_NETWORK => of(
            "received_bytes_per_s",
            Kind::Rate,
            Which::Standby,
            "SELECT pg_last_wal_receive_lsn() - '0/0'",
        ),
        Cause::IdlePrimary => of(
            "replayed_commit_age_ms",
            Kind::Between,
            Which::Standby,
            "SELECT 1000 * extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())",
        ),
        Cause::QueriesCancelled => of(
            "cancelled_queries",
            Kind::Growth,
            Which::Standby,
            "SELECT sum(confl_lock + confl_snapshot) FROM pg_stat_database_conflicts",
        ),
        _ => return None,
    })
}

/// Decoding and applying.
fn of_subscriber(fault: &Fault) -> Option<Question> {
    let sender = |name: &str| format!("backend_type = 'walsender' AND application_name = '{name}'");
    let worker =
        "backend_type IN ('logical replication worker', 'logical replication apply worker')";
    Some(match fault.cause() {
        Cause::AsynchronousApplyCommit => of(
            "flush_lag_ms",
            Kind::Time,
            Which::Primary,
            "INSERT INTO t (v) VALUES ('timed')",
        ),
        Cause::SlowNetwork => of(
            "received_bytes_per_s",
            Kind::Rate,
            Which::Primary,
            "SELECT write_lsn - '0/0' FROM pg_stat_replication WHERE application_name = 'first'",
        ),
        Cause::SlowConsumer if fault.name == BEHIND_RELAY => of(
            "busy_share",
            Kind::Share,
            Which::Second,
            "SELECT a.wait_event IS DISTINCT FROM 'LogicalApplyMain' FROM pg_stat_activity a \
             JOIN pg_stat_subscription s USING (pid) WHERE s.subname = 'behind'",
        ),
        Cause::MissingIndex => of(
            "searched_rows",
            Kind::Growth,
            Which::Second,
            "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'keyed'",
        ),
        Cause::SlowConsumer => waits(
            "pushed_share",
            Which::Primary,
            &sender("second"),
            "wait_event = 'WalSenderWriteData'",
        ),
        Cause::SlowDecoding => waits(
            "decoding_share",
            Which::Primary,
            &sender("first"),
            "coalesce(wait_event_type, 'IO') = 'IO'",
        ),
        Cause::GiantTransaction | Cause::SpillToDisk => of(
            "spilled_bytes",
            Kind::Growth,
            Which::Primary,
            "SELECT max(spill_bytes) FROM pg_stat_replication_slots",
        ),
        Cause::ApplyBlocked => waits(
            "blocked_share",
            Which::Second,
            worker,
            "wait_event_type = 'Lock'",
        ),
        _ => return None,
    })
}

/// The WAL that a slot is behind, on the primary.
fn behind(fact: &'static str, position: &str, slots: &str) -> Question {
    let sql = format!(
        "SELECT pg_current_wal_flush_lsn() - {position} FROM pg_replication_slots \
         WHERE slot_name LIKE '{slots}'"
    );
    of(fact, Kind::Between, Which::Primary, &sql)
}

/// What stands still, or is ended again and again.
fn halted(cause: Cause) -> Option<Question> {
    Some(match cause {
        Cause::RelayHalted => behind("behind_bytes", "confirmed_flush_lsn", "lockstep%"),
        Cause::NoFreeWorker | Cause::SubscriptionRefused => {
            behind("behind_bytes", "confirmed_flush_lsn", "second")
        }
        Cause::RelayNotStreaming => of(
            "not_streaming_share",
            Kind::Share,
            Which::Primary,
            "SELECT NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%' AND active)",
        ),
        Cause::ReplicaPaused
        | Cause::ReplicaStopped
        | Cause::ReplicaNotRunning
        | Cause::ReplicaSilent
        | Cause::ReplicaHeld => behind("behind_bytes", "confirmed_flush_lsn", "lockstep%"),
        Cause::ConfirmsNothing => behind("retained_bytes", "restart_lsn", "etl"),
        Cause::ApplyStopped | Cause::ProcessHalted => {
            behind("behind_bytes", "confirmed_flush_lsn", "second")
        }
        Cause::RetainedWalNearLimit | Cause::UnusedSlot => {
            behind("retained_bytes", "restart_lsn", "forgotten")
        }
        Cause::ReceiverHalted => of(
            "behind_bytes",
            Kind::Between,
            Which::Primary,
            "SELECT pg_current_wal_flush_lsn() - replay_lsn FROM pg_stat_replication \
             WHERE application_name = 'standby'",
        ),
        Cause::WalsendersEnded => of(
            "away_share",
            Kind::Share,
            Which::Primary,
            "SELECT NOT EXISTS (SELECT FROM pg_stat_replication \
             WHERE application_name = 'first')",
        ),
        _ => return None,
    })
}

/// What positions alone do not show, on the primary.
fn unseen(fault: &Fault) -> Option<Question> {
    let (fact, kind, sql) = match fault.cause() {
        Cause::OtherDatabases => (
            "written_bytes",
            Kind::Growth,
            "SELECT pg_current_wal_flush_lsn() - '0/0'",
        ),
        Cause::SynchronousStandbyMissing | Cause::CommitsHeld => (
            "waiting_commits",
            Kind::Between,
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
        ),
        Cause::FullPageImages => (
            "page_images",
            Kind::Growth,
            "SELECT wal_fpi FROM pg_stat_wal",
        ),
        Cause::TablesNotFollowed => ("unfollowed_tables", Kind::Between, "SELECT 1"),
        Cause::ColumnsMissing => (
            "missing_columns",
            Kind::Between,
            "SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'w'",
        ),
        Cause::SubscriptionSlotMissing => (
            "missing_slots",
            Kind::Between,
            "SELECT count(*) FILTER (WHERE slot_name = 'second') + 1 FROM pg_replication_slots",
        ),
        Cause::SlotMissing => ("missing_slots", Kind::Between, "SELECT 1"),
        Cause::UpstreamElsewhere => ("elsewhere", Kind::Between, "SELECT 1"),
        Cause::PublicationMissing => ("missing_publications", Kind::Between, "SELECT 1"),
        Cause::RoleRefused => (
            "refused_roles",
            Kind::Between,
            "SELECT count(*) FROM pg_roles WHERE rolname = 'streamer' AND NOT rolreplication",
        ),
        Cause::NoFreeWalsender => (
            "taken_walsenders",
            Kind::Between,
            "SELECT count(*) FROM pg_stat_replication",
        ),
        Cause::SlotLost => (
            "lost",
            Kind::Between,
            "SELECT count(*) FROM pg_replication_slots WHERE wal_status = 'lost'",
        ),
        Cause::CollationVersion => (
            "other_collations",
            Kind::Between,
            "SELECT count(*) FROM pg_database \
             WHERE datcollversion <> pg_database_collation_actual_version(oid)",
        ),
        Cause::TablesNotPublished => ("unpublished_tables", Kind::Between, "SELECT 1"),
        Cause::PreparedTransaction => (
            "prepared_age_ms",
            Kind::Between,
            "SELECT 1000 * extract(epoch FROM clock_timestamp() - prepared) FROM pg_prepared_xacts",
        ),
        Cause::OldTransaction => (
            "transaction_age_ms",
            Kind::Between,
            "SELECT 1000 * extract(epoch FROM clock_timestamp() - xact_start) \
             FROM pg_stat_activity WHERE application_name = 'lockstep holder'",
        ),
        Cause::ArchiverFailing if fault.name == HANGING_ARCHIVER => (
            "waiting_segments",
            Kind::Between,
            "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'",
        ),
        Cause::ArchiverFailing => (
            "archive_failures",
            Kind::Between,
            "SELECT failed_count FROM pg_stat_archiver",
        ),
        _ => return None,
    };
    Some(of(fact, kind, Which::Primary, sql))
}

struct Answer {
    at: Instant,
    took: Duration,
    text: Option<String>,
    /// `schedstat` of the process that the answer names.
    cpu: Option<[f64; 2]>,
}

/// A figure of doctor's, and what it should be.
#[derive(Debug, Clone)]
pub struct Measured {
    pub fact: &'static str,
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

/// A thread that measures until it is told to end.
pub struct Measuring {
    question: Question,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Answer>>,
}

impl Measuring {
    /// Begins, and has one answer when this returns.
    pub fn start(fault: &Fault, stage: &Stage) -> Self {
        let question = question(fault);
        let server = stage.server(question.which);
        let mut client = server.connect(SUPERUSER, "lockstep measuring").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, began) = mpsc::channel();
        let (stopped, sql) = (Arc::clone(&stop), question.sql.clone());
        let thread = thread::spawn(move || {
            let mut answers = Vec::new();
            loop {
                let last = stopped.load(Ordering::Relaxed);
                answers.push(ask(&mut client, &sql));
                let _ = ready.send(());
                if last {
                    return answers;
                }
                thread::sleep(EVERY);
            }
        });
        began.recv().unwrap();
        Self {
            question,
            stop,
            thread,
        }
    }

    /// What was measured.
    pub fn end(self) -> Measured {
        self.stop.store(true, Ordering::Relaxed);
        let answers = self.thread.join().unwrap();
        let (value, least, most) = evaluate(self.question.kind, &answers);
        Measured {
            fact: self.question.fact,
            value,
            least,
            most,
        }
    }
}

fn ask(client: &mut Connection, sql: &str) -> Answer {
    let asked = Instant::now();
    let rows = client.query(sql).unwrap();
    let took = asked.elapsed();
    let text = rows
        .into_iter()
        .find_map(|row| row.into_iter().next().flatten());
    let cpu = text.as_deref().and_then(schedstat);
    Answer {
        at: Instant::now(),
        took,
        text,
        cpu,
    }
}

/// Seconds on a core and seconds queued.
fn schedstat(pid: &str) -> Option<[f64; 2]> {
    let _: u32 = pid.parse().ok()?;
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let mut numbers = text
        .split_whitespace()
        .map(|word| word.parse::<f64>().unwrap() / 1e9);
    Some([numbers.next()?, numbers.next()?])
}

/// What was measured, and the least and the most that doctor's figure may be.
fn evaluate(kind: Kind, answers: &[Answer]) -> (f64, f64, f64) {
    let number = |answer: &Answer| answer.text.as_ref()?.parse::<f64>().ok();
    let known: Vec<(Instant, f64)> = answers
        .iter()
        .filter_map(|answer| Some((answer.at, number(answer)?)))
        .collect();
    let ends = || (known.first().unwrap(), known.last().unwrap());
    match kind {
        Kind::Between => {
            let ((_, first), (_, last)) = ends();
            // WAL that is written while nobody writes, a record each, is no disagreement.
            (*last, (RECORDS * first).max(CLOSE * last), *last)
        }
        Kind::Share => {
            let said: Vec<bool> = answers
                .iter()
                .filter_map(|answer| Some(answer.text.as_ref()? == "t"))
                .collect();
            let share = said.iter().filter(|is| **is).count() as f64 / said.len() as f64;
            (share, share - SHARE_APART, share + SHARE_APART)
        }
        Kind::Ran | Kind::Queued => {
            let which = usize::from(matches!(kind, Kind::Queued));
            let share = cpu_share(answers, which);
            (share, share - SHARE_APART, share + SHARE_APART)
        }
        Kind::Growth => {
            let ((_, first), (_, last)) = ends();
            let grown = last - first;
            (grown, 0.5 * grown, grown)
        }
        Kind::Rate => {
            let ((from, first), (to, last)) = ends();
            let time = (*to - *from).as_secs_f64();
            let rate = (last - first) / time;
            let step = MESSAGE / time;
            (rate, 0.5 * rate - step, 1.5 * rate + step)
        }
        Kind::Time => {
            let mut times: Vec<f64> = answers
                .iter()
                .map(|answer| answer.took.as_secs_f64() * 1000.0)
                .collect();
            times.sort_by(f64::total_cmp);
            let middle = times[times.len() / 2];
            (middle, 0.4 * middle, 2.5 * middle)
        }
    }
}

/// The process's share of a core, between each two answers that name it, one after the other.
fn cpu_share(answers: &[Answer], which: usize) -> f64 {
    let (mut used, mut time) = (0.0, 0.0);
    for pair in answers.windows(2) {
        if let (Some(before), Some(after)) = (pair[0].cpu, pair[1].cpu) {
            used += after[which] - before[which];
            time += (pair[1].at - pair[0].at).as_secs_f64();
        }
    }
    used / time
}
