//! A pool whose members Patroni names and promotes, with etcd: Debian's packages, on the loopback.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Settings};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::pool_haproxy::{Proxy, is_installed, lockstep, session, start};
use crate::pool_runtime::Watch;
use crate::serve_support::{Serve, until};

const PATRONI: &str = "/usr/bin/patroni";
const ETCD: &str = "/usr/bin/etcd";

/// A program in a session of its own, which ends with the test, and whatever it has started.
struct Running(Child);

impl Running {
    fn start(lab: &Lab, program: &str, args: &[&str], log: &Path) -> Self {
        let mut command = lab.launcher().command(program);
        let file = File::options().create(true).append(true).open(log).unwrap();
        command.args(args).stdout(Stdio::null()).stderr(file);
        Self(lab.launcher().spawn(command, Side::Both).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id().try_into().unwrap());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// A member, on an address of its own, with the usual ports.
struct Member {
    name: String,
    host: String,
    data: PathBuf,
    config: PathBuf,
    log: PathBuf,
    patroni: Option<Running>,
}

impl Member {
    fn start(&mut self, lab: &Lab) {
        let config = self.config.to_str().unwrap();
        self.patroni = Some(Running::start(lab, PATRONI, &[config], &self.log));
    }

    /// The whole machine is gone at once. Its postmaster has a session of its own.
    fn dies(&mut self) {
        self.patroni = None;
        if let Some(pid) = postmaster(&self.data) {
            let _ = killpg(pid, Signal::SIGKILL);
        }
        let _ = std::fs::remove_file(self.data.join("postmaster.pid"));
    }

    fn session(&self) -> Option<Connection> {
        let conninfo = format!(
            "host={} user={SUPERUSER} dbname=postgres connect_timeout=2",
            self.host
        );
        Connection::connect(&Conninfo::parse(&conninfo).unwrap(), Purpose::Sql, "test").ok()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.dies();
    }
}

fn postmaster(data: &Path) -> Option<Pid> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    text.lines().next()?.parse().ok().map(Pid::from_raw)
}

/// What a server needs to find the extension, as a server of the lab has it.
fn paths(lab: &Lab) -> String {
    let donor = lab.primary("donor", None, &Settings::new()).unwrap();
    let mut lines = String::new();
    for name in [
        "dynamic_library_path",
        "extension_destdir",
        "extension_control_path",
    ] {
        let sql = format!("SELECT current_setting('{name}', true)");
        if let Some(value) = donor.query_text(&sql).unwrap() {
            lines.push_str(&format!("    {name}: '{value}'\n"));
        }
    }
    donor.remove().unwrap();
    lines
}

fn member(lab: &Lab, number: u32, net: &str, paths: &str) -> Member {
    let (name, host) = (format!("db{number}"), format!("{net}.{number}"));
    let folder = lab.folder().display().to_string();
    let text = format!(
        "scope: shop\nname: {name}\n\
         restapi:\n  listen: '{host}:8008'\n  connect_address: '{host}:8008'\n\
         etcd3:\n  hosts: '{net}.9:2379'\n\
         bootstrap:\n  dcs:\n    ttl: 20\n    loop_wait: 1\n    retry_timeout: 3\n    \
         maximum_lag_on_failover: 100000000\n    postgresql:\n      use_pg_rewind: true\n      \
         parameters:\n        shared_preload_libraries: lockstep\n        wal_keep_size: 1GB\n  \
         initdb:\n  - data-checksums\n  - locale: C.UTF-8\n\
         postgresql:\n  listen: '{host}:5432'\n  connect_address: '{host}:5432'\n  \
         data_dir: '{folder}/{name}'\n  bin_dir: '{bin}'\n  pgpass: '{folder}/{name}.pgpass'\n  \
         authentication:\n    superuser:\n      username: {SUPERUSER}\n    \
         replication:\n      username: replicator\n  \
         pg_hba:\n  - local all all trust\n  - host all all 127.0.0.0/8 trust\n  \
         - host replication all 127.0.0.0/8 trust\n  \
         parameters:\n    unix_socket_directories: ''\n{paths}",
        bin = lab.package().bin().display()
    );
    Member {
        data: lab.folder().join(&name),
        config: lab.write_file(&format!("{name}.yml"), &text).unwrap(),
        log: lab.folder().join(format!("{name}.log")),
        patroni: None,
        name,
        host,
    }
}

/// The members that are reached through a port.
fn reached(port: u16) -> BTreeSet<String> {
    let host = |_| {
        let rows = session(port)?
            .query("SELECT host(inet_server_addr())")
            .ok()?;
        rows[0][0].clone()
    };
    (0..12).filter_map(host).collect()
}

fn await_hosts(port: u16, hosts: &[&str]) {
    let wanted: BTreeSet<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    until(&format!("{wanted:?} are reached"), || {
        (reached(port) == wanted).then_some(())
    });
}

/// What a client of the pool has done.
#[derive(Debug, Default)]
struct Seen {
    pairs: AtomicU64,
    stale: AtomicU64,
    failed: AtomicU64,
    stops: AtomicBool,
}

/// Writes a number and reads it through the pool with its token, until the end.
fn client(proxy: &Proxy, seen: &Seen) {
    let mut written = 0_u64;
    while !seen.stops.load(Ordering::Relaxed) {
        written += 1;
        match pair(proxy, written) {
            Some(found) => {
                seen.pairs.fetch_add(1, Ordering::Relaxed);
                seen.stale
                    .fetch_add(u64::from(found < written), Ordering::Relaxed);
            }
            None => {
                seen.failed.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn pair(proxy: &Proxy, number: u64) -> Option<u64> {
    let mut writer = session(proxy.writes)?;
    writer.execute(&format!("UPDATE t SET n = {number}")).ok()?;
    let token = writer.query("SELECT lockstep_replay_token()").ok()?[0][0].clone()?;
    let mut reader = session(proxy.reads)?;
    reader.execute("SET lockstep.wait_timeout = '5s'").ok()?;
    reader
        .execute(&format!("SET lockstep.wait_for_lsn = '{token}'"))
        .ok()?;
    reader.query("SELECT n FROM t").ok()?[0][0]
        .clone()?
        .parse()
        .ok()
}

/// Lets the client end, also if the test fails before.
struct Stops<'a>(&'a Seen);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stops.store(true, Ordering::Relaxed);
    }
}

fn start_etcd(lab: &Lab, net: &str) -> Running {
    let [client, peer] = [2379, 2380].map(|port| format!("http://{net}.9:{port}"));
    let data = lab.folder().join("etcd");
    let all = format!("default={peer}");
    let mut args = vec![
        "--data-dir",
        data.to_str().unwrap(),
        "--initial-cluster",
        &all,
    ];
    args.extend([
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
    ]);
    args.extend([
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
    ]);
    Running::start(lab, ETCD, &args, &lab.folder().join("etcd.log"))
}

/// Three members, of which the first is the leader.
fn start_members(lab: &Lab, net: &str) -> Vec<Member> {
    let paths = paths(lab);
    let members = (1..=3).map(|number| member(lab, number, net, &paths));
    let mut members: Vec<Member> = members.collect();
    members[0].start(lab);
    until("the first is the leader", || {
        let mut session = members[0].session()?;
        let rows = session.query("SELECT pg_is_in_recovery()").ok()?;
        (rows[0][0].as_deref() == Some("f")).then_some(())
    });
    let mut leader = members[0].session().unwrap();
    let sql = "CREATE EXTENSION lockstep; CREATE TABLE t AS SELECT 0 AS n";
    leader.execute(sql).unwrap();
    for member in &mut members[1..] {
        member.start(lab);
    }
    members
}

/// A file by which Patroni names the members.
fn nodes_by_patroni(lab: &Lab, hosts: &[String]) -> PathBuf {
    let urls: Vec<_> = hosts
        .iter()
        .map(|host| format!("'http://{host}:8008'"))
        .collect();
    let urls = urls.join(", ");
    let text = format!(
        "[[cluster]]\npatroni = [{urls}]\nconninfo = \"user={SUPERUSER} dbname=postgres\"\n"
    );
    lab.write_file("nodes.toml", &text).unwrap()
}

/// The names that the pool has.
fn names(file: &Path) -> Option<BTreeSet<String>> {
    let file = file.to_str().unwrap();
    let output = lockstep(&["pool", "status", "--nodes", file, "--output", "json"]);
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let names = status["nodes"].as_array()?.iter();
    names
        .map(|node| Some(node["node"].as_str()?.to_owned()))
        .collect()
}

fn start_agents(hosts: &[String]) -> Vec<Serve> {
    let of = |host: &str| format!("host={host} user={SUPERUSER} dbname=postgres");
    let primary = of(&hosts.join(","));
    let start = |host: &String| {
        let (listen, check, node) = (format!("{host}:9872"), format!("{host}:9873"), of(host));
        let mut args = vec!["--primary", &primary, "--node", &node, "--rise", "1s"];
        args.extend(["--listen", &listen, "--agent-check", &check]);
        Serve::start_as(&["pool", "agent"], &args)
    };
    hosts.iter().map(start).collect()
}

/// The leader dies under load, and later returns as a replica.
fn fails_over(lab: &Lab, first: &mut Member, hosts: &[String], proxy: &Proxy, seen: &Seen) {
    let more = |pairs: u64| {
        let before = seen.pairs.load(Ordering::Relaxed);
        until("pairs are read", || {
            (seen.pairs.load(Ordering::Relaxed) > before + pairs).then_some(())
        });
    };
    more(20);
    first.dies();
    let new = until("writers reach another", || {
        let found = reached(proxy.writes).into_iter().next()?;
        (found != hosts[0]).then_some(found)
    });
    let other = hosts[1..].iter().find(|host| **host != new).unwrap();
    await_hosts(proxy.reads, &[other]);
    more(20);
    // Patroni forgets it after a while, and so does HAProxy, which gets it back once it is there again.
    let socket = proxy.socket.to_str().unwrap();
    let drain = [
        "pool",
        "drain",
        &first.name,
        "--socket",
        socket,
        "--wait",
        "0s",
    ];
    until("HAProxy has forgotten the first", || {
        (lockstep(&drain).status.code() == Some(2)).then_some(())
    });
    // WAL of the old timeline that the new primary never got.
    let mut reader = session(proxy.reads).unwrap();
    let refused = reader
        .execute("SET lockstep.wait_for_lsn = '1/FFFFFFFF/0'")
        .unwrap_err();
    assert!(refused.words().contains("lost"), "{}", refused.words());
    first.start(lab);
    await_hosts(proxy.reads, &[&hosts[0], other]);
    await_hosts(proxy.writes, &[&new]);
    more(20);
}

#[test]
#[ignore = "long: make test-bed"]
fn the_pool_follows_patroni_through_a_failover() {
    if !is_installed() {
        return;
    }
    if let Some(missing) = [PATRONI, ETCD]
        .iter()
        .find(|path| !Path::new(path).exists())
    {
        println!("SKIP: there is no {missing} (Debian's patroni, python3-etcd and etcd-server)");
        return;
    }
    let lab = TestLab::with_extension().start().unwrap();
    let net = format!("127.20.{}", std::process::id() % 250);
    let _etcd = start_etcd(&lab, &net);
    let mut members = start_members(&lab, &net);
    let hosts: Vec<String> = members.iter().map(|it| it.host.clone()).collect();
    let all = members.iter().map(|it| it.name.clone()).collect();
    let file = nodes_by_patroni(&lab, &hosts);
    until("Patroni names three", || {
        (names(&file)? == all).then_some(())
    });
    let _agents = start_agents(&hosts);
    let proxy = start(&lab, &file, &[]);
    let _watch = Watch::start(&file, &proxy.socket, &lab.folder().join("watch.log"));
    await_hosts(proxy.writes, &[&hosts[0]]);
    await_hosts(proxy.reads, &[&hosts[1], &hosts[2]]);

    let seen = Seen::default();
    thread::scope(|scope| {
        let _stops = Stops(&seen);
        scope.spawn(|| client(&proxy, &seen));
        fails_over(&lab, &mut members[0], &hosts, &proxy, &seen);
    });
    println!("{seen:?}");
    assert_eq!(seen.stale.load(Ordering::Relaxed), 0);
    assert_eq!(names(&file), Some(all));
}
