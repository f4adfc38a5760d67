//! A replica with a spool: what the slot sends is kept while the target is away or slow.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep_apply::{Control, Phase, SpoolConfig, SpoolStats, Stats};
use lockstep_client::{Connection, Purpose, SlotState};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Stop};
use lockstep_replica::error::ReplicaError;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::follow::{Following, follow};
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::{Replica, ReplicaState};
use lockstep_replica::verify::named::replica as verify;
use lockstep_wire::Lsn;

use crate::apply_lab::{Ends, LONG, until, while_following};
use crate::{Told, conninfo, copied, on, options, sql, to_verify, values};

/// Larger than anything here.
const LARGE: u64 = 1 << 30;

/// Replica r of a table t, which has no key, so that a row that comes twice is there twice.
struct Spooled {
    source: Server,
    target: Server,
    replica: Replica,
    folder: PathBuf,
    limit: u64,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Spooled {
    fn new() -> Self {
        let table = "CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY FULL";
        let (lab, source, target) = copied(table);
        let mut state = ReplicaState::open(&conninfo(&target)).unwrap();
        let replica = state.replica("r").unwrap().unwrap();
        Self {
            source,
            target,
            replica,
            folder: lab.folder().join("spool"),
            limit: LARGE,
            lab,
        }
    }

    fn following(&self) -> Following {
        Following {
            spool: Some(SpoolConfig {
                folder: self.folder.clone(),
                limit: self.limit,
            }),
            ..crate::following(&conninfo(&self.target))
        }
    }

    /// Follows while something happens.
    fn while_following(
        &mut self,
        happens: impl FnOnce(&mut Self, &Control),
    ) -> Result<(), ReplicaError> {
        while_following(&self.following(), |control| happens(self, control))
    }

    /// The error with which it ends by itself.
    fn refused(&self) -> String {
        let control = Control::default();
        let what = self.following();
        std::thread::scope(|scope| {
            let _ends = Ends(&control);
            let following = scope.spawn(|| follow(&what, &control));
            until("that it ends", || following.is_finished());
            following.join().unwrap().unwrap_err().to_string()
        })
    }

    fn slot(&self) -> SlotState {
        let slot = sql(&self.source).slot(&self.replica.slot).unwrap();
        slot.unwrap()
    }

    /// Rows with these numbers, of about 100 bytes each; waits until the slot has confirmed them.
    fn write(&self, from: u32, to: u32) -> Lsn {
        self.insert(from, to);
        let end = self.source.flush_lsn().unwrap();
        until("that the slot confirms what was written", || {
            self.slot().confirmed >= end
        });
        end
    }

    fn insert(&self, from: u32, to: u32) {
        let insert = format!(
            "INSERT INTO t SELECT n, repeat(md5(n::text), 3) FROM generate_series({from}, {to}) n"
        );
        on(&self.source, &insert);
    }

    fn reach_end(&self, control: &Control) {
        let end = self.source.flush_lsn().unwrap();
        let reached = control.wait_for(LONG, |stats| {
            stats.applied >= end || stats.phase == Phase::Stopped
        });
        assert!(reached, "{end}: {:?}", control.stats());
    }

    fn assert_same(&self) {
        let all = "SELECT count(*) || ' ' || sum(hashtext(t::text)) FROM t";
        assert_eq!(values(&self.source, all), values(&self.target, all));
    }

    fn away(&mut self) {
        self.target.stop(Stop::Immediate).unwrap();
    }

    fn back(&mut self) {
        self.target.start().unwrap();
    }

    /// Spools rows while the target is away, and ends.
    fn spool(&mut self, rows: u32) {
        let ended = self.while_following(|this, control| {
            this.reach_end(control);
            this.away();
            for from in (1..=rows).step_by(500) {
                this.write(from, rows.min(from + 499));
            }
        });
        ended.unwrap();
    }

    /// The spool's segments, the oldest first.
    fn segments(&self) -> Vec<PathBuf> {
        let names = std::fs::read_dir(&self.folder).unwrap();
        let names = names.map(|name| name.unwrap().path());
        let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "spool");
        let mut segments: Vec<_> = names.filter(is_segment).collect();
        segments.sort();
        segments
    }
}

