//! Damaged WAL: where it ends is where pg_waldump says, and damage is told from an end.

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::Stop;
use lockstep_wal::WalError;
use lockstep_wal::analysis::Analysis;
use lockstep_wal::class::{Rules, Stage};
use lockstep_wal::costs::Costs;
use lockstep_wal::folder::{Range, Run};
use lockstep_wal::memory::WalInMemory;
use lockstep_wal::reader::{Reader, Reason};
use lockstep_wal::record::{Before, Header, Record};
use lockstep_wal::walk::{self, Ended, Until};
use lockstep_wire::Lsn;

use crate::bed;
use crate::dump::{assert_alike, ours};

/// Bytes of a segment here.
pub const SEGMENT: usize = 1 << 20;

/// Rounds of changes that pg_waldump sees too, and rounds that only we see.
const ROUNDS_WITH_WALDUMP: u32 = 30;
const ROUNDS: u32 = 1_000;

/// WAL of a server that was stopped, the paths of its segments, and where it ends.
pub struct Scene {
    wal: tempfile::TempDir,
    pub segments: Vec<PathBuf>,
    pub end: Lsn,
}

impl Scene {
    pub fn new(lab: &Lab) -> Self {
        Self::ending(lab, "SELECT 1")
    }

    /// The last that is written before the server is stopped.
    pub fn ending(lab: &Lab, last: &str) -> Self {
        let settings = [("wal_recycle", "off"), ("min_wal_size", "2MB")];
        let mut primary = bed::server(lab, "primary", &settings);
        bed::write(&primary, &mut fastrand::Rng::with_seed(7), 40);
        primary.execute(last).unwrap();
        let wal = bed::copy_of_wal(&mut primary, Stop::Fast);
        let (_, stop) = ours(wal.path(), None);
        let mut segments: Vec<_> = fs::read_dir(wal.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().len() == 24)
            .collect();
        segments.sort();
        let end = stop.unwrap().at;
        assert!(segments.len() > 4, "{segments:?}");
        Self { wal, segments, end }
    }

    pub fn path(&self) -> &Path {
        self.wal.path()
    }

    pub fn run(&self) -> Run {
        Run::find(self.path(), Range::default()).unwrap()
    }

    /// The segment with the end of the WAL, and the end's place in it.
    pub fn last(&self) -> (&Path, usize) {
        let first = u64::from(self.run().start);
        let at = usize::try_from(u64::from(self.end) - first).unwrap();
        (&self.segments[at / SEGMENT], at % SEGMENT)
    }

    pub fn walk(&self) -> Result<Ended, WalError> {
        let run = self.run();
        walk::read(&mut run.reader(), Until::default(), &mut analysis(&run))
    }

    /// The place of the first record that begins in a segment.
    pub fn record_in(&self, segment: usize) -> usize {
        let first = u64::from(self.run().start);
        let (lines, _) = ours(self.path(), None);
        let mut places = lines.iter().map(|line| place_of(line, first));
        places.find(|place| *place >= segment * SEGMENT).unwrap()
    }

    fn all(&self) -> Vec<u8> {
        let read = |path: &PathBuf| fs::read(path).unwrap();
        self.segments.iter().flat_map(read).collect()
    }
}

/// A record's place in WAL that begins at `first`.
pub fn place_of(line: &str, first: u64) -> usize {
    let start: Lsn = line.split(' ').nth(3).unwrap().parse().unwrap();
    usize::try_from(u64::from(start) - first).unwrap()
}

pub fn analysis(run: &Run) -> Analysis {
    let rules = Rules {
        stage: Stage::HotStandby,
        major: run.major,
    };
    Analysis::new(Costs::built_in().unwrap(), run.identity.size, rules, &[2])
}

