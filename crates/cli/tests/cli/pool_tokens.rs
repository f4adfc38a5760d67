//! Read your writes through a pool, by the examples of docs/examples: behind HAProxy, and behind PgBouncer in
//! transaction mode before it. On the primary an older transaction is open during each write: a token made of
//! a snapshot's xmin would miss the write then.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{TestLab, free_port};
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, settings_of};

use crate::doctor_pooled::PROGRAM as PGBOUNCER;
use crate::pool_haproxy::{Proxy, await_servers, is_installed, nodes_file, session, start};
use crate::pool_support::Agent;
use crate::serve_support::until;

/// Where Debian's libpostgresql-jdbc-java puts the driver.
const JDBC: &str = "/usr/share/java/postgresql.jar";

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples");

/// Replay of a commit waits for so long: who reads at once without a token misses it.
const DELAY: &str = "300ms";

/// Pairs of a write and a read for each example at each place.
const PAIRS: usize = 4;

/// A PgBouncer before both ports of a pool.
struct Bouncer {
    process: Child,
    port: u16,
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Bouncer {
    fn start(lab: &Lab, proxy: &Proxy) -> Self {
        let port = free_port().unwrap();
        let (writes, reads) = (proxy.writes, proxy.reads);
        let of = |port: u16| format!("host=127.0.0.1 port={port} dbname=postgres user={SUPERUSER}");
        let text = format!(
            "[databases]\nwrites = {}\nreads = {}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             ignore_startup_parameters = extra_float_digits\n\
             server_login_retry = 1\nquery_wait_timeout = 10\nquery_timeout = 30\n",
            of(writes),
            of(reads)
        );
        let config = lab.write_file("pgbouncer.ini", &text).unwrap();
        let mut command = lab.launcher().command(PGBOUNCER);
        command.arg("-q").arg(config).stderr(Stdio::null());
        let process = lab.launcher().spawn(command, Side::Both).unwrap();
        let bouncer = Self { process, port };
        until("PgBouncer listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        bouncer
    }
}

/// A primary and two standbys that replay late, behind HAProxy.
struct Pool {
    primary: Server,
    proxy: Proxy,
    _agents: [Agent; 3],
    _standbys: [Server; 2],
    // Last: it ends what still runs.
    lab: Lab,
}

impl Pool {
    fn start() -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let settings = settings_of([
            ("shared_preload_libraries", "lockstep"),
            ("lockstep.report_token", "on"),
        ]);
        let primary = lab.primary("primary", None, &settings).unwrap();
        primary.run("CREATE EXTENSION lockstep; CREATE TABLE notes (note text)");
        let late = settings_of([("recovery_min_apply_delay", DELAY)]);
        let standbys = ["first", "second"].map(|name| {
            let mut standby = lab.standby(&primary, name, &late).unwrap();
            standby.catch_up(&primary).unwrap();
            standby
        });
        let [first, second] = &standbys;
        // What is late by the delay is in.
        let agents = [&primary, first, second]
            .map(|node| Agent::start(&primary, node, &["--bound", "5s", "--settle", "5s"]));
        let [of_primary, of_first, of_second] = &agents;
        let nodes = [
            (&primary, "primary", of_primary),
            (first, "standby", of_first),
            (second, "standby", of_second),
        ];
        let file = nodes_file(&lab, &nodes);
        // A check that comes late on a busy machine would cut writers off.
        let proxy = start(&lab, &file, &["--check-every", "2s"]);
        await_servers(proxy.writes, &[&primary]);
        await_servers(proxy.reads, &[first, second]);
        Self {
            primary,
            proxy,
            _agents: agents,
            _standbys: standbys,
            lab,
        }
    }

    /// A read without a token misses a write sooner or later: otherwise this would test nothing.
    fn misses_without_token(&self) {
        let mut number = 0;
        until("a read without a token misses its write", || {
            number += 1;
            let mut writer = session(self.proxy.writes)?;
            let note = format!("INSERT INTO notes VALUES ('without {number}')");
            writer.execute(&note).ok()?;
            let mut reader = session(self.proxy.reads)?;
            let count = format!("SELECT count(*) FROM notes WHERE note = 'without {number}'");
            let rows = reader.query(&count).ok()?;
            (rows[0][0].as_deref() == Some("0")).then_some(())
        });
    }

    /// Runs an example some times at two places, in the form that its driver has; all must read what they
    /// wrote. One that the proxy has cut off writes something else.
    fn reads_its_writes(&self, name: &str, places: &[[String; 2]], example: impl Fn() -> Command) {
        let mut tries = 0;
        for [writes, reads] in places {
            for _ in 0..PAIRS {
                let mut older = self.primary.connect(SUPERUSER, "older").unwrap();
                older
                    .execute("BEGIN; INSERT INTO notes VALUES ('open')")
                    .unwrap();
                let read = until(&format!("{name} gets through to {reads}"), || {
                    tries += 1;
                    let mut command = example();
                    command.arg(format!("{name} {tries}"));
                    let output = command.env("WRITES", writes).env("READS", reads).output();
                    let output = output.unwrap();
                    println!("{}", String::from_utf8_lossy(&output.stderr));
                    output.status.success().then_some(output.stdout)
                });
                let read = String::from_utf8_lossy(&read);
                assert_eq!(read.trim(), "1", "{name} at {reads}");
                older.execute("ROLLBACK").unwrap();
            }
        }
    }
}

/// Both ports of the pool, and both databases of PgBouncer, written as `of` has it.
fn places(
    proxy: &Proxy,
    bouncer: &Bouncer,
    of: impl Fn(u16, &str, bool) -> String,
) -> [[String; 2]; 2] {
    [
        [
            of(proxy.writes, "postgres", false),
            of(proxy.reads, "postgres", false),
        ],
        [
            of(bouncer.port, "writes", true),
            of(bouncer.port, "reads", true),
        ],
    ]
}

fn conninfo(port: u16, database: &str, _: bool) -> String {
    format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname={database}")
}

fn url(port: u16, database: &str, is_pooled: bool) -> String {
    let threshold = if is_pooled { "&prepareThreshold=0" } else { "" };
    format!("jdbc:postgresql://127.0.0.1:{port}/{database}?user={SUPERUSER}{threshold}")
}

fn is_pgbouncer_installed() -> bool {
    let is_there = Path::new(PGBOUNCER).exists();
    if !is_there {
        println!("SKIP: there is no pgbouncer (Debian's pgbouncer)");
    }
    is_there
}

#[test]
fn the_examples_read_their_writes_through_proxies() {
    if !is_installed() || !is_pgbouncer_installed() {
        return;
    }
    let pool = Pool::start();
    let bouncer = Bouncer::start(&pool.lab, &pool.proxy);
    pool.misses_without_token();

    let psql = pool.lab.package().program("psql");
    let programs = psql.parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let places = places(&pool.proxy, &bouncer, conninfo);
    pool.reads_its_writes("psql", &places, || {
        let mut command = Command::new(format!("{EXAMPLES}/read-your-writes.sh"));
        command.env("PATH", &path);
        command
    });
    let python = || Command::new("/usr/bin/python3"); // Debian's, which has the package
    if !python()
        .args(["-c", "import psycopg"])
        .output()
        .is_ok_and(|it| it.status.success())
    {
        return println!("SKIP: there is no psycopg (Debian's python3-psycopg)");
    }
    pool.reads_its_writes("psycopg", &places, || {
        let mut command = python();
        command.arg(format!("{EXAMPLES}/read_your_writes.py"));
        command
    });
}

#[test]
#[ignore = "long: make test-bed"]
fn the_example_for_jdbc_reads_its_writes_through_proxies() {
    if !is_installed() || !is_pgbouncer_installed() {
        return;
    }
    let java = Command::new("java").arg("--version").output();
    if !java.is_ok_and(|it| it.status.success()) || !Path::new(JDBC).exists() {
        println!(
            "SKIP: there is no JDBC (Debian's default-jdk-headless and libpostgresql-jdbc-java)"
        );
        return;
    }
    let pool = Pool::start();
    let bouncer = Bouncer::start(&pool.lab, &pool.proxy);
    pool.misses_without_token();
    pool.reads_its_writes("JDBC", &places(&pool.proxy, &bouncer, url), || {
        let mut command = Command::new("java");
        command.args(["-cp", JDBC]);
        command.arg(format!("{EXAMPLES}/ReadYourWrites.java"));
        command
    });
}