/// A server's files, as they are now.
fn copy_of(lab: &Lab, server: &mut Server) -> PathBuf {
    server.stop(Stop::Fast).unwrap();
    let backup = lab.folder().join("backup");
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(server.data()).arg(&backup);
    assert!(copy.status().unwrap().success());
    server.start().unwrap();
    backup
}

fn set_back(server: &mut Server, backup: &Path) {
    server.stop(Stop::Fast).unwrap();
    std::fs::remove_dir_all(server.data()).unwrap();
    std::fs::rename(backup, server.data()).unwrap();
    server.start().unwrap();
}

fn full(control: &Control) -> String {
    let full = |stats: &Stats| stats.spool.as_ref().and_then(|spool| spool.full.clone());
    assert!(
        control.wait_for(LONG, |stats| full(stats).is_some()),
        "{:?}",
        control.stats()
    );
    full(&control.stats()).unwrap().words
}

fn held(control: &Control) -> SpoolStats {
    control.stats().spool.unwrap()
}

#[test]
fn while_the_target_is_away_the_source_need_not_keep_wal() {
    let mut spooled = Spooled::new();
    let ended = spooled.while_following(|this, control| {
        this.write(1, 10);
        this.reach_end(control);
        this.away();
        let began = this.slot();
        let end = this.write(11, 20_000);
        until("that the slot needs no WAL from before", || {
            on(&this.source, "CHECKPOINT");
            this.insert(0, 0);
            let slot = this.slot();
            slot.restart > began.confirmed && slot.confirmed > end
        });
        let spool = held(control);
        assert!(
            spool.from < end && spool.to >= end && spool.bytes > 1 << 20,
            "{spool:?}"
        );
        this.back();
        this.reach_end(control);
        this.assert_same();
        // What the target has on disk is held no longer.
        assert!(control.wait_for(LONG, |stats| {
            let spool = stats.spool.as_ref().unwrap();
            spool.from >= end
        }));
        let mut state = ReplicaState::open(&conninfo(&this.target)).unwrap();
        until("that status says so", || {
            let spool = state.applied("r").unwrap().spool;
            spool.is_some_and(|spool| spool.limit == LARGE && spool.from >= end)
        });
    });
    ended.unwrap();
}

#[test]
fn what_was_spooled_is_applied_by_a_later_process() {
    let mut spooled = Spooled::new();
    spooled.spool(1_000);
    // It goes on though nobody can ask the target whose replica it is.
    let again = spooled.while_following(|this, control| {
        this.write(1_001, 2_000);
        assert_eq!(control.stats().sessions, 0);
    });
    again.unwrap();
    spooled.source.stop(Stop::Fast).unwrap();
    spooled.back();
    // All of it is here: the source is not needed.
    let drained = spooled.while_following(|this, _| {
        let there = "SELECT count(*) FROM t";
        until("that all is applied", || {
            values(&this.target, there) == ["2000"]
        });
    });
    drained.unwrap();
    spooled.source.start().unwrap();
    let live = spooled.while_following(|this, control| {
        this.insert(2_001, 2_010);
        this.reach_end(control);
        this.assert_same();
    });
    live.unwrap();
}

#[test]
fn an_end_that_is_not_whole_is_cut_and_a_confirmed_one_is_missed() {
    let mut spooled = Spooled::new();
    spooled.spool(100);
    let newest = spooled.segments().pop().unwrap();
    let whole = std::fs::read(&newest).unwrap();
    let torn = [&whole[..], &whole[whole.len() - 700..]].concat();
    std::fs::write(&newest, torn).unwrap();
    let again = spooled.while_following(|this, _| {
        this.write(101, 200);
    });
    again.unwrap();
    let kept = std::fs::read(format!("{}.damaged", newest.display())).unwrap();
    assert_eq!(kept, whole[whole.len() - 700..], "what was cut is kept");
    // Now one that the source was told is here.
    let length = std::fs::metadata(&newest).unwrap().len();
    let file = OpenOptions::new().write(true).open(&newest).unwrap();
    file.set_len(length - 2_000).unwrap();
    spooled.back();
    let words = spooled.refused();
    assert!(
        words.contains("is damaged or missing") && words.contains(&*newest.to_string_lossy()),
        "{words}"
    );
    // All that is whole was applied, and nothing else.
    assert_eq!(values(&spooled.target, "SELECT count(*) FROM t"), ["100"]);
}

