//! `lockstep replica run --config` and `start` with real servers: several replicas in one process.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::Server;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::doctor_support::doctor;
use crate::replica::{Running, conninfo, in_app, lockstep, on, output, server, text};

/// Longer than anything here takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);

/// One database, and a target with a database for each replica of it.
struct Several {
    source: Server,
    target: Server,
    file: PathBuf,
    log: PathBuf,
    // Last: it ends what still runs.
    lab: Lab,
}

/// A page of the newest process that has written to this log.
pub fn page(log: &Path, path: &str) -> String {
    let log = std::fs::read_to_string(log).unwrap();
    let (_, address) = log.rsplit_once("address=").unwrap();
    let mut stream = TcpStream::connect(address.lines().next().unwrap().trim()).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    std::io::read_to_string(stream).unwrap()
}

impl Several {
    fn new(created: &[&str]) -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (server(&lab, "source"), server(&lab, "target"));
        on(&source, "CREATE TABLE t (id int PRIMARY KEY)");
        let (file, log) = (lab.folder().join("replicas.toml"), lab.folder().join("log"));
        let several = Self {
            source,
            target,
            file,
            log,
            lab,
        };
        created.iter().for_each(|name| several.create(name));
        several
    }

    fn to(&self, name: &str) -> String {
        format!("{} dbname={name}", conninfo(&self.target))
    }

    /// The target as metrics name it.
    fn label(&self, name: &str) -> String {
        Conninfo::parse(&self.to(name)).unwrap().to_string()
    }

    fn create(&self, name: &str) {
        let (from, to) = (in_app(&self.source), self.to(name));
        self.target
            .execute(&format!("CREATE DATABASE {name}"))
            .unwrap();
        let ends = ["--source", &from, "--target", &to, "--read-only", "off"];
        let created = output(&[&["create", name][..], &ends].concat());
        assert!(created.status.success(), "{created:?}");
    }

    fn write(&self, names: &[&str]) {
        let lines: String = names
            .iter()
            .map(|name| {
                format!(
                    "[[replica]]\nname = '{name}'\ntarget = \"{}\"\n",
                    self.to(name)
                )
            })
            .collect();
        let metrics = "metrics = '127.0.0.1:0'\n";
        std::fs::write(&self.file, format!("{metrics}{lines}")).unwrap();
    }

    /// The answer of the newest process to a path.
    fn get(&self, path: &str) -> String {
        page(&self.log, path)
    }

    fn run(&self) -> Running {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let mut command = lockstep(&["run", "--config", self.file.to_str().unwrap()]);
        Running(command.stderr(log).spawn().unwrap())
    }

    fn signal(&self, running: &Running, signal: Signal) {
        kill(Pid::from_raw(running.0.id() as i32), signal).unwrap();
    }

    fn insert(&self, id: u32) {
        on(&self.source, &format!("INSERT INTO t VALUES ({id})"));
    }

    fn session(&self, name: &str) -> Connection {
        let to = Conninfo::parse(&self.to(name)).unwrap();
        Connection::connect(&to, Purpose::Sql, "lockstep test").unwrap()
    }

    fn until(&self, what: &str, mut reached: impl FnMut() -> bool) {
        let started = std::time::Instant::now();
        while !reached() {
            let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(started.elapsed() < LONG, "{what}: {}", log());
            pause();
        }
    }

    fn until_logged(&self, words: &str) {
        let is_there = || std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains(words));
        self.until(words, is_there);
    }

    /// Waits until a replica has the row.
    fn until_there(&self, name: &str, id: u32) {
        let mut session = self.session(name);
        let there = format!("SELECT 1 FROM t WHERE id = {id}");
        self.until(name, || !session.query(&there).unwrap().is_empty());
    }

    fn status(&self, name: &str) -> Value {
        let args = [
            "status",
            name,
            "--target",
            &self.to(name),
            "--output",
            "json",
        ];
        let mut json: Value = serde_json::from_slice(&output(&args).stdout).unwrap();
        json["replicas"][0].take()
    }

    fn apply_pid(&self, name: &str) -> Option<String> {
        let rows = self
            .session(name)
            .query("SELECT apply_pid FROM lockstep.replica");
        rows.unwrap()[0][0].clone()
    }
}

#[test]
fn one_process_follows_several_and_one_that_fails_stops_no_other() {
    let several = Several::new(&["one", "two"]);
    // It does not exist yet.
    several.write(&["one", "two", "three"]);
    let mut running = several.run();
    several.insert(1);
    several.until_there("one", 1);
    several.until_there("two", 1);
    several.until_logged("name=\"three\"");
    several.until("not well", || {
        several.get("/healthz").contains("does not exist")
    });
    assert!(several.get("/healthz").starts_with("HTTP/1.1 503"));
    several.create("three");
    several.until_there("three", 1);
    several.until("well", || {
        several.get("/healthz").starts_with("HTTP/1.1 200")
    });
    let applying = format!(
        "replica=\"three\",target=\"{}\",state=\"applying\"}} 1",
        several.label("three")
    );
    assert!(
        several.get("/metrics").contains(&applying),
        "{}",
        several.get("/metrics")
    );

    several
        .session("two")
        .execute("INSERT INTO t VALUES (2)")
        .unwrap();
    several.insert(2);
    several.until("blocked", || several.status("two")["apply"] == "blocked");
    several.insert(3);
    several.until_there("one", 3);
    several.until_there("three", 3);
    several
        .session("two")
        .execute("DELETE FROM t WHERE id = 2")
        .unwrap();
    several.until_there("two", 3);

    // A file that cannot be used changes nothing; one that can is followed.
    let before = several.apply_pid("two");
    std::fs::write(&several.file, "[[replica]]\nname = 1").unwrap();
    several.signal(&running, Signal::SIGHUP);
    several.until_logged("the old one stays");
    several.write(&["two", "three"]);
    several.signal(&running, Signal::SIGHUP);
    several.until("one", || several.status("one")["apply"] == "not running");
    several.insert(4);
    several.until_there("two", 4);
    several.until_there("three", 4);
    assert_eq!(several.apply_pid("two"), before, "it was not disturbed");
    assert!(
        several
            .session("one")
            .query("SELECT 1 FROM t WHERE id = 4")
            .unwrap()
            .is_empty()
    );

    // What is killed goes on where it was.
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    several.insert(5);
    several.write(&["one", "two", "three"]);
    let mut running = several.run();
    for name in ["one", "two", "three"] {
        several.until_there(name, 5);
        let rows = several
            .session(name)
            .query("SELECT count(*) FROM t")
            .unwrap();
        assert_eq!(rows[0][0].as_deref(), Some("5"), "{name}");
    }
    several.signal(&running, Signal::SIGTERM);
    assert!(running.0.wait().unwrap().success());
    for name in ["one", "two", "three"] {
        assert_eq!(several.status(name)["apply"], "not running", "{name}");
    }
    drop(several.lab);
}

