//! `lockstep serve` over real servers, asked by hand: what it answers, to whom, and what it
//! does with requests and clients that are not as they should be.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::doctor_support::SPACE_MB;
use crate::serve_support::{Answer, Serve, until};
use lockstep_bench::fault::{Fault, Stage, Strength};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, settings_of};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Watches nothing that answers: for tests of HTTP alone.
fn nowhere() -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let conninfo = format!("host={} port=1", folder.path().display());
    (folder, conninfo)
}

// ---- On real servers ------------------------------------------------------------------------

#[test]
fn states_metrics_and_history_follow_the_servers() {
    let lab = TestLab::stock()
        .pinned()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
    let mut stage = Stage::start(&lab).unwrap();
    let [primary, standby, first, second] = stage.conninfos();
    let nowhere = format!("host={} port=1", lab.folder().display());
    let mut serve = Serve::start(&[
        "--primary",
        &primary,
        "--standby",
        &standby,
        "--standby",
        &nowhere,
        "--subscriber",
        &first,
        "--subscriber",
        &second,
        "--heartbeat",
        "--window",
        "5",
    ]);
    all_is_well_but_for_one(&serve);
    lag_is_seen(&serve, &lab, &mut stage);
    events_come(&serve);
    promtool_agrees(&serve.get("/metrics").body);
    health_is_about_the_primary(&serve, &mut stage);
    serve.signal(Signal::SIGTERM);
    assert_eq!(serve.ended().code(), Some(0));
    let left =
        "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'lockstep serve'";
    until("its sessions are gone", || {
        let left = stage.primary.query_text(left).unwrap();
        (left.as_deref() == Some("0")).then_some(())
    });
}

