//! A pool whose members Patroni names and promotes, with etcd: Debian's packages, on addresses of the loopback.

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
         parameters:\n    unix_socket_directories: '{folder}'\n{paths}",
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
#[derive(Default)]
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
    let paths = paths(&lab);
    let net = format!("127.20.{}", std::process::id() % 250);
    let at = |port: u16| format!("http://{net}.9:{port}");
    let (data, peer, client_url) = (lab.folder().join("etcd"), at(2380), at(2379));
    let etcd = [
        "--data-dir",
        data.to_str().unwrap(),
        "--listen-client-urls",
        &client_url,
        "--advertise-client-urls",
        &client_url,
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
        "--initial-cluster",
        &format!("default={peer}"),
    ];
    let _etcd = Running::start(&lab, ETCD, &etcd, &lab.folder().join("etcd.log"));
    let mut members: Vec<Member> = (1..=3)
        .map(|number| member(&lab, number, &net, &paths))
        .collect();
    members[0].start(&lab);
    until("the first is the leader", || {
        let rows = members[0]
            .session()?
            .query("SELECT pg_is_in_recovery()")
            .ok()?;
        (rows[0][0].as_deref() == Some("f")).then_some(())
    });
    let mut leader = members[0].session().unwrap();
    leader
        .execute("CREATE EXTENSION lockstep; CREATE TABLE t AS SELECT 0 AS n")
        .unwrap();
    members[1..]
        .iter_mut()
        .for_each(|member| member.start(&lab));

    let urls: Vec<_> = members
        .iter()
        .map(|it| format!("'http://{}:8008'", it.host))
        .collect();
    let file = format!(
        "[[cluster]]\npatroni = [{}]\nconninfo = \"user={SUPERUSER} dbname=postgres\"\n",
        urls.join(", ")
    );
    let file = lab.write_file("nodes.toml", &file).unwrap();
    let status = || {
        let output = lockstep(&[
            "pool",
            "status",
            "--nodes",
            file.to_str().unwrap(),
            "--output",
            "json",
        ]);
        serde_json::from_slice::<Value>(&output.stdout).ok()
    };
    until("Patroni names three", || {
        (status()?["nodes"].as_array()?.len() == 3).then_some(())
    });
    let all: Vec<_> = members.iter().map(|it| it.host.as_str()).collect();
    let primary = format!("host={} user={SUPERUSER} dbname=postgres", all.join(","));
    let agent = |host: &str| {
        let (listen, check) = (format!("{host}:9872"), format!("{host}:9873"));
        let node = format!("host={host} user={SUPERUSER} dbname=postgres");
        let own = ["--listen", &listen, "--agent-check", &check, "--rise", "1s"];
        Serve::start_as(
            &["pool", "agent"],
            &[&["--primary", &primary, "--node", &node], &own[..]].concat(),
        )
    };
    let _agents: Vec<Serve> = all.iter().map(|host| agent(host)).collect();
    let proxy = start(&lab, &file, &[]);
    let hosts: Vec<String> = all.iter().map(|host| (*host).to_owned()).collect();
    await_hosts(proxy.writes, &[&hosts[0]]);
    await_hosts(proxy.reads, &[&hosts[1], &hosts[2]]);
    // WAL that the new primary never gets.
    let old_token = "1/FFFFFFFF/0";

    let seen = Seen::default();
    thread::scope(|scope| {
        let (proxy, seen) = (&proxy, &seen);
        let load = scope.spawn(move || client(proxy, seen));
        until("some pairs are read", || {
            (seen.pairs.load(Ordering::Relaxed) > 20).then_some(())
        });
        members[0].dies();
        let new = until("writers reach another", || {
            let found = reached(proxy.writes).into_iter().next()?;
            (found != hosts[0]).then_some(found)
        });
        let other = hosts[1..].iter().find(|host| **host != new).unwrap();
        await_hosts(proxy.reads, &[other]);
        let before = seen.pairs.load(Ordering::Relaxed);
        until("pairs are read again", || {
            (seen.pairs.load(Ordering::Relaxed) > before + 20).then_some(())
        });
        let mut reader = session(proxy.reads).unwrap();
        let refused = reader
            .execute(&format!("SET lockstep.wait_for_lsn = '{old_token}'"))
            .unwrap_err();
        assert!(refused.words().contains("lost"), "{}", refused.words());

        members[0].start(&lab);
        await_hosts(proxy.reads, &[&hosts[0], other]);
        await_hosts(proxy.writes, &[&new]);
        seen.stops.store(true, Ordering::Relaxed);
        load.join().unwrap();
    });
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} pairs, {} failed",
        count(&seen.pairs),
        count(&seen.failed)
    );
    assert_eq!(count(&seen.stale), 0);
    let names: BTreeSet<_> = status().unwrap()["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["node"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, members.iter().map(|it| it.name.clone()).collect());
}
