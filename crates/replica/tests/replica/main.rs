//! Against real servers: each test has its own.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod altered;
mod apply_after_copy;
mod apply_at_once;
mod apply_cases;
mod apply_killed;
mod apply_lab;
mod apply_large;
mod apply_random;
mod apply_shapes;
mod apply_standby;
mod apply_tables_random;
mod apply_together;
mod apply_truncates;
mod apply_writers;
mod attached;
mod binary_alike;
mod collations;
mod comes_back;
mod create;
mod cycles;
mod ddl;
mod ddl_doubts;
mod ddl_left_out;
mod ddl_random;
mod event_triggers;
mod exporter;
mod failpoints;
mod gaps;
mod home;
mod majors;
mod many_tables;
mod partitions;
mod preflight;
mod publication;
mod read_only;
mod renamed;
mod resume;
mod schema_changes;
mod spool;
mod start;
mod state;
mod subsets;
mod subsets_preflight;
mod subsets_random;
mod switchover_simulation;
mod trust;
mod unmade;
mod values;
mod verify_besides;
mod verify_cases;
mod verify_changed;

use std::sync::Arc;
use std::time::Duration;

use lockstep_apply::MEMORY;
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{major, source_major};
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use lockstep_replica::copy::progress::Moment;
use lockstep_replica::error::Finding;
use lockstep_replica::lifecycle::Watcher;
use lockstep_replica::lifecycle::alter::AlterOptions;
use lockstep_replica::lifecycle::alteration::Wishes;
use lockstep_replica::lifecycle::create::{CreateOptions, create};
use lockstep_replica::lifecycle::follow::Following;
use lockstep_replica::lifecycle::promote::Promote;
use lockstep_replica::lifecycle::promotion::Wish;
use lockstep_replica::names::Excluded;
use lockstep_replica::publication::subset::gather;
use lockstep_replica::state::{Phase, Replica, ReplicaState};
use lockstep_replica::switchover::run::{Compare, SwitchWatcher, Switchover};
use lockstep_replica::verify::Replicated;

use self::apply_lab::LONG;

lockstep_lab::reaper_entry!();

