//! `lockstep wal analyze` on WAL of real servers: what is printed, and the exit code.

use std::fs;
use std::path::Path;
use std::process::Command;

use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, Stop};
use lockstep_verify::random::{self, RandomWorkload, Size};
use lockstep_wal::folder::{Range, Run};
use serde_json::Value;

/// Exit code, standard output, standard error.
fn analyze(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["wal", "analyze"])
        .args(args)
        .output()
        .unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn as_json(args: &[&str]) -> Value {
    let (code, out, err) = analyze(&[args, &["--output", "json"]].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Number and bytes of all records by pg_waldump, from `start` to the WAL's end.
fn stats(lab: &Lab, wal: &Path, start: &str, end: &str) -> (u64, u64) {
    let run = Run::find(wal, Range::default()).unwrap();
    let size = run.identity.size;
    let output = Command::new(lab.package().program("pg_waldump"))
        .args(["--stats", "--path"])
        .arg(wal)
        .args(["--start", start, "--end", end])
        // Without file names pg_waldump reads the segment size from any WAL file that it finds,
        // and a file that was created in advance has no header yet.
        .args([start, end].map(|lsn| size.file_name(run.timeline, lsn.parse().unwrap())))
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let total = text.lines().find(|line| line.starts_with("Total"));
    let total = total.unwrap_or_else(|| panic!("{wal:?} from {start} to {end}: {output:?}"));
    // Total  N  record bytes [x%]  image bytes [x%]  bytes [x%]
    let numbers: Vec<u64> = total
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    (numbers[0], *numbers.last().unwrap())
}

fn primary(lab: &Lab) -> Server {
    let mut settings = random::settings();
    settings.insert("wal_keep_size".to_owned(), "4GB".to_owned());
    lab.primary("primary", None, &settings).unwrap()
}

#[test]
fn wal_of_every_kind_is_analyzed() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let mut primary = primary(&lab);
    let size = Size {
        sessions: 4,
        statements: 300,
    };
    random::run(&lab, &primary, &RandomWorkload::new(21, size)).unwrap();

    // The newest of it, from the server, which is told nothing that it would keep.
    let conninfo = primary.conninfo(SUPERUSER);
    let streamed = as_json(&[&conninfo, "--megabytes", "2"]);
    let slots = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_type = 'physical'";
    assert_eq!(primary.query_text(slots).unwrap().unwrap(), "0");
    assert!(streamed["records"].as_u64().unwrap() > 1_000, "{streamed}");

    primary.stop(Stop::Fast).unwrap();
    let folder = primary.data().join("pg_wal");
    let all = as_json(&[folder.to_str().unwrap()]);
    let lsn = |value: &Value| value.as_str().unwrap().to_owned();
    let (start, end) = (lsn(&all["start_lsn"]), lsn(&all["end_lsn"]));
    let (records, bytes) = stats(&lab, &folder, &start, &end);
    assert_eq!(all["records"].as_u64(), Some(records));
    assert_eq!(all["bytes"].as_u64(), Some(bytes));
    assert!(lsn(&all["ended"]).contains("The WAL ends at"), "{all}");

    // A data folder is as good as its pg_wal.
    let same = as_json(&[primary.data().to_str().unwrap()]);
    assert_eq!(same, all);

    // Each record is counted once.
    let count = |value: &Value| value["records"].as_u64().unwrap();
    let causes = all["causes"].as_array().unwrap();
    let held: u64 = causes.iter().map(count).sum();
    assert_eq!(count(&all["parallel"]) + held, records);
    for cause in causes {
        let kinds = cause["kinds"].as_array().unwrap();
        assert_eq!(
            kinds.iter().map(count).sum::<u64>(),
            count(cause),
            "{cause}"
        );
    }
    let kinds = all["kinds"].as_array().unwrap();
    let sum = |key: &str| -> u64 { kinds.iter().map(|kind| kind[key].as_u64().unwrap()).sum() };
    assert_eq!(sum("records"), records);
    assert_eq!(sum("bytes"), bytes);
    assert_eq!(all["image_bytes"].as_u64(), Some(sum("image_bytes")));
    assert!(sum("image_bytes") > sum("images"), "{kinds:?}");
    let names: Vec<_> = causes
        .iter()
        .map(|cause| cause["cause"].as_str().unwrap())
        .collect();
    for name in ["kind", "missing", "map", "ddl", "checkpoint", "unknown"] {
        assert!(names.contains(&name), "{names:?}");
    }
    // Fewer may run ahead while sessions read.
    let hot = as_json(&[folder.to_str().unwrap(), "--hot-standby"]);
    assert_eq!(
        (&hot["hot_standby"], &all["hot_standby"]),
        (&true.into(), &false.into())
    );
    assert_eq!(count(&hot), records);
    assert!(count(&hot["parallel"]) < count(&all["parallel"]), "{hot}");
    let helpers = all["simulated"]["by_helpers"].as_array().unwrap();
    let numbers: Vec<_> = helpers
        .iter()
        .map(|one| one["helpers"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 4, 8, 16, 64]);

    // Where dispatch costs more than redo.
    let mut slow = all["simulated"]["costs"].clone();
    slow["pipeline"]["dispatch_ns"] = 100_000.into();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), slow.to_string()).unwrap();
    let slow = as_json(&[
        folder.to_str().unwrap(),
        "--costs",
        file.path().to_str().unwrap(),
    ]);
    let verdict = lsn(&slow["verdict"]);
    assert!(verdict.starts_with("It does not help: "), "{verdict}");

    // A part of it: what begins before --end, and no more.
    let middle = lsn(&streamed["start_lsn"]);
    let folder = folder.to_str().unwrap();
    let before = as_json(&[folder, "--end", &middle]);
    let behind = as_json(&[folder, "--start", &middle]);
    assert_eq!(count(&before) + count(&behind), records);
    assert_eq!(behind["start_lsn"], streamed["start_lsn"]);
    let (_, text, _) = analyze(&[folder, "--megabytes", "1"]);
    for words in [
        "Reading ended where the options say",
        "kinds with the most bytes",
        "simulated*",
        "64 helpers",
        "It ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (_, text, _) = analyze(&[folder, "--end", "0/1001000"]);
    assert!(text.contains("There is too little WAL to say"), "{text}");
    refusals(folder);
}

