//! `lockstep doctor` and the monitor on standbys of standbys, and on a standby with extension
//! lockstep, on real servers.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::doctor_support::remedy::Pasted;
use crate::doctor_support::{brief, causes, doctor, first_cause, monitor, once_right, untroubled};
use crate::relay_support::{until, until_answer};
use lockstep_bench::fault::Writer;
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server, Settings, Stop};
use lockstep_lag::Role;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;

/// A primary, a standby, and a standby of that.
struct Cascade {
    primary: Server,
    first: Server,
    second: Server,
    _lab: Lab,
}

impl Cascade {
    fn start() -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let primary = lab.primary("primary", None, &Settings::new()).unwrap();
        primary.run("CREATE TABLE t (v text)");
        let settings = [("wal_retrieve_retry_interval", "100ms")];
        let settings: Settings = settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let first = lab.standby(&primary, "first", &settings).unwrap();
        let second = lab.standby(&first, "second", &settings).unwrap();
        Self {
            primary,
            first,
            second,
            _lab: lab,
        }
    }

    fn write(&self) -> Writer {
        let sql = "INSERT INTO t VALUES (repeat('x', 1000))";
        Writer::start(&self.primary, DATABASE, sql, Duration::from_millis(100)).unwrap()
    }

    /// What doctor says of all three, given in this order, while something is written.
    fn examine(&self, seconds: u32) -> (i32, Value) {
        let _writer = self.write();
        let [primary, first, second] =
            [&self.primary, &self.first, &self.second].map(|server| server.conninfo(SUPERUSER));
        let said = doctor(&[
            "--primary",
            &primary,
            // The one that is further away first: the order must not matter.
            "--standby",
            &second,
            "--standby",
            &first,
            "--seconds",
            &seconds.to_string(),
            "--output",
            "json",
        ]);
        let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
        (said.code, json)
    }

    /// What doctor says of all three once that is `right`.
    fn examine_until(&self, seconds: u32, right: impl Fn(i32, &Value) -> bool) -> (i32, Value) {
        once_right(|| self.examine(seconds), |(code, json)| right(*code, json))
    }

    fn caught_up(&mut self) {
        self.first.catch_up(&self.primary).unwrap();
        self.second.catch_up(&self.primary).unwrap();
    }
}

const FIRST: &str = "first";
const SECOND: &str = "second";

fn link<'j>(json: &'j Value, replica: &str) -> &'j Value {
    let links = json["links"].as_array().unwrap();
    let found = links.iter().find(|link| link["replica"] == replica);
    found.unwrap_or_else(|| panic!("no {replica}: {}", brief(json)))
}

/// Which of the two are behind.
fn behind(json: &Value) -> Vec<&'static str> {
    let late = |name: &&str| link(json, name)["behind"] == true;
    [FIRST, SECOND].into_iter().filter(late).collect()
}