/// Changes a file's bytes.
pub fn change(path: &Path, how: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    how(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn an_end_is_an_end() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    assert!(matches!(scene.walk(), Ok(Ended::Stop(stop)) if stop.at == scene.end));
    let (last, at) = scene.last();
    let whole = fs::read(last).unwrap();
    let old = fs::read(&scene.segments[0]).unwrap();
    let number = scene.segments.iter().position(|path| path == last).unwrap();
    // Both programs read what is left from its first segment on.
    for path in &scene.segments[..number.saturating_sub(3)] {
        fs::remove_file(path).unwrap();
    }

    // A record of which only a part was written, after which nothing was.
    for torn in [40, 60, 100, 200] {
        change(last, |bytes| bytes[at - torn..].fill(0));
        let (_, stop) = assert_alike(lab.package(), scene.path(), None);
        assert!(stop.at < scene.end, "{torn}");
        assert_eq!(scene.walk().unwrap(), Ended::Stop(stop));
    }

    // Behind the end are pages of an older segment, and the next segment is a recycled one.
    let page = at.next_multiple_of(8192);
    fs::write(last, &whole).unwrap();
    change(last, |bytes| bytes[page..].copy_from_slice(&old[page..]));
    let next = scene.segments.get(number + 1);
    let next = next.cloned().unwrap_or_else(|| after(last));
    fs::write(next, &old).unwrap();
    let (_, stop) = assert_alike(lab.package(), scene.path(), None);
    assert_eq!(stop.at, scene.end);
    assert_eq!(scene.walk().unwrap(), Ended::Stop(stop));
}

#[test]
fn a_record_torn_on_its_last_page_is_an_end() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    // At the start of a segment, over four pages.
    let scene = Scene::ending(
        &lab,
        "SELECT pg_switch_wal(); SELECT pg_logical_emit_message(false, 'p', repeat('y', 30000))",
    );
    let (lines, _) = ours(scene.path(), None);
    let message = lines
        .iter()
        .rfind(|line| line.starts_with("LogicalMessage"));
    let place = place_of(message.unwrap(), u64::from(scene.run().start));
    let (last, at) = scene.last();
    let torn = place % SEGMENT + 29_000;
    assert!(
        torn < at && torn / 8192 > place % SEGMENT / 8192,
        "{torn} {at}"
    );
    change(last, |bytes| bytes[torn..].fill(0));
    let (_, stop) = assert_alike(lab.package(), scene.path(), None);
    assert_eq!(
        u64::from(stop.at),
        u64::from(scene.run().start) + place as u64
    );
    assert_eq!(scene.walk().unwrap(), Ended::Stop(stop));
}

/// The name after a segment's, where the last byte does not wrap.
pub fn after(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    let number = u32::from_str_radix(&name[16..], 16).unwrap() + 1;
    path.with_file_name(format!("{}{number:08X}", &name[..16]))
}

#[test]
fn damage_is_named() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let place = scene.record_in(2);
    let path = &scene.segments[place / SEGMENT];
    change(path, |bytes| bytes[place % SEGMENT + 4] ^= 0x10);
    let (_, stop) = assert_alike(lab.package(), scene.path(), None);
    let error = scene.walk().unwrap_err();
    let WalError::Damaged { at, file, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*at, Path::new(file)), (stop.at, path.as_path()));
    assert_has!(error.to_string(), &format!("--end {at}"));
    // What is before can be read.
    let until = Until {
        lsn: Some(stop.at),
        bytes: None,
    };
    let run = scene.run();
    let mut analysis = analysis(&run);
    let ended = walk::read(&mut run.reader(), until, &mut analysis).unwrap();
    assert_eq!(ended, Ended::Limit);
    // The damaged record begins there, or behind the header of a page.
    let end = u64::from(analysis.finish().unwrap().end);
    assert!((end..=end + 40).contains(&u64::from(stop.at)), "{stop:?}");
}

type Change<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn a_segment_is_damaged_by_a_bad_first_page_or_a_cut() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    // Not in what a switch has left empty.
    let place = scene.record_in(2);
    let path = &scene.segments[place / SEGMENT];
    let whole = fs::read(path).unwrap();
    let changes: [Change<'_>; 4] = [
        &|bytes| bytes[0] ^= 1,
        &|bytes| bytes[12] ^= 1,
        &|bytes| bytes[24] ^= 1,
        &|bytes| bytes.truncate(place % SEGMENT + 4),
    ];
    for how in changes {
        change(path, how);
        let error = scene.walk().unwrap_err();
        let WalError::Damaged { file, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(Path::new(file), path.as_path());
        fs::write(path, &whole).unwrap();
    }
}

