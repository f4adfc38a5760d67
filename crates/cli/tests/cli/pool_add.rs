//! A new node is cloned from a peer, started, warmed and written down, however often the command is killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lockstep_lab::Role;
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, settings_of};

use crate::pool_haproxy::{lockstep, text};
use crate::serve_support::until;

/// Blocks of the table that the peer's readers like, and how many of them are in a server's shared buffers.
const IN_MEMORY: &str = "SELECT count(*)::text FROM lockstep_hot_blocks() \
     WHERE relfilenode = pg_relation_filenode('liked') AND relforknumber = 0";

/// Sessions of pg_basebackup.
const BACKUPS: &str =
    "SELECT count(*)::text FROM pg_stat_replication WHERE application_name <> 'new'";

/// A primary, its standby, and what a new node needs.
struct Pool {
    primary: Server,
    peer: Server,
    new: Server,
    nodes: PathBuf,
    program: PathBuf,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Pool {
    fn start() -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let settings = settings_of([
            ("shared_preload_libraries", "lockstep"),
            ("autovacuum", "off"),
        ]);
        let primary = lab.primary("primary", None, &settings).unwrap();
        primary.run("CREATE EXTENSION lockstep");
        primary.run(
            "CREATE TABLE liked AS SELECT i, repeat('x', 500) AS t FROM generate_series(1, 1000) i",
        );
        let mut peer = lab.standby(&primary, "peer", &settings_of([])).unwrap();
        peer.catch_up(&primary).unwrap();
        assert_ne!(
            peer.query_text("SELECT count(t)::text FROM liked").unwrap(),
            None
        );
        let new = lab.server(Role::Standby, "new", None).unwrap();
        let entry = |server: &Server, role: &str, agent: u16| {
            let (name, conninfo) = (&server.id().name, server.conninfo(SUPERUSER));
            format!(
                "[[node]]\nname = \"{name}\"\nrole = \"{role}\"\nconninfo = \"{conninfo}\"\nagent = \"a:{agent}\"\n"
            )
        };
        let nodes = entry(&primary, "primary", 1) + &entry(&peer, "standby", 3);
        let nodes = lab.write_file("nodes.toml", &nodes).unwrap();
        // The servers' account may not be able to enter the folder that it was built in.
        let program = lab.folder().join("lockstep");
        fs::copy(env!("CARGO_BIN_EXE_lockstep"), &program).unwrap();
        Self {
            primary,
            peer,
            new,
            nodes,
            program,
            lab,
        }
    }

    /// The words after `lockstep`, for a node of these values.
    fn words(&self, conninfo: &str, data: &Path, more: &[&str]) -> Vec<String> {
        let nodes = self.nodes.to_str().unwrap();
        let mut words = vec![
            "pool",
            "add",
            "new",
            "--nodes",
            nodes,
            "--no-proxy",
            "--agent",
            "a:5",
        ];
        words.extend(["--conninfo", conninfo, "--data", data.to_str().unwrap()]);
        words.extend(more);
        words.into_iter().map(str::to_owned).collect()
    }

    /// The command as the servers' account.
    fn command(&self, conninfo: &str, data: &Path, more: &[&str]) -> Command {
        let mut command = self.lab.launcher().command(&self.program);
        command.args(self.words(conninfo, data, more));
        command
    }

    fn add(&self, more: &[&str]) -> Output {
        let conninfo = self.new.conninfo(SUPERUSER);
        self.command(&conninfo, self.new.data(), more)
            .output()
            .unwrap()
    }

    /// Asserts that the command ends with a code, and says some words.
    fn refused(&self, (conninfo, data): (&str, &Path), more: &[&str], code: i32, words: &str) {
        let output = self.command(conninfo, data, more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {output:?}");
        assert!(said.contains(words), "{words}: {said}");
    }

    /// A folder of programs, of which one is a script.
    fn programs(&self, name: &str, script: &str, text: &str) -> String {
        let folder = self.lab.folder().join(name);
        fs::create_dir(&folder).unwrap();
        let package = self.lab.package();
        for program in ["pg_basebackup", "pg_ctl"] {
            match program == script {
                true => fs::write(folder.join(program), format!("#!/bin/sh\n{text}\n")).unwrap(),
                false => symlink(package.program(program), folder.join(program)).unwrap(),
            }
        }
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.join(script), mode).unwrap();
        folder.to_str().unwrap().to_owned()
    }

