//! `lockstep pool agent` beside a real standby: what it says of whatever is wrong with it.

use std::ops::Not;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_client::Connection;
use lockstep_lab::assert_has;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};
use lockstep_lab::usage;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::pool_support::Agent;
use crate::relay_support::until_slots_free;
use crate::serve_support::{Serve, until};

/// The process of a server with this kind of work.
fn process(server: &Server, backend_type: &str) -> Pid {
    let sql =
        format!("SELECT pid::text FROM pg_stat_activity WHERE backend_type = '{backend_type}'");
    let pid = server.query_text(&sql).unwrap().unwrap();
    Pid::from_raw(pid.parse().unwrap())
}

fn write(primary: &Server) {
    primary.run("CREATE TABLE IF NOT EXISTS t (x int); INSERT INTO t VALUES (1)");
}

#[test]
fn what_is_wrong_with_a_node_is_said() {
    let lab = TestLab::stock().start().unwrap();
    let mut primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let agent = Agent::start(&primary, &standby, &[]);
    all_is_well(&agent);

    standby.run("SELECT pg_wal_replay_pause()");
    agent.await_state("late", Some("paused"));
    assert!(
        agent
            .haproxy_hears("fresh")
            .starts_with("up 0% # replay is paused")
    );
    assert!(agent.haproxy_hears("late-fresh").starts_with("up "));
    assert_eq!(agent.serve.get("/replica?lag=1h").status, 503);
    standby.run("SELECT pg_wal_replay_resume()");
    agent.await_state("in", None);

    // Replay hangs: nothing says so but that the node does not show what the primary had.
    let startup = process(&standby, "startup");
    kill(startup, Signal::SIGSTOP).unwrap();
    write(&primary);
    let said = agent.await_state("late", Some("stale"));
    assert!(said["staleness_ms"].as_f64().unwrap() > 2_000.0, "{said}");
    assert!(said["lag_bytes"].as_u64().unwrap() > 0, "{said}");
    assert_eq!(agent.serve.get("/replica?lag=16MB").status, 200);
    assert_eq!(agent.serve.get("/replica?lag=1").status, 503);
    // Each door is judged by itself: reports may be late.
    assert_eq!(agent.serve.get("/pool/fresh").status, 404);
    assert_eq!(agent.serve.get("/pool/reports").status, 200);
    assert_eq!(agent.serve.get("/readiness?lag=1kB&mode=write").status, 200);
    kill(startup, Signal::SIGCONT).unwrap();
    agent.await_state("in", None);

    // Received is replayed, and no WAL comes.
    let upstream = standby
        .query_text("SHOW primary_conninfo")
        .unwrap()
        .unwrap();
    standby.run("ALTER SYSTEM SET primary_conninfo = ''");
    standby.reload().unwrap();
    agent.await_state("late", Some("no_upstream"));
    standby.run("ALTER SYSTEM SET restore_command = 'false'");
    standby.reload().unwrap();
    agent.await_state("late", Some("archive"));
    standby.run("ALTER SYSTEM RESET restore_command");
    let upstream = upstream.replace('\'', "''");
    standby.run(&format!("ALTER SYSTEM SET primary_conninfo = '{upstream}'"));
    standby.reload().unwrap();
    agent.await_state("in", None);

    // The postmaster hangs; the agent's own session would not notice.
    let postmaster = Pid::from_raw(standby.pid().unwrap());
    kill(postmaster, Signal::SIGSTOP).unwrap();
    agent.await_state("out", Some("no_session"));
    kill(postmaster, Signal::SIGCONT).unwrap();
    agent.await_state("in", None);

    primary.stop(Stop::Immediate).unwrap();
    let said = agent.await_state("late", Some("not_streaming"));
    assert_eq!(agent.serve.get("/health").status, 200, "{said}");
    until("nobody knows how stale it is", || {
        (agent.state()["staleness_known"] == false).then_some(())
    });
    let metrics = agent.serve.get("/metrics").body;
    assert_has!(metrics, "lockstep_pool_staleness_known{} 0");

    standby.promote().unwrap();
    agent.await_state("out", Some("is_primary"));
    assert_eq!(agent.serve.get("/primary").status, 200);
    assert_eq!(agent.serve.get("/read-only").status, 200);
    standby.stop(Stop::Immediate).unwrap();
    agent.await_state("out", Some("node_silent"));
    assert_eq!(agent.serve.get("/health").status, 503);
    until("it is logged", || {
        agent.serve.logged("cannot ask the node: ")
    });
}