/// What is refused, and how damage and gaps are told.
fn refusals(folder: &str) {
    let empty = tempfile::tempdir().unwrap();
    let failed = |args: &[&str], code: i32, words: &str| {
        let (found, out, err) = analyze(args);
        assert_eq!((found, out.as_str()), (code, ""), "{args:?} {err}");
        assert!(err.contains(words), "{args:?} {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    };
    let path = empty.path().to_str().unwrap();
    failed(&[path], 2, "has no WAL segments");
    failed(&[folder, "--start", "0/5", "--end", "0/4"], 2, "--end");
    failed(&[folder, "--timeline", "7"], 2, "timeline 7");
    failed(&[folder, "--seconds", "1"], 2, "--seconds");
    failed(&[folder, "--costs", "/nowhere"], 2, "/nowhere");
    failed(&["host=/nowhere"], 3, "/nowhere");
    failed(&["host=/nowhere", "--end", "0/1"], 2, "folder");
    failed(&["nonsense = 1"], 2, "conninfo");
    failed(&[""], 2, "the source is empty");
    let nowhere = empty.path().join("none");
    failed(&[nowhere.to_str().unwrap()], 2, "cannot read");
    failed(&["/dev/null"], 2, "Not a directory");
    failed(&[folder, "--start", "F/0"], 2, "has no segment");
    failed(
        &[folder, "--end", "0/1000028"],
        2,
        "--end is before the first",
    );

    let copy = tempfile::tempdir().unwrap();
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.file_name().unwrap().len() == 24 {
            let to = copy.path().join(path.file_name().unwrap());
            fs::copy(&path, &to).unwrap();
            segments.push(to);
        }
    }
    segments.sort();
    let path = copy.path().to_str().unwrap();
    let damaged = segments[0].to_str().unwrap();
    let whole = fs::read(damaged).unwrap();
    let mut bytes = whole.clone();
    bytes[0x10_0000] ^= 1;
    fs::write(damaged, bytes).unwrap();
    failed(&[path], 1, damaged);
    // One bit of the first page of all.
    let mut bytes = whole.clone();
    bytes[0] ^= 8;
    fs::write(damaged, bytes).unwrap();
    failed(&[path], 1, &format!("{damaged} is damaged"));
    fs::write(damaged, whole).unwrap();
    // Behind the WAL's end, in its segment.
    let end = as_json(&[path])["end_lsn"].as_str().unwrap().to_owned();
    let end: lockstep_wire::Lsn = end.parse().unwrap();
    let behind = lockstep_wire::Lsn::from(u64::from(end) + 0x4000);
    failed(&[path, "--start", &behind.to_string()], 2, "has no record");

    // What cannot be read is not taken for missing.
    let content = fs::read(&segments[1]).unwrap();
    fs::remove_file(&segments[1]).unwrap();
    fs::create_dir(&segments[1]).unwrap();
    failed(
        &[path],
        1,
        &format!("cannot read {}", segments[1].display()),
    );
    fs::remove_dir(&segments[1]).unwrap();
    // Nor is what is there.
    fs::write(&segments[1], vec![0; content.len()]).unwrap();
    failed(
        &[path],
        1,
        "it is there but does not begin as its segment does",
    );

    fs::remove_file(&segments[1]).unwrap();
    let (code, text, err) = analyze(&[path]);
    assert_eq!(code, 0, "{err}");
    let missing = segments[1].file_name().unwrap().to_str().unwrap();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_has!(words, &format!("Segment {missing} is missing"));
    failed(&[path, "--end", "F/0"], 2, missing);
}