/// Each finding's cause and place.
fn found(json: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = json["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| (text(&finding["cause"]), text(&finding["at"])))
        .collect()
}

fn at(cause: &str, places: &[&str]) -> Vec<(String, String)> {
    let place = |place: &&str| (cause.to_owned(), (*place).to_owned());
    places.iter().map(place).collect()
}

#[test]
fn each_hop_of_a_cascade_has_its_own_lag() {
    let mut cascade = Cascade::start();
    let (code, json) = cascade.examine_until(2, |code, _| code == 0);
    assert_eq!(code, 0, "{}", brief(&json));
    assert!(untroubled(&json), "{}", json["nodes"]);
    assert_eq!(link(&json, FIRST)["upstream"], "primary");
    assert_eq!(link(&json, SECOND)["upstream"], FIRST);
    assert_eq!(json["links"].as_array().unwrap().len(), 2);

    // Replay of the first is paused: what it receives still goes on to the second.
    for paused in [&[FIRST][..], &[SECOND], &[FIRST, SECOND]] {
        let server = |name: &&str| match *name {
            FIRST => &cascade.first,
            _ => &cascade.second,
        };
        for name in paused {
            let sql = "SELECT pg_wal_replay_pause()";
            server(name).run(sql);
            let state = "SELECT pg_get_wal_replay_pause_state()";
            // Only seen when there is something to replay.
            let _writer = cascade.write();
            until_answer(server(name), state, "paused");
        }
        let mut expected = at("replay_paused", paused);
        expected.sort();
        let sorted = |json: &Value| {
            let mut found = found(json);
            found.sort();
            found
        };
        let (code, json) = cascade.examine_until(3, |_, json| {
            behind(json) == *paused && sorted(json) == expected
        });
        for name in paused {
            let sql = "SELECT pg_wal_replay_resume()";
            server(name).run(sql);
        }
        assert_eq!(code, 6, "{paused:?}: {}", brief(&json));
        assert_eq!(behind(&json), paused, "{}", brief(&json));
        assert_eq!(sorted(&json), expected, "{}", brief(&json));
        cascade.caught_up();
    }

    upstream_away(&mut cascade);
    twins(&mut cascade);
    hangs(&cascade);
}

/// A server that takes connections and says nothing, and one that stops in the middle: both are
/// given up after their time, and the others are looked at.
fn hangs(cascade: &Cascade) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!(
        "host=127.0.0.1 port={} user=u connect_timeout=2",
        silent.local_addr().unwrap().port()
    );
    let [primary, first, second] = [&cascade.primary, &cascade.first, &cascade.second]
        .map(|server| server.conninfo(SUPERUSER));
    let args = [
        "doctor",
        "--primary",
        &primary,
        "--standby",
        &first,
        "--standby",
        &second,
        "--standby",
        &silent,
        "--relay",
        &silent,
        "--seconds",
        "5",
        "--output",
        "json",
    ];
    let child = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let asking =
        "SELECT pid::text FROM pg_stat_activity WHERE application_name = 'lockstep doctor'";
    let backend = until("the second is asked", || {
        cascade.second.query_text(asking).ok().flatten()
    });
    let backend = Pid::from_raw(backend.parse().unwrap());
    signal::kill(backend, Signal::SIGSTOP).unwrap();
    let output = child.wait_with_output().unwrap();
    signal::kill(backend, Signal::SIGCONT).unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", brief(&json));
    let usable: Vec<(&str, bool)> = json["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| {
            let name = node["name"].as_str().unwrap();
            (name, node["usable"].as_bool().unwrap())
        })
        .collect();
    assert_eq!(
        usable,
        [
            ("primary", true),
            (FIRST, true),
            (SECOND, false),
            ("127.0.0.1", false),
            ("relay", false)
        ],
        "{}",
        json["nodes"]
    );
    assert!(json["nodes"][2]["troubles"].to_string().contains("10 s"));
    assert!(link(&json, FIRST)["behind"] == false);
}

/// The first receives nothing any more: it is to blame, and the second has all that it has.
fn upstream_away(cascade: &mut Cascade) {
    let conninfo = cascade
        .first
        .query_text("SHOW primary_conninfo")
        .unwrap()
        .unwrap();
    set_upstream(&cascade.first, "");
    let receivers = "SELECT count(*)::text FROM pg_stat_wal_receiver";
    until_answer(&cascade.first, receivers, "0");
    let expected = at("no_upstream", &[FIRST]);
    let (code, json) = cascade.examine_until(3, |_, json| {
        behind(json) == [FIRST] && found(json) == expected
    });
    assert_eq!(code, 6, "{}", brief(&json));
    assert_eq!(behind(&json), [FIRST], "{}", brief(&json));
    assert_eq!(found(&json), expected, "{}", brief(&json));
    // What the second one's readers see is as old, although it keeps up.
    assert_eq!(link(&json, SECOND)["behind_primary"]["behind"], true);
    let monitor = monitor(&[
        (Role::Primary, &cascade.primary),
        (Role::Standby, &cascade.first),
        (Role::Standby, &cascade.second),
    ]);
    let _writer = cascade.write();
    until("the monitor knows how old its data is", || {
        let state = monitor.state();
        let mut links = state.links.iter();
        let link = links.find(|link| link.upstream != "primary")?;
        let all = link.behind_primary?;
        (all.behind && !link.behind && all.lag_bytes > 0.0).then_some(())
    });
    set_upstream(&cascade.first, &conninfo);
    cascade.caught_up();
}

