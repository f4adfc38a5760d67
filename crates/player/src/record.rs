//! Records a running primary with PostgreSQL's own programs.
//!
//! The order makes sure that no WAL is missing between the backup and the stream:
//! 1. A temporary slot on the source keeps its WAL.
//! 2. `pg_receivewal` starts with a segment that the slot keeps.
//! 3. `pg_basebackup` makes the base backup.
//!
//! At the end the source's flush position is read, `pg_receivewal` runs once more up to
//! there, and `pg_waldump` finds the last complete record and the times of commits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::package::Package;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_wire::{Lsn, Timeline};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde::Deserialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::PlayerError;
use super::client_programs::{ClientPrograms, reason};
use super::dump::{self, Range};
use super::recording::{BASE, DESCRIPTION, Facts, Recording, WAL, system_of};
use super::source::{SlotHolder, Source, SourceFacts};
use crate::Result;
use lockstep_wal::segment;
use lockstep_wal::segment::SegmentSize;

/// Interval of checks whether a program has ended.
const POLL: Duration = Duration::from_millis(20);

/// Interval at which the source is told that it may remove WAL.
const ADVANCE_EVERY: Duration = Duration::from_secs(2);

/// Exit code of the process when a second Ctrl-C ends it.
const INTERRUPTED: i32 = 130;

/// A recording in progress. Dropping it before [`Recorder::finish`] removes what it wrote.
#[derive(Debug)]
pub struct Recorder {
    source: Source,
    facts: SourceFacts,
    size: SegmentSize,
    folder: PathBuf,
    /// The recorder created the folder, and removes it with an unfinished recording.
    created: bool,
    receiver: Option<Child>,
    slot: Option<SlotHolder>,
    advanced: Instant,
    finished: bool,
}

/// The first SIGINT or SIGTERM sets the returned flag; a second signal ends the process at
/// once.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for number in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(number, INTERRUPTED, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(number, Arc::clone(&flag)))
            .map_err(PlayerError::io("handle", Path::new("signals")))?;
    }
    Ok(flag)
}

/// Records `primary` into `folder` while `workload` runs. The folder must not exist or must
/// be empty, and the lab's account must be able to enter it.
pub fn record<E: From<PlayerError>>(
    lab: &Lab,
    primary: &Server,
    folder: &Path,
    workload: impl FnOnce() -> Result<(), E>,
) -> Result<Recording, E> {
    let programs = ClientPrograms::of_lab(lab.package().clone(), Arc::clone(lab.launcher()));
    let source = Source {
        programs,
        conninfo: primary.conninfo(SUPERUSER),
    };
    let mut recorder = Recorder::start(source, folder, &AtomicBool::new(false))?;
    workload()?;
    recorder.check()?;
    Ok(recorder.finish()?)
}

impl Recorder {
    /// Begins to record the server of `conninfo`, as the invoking user. Returns once the base
    /// backup is complete. Until then `stop` ends the recording with an error.
    pub fn of(conninfo: &str, folder: &Path, stop: &AtomicBool) -> Result<Self> {
        let source = Source {
            programs: ClientPrograms::of_user(Package::newest()?),
            conninfo: conninfo.to_owned(),
        };
        Self::start(source, folder, stop)
    }

    fn start(mut source: Source, folder: &Path, stop: &AtomicBool) -> Result<Self> {
        let facts = source.facts()?;
        let size = refuse_unsuitable(&facts)?;
        if source.programs.package().major().get() != facts.major {
            let package = Package::find(facts.major.to_string().parse()?)?;
            source.programs = source.programs.with_package(package);
        }
        let folder = std::path::absolute(folder).map_err(PlayerError::io("find", folder))?;
        let created = create_empty(&folder)?;
        let mut recorder = Self {
            source,
            facts,
            size,
            folder,
            created,
            receiver: None,
            slot: None,
            advanced: Instant::now(),
            finished: false,
        };
        let wal = recorder.folder.join(WAL);
        fs::create_dir(&wal).map_err(PlayerError::io("create", &wal))?;
        recorder.source.programs.own(&recorder.folder)?;
        recorder.source.programs.own(&wal)?;
        recorder.slot = Some(recorder.source.hold_wal()?);
        recorder.receive()?;
        recorder.back_up(stop)?;
        Ok(recorder)
    }

