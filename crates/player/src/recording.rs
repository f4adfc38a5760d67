//! A recording: a folder with a base backup and all WAL since that backup began.
//!
//! ```text
//! base/            the base backup, as pg_basebackup made it
//! wal/             whole segments, the last with zeros from the recording's end on;
//!                  the timeline's history file if the timeline is above 1
//! recording.json   which server was recorded, and the pace at which it wrote
//! ```
//!
//! `recording.json` is written last: without it a folder is no recording. A recording is
//! used only if every segment from the backup's start to the end exists in full length and
//! its first page names this system, timeline and position. The same is checked of the page
//! that the recording ends on. Records are not checked: the standby checks their CRCs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use lockstep_lab::LabError;
use lockstep_wire::{Lsn, SystemId, Timeline};
use serde::{Deserialize, Serialize};

use super::PlayerError;
use crate::Result;
use lockstep_wal::segment::{PAGE, PageHeader, SegmentReader, SegmentSize, history_name, magic};

/// Version of the format of `recording.json`. Only this one is written and read.
const FORMAT: u32 = 1;

/// File names in the folder.
pub(crate) const DESCRIPTION: &str = "recording.json";
pub(crate) const BASE: &str = "base";
pub(crate) const WAL: &str = "wal";

/// Longest history file that is served, in bytes. The file has a line for each promotion.
const MOST_HISTORY: u64 = 256 * 1024;

/// Settings that are recorded with the WAL. A standby needs the first five at least as high
/// as its primary; the player answers SHOW and the start of a session with them.
pub(crate) const SETTINGS: [&str; 10] = [
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
    "data_directory_mode",
    "server_encoding",
    "TimeZone",
    "wal_level",
    "data_checksums",
];

/// The first five of [`SETTINGS`] are those that a standby needs.
const NEEDED_BY_STANDBY: usize = 5;

/// The source's WAL position at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacePoint {
    /// The end of a commit's record.
    pub lsn: Lsn,
    /// Time of the commit, in microseconds since the first point.
    pub micros: u64,
}

/// A recording that has passed the checks.
#[derive(Debug, Clone)]
pub struct Recording {
    folder: PathBuf,
    pub(crate) facts: Facts,
}

/// What `recording.json` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub major: u32,
    pub server_version: String,
    pub system: SystemId,
    pub timeline: Timeline,
    pub size: SegmentSize,
    pub start: Lsn,
    pub consistency: Lsn,
    pub end: Lsn,
    pub settings: BTreeMap<String, String>,
    pub pace: Vec<PacePoint>,
}

/// `recording.json`. The system identifier and positions are text, since many JSON readers do
/// not keep 64-bit numbers exact.
#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    major: u32,
    server_version: String,
    system_identifier: String,
    timeline: u32,
    segment_bytes: u32,
    start_lsn: String,
    consistency_lsn: String,
    end_lsn: String,
    settings: BTreeMap<String, String>,
    /// Position, and microseconds since the first point.
    pace: Vec<(String, u64)>,
}

impl Facts {
    pub fn to_json(&self) -> Result<String> {
        let written = Written {
            format: FORMAT,
            major: self.major,
            server_version: self.server_version.clone(),
            system_identifier: self.system.to_string(),
            timeline: self.timeline.get(),
            // Sizes are at most 1 GB.
            segment_bytes: u32::try_from(self.size.bytes()).unwrap_or(u32::MAX),
            start_lsn: self.start.to_string(),
            consistency_lsn: self.consistency.to_string(),
            end_lsn: self.end.to_string(),
            settings: self.settings.clone(),
            pace: self
                .pace
                .iter()
                .map(|point| (point.lsn.to_string(), point.micros))
                .collect(),
        };
        let text = serde_json::to_string(&written).map_err(|error| LabError::Io {
            what: "write",
            path: PathBuf::from(DESCRIPTION),
            source: error.into(),
        })?;
        Ok(text + "\n")
    }