    fn kept(&self) -> PathBuf {
        let mut name = self.new.data().as_os_str().to_owned();
        name.push(".lockstep-pool-add");
        name.into()
    }

    fn slots(&self) -> Option<String> {
        let sql = "SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots";
        self.primary.query_text(sql).unwrap()
    }
}

#[test]
fn a_node_is_made_however_often_the_command_is_killed() {
    let pool = Pool::start();
    refusals(&pool);
    assert_eq!(pool.slots().as_deref(), Some("peer"));
    assert!(!pool.kept().exists(), "a refusal leaves nothing");

    // The disk is full before the clone is whole: what to do is said, and the next call makes it anew.
    let script =
        "echo 'pg_basebackup: error: could not write to file: No space left on device' >&2; exit 1";
    let full = pool.programs("full-disk", "pg_basebackup", script);
    let new = pool.new.conninfo(SUPERUSER);
    let words = "free some room and run this again";
    pool.refused((&new, pool.new.data()), &["--bin-dir", &full], 3, words);

    // Killed while the clone is made: it is made anew.
    let script = "mkdir -p \"$2\"/base; touch \"$2\"/half-made; kill -9 $PPID";
    let half = pool.programs("half", "pg_basebackup", script);
    assert_eq!(pool.add(&["--bin-dir", &half]).status.signal(), Some(9));
    assert!(pool.new.data().join("half-made").exists() && pool.kept().exists());
    assert_eq!(pool.slots().as_deref(), Some("new peer"));

    // Killed while pg_basebackup copies: the next call ends that.
    let conninfo = pool.new.conninfo(SUPERUSER);
    let data = pool.new.data();
    let slow = pool.command(&conninfo, data, &["--max-rate", "32kB"]);
    killed_at(slow, "cloning peer", || data.join("backup_label").exists());

    // Killed once it is whole, before the server starts.
    let cloned = pool.programs("cloned", "pg_ctl", "kill -9 $PPID");
    let killed = pool.add(&["--bin-dir", &cloned]);
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
    assert!(text(&killed).contains("cloning peer"), "{killed:?}");
    until("the copy that was cut off has ended", || {
        let left = pool.peer.query_text(BACKUPS).unwrap();
        (left.as_deref() == Some("0")).then_some(())
    });
    assert!(!pool.new.data().join("half-made").exists());
    let whole = fs::metadata(pool.new.data().join("PG_VERSION"))
        .unwrap()
        .modified()
        .unwrap();

    // A wrong value: the server's own line says so, and the next call takes it back.
    let words = "invalid value for parameter \"work_mem\"";
    pool.refused((&conninfo, data), &["--set", "work_mem=none"], 4, words);

    // Killed while it is warmed.
    let slow = pool.command(&conninfo, data, &["--warm-rate", "1kB"]);
    killed_at(slow, "reading what peer has in memory", || true);
    let blocks = pool.peer.query_text(IN_MEMORY).unwrap();
    assert_ne!(pool.new.query_text(IN_MEMORY).unwrap(), blocks);

    let done = pool.add(&[]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let said = text(&done);
    assert!(
        said.contains("its clone is whole") && !said.contains("cloning"),
        "{said}"
    );
    assert_eq!(said.matches("took ").count(), 4, "{said}");
    assert_has!(said, "readers alone would need");
    let now = fs::metadata(pool.new.data().join("PG_VERSION"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(now, whole, "the clone is the one that was whole");
    assert_eq!(pool.new.query_text(IN_MEMORY).unwrap(), blocks);
    joined(&pool);

    let listed = fs::read_to_string(&pool.nodes).unwrap();
    let again = pool.add(&[]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert_has!(text(&again), "new is in the pool already");
    assert_eq!(fs::read_to_string(&pool.nodes).unwrap(), listed);
    stop(&pool);
    pool.refused(
        (&conninfo, data),
        &[],
        2,
        "is not empty, and no clone that this command began",
    );
}

/// Kills a command that has said something, once something is there.
fn killed_at(mut command: Command, said: &str, there: impl Fn() -> bool) {
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(
        lines.map_while(Result::ok).any(|line| line.contains(said)),
        "{said}"
    );
    until(said, || there().then_some(()));
    process.kill().unwrap();
    process.wait().unwrap();
}

/// What cannot be done is refused before anything is made.
fn refusals(pool: &Pool) {
    let conninfo = pool.new.conninfo(SUPERUSER);
    let new = (conninfo.as_str(), pool.new.data());
    let full = pool.lab.folder().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("of-others"), "").unwrap();
    pool.refused((&conninfo, &full), &[], 2, "is not empty");
    assert!(full.join("of-others").exists());
    pool.refused((&conninfo, &full.join("of-others")), &[], 2, "is no folder");
    pool.refused(new, &["--set", "nosuch=1"], 2, "--set nosuch: ");
    let low = ["--set", "max_connections=7"];
    pool.refused(
        new,
        &low,
        2,
        "--set max_connections=7: a standby needs at least the primary's",
    );
    pool.refused(new, &["--from", "nobody"], 2, "--from nobody");
    pool.refused(new, &["--slot", "peer"], 3, "has a slot peer already");
    let taken = pool.peer.conninfo(SUPERUSER);
    let words = format!("port {} is taken", pool.peer.port());
    // A node of the file has that server, so it is called otherwise there.
    let taken = taken.replace("host=", "host=/./");
    pool.refused((&taken, pool.new.data()), &[], 4, &words);
    let listed = fs::read_to_string(&pool.nodes).unwrap();
    let sockets = pool.primary.sockets().display().to_string();
    let nowhere = listed.replacen(&sockets, "/nowhere", 1);
    pool.lab.write_file("nodes.toml", &nowhere).unwrap();
    pool.refused(new, &[], 3, "primary cannot be used");
    pool.lab.write_file("nodes.toml", &listed).unwrap();
    unfit_peers(pool, new, &listed);
    if pool.lab.account().is_other() {
        let words = pool.words(&conninfo, pool.new.data(), &[]);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let output = lockstep(&words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains("does not run as root"), "{said}");
    }
}

/// A peer of another cluster, and one whose library is too old to warm a node from.
fn unfit_peers(pool: &Pool, new: (&str, &Path), listed: &str) {
    let other = pool.lab.primary("other", None, &settings_of([])).unwrap();
    let peer = pool.peer.conninfo(SUPERUSER);
    let stranger = listed.replacen(&peer, &other.conninfo(SUPERUSER), 1);
    assert_ne!(stranger, listed);
    pool.lab.write_file("nodes.toml", &stranger).unwrap();
    pool.refused(new, &[], 2, "peer belongs to another cluster than primary");
    pool.lab.write_file("nodes.toml", listed).unwrap();

    let there = "SELECT (to_regproc('lockstep_hot_blocks') IS NOT NULL)::text";
    let await_function = |is_there: &str| {
        until("the peer has replayed that", || {
            let found = pool.peer.query_text(there).unwrap();
            (found.as_deref() == Some(is_there)).then_some(())
        });
    };
    pool.primary.run("DROP EXTENSION lockstep");
    await_function("false");
    pool.refused(new, &[], 3, "peer has no lockstep_hot_blocks()");
    pool.primary.run("CREATE EXTENSION lockstep");
    await_function("true");
}

/// The node follows the primary with its own slot and its peer's libraries, and is in the file.
fn joined(pool: &Pool) {
    assert!(!pool.kept().exists());
    let listed = fs::read_to_string(&pool.nodes).unwrap();
    assert!(listed.contains("name = \"new\""), "{listed}");
    let streams = "SELECT string_agg(application_name, ' ') FROM pg_stat_replication r \
         JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE slot_name = 'new' AND state = 'streaming'";
    assert_eq!(
        pool.primary.query_text(streams).unwrap().as_deref(),
        Some("new")
    );
    let loaded = "SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries'";
    assert_eq!(
        pool.new.query_text(loaded).unwrap().as_deref(),
        Some("lockstep")
    );
}

fn stop(pool: &Pool) {
    let mut pg_ctl = pool
        .lab
        .launcher()
        .command(pool.lab.package().program("pg_ctl"));
    pg_ctl
        .arg("-D")
        .arg(pool.new.data())
        .args(["-m", "immediate", "stop"]);
    pool.lab.launcher().run(pg_ctl).unwrap();
}