/// Both call themselves the same, as standbys without a cluster_name do.
fn twins(cascade: &mut Cascade) {
    for server in [&cascade.first, &cascade.second] {
        let sql = "SELECT current_setting('primary_conninfo')";
        let conninfo = server.query_text(sql).unwrap().unwrap();
        set_upstream(server, &format!("{conninfo} application_name=walreceiver"));
    }
    for server in [&cascade.primary, &cascade.first] {
        let sql = "SELECT string_agg(application_name, ' ') FROM pg_stat_replication";
        until_answer(server, sql, "walreceiver");
    }
    cascade.caught_up();
    let (code, json) = cascade.examine_until(2, |code, _| code == 0);
    assert_eq!(code, 0, "{}", brief(&json));
    assert_eq!(link(&json, FIRST)["upstream"], "primary");
    assert_eq!(link(&json, SECOND)["upstream"], FIRST);
    assert_eq!(json["links"].as_array().unwrap().len(), 2);
}

fn set_upstream(standby: &Server, conninfo: &str) {
    let quoted = conninfo.replace('\'', "''");
    standby.run(&format!("ALTER SYSTEM SET primary_conninfo = '{quoted}'"));
    standby.reload().unwrap();
}

#[test]
fn the_extension_s_figures_are_used() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    primary.run("CREATE EXTENSION lockstep; CREATE TABLE t (v text)");
    let preload = [("shared_preload_libraries", "lockstep")];
    let settings: Settings = preload
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let mut standby = lab.standby(&primary, "standby", &settings).unwrap();
    standby.catch_up(&primary).unwrap();

    let monitor = monitor(&[(Role::Primary, &primary), (Role::Standby, &standby)]);
    let state = until("the state has the extension's figures", || {
        let state = monitor.state_after(0, Duration::from_secs(1));
        let node = state.nodes.iter().find(|node| node.name == "standby")?;
        node.extension.clone()
    });
    let method = standby
        .query_text("SELECT method FROM lockstep_stat_priority")
        .unwrap();
    assert_eq!(state.method, method);
    let limit = standby
        .query_text("SELECT concurrency_limit::text FROM lockstep_stat_throttle")
        .unwrap()
        .unwrap();
    assert!(state.concurrency_limit > 0 && limit != "0");

    // Lag is what the extension says as well.
    standby.run("SELECT pg_wal_replay_pause()");
    let sql = "INSERT INTO t VALUES (repeat('x', 1000))";
    let writer = Writer::start(&primary, DATABASE, sql, Duration::from_millis(100)).unwrap();
    let state = "SELECT pg_get_wal_replay_pause_state()";
    until_answer(&standby, state, "paused");
    let says = || -> f64 {
        let sql = "SELECT coalesce(lag_ms, 0)::text FROM lockstep_stat_replay";
        standby.query_text(sql).unwrap().unwrap().parse().unwrap()
    };
    let least = until("there is lag", || Some(says()).filter(|ms| *ms > 0.0));
    let examine = || -> Value {
        let said = doctor(&[
            "--primary",
            &primary.conninfo(SUPERUSER),
            "--standby",
            &standby.conninfo(SUPERUSER),
            "--seconds",
            "2",
            "--output",
            "json",
        ]);
        serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error))
    };
    let json = once_right(examine, |json| causes(json) == ["replay_paused"]);
    let most = says();
    drop(writer);
    assert_eq!(causes(&json), ["replay_paused"], "{}", brief(&json));
    assert!(untroubled(&json), "{}", json["nodes"]);
    let facts = json["findings"][0]["evidence"].as_array().unwrap();
    let fact = facts
        .iter()
        .find(|fact| fact["name"] == "extension_lag_ms")
        .unwrap_or_else(|| panic!("{}", brief(&json)));
    let value = fact["value"].as_f64().unwrap();
    assert!((least..=most).contains(&value), "{least} {value} {most}");
    until("the monitor sees it", || {
        let state = monitor.state();
        let node = state.nodes.iter().find(|node| node.name == "standby")?;
        node.extension.as_ref()?.lag_ms.filter(|ms| *ms >= least)
    });
    standby.run("SELECT pg_wal_replay_resume()");
}

/// What doctor says of the primary and the second standby, and of the first if it is named.
fn without_first(cascade: &Cascade, first: Option<&str>) -> (i32, Value) {
    let [primary, second] =
        [&cascade.primary, &cascade.second].map(|server| server.conninfo(SUPERUSER));
    let mut args = vec!["--primary", &primary, "--standby", &second];
    args.extend(first.iter().flat_map(|conninfo| ["--standby", *conninfo]));
    args.extend(["--seconds", "3", "--output", "json"]);
    let _writer = cascade.write();
    let said = doctor(&args);
    let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    (said.code, json)
}