    /// Parses and checks `recording.json`. An error is a sentence about what is wrong.
    fn from_json(text: &str) -> std::result::Result<Self, String> {
        let bad = |what: &str| format!("{DESCRIPTION} has no usable {what}");
        let format = serde_json::from_str::<serde_json::Value>(text)
            .ok()
            .and_then(|value| value.get("format")?.as_u64());
        if let Some(other) = format.filter(|&format| format != u64::from(FORMAT)) {
            return Err(format!(
                "it has format {other} and this program reads format {FORMAT}"
            ));
        }
        let written: Written = serde_json::from_str(text)
            .map_err(|error| format!("{DESCRIPTION} is not readable ({error})"))?;
        let lsn = |text: &str, what: &str| text.parse::<Lsn>().map_err(|_| bad(what));
        let facts = Self {
            major: written.major,
            server_version: written.server_version,
            system: written
                .system_identifier
                .parse()
                .map_err(|_| bad("system identifier"))?,
            timeline: Timeline::new(written.timeline).ok_or_else(|| bad("timeline"))?,
            size: SegmentSize::new(written.segment_bytes).ok_or_else(|| bad("segment size"))?,
            start: lsn(&written.start_lsn, "start")?,
            consistency: lsn(&written.consistency_lsn, "consistency position")?,
            end: lsn(&written.end_lsn, "end")?,
            settings: written.settings,
            pace: written
                .pace
                .iter()
                .map(|(text, micros)| {
                    Ok(PacePoint {
                        lsn: lsn(text, "pace")?,
                        micros: *micros,
                    })
                })
                .collect::<std::result::Result<_, String>>()?,
        };
        facts.check()?;
        Ok(facts)
    }

    fn check(&self) -> std::result::Result<(), String> {
        if magic(self.major).is_none() {
            return Err(format!(
                "it is of PostgreSQL {}, and 15 to 19 are supported",
                self.major
            ));
        }
        let positions = [Lsn::from(1), self.start, self.consistency, self.end];
        if !positions.is_sorted() {
            return Err(format!(
                "{DESCRIPTION} has its positions in the wrong order"
            ));
        }
        let in_order = |a: &PacePoint, b: &PacePoint| a.lsn <= b.lsn && a.micros <= b.micros;
        if !self.pace.is_sorted_by(in_order) {
            return Err(format!("{DESCRIPTION} has its pace in the wrong order"));
        }
        Ok(())
    }
}

