//! Many switchovers, there and back, whose commands are killed at random moments while somebody writes.

use std::collections::BTreeSet;
use std::env;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose};
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::Server;

use crate::replica::{create_args, in_app, lockstep, output, pair, said, value};
use crate::replica_switchover::follows;

/// Longest time after which a command is killed: most take less.
const KILLED_WITHIN_MS: u64 = 2_500;

/// Most commands of a switchover that are killed.
const MOST_KILLS: u32 = 4;

const ROWS: &str = "SELECT count(*) || ' ' || coalesce(sum(hashtext(t::text)), 0) FROM t";

/// Opens a session of its own in the database.
fn connect(server: &Server) -> Result<Connection, ClientError> {
    let conninfo = Conninfo::parse(&in_app(server))?;
    Connection::connect(&conninfo, Purpose::Sql, "test")
}

/// Inserts rows until it is to end, whatever happens to its sessions; returns those that were acknowledged.
fn writes(server: &Server, next: &AtomicU32, ends: &AtomicBool) -> Vec<u32> {
    let (mut made, mut session) = (Vec::new(), None);
    while !ends.load(Ordering::Relaxed) {
        let id = next.fetch_add(1, Ordering::Relaxed);
        let insert = format!("INSERT INTO t VALUES ({id}, nextval('s'))");
        let written = session
            .take()
            .map_or_else(|| connect(server), Ok)
            .and_then(|mut open: Connection| open.execute(&insert).map(|()| open));
        match written {
            Ok(open) => {
                made.push(id);
                session = Some(open);
            }
            Err(_) => pause(),
        }
    }
    made
}

fn acknowledged(server: &Server, made: &[u32]) {
    let rows = server.rows_in("app", "SELECT id FROM t").unwrap();
    let there: BTreeSet<u32> = rows
        .iter()
        .map(|row| row[0].as_ref().unwrap().parse().unwrap())
        .collect();
    let lost = made.iter().filter(|id| !there.contains(id));
    assert_eq!(lost.collect::<Vec<_>>(), Vec::<&u32>::new());
}

#[test]
#[ignore = "long: make test-bed"]
fn switchovers_that_are_killed_lose_nothing() {
    let number = |name: &str, usual: u64| {
        env::var(name).map_or(usual, |text| text.parse().expect("it is a number"))
    };
    let (rounds, seed) = (number("LOCKSTEP_SWITCHOVERS", 3), number("SEED", 1));
    let mut rng = Rng::with_seed(seed);
    let (lab, source, target) =
        pair("CREATE TABLE t (id int PRIMARY KEY, n bigint); CREATE SEQUENCE s");
    let (from, to) = (in_app(&source), in_app(&target));
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{}", said(&created));
    let next = AtomicU32::new(1);
    let mut process = follows(&lab, "r", &to, &target);
    let (mut killed, mut longest) = (0, 0);
    for round in 0..rounds {
        let is_back = round % 2 == 1;
        let (here, there) = if is_back {
            (&target, &source)
        } else {
            (&source, &target)
        };
        let (name, way_back) = if is_back {
            ("r_back", "r")
        } else {
            ("r", "r_back")
        };
        let to = in_app(there);
        let command = || {
            let mut command = lockstep(&["switchover", name, "--target", &to]);
            command.args([
                "--max-pause",
                "20s",
                "--timeout",
                "100s",
                "--verify",
                "counts",
            ]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let ends = AtomicBool::new(false);
        let made = thread::scope(|scope| {
            let writer = scope.spawn(|| writes(here, &next, &ends));
            let mut kills = rng.u32(0..=MOST_KILLS);
            while kills > 0 {
                let mut child = command();
                thread::sleep(Duration::from_millis(rng.u64(0..KILLED_WITHIN_MS)));
                child.kill().unwrap();
                let ended = child.wait().unwrap();
                killed += u64::from(!ended.success());
                kills = if ended.success() { 0 } else { kills - 1 };
            }
            let done = command().wait_with_output().unwrap();
            ends.store(true, Ordering::Relaxed);
            assert!(
                done.status.success(),
                "round {round}, seed {seed}: {}",
                said(&done)
            );
            writer.join().unwrap()
        });
        assert!(process.0.wait().unwrap().success(), "it ends by itself");
        acknowledged(there, &made);
        assert_eq!(
            value(here, ROWS),
            value(there, ROWS),
            "round {round}, seed {seed}"
        );
        longest = longest.max(made.len());
        // Sequences are beyond what rows have.
        let fits = "SELECT nextval('s') > coalesce(max(n), 0) FROM t";
        // A session that began while the server was read-only stays so.
        let mut session = connect(there).unwrap();
        let fits = session.query_one(fits).unwrap();
        assert_eq!(fits[0].as_deref(), Some("t"), "round {round}, seed {seed}");
        // Only one server takes writes.
        let refused =
            connect(here).and_then(|mut session| session.execute("INSERT INTO t VALUES (0)"));
        assert!(refused.is_err(), "round {round}, seed {seed}");
        session
            .execute("INSERT INTO t VALUES (-1); DELETE FROM t WHERE id = -1")
            .unwrap();
        process = follows(&lab, way_back, &in_app(here), here);
    }
    println!(
        "switchovers: {rounds} from seed {seed}, {killed} commands killed, up to {longest} rows each"
    );
    assert!(rounds < 10 || killed > rounds / 2, "{killed} of {rounds}");
}
