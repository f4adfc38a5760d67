//! We read WAL of a real server as its own pg_waldump does.

use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::Stop;
use lockstep_wire::Lsn;

use crate::bed;
use crate::dump::{assert_alike, ours};

/// Seeds; each runs with another compression of images.
const SEEDS: [(u64, &str); 3] = [(1, "off"), (2, "pglz"), (3, "lz4")];

#[test]
fn we_read_what_pg_waldump_reads() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let package = lab.package();
    for (seed, compression) in SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let settings = [("wal_compression", compression)];
        let name = format!("primary{seed}");
        let mut primary = bed::server(&lab, &name, &settings);
        bed::write(&primary, &mut random, 25);
        // A record of several segments, and one that ends a segment early.
        primary
            .execute("SELECT pg_logical_emit_message(false, 'p', repeat('y', 3500000))")
            .unwrap();
        primary.execute("SELECT pg_switch_wal()").unwrap();
        bed::write(&primary, &mut random, 10);
        let end = primary.flush_lsn().unwrap();
        let wal = bed::copy_of_wal(&mut primary, Stop::Fast);
        let (records, stop) = assert_alike(package, wal.path(), None);
        assert!(records > 10_000, "seed {seed}: {records}");
        // The stop is behind the checkpoint of the shutdown.
        assert!(stop.at >= end, "seed {seed}: {stop:?} {end}");
        let (lines, _) = ours(wal.path(), None);
        let has = |words: &str| lines.iter().any(|line| line.contains(words));
        assert_eq!(has(" pglz "), compression == "pglz");
        assert_eq!(has(" lz4 "), compression == "lz4");
        assert!(has(" FPW hole ") && lines.iter().any(|line| line.contains("/3500")));
        // From somewhere in the middle, a position at which no record begins.
        let first = u64::from(lines_start(&lines[0]));
        let last = u64::from(stop.at);
        let start = Lsn::from(random.u64(first..last));
        assert_alike(package, wal.path(), Some(start));
    }
}

fn lines_start(line: &str) -> Lsn {
    line.split(' ').nth(3).unwrap().parse().unwrap()
}

#[test]
fn images_that_only_verify_are_read() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let settings = [("wal_consistency_checking", "all")];
    let mut primary = bed::server(&lab, "primary", &settings);
    bed::write(&primary, &mut fastrand::Rng::with_seed(4), 12);
    let wal = bed::copy_of_wal(&mut primary, Stop::Fast);
    assert_alike(lab.package(), wal.path(), None);
    let (lines, _) = ours(wal.path(), None);
    assert!(
        lines
            .iter()
            .any(|line| line.contains("for WAL verification"))
    );
}
