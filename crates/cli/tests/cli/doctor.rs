//! `lockstep doctor` on real servers: health, short faults, what it says about nodes that are
//! not as they should be, and the probe. All on one set of servers, one after the other; the
//! other faults are in `doctor_matrix.rs`.

use crate::doctor_support::{
    SPACE_MB, brief, causes, doctor, examine, once_right, untroubled, wrong,
};
use lockstep_bench::fault::{Fault, Stage, Strength};
use lockstep_lab::assert_has;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Settings};
use serde_json::Value;

#[test]
fn doctor_tells_health_from_faults() {
    let lab = TestLab::stock()
        .pinned()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
    let mut stage = Stage::start(&lab).unwrap();

    let (code, json) = once_right(|| examine(&stage, 1), |said| said.0 == 0);
    assert_eq!(code, 0, "{}", brief(&json));
    assert_eq!(json["healthy"], true);
    assert!(untroubled(&json), "{}", json["nodes"]);
    assert_eq!(json["links"].as_array().unwrap().len(), 3);

    let [primary, standby, first, second] = stage.conninfos();
    let named = [
        ("primary", primary),
        ("standby", standby),
        ("subscriber", first),
        ("subscriber", second),
    ];
    let mut args = ["--output", "nagios", "--seconds", "1"]
        .map(str::to_owned)
        .to_vec();
    args.extend(
        named
            .into_iter()
            .flat_map(|(role, conninfo)| [format!("--{role}"), conninfo]),
    );
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let said = once_right(|| doctor(&args), |said| said.code == 0);
    let begin = "LOCKSTEP OK - 3 replicas looked at, none is late | ";
    assert!(
        said.code == 0 && said.text.starts_with(begin),
        "{} {}",
        said.code,
        said.text
    );

    for name in [
        "paused replay",
        "recovery conflict",
        "asynchronous apply commit",
    ] {
        let fault = Fault::named(name).unwrap();
        let injected = fault.inject(&lab, &mut stage, Strength::Strong).unwrap();
        let judge = || {
            let (code, json) = examine(&stage, 3);
            wrong(fault, &injected, code, &json)
        };
        let wrong = once_right(judge, Option::is_none);
        stage.heal(injected).unwrap();
        assert_eq!(wrong, None, "{name}");
    }

    bad_nodes(&lab, &stage);
    text_fits(&stage);
    probe_leaves_nothing(&stage);
}

