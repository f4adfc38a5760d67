//! Records as lines: ours, and what pg_waldump prints, in the same words.

use std::path::Path;
use std::process::Command;

use lockstep_lab::package::Package;
use lockstep_wal::folder::{Range, Run};
use lockstep_wal::names;
use lockstep_wal::reader::Stop;
use lockstep_wal::record::{Block, Compression, Record};
use lockstep_wire::Lsn;

const FORKS: [&str; 4] = ["main", "fsm", "vm", "init"];

fn block(block: &Block) -> String {
    let relation = block.relation;
    let mut line = format!(
        "#{} {}/{}/{} {} {}",
        block.id,
        relation.tablespace,
        relation.database,
        relation.number,
        FORKS[usize::from(block.fork)],
        block.number
    );
    if let Some(image) = block.image {
        let verification = if image.apply {
            ""
        } else {
            " for WAL verification"
        };
        line.push_str(&format!(
            " FPW{verification} hole {} {}",
            image.hole_offset, image.hole_length
        ));
        let method = match image.compression {
            Compression::None => return line,
            Compression::Pglz => "pglz",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        };
        let saved = 8192 - u32::from(image.hole_length) - u32::from(image.length);
        line.push_str(&format!(" {method} {saved}"));
    }
    line
}

pub fn line(record: &Record) -> String {
    let header = &record.header;
    let mut line = format!(
        "{} {}/{} {} {} {}",
        names::of_manager(header.manager),
        header.length - record.image_bytes(),
        header.length,
        header.xid,
        record.start,
        header.previous
    );
    for one in &record.blocks {
        line.push_str(" | ");
        line.push_str(&block(one));
    }
    line
}

/// All records that we read from `start` on, and where and why there is no other.
pub fn ours(folder: &Path, start: Option<Lsn>) -> (Vec<String>, Option<Stop>) {
    let range = Range {
        start,
        ..Range::default()
    };
    let run = Run::find(folder, range).unwrap();
    let mut reader = run.reader();
    let mut lines = Vec::new();
    if let Some(stop) = reader.seek().unwrap() {
        return (lines, Some(stop));
    }
    loop {
        match reader.read().unwrap() {
            Ok(record) => lines.push(line(&record)),
            Err(stop) => return (lines, Some(stop)),
        }
    }
}

/// What pg_waldump prints, and its error.
pub fn theirs(package: &Package, folder: &Path, start: Option<Lsn>) -> (Vec<String>, String) {
    let mut command = Command::new(package.program("pg_waldump"));
    command.args(["--bkp-details", "--path"]).arg(folder);
    let first = Run::find(folder, Range::default()).unwrap();
    let from = start.unwrap_or(first.start);
    command.args(["--timeline", &first.timeline.to_string()]);
    command.args(["--start", &from.to_string()]);
    // Without file names pg_waldump reads the segment size from any WAL file that it finds, and a
    // file that was created in advance has no header yet.
    let size = first.identity.size;
    command.arg(size.file_name(first.timeline, from));
    command.arg(size.file_name(first.timeline, Lsn::from(u64::from(first.end) - 1)));
    let output = command.env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(record) = line.strip_prefix("rmgr: ") {
            lines.push(their_record(record));
        } else if let Some(block) = line.strip_prefix("\tblkref ") {
            let last = lines.last_mut().unwrap();
            last.push_str(" | ");
            last.push_str(&their_block(block));
        }
    }
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (lines, error)
}

/// `Heap  len (rec/tot): 54/ 54, tx: 731, lsn: 0/01000148, prev 0/01000110, desc: ...`
fn their_record(line: &str) -> String {
    let (manager, rest) = line.split_once(" len (rec/tot):").unwrap();
    let mut parts = rest.splitn(5, ',');
    let mut part = |name: &str| {
        let part = parts.next().unwrap().trim();
        part.strip_prefix(name).unwrap().replace(' ', "")
    };
    let lengths = part("");
    let (xid, start, previous) = (part("tx:"), part("lsn:"), part("prev"));
    let lsn = |text: &str| text.parse::<Lsn>().unwrap();
    format!(
        "{} {lengths} {xid} {} {}",
        manager.trim(),
        lsn(&start),
        lsn(&previous)
    )
}

/// `#0: rel 1663/1/1259 fork main blk 0 (FPW); hole: offset: 48, length: 7000`, perhaps with
/// `, compression saved: 9, method: pglz`
fn their_block(line: &str) -> String {
    let (reference, image) = match line.split_once(" (FPW") {
        Some((reference, image)) => (reference, Some(image)),
        None => (line, None),
    };
    let words: Vec<_> = reference.split(' ').collect();
    let [id, "rel", relation, "fork", fork, "blk", number] = words[..] else {
        panic!("{line}");
    };
    let mut out = format!("{} {relation} {fork} {number}", id.trim_end_matches(':'));
    let Some(image) = image else {
        return out;
    };
    let verification = match image.starts_with(" for WAL verification") {
        true => " for WAL verification",
        false => "",
    };
    let after = |name: &str| {
        let (_, rest) = image.split_once(name)?;
        Some(rest.split(',').next().unwrap().trim().to_owned())
    };
    out.push_str(&format!(
        " FPW{verification} hole {} {}",
        after("offset:").unwrap(),
        after("length:").unwrap()
    ));
    if let Some(method) = after("method:") {
        out.push_str(&format!(" {method} {}", after("saved:").unwrap()));
    }
    out
}

/// Both read the same records.
pub fn assert_alike(package: &Package, folder: &Path, start: Option<Lsn>) -> (usize, Stop) {
    let (ours, stop) = ours(folder, start);
    let (theirs, error) = theirs(package, folder, start);
    for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "record {number}");
    }
    let stop = stop.unwrap();
    assert_eq!(ours.len(), theirs.len(), "{stop:?} {error}");
    (ours.len(), stop)
}