/// The upstream of a standby is not named, or is down: no other server is to blame, and nothing moves the
/// standby before that one is looked at.
#[test]
fn an_upstream_that_is_not_asked_is_named_and_nobody_is_accused() {
    let mut cascade = Cascade::start();
    cascade.caught_up();
    let place = format!(
        "{}:{}",
        cascade.first.sockets().display(),
        cascade.first.port()
    );
    let is_it = |wanted: i32, cause: Option<&str>| {
        let cause = cause.map(str::to_owned);
        move |(code, json): &(i32, Value)| *code == wanted && first_cause(json) == cause.as_deref()
    };
    let (code, json) = once_right(|| without_first(&cascade, None), is_it(7, None));
    let said = json["unknown"].to_string();
    assert_eq!(code, 7, "{said} {}", brief(&json));
    assert_has!(
        said,
        &format!("it streams from {place}, which is not named here")
    );
    assert_eq!(causes(&json), [""; 0], "{}", brief(&json));

    let sql = "SELECT pid::text FROM pg_stat_replication";
    let walsender = cascade.first.query_text(sql).unwrap().unwrap();
    let walsender = Pid::from_raw(walsender.parse().unwrap());
    signal::kill(walsender, Signal::SIGSTOP).unwrap();
    let (code, json) = once_right(
        || without_first(&cascade, None),
        is_it(6, Some("upstream_not_asked")),
    );
    signal::kill(walsender, Signal::SIGCONT).unwrap();
    assert_eq!(
        (code, causes(&json)),
        (6, vec!["upstream_not_asked".to_owned()]),
        "{}",
        brief(&json)
    );
    let remedies = json["findings"][0]["remedies"].to_string();
    assert!(
        remedies.contains(&place) && !remedies.contains("primary_conninfo"),
        "{remedies}"
    );
    cascade.caught_up();

    let first = cascade.first.conninfo(SUPERUSER);
    cascade.first.stop(Stop::Fast).unwrap();
    let receivers = "SELECT count(written_lsn)::text FROM pg_stat_wal_receiver";
    until_answer(&cascade.second, receivers, "0");
    for (named, begins) in [
        (None, "name the server at "),
        (Some(first.as_str()), "let "),
    ] {
        let (found, json) = once_right(
            || without_first(&cascade, named),
            is_it(6, Some("upstream_elsewhere")),
        );
        assert_eq!(found, 6, "{} {}", json["unknown"], brief(&json));
        assert_eq!(causes(&json), ["upstream_elsewhere"], "{}", brief(&json));
        let remedy = json["findings"][0]["remedies"][0].as_str().unwrap();
        assert!(remedy.starts_with(begins), "{remedy}");
    }
}

/// Two standbys that follow each other, and the remedy as it is printed.
#[test]
fn a_ring_is_opened_by_its_remedy() {
    let cascade = Cascade::start();
    let back = format!(
        "host={} port={} user={SUPERUSER}",
        cascade.second.sockets().display(),
        cascade.second.port()
    );
    cascade.first.run("ALTER SYSTEM SET primary_slot_name = ''");
    set_upstream(&cascade.first, &back);
    let follows = "SELECT count(*)::text FROM pg_stat_replication";
    until_answer(&cascade.second, follows, "1");
    until_answer(&cascade.primary, follows, "0");
    cascade.primary.run("INSERT INTO t VALUES ('after')");
    let (code, json) =
        cascade.examine_until(3, |_, json| first_cause(json) == Some("no_way_to_primary"));
    assert_eq!(
        (code, causes(&json).first().unwrap().as_str()),
        (6, "no_way_to_primary"),
        "{}",
        brief(&json)
    );
    let remedies = json["findings"][0]["remedies"].as_array().unwrap();
    let remedy = remedies[0].as_str().unwrap();
    let pasted = Pasted::of(remedy);
    let server = match pasted.place.as_str() {
        FIRST => &cascade.first,
        SECOND => &cascade.second,
        other => panic!("{other}: {remedy}"),
    };
    pasted.execute(server, &pasted.statements);
    let rows = "SELECT count(*)::text FROM t WHERE v = 'after'";
    for server in [&cascade.first, &cascade.second] {
        until_answer(server, rows, "1");
    }
}
