//! The library that makes reads slow, in a program that reads.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockstep_bench::replay::slow_reads::{LATENCY, Library, ReadCounts, SlowReads};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;

const READER: &str = include_str!("slow_reads.c");

/// A latency within which a program takes several steps on most machines.
const LONG: Duration = Duration::from_millis(400);

/// A program under the library, and files for it.
struct Bench {
    lab: Lab,
    reader: PathBuf,
}

impl Bench {
    fn start() -> Self {
        let lab = TestLab::stock().start().unwrap();
        let source = lab.write_file("reader.c", READER).unwrap();
        let reader = lab.folder().join("reader");
        let mut cc = lab.launcher().command("/usr/bin/cc");
        cc.args(["-Wall", "-Werror", "-o"]).arg(&reader).arg(source);
        lab.launcher().run(cc).unwrap();
        Self { lab, reader }
    }

    /// Makes a file of eight blocks below the lab's folder, and returns the step that opens it.
    fn file(&self, path: &str) -> String {
        let path = self.lab.folder().join(path);
        let folder = path.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(&path, vec![7; 8 * 8192]).unwrap();
        self.lab.account().own(&path).unwrap();
        format!("open:{}", path.display())
    }

    /// Reads that are slow, but not before they are told to be.
    fn share(&self) -> SlowReads {
        let library = Library::of(&self.lab).unwrap();
        library.share(&self.lab, "reader").unwrap()
    }

    /// Nanoseconds that each read took.
    fn run(&self, slow: &SlowReads, steps: &[&str]) -> Vec<u128> {
        let mut reader = self.lab.launcher().command(&self.reader);
        reader.envs(slow.environment()).args(steps);
        let said = self.lab.launcher().output(reader).unwrap();
        said.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Nanoseconds of each read, where reads take `latency`, and what was counted.
    fn slow(&self, latency: Duration, steps: &[&str]) -> (Vec<u128>, ReadCounts) {
        let slow = self.share();
        // Only a program that runs can be made slow: this one does nothing.
        self.run(&slow, &[]);
        slow.begin(latency).unwrap();
        let took = self.run(&slow, steps);
        (took, slow.counts().unwrap())
    }
}

fn counts(notes: u64, reads: u64, found: u64, delayed: u64) -> ReadCounts {
    ReadCounts {
        notes,
        reads,
        found,
        delayed,
    }
}

#[test]
fn a_read_waits_unless_its_block_was_asked_for_long_enough_before() {
    let bench = Bench::start();
    let file = bench.file("base/5/16384");
    let latency = LATENCY.as_nanos();

    let steps = [&file, "read:0", "read:0", "write:1", "read:1", "alarmed:2"];
    let (took, counted) = bench.slow(LATENCY, &steps);
    assert!(took.iter().all(|&took| took >= latency), "{took:?}");
    assert_eq!(counted, counts(0, 4, 0, 4));

    // A note serves one read, by whichever process; asking twice is as asking once.
    let steps = [
        &file, "advise:3", "advise:3", "sleep:5", "read:3", "read:3", "advise:4", "sleep:5",
        "child:4",
    ];
    let (took, counted) = bench.slow(LATENCY, &steps);
    assert!(took[1] >= latency, "{took:?}");
    assert_eq!(counted, counts(2, 3, 2, 1));

    // Of two blocks in one read both must be there.
    let steps = [
        &file, "advise:0", "advise:1", "advise:2", "sleep:5", "pair:0", "pair:2",
    ];
    let (took, counted) = bench.slow(LATENCY, &steps);
    assert!(took[1] >= latency, "{took:?}");
    assert_eq!(counted, counts(3, 4, 3, 1));
}

#[test]
fn a_read_soon_after_its_advice_waits_for_the_rest() {
    let bench = Bench::start();
    let file = bench.file("base/5/16384.1");
    // All are served at once: when the last one is there, so are those before it.
    let steps = [
        &file, "advise:0", "advise:1", "advise:2", "advise:3", "read:3", "read:0", "read:1",
        "read:2",
    ];
    let began = Instant::now();
    let (_, counted) = bench.slow(LONG, &steps);
    assert!(began.elapsed() >= LONG, "{:?}", began.elapsed());
    // A program that was stopped for long after its advice has not waited at all.
    assert!(counted.delayed <= 1, "{counted:?}");
    assert_eq!(counted, counts(4, 4, 4, counted.delayed));
}

#[test]
fn only_relations_are_slow_and_only_when_told_to_be() {
    let bench = Bench::start();
    let relation = bench.file("base/5/2619_fsm");
    let in_tablespace = bench.file("space/PG_15_202209061/5/16400");
    let wal = bench.file("pg_wal/000000010000000000000001");
    let map = bench.file("base/5/pg_filenode.map");
    let temporary = bench.file("base/pgsql_tmp/1");

    let slow = bench.share();
    assert!(slow.begin(LATENCY).is_err(), "no program has loaded it yet");
    bench.run(&slow, &[&relation, "advise:0", "read:0"]);
    assert_eq!(slow.counts().unwrap(), counts(0, 0, 0, 0));

    // Descriptors are used again: each file is looked up anew.
    let steps = [
        &wal,
        "advise:0",
        "read:0",
        &relation,
        "read:0",
        &map,
        "read:0",
        &in_tablespace,
        "read:0",
        &temporary,
        "read:0",
        &wal,
        "read:0",
        &relation,
        "read:1",
    ];
    let (_, counted) = bench.slow(LATENCY, &steps);
    assert_eq!(counted, counts(0, 3, 0, 3));
}
