//! A replica that `lockstep replica` keeps: how its slot is recognised on the source, what its target
//! says of it, and what that means. No I/O.
//!
//! The target's schema `lockstep` says it. This crate lists the columns that it needs, so a newer
//! lockstep may have more of them, and the replica's own crate is not linked in. What is written there
//! counts only while apply's session holds the replica's lock and has just written: a process that is
//! killed writes nothing more.

use lockstep_client::plain::NOT_PLAIN;
use lockstep_service::words::figures::percent;
use lockstep_wire::Lsn;
use serde::{Deserialize, Serialize, Serializer};

use crate::states::{ApplyState, CopyPhase, ReplicaHolder, SlotType};
use crate::views::Slot;

/// The name of sessions that create a replica,
pub const APPLICATION: &str = "lockstep replica";

/// and of those that compare one with its source.
pub const VERIFY: &str = "lockstep verify";

/// What a replica's slot begins with, before its name,
const SLOT_PREFIX: &str = "lockstep_";

/// and how many hexadecimal digits it ends in, after its name. Those of relays end in more.
const SLOT_DIGITS: usize = 8;

/// What is older than this is not known any more, in milliseconds. Apply writes every second.
const FRESH_MS: f64 = 15_000.0;

/// A replica with cycles is late if it is this many milliseconds later than they let expect.
const LATE_MS: f64 = 1_000.0;

/// Most replicas of a database that are read.
const MOST_REPLICAS: usize = 100;

/// Longest error that is read, in characters.
const MOST_ERROR: usize = 2_000;

/// A replica, as its target knows it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Replica {
    pub name: String,
    /// The replica's slot on the source.
    pub slot: String,
    pub phase: CopyPhase,
    /// Somebody has paused it.
    pub paused: bool,
    pub bytes_total: u64,
    /// Copied of them.
    pub bytes_done: u64,
    pub holder: ReplicaHolder,
    pub apply_state: ApplyState,
    pub applied_lsn: Option<Lsn>,
    /// Why it does not apply.
    pub error: Option<String>,
    /// Time since the state was written.
    pub written_age_ms: Option<f64>,
    /// Rows to update or delete that the target did not have.
    pub missing_rows: u64,
    /// Tables of its source that it does not have as they are there; None if nobody has looked.
    pub unreplicated_tables: Option<u64>,
    /// Which they are, and why.
    pub unreplicated: Option<String>,
    /// Objects of the source that the copy could not make on the target.
    pub unmade_objects: Option<u64>,
    pub unmade: Option<String>,
    pub hold: Option<Hold>,
    /// Time from the beginning of one cycle to that of the next; None or 0 if it has none.
    pub frequency_ms: Option<f64>,
    /// Time by which it is later than its frequency and a cycle as long as the last let expect.
    pub cycle_late_ms: Option<f64>,
    pub spool_bytes: Option<u64>,
    pub spool_limit: Option<u64>,
    /// Changes after `spool_from` and up to `spool_to` are in the spool, and not on the target's disk.
    pub spool_from: Option<Lsn>,
    pub spool_to: Option<Lsn>,
    /// Why its spool takes nothing more in; None if it does.
    pub spool_full: Option<String>,
    /// `limit`, `transaction` or `disk`; None if a process of an older version writes the state.
    pub spool_full_by: Option<String>,
}

/// Who holds a replica still: a `lockstep replica verify` that somebody waits for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Hold {
    /// Verify's session on the target.
    pub pid: u32,
    pub user: Option<String>,
    /// Verify's address; None if it is on the target's machine.
    pub client: Option<String>,
    pub age_ms: Option<f64>,
    /// The replica stands still; otherwise it is asked to.
    pub held: bool,
}

/// Writes the enum, the list of its variants, and their ids and words from one list.
macro_rules! doings {
    ($($(#[$doc:meta])* $doing:ident = $id:literal, $words:literal;)*) => {
        /// What a replica does.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Doing {
            $($(#[$doc])* $doing,)*
        }

        impl Doing {
            pub const ALL: &'static [Self] = &[$(Self::$doing),*];

            /// The name in JSON and metrics, which never changes.
            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$doing => $id,)*
                }
            }

            pub fn words(self) -> &'static str {
                match self {
                    $(Self::$doing => $words,)*
                }
            }
        }
    };
}

doings! {
    /// The replica is not a copy yet, and `replica create` works on it.
    Copying = "copying", "copying";
    /// The replica applies, and is behind.
    CatchingUp = "catching_up", "catching up";
    /// The replica applies.
    Running = "running", "running";
    Paused = "paused", "paused";
    /// The replica stands still for `replica verify`.
    Held = "held", "held by verify";
    /// The replica's process is not connected to source and target.
    Connecting = "connecting", "connecting";
    /// A change does not fit the target, or the process has ended with an error.
    Stopped = "stopped", "stopped with an error";
    /// No process works on it, and none has left an error.
    NotRunning = "not_running", "not running";
    /// The replica's process is connected to the target and writes nothing.
    Silent = "silent", "silent";
    /// The target is a database of its own, or is being made one: nothing is to be applied.
    Promoted = "promoted", "promoted";
    /// Another command works on it, or a newer lockstep says what this one does not know.
    Other = "other", "not known";
}