fn all_is_well(agent: &Agent) {
    let said = agent.await_state("in", None);
    assert_eq!(said["role"], "replica");
    assert!(said["staleness_ms"].as_f64().unwrap() < 2_000.0, "{said}");
    for (request, status) in [
        ("GET /replica", 200),
        ("HEAD /replica", 200),
        ("OPTIONS /replica", 200),
        ("GET /replica?lag=1MB", 200),
        ("GET /replica?lag=2s", 200),
        ("GET /%72eplica?lag=1%20MB", 200),
        ("GET /replica?replication_state=streaming", 200),
        ("GET /read-only", 200),
        ("GET /readiness?lag=1MB&mode=apply", 200),
        ("GET /pool/fresh", 200),
        ("GET /pool/reports", 200),
        ("OPTIONS /primary", 503),
        ("GET /primary", 503),
        ("GET /replica?lag=x", 400),
        ("GET /nothing", 404),
        ("GET /status", 403),
        ("POST /replica", 405),
    ] {
        let answer = agent.serve.ask(request, &[]);
        assert_eq!(answer.status, status, "{request}: {answer:?}");
        let has_body = request.starts_with("GET ") || status == 405;
        assert_eq!(!answer.body.is_empty(), has_body, "{request}: {answer:?}");
        let allowed = (status == 405).then_some("get, head, options");
        assert_eq!(answer.header("allow"), allowed, "{request}: {answer:?}");
    }
    for door in ["", "fresh"] {
        assert!(agent.haproxy_hears(door).starts_with("up "));
    }
    assert!(agent.haproxy_hears("late-reports").starts_with("up "));
    assert_eq!(
        agent.haproxy_hears("writes"),
        "down # the node is a standby"
    );
    assert_eq!(agent.haproxy_hears("x"), "down # no such door");
    let metrics = agent.serve.get("/metrics").body;
    for line in [
        "lockstep_pool_state{state=\"in\"} 1",
        "lockstep_pool_state{state=\"late\"} 0",
        "lockstep_pool_staleness_seconds{} ",
        "lockstep_pool_staleness_known{} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(!metrics.contains("lockstep_pool_sessions"), "{metrics}");
    agent.serve.signal(Signal::SIGUSR1);
    agent.await_state("draining", Some("drained"));
    assert!(agent.haproxy_hears("fresh").starts_with("up 0% # "));
    assert_eq!(agent.serve.get("/pool/fresh").status, 404);
    assert_eq!(agent.serve.get("/replica").status, 503);
    agent.serve.signal(Signal::SIGUSR2);
    agent.await_state("in", None);
}

#[test]
fn a_node_whose_wal_is_gone_and_one_of_another_cluster_are_told() {
    let lab = TestLab::stock().start().unwrap();
    let settings = Settings::from([("wal_keep_size".to_owned(), "0".to_owned())]);
    let mut primary = lab.primary("primary", None, &settings).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let agent = Agent::start(&primary, &standby, &[]);
    agent.await_state("in", None);

    standby.stop(Stop::Fast).unwrap();
    until_slots_free(&primary);
    let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    primary.run(drop);
    for _ in 0..3 {
        primary.run(
            "SELECT pg_logical_emit_message(false, 'x', repeat('x', 100)); SELECT pg_switch_wal()",
        );
        primary.run("CHECKPOINT");
    }
    standby.start().unwrap();
    agent.await_state("late", Some("wal_removed"));

    let other = lab.primary("other", None, &Settings::new()).unwrap();
    let stranger = Agent::start(&other, &standby, &[]);
    stranger.await_state("out", Some("other_cluster"));
    primary.stop(Stop::Immediate).unwrap();
}

#[test]
fn more_than_state_and_lag_needs_a_login() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    let folder = TempDir::new().unwrap();
    let logins = folder.path().join("logins");
    std::fs::write(&logins, "ann:word\n").unwrap();
    std::fs::set_permissions(&logins, std::fs::Permissions::from_mode(0o600)).unwrap();
    let agent = Agent::start(
        &primary,
        &standby,
        &["--auth-file", logins.to_str().unwrap()],
    );
    agent.await_state("in", None);

    assert_eq!(agent.serve.get("/status").status, 401);
    let wrong = "Authorization: Basic YW5uOngK";
    assert_eq!(agent.serve.ask("GET /replica", &[wrong]).status, 401);
    let right = "Authorization: Basic YW5uOndvcmQ=";
    let all = agent.serve.ask("GET /status", &[right]).json();
    assert!(all["sessions"].as_u64().unwrap() >= 1, "{all}");
    assert!(all["node"]["shown"].is_string(), "{all}");
    let metrics = agent.serve.ask("GET /metrics", &[right]).body;
    assert!(metrics.contains("lockstep_pool_sessions"), "{metrics}");
    let open = agent.serve.get("/metrics").body + &agent.serve.get("/replica").body;
    for word in [
        "pool_sessions",
        "\"sessions\"",
        "system",
        "\"shown\"",
        "trouble",
    ] {
        assert!(!open.contains(word), "{word}: {open}");
    }

    // The port is taken.
    let mut second = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    second.args(["pool", "agent", "--primary", &primary.conninfo(SUPERUSER)]);
    second.args(["--listen", &agent.serve.address]);
    let output = second.output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(
        words.contains(&agent.serve.address) && words.contains("with --listen"),
        "{words}"
    );
    agent.serve.signal(Signal::SIGTERM);
}