impl Recording {
    /// Opens a recording and checks that it is complete and that its parts belong together.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(DESCRIPTION);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PlayerError::NotARecording {
                folder: folder.to_path_buf(),
                reason: format!("it has no {DESCRIPTION}"),
            },
            _ => PlayerError::io("read", &path)(error),
        })?;
        let damaged = |reason: String| PlayerError::Damaged {
            folder: folder.to_path_buf(),
            reason,
        };
        let facts = Facts::from_json(&text).map_err(damaged)?;
        let recording = Self {
            folder: folder.to_path_buf(),
            facts,
        };
        recording
            .check_base()
            .and_then(|()| recording.check_segments())
            .and_then(|()| recording.check_history())
            .map_err(damaged)?;
        Ok(recording)
    }

    /// Checks that the backup has the system identifier and major of `recording.json`.
    fn check_base(&self) -> std::result::Result<(), String> {
        let system = system_of(&self.base())
            .map_err(|error| format!("cannot read {BASE}/global/pg_control: {error}"))?;
        if system != self.facts.system {
            return Err(format!(
                "{BASE}/ has the system identifier {system}, {DESCRIPTION} says {}",
                self.facts.system
            ));
        }
        let version = self.base().join("PG_VERSION");
        let major = fs::read_to_string(&version)
            .map_err(|error| format!("cannot read {}: {error}", version.display()))?;
        if major.trim() != self.facts.major.to_string() {
            return Err(format!(
                "{BASE}/ is of PostgreSQL {}, {DESCRIPTION} says {}",
                major.trim(),
                self.facts.major
            ));
        }
        Ok(())
    }

    fn check_segments(&self) -> std::result::Result<(), String> {
        let size = self.facts.size;
        let mut reader = self.reader();
        for start in size.starts(self.facts.start, self.facts.end) {
            let name = size.file_name(self.facts.timeline, start);
            let wrong = |what: String| format!("{WAL}/{name} {what}");
            let length = fs::metadata(self.wal().join(&name))
                .map_err(|error| wrong(format!("cannot be read ({error})")))?
                .len();
            if length != size.bytes() {
                return Err(wrong(format!(
                    "has {length} bytes instead of {}",
                    size.bytes()
                )));
            }
            // Check the segment's first page, or in the last segment also the page that the
            // recording ends on. Pages between may be empty, as they are after a switch of
            // segments.
            let end = u64::from(self.facts.end);
            let last = match end > u64::from(start).saturating_add(size.bytes())
                || end % size.bytes() == 0
            {
                true => u64::from(start),
                false => end - 1,
            };
            for page in [u64::from(start), last - last % PAGE] {
                let header = reader
                    .header(Lsn::from(page))
                    .map_err(|error| wrong(format!("cannot be read ({error})")))?;
                self.check_page(page, &header).map_err(wrong)?;
            }
        }
        Ok(())
    }

    fn check_page(&self, page: u64, header: &PageHeader) -> std::result::Result<(), String> {
        let facts = &self.facts;
        if Some(header.magic) != magic(facts.major) {
            return Err(format!("holds no WAL of PostgreSQL {}", facts.major));
        }
        if header.address != page {
            return Err(format!(
                "holds WAL of another position, {}",
                Lsn::from(header.address)
            ));
        }
        // The segment in which a timeline began starts with pages of its parent.
        let inherits = page < u64::from(facts.start);
        let timeline = facts.timeline.get();
        if header.timeline != timeline && !(inherits && header.timeline < timeline) {
            return Err(format!("is of timeline {}", header.timeline));
        }
        if page % facts.size.bytes() != 0 {
            return Ok(());
        }
        let long = header.long.ok_or("has no segment header")?;
        if long.system != u64::from(facts.system) {
            return Err(format!("has the system identifier {}", long.system));
        }
        if u64::from(long.segment_bytes) != facts.size.bytes() || u64::from(long.page_bytes) != PAGE
        {
            return Err(format!(
                "has segments of {} bytes with pages of {}",
                long.segment_bytes, long.page_bytes
            ));
        }
        Ok(())
    }

    fn check_history(&self) -> std::result::Result<(), String> {
        if self.timeline() == Timeline::FIRST {
            return Ok(());
        }
        match self.history(self.timeline()) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!(
                "{WAL}/{} cannot be read ({error})",
                history_name(self.timeline())
            )),
        }
    }

    /// The content of a timeline's history file.
    pub(crate) fn history(&self, timeline: Timeline) -> io::Result<Vec<u8>> {
        let name = history_name(timeline);
        let mut content = Vec::new();
        fs::File::open(self.wal().join(&name))
            .or_else(|_| fs::File::open(self.base().join("pg_wal").join(&name)))?
            .take(MOST_HISTORY)
            .read_to_end(&mut content)?;
        Ok(content)
    }

    pub(crate) fn reader(&self) -> SegmentReader {
        SegmentReader::new(&self.wal(), self.facts.timeline, self.facts.size)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The base backup. Copy it, never start a server on it.
    pub fn base(&self) -> PathBuf {
        self.folder.join(BASE)
    }

    pub fn wal(&self) -> PathBuf {
        self.folder.join(WAL)
    }

    pub fn major(&self) -> u32 {
        self.facts.major
    }

    /// `server_version` of the source.
    pub fn server_version(&self) -> &str {
        &self.facts.server_version
    }

    pub fn system_identifier(&self) -> SystemId {
        self.facts.system
    }

    pub fn timeline(&self) -> Timeline {
        self.facts.timeline
    }

    pub fn segment_size(&self) -> SegmentSize {
        self.facts.size
    }

    /// Where the backup began: the first WAL that a standby made from it needs.
    pub fn start(&self) -> Lsn {
        self.facts.start
    }

    /// The first position that can be served.
    pub fn first(&self) -> Lsn {
        self.facts.size.start_of(self.facts.start)
    }

    /// Where the backup ended: a standby made from it accepts queries from here on.
    pub fn consistency(&self) -> Lsn {
        self.facts.consistency
    }

    /// End of the last complete record.
    pub fn end(&self) -> Lsn {
        self.facts.end
    }

    /// Where a new standby begins to stream. The backup itself holds the WAL before: at the end
    /// of a backup the source switches to a new segment.
    pub fn played_from(&self) -> Lsn {
        self.facts.size.round_up(self.consistency()).min(self.end())
    }

    /// Bytes of WAL that a new standby streams.
    pub fn bytes(&self) -> u64 {
        u64::from(self.end()) - u64::from(self.played_from())
    }

    /// The pace at which the source wrote; empty if it committed nothing.
    pub fn pace(&self) -> &[PacePoint] {
        &self.facts.pace
    }

    /// Seconds from the source's first recorded commit to its last.
    pub fn seconds(&self) -> f64 {
        self.pace()
            .last()
            .map_or(0.0, |point| point.micros as f64 / 1e6)
    }

    /// The source's values of the settings that a standby must have at least as high.
    pub fn standby_settings(&self) -> BTreeMap<String, String> {
        SETTINGS
            .iter()
            .take(NEEDED_BY_STANDBY)
            .filter_map(|&name| Some((name.to_owned(), self.facts.settings.get(name)?.clone())))
            .collect()
    }
}

