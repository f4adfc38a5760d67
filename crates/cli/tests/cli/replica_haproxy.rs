//! `lockstep replica switchover` behind a real HAProxy: new sessions wait, are led there, and back; commands
//! are killed in the middle.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{free_port, pause};
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, settings_of};

use crate::pool_haproxy::{PROGRAM, is_installed};
use crate::relay_support::until;
use crate::replica::{Running, closed_args, in_app, lockstep, on, output, said, sql, value};
use crate::replica_switchover::{follows, is_fenced, is_planted, signal};

/// The server that a switchover adds while new sessions wait.
const WAITS: &str = "lockstep-waits";

/// An HAProxy whose back end `app` leads to the source.
struct Proxy {
    process: Child,
    socket: PathBuf,
    port: u16,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Proxy {
    fn start(lab: &Lab, source: &Server, target: &Server) -> Self {
        let folder = lab.folder().join("proxy");
        std::fs::create_dir(&folder).unwrap();
        lab.account().own(&folder).unwrap();
        let (socket, port) = (folder.join("admin.sock"), free_port().unwrap());
        // On a busy machine a look at a server may take longer than the time between two.
        let checked = "check inter 200ms fall 1000";
        let config = format!(
            "global\n  maxconn 200\n  stats socket {} mode 600 level admin\n\
             defaults\n  mode tcp\n  timeout connect 1m\n  timeout queue 5m\n  timeout client 1h\n  timeout server 1h\n\
             frontend app-in\n  bind 127.0.0.1:{port}\n  default_backend app\n\
             backend app\n  server old 127.0.0.1:{} {checked}\n\
             \x20 server new 127.0.0.1:{} {checked} disabled\n\
             backend hashed\n  balance source\n  server old 127.0.0.1:{1}\n  server new 127.0.0.1:{2} disabled\n",
            socket.display(),
            source.port(),
            target.port()
        );
        let config = lab.write_file("haproxy.cfg", &config).unwrap();
        let mut command = lab.launcher().command(PROGRAM);
        command.arg("-db").arg("-f").arg(config);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = lab.launcher().spawn(command, Side::Both).unwrap();
        let proxy = Self {
            process,
            socket,
            port,
        };
        until("HAProxy leads to the source", || {
            reached(&proxy.conninfo()).ok()
        });
        proxy
    }

    fn conninfo(&self) -> String {
        let port = self.port;
        format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname=app connect_timeout=120")
    }

    /// The status of each server of the back end, and its sessions.
    fn servers(&self) -> Vec<String> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(b"show stat app 4 -1\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let mut lines = text.lines().filter(|line| !line.is_empty());
        let head: Vec<_> = lines.next().unwrap()[2..].split(',').collect();
        let place = |column: &str| head.iter().position(|name| *name == column).unwrap();
        let columns = ["svname", "status", "scur"].map(place);
        lines
            .map(|line| {
                let fields: Vec<_> = line.split(',').collect();
                columns.map(|place| fields[place]).join(" ")
            })
            .collect()
    }

    fn has(&self, server: &str) -> bool {
        self.servers().iter().any(|line| line.starts_with(server))
    }
}

fn connect(conninfo: &str) -> Result<Connection, String> {
    let conninfo = Conninfo::parse(conninfo).unwrap();
    Connection::connect(&conninfo, Purpose::Sql, "test").map_err(|error| error.to_string())
}

/// The port of the server that a new session reaches.
fn reached(conninfo: &str) -> Result<String, String> {
    let rows = connect(conninfo)?.query("SHOW port");
    let rows = rows.map_err(|error| error.to_string())?;
    Ok(rows[0][0].clone().unwrap())
}

/// New sessions of a load after a switchover.
const NEW: u32 = 20;

/// A session that inserted a row, or did not.
struct Tried {
    began: Instant,
    took: Duration,
    /// Whether the session is a new one.
    is_new: bool,
    row: u32,
    error: Option<String>,
}

/// Clients that connect for each transaction, and one that keeps its session for as long as it lasts.
struct Load {
    stop: Arc<AtomicBool>,
    /// Number of new sessions that were tried.
    new: Arc<AtomicU32>,
    threads: Vec<JoinHandle<Vec<Tried>>>,
}

impl Load {
    fn start(proxy: &Proxy, first: u32) -> Self {
        let (stop, new) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let next = Arc::new(AtomicU32::new(first));
        let client = |keeps: bool| {
            let (stop, next, conninfo) = (Arc::clone(&stop), Arc::clone(&next), proxy.conninfo());
            let new: Arc<AtomicU32> = Arc::clone(&new);
            thread::spawn(move || {
                let (mut tried, mut session) = (Vec::new(), None);
                while !stop.load(Ordering::Relaxed) {
                    let (began, row) = (Instant::now(), next.fetch_add(1, Ordering::Relaxed));
                    let is_new = session.is_none();
                    let made = session
                        .take()
                        .map_or_else(|| connect(&conninfo), Ok)
                        .and_then(|mut session: Connection| {
                            let insert = format!("INSERT INTO a VALUES ({row})");
                            let made = session.execute(&insert).map_err(|error| error.to_string());
                            made.map(|()| session)
                        });
                    let (kept, error) = match made {
                        Ok(made) => (keeps.then_some(made), None),
                        Err(error) => (None, Some(error)),
                    };
                    session = kept;
                    new.fetch_add(u32::from(is_new), Ordering::Relaxed);
                    let took = began.elapsed();
                    tried.push(Tried {
                        began,
                        took,
                        is_new,
                        row,
                        error,
                    });
                    thread::sleep(Duration::from_millis(5));
                }
                tried
            })
        };
        let threads = [false, false, true].map(client).into();
        Self { stop, new, threads }
    }