#[test]
fn a_bound_that_is_too_short_is_refused_with_one_that_is_taken() {
    let servers = ["--primary", "host=/nowhere", "--node", "host=/nowhere"];
    let mut refused = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    refused.args(["pool", "agent", "--bound", "1ms"]);
    let output = refused.args(servers).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words}");
    let (_, advice) = words.trim_end().split_once("give ").unwrap();
    let (bound, _) = advice.split_once(" at least").unwrap();
    let (option, bound) = bound.split_once(" of ").unwrap();
    let mut args = vec![option, bound, "--agent-check", "127.0.0.1:0"];
    args.extend(servers);
    Serve::start_as(&["pool", "agent"], &args);
}

/// The primary answers less often than once in a third of the bound while the node keeps up, and more often
/// while it does not.
#[test]
fn a_node_that_keeps_up_needs_fewer_questions() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let logins = lab.folder().join("logins");
    std::fs::write(&logins, "ann:word\n").unwrap();
    std::fs::set_permissions(&logins, std::fs::Permissions::from_mode(0o600)).unwrap();
    let logins = logins.to_str().unwrap();
    let agent = Agent::start(
        &primary,
        &standby,
        &["--bound", "1s", "--auth-file", logins],
    );
    agent.await_state("in", None);
    // Milliseconds for six answers of the primary.
    let six = || {
        let answers = || {
            let right = "Authorization: Basic YW5uOndvcmQ=";
            let metrics = agent.serve.ask("GET /metrics", &[right]).body;
            let lines = metrics.lines();
            let mut of = lines
                .filter_map(|line| line.strip_prefix("lockstep_pool_primary_answers_total{} "));
            of.next().unwrap().parse::<u64>().unwrap()
        };
        let (first, began) = (answers(), Instant::now());
        until("the primary has answered six times", || {
            (answers() >= first + 6).then_some(())
        });
        began.elapsed().as_millis()
    };
    // Six thirds of the bound are 2 s. On a busy machine a node may not keep up for a while.
    until("questions are rare", || (six() > 2700).then_some(()));
    standby.run("SELECT pg_wal_replay_pause()");
    until("questions are frequent", || {
        write(&primary);
        (six() < 2400).then_some(())
    });
}

/// 0 turns things off elsewhere; here it would end each idle session at once.
#[test]
fn an_age_at_which_every_session_is_old_is_refused() {
    let mut refused = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    refused.args(["pool", "agent", "--primary", "host=/nowhere"]);
    let output = refused.args(["--max-session-age", "0s"]).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("1s at least"), "{words}");
}

/// A server that is shut down once its sessions have ended takes no new one, and keeps those that it has.
#[test]
fn a_server_that_waits_for_its_sessions_takes_no_new_one() {
    let lab = TestLab::stock().start().unwrap();
    let mut primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let agents = [&primary, &standby].map(|node| Agent::start(&primary, node, &[]));
    let [of_primary, of_standby] = &agents;
    of_standby.await_state("in", None);
    let servers = [&primary, &standby];
    let mut sessions = servers.map(|server| server.connect(SUPERUSER, "test").unwrap());
    for server in [&standby, &primary] {
        kill(Pid::from_raw(server.pid().unwrap()), Signal::SIGTERM).unwrap();
    }
    for (agent, path) in [(of_standby, "/pool/fresh"), (of_primary, "/pool/writes")] {
        agent.await_state("out", Some("closing"));
        // HAProxy sends it no new session, and cuts off none.
        assert_eq!(agent.serve.get(path).status, 404);
    }
    assert_eq!(of_primary.serve.get("/primary").status, 503);
    for session in &mut sessions {
        assert!(session.query("SELECT 1").is_ok());
    }
    drop(sessions);
    standby.stop(Stop::Fast).unwrap();
    primary.stop(Stop::Fast).unwrap();
    of_standby.await_state("out", Some("node_silent"));
}

