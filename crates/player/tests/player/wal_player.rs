//! The WAL player with real servers: recordings of private primaries, played to standbys.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::Sample;
use lockstep_lab::server::{Server, Settings, Stop};
use lockstep_lab::workload::Workload;
use lockstep_lab::{LabError, Role};
use lockstep_player::null_receiver::{self, Wanted};
use lockstep_player::{Address, Pace, Player, PlayerError, PlayerOptions, Recording, SessionState};
use lockstep_wire::Lsn;
use lockstep_wire::startup::{Session, Startup};

const PATIENCE: Duration = Duration::from_secs(120);

fn settings(list: &[(&str, &str)]) -> Settings {
    list.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn small() -> Settings {
    settings(&[
        ("shared_buffers", "16MB"),
        ("max_connections", "30"),
        ("min_wal_size", "32MB"),
    ])
}

/// What a standby of a recording gets, fast to react.
fn quick() -> Settings {
    settings(&[
        ("shared_buffers", "16MB"),
        ("wal_retrieve_retry_interval", "100ms"),
    ])
}

/// Tables of which nothing may be missing on a standby.
const TABLES: [&str; 4] = [
    "pgbench_accounts",
    "pgbench_tellers",
    "pgbench_branches",
    "pgbench_history",
];

/// One line for each table: its rows and a hash over all of them.
fn contents(server: &Server) -> Vec<String> {
    TABLES
        .iter()
        .map(|table| {
            let sql = format!(
                "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0) \
                 FROM {table} t"
            );
            format!("{table} {}", server.query_text(&sql).unwrap().unwrap())
        })
        .collect()
}

/// A primary with pgbench's tables.
fn primary(lab: &Lab) -> Server {
    let primary = lab.primary("primary", None, &small()).unwrap();
    lab.create_app_role(&primary).unwrap();
    lab.load_data(&primary, 1).unwrap();
    primary
}

/// Runs pgbench until `megabytes` of WAL are written. Beyond the first 6 MB large statements help, since
/// pgbench alone takes 15 CPU s for 20 MB.
fn write_wal(lab: &Lab, primary: &Server, megabytes: u64) {
    let from = u64::from(primary.flush_lsn().unwrap());
    let mut load = lab
        .start_load(primary, Side::Both, Workload::TpcB, 4, 1)
        .unwrap();
    let started = Instant::now();
    loop {
        let written = u64::from(primary.flush_lsn().unwrap()) - from;
        if written >= megabytes * 1_000_000 {
            break;
        }
        load.check().unwrap();
        assert!(started.elapsed() < PATIENCE, "pgbench writes no WAL");
        if written < 6_000_000 {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        primary.run(
            "INSERT INTO pgbench_history \
                 SELECT 1, 1, 1, g, now(), 'filler' FROM generate_series(1, 3000) g",
        );
    }
}

fn record(lab: &Lab, primary: &Server, name: &str, megabytes: u64) -> Recording {
    let folder = lab.folder().join(name);
    let recording = lockstep_player::record::<PlayerError>(lab, primary, &folder, || {
        write_wal(lab, primary, megabytes);
        Ok(())
    })
    .unwrap();
    assert!(recording.bytes() >= megabytes * 1_000_000);
    assert!(recording.seconds() > 0.0);
    recording
}

fn player_of(lab: &Lab, recording: &Recording, pace: Pace, standbys: usize) -> Player {
    Player::start(
        recording,
        PlayerOptions {
            listen: vec![Address::free_socket(lab.folder()).unwrap()],
            pace,
            standbys,
            lead_in: None,
            pin: None,
        },
    )
    .unwrap()
}

fn log(server: &Server) -> String {
    fs::read_to_string(server.log()).unwrap()
}

/// Waits until something has happened.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The published line is fine, in order, and never beyond the pace.
fn assert_line(line: &[Sample], recording: &Recording, rate: f64) {
    assert!(line.len() > 10);
    assert!(line.is_sorted_by(|a, b| a.at <= b.at && a.lsn <= b.lsn));
    let first = line[0];
    for sample in line {
        let seconds = sample.at.seconds_since(first.at) + 0.1;
        let most = u64::from(recording.played_from()) as f64 + rate * seconds;
        assert!(u64::from(sample.lsn) as f64 <= most, "{sample:?}");
    }
}

#[test]
fn a_standby_reaches_the_end_of_a_recording_with_the_same_data() {
    let lab = Lab::for_tests().unwrap();
    let mut primary = primary(&lab);
    let recording = record(&lab, &primary, "recording", 20);
    let expected = contents(&primary);
    primary.stop(Stop::Fast).unwrap();

    // At a rate, over TCP, and at once, over a socket; each to a standby of its own.
    let rate = 10e6;
    for (name, pace, listen) in [
        ("rated", Pace::Rate(rate), Address::loopback()),
        (
            "unlimited",
            Pace::Unlimited,
            Address::free_socket(lab.folder()).unwrap(),
        ),
        ("original", Pace::Factor(2.0), Address::loopback()),
        ("commits", Pace::Commits(20_000.0), Address::loopback()),
    ] {
        let player = Player::start(
            &recording,
            PlayerOptions {
                listen: vec![listen],
                pace,
                standbys: 1,
                lead_in: None,
                pin: None,
            },
        )
        .unwrap();
        let standby =
            lockstep_player::standby_of(&lab, &recording, name, &player.conninfo(), &quick())
                .unwrap();
        assert!(
            player.await_done(PATIENCE),
            "{:?} {}",
            player.status(),
            log(&standby)
        );
        assert!(standby.replay_lsn().unwrap() >= recording.end());
        assert_eq!(contents(&standby), expected);
        let line = player.published_line();
        if name == "rated" {
            assert_line(&line, &recording, rate);
        }
        if name == "commits" {
            let ends: BTreeSet<Lsn> = recording.pace().iter().map(|point| point.lsn).collect();
            // Until the first commit is due, it is where the play began.
            let is_inside = |lsn: &Lsn| *lsn > recording.played_from() && *lsn < recording.end();
            let published = line.iter().map(|sample| sample.lsn);
            let published: BTreeSet<Lsn> = published.filter(is_inside).collect();
            assert!(published.len() > 10, "{published:?}");
            let others: Vec<_> = published.difference(&ends).collect();
            assert!(others.is_empty(), "{others:?}");
        }
        let status = player.finish();
        let session = &status.sessions[0];
        assert_eq!(session.application_name, name);
        assert_eq!(status.published, recording.end());
        assert_eq!(session.sent, recording.end());
        assert_eq!(session.applied, recording.end());
        assert!(status.seconds(session).unwrap() > 0.0);
        if name == "rated" {
            let fastest = recording.bytes() as f64 / rate;
            assert!(status.seconds(session).unwrap() >= fastest * 0.99);
        }
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn two_standbys_play_at_once_and_one_is_killed_in_the_middle() {
    let lab = Lab::for_tests().unwrap();
    let primary = primary(&lab);
    let recording = record(&lab, &primary, "recording", 12);
    let expected = contents(&primary);
    let player = player_of(&lab, &recording, Pace::Rate(4e6), 2);

    let mut one =
        lockstep_player::standby_of(&lab, &recording, "one", &player.conninfo(), &quick()).unwrap();
    until("one streams", || player.status().sessions.len() == 1);
    assert!(player.status().began.is_none(), "it waits for the second");
    let slot = settings(&[("primary_slot_name", "two")]);
    let mut with_slot = quick();
    with_slot.extend(slot);
    let two = lockstep_player::standby_of(&lab, &recording, "two", &player.conninfo(), &with_slot)
        .unwrap();
    until("the play begins", || player.status().began.is_some());

    let third = u64::from(recording.played_from()) + recording.bytes() / 3;
    one.await_replay(Lsn::from(third), PATIENCE).unwrap();
    one.kill().unwrap();
    until("the player notices", || {
        player
            .status()
            .sessions
            .iter()
            .any(|session| session.state == SessionState::Lost)
    });
    assert!(!player.status().is_done());
    one.start().unwrap();
    assert!(player.await_done(PATIENCE), "{:?}", player.status());
    assert_eq!(contents(&one), expected);
    assert_eq!(contents(&two), expected);
    let status = player.finish();
    let ones = |state| {
        let sessions = status.sessions.iter();
        sessions
            .filter(|session| session.application_name == "one" && session.state == state)
            .count()
    };
    assert_eq!(
        (ones(SessionState::Lost), ones(SessionState::Streaming)),
        (1, 1)
    );
}

#[test]
fn client_programs_take_the_player_for_a_primary() {
    let lab = Lab::for_tests().unwrap();
    let primary = primary(&lab);
    let recording = record(&lab, &primary, "recording", 20);
    let player = player_of(&lab, &recording, Pace::Unlimited, 1);

    // Byte for byte what was recorded, from the first segment to the last whole one.
    let received = tempfile::tempdir().unwrap();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(lab.package().program(program))
            .args(args)
            .args(["--dbname", &player.conninfo(), "--no-password"])
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let folder = received.path().to_str().unwrap();
    let (created, said) = run(
        "pg_receivewal",
        &["--directory", folder, "--slot", "files", "--create-slot"],
    );
    assert!(created, "{said}");
    let last = Lsn::from(u64::from(recording.end()) - 1).to_string();
    // Without a slot that knows a position it would begin at the end: the slot is at the end
    // too, so the first segment's name tells it where to begin.
    let first = recording
        .segment_size()
        .file_name(recording.timeline(), recording.first());
    fs::copy(
        recording.wal().join(&first),
        received.path().join(format!("{first}.partial")),
    )
    .unwrap();
    let (ended, said) = run(
        "pg_receivewal",
        &[
            "--directory",
            folder,
            "--slot",
            "files",
            "--endpos",
            &last,
            "--no-loop",
        ],
    );
    assert!(ended, "{said}");
    let mut whole = 0;
    for entry in fs::read_dir(recording.wal()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let recorded = fs::read(recording.wal().join(&name)).unwrap();
        let played = fs::read(received.path().join(&name))
            .or_else(|_| fs::read(received.path().join(format!("{name}.partial"))));
        assert!(recorded == played.unwrap(), "{name} differs");
        whole += 1;
    }
    assert!(whole >= 2);
    let (dropped, said) = run("pg_receivewal", &["--slot", "files", "--drop-slot"]);
    assert!(dropped, "{said}");

    let copy = received.path().join("copy");
    let (made, said) = run("pg_basebackup", &["--pgdata", copy.to_str().unwrap()]);
    assert!(
        !made && said.contains("no base backups") && said.contains("base"),
        "{said}"
    );
    let output = Command::new(lab.package().program("psql"))
        .args([
            "--no-psqlrc",
            "--dbname",
            &format!("{} dbname=x", player.conninfo()),
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("only replication"), "{said}");
    player.finish();
}

/// A client's first packet for replication.
fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    let parameters = [("user", "x"), ("replication", "true"), ("_pq_.new", "1")];
    Startup::Session(Session::new(2, &parameters)).encode(&mut bytes);
    bytes
}

#[test]
fn nonsense_and_crowds_do_not_disturb_the_player() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let folder = lab.folder().join("recording");
    let recording = lockstep_player::record::<PlayerError>(&lab, &primary, &folder, || {
        Ok(primary.execute("CREATE TABLE t ()")?)
    })
    .unwrap();
    let player = player_of(&lab, &recording, Pace::Unlimited, 1);
    let Address::Socket { folder, port } = &player.addresses()[0] else {
        panic!("no socket");
    };
    let path = folder.join(format!(".s.PGSQL.{port}"));
    let with_hello = |more: &[u8]| [&hello()[..], more].concat();
    let long_query = with_hello(b"Q\x7f\xff\xff\xffSELECT");
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xFF; 20_000],
        vec![0; 20_000],
        long_query,
        with_hello(b"Q\x00\x00\x00\x03"),
        with_hello(b"\x00\x00\x00\x00\x04"),
        with_hello(b"Q\x00\x00\x00\x06\xff\x00"),
        with_hello(b"X\x00\x00\x00\x05\x00"),
    ] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may hang up before it has all.
        let _ = stream.write_all(&bytes);
        let mut said = Vec::new();
        let ended = stream.read_to_end(&mut said);
        let reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(ended.as_ref().map_or_else(reset, |_| true), "{ended:?}");
    }

    let crowd: Vec<UnixStream> = (0..64)
        .map(|_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(&hello()).unwrap();
            stream.read_exact(&mut [0; 100]).unwrap();
            stream
        })
        .collect();
    let mut one_more = UnixStream::connect(&path).unwrap();
    one_more.write_all(&hello()).unwrap();
    let mut said = String::new();
    one_more.read_to_string(&mut said).unwrap();
    assert!(said.contains("all 64 places are taken"), "{said}");
    drop(crowd);
    let wanted = Wanted {
        name: "null".to_owned(),
        timeline: None,
        start: recording.first(),
        end: recording.end(),
        at_most: PATIENCE,
    };
    until("there is a place again", || {
        null_receiver::receive(&player.addresses()[0], &wanted)
            .is_ok_and(|received| received.end == recording.end())
    });
    assert!(player.await_done(PATIENCE));
    player.finish();
    assert!(!path.exists());
}