impl Serialize for Doing {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.id())
    }
}

impl Replica {
    /// True if it follows no source any more, or is about to.
    pub fn is_promoted(&self) -> bool {
        matches!(self.phase, CopyPhase::Promoting | CopyPhase::Promoted)
    }

    /// True if the replica is a copy: changes are to be applied.
    pub fn is_copied(&self) -> bool {
        self.phase == CopyPhase::Ready
    }

    /// Whether it is late, if it has cycles and its process has just said so: between them it stands still.
    pub fn is_late_by_cycles(&self) -> Option<bool> {
        let runs = self.doing(false) == Doing::Running;
        (self.cycle_every_ms().is_some() && runs)
            .then(|| self.cycle_late_ms.is_some_and(|late| late >= LATE_MS))
    }

    /// Time from the beginning of one cycle to that of the next, in milliseconds.
    pub fn cycle_every_ms(&self) -> Option<f64> {
        self.frequency_ms.filter(|every| *every > 0.0)
    }

    /// Whether its spool is full for another reason than that the target is slow: it holds nothing that the
    /// target could apply, or the target applies in cycles.
    pub fn is_full_by_itself(&self) -> bool {
        let has_nothing = self.spool_from >= self.spool_to;
        self.spool_full.is_some() && (has_nothing || self.cycle_every_ms().is_some())
    }

    /// Verify lets it stand still.
    pub fn is_held(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.held)
    }

    /// What it does. `is_behind` if its source has WAL that it has not applied for some time.
    pub fn doing(&self, is_behind: bool) -> Doing {
        let is_fresh = self.written_age_ms.is_some_and(|age| age <= FRESH_MS);
        match &self.holder {
            _ if self.is_promoted() => Doing::Promoted,
            ReplicaHolder::Nobody if !self.is_copied() => Doing::NotRunning,
            _ if !self.is_copied() => Doing::Copying,
            ReplicaHolder::Nobody if self.paused => Doing::Paused,
            ReplicaHolder::Nobody if self.error.is_some() => Doing::Stopped,
            ReplicaHolder::Nobody => Doing::NotRunning,
            ReplicaHolder::Apply if !is_fresh => Doing::Silent,
            ReplicaHolder::Apply if self.is_held() => Doing::Held,
            ReplicaHolder::Apply => match (&self.apply_state, &self.error) {
                (ApplyState::Applying, _) if is_behind => Doing::CatchingUp,
                (ApplyState::Applying, _) => Doing::Running,
                (ApplyState::Paused, _) => Doing::Paused,
                (ApplyState::Connecting, _) => Doing::Connecting,
                (ApplyState::Blocked, _) | (ApplyState::Stopped, Some(_)) => Doing::Stopped,
                (ApplyState::Stopped, None) => Doing::NotRunning,
                (ApplyState::Other(_), _) => Doing::Other,
            },
            _ => Doing::Other,
        }
    }

    /// The part of the rows that is copied, from 0 to 1. None if that is not known.
    pub fn copied_share(&self) -> Option<f64> {
        let share = self.bytes_done as f64 / self.bytes_total as f64;
        (self.bytes_total > 0).then(|| share.min(1.0))
    }
}

/// A replica at the end of a link, as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplicaReport {
    pub name: String,
    /// None if its target was not asked, as the rest then.
    pub doing: Option<Doing>,
    pub applied_lsn: Option<Lsn>,
    /// Why it does not apply, in the words of `lockstep replica status`.
    pub error: Option<String>,
    pub copied_share: Option<f64>,
    pub missing_rows: Option<u64>,
    pub hold: Option<Hold>,
}

impl ReplicaReport {
    /// What it is and does, in one line.
    pub fn words(&self) -> String {
        let Some(doing) = self.doing else {
            return format!(
                "lockstep replica {}; name its target to see more",
                self.name
            );
        };
        let copied = self
            .copied_share
            .map(|share| format!(", {}", percent(share)));
        let applied = self.applied_lsn.map(|lsn| format!(", applied up to {lsn}"));
        format!(
            "lockstep replica {}, {}{}{}",
            self.name,
            doing.words(),
            copied.unwrap_or_default(),
            applied.unwrap_or_default()
        )
    }

    /// What the slot's name tells.
    pub fn unasked(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            doing: None,
            applied_lsn: None,
            error: None,
            copied_share: None,
            missing_rows: None,
            hold: None,
        }
    }

    pub fn asked(replica: &Replica, is_behind: bool) -> Self {
        let doing = replica.doing(is_behind);
        Self {
            name: replica.name.clone(),
            doing: Some(doing),
            applied_lsn: replica.applied_lsn,
            // What its process wrote last is of a time when it followed a source.
            error: replica.error.clone().filter(|_| doing != Doing::Promoted),
            copied_share: replica.copied_share().filter(|_| doing == Doing::Copying),
            missing_rows: Some(replica.missing_rows),
            hold: replica.hold.clone(),
        }
    }
}