/// The system identifier of a data folder.
pub(crate) fn system_of(data: &Path) -> io::Result<SystemId> {
    let mut bytes = [0; 8];
    fs::File::open(data.join("global/pg_control"))?.read_exact(&mut bytes)?;
    Ok(SystemId::from(u64::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            major: 15,
            server_version: "15.18 (Debian)".to_owned(),
            system: SystemId::from(u64::MAX),
            timeline: Timeline::FIRST,
            size: SegmentSize::new(1 << 20).unwrap(),
            start: Lsn::from(0x20_0028),
            consistency: Lsn::from(0x20_0100),
            end: Lsn::from(0x30_0100),
            settings: [("max_connections".to_owned(), "100".to_owned())].into(),
            pace: vec![
                PacePoint {
                    lsn: Lsn::from(0x20_0200),
                    micros: 0,
                },
                PacePoint {
                    lsn: Lsn::from(0x30_0000),
                    micros: 5,
                },
            ],
        }
    }

    #[test]
    fn the_description_comes_back_whole() {
        let text = facts().to_json().unwrap();
        assert_eq!(Facts::from_json(&text).unwrap(), facts());
    }

    #[test]
    fn descriptions_that_make_no_sense_are_refused() {
        let refused = |change: &dyn Fn(&mut Facts)| {
            let mut changed = facts();
            change(&mut changed);
            Facts::from_json(&changed.to_json().unwrap()).unwrap_err()
        };
        assert!(refused(&|f| f.major = 14).contains("15 to 19"));
        assert!(refused(&|f| f.end = f.start).contains("order"));
        assert!(refused(&|f| f.start = Lsn::from(0)).contains("order"));
        assert!(refused(&|f| f.pace.reverse()).contains("pace"));
        for text in ["", "{}", "[]", "{\"format\":1}"] {
            assert!(Facts::from_json(text).is_err(), "{text}");
        }
        let newer = facts()
            .to_json()
            .unwrap()
            .replace("\"format\":1", "\"format\":2");
        assert!(Facts::from_json(&newer).unwrap_err().contains("format 2"));
    }
}