#[test]
fn a_promoted_source_is_recorded_and_played() {
    let lab = Lab::for_tests().unwrap();
    let old = primary(&lab);
    let mut source = lab.standby(&old, "source", &Settings::new()).unwrap();
    source.catch_up(&old).unwrap();
    drop(old);
    source.promote().unwrap();
    let recording = record(&lab, &source, "recording", 4);
    assert_eq!(recording.timeline().get(), 2);
    let expected = contents(&source);

    let player = player_of(&lab, &recording, Pace::Unlimited, 1);
    let standby = lockstep_player::prepare_standby_of(
        &lab,
        &recording,
        "standby",
        &player.conninfo(),
        &quick(),
    );
    let mut standby = standby.unwrap();
    // Without the copy of the history file it has to ask for it.
    let history = standby.data().join("pg_wal/00000002.history");
    let recorded = fs::read(&history).unwrap();
    fs::remove_file(&history).unwrap();
    standby.start().unwrap();
    assert!(player.await_done(PATIENCE), "{:?}", player.status());
    assert_eq!(contents(&standby), expected);
    assert_eq!(fs::read(&history).unwrap(), recorded);
}

/// A recording of next to nothing, copied and spoiled by each of the tests below.
fn short_recording(lab: &Lab) -> (Server, Recording) {
    let primary = primary(lab);
    let recording = record(lab, &primary, "recording", 1);
    (primary, recording)
}