#[test]
fn a_changed_byte_is_an_error_that_names_the_file() {
    let mut spooled = Spooled::new();
    spooled.spool(2_000);
    let newest = spooled.segments().pop().unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&newest)
        .unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    byte[0] ^= 1;
    file.write_all_at(&byte, middle).unwrap();
    // All of it was durable, so nothing of it is taken for an unwritten end.
    let damaged = std::fs::read(&newest).unwrap();
    spooled.back();
    let words = spooled.refused();
    assert!(words.contains("is damaged or missing"), "{words}");
    assert_eq!(std::fs::read(&newest).unwrap(), damaged);
    assert!(words.contains(&*newest.to_string_lossy()), "{words}");
    let there: u32 = values(&spooled.target, "SELECT count(*) FROM t")[0]
        .parse()
        .unwrap();
    assert!(0 < there && there < 2_000 && there % 500 == 0, "{there}");
}

#[test]
fn an_older_segment_that_is_damaged_or_missing_is_never_skipped() {
    for damage in ["changed", "missing"] {
        let mut spooled = Spooled::new();
        // Segments are a quarter of it.
        spooled.limit = 4 << 20;
        spooled.spool(22_000);
        let segments = spooled.segments();
        assert!(segments.len() > 2, "{segments:?}");
        let second = &segments[1];
        match damage {
            "missing" => std::fs::remove_file(second).unwrap(),
            _ => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(second)
                    .unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, 5_000).unwrap();
                byte[0] ^= 0x10;
                file.write_all_at(&byte, 5_000).unwrap();
            }
        }
        spooled.back();
        let words = spooled.refused();
        let name = second.file_name().unwrap().to_string_lossy();
        let shown = if damage == "missing" {
            &name[..9]
        } else {
            &*name
        };
        assert!(words.contains("is damaged or missing"), "{damage}: {words}");
        assert_has!(words, shown, "create it again");
        let there: u32 = values(&spooled.target, "SELECT count(*) FROM t")[0]
            .parse()
            .unwrap();
        assert!(
            0 < there && there < 22_000 && there % 500 == 0,
            "{damage}: {there}"
        );
    }
}

#[test]
fn what_comes_before_a_damaged_transaction_is_applied() {
    let mut spooled = Spooled::new();
    spooled.limit = 4 << 20;
    let ended = spooled.while_following(|this, control| {
        this.reach_end(control);
        this.away();
        this.write(1, 100);
        // It has several records, and a whole segment follows.
        this.write(101, 6_000);
        for from in (6_001..20_000).step_by(500) {
            this.write(from, from + 499);
        }
    });
    ended.unwrap();
    let oldest = spooled.segments().remove(0);
    assert!(spooled.segments().len() > 1);
    let file = OpenOptions::new().read(true).write(true).open(&oldest);
    let file = file.unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 500_000).unwrap();
    byte[0] ^= 1;
    file.write_all_at(&byte, 500_000).unwrap();
    spooled.back();
    let words = spooled.refused();
    assert!(words.contains("is damaged or missing"), "{words}");
    assert!(words.contains(&*oldest.to_string_lossy()), "{words}");
    assert_eq!(values(&spooled.target, "SELECT count(*) FROM t"), ["100"]);
}