/// Behind the last position that there is comes nothing.
#[test]
fn the_last_segment_that_there_can_be_has_an_end() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let run = scene.run();
    let start = Lsn::from(0_u64.wrapping_sub(SEGMENT as u64));
    let mut bytes = vec![0; SEGMENT];
    bytes[..40].copy_from_slice(&scene.all()[..40]);
    bytes[2..4].copy_from_slice(&2_u16.to_ne_bytes());
    bytes[8..16].copy_from_slice(&u64::from(start).to_ne_bytes());
    bytes[16..20].fill(0);
    let wal = WalInMemory {
        start,
        bytes,
        name: "memory".to_owned(),
    };
    let mut reader = Reader::new(wal, run.identity, start);
    let ended = walk::read(&mut reader, Until::default(), &mut analysis(&run));
    assert!(matches!(ended, Ok(Ended::Stop(_))), "{ended:?}");
}

#[test]
fn a_missing_segment_ends_a_run() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    fs::remove_file(&scene.segments[2]).unwrap();
    let run = scene.run();
    let size = SEGMENT as u64;
    assert_eq!(u64::from(run.end), u64::from(run.start) + 2 * size);
    assert_eq!(run.next_run, Some(Lsn::from(u64::from(run.end) + size)));
    assert_eq!(
        run.missing(),
        scene.segments[2].file_name().unwrap().to_str().unwrap()
    );
    let (_, stop) = assert_alike(lab.package(), scene.path(), None);
    assert_eq!(stop.reason, Reason::Missing);
    // From behind the gap on.
    let second = Range {
        start: run.next_run,
        ..Range::default()
    };
    let second = Run::find(scene.path(), second).unwrap();
    let ended = walk::read(
        &mut second.reader(),
        Until::default(),
        &mut analysis(&second),
    );
    assert!(matches!(ended, Ok(Ended::Stop(stop)) if stop.at == scene.end));
    // In the gap.
    let gap = Range {
        start: Some(run.end),
        ..Range::default()
    };
    let error = Run::find(scene.path(), gap).unwrap_err();
    assert!(matches!(error, WalError::Missing { .. }), "{error}");
}

#[test]
fn a_damaged_first_segment_is_named() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let first = &scene.segments[0];
    let whole = scene.run();
    let changes: [Change<'_>; 2] = [&|bytes| bytes.clear(), &|bytes| bytes.fill(0)];
    for how in changes {
        change(first, how);
        let error = Run::find(scene.path(), Range::default()).unwrap_err();
        let WalError::FirstDamaged { file, next } = &error else {
            panic!("{error}");
        };
        assert_eq!(Path::new(file), first.as_path());
        let words = format!("--start {next} ");
        assert!(error.to_string().contains(&words), "{error}");
        let rest = Range {
            start: Some(*next),
            ..Range::default()
        };
        let rest = Run::find(scene.path(), rest).unwrap();
        assert_eq!(
            u64::from(rest.start) - u64::from(whole.start),
            SEGMENT as u64
        );
        assert_eq!(rest.end, whole.end);
    }
}

#[test]
fn folders_without_wal_are_refused() {
    let refused = |folder: &Path, words: &str| {
        let error = Run::find(folder, Range::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), "has no WAL segments");
    refused(&folder.path().join("none"), "cannot read");
    fs::write(folder.path().join("00000002.history"), "1\t0/1\n").unwrap();
    fs::write(folder.path().join("letter"), "x").unwrap();
    refused(folder.path(), "has no WAL segments");
    let segment = folder.path().join("000000010000000000000001");
    fs::write(folder.path().join("000000010000000000000003.gz"), "x").unwrap();
    refused(folder.path(), "unpack");
    for contents in [
        Vec::new(),
        b"x".to_vec(),
        vec![0; SEGMENT],
        vec![0xFF; SEGMENT],
    ] {
        fs::write(&segment, contents).unwrap();
        refused(folder.path(), "none begins as a segment does");
    }
    // A page of PostgreSQL 14.
    let mut page = vec![0; SEGMENT];
    page[..2].copy_from_slice(&0xD10D_u16.to_ne_bytes());
    page[2..4].copy_from_slice(&2_u16.to_ne_bytes());
    page[32..36].copy_from_slice(&(SEGMENT as u32).to_ne_bytes());
    page[36..40].copy_from_slice(&8192_u32.to_ne_bytes());
    fs::write(&segment, page).unwrap();
    refused(folder.path(), "not supported (its pages begin with D10D");
}

