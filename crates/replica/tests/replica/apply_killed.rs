//! A random workload while the process that applies, the source and the target are killed (SIGKILL) at
//! random moments.
//!
//! The process is this test binary, started again with one test alone.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_replica::apply::{Control, SpoolConfig};
use lockstep_replica::create::create;
use lockstep_replica::follow::{Following, follow};

use crate::apply_lab::until;
use crate::apply_random::{SCHEMA, from_environment, statement, transaction};
use crate::subsets::compare;
use crate::{Told, conninfo, following, options, server, sql, values};

const TARGET: &str = "LOCKSTEP_TEST_FOLLOWER_TARGET";
const WRITERS: &str = "LOCKSTEP_TEST_FOLLOWER_WRITERS";
const SPOOL: &str = "LOCKSTEP_TEST_FOLLOWER_SPOOL";

/// Before it tries again, as `replica run` does after longer.
const PAUSE: Duration = Duration::from_millis(50);

/// What a [`Follower`] does; in an ordinary run of the tests there is nothing to follow.
#[test]
fn follower_entry() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    // It ends with the test that has started it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let spool = std::env::var_os(SPOOL).map(|folder| SpoolConfig {
        folder: folder.into(),
        limit: 1 << 30,
    });
    let what = Following {
        memory: 1024 * 1024,
        writers: from_environment(WRITERS).unwrap() as usize,
        spool,
        ..following(&Conninfo::parse(&target).unwrap())
    };
    loop {
        if let Err(error) = follow(&what, &Control::default()) {
            eprintln!("{error}");
        }
        std::thread::sleep(PAUSE);
    }
}

/// A process that applies until it is killed.
struct Follower(Child);

impl Follower {
    fn start(target: &Server, writers: usize, spool: Option<&Path>, log: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "apply_killed::follower_entry", "--nocapture"]);
        command.env(TARGET, conninfo(target).to_string());
        command.env(WRITERS, writers.to_string());
        if let Some(folder) = spool {
            command.env(SPOOL, folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Self(command.stderr(log.unwrap()).spawn().unwrap())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Commits transactions, whatever happens to the server meanwhile.
fn write(rng: &mut Rng, source: &Conninfo, transactions: u32) {
    let connect = || -> Result<Connection, ClientError> {
        Connection::connect(source, Purpose::Sql, "lockstep test")
    };
    let mut session = None;
    for _ in 0..transactions {
        let done = session
            .take()
            .map_or_else(connect, Ok)
            .and_then(|mut open| transaction(rng, &mut open, statement).map(|()| open));
        match done {
            Ok(open) => session = Some(open),
            Err(error) => {
                assert!(error.may_pass(), "{error}");
                until("that the source is there again", || connect().is_ok());
            }
        }
    }
}

/// A source, its replica, and who applies to it.
struct Killing {
    source: Server,
    target: Server,
    spool: Option<PathBuf>,
    log: PathBuf,
    // Last: it ends what still runs.
    _lab: Lab,
}

impl Killing {
    fn new(rng: &mut Rng, with_spool: bool) -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (server(&lab, "source"), server(&lab, "target"));
        sql(&source).execute(SCHEMA).unwrap();
        write(rng, &conninfo(&source), 30);
        create(&options(&source, &target), &mut Told::default()).unwrap();
        Self {
            source,
            target,
            spool: with_spool.then(|| lab.folder().join("spool")),
            log: lab.folder().join("follower.log"),
            _lab: lab,
        }
    }

    fn start(&self, writers: usize) -> Follower {
        Follower::start(&self.target, writers, self.spool.as_deref(), &self.log)
    }

    /// Changes flow, and all sorts of things are killed; then both sides are compared.
    fn round(&mut self, rng: &mut Rng, kills: &mut [u32; 3]) {
        let writers = rng.usize(1..5);
        let mut follower = Some(self.start(writers));
        let done = AtomicBool::new(false);
        let (from, mut own) = (conninfo(&self.source), Rng::with_seed(rng.u64(..)));
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                write(&mut own, &from, 250);
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) && !writing.is_finished() {
                std::thread::sleep(Duration::from_millis(rng.u64(1..150)));
                let whom = [0, 0, 1, 2][rng.usize(0..4)];
                match whom {
                    0 => {
                        drop(follower.take());
                        follower = Some(self.start(writers));
                    }
                    1 => {
                        self.source.kill().unwrap();
                        self.source.start().unwrap();
                    }
                    _ => {
                        self.target.kill().unwrap();
                        self.target.start().unwrap();
                    }
                }
                kills[whom] += 1;
            }
        });
        self.assert_applying();
        let report = compare(&self.target);
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        assert!(report.is_equal(), "{report:?} {}", log());
        let missing = "SELECT sum(missing_rows)::text FROM lockstep.table_copy";
        assert_eq!(values(&self.target, missing), ["0"], "{}", log());
    }

    /// Waits until everything is applied that is committed on the source now.
    fn assert_applying(&self) {
        let end = self.source.flush_lsn().unwrap();
        let applied = format!("SELECT applied_lsn >= '{end}' FROM lockstep.replica");
        until("that all is applied", || {
            values(&self.target, &applied) == ["t"]
        });
    }
}

fn killed(with_spool: bool) {
    let seed = u64::from(from_environment("SEED").unwrap_or(1));
    let rounds = from_environment("LOCKSTEP_REPLICA_ROUNDS").unwrap_or(2);
    let mut rng = Rng::with_seed(seed);
    let mut killing = Killing::new(&mut rng, with_spool);
    let (mut kills, mut compared) = ([0; 3], [false; 4]);
    for round in 0..rounds {
        killing.round(&mut rng, &mut kills);
        for (table, has_rows) in ["t", "f", "p", "w"].into_iter().zip(&mut compared) {
            let rows = format!("SELECT 1 FROM {table} LIMIT 1");
            *has_rows |= !values(&killing.target, &rows).is_empty();
        }
        let [process, source, target] = kills;
        eprintln!(
            "seed {seed}, round {round}: equal; killed so far: process {process}, source {source}, \
             target {target} times"
        );
    }
    assert!(kills.iter().sum::<u32>() > 0);
    assert!(compared.iter().all(|has_rows| *has_rows), "{compared:?}");
}

#[test]
fn a_random_workload_arrives_whoever_is_killed() {
    killed(false);
}

#[test]
fn a_random_workload_arrives_through_a_spool_whoever_is_killed() {
    killed(true);
}