#[test]
fn a_full_spool_leaves_the_rest_to_the_source() {
    let mut spooled = Spooled::new();
    spooled.limit = 1 << 20;
    let ended = spooled.while_following(|this, control| {
        this.reach_end(control);
        this.away();
        for from in (1..20_000).step_by(500) {
            this.insert(from, from + 499);
        }
        let end = this.source.flush_lsn().unwrap();
        let words = full(control);
        assert!(words.contains("until the target has"), "{words}");
        let spool = held(control);
        assert!(spool.bytes <= 1 << 20, "{spool:?}");
        assert!(spool.to < end && this.slot().confirmed < end, "{spool:?}");
        this.back();
        this.reach_end(control);
        this.assert_same();
        assert!(control.wait_for(LONG, |stats| {
            stats
                .spool
                .as_ref()
                .is_some_and(|spool| spool.full.is_none())
        }));
    });
    ended.unwrap();
}

#[test]
fn a_transaction_larger_than_the_spool_is_said_and_a_larger_spool_takes_it() {
    let mut spooled = Spooled::new();
    spooled.limit = 1 << 20;
    let ended = spooled.while_following(|this, control| {
        this.insert(1, 20_000);
        let words = full(control);
        assert!(words.contains("raise spool_limit"), "{words}");
        let mut state = ReplicaState::open(&conninfo(&this.target)).unwrap();
        until("that status says so", || {
            let spool = state.applied("r").unwrap().spool;
            spool.is_some_and(|spool| {
                spool
                    .full
                    .is_some_and(|full| full.words.contains("spool_limit"))
            })
        });
    });
    ended.unwrap();
    spooled.limit = LARGE;
    let ended = spooled.while_following(|this, control| {
        this.reach_end(control);
        this.assert_same();
    });
    ended.unwrap();
}

#[test]
fn a_stream_that_is_lost_within_a_transaction_brings_it_again() {
    let mut spooled = Spooled::new();
    let ended = spooled.while_following(|this, control| {
        this.reach_end(control);
        let terminate = format!(
            "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots \
             WHERE slot_name = '{}' AND active_pid IS NOT NULL",
            this.replica.slot
        );
        let before = control.stats().bytes;
        this.insert(1, 100_000);
        for parts in 1..4 {
            let reached = control.wait_for(LONG, |stats| stats.bytes > before + parts * 1_000_000);
            assert!(reached, "{:?}", control.stats());
            values(&this.source, &terminate);
        }
        this.insert(100_001, 100_010);
        this.reach_end(control);
        this.assert_same();
    });
    ended.unwrap();
}

#[test]
fn a_spool_of_another_replica_is_refused() {
    let mut spooled = Spooled::new();
    spooled.spool(10);
    spooled.back();
    remove("r", &conninfo(&spooled.target), None).unwrap();
    on(&spooled.target, "DROP TABLE t");
    create(
        &options(&spooled.source, &spooled.target),
        &mut Told::default(),
    )
    .unwrap();
    let words = spooled.refused();
    assert!(words.contains("belongs to another replica"), "{words}");
    assert!(
        words.contains("replica.json") && words.contains(&spooled.replica.slot),
        "{words}"
    );
    // Without its file nobody knows whose it is.
    std::fs::remove_file(spooled.folder.join("replica.json")).unwrap();
    let words = spooled.refused();
    assert!(words.contains("which says whose they are"), "{words}");
    std::fs::remove_dir_all(&spooled.folder).unwrap();
    let begun = spooled.while_following(|this, control| {
        this.insert(11, 20);
        this.reach_end(control);
        this.assert_same();
    });
    begun.unwrap();
    // And without its segments it has lost them.
    for segment in spooled.segments() {
        std::fs::remove_file(segment).unwrap();
    }
    let words = spooled.refused();
    assert!(words.contains("has lost its segments"), "{words}");
}

#[test]
fn a_folder_with_other_files_is_left_alone() {
    let spooled = Spooled::new();
    std::fs::create_dir(&spooled.folder).unwrap();
    let mode = || {
        std::fs::metadata(&spooled.folder)
            .unwrap()
            .permissions()
            .mode()
    };
    std::fs::set_permissions(&spooled.folder, Permissions::from_mode(0o755)).unwrap();
    std::fs::write(spooled.folder.join("else"), "").unwrap();
    let before = mode();
    let words = spooled.refused();
    assert!(words.contains("is not empty and no spool"), "{words}");
    assert_eq!(mode(), before);
}