    fn pg_receivewal(&self) -> Command {
        let mut command = self.source.programs.command("pg_receivewal");
        command.arg("--directory").arg(self.folder.join(WAL));
        command.args(["--dbname", &self.source.conninfo]);
        command.args(["--no-loop", "--no-password"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts pg_receivewal at the segment that the source writes now. pg_receivewal begins with
    /// the unfinished segment that it finds in its folder, so an empty file of that segment's
    /// name is created first.
    fn receive(&mut self) -> Result<()> {
        let (lsn, timeline) = self.source.position()?;
        let name = self.size.file_name(timeline, lsn);
        let path = self.folder.join(WAL).join(format!("{name}.partial"));
        fs::File::create(&path).map_err(PlayerError::io("create", &path))?;
        self.source.programs.own(&path)?;
        self.receiver = Some(self.source.programs.spawn(self.pg_receivewal())?);
        Ok(())
    }

    fn back_up(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut command = self.source.programs.command("pg_basebackup");
        command.arg("--pgdata").arg(self.folder.join(BASE));
        command.args(["--dbname", &self.source.conninfo]);
        command.args(["--checkpoint=fast", "--wal-method=stream", "--no-password"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.source.programs.spawn(command)?;
        loop {
            let stopped = stop.load(Ordering::SeqCst);
            let looked = match stopped {
                true => Err(PlayerError::Interrupted),
                false => self.check(),
            };
            if let Err(error) = looked {
                terminate(&child);
                let _ = child.wait();
                return Err(error);
            }
            if let Some(status) = ended(&mut child)? {
                let reason = reason_of(&mut child, status);
                return match status.success() {
                    true => Ok(()),
                    false => Err(PlayerError::Source {
                        what: "gives no base backup",
                        reason,
                    }),
                };
            }
            thread::sleep(POLL);
        }
    }

    /// An error if WAL is no longer received. Also tells the source which WAL it may remove.
    pub fn check(&mut self) -> Result<()> {
        if let Some(child) = self.receiver.as_mut() {
            if let Some(status) = ended(child)? {
                let reason = reason_of(child, status);
                self.receiver = None;
                return Err(self.lost(reason));
            }
        }
        if self.advanced.elapsed() >= ADVANCE_EVERY {
            self.advanced = Instant::now();
            let newest = self.newest()?;
            if let (Some(slot), Some(lsn)) = (self.slot.as_mut(), newest) {
                slot.advance(lsn);
            }
        }
        Ok(())
    }

    fn lost(&self, reason: String) -> PlayerError {
        PlayerError::Source {
            what: "sends no more WAL",
            reason,
        }
    }

    /// Bytes of WAL on disk so far, in whole segments.
    pub fn received_bytes(&self) -> Result<u64> {
        let files = segments(&self.folder.join(WAL))?;
        let whole = files.iter().filter(|file| !file.partial).count();
        Ok(whole as u64 * self.size.bytes())
    }

    /// Start of the segment that pg_receivewal writes now.
    fn newest(&self) -> Result<Option<Lsn>> {
        let files = segments(&self.folder.join(WAL))?;
        Ok(files.last().map(|file| file.start(self.size)))
    }

    /// Ends the recording at the source's present flush position.
    pub fn finish(mut self) -> Result<Recording> {
        let (flushed, _) = self.source.position()?;
        if let Some(mut child) = self.receiver.take() {
            terminate(&child);
            let _ = child.wait();
        }
        self.receive_up_to(flushed)?;
        self.slot = None;
        let facts = self.conclude(flushed)?;
        let path = self.folder.join(DESCRIPTION);
        fs::write(&path, facts.to_json()?).map_err(PlayerError::io("write", &path))?;
        self.source.programs.own(&path)?;
        let recording = Recording::open(&self.folder)?;
        self.finished = true;
        Ok(recording)
    }

    /// Runs `pg_receivewal` again. It continues the unfinished segment, and ends once it has
    /// received the byte before `flushed`.
    fn receive_up_to(&mut self, flushed: Lsn) -> Result<()> {
        let last = Lsn::from(u64::from(flushed).saturating_sub(1));
        let mut command = self.pg_receivewal();
        command.args(["--endpos", &last.to_string()]);
        let ended = self.source.programs.run(command)?;
        match ended.success {
            true => Ok(()),
            false => Err(self.lost(ended.reason)),
        }
    }

    /// Brings the segments into their final form and collects the facts for `recording.json`.
    fn conclude(&self, flushed: Lsn) -> Result<Facts> {
        let wal = self.folder.join(WAL);
        let files = segments(&wal)?;
        let size = self.size;
        let backup = backup_range(&self.folder.join(BASE))?;
        let timeline = backup.timeline;
        if files.iter().any(|file| file.timeline != timeline.get()) {
            return Err(PlayerError::Unsuitable(
                "it changed its timeline meanwhile; record again".to_owned(),
            ));
        }
        for file in files {
            let path = wal.join(&file.name);
            if file.start(size) < size.start_of(backup.start) || file.start(size) >= flushed {
                fs::remove_file(&path).map_err(PlayerError::io("remove", &path))?;
            } else if file.partial {
                let whole = path.with_extension("");
                fs::rename(&path, whole).map_err(PlayerError::io("rename", &path))?;
            }
        }
        let end = self.last_end(&backup, flushed)?;
        self.clear_after(timeline, end)?;
        let range = Range {
            folder: &wal,
            timeline,
            size,
            from: backup.start,
            to: end,
        };
        let pace = dump::pace(&self.source.programs, range)?
            .into_iter()
            .skip_while(|point| point.lsn < size.round_up(backup.end))
            .collect();
        let base = self.folder.join(BASE);
        Ok(Facts {
            major: self.facts.major,
            server_version: self.facts.version.clone(),
            system: system_of(&base).map_err(PlayerError::io("read pg_control in", &base))?,
            timeline,
            size,
            start: backup.start,
            consistency: backup.end,
            end,
            settings: self.facts.settings.clone(),
            pace: from_zero(pace),
        })
    }

    /// The end of the last complete record. That record may begin in the last segment or in an
    /// earlier one, so the search goes back segment by segment.
    fn last_end(&self, backup: &Backup, flushed: Lsn) -> Result<Lsn> {
        let size = self.size;
        let mut from = size.start_of(Lsn::from(u64::from(flushed).saturating_sub(1)));
        loop {
            let range = Range {
                folder: &self.folder.join(WAL),
                timeline: backup.timeline,
                size,
                from: from.max(backup.start),
                to: flushed,
            };
            if let Some(end) = dump::last_end(&self.source.programs, range)? {
                return Ok(end.max(backup.end));
            }
            if from <= backup.start {
                return Err(self.lost("the WAL holds no record".to_owned()));
            }
            from = Lsn::from(u64::from(from).saturating_sub(size.bytes()));
        }
    }

    /// Fills the last segment with zeros from the recording's end on, and removes later segments.
    fn clear_after(&self, timeline: Timeline, end: Lsn) -> Result<()> {
        let size = self.size;
        let wal = self.folder.join(WAL);
        for file in segments(&wal)? {
            let path = wal.join(&file.name);
            if file.start(size) >= end {
                fs::remove_file(&path).map_err(PlayerError::io("remove", &path))?;
            }
        }
        let used = u64::from(end) % size.bytes();
        if used == 0 {
            return Ok(());
        }
        let path = wal.join(size.file_name(timeline, end));
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| {
                file.set_len(used)?;
                file.set_len(size.bytes())
            })
            .map_err(PlayerError::io("write", &path))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(mut child) = self.receiver.take() {
            terminate(&child);
            let _ = child.wait();
        }
        self.slot = None;
        if self.finished {
            return;
        }
        for name in [BASE, WAL] {
            let _ = fs::remove_dir_all(self.folder.join(name));
        }
        let _ = fs::remove_file(self.folder.join(DESCRIPTION));
        if self.created {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Refuses a source that cannot be recorded. Returns the source's segment size.
fn refuse_unsuitable(facts: &SourceFacts) -> Result<SegmentSize> {
    let unsuitable = |reason: String| Err(PlayerError::Unsuitable(reason));
    if segment::magic(facts.major).is_none() {
        return unsuitable(format!(
            "it is PostgreSQL {}, and 15 to 19 are supported",
            facts.version
        ));
    }
    if facts.in_recovery {
        return unsuitable("it is a standby; record its primary".to_owned());
    }
    if let Some(space) = facts.tablespaces.first() {
        return unsuitable(format!(
            "it has the tablespace {space}, whose folder a copy on this machine would share; record a cluster without tablespaces"
        ));
    }
    match facts.size {
        Some(size) => Ok(size),
        None => unsuitable("it does not tell its wal_segment_size".to_owned()),
    }
}

/// Creates `folder`, or accepts it if it is empty. True if it was created.
fn create_empty(folder: &Path) -> Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(false),
            Some(_) => Err(PlayerError::FolderInUse(folder.to_path_buf())),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(folder).map_err(PlayerError::io("create", folder))?;
            Ok(true)
        }
        Err(error) => Err(PlayerError::io("read", folder)(error)),
    }
}

/// A segment file of `pg_receivewal`, whole or partial.
#[derive(Debug)]
struct SegmentFile {
    name: String,
    timeline: u32,
    high: u64,
    low: u64,
    partial: bool,
}

impl SegmentFile {
    fn parse(name: &str) -> Option<Self> {
        let digits = name.strip_suffix(".partial").unwrap_or(name);
        let plain = digits.len() == 24 && digits.chars().all(|c| c.is_ascii_hexdigit());
        if !plain {
            return None;
        }
        let part = |from: usize| u32::from_str_radix(digits.get(from..from + 8)?, 16).ok();
        Some(Self {
            name: name.to_owned(),
            timeline: part(0)?,
            high: part(8)?.into(),
            low: part(16)?.into(),
            partial: name != digits,
        })
    }

    fn start(&self, size: SegmentSize) -> Lsn {
        Lsn::from((self.high << 32) + self.low * size.bytes())
    }
}

/// The segment files in a folder, in order.
fn segments(folder: &Path) -> Result<Vec<SegmentFile>> {
    let mut files: Vec<SegmentFile> = fs::read_dir(folder)
        .map_err(PlayerError::io("read", folder))?
        .filter_map(|entry| SegmentFile::parse(entry.ok()?.file_name().to_str()?))
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// What the backup's manifest says about WAL.
#[derive(Debug)]
struct Backup {
    timeline: Timeline,
    start: Lsn,
    end: Lsn,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(rename = "WAL-Ranges")]
    ranges: Vec<ManifestRange>,
}

#[derive(Deserialize)]
struct ManifestRange {
    #[serde(rename = "Timeline")]
    timeline: u32,
    #[serde(rename = "Start-LSN")]
    start: String,
    #[serde(rename = "End-LSN")]
    end: String,
}

fn backup_range(base: &Path) -> Result<Backup> {
    let path = base.join("backup_manifest");
    let text = fs::read_to_string(&path).map_err(PlayerError::io("read", &path))?;
    let range = serde_json::from_str::<Manifest>(&text)
        .ok()
        .and_then(|manifest| manifest.ranges.into_iter().next_back());
    let backup = range.and_then(|range| {
        Some(Backup {
            timeline: Timeline::new(range.timeline)?,
            start: range.start.parse().ok()?,
            end: range.end.parse().ok()?,
        })
    });
    backup.ok_or_else(|| {
        PlayerError::program("pg_basebackup", &format!("{} names no WAL", path.display()))
    })
}

fn from_zero(mut pace: Vec<super::recording::PacePoint>) -> Vec<super::recording::PacePoint> {
    let first = pace.first().map_or(0, |point| point.micros);
    for point in &mut pace {
        point.micros -= first;
    }
    pace
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>> {
    child
        .try_wait()
        .map_err(PlayerError::io("wait for", Path::new("a client program")))
}

fn reason_of(child: &mut Child, status: ExitStatus) -> String {
    let stderr = child.stderr.take().map(std::io::read_to_string);
    let stderr = stderr.and_then(std::result::Result::ok).unwrap_or_default();
    reason(&stderr, &status)
}

/// Asks a program to end, as Ctrl-C would.
fn terminate(child: &Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = signal::kill(Pid::from_raw(pid), Signal::SIGINT);
    }
}