fn copy(recording: &Recording, to: &Path) -> PathBuf {
    let status = Command::new("cp")
        .arg("--recursive")
        .arg(recording.folder())
        .arg(to)
        .status()
        .unwrap();
    assert!(status.success());
    to.to_path_buf()
}

fn refusal(folder: &Path) -> String {
    let line = Recording::open(folder).unwrap_err().to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn spoiled_recordings_are_refused() {
    let lab = Lab::for_tests().unwrap();
    let (primary, recording) = short_recording(&lab);
    let name = recording
        .segment_size()
        .file_name(recording.timeline(), recording.end());
    let spoil = |to: &str, spoil: &dyn Fn(&Path)| {
        let folder = copy(&recording, &lab.folder().join(to));
        Recording::open(&folder).unwrap();
        spoil(&folder);
        refusal(&folder)
    };
    let segment = |folder: &Path| folder.join("wal").join(&name);
    let file = |path: PathBuf| fs::OpenOptions::new().write(true).open(path).unwrap();

    let line = spoil("short", &|folder| {
        file(segment(folder)).set_len(1_000_000).unwrap();
    });
    assert!(
        line.contains(&name) && line.contains("1000000 bytes"),
        "{line}"
    );
    assert!(line.contains("record it again"), "{line}");

    // As long as it should be, but the last pages were never written.
    let line = spoil("sparse", &|folder| {
        let file = file(segment(folder));
        let used = u64::from(recording.end()) % recording.segment_size().bytes();
        file.set_len((used - 1) / 8192 * 8192).unwrap();
        file.set_len(recording.segment_size().bytes()).unwrap();
    });
    assert!(line.contains("holds no WAL"), "{line}");

    let line = spoil("missing", &|folder| {
        fs::remove_file(segment(folder)).unwrap()
    });
    assert!(line.contains(&name), "{line}");

    let line = spoil("foreign", &|folder| {
        file(segment(folder)).write_all_at(&[1; 8], 24).unwrap();
    });
    assert!(line.contains("system identifier"), "{line}");

    let line = spoil("control", &|folder| {
        let control = folder.join("base/global/pg_control");
        file(control).write_all_at(&[1; 8], 0).unwrap();
    });
    assert!(line.contains("base/ has the system identifier"), "{line}");

    let line = spoil("other", &|folder| {
        let first = recording
            .segment_size()
            .file_name(recording.timeline(), recording.first());
        let other = primary.data().join("pg_wal").join(&name);
        let wrong = folder.join("wal").join(first);
        fs::copy(other, &wrong).unwrap();
        file(wrong)
            .write_all_at(&0xFFFF_u64.to_ne_bytes(), 8)
            .unwrap();
    });
    assert!(line.contains("another position"), "{line}");

    let line = spoil("described", &|folder| {
        fs::remove_file(folder.join("recording.json")).unwrap();
    });
    assert!(line.contains("no recording.json"), "{line}");
    assert!(line.contains("lockstep-lab wal record"), "{line}");
}

/// Makes a running standby of something else stream from the player.
fn send_to(standby: &mut Server, player: &Player) {
    // pg_basebackup wrote there where to stream from, and it wins.
    fs::write(standby.data().join("postgresql.auto.conf"), "").unwrap();
    standby
        .set([("primary_conninfo", player.conninfo())])
        .unwrap();
    standby.reload().unwrap();
}

#[test]
fn standbys_that_do_not_belong_to_the_recording_are_told_so() {
    let lab = Lab::for_tests().unwrap();
    let (primary, recording) = short_recording(&lab);
    // More than was recorded.
    write_wal(&lab, &primary, 1);
    let player = player_of(&lab, &recording, Pace::Unlimited, 1);
    let notices = || player.status().notices.join("\n");

    // It has replayed all that its own primary wrote.
    let mut ahead = lab.standby(&primary, "ahead", &quick()).unwrap();
    ahead.execute("SELECT pg_switch_wal()").unwrap_err();
    primary.run("SELECT pg_switch_wal()");
    primary.run("CREATE TABLE later ()");
    ahead.catch_up(&primary).unwrap();
    send_to(&mut ahead, &player);
    // Newer minor releases ask for our position and wait, older ones just begin.
    until("ahead is told", || {
        log(&ahead).contains("is ahead of the upstream server's flush position")
            || log(&ahead).contains("is ahead of the recording's end")
    });
    until("the player says so", || {
        notices().contains("\"ahead\"") && notices().contains("set it up again")
    });
    ahead.stop(Stop::Immediate).unwrap();

    // It has a timeline of its own.
    let mut forked =
        lockstep_player::standby_of(&lab, &recording, "forked", &player.conninfo(), &quick())
            .unwrap();
    assert!(player.await_done(PATIENCE));
    forked.promote().unwrap();
    forked.stop(Stop::Fast).unwrap();
    fs::write(forked.data().join("standby.signal"), "").unwrap();
    forked.start().unwrap();
    until("forked says why", || {
        log(&forked).contains("is behind recovery timeline")
    });
    until("the player says so", || {
        notices().contains("\"forked\" asked") && notices().contains("timeline 1 here")
    });
    forked.stop(Stop::Immediate).unwrap();

    // It is of another system.
    let other = lab.primary("other", None, &small()).unwrap();
    let mut stranger = lab.standby(&other, "stranger", &quick()).unwrap();
    send_to(&mut stranger, &player);
    until("stranger says why", || {
        log(&stranger).contains("system identifier differs")
    });
    until("the player says so", || {
        notices().contains("\"stranger\" asked for our system identifier")
    });

    // What a standby never asks for, a receiver may.
    let ask = |start: Lsn, timeline: u32| {
        let wanted = Wanted {
            name: "null".to_owned(),
            timeline: lockstep_wire::Timeline::new(timeline),
            start,
            end: recording.end(),
            at_most: PATIENCE,
        };
        null_receiver::receive(&player.addresses()[0], &wanted)
    };
    let all = ask(recording.first(), 1).unwrap();
    assert_eq!(all.end, recording.end());
    assert_eq!(
        all.bytes,
        u64::from(recording.end()) - u64::from(recording.first())
    );
    for (start, timeline, words) in [
        (recording.first(), 7, "timeline 7"),
        (Lsn::from(0), 1, "already been removed"),
        (Lsn::from(u64::MAX), 1, "ahead of the recording's end"),
    ] {
        let line = ask(start, timeline).unwrap_err().to_string();
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn sources_that_cannot_be_recorded_are_refused() {
    let lab = Lab::for_tests().unwrap();
    let primary = primary(&lab);
    let refused = |server: &Server, name: &str| {
        let folder = lab.folder().join(name);
        let error =
            lockstep_player::record::<PlayerError>(&lab, server, &folder, || Ok(())).unwrap_err();
        assert!(!folder.exists(), "{name} is left");
        assert!(error.role() == Some(Role::Primary));
        error.to_string()
    };
    let standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    assert!(refused(&standby, "of-standby").contains("record its primary"));

    let used = lab.folder().join("used");
    fs::create_dir(&used).unwrap();
    fs::write(used.join("file"), "mine").unwrap();
    let error =
        lockstep_player::record::<PlayerError>(&lab, &primary, &used, || Ok(())).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    assert!(used.join("file").exists());

    // No room for a slot.
    primary.run(
        "SELECT pg_create_physical_replication_slot('s' || n) FROM generate_series(1, \
             current_setting('max_replication_slots')::int - 1) n",
    );
    let line = refused(&primary, "no-slot");
    assert!(line.contains("all replication slots are in use"), "{line}");

    // A workload that fails leaves nothing, neither here nor there.
    primary.run(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active",
    );
    let folder = lab.folder().join("failed");
    let failed = lockstep_player::record::<PlayerError>(&lab, &primary, &folder, || {
        Err(LabError::Closing.into())
    });
    assert!(
        matches!(failed, Err(PlayerError::Lab(LabError::Closing))),
        "{failed:?}"
    );
    assert!(!folder.exists());
    until("the slot is gone", || {
        let slots = "SELECT count(*)::text FROM pg_replication_slots WHERE temporary";
        primary.query_text(slots).unwrap().as_deref() == Some("0")
    });
}

#[test]
fn paces_and_addresses_that_make_no_sense_are_refused() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let folder = lab.folder().join("recording");
    let recording =
        lockstep_player::record::<PlayerError>(&lab, &primary, &folder, || Ok(())).unwrap();
    assert!(recording.pace().is_empty());
    let start = |pace, listen| {
        let options = PlayerOptions {
            listen: vec![listen],
            pace,
            standbys: 1,
            lead_in: None,
            pin: None,
        };
        Player::start(&recording, options).map(Player::finish)
    };
    let refused = |pace, listen, words: &str| {
        let line = start(pace, listen).unwrap_err().to_string();
        assert!(line.contains(words), "{line}");
    };
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(Pace::Rate(rate), Address::loopback(), "rate");
    }
    refused(Pace::Factor(0.0), Address::loopback(), "above 0");
    refused(Pace::Commits(0.0), Address::loopback(), "above 0");
    refused(Pace::Factor(1.0), Address::loopback(), "set a rate");
    let taken = Address::Socket {
        folder: lab.folder().to_path_buf(),
        port: primary.port(),
    };
    refused(Pace::Unlimited, taken, "choose another address");
    let nowhere = Address::Socket {
        folder: PathBuf::from("/nonexistent"),
        port: 1,
    };
    refused(Pace::Unlimited, nowhere, "/nonexistent");
    assert!(primary.query_text("SELECT 'alive'").unwrap().is_some());
    start(Pace::Unlimited, Address::loopback()).unwrap();
}