#[test]
fn a_slot_that_was_moved_is_refused_with_a_spool_too() {
    let mut spooled = Spooled::new();
    spooled.spool(10);
    spooled.back();
    sql(&spooled.source)
        .drop_slot(&spooled.replica.slot)
        .unwrap();
    spooled.insert(11, 20);
    let maker = Connection::connect(&conninfo(&spooled.source), Purpose::Replication, "test");
    (maker
        .unwrap()
        .create_slot(&spooled.replica.slot, "pgoutput", false, false))
    .unwrap();
    let words = spooled.refused();
    assert!(words.contains("made again or moved"), "{words}");
    assert_eq!(values(&spooled.target, "SELECT count(*) FROM t"), ["10"]);
}

#[test]
fn without_its_spool_a_replica_misses_what_is_there() {
    let mut spooled = Spooled::new();
    spooled.spool(10);
    spooled.back();
    let control = Control::default();
    let without = follow(&crate::following(&conninfo(&spooled.target)), &control);
    let words = without.unwrap_err().to_string();
    assert!(words.contains("spool_dir"), "{words}");
    assert_eq!(values(&spooled.target, "SELECT count(*) FROM t"), ["0"]);
}

#[test]
fn a_target_that_went_on_without_the_spool_begins_it_anew() {
    let mut spooled = Spooled::new();
    let both = |this: &mut Spooled, control: &Control| {
        this.insert(1, 10);
        this.reach_end(control);
        // The target stands where the source was told.
        until("that the target has all that is confirmed", || {
            let stands = "SELECT max(remote_lsn) FROM pg_replication_origin_status";
            let stands: Lsn = values(&this.target, stands)[0].parse().unwrap();
            stands >= this.slot().confirmed
        });
    };
    spooled.while_following(both).unwrap();
    let before = std::fs::read(spooled.segments().pop().unwrap()).unwrap();
    let without = crate::following(&conninfo(&spooled.target));
    let followed = while_following(&without, |control| {
        spooled.insert(11, 20);
        spooled.reach_end(control);
    });
    followed.unwrap();
    spooled.while_following(both).unwrap();
    spooled.assert_same();
    let after = std::fs::read(spooled.segments().pop().unwrap()).unwrap();
    assert!(
        !after.starts_with(&before[..72]),
        "the first segment begins elsewhere"
    );
}

#[test]
fn a_target_that_is_set_back_gets_again_what_the_spool_still_has() {
    let mut spooled = Spooled::new();
    let rows = |this: &mut Spooled, control: &Control| {
        this.write(1, 10);
        this.reach_end(control);
    };
    spooled.while_following(rows).unwrap();
    let backup = copy_of(&spooled.lab, &mut spooled.target);
    spooled.while_following(rows).unwrap();
    set_back(&mut spooled.target, &backup);
    spooled.while_following(rows).unwrap();
    spooled.assert_same();
}

/// Positions alone do not show it: the slot stands before the spool's end, and the WAL ends after it.
#[test]
fn a_source_that_was_set_back_and_has_written_on_is_noticed() {
    let mut spooled = Spooled::new();
    spooled
        .while_following(|this, control| {
            this.write(1, 10);
            this.reach_end(control);
        })
        .unwrap();
    let backup = copy_of(&spooled.lab, &mut spooled.source);
    let mut end = Lsn::INVALID;
    spooled
        .while_following(|this, control| {
            end = this.write(11, 20);
            this.reach_end(control);
        })
        .unwrap();
    set_back(&mut spooled.source, &backup);
    let mut next = 1_000;
    while spooled.source.flush_lsn().unwrap() <= end {
        spooled.insert(next, next + 99);
        next += 100;
    }
    spooled.insert(next, next + 99);
    let before = spooled.slot().confirmed;
    assert!(before < end);
    let words = spooled.refused();
    for said in ["was set back", "other WAL since", "create it again"] {
        assert!(words.contains(said), "{words}");
    }
    // Nothing of the other WAL was taken, and the slot is as it was.
    let there = "SELECT count(*) || ' ' || max(id) FROM t";
    assert_eq!(values(&spooled.target, there), ["20 20"]);
    assert_eq!(spooled.slot().confirmed, before);
    // Nor by a later process.
    assert!(spooled.refused().contains("was set back"));
}

