//! `lockstep-lab wal compare` on real folders: what is printed, and the exit code.

use std::fs;
use std::process::Command;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Settings, settings_of};
use lockstep_verify::oracle;

/// Exit code, standard output, standard error.
fn compare(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"))
        .args(["wal", "compare"])
        .args(args)
        .output()
        .unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn standbys_are_compared_from_the_command_line() {
    let lab = Lab::for_tests().unwrap();
    let settings = settings_of([("shared_buffers", "16MB"), ("autovacuum", "off")]);
    let primary = lab.primary("primary", None, &settings).unwrap();
    let mut one = lab.standby(&primary, "one", &Settings::new()).unwrap();
    let mut two = lab.standby(&primary, "two", &Settings::new()).unwrap();
    primary.run("CREATE TABLE t AS SELECT generate_series(1, 3000) AS i");
    let path = primary
        .query_text("SELECT pg_relation_filepath('t')")
        .unwrap()
        .unwrap();
    oracle::settle(&primary, &mut [&mut one, &mut two]).unwrap();
    let (a, b) = (one.data().to_str().unwrap(), two.data().to_str().unwrap());

    let (code, out, err) = compare(&[a, b]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("at 0/"), "{out}");
    assert!(out.ends_with(", 0 differences\n"), "{out}");

    let (code, out, err) = compare(&[a, b, "--rows"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("--rows needs a running server"), "{err}");

    // The last byte of block 3, and of the blocks after it.
    let file = two.data().join(&path);
    let mut bytes = fs::read(&file).unwrap();
    for block in 3..6 {
        bytes[(block + 1) * 8192 - 5] ^= 1;
    }
    fs::write(&file, &bytes).unwrap();
    let (code, out, err) = compare(&[a, b, "--limit", "2"]);
    assert_eq!(code, 5, "{err}");
    assert_eq!(
        err,
        "lockstep-lab: A and B: 3 differences of pages or files\n"
    );
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    let first = format!("{path}, fork main, block 3, LSN 0/");
    assert!(lines[0].starts_with(&first), "{out}");
    assert!(lines[0].contains("byte 8187 (tuple 1) is "), "{out}");
    assert_eq!(lines[2], "… and 1 more");

    let (code, out, _) = compare(&[a, b, "--output", "json", "--free-space", "ignore"]);
    assert_eq!(code, 5);
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["equal"], false);
    assert_eq!(value["found"], 3);
    let difference = &value["differences"][2];
    assert_eq!(difference["file"], path.as_str());
    assert_eq!(difference["fork"], "main");
    assert_eq!(difference["block"], 5);
    assert_eq!(difference["kind"], "content");
    assert_eq!(difference["offset"], 8187);
    assert_eq!(difference["lsn_a"], difference["lsn_b"]);
}