/// A length in a header is believed only as far as pages go on with the record.
#[test]
fn a_huge_length_is_no_reason_to_allocate() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let (lines, _) = ours(scene.path(), None);
    let run = scene.run();
    let first = u64::from(run.start);
    let places = lines.iter().map(|line| place_of(line, first));
    for place in places.skip(1_000).step_by(997).take(8) {
        let mut bytes = scene.all();
        bytes[place..place + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        let wal = WalInMemory {
            start: run.start,
            bytes,
            name: "memory".to_owned(),
        };
        let mut reader = Reader::new(wal, run.identity, run.start);
        let error = walk::read(&mut reader, Until::default(), &mut analysis(&run)).unwrap_err();
        let WalError::Damaged {
            at: found, reason, ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(u64::from(found), first + place as u64);
        // Or its next page is empty, where a segment ended early.
        let words = ["does not continue", "is empty"];
        assert!(words.iter().any(|words| reason.contains(words)), "{reason}");
    }
}

#[test]
fn changed_bytes_end_the_wal_where_pg_waldump_says() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    for path in &scene.segments[3..] {
        fs::remove_file(path).unwrap();
    }
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..ROUNDS_WITH_WALDUMP {
        let path = &scene.segments[random.usize(0..3)];
        let before = fs::read(path).unwrap();
        change(path, |bytes| {
            for _ in 0..random.usize(1..4) {
                let page = random.usize(0..SEGMENT / 8192) * 8192;
                // Half of them in a page's header.
                let within = match random.bool() {
                    true => random.usize(0..40),
                    false => random.usize(0..8192),
                };
                // pg_waldump does not know which cluster's WAL it reads, and we begin with a first page
                // that is whole. It takes a page of a timeline newer than its file's.
                let is_first = path == &scene.segments[0] && within < 40;
                if (4..8).contains(&within) {
                    continue;
                }
                if page > 0 || !is_first && !(24..32).contains(&within) {
                    bytes[page + within] ^= 1 << random.usize(0..8);
                }
            }
        });
        println!("round {round}");
        assert_alike(lab.package(), scene.path(), None);
        fs::write(path, before).unwrap();
    }
}

#[test]
fn no_bytes_make_us_panic() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let run = scene.run();
    let all = scene.all();
    let bytes = all[..3 * SEGMENT].to_vec();
    let mut random = fastrand::Rng::with_seed(13);
    let mut wal = WalInMemory {
        start: run.start,
        bytes: bytes.clone(),
        name: "memory".to_owned(),
    };
    for _ in 0..ROUNDS / 20 {
        wal.bytes.copy_from_slice(&bytes);
        let at = random.usize(0..bytes.len());
        let length = random.usize(1..5_000).min(bytes.len() - at);
        for byte in &mut wal.bytes[at..at + length] {
            *byte = random.u8(..);
        }
        let mut reader = Reader::new(wal.clone(), run.identity, run.start);
        let _ = walk::read(&mut reader, Until::default(), &mut analysis(&run));
    }
    // Records whose checksum is right whatever is in them.
    let records = records_in(&scene);
    let mut analysis = analysis(&run);
    for _ in 0..ROUNDS {
        for _ in 0..20 {
            let mut bytes = records[random.usize(0..records.len())].clone();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(0..bytes.len());
                bytes[at] = random.u8(..);
            }
            parse_with_checksum(&mut bytes, &mut analysis);
        }
    }
    assert!(analysis.finish().unwrap().all.records > 1_000);
}

/// The bytes of some records that lie within a page.
fn records_in(scene: &Scene) -> Vec<Vec<u8>> {
    let (lines, _) = ours(scene.path(), None);
    let first = u64::from(scene.run().start);
    let all = scene.all();
    let mut records = Vec::new();
    for line in lines.iter().step_by(7) {
        let at = place_of(line, first);
        let lengths = line.split(' ').nth(1).unwrap();
        let length: usize = lengths.split_once('/').unwrap().1.parse().unwrap();
        if at % 8192 + length <= 8192 {
            records.push(all[at..at + length].to_vec());
        }
    }
    records
}

fn parse_with_checksum(bytes: &mut [u8], analysis: &mut Analysis) {
    let start = Lsn::from(u64::MAX / 2);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[24..]), &bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_ne_bytes());
    let Ok(header) = Header::parse(bytes, start, Before::Unknown) else {
        return;
    };
    if let Ok(record) = Record::parse(header, bytes, start, Lsn::from(u64::MAX / 2 + 800)) {
        analysis.add(&record);
    }
}