/// A sample's value, whatever further labels it has.
fn metric(text: &str, series: &str) -> Option<f64> {
    let series = series.trim_end_matches('}');
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn all_is_well_but_for_one(serve: &Serve) {
    let state = until("everybody but one has answered", || {
        let state = serve.state();
        let usable = state["nodes"].as_array()?.iter();
        let usable = usable.filter(|node| node["usable"] == true).count();
        let beats = state["links"].as_array()?.iter();
        let beats = beats.filter(|link| link["visible_ms"].is_number()).count();
        (usable == 4 && beats == 1 && state["links"].as_array()?.len() == 3).then_some(state)
    });
    let words = state["verdict"]["words"].as_str().unwrap();
    assert!(words.ends_with("standby2 cannot be asked"), "{words}");
    assert_eq!(state["heartbeat"], true);
    assert!(state["at_ms"].as_i64().unwrap() > 1_600_000_000_000);
    assert_eq!(serve.get("/healthz").status, 200);

    let answer = serve.get("/metrics");
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let text = until("the slot is seen in use", || {
        let text = serve.get("/metrics").body;
        let series = "lockstep_slot_active{node=\"primary\",slot=\"first\"}";
        (metric(&text, series) == Some(1.0)).then_some(text)
    });
    for (series, expected) in [
        ("lockstep_up{node=\"primary\",role=\"primary\"}", 1.0),
        ("lockstep_up{node=\"standby\",role=\"standby\"}", 1.0),
        ("lockstep_up{node=\"standby2\",role=\"standby\"}", 0.0),
    ] {
        assert_eq!(metric(&text, series), Some(expected), "{text}");
    }
    for series in [
        "lockstep_visible_seconds{upstream=\"primary\",replica=\"standby\"}",
        "lockstep_wal_position_bytes{node=\"primary\"}",
        "lockstep_round_trip_seconds{node=\"first\"}",
        "lockstep_wal_folder_bytes{node=\"standby\"}",
        "lockstep_sample_age_seconds{node=\"standby\"}",
        "lockstep_slot_retained_bytes{node=\"primary\",slot=\"second\"}",
        "lockstep_stage_bytes{upstream=\"primary\",replica=\"second\",kind=\"logical\",stage=\"decode\"}",
    ] {
        assert!(metric(&text, series).is_some(), "{series}: {text}");
    }
}

/// What the metrics say agrees with what the server says before and after.
fn lag_is_seen(serve: &Serve, lab: &Lab, stage: &mut Stage) {
    let fault = Fault::named("paused replay").unwrap();
    let injected = fault.inject(lab, stage, Strength::Strong).unwrap();
    let unreplayed = |stage: &Stage| -> f64 {
        let sql = "SELECT (pg_last_wal_receive_lsn() - pg_last_wal_replay_lsn())::text";
        stage
            .standby
            .query_text(sql)
            .unwrap()
            .unwrap()
            .parse()
            .unwrap()
    };
    let cause = "lockstep_cause{at=\"standby\",cause=\"replay_paused\",severity=\"lag\"}";
    let link = "{upstream=\"primary\",replica=\"standby\",kind=\"physical\"";
    let least = unreplayed(stage);
    let text = until("metrics show the cause", || {
        let text = serve.get("/metrics").body;
        let grown = metric(
            &text,
            &format!("lockstep_stage_bytes{link},stage=\"replay\"}}"),
        )?;
        let behind = metric(&text, &format!("lockstep_behind{link}}}"));
        let known = metric(&text, cause) == Some(1.0) && behind == Some(1.0);
        (known && grown >= least && grown > 0.0).then_some(text)
    });
    let most = unreplayed(stage);
    let replay = metric(
        &text,
        &format!("lockstep_stage_bytes{link},stage=\"replay\"}}"),
    );
    assert!(replay.unwrap() <= most, "{text}");
    assert!(metric(&text, &format!("lockstep_lag_seconds{link}}}")).unwrap() > 0.2);

    let state = serve.state();
    let words = state["verdict"]["words"].as_str().unwrap();
    assert_has!(words, "standby ", "replay is paused");
    let first = &state["diagnosis"]["findings"][0];
    assert_has!(
        first["remedies"][0].as_str().unwrap(),
        "pg_wal_replay_resume"
    );

    stage.heal(injected).unwrap();
    until("metrics show the end", || {
        let text = serve.get("/metrics").body;
        (metric(&text, cause).is_none()
            && metric(&text, &format!("lockstep_behind{link}}}")) == Some(0.0))
        .then_some(())
    });
    the_history_has_the_peak(serve);
}

/// The history has the lag, and its peak stays however few moments are asked for.
fn the_history_has_the_peak(serve: &Serve) {
    let moments = |query: &str| {
        let history = serve.get(&format!("/api/history?{query}")).json();
        let links = history["links"].as_array().unwrap().clone();
        let mut links = links.into_iter();
        let link = links.find(|link| link["id"] == "primary/standby").unwrap();
        link["moments"].as_array().unwrap().clone()
    };
    let most_lag = |moments: &[Value]| {
        let lags = moments.iter().map(|one| one["lag_ms"].as_f64().unwrap());
        lags.fold(0.0, f64::max)
    };
    let all = moments("");
    let peak = most_lag(&all);
    assert!(peak > 200.0, "{all:?}");
    let few = moments("step=3600000");
    assert!(few.len() <= 2 && most_lag(&few) == peak, "{few:?}");
    let last = all.last().unwrap()["at_ms"].as_i64().unwrap();
    let later = serve.get(&format!("/api/history?since={last}")).json();
    for link in later["links"].as_array().unwrap() {
        for moment in link["moments"].as_array().unwrap() {
            assert!(moment["at_ms"].as_i64().unwrap() > last, "{later}");
        }
    }
}

/// One state after the other, each with a higher number.
fn events_come(serve: &Serve) {
    let mut stream = serve.connect();
    stream
        .write_all(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    let mut buffer = [0; 65536];
    until("three events", || {
        let read = match stream.read(&mut buffer) {
            // By a signal that the test's process got.
            Err(error) if error.kind() == ErrorKind::Interrupted => return None,
            read => read.unwrap(),
        };
        assert_ne!(read, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        (text.matches("data: {").count() >= 3).then_some(())
    });
    assert_has!(text.to_ascii_lowercase(), "content-type: text/event-stream");
    let mut numbers = Vec::new();
    for piece in text.split("\"number\":").skip(1) {
        let digits: String = piece.chars().take_while(char::is_ascii_digit).collect();
        numbers.push(digits.parse::<u64>().unwrap());
    }
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

fn promtool_agrees(text: &str) {
    let promtool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/promtool");
    let mut tool = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A pipe that nobody reads is promtool's, which could not be got.
    let _ = tool.stdin.take().unwrap().write_all(text.as_bytes());
    let output = tool.wait_with_output().unwrap();
    if output.status.code() == Some(9) {
        println!("SKIP: there is no promtool (Debian's prometheus), and it cannot be fetched");
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

fn health_is_about_the_primary(serve: &Serve, stage: &mut Stage) {
    stage
        .primary
        .stop(lockstep_lab::server::Stop::Immediate)
        .unwrap();
    let answer = until("it says that the primary is gone", || {
        let answer = serve.get("/healthz");
        (answer.status == 503).then_some(answer)
    });
    let reasons = answer.json()["reasons"].to_string();
    assert!(reasons.contains("primary: unreachable"), "{reasons}");
    until("the verdict says so", || {
        let state = serve.state();
        let words = state["verdict"]["words"].as_str()?.to_owned();
        words
            .starts_with("The primary cannot be asked")
            .then_some(())
    });
    stage.primary.start().unwrap();
    until("it is healthy again", || {
        (serve.get("/healthz").status == 200).then_some(())
    });
}

#[test]
fn a_role_in_pg_monitor_is_enough() {
    let lab = TestLab::stock()
        .pinned()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
    let primary = lab.primary("primary", None, &Default::default()).unwrap();
    primary.run("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher");
    let conninfo = primary.conninfo(SUPERUSER);
    let conninfo = conninfo.replace("user=postgres", "user=watcher");
    let serve = Serve::start(&["--primary", &conninfo]);
    let state = until("it has answered", || {
        let state = serve.state();
        (state["nodes"][0]["usable"] == true).then_some(state)
    });
    assert_eq!(state["nodes"][0]["troubles"], serde_json::json!([]));
    assert_eq!(serve.get("/healthz").status, 200);
    for (name, sql) in [
        ("bytes", "SELECT sum(size)::text FROM pg_ls_waldir()"),
        ("files", "SELECT count(*)::text FROM pg_ls_waldir()"),
    ] {
        let series = format!("lockstep_wal_folder_{name}{{node=\"primary\",cluster=\"primary\"}}");
        // The server may have got a segment since it was looked at.
        until("metrics say what is there", || {
            let expected = primary.query_text(sql).unwrap()?.parse().ok();
            (metric(&serve.get("/metrics").body, &series) == expected).then_some(())
        });
    }
}

#[test]
fn what_the_extension_says_is_shown() {
    let lab = TestLab::with_extension().start().unwrap();
    let preloaded = settings_of([
        ("shared_preload_libraries", "lockstep"),
        ("lockstep.read_throttle_lag", "123ms"),
    ]);
    let primary = lab.primary("primary", None, &preloaded).unwrap();
    primary.run("CREATE EXTENSION lockstep");
    let standby = lab.standby(&primary, "standby", &preloaded).unwrap();
    let [primary, conninfo] = [&primary, &standby].map(|server| server.conninfo(SUPERUSER));
    let serve = Serve::start(&["--primary", &primary, "--standby", &conninfo]);
    let limit = "SELECT concurrency_limit::text FROM lockstep_stat_throttle";
    let of = |text: &str, name: &str| metric(text, &format!("lockstep_{name}{{node=\"standby\"}}"));
    let text = until("the extension is heard", || {
        let limit = standby.query_text(limit).unwrap()?;
        let said = serve.state()["nodes"][1]["extension"]["concurrency_limit"].to_string();
        let text = serve.get("/metrics").body;
        (said == limit && of(&text, "throttle_limit") == limit.parse().ok()).then_some(text)
    });
    for name in ["throttle_waiting", "throttle_running", "replay_lag_seconds"] {
        assert!(of(&text, name).is_some(), "{name}: {text}");
    }
}

#[test]
fn parallel_replay_is_shown_where_the_extension_tells_it() {
    let lab = TestLab::with_extension().start().unwrap();
    let preloaded = settings_of([
        ("shared_preload_libraries", "lockstep"),
        ("lockstep.replay_workers", "1"),
        ("lockstep.replay_hot_standby", "on"),
        ("lockstep.replay_min_backlog", "0"),
    ]);
    let primary = lab.primary("primary", None, &preloaded).unwrap();
    primary.run("CREATE EXTENSION lockstep VERSION '0.1'; CREATE TABLE t (v int)");
    let mut standby = lab.standby(&primary, "standby", &preloaded).unwrap();
    standby.catch_up(&primary).unwrap();
    let conninfos = [&primary, &standby].map(|server| server.conninfo(SUPERUSER));
    let watch = || Serve::start(&["--primary", &conninfos[0], "--standby", &conninfos[1]]);

    // Version 0.1 has no such views, and nothing is missing therefore.
    let serve = watch();
    let node = until("version 0.1 is heard", || {
        let node = serve.state()["nodes"][1].clone();
        node["extension"].is_object().then_some(node)
    });
    assert!(node["parallel_replay"].is_null(), "{node}");
    assert_eq!(node["troubles"], serde_json::json!([]));
    let text = serve.get("/metrics").body;
    assert!(!text.contains("lockstep_replay_parallel{"), "{text}");
    drop(serve);

    primary.run("ALTER EXTENSION lockstep UPDATE; INSERT INTO t SELECT generate_series(1, 100)");
    standby.catch_up(&primary).unwrap();
    let serve = watch();
    until("metrics agree with the views", || {
        let text = serve.get("/metrics").body;
        let of = |name: &str, more: &str| {
            let series = format!("lockstep_replay_{name}{{node=\"standby\"{more}}}");
            metric(&text, &series)
        };
        let says = |sql: &str| standby.query_text(sql).unwrap();
        let counter = |column: &str| {
            let sql = format!("SELECT {column}::text FROM lockstep_stat_replay_pipeline");
            says(&sql)?.parse::<f64>().ok()
        };
        let reason = says("SELECT parallel FROM lockstep_stat_replay_pipeline")?;
        let helpers = says("SELECT count(pid)::text FROM lockstep_stat_replay_workers")?;
        let of_replay = [
            (of("records_total", ""), counter("records")),
            (of("helper_records_total", ""), counter("done_by_helpers")),
            (of("dispatched_records_total", ""), counter("dispatched")),
            (of("retired_records_total", ""), counter("retired")),
            (of("ahead_records", ""), counter("record_distance")),
            (of("ahead_bytes", ""), counter("wal_distance")),
            (
                of("startup_wait_seconds_total", ",cause=\"io\""),
                counter("(wait_io_ms / 1000)"),
            ),
            (of("helpers", ""), helpers.parse().ok()),
            (
                of("parallel", ""),
                Some(f64::from(reason.starts_with("yes"))),
            ),
            (
                of("inline_records_total", ",reason=\"kind\""),
                counter("inline_kind"),
            ),
            (
                of("parallel_reason", &format!(",reason=\"{reason}\"")),
                Some(1.0),
            ),
        ];
        let agree = of_replay
            .iter()
            .all(|(shown, said)| shown.is_some() && shown == said);
        let words = serve.state()["nodes"][1]["parallel_replay"]["words"].clone();
        let words = words.as_str()?.to_owned();
        (agree && words.starts_with(&reason)).then_some(())
    });
    // A server that does not replay has nothing to say of it.
    assert!(serve.state()["nodes"][0]["extension"].is_object());
    assert!(serve.state()["nodes"][0]["parallel_replay"].is_null());
}

// ---- HTTP alone -----------------------------------------------------------------------------

#[test]
fn every_page_is_there_with_its_headers_and_nothing_else_is() {
    let (_folder, nowhere) = nowhere();
    let serve = Serve::start(&["--primary", &nowhere]);
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/api/state", "application/json"),
        ("/api/history", "application/json"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
    ] {
        let answer = serve.get(path);
        assert_eq!((path, answer.status), (path, 200));
        assert_eq!(answer.header("content-type"), Some(content_type));
        protects(&answer);
        let head = serve.ask(&format!("HEAD {path}"), &[]);
        assert_eq!((head.status, head.body.as_str()), (200, ""));
    }
    let page = serve.get("/").body;
    assert!(page.contains("<script type=\"module\" src=\"app.js\">"));
    for (line, status) in [
        ("GET /nothing", 404),
        ("GET /../etc/passwd", 404),
        ("GET /api", 404),
        ("GET /api/history?since=x", 400),
        ("GET /api/history?until=1", 400),
        ("POST /api/state", 405),
        ("DELETE /", 405),
        ("PUT /metrics", 405),
        ("OPTIONS /", 405),
    ] {
        let answer = serve.ask(line, &[]);
        assert_eq!((line, answer.status), (line, status));
        protects(&answer);
    }
    assert_eq!(serve.ask("POST /", &[]).header("allow"), Some("get, head"));
    let health = until("health has a reason", || {
        let health = serve.get("/healthz");
        health.body.contains("unreachable").then_some(health)
    });
    assert_eq!(health.status, 503);
}

fn protects(answer: &Answer) {
    let policy = answer.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'self'") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("access-control-allow-origin"), None);
}

#[test]
fn foreign_names_for_this_machine_are_refused() {
    let (_folder, nowhere) = nowhere();
    let serve = Serve::start(&["--primary", &nowhere, "--allow-host", "lag.example"]);
    let asked = |headers: &[&str]| serve.ask("GET /api/state", headers).status;
    let own = format!("Host: {}", serve.address);
    assert_eq!(asked(&[&own]), 200);
    assert_eq!(asked(&["Host: [::1]:80"]), 200);
    assert_eq!(asked(&["Host: lag.example"]), 200);
    assert_eq!(asked(&["Host: evil.example"]), 421);
    assert_eq!(asked(&["Host: localhost", "Host: evil.example"]), 421);
    let absolute = serve.ask("GET http://evil.example/api/state", &[]);
    assert_eq!(absolute.status, 421);
    // No browser: HTTP without a name.
    let answer = serve.exchange("GET /healthz HTTP/1.0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.0 503"), "{answer}");
}

#[test]
fn bad_requests_and_clients_do_no_harm() {
    let (_folder, nowhere) = nowhere();
    let mut serve = Serve::start(&["--primary", &nowhere]);
    let long = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(20_000)
    );
    let many = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X: y\r\n".repeat(200)
    );
    let wide = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(20_000)
    );
    for request in [
        long.as_str(),
        &many,
        &wide,
        "\r\n\r\nnonsense\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{0}\u{5}hello",
    ] {
        let answer = serve.exchange(&format!("{request}\r\n\r\n"));
        let start: String = answer.chars().take(12).collect();
        assert!(
            answer.is_empty() || start.starts_with("HTTP/1.1 4"),
            "{start}"
        );
    }
    // A client that never ends its request is let go of.
    let mut slow = serve.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: loc").unwrap();
    // More streams of events than there may be: metrics still answer.
    let streams: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = serve.connect();
            stream
                .write_all(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            let mut start = [0; 12];
            stream.read_exact(&mut start).unwrap();
            (stream, String::from_utf8_lossy(&start).into_owned())
        })
        .collect();
    let number = |status: &str| streams.iter().filter(|one| one.1.ends_with(status)).count();
    assert_eq!((number(" 200"), number(" 503")), (32, 8));
    assert_eq!(serve.get("/metrics").status, 200);
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(
        rest.is_empty() || rest.starts_with("HTTP/1.1 408"),
        "{rest}"
    );
    // It ends at once with all of them open.
    serve.signal(Signal::SIGINT);
    assert_eq!(serve.ended().code(), Some(0));
    drop(streams);
}

// ---- Who gets in ----------------------------------------------------------------------------

fn file(folder: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// What it says of arguments that cannot be used: one line, exit code 2.
fn refused(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("serve")
        .args(args)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn logins_are_asked_for_checked_and_read_again() {
    let (folder, nowhere) = nowhere();
    let path = file(folder.path(), "logins", "ann:first:one\nbob:other\n", 0o600);
    let auth = path.to_str().unwrap();
    let serve = Serve::start(&["--primary", &nowhere, "--auth-file", auth]);
    // ann:first:one, bob:other, ann:wrong, in base 64.
    let [ann, bob, wrong] = ["YW5uOmZpcnN0Om9uZQ==", "Ym9iOm90aGVy", "YW5uOndyb25n"]
        .map(|token| format!("Authorization: Basic {token}"));
    for path in [
        "/",
        "/app.js",
        "/metrics",
        "/healthz",
        "/api/state",
        "/nothing",
    ] {
        let line = format!("GET {path}");
        let missing = serve.ask(&line, &[]);
        assert_eq!((path, missing.status), (path, 401));
        assert!(
            missing
                .header("www-authenticate")
                .unwrap()
                .starts_with("basic realm=")
        );
        protects(&missing);
        assert_ne!(serve.ask(&line, &[&ann]).status, 401);
    }
    assert_eq!(serve.ask("GET /", &[&bob]).status, 200);
    assert_eq!(serve.ask("GET /", &[&wrong]).status, 401);
    assert_eq!(serve.ask("GET /", &["Authorization: Bearer x"]).status, 401);
    assert_eq!(serve.ask("POST /", &[]).status, 401);
    let line = until("the log names the wrong login", || {
        serve.logged("wrong user name")
    });
    assert!(
        line.contains("127.0.0.1") && !line.contains("YW5u"),
        "{line}"
    );

    // Another password, and then a file that cannot be used.
    file(folder.path(), "logins", "ann:wrong\n", 0o600);
    serve.signal(Signal::SIGHUP);
    until("the file is read again", || {
        (serve.ask("GET /", &[&wrong]).status == 200).then_some(())
    });
    assert_eq!(serve.ask("GET /", &[&bob]).status, 401);
    file(folder.path(), "logins", "ann", 0o600);
    serve.signal(Signal::SIGHUP);
    until("the log says so", || {
        serve.logged("the old ones stay in force")
    });
    assert_eq!(serve.ask("GET /", &[&wrong]).status, 200);
}

#[test]
fn files_and_arguments_that_cannot_be_used_are_refused() {
    let (folder, nowhere) = nowhere();
    let open = file(folder.path(), "open", "ann:secret\n", 0o644);
    let said = refused(&["--primary", &nowhere, "--auth-file", open.to_str().unwrap()]);
    assert_has!(said, "mode 0644", "0600");
    let wrong = file(folder.path(), "wrong", "ann:a\nsecret\n", 0o600);
    let said = refused(&[
        "--primary",
        &nowhere,
        "--auth-file",
        wrong.to_str().unwrap(),
    ]);
    assert!(
        said.contains("line 2") && !said.contains("secret"),
        "{said}"
    );
    let missing = folder.path().join("missing");
    let missing = missing.to_str().unwrap();
    let said = refused(&["--primary", &nowhere, "--auth-file", missing]);
    assert!(said.contains("No such file"), "{said}");
    let said = refused(&[
        "--primary",
        &nowhere,
        "--tls-cert",
        missing,
        "--tls-key",
        missing,
    ]);
    assert!(said.contains("certificate"), "{said}");
    let said = refused(&["--primary", &nowhere, "--tls-cert", missing]);
    assert!(said.contains("--tls-key"), "{said}");
    for (args, words) in [
        (&["--listen", "9871"][..], "host:port"),
        (&["--interval", "0"], "--interval"),
        (&["--interval", "30"], "at least three intervals: 90"),
        (&["--window", "1"], "--window"),
        (&["--log-format", "xml"], "text or json"),
    ] {
        let said = refused(&[&["--primary", &nowhere], args].concat());
        assert!(said.contains(words), "{said}");
    }
    // Taken already: no usage error.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["serve", "--primary", &nowhere, "--listen", &address])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_has!(said, &format!("cannot listen on {address}"));
}

#[test]
fn tls_is_spoken_and_nothing_else() {
    let (folder, nowhere) = nowhere();
    let [certificate, key] = ["crt", "key"].map(|name| folder.path().join(name));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext"])
        .arg("subjectAltName=IP:127.0.0.1,DNS:localhost")
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    let Ok(output) = made else {
        println!("SKIP: there is no openssl");
        return;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let [crt, key_path] = [&certificate, &key].map(|path| path.to_str().unwrap());
    let args = [
        "--primary",
        &nowhere,
        "--tls-cert",
        crt,
        "--tls-key",
        key_path,
    ];
    assert!(refused(&args).contains("private key"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let serve = Serve::start(&args);
    assert!(serve.logged("serving on https://").is_some());

    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-CAfile", crt])
        .args(["-alpn", "http/1.1", "-connect", &serve.address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    client
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"GET /api/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("HTTP/1.1 200"), "{text} {said}");
    assert!(Answer::parse(&text).json()["nodes"].is_array());
    // Without TLS there is no answer.
    let plain = serve.exchange("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!plain.contains("lockstep_"), "{plain}");
}

#[test]
fn what_is_open_to_others_is_warned_about() {
    let (folder, nowhere) = nowhere();
    let all = ["--primary", &nowhere, "--listen", "0.0.0.0:0"];
    let serve = Serve::start(&all);
    assert!(serve.logged("there is no login").is_some());
    assert!(serve.logged("there is no TLS").is_some());
    drop(serve);
    let path = file(folder.path(), "logins", "ann:one\n", 0o600);
    let auth = ["--auth-file", path.to_str().unwrap()];
    let serve = Serve::start(&[&all[..], &auth].concat());
    assert!(serve.logged("there is no login").is_none());
    assert!(serve.logged("passwords travel").is_some());
    drop(serve);
    let serve = Serve::start(&["--primary", &nowhere]);
    assert!(serve.logged("there is no").is_none());
}