fn settings() -> Settings {
    [
        ("wal_level", "logical"),
        ("shared_buffers", "16MB"),
        ("max_connections", "30"),
        ("autovacuum", "off"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// A new server; `source` has the source's major.
fn primary(lab: &Lab, name: &str) -> Server {
    let major = match name {
        "source" => source_major().unwrap(),
        _ => major().unwrap(),
    };
    lab.primary_of(major, name, &settings()).unwrap()
}

/// A server with an empty database `copy`.
fn server(lab: &Lab, name: &str) -> Server {
    let server = primary(lab, name);
    server.execute("CREATE DATABASE copy").unwrap();
    server
}

fn conninfo(server: &Server) -> Conninfo {
    Conninfo::parse(&server.conninfo(SUPERUSER))
        .unwrap()
        .with_database("copy")
        .unwrap()
}

/// Replica r of a target.
fn following(target: &Conninfo) -> Following {
    Following {
        name: "r".to_owned(),
        target: target.clone(),
        source: None,
        memory: MEMORY,
        writers: 1.into(),
        spool: None,
    }
}

fn sql(server: &Server) -> Connection {
    Connection::connect(&conninfo(server), Purpose::Sql, "lockstep test").unwrap()
}

/// Runs statements in database `copy`.
fn on(server: &Server, statements: &str) {
    sql(server).execute(statements).unwrap();
}

/// A source with this schema and rows, and an empty target.
fn pair(schema: &str) -> (Lab, Server, Server) {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    on(&source, schema);
    (lab, source, target)
}

/// A source with this schema and rows, and a target to which replica r has copied them.
fn copied(schema: &str) -> (Lab, Server, Server) {
    let (lab, source, target) = pair(schema);
    create(&options(&source, &target), &mut Told::default()).unwrap();
    (lab, source, target)
}

/// The state of replicas in a target, which has some.
fn state_of(target: &Server) -> ReplicaState {
    ReplicaState::find(&conninfo(target)).unwrap().unwrap()
}

/// Replica r of a target, to verify it.
fn to_verify(target: Conninfo) -> Replicated {
    Replicated {
        name: "r".to_owned(),
        target,
        source: None,
        jobs: 1,
        patience: LONG,
    }
}

/// Replica r of a target, to promote it.
fn to_promote(target: Conninfo) -> Promote {
    Promote {
        name: "r".to_owned(),
        target,
        source: None,
        wish: Wish::default(),
        patience: LONG,
    }
}

/// Replica r of a target, to switch over to it.
fn to_switch(target: Conninfo) -> Switchover {
    Switchover {
        name: "r".to_owned(),
        target,
        source: None,
        compare: Compare::Counts,
        pooler: None,
        on_switch: None,
        way_back: Some("back".to_owned()),
        max_pause: LONG,
        timeout: LONG,
        stop: Arc::default(),
    }
}

/// Leaves out a table, takes a part of another, and takes one that was made later.
fn to_alter(target: Conninfo) -> AlterOptions {
    let tables = |name: &str| Excluded {
        tables: vec![name.to_owned()],
        ..Excluded::default()
    };
    AlterOptions {
        name: "r".to_owned(),
        target,
        source: None,
        wishes: Wishes {
            exclude: tables("public.emptied"),
            include: tables("public.later"),
            subsets: gather(&["public.much=n % 2 = 0".to_owned()], &[]).unwrap(),
            whole: Vec::new(),
        },
        drops: false,
        jobs: 2,
    }
}

fn options(source: &Server, target: &Server) -> CreateOptions {
    create_options(conninfo(source), conninfo(target))
}

fn create_options(source: Conninfo, target: Conninfo) -> CreateOptions {
    CreateOptions {
        name: "r".to_owned(),
        source,
        target,
        excluded: Excluded::default(),
        subsets: Vec::new(),
        jobs: 2,
        bytes_per_s: None,
        skip_large_objects: false,
        frequency: Duration::ZERO,
        ddl: false,
        read_only: false,
    }
}

/// A replica that nothing is known of but that it has begun; `of_source` are its slot, publication and
/// origin.
fn begun(name: &str, of_source: &str) -> Replica {
    Replica {
        name: name.to_owned(),
        source: "host=a".to_owned(),
        system_id: "7".to_owned(),
        source_database: "copy".to_owned(),
        slot: of_source.to_owned(),
        publication: of_source.to_owned(),
        origin: of_source.to_owned(),
        exclude_schemas: Vec::new(),
        exclude_tables: Vec::new(),
        subsets: Vec::new(),
        phase: Phase::Preparing,
        start: None,
        paused: false,
        resumes: 0,
        frequency: Duration::ZERO,
        forces: 0,
        ddl: false,
        altering: false,
        read_only: false,
        bandwidth: None,
    }
}

/// The first column of all rows.
fn values(server: &Server, query: &str) -> Vec<String> {
    let rows = server.rows_in("copy", query).unwrap();
    rows.into_iter()
        .map(|row| row[0].clone().unwrap_or_else(|| "null".to_owned()))
        .collect()
}

/// Whoever was told what, in order.
#[derive(Default)]
struct Told {
    findings: Vec<Finding>,
    phases: Vec<(Phase, bool)>,
    moments: Vec<Moment>,
    waits: Vec<String>,
    /// Called at the beginning of each phase.
    at_phase: Option<Box<dyn FnMut(Phase)>>,
}

impl Watcher for Told {
    fn found(&mut self, findings: &[Finding]) {
        self.findings = findings.to_vec();
    }

    fn phase(&mut self, phase: Phase, again: bool) {
        self.phases.push((phase, again));
        if let Some(at_phase) = &mut self.at_phase {
            at_phase(phase);
        }
    }

    fn waits(&mut self, words: &str) {
        self.waits.push(words.to_owned());
    }

    fn progress(&mut self, moment: &Moment) {
        self.moments.push(*moment);
    }
}

impl SwitchWatcher for Told {
    fn found(&mut self, findings: &[Finding]) {
        self.findings = findings.to_vec();
    }

    fn says(&mut self, words: &str) {
        self.waits.push(words.to_owned());
    }
}