    /// Checks that a server has each row that was acknowledged, and that no session has failed which began
    /// once new ones waited. Some more begin before.
    fn ends(self, server: &Server, waited: Instant) {
        let enough = self.new.load(Ordering::Relaxed) + NEW;
        while self.new.load(Ordering::Relaxed) < enough {
            pause();
        }
        self.stop.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        let tried: Vec<_> = threads.flat_map(|it| it.join().unwrap()).collect();
        let rows = server.rows_in("app", "SELECT id FROM a").unwrap();
        let there: BTreeSet<u32> = (rows
            .iter()
            .map(|row| row[0].as_ref().unwrap().parse().unwrap()))
        .collect();
        let made = tried.iter().filter(|it| it.error.is_none());
        let lost: Vec<_> = made.filter(|it| !there.contains(&it.row)).collect();
        assert!(lost.is_empty(), "{} rows", lost.len());
        let later = |it: &&Tried| it.is_new && it.began > waited;
        let later: Vec<_> = tried.iter().filter(later).collect();
        let failed: Vec<_> = later.iter().filter_map(|it| it.error.as_ref()).collect();
        assert!(failed.is_empty(), "{failed:?}");
        let longest = tried.iter().map(|it| it.took).max().unwrap();
        let errors = tried.iter().filter(|it| it.error.is_some()).count();
        println!("longest transaction {longest:?}, {errors} ended with the fence");
        // A session of each client may have been on its way.
        assert!(later.len() + 3 >= NEW as usize, "{}", later.len());
    }
}

struct Stage {
    process: Running,
    proxy: Proxy,
    to: String,
    source: Server,
    target: Server,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Stage {
    fn start() -> Self {
        let lab = Lab::for_tests().unwrap();
        let settings = settings_of([
            ("wal_level", "logical"),
            ("autovacuum", "off"),
            ("listen_addresses", "127.0.0.1"),
        ]);
        let [source, target] = ["source", "target"].map(|name| {
            let port = free_port().unwrap();
            let server = lab.primary(name, Some(port), &settings).unwrap();
            server.run("CREATE DATABASE app");
            server
        });
        on(&source, "CREATE TABLE a (id int PRIMARY KEY)");
        let (from, to) = (in_app(&source), in_app(&target));
        assert!(output(&closed_args(&from, &to)).status.success());
        let proxy = Proxy::start(&lab, &source, &target);
        Self {
            process: follows(&lab, "r", &to, &target),
            proxy,
            to,
            source,
            target,
            lab,
        }
    }

    fn moves(&self, command: &str, servers: &str, more: &[&str]) -> Child {
        let mut command = lockstep(&[command, "r", "--target", &self.to]);
        command.arg("--haproxy").arg(&self.proxy.socket);
        command.arg(format!("--haproxy-address=127.0.0.1:{}", self.proxy.port));
        command.args(["--haproxy-servers", servers]);
        if !more.contains(&"--haproxy-backend") {
            command.args(["--haproxy-backend", "app"]);
        }
        command.args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn there(&self, more: &[&str]) -> Child {
        self.moves("switchover", "old,new", more)
    }

    /// Runs one whose fence waits for a transaction, and says when new sessions wait.
    fn begun(&self) -> (Child, Connection) {
        // Apply stands still, so that it does not get further than that.
        signal(&self.process, "-STOP");
        let child = self.there(&PATIENT);
        while !is_planted(&self.source) {
            pause();
        }
        let mut writer = sql(&self.source);
        writer.execute("BEGIN; INSERT INTO a VALUES (0)").unwrap();
        signal(&self.process, "-CONT");
        while !is_fenced(&self.source) {
            pause();
        }
        (child, writer)
    }
}

const PATIENT: [&str; 4] = ["--max-pause", "60s", "--timeout", "300s"];

fn ended(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

/// Waits until a switchover lets new sessions wait.
fn await_waits(proxy: &Proxy, server: &str) -> Instant {
    let drained = format!("{server} DRAIN");
    while !proxy.has(&drained) {
        thread::sleep(Duration::from_millis(1));
    }
    Instant::now()
}

/// When a switchover has let new sessions wait for the last time, which has ended since: an attempt may be
/// taken back and made again.
fn last_wait(proxy: &Proxy, server: &str, child: &mut Child) -> Instant {
    let drained = format!("{server} DRAIN");
    let (mut waited, mut has_waited) = (None, false);
    while child.try_wait().unwrap().is_none() {
        let waits = proxy.has(&drained);
        if waits && !has_waited {
            waited = Some(Instant::now());
        }
        has_waited = waits;
        thread::sleep(Duration::from_millis(1));
    }
    waited.unwrap_or_else(Instant::now)
}

#[test]
fn new_sessions_of_haproxy_wait_and_are_led_there_and_back() {
    if !is_installed() {
        return;
    }
    let mut stage = Stage::start();
    let [old, new] = [&stage.source, &stage.target].map(|it| it.port().to_string());

    // What would lead clients astray is found before.
    let rehearsed = ended(stage.there(&["--dry-run"]));
    assert!(rehearsed.status.success(), "{}", said(&rehearsed));
    assert!(said(&rehearsed).contains("let new sessions of HAProxy wait"));
    let wrong = ended(stage.moves("switchover", "new,old", &["--dry-run"]));
    let hashed = ended(stage.there(&["--dry-run", "--haproxy-backend", "hashed"]));
    for (output, words) in [
        (&wrong, "server new of back end app is not the source"),
        (&wrong, "server old of back end app is not the target"),
        (&wrong, "server new takes no sessions"),
        (&hashed, "cannot be added to back end hashed: Backend must"),
    ] {
        assert!(said(output).contains(words), "{words}: {}", said(output));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
    assert!(!stage.proxy.has(WAITS), "{:?}", stage.proxy.servers());

    let load = Load::start(&stage.proxy, 1000);
    let (child, writer) = stage.begun();
    let waited = await_waits(&stage.proxy, "old");
    // The fence holds, and whoever connects waits.
    let conninfo = stage.proxy.conninfo();
    let waiting = thread::spawn(move || reached(&conninfo));
    thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    let mut writer = writer;
    writer.execute("COMMIT").unwrap();
    let done = ended(child);
    assert!(done.status.success(), "{}", said(&done));
    assert!(
        said(&done).contains("until it is reloaded"),
        "{}",
        said(&done)
    );
    assert_eq!(waiting.join().unwrap(), Ok(new));
    assert!(
        stage.process.0.wait().unwrap().success(),
        "it ends by itself"
    );
    // A client whose session has ended has to notice that.
    until("the source has no session left", || {
        let servers = stage.proxy.servers();
        assert_eq!(servers.len(), 2, "{servers:?}");
        (servers[0] == "old MAINT 0").then_some(())
    });
    load.ends(&stage.target, waited);

    // The way back, and nobody holds it up.
    let from = in_app(&stage.source);
    let _back = follows(&stage.lab, "r_back", &from, &stage.source);
    let load = Load::start(&stage.proxy, 1_000_000);
    let written = "SELECT count(*) > 20 FROM a WHERE id > 1000000";
    while value(&stage.source, written) != "t" {
        pause();
    }
    let mut child = stage.moves("rollback", "old,new", &PATIENT);
    let waited = last_wait(&stage.proxy, "new", &mut child);
    let done = ended(child);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(reached(&stage.proxy.conninfo()), Ok(old));
    load.ends(&stage.source, waited);
}

#[test]
fn a_killed_switchover_behind_haproxy_is_taken_back_or_goes_on() {
    if !is_installed() {
        return;
    }
    let stage = Stage::start();
    let [old, new] = [&stage.source, &stage.target].map(|it| it.port().to_string());
    let load = Load::start(&stage.proxy, 1000);
    let killed = || {
        let (mut child, writer) = stage.begun();
        await_waits(&stage.proxy, "old");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(writer);
        assert!(stage.proxy.has(WAITS), "{:?}", stage.proxy.servers());
    };
    killed();
    let without = output(&["switchover", "r", "--target", &stage.to]);
    assert!(
        said(&without).contains("new sessions of an HAProxy may wait: give its options"),
        "{}",
        said(&without)
    );
    // One that fails lets clients go on, to the source.
    let failed = ended(stage.there(&["--max-pause", "1ms", "--timeout", "2s"]));
    assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
    assert!(!stage.proxy.has(WAITS), "{:?}", stage.proxy.servers());
    assert_eq!(reached(&stage.proxy.conninfo()), Ok(old));

    killed();
    let done = ended(stage.there(&PATIENT));
    let waited = Instant::now();
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(reached(&stage.proxy.conninfo()), Ok(new));
    load.ends(&stage.target, waited);
}