/// Exit codes of doctor as a plugin, also for what it could not check.
#[test]
fn a_plugin_says_what_it_could_not_check() {
    let nowhere = ["--primary", "host=/nowhere"];
    let plugin = |more: &[&str]| {
        let said = doctor(&[&nowhere, more].concat());
        (said.code, said.text)
    };
    let (code, text) = plugin(&["--output", "nagios", "--seconds", "1"]);
    let begin = "LOCKSTEP CRITICAL - nothing can be said about primary (unreachable: ";
    assert!(code == 2 && text.starts_with(begin), "{code} {text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains("/nowhere") && lines[0].ends_with(" | lost_nodes=1;;0;0"),
        "{text}"
    );
    assert!(lines[1].starts_with("primary: unreachable: "), "{text}");
    for (more, words) in [
        (["--nodes", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--warning", "90"], "--warning is more than --critical"),
    ] {
        let (code, text) = plugin(&[&["--format", "nagios"], &more[..]].concat());
        assert_eq!(code, 3, "{text}");
        assert!(
            text.starts_with("LOCKSTEP UNKNOWN - ") && text.contains(words),
            "{text}"
        );
    }
    let said = doctor(&[&nowhere[..], &["--critical", "9"]].concat());
    assert_eq!(said.code, 2, "{}", said.text);
    assert_has!(said.error, "need --output nagios");
}

/// A view of the server breaks off every third answer, as a conflict with recovery does.
#[test]
fn an_answer_that_is_broken_off_is_asked_for_again() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    primary
        .run(
            // Locks of a session are counters that an error does not set back.
            "CREATE FUNCTION breaks_off() RETURNS boolean LANGUAGE plpgsql AS $$ DECLARE
                 n int := count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
             BEGIN
                 PERFORM pg_advisory_lock(n);
                 IF n % 3 = 2 THEN
                     RAISE 'canceling statement due to conflict with recovery' USING ERRCODE = '40001';
                 END IF;
                 RETURN true;
             END $$;
             SET allow_system_table_mods = on;
             CREATE OR REPLACE VIEW pg_catalog.pg_stat_archiver AS
                 SELECT * FROM pg_stat_get_archiver() WHERE public.breaks_off()",
        );
    let server = primary.conninfo(SUPERUSER);
    let ask = || {
        let seen = primary.log_length();
        let said = doctor(&["--primary", &server, "--seconds", "4", "--output", "json"]);
        let json: Value = serde_json::from_str(&said.text).unwrap();
        let log = primary.log_since(seen).unwrap_or_default();
        let broken_off = log.matches("conflict with recovery").count();
        (said.code, json, broken_off)
    };
    let is_asked_again = |said: &(i32, Value, usize)| said.2 >= 2 && untroubled(&said.1);
    let (code, json, broken_off) = once_right(ask, is_asked_again);
    assert_eq!(
        json["unknown"][0],
        "all nodes: no replica is named, and none is connected"
    );
    assert!(broken_off >= 2, "{broken_off}");
    assert_eq!(code, 7, "{}", brief(&json));
    assert!(untroubled(&json), "{}", json["nodes"]);
}

/// A fact of the first finding.
fn trouble_of(json: &Value, node: &str) -> String {
    let nodes = json["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|one| one["name"] == node).unwrap();
    node["troubles"].to_string()
}

fn bad_nodes(lab: &lockstep_lab::cluster::Lab, stage: &Stage) {
    let [primary, standby, first, _] = stage.conninfos();
    let nowhere = format!("host={} port=1", lab.folder().display());
    let ask = |args: &[&str]| {
        let said = doctor(&[args, &["--seconds", "1", "--output", "json"]].concat());
        let json: Value = serde_json::from_str(&said.text).unwrap();
        assert_eq!(
            said.error.lines().count(),
            usize::from(said.code != 0),
            "{}",
            said.error
        );
        (said.code, json)
    };

    // One that does not answer; the others go on.
    let two = || {
        ask(&[
            "--primary",
            &primary,
            "--standby",
            &nowhere,
            "--standby",
            &standby,
        ])
    };
    let is_there = |(_, json): &(i32, Value)| trouble_of(json, "standby") == "[]";
    let (code, json) = once_right(two, is_there);
    assert_eq!(code, 4);
    assert!(trouble_of(&json, "standby1").contains("unreachable"));
    assert_eq!(trouble_of(&json, "standby"), "[]");
    let without_primary = || ask(&["--primary", &nowhere, "--standby", &standby]);
    let is_asked = |(_, json): &(i32, Value)| json["nodes"][1]["usable"] == true;
    let (code, json) = once_right(without_primary, is_asked);
    assert_eq!(code, 3);
    assert!(json["nodes"][1]["usable"].as_bool().unwrap());

    // Wrong roles.
    let (code, json) = ask(&["--primary", &standby]);
    assert_eq!(code, 3);
    assert!(trouble_of(&json, "primary").contains("--standby"));
    for (option, conninfo) in [("--standby", &primary), ("--subscriber", &primary)] {
        let (code, json) = ask(&["--primary", &primary, option, conninfo]);
        assert_eq!(code, 4);
        let role = option.trim_start_matches('-');
        assert!(trouble_of(&json, role).contains("wrong_role"), "{json}");
    }

    // A standby of another cluster.
    let mut other = lab.primary("other", None, &Settings::new()).unwrap();
    let strange = lab.standby(&other, "strange", &Settings::new()).unwrap();
    let (code, json) = ask(&[
        "--primary",
        &primary,
        "--standby",
        &strange.conninfo(SUPERUSER),
    ]);
    assert_eq!(code, 4);
    assert!(trouble_of(&json, "standby").contains("other_system"));
    other.stop(lockstep_lab::server::Stop::Immediate).unwrap();

    // A role that may see little cannot know. One in pg_monitor sees everything.
    stage
        .primary
        .run("CREATE ROLE poor LOGIN; CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher");
    let as_role = |role: &str| primary.replace("user=postgres", &format!("user={role}"));
    let (code, json) = ask(&["--primary", &as_role("poor")]);
    assert_eq!((code, json["healthy"].as_bool()), (7, Some(false)));
    assert_has!(trouble_of(&json, "primary"), "GRANT pg_monitor TO poor");
    let watches = || ask(&["--primary", &as_role("watcher"), "--subscriber", &first]);
    let (code, json) = once_right(watches, |said| said.0 == 0);
    assert_eq!(
        (code, trouble_of(&json, "primary").as_str()),
        (0, "[]"),
        "{}",
        brief(&json)
    );
}

/// 80 columns, and plain words; addresses apart, which are as long as they are.
fn text_fits(stage: &Stage) {
    let [primary, standby, ..] = stage.conninfos();
    stage.standby.run("SELECT pg_wal_replay_pause()");
    stage.primary.run("INSERT INTO t (v) VALUES ('x')");
    let nodes = ["--primary", &primary, "--standby", &standby];
    let ask = || doctor(&[&nodes[..], &["--seconds", "2"]].concat());
    let said = once_right(ask, |said| said.code == 6);
    stage.standby.run("SELECT pg_wal_replay_resume()");
    assert_eq!(said.code, 6, "{}", said.text);
    assert!(
        said.error
            .starts_with("lockstep: lag found; standby: replay is paused"),
        "{}",
        said.error
    );
    assert_has!(said.text, "1. standby: replay is paused");
    assert!(said.text.contains("SELECT pg_wal_replay_resume();"));
    for line in said
        .text
        .lines()
        .filter(|line| !line.contains("PostgreSQL"))
    {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// The table of commits, and nothing stays behind.
fn probe_leaves_nothing(stage: &Stage) {
    let [primary, standby, first, second] = stage.conninfos();
    let published = || {
        let count = "SELECT count(*)::text FROM pg_publication_tables";
        stage.primary.query_text(count).unwrap()
    };
    let before = published();
    let said = doctor(&[
        "--primary",
        &primary,
        "--standby",
        &standby,
        "--subscriber",
        &first,
        "--subscriber",
        &second,
        "--seconds",
        "1",
        "--probe",
        "--commits",
        "3",
        "--output",
        "json",
    ]);
    let json: Value = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    let rows = json["probe"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{json}");
    for row in rows {
        let cells = row["cells"].as_array().unwrap();
        assert!(
            cells.len() == 3 && cells.iter().all(|cell| cell["median_ms"].is_number()),
            "{row}"
        );
    }
    assert!(json["probe"]["visible_ms"]["standby"].is_number());
    for server in [&stage.primary, &stage.first, &stage.second] {
        let left = server
            .query_text("SELECT count(*)::text FROM pg_namespace WHERE nspname = 'lockstep_probe'")
            .unwrap();
        assert_eq!(left.as_deref(), Some("0"), "{:?}", server.id());
    }
    assert_eq!(published(), before);

    // A subscriber that is not named must not get changes of a table it does not have.
    let said = doctor(&[
        "--primary",
        &primary,
        "--subscriber",
        &first,
        "--seconds",
        "1",
        "--probe",
        "--commits",
        "1",
        "--output",
        "json",
    ]);
    let json: Value = serde_json::from_str(&said.text).unwrap();
    assert_has!(json["probe"]["missing"].to_string(), "slots second");
    assert!(causes(&json).iter().all(|cause| cause != "apply_stopped"));
}