/// What a process remembers of its commits can be of a target that has lost them since.
#[test]
fn only_the_origin_says_where_a_target_stands() {
    let mut spooled = Spooled::new();
    let pause = |this: &Spooled, control: &Control, paused: bool| {
        let mut state = ReplicaState::open(&conninfo(&this.target)).unwrap();
        state.set_paused("r", paused).unwrap();
        control.wait_for(LONG, |stats| (stats.phase == Phase::Paused) == paused);
    };
    let ended = spooled.while_following(|this, control| {
        this.reach_end(control);
        pause(this, control, true);
        let backup = copy_of(&this.lab, &mut this.target);
        pause(this, control, false);
        let end = this.write(1, 10);
        this.reach_end(control);
        pause(this, control, true);
        set_back(&mut this.target, &backup);
        let said = format!("SELECT count(*) FROM lockstep.replica WHERE applied_lsn >= '{end}'");
        until("that the target is told of it", || {
            values(&this.target, &said) == ["1"]
        });
        assert_eq!(values(&this.target, "SELECT count(*) FROM t"), ["0"]);
        pause(this, control, false);
        this.write(11, 20);
        this.reach_end(control);
    });
    ended.unwrap();
    spooled.assert_same();
}

#[test]
fn on_waits_for_the_spool_and_remote_apply_for_the_target() {
    let mut spooled = Spooled::new();
    let ended = spooled.while_following(|this, control| {
        this.reach_end(control);
        this.source
            .set([("synchronous_standby_names", "r")])
            .unwrap();
        this.source.reload().unwrap();
        until("that the replica is a synchronous standby", || {
            let state = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'r'";
            values(&this.source, state) == ["sync"]
        });
        let mut locker = sql(&this.target);
        locker.execute("BEGIN; LOCK TABLE t").unwrap();
        let mut source = sql(&this.source);
        for level in ["remote_write", "on"] {
            // They return, though the target can change nothing.
            let insert = format!("SET synchronous_commit = {level}; INSERT INTO t VALUES (1)");
            source.execute(&insert).unwrap();
            let end = this.source.flush_lsn().unwrap();
            until("that the spool has it on disk", || held(control).to >= end);
        }
        let waits = std::thread::scope(|scope| {
            let commit = scope.spawn(move || {
                let insert = "SET synchronous_commit = remote_apply; INSERT INTO t VALUES (2)";
                source.execute(insert).unwrap();
            });
            let end = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            until("that the commit waits", || {
                !values(&this.source, end).is_empty()
            });
            let last = this.source.flush_lsn().unwrap();
            until("that the spool has it on disk", || held(control).to >= last);
            // The source has been told so, and it waits all the same.
            until("that the source knows", || this.slot().confirmed >= last);
            let waits = !values(&this.source, end).is_empty() && !commit.is_finished();
            locker.execute("ROLLBACK").unwrap();
            commit.join().unwrap();
            waits
        });
        assert!(waits, "remote_apply did not wait for the target");
        assert_eq!(values(&this.target, "SELECT count(*) FROM t"), ["3"]);
        this.source.unset("synchronous_standby_names").unwrap();
        this.source.reload().unwrap();
    });
    ended.unwrap();
}

#[test]
fn verify_compares_a_replica_with_a_spool() {
    let mut spooled = Spooled::new();
    let ended = spooled.while_following(|this, control| {
        this.insert(1, 1_000);
        this.reach_end(control);
        let what = to_verify(conninfo(&this.target));
        let report = verify(&what, &mut |_| {}).unwrap();
        assert!(report.is_equal(), "{report:?}");
        this.insert(1_001, 1_010);
        this.reach_end(control);
        this.assert_same();
    });
    ended.unwrap();
}