/// The name of the replica that a slot was made for; None if it is another's.
pub fn of_slot(slot: &Slot) -> Option<&str> {
    let may_be = slot.slot_type == SlotType::Logical && !slot.temporary;
    named(&slot.slot_name).filter(|_| may_be)
}

/// The name of the replica that a slot of this name was made for.
pub fn named(slot: &str) -> Option<&str> {
    let (name, digits) = slot.strip_prefix(SLOT_PREFIX)?.rsplit_once('_')?;
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let is_ours = digits.len() == SLOT_DIGITS && digits.chars().all(is_digit);
    (is_ours && !name.is_empty()).then_some(name)
}

/// Whether a database has the state of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kept {
    #[default]
    Absent,
    /// The state is of a version from before [`question`]; who owns it can upgrade it.
    Older,
    /// Reading it could run code of whoever owns it.
    Untrusted,
    Readable,
}

/// The expression for [`Kept`], in SQL. Every role may see it. The tables' owner can change them after
/// this: so a superuser reads only its own and another superuser's.
pub fn kept() -> String {
    format!(
        "(SELECT CASE WHEN count(*) = 0 THEN 'absent' \
           WHEN bool_or({NOT_PLAIN} IS NOT NULL) OR bool_or(me.rolsuper AND NOT o.rolsuper) \
             THEN 'untrusted' \
           WHEN count(DISTINCT c.oid) = 3 THEN 'readable' ELSE 'older' END \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
           JOIN pg_roles o ON o.oid IN (c.relowner, n.nspowner) \
           JOIN pg_roles me ON me.rolname = current_user \
         WHERE n.nspname = 'lockstep' AND c.relname IN ('replica', 'hold', 'table_copy'))"
    )
}

/// Why a state that could run code is not read.
pub const UNTRUSTED: &str = "the target's schema lockstep is not read: its tables are such as lockstep does \
     not make them, or this role is a superuser and their owner is none, whose code could run; connect as \
     their owner, or as a role of pg_monitor";

/// Why a state of an older version cannot be read.
pub const OLDER: &str = "the target's schema lockstep is of an older version; run lockstep replica \
     status once as its owner";

/// The sessions that hold a replica's advisory lock, in SQL.
fn holders(lock: &str) -> String {
    format!(
        "FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
           AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
           AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended('{lock} ' || r.name, 0)"
    )
}

/// The replicas of a database that has the state of some, in SQL: what they select gives [`Replica`].
pub fn question() -> String {
    let (at_work, who_holds) = (holders("lockstep replica"), holders("lockstep hold"));
    format!(
        "SELECT r.name, r.slot, r.phase, r.paused, r.bytes_total, r.bytes_done, \
           (SELECT CASE WHEN count(*) = 0 THEN 'nobody' WHEN bool_or(l.pid = r.apply_pid) \
              THEN 'apply' ELSE 'other' END {at_work}) AS holder, \
           coalesce(r.apply_state, '') AS apply_state, r.applied_lsn, \
           left(r.apply_error, {MOST_ERROR}) AS error, \
           1000 * extract(epoch FROM clock_timestamp() - r.applied_at) AS written_age_ms, \
           (SELECT coalesce(sum(t.missing_rows), 0)::bigint FROM lockstep.table_copy t \
              WHERE t.replica = r.name) AS missing_rows, \
           (to_jsonb(r) ->> 'unreplicated_tables')::bigint AS unreplicated_tables, \
           left(to_jsonb(r) ->> 'unreplicated', {MOST_ERROR}) AS unreplicated, \
           (to_jsonb(r) ->> 'unmade_objects')::bigint AS unmade_objects, \
           left(to_jsonb(r) ->> 'unmade', {MOST_ERROR}) AS unmade, \
           (to_jsonb(r) ->> 'frequency_ms')::float8 AS frequency_ms, \
           (to_jsonb(r) ->> 'cycle_late_ms')::float8 AS cycle_late_ms, \
           (to_jsonb(r) ->> 'spool_bytes')::bigint AS spool_bytes, \
           (to_jsonb(r) ->> 'spool_limit')::bigint AS spool_limit, \
           to_jsonb(r) ->> 'spool_from' AS spool_from, to_jsonb(r) ->> 'spool_to' AS spool_to, \
           left(to_jsonb(r) ->> 'spool_full', {MOST_ERROR}) AS spool_full, \
           to_jsonb(r) ->> 'spool_full_by' AS spool_full_by, \
           (SELECT to_json(h) FROM (SELECT w.pid, a.usename AS user, \
                host(a.client_addr) AS client, w.held IS NOT NULL AS held, \
                1000 * extract(epoch FROM clock_timestamp() - a.backend_start) AS age_ms \
              FROM lockstep.hold w LEFT JOIN pg_stat_activity a ON a.pid = w.pid \
              WHERE w.replica = r.name AND w.until > clock_timestamp() \
                AND w.pid IN (SELECT l.pid {who_holds})) h) AS hold \
         FROM lockstep.replica r ORDER BY r.name LIMIT {MOST_REPLICAS}"
    )
}