#[test]
fn start_waits_until_the_replica_applies() {
    let several = Several::new(&["one"]);
    let to = several.to("one");
    let start = |more: &[&str]| {
        let mut args = vec!["start", "one", "--target", &to];
        args.extend(more);
        output(&args)
    };
    assert!(output(&["pause", "one", "--target", &to]).status.success());
    let nobody = start(&["--wait", "1"]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert_has!(text(&nobody.stderr), "no process has taken it up");
    assert_eq!(several.status("one")["paused"], false);

    several.write(&["one"]);
    let running = several.run();
    several.insert(1);
    several.until_there("one", 1);
    assert!(output(&["pause", "one", "--target", &to]).status.success());
    several.until("paused", || several.status("one")["apply"] == "paused");
    several.insert(2);
    let started = start(&["--wait", "90"]);
    assert_eq!(started.status.code(), Some(0), "{started:?}");
    assert_has!(text(&started.stdout), "replica one applies, up to ");
    several.until_there("one", 2);

    several
        .session("one")
        .execute("INSERT INTO t VALUES (3)")
        .unwrap();
    several.insert(3);
    several.until("blocked", || several.status("one")["apply"] == "blocked");
    // While the change is tried again, it seems to apply.
    several.until("the table that is in the way", || {
        let blocked = start(&["--wait", "2"]);
        assert_eq!(blocked.status.code(), Some(1), "{blocked:?}");
        let words = text(&blocked.stderr);
        assert_has!(words, "has not applied anything within 2 s");
        words.contains("\"public.t\"")
    });
    let unknown = output(&["start", "x", "--target", &to]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    drop(running);
}

#[test]
fn a_table_that_is_not_replicated_is_told_by_everything() {
    let several = Several::new(&["one"]);
    several.write(&["one"]);
    let running = several.run();
    several.insert(1);
    several.until_there("one", 1);
    let metric = |tables: &str| {
        several.until(tables, || {
            let metrics = several.get("/metrics");
            let mut lines = metrics.lines();
            let found =
                lines.find(|line| line.starts_with("lockstep_replica_unreplicated_tables{"));
            found.is_some_and(|line| line.ends_with(&format!("}} {tables}")))
        });
    };
    metric("0");
    let (well, _) = health(&several);
    assert!(well.starts_with("HTTP/1.1 200"), "{well}");
    let (from, to) = (in_app(&several.source), several.to("one"));
    let start = || output(&["start", "one", "--target", &to, "--wait", "90"]);
    assert_eq!(start().status.code(), Some(0));

    let renamed = "ALTER TABLE t RENAME TO tt; CREATE TABLE fresh (id int)";
    on(&several.source, renamed);
    metric("2");
    let (head, body) = health(&several);
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_eq!(body["status"], "not complete", "{body}");
    let words = body["reasons"][0]["reason"].as_str().unwrap();
    for part in [
        "\"public.t\" (it is called \"public.tt\"",
        "\"public.fresh\" (it was made",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    several.until_logged("is called \"public.tt\" on the source now");
    assert_eq!(several.status("one")["unreplicated_tables"], 2);
    let started = start();
    assert_eq!(started.status.code(), Some(5), "{started:?}");
    assert!(text(&started.stderr).contains(words), "{started:?}");
    several.until("doctor finds it", || {
        let nodes = ["--primary", &from, "--subscriber", &to];
        let said = doctor(&[&nodes[..], &["--seconds", "2", "--output", "json"]].concat());
        let json: Value = serde_json::from_str(&said.text).unwrap();
        assert_eq!(json["healthy"], false, "{}", said.text);
        let found = &json["findings"][0];
        found["cause"] == "replica_incomplete" && found["evidence"][0]["words"] == words
    });

    // Renamed on the target, too, nothing but the new table is left to tell.
    several
        .session("one")
        .execute("ALTER TABLE t RENAME TO tt")
        .unwrap();
    on(&several.source, "INSERT INTO tt VALUES (2)");
    let mut session = several.session("one");
    several.until("the row", || {
        session
            .query("SELECT 1 FROM tt WHERE id = 2")
            .unwrap()
            .len()
            == 1
    });
    metric("1");
    drop(running);
}

/// Status line and body of the newest process's health.
fn health(several: &Several) -> (String, Value) {
    let answer = several.get("/healthz");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}
