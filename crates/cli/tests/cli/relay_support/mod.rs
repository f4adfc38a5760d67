//! A primary, a relay in front of it, and subscribers, for the tests of the relay.

pub mod load;
pub mod raw;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::free_port;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Settings of publishers and subscribers.
pub fn logical() -> Settings {
    settings_of([
        ("wal_level", "logical"),
        ("max_wal_senders", "20"),
        ("max_replication_slots", "20"),
        ("max_logical_replication_workers", "20"),
        ("max_worker_processes", "24"),
        // Workers that failed are started again soon.
        ("wal_retrieve_retry_interval", "100ms"),
    ])
}

/// A publisher that may use plugin lockstep.
pub fn publisher(lab: &Lab) -> Server {
    let mut primary = lab.primary("primary", None, &logical()).unwrap();
    allow_plugin(&mut primary);
    primary
}

/// A publisher and a subscriber that have the same table, of which only its columns are given:
/// `t (id int PRIMARY KEY)`. Publication p publishes it.
pub fn table_on_both(lab: &Lab, table: &str) -> (Server, Server) {
    let primary = publisher(lab);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    publish(&primary, &subscriber, table);
    (primary, subscriber)
}

/// Makes a table on two servers that are there, and publishes it on the first.
pub fn publish(primary: &Server, subscriber: &Server, table: &str) {
    for server in [primary, subscriber] {
        server.run(&format!("CREATE TABLE {table}"));
    }
    let name = table.split(' ').next().unwrap();
    primary.run(&format!("CREATE PUBLICATION p FOR TABLE {name}"));
}

/// Makes a subscription that connects with a conninfo.
pub fn subscribe(subscriber: &Server, name: &str, conninfo: &str, publication: &str) {
    subscriber.run(&format!(
        "CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {publication}"
    ));
}

/// Takes a subscriber away until its slot is free.
pub fn disable(lab: &Lab, subscriber: &Server, name: &str, relay: &Relay) {
    until_ready(subscriber);
    subscriber.run(&format!("ALTER SUBSCRIPTION {name} DISABLE"));
    let pid =
        format!("SELECT active_pid FROM lockstep_stat_logical_wal_cache() WHERE name = '{name}'");
    until("the slot is free", || {
        relay.console(lab, &pid).is_empty().then_some(())
    });
}

/// Waits until nobody uses a slot of this server: a walsender outlives its client by a moment.
pub fn until_slots_free(server: &Server) {
    let active = "SELECT count(*)::text FROM pg_replication_slots WHERE active";
    until_answer(server, active, "0");
}

/// Names of the primary's slots but those of initial synchronisation, in order; those of the relay
/// without the identity of its spool.
pub fn slots(primary: &Server) -> String {
    primary
        .query_text(
            "SELECT coalesce(string_agg(regexp_replace(slot_name, \
                 '^(lockstep_.*)_[0-9a-f]{12}$', '\\1'), ' ' ORDER BY slot_name), '') \
             FROM pg_replication_slots WHERE slot_name !~ '_sync_'",
        )
        .unwrap()
        .unwrap()
}

/// Lists plugin lockstep where a server asks for that.
pub fn allow_plugin(server: &mut Server) {
    let named = server
        .query_text("SELECT name FROM pg_settings WHERE name = 'output_plugin_libraries'")
        .unwrap();
    if named.is_some() {
        server
            .set([("output_plugin_libraries", "pgoutput, lockstep")])
            .unwrap();
        server.reload().unwrap();
    }
}