/// Sessions of readers that are old are ended while they are idle, and only on standbys.
#[test]
fn old_sessions_are_ended_while_they_are_idle() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    primary.run("CREATE ROLE reader LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor");
    standby.catch_up(&primary).unwrap();
    let with_age = ["--max-session-age", "1s"];
    let _beside_primary = Agent::start(&primary, &primary, &with_age);
    let node = standby.conninfo("watcher");
    let agent = Agent::start_among(&[&primary], &node, &with_age);
    let [mut writer, mut idle, mut busy] =
        [&primary, &standby, &standby].map(|server| server.connect("reader", "test").unwrap());
    let mut superuser = standby.connect(SUPERUSER, "test").unwrap();
    busy.execute("BEGIN").unwrap();
    let is_open = |session: &mut Connection| session.query("SELECT 1").is_ok();

    let words = until("it says so", || agent.serve.logged("no session is ended"));
    assert_has!(words, "GRANT pg_signal_backend TO watcher");
    assert!(is_open(&mut idle));
    drop(agent);
    primary.run("GRANT pg_signal_backend TO watcher");
    standby.catch_up(&primary).unwrap();
    let agent = Agent::start_among(&[&primary], &node, &with_age);
    until("the idle session is ended", || {
        idle.is_quiet().not().then_some(())
    });
    assert!(!is_open(&mut idle));
    agent.await_state("in", None);
    for session in [&mut writer, &mut busy, &mut superuser] {
        assert!(is_open(session));
    }
    busy.execute("COMMIT").unwrap();
    until("the other is ended", || busy.is_quiet().not().then_some(()));
    assert!(is_open(&mut writer) && is_open(&mut superuser));
}

/// An old primary that is still there takes no writes once a later timeline is known.
#[test]
fn an_old_primary_is_told() {
    let lab = TestLab::stock().start().unwrap();
    let old = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut new = lab.standby(&old, "standby", &Settings::new()).unwrap();
    new.catch_up(&old).unwrap();
    let left = lab.standby(&old, "left", &Settings::new()).unwrap();
    new.promote().unwrap();
    let agent = Agent::start(&new, &old, &[]);
    let of_new = Agent::start(&new, &new, &[]);
    let of_left = Agent::start(&new, &left, &[]);
    until("the new primary takes writes, the old one none", || {
        let statuses = [&of_new, &agent].map(|one| one.serve.get("/primary").status);
        (statuses == [200, 503]).then_some(())
    });
    assert!(agent.haproxy_hears("writes").starts_with("down # "));
    assert_eq!(of_new.haproxy_hears("writes"), "up 100%");
    // A lost packet comes again after 200 ms.
    let late = Duration::from_millis(200);
    assert_eq!(of_new.haproxy_hears_after(late, "writes"), "up 100%");
    // A standby that stays with the old one, and replays what was written there since.
    write(&old);
    of_left.await_state("out", Some("old_timeline"));
}

/// A standby refuses what is serializable, and a function that somebody has put before PostgreSQL's own
/// would be called in its place: neither may a role's settings decide.
#[test]
fn a_roles_own_settings_change_nothing() {
    let lab = TestLab::stock().start().unwrap();
    let mut old = lab.primary("old", None, &Settings::new()).unwrap();
    let mut primary = lab.standby(&old, "new", &Settings::new()).unwrap();
    old.run(
        "CREATE ROLE watcher LOGIN REPLICATION IN ROLE pg_monitor; \
         CREATE SCHEMA own; GRANT USAGE ON SCHEMA own TO watcher; \
         CREATE FUNCTION own.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT false'; \
         ALTER ROLE watcher SET search_path = own, pg_catalog; \
         ALTER ROLE watcher SET default_transaction_isolation = serializable; \
         ALTER ROLE watcher SET default_transaction_read_only = on; \
         ALTER ROLE watcher SET statement_timeout = '5s'; \
         ALTER ROLE watcher SET idle_session_timeout = '5s'",
    );
    primary.catch_up(&old).unwrap();
    // A second timeline has a history, which is read from the standby, too.
    old.stop(Stop::Fast).unwrap();
    primary.promote().unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let node = standby.conninfo("watcher");
    let agent = Agent::start_as("watcher", &[&primary, &standby], &node, &[]);
    let said = agent.await_state("in", None);
    assert_eq!(said["role"], "replica", "{said}");
    assert_eq!(agent.serve.logged("serializable"), None);
}

/// A server that hangs is given up: a request to cancel what it was asked would wait for it without a limit.
#[test]
fn a_primary_that_hangs_is_given_up() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let agent = Agent::start(&primary, &standby, &[]);
    agent.await_state("in", None);
    let postmaster = primary.pid().unwrap();
    let send = |pid: i32, signal| kill(Pid::from_raw(pid), signal);
    send(postmaster, Signal::SIGSTOP).unwrap();
    let others = usage::children(postmaster);
    for pid in &others {
        // One that has just ended is no error.
        let _ = send(*pid, Signal::SIGSTOP);
    }
    let words = until("it is given up", || agent.serve.logged("cannot ask "));
    assert_has!(words, &primary.port().to_string());
    agent.await_state("late", Some("primary_silent"));
    for pid in others.iter().chain([&postmaster]) {
        let _ = send(*pid, Signal::SIGCONT);
    }
    agent.await_state("in", None);
}