/// Waits until `look` gives something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until a query of a server answers with this text.
pub fn until_answer(server: &Server, sql: &str, expected: &str) {
    let mut last = None;
    let began = Instant::now();
    loop {
        let answer = server.query_text(sql).ok().flatten();
        if answer.as_deref() == Some(expected) {
            return;
        }
        last = answer.or(last);
        assert!(
            began.elapsed() < PATIENCE,
            "{sql}: {last:?}, expected {expected}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until each table of the subscriptions is ready. A worker that synchronises a table drops
/// its slot before it notes that it is done: ended in between, it looks for that slot for ever,
/// with a relay and without one.
pub fn until_ready(subscriber: &Server) {
    let ready = "SELECT bool_and(srsubstate = 'r')::text FROM pg_subscription_rel";
    until_answer(subscriber, ready, "true");
}

/// Waits until the relay has all of the primary's WAL, and has confirmed it.
pub fn until_received(primary: &Server) {
    let end = primary.flush_lsn().unwrap();
    let confirmed = format!(
        "SELECT bool_and(confirmed_flush_lsn >= '{end}')::text FROM pg_replication_slots \
         WHERE slot_name LIKE 'lockstep%'"
    );
    until_answer(primary, &confirmed, "true");
}

/// A relay that runs; killed when dropped.
pub struct Relay {
    child: Child,
    pub port: u16,
    pub spool: PathBuf,
    args: Vec<String>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    /// Starts a relay in front of a primary, with more arguments.
    pub fn start(lab: &Lab, conninfo: &str, more: &[&str]) -> Self {
        let port = free_port().unwrap();
        let spool = lab.folder().join(format!("spool-{port}"));
        let mut args = vec![
            "relay".to_owned(),
            "--listen".to_owned(),
            format!("127.0.0.1:{port}"),
            "--primary".to_owned(),
            conninfo.to_owned(),
        ];
        if !more.contains(&"--spool") {
            args.extend(["--spool".to_owned(), spool.display().to_string()]);
        }
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let said = Arc::default();
        let child = spawn(&args, &said);
        let relay = Self {
            child,
            port,
            spool,
            args,
            said,
        };
        relay.ready();
        relay
    }

    fn ready(&self) {
        until("the relay listens", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()
        });
    }

    /// The relay's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with signal 9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it as an administrator would; its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        signal::kill(pid, Signal::SIGTERM).unwrap();
        self.child.wait().unwrap().code()
    }

    /// Waits until it has ended by itself; its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let status = until("the relay ends", || self.child.try_wait().unwrap());
        status.code()
    }

    /// Starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.args, &self.said);
        self.ready();
    }

    /// For subscriptions.
    pub fn conninfo(&self) -> String {
        format!(
            "host=127.0.0.1 port={} user={SUPERUSER} dbname=postgres",
            self.port
        )
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    /// Runs a command in its console; unaligned rows.
    pub fn console(&self, lab: &Lab, command: &str) -> String {
        self.try_console(lab, command)
            .unwrap_or_else(|said| panic!("{command}: {said}"))
    }

    /// The console's answer, or what psql said. The console needs a primary to log in.
    pub fn try_console(&self, lab: &Lab, command: &str) -> Result<String, String> {
        let output = Command::new(lab.package().program("psql"))
            .args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", command])
            .arg(format!(
                "host=127.0.0.1 port={} user={SUPERUSER} dbname=lockstep",
                self.port
            ))
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the relay said:\n{}", self.log());
        }
    }
}

fn spawn(args: &[String], said: &Arc<Mutex<Vec<String>>>) -> Child {
    let mut child = Command::new("env")
        .arg("--default-signal")
        .arg(env!("CARGO_BIN_EXE_lockstep"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = said.clone();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            said.lock().unwrap().push(line);
        }
    });
    child
}

/// The sum of a table's rows, whatever their order.
pub fn digest(server: &Server, table: &str) -> Option<String> {
    server
        .query_text(&format!(
            "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)::numeric), 0) FROM {table} t"
        ))
        .ok()
        .flatten()
}

/// Whether rows are missing or only late: rows that one side alone has, and how far both are.
fn difference(publisher: &Server, subscriber: &Server, table: &str) -> String {
    let rows = |server: &Server| -> BTreeSet<String> {
        let sql = format!("SELECT string_agg(t::text, E'\\n') FROM {table} t");
        let text = server.query_text(&sql).ok().flatten().unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let (theirs, ours) = (rows(publisher), rows(subscriber));
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| -> Vec<String> {
        a.difference(b).take(5).cloned().collect()
    };
    let sent = "SELECT pg_current_wal_lsn() || ' ' || string_agg(s::text, ' ') \
                FROM pg_replication_slots s";
    let applied = "SELECT string_agg(s::text, ' ') FROM pg_stat_subscription s";
    format!(
        "only the publisher has {:?}, only the subscriber {:?}\npublisher: {:?}\nsubscriber: {:?}",
        only(&theirs, &ours),
        only(&ours, &theirs),
        publisher.query_text(sent),
        subscriber.query_text(applied),
    )
}

/// Waits until a table is the same on both sides.
pub fn until_same(publisher: &Server, subscriber: &Server, table: &str) {
    let mut last = (None, None);
    let began = Instant::now();
    loop {
        let both = (digest(publisher, table), digest(subscriber, table));
        if both.0.is_some() && both.0 == both.1 {
            return;
        }
        last = match both {
            (Some(_), Some(_)) => both,
            _ => last,
        };
        assert!(
            began.elapsed() < PATIENCE,
            "{table} differs: {last:?}\n{}\nthe subscriber's log ends:\n{}",
            difference(publisher, subscriber, table),
            tail(subscriber.log())
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The end of a log.
pub fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A page of metrics and health over HTTP.
pub fn page(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
