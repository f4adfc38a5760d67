//! Recordings and the data folder of a killed primary, kept from one run to the next.
//!
//! ```text
//! pg15-update/kept.json     what it was made for, and facts that took time to find
//! pg15-update/content/      the recording, or the data folder
//! ```
//!
//! A folder gets its name at the end, so one that was not completed is never used. What was made
//! for other sizes, or by another minor release, is replaced: each kind of writes takes room once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockstep_lab::cluster::Lab;
use lockstep_player::Recording;
use lockstep_service::words::figures::count;
use lockstep_wire::Lsn;
use serde::{Deserialize, Serialize};

use crate::audience::Audience;
use crate::replay::work::{self, Amount, Recorded, Work, WorkSize};
use crate::{BenchError, Result};

/// Raise it when a kind of writes changes: recordings of before are then made again.
const RECIPE: u32 = 1;

const DESCRIPTION: &str = "kept.json";
const CONTENT: &str = "content";

/// What something was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeFor {
    recipe: u32,
    work: String,
    data_size: u32,
    writers: u32,
    /// Megabytes of WAL, and the seconds after which writing stopped sooner.
    megabytes: u64,
    seconds: u64,
    /// Seconds of the lead-in.
    #[serde(default)]
    lead_in: u64,
    /// The version that the server states, with the package's revision.
    server_version: String,
}

impl MadeFor {
    pub fn new(lab: &Lab, work: Work, size: WorkSize, amount: Amount) -> Result<Self> {
        Ok(Self {
            recipe: RECIPE,
            work: work.name().to_owned(),
            data_size: work.data_size(size),
            writers: work.writers(size),
            megabytes: amount.bytes / 1_000_000,
            seconds: amount.longest.as_secs(),
            lead_in: amount.lead_in.map_or(0, |length| length.as_secs()),
            server_version: server_version(lab)?,
        })
    }
}

fn server_version(lab: &Lab) -> Result<String> {
    let mut postgres = lab.launcher().command(lab.package().program("postgres"));
    postgres.arg("--version");
    Ok(lab.launcher().output(postgres)?.trim().to_owned())
}

/// Facts about what is kept that took time to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Size of the data at the end, bytes.
    pub data_bytes: u64,
    /// How many WAL records it has.
    pub records: u64,
    /// Where [`Amount::lead_in`] ended.
    #[serde(default)]
    pub lead_in: Option<Lsn>,
}

#[derive(Serialize, Deserialize)]
struct Description {
    made_for: MadeFor,
    facts: Facts,
}

/// A folder in which things are kept.
#[derive(Debug)]
pub struct Shelf {
    folder: PathBuf,
}

impl Shelf {
    /// Makes the folder if there is none.
    pub fn open(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(BenchError::io("create", folder))?;
        let folder = std::path::absolute(folder).map_err(BenchError::io("find", folder))?;
        Ok(Self { folder })
    }

    /// What is kept under `name`, if it was made for this.
    pub fn find(&self, name: &str, made_for: &MadeFor) -> Option<(PathBuf, Facts)> {
        let folder = self.folder.join(name);
        let text = fs::read_to_string(folder.join(DESCRIPTION)).ok()?;
        let found: Description = serde_json::from_str(&text).ok()?;
        (found.made_for == *made_for).then(|| (folder.join(CONTENT), found.facts))
    }

    /// Moves folder `from` here under `name`, in place of what was kept there before, and returns
    /// where it is now.
    pub fn keep(
        &self,
        name: &str,
        made_for: MadeFor,
        facts: Facts,
        from: &Path,
    ) -> Result<PathBuf> {
        let unfinished = self.folder.join(format!("{name}.new"));
        let kept = self.folder.join(name);
        remove(&unfinished)?;
        fs::create_dir(&unfinished).map_err(BenchError::io("create", &unfinished))?;
        move_folder(from, &unfinished.join(CONTENT))?;
        let path = unfinished.join(DESCRIPTION);
        let text = serde_json::to_string_pretty(&Description { made_for, facts })
            .map_err(|error| BenchError::Unusable(format!("{DESCRIPTION}: {error}")))?;
        fs::write(&path, text + "\n").map_err(BenchError::io("write", &path))?;
        self.clear(name)?;
        fs::rename(&unfinished, &kept).map_err(BenchError::io("rename to", &kept))?;
        Ok(kept.join(CONTENT))
    }

    /// Removes what is kept under `name`, before the same is made for something else: there may
    /// not be room for both. A folder without a description is not ours.
    pub fn clear(&self, name: &str) -> Result<()> {
        let folder = self.folder.join(name);
        if folder.exists() && !folder.join(DESCRIPTION).is_file() {
            return Err(BenchError::Unusable(format!(
                "{} is no recording that was kept; move it away or choose another folder for --recordings",
                folder.display()
            )));
        }
        remove(&folder)
    }
}

/// The recording that `folder` keeps under `name`, or a new one, which it then keeps. Without a
/// folder it is the caller's to remove.
pub fn recording(
    lab: &Lab,
    folder: Option<&Path>,
    name: &str,
    work: Work,
    size: WorkSize,
    amount: Amount,
    audience: &mut dyn Audience,
) -> Result<Recorded> {
    let shelf = folder.map(Shelf::open).transpose()?;
    let made_for = MadeFor::new(lab, work, size, amount)?;
    let found = shelf.as_ref().and_then(|shelf| shelf.find(name, &made_for));
    if let Some((folder, facts)) = found {
        match Recording::open(&folder) {
            Ok(recording) => return Ok(Recorded::of(recording, facts)),
            Err(error) => audience.say(&format!("it is recorded again: {error}")),
        }
    }
    audience.say(&format!("recording {}", work.name()));
    if let Some(shelf) = &shelf {
        shelf.clear(name)?;
    }
    let recorded = work::record(lab, work, size, amount)?;
    audience.say(&format!(
        "recorded {} MB of WAL, {} records",
        count(recorded.recording.bytes() as f64 / 1e6),
        count(recorded.records as f64)
    ));
    let Some(shelf) = shelf else {
        return Ok(recorded);
    };
    let facts = recorded.facts();
    let folder = shelf.keep(name, made_for, facts, recorded.recording.folder())?;
    Ok(Recorded::of(Recording::open(&folder)?, facts))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(BenchError::io("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

/// mv also moves to another file system, with modes and owners.
fn move_folder(from: &Path, to: &Path) -> Result<()> {
    let mut mv = Command::new("/usr/bin/mv");
    mv.arg("--no-target-directory").arg(from).arg(to);
    mv.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    let output = mv.output().map_err(BenchError::io("move", from))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(BenchError::Unusable(format!(
            "a recording cannot be kept: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        data_bytes: 1,
        records: 2,
        lead_in: None,
    };

    fn made_for(megabytes: u64) -> MadeFor {
        MadeFor {
            recipe: RECIPE,
            work: "update".to_owned(),
            data_size: 1,
            writers: 2,
            megabytes,
            seconds: 4,
            lead_in: 5,
            server_version: "postgres (PostgreSQL) 15.18".to_owned(),
        }
    }

    fn recording(folder: &Path, text: &str) -> PathBuf {
        let from = folder.join("made");
        fs::create_dir_all(from.join("base")).unwrap();
        fs::write(from.join("base/file"), text).unwrap();
        from
    }

    #[test]
    fn only_what_was_made_for_the_same_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(&folder.path().join("kept")).unwrap();
        assert_eq!(shelf.find("pg15-update", &made_for(3)), None);
        let from = recording(folder.path(), "one");
        let facts = Facts {
            lead_in: Some(Lsn::from(3)),
            ..FACTS
        };
        let kept = shelf
            .keep("pg15-update", made_for(3), facts, &from)
            .unwrap();
        assert!(!from.exists());
        assert_eq!(fs::read_to_string(kept.join("base/file")).unwrap(), "one");
        let found = shelf.find("pg15-update", &made_for(3));
        assert_eq!(found, Some((kept, facts)));
        assert_eq!(shelf.find("pg15-update", &made_for(4)), None);
        let other = MadeFor {
            server_version: "postgres (PostgreSQL) 15.19".to_owned(),
            ..made_for(3)
        };
        assert_eq!(shelf.find("pg15-update", &other), None);
    }

    #[test]
    fn a_later_one_takes_the_place_and_nothing_else_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        for (megabytes, text) in [(3, "one"), (4, "two")] {
            let from = recording(folder.path(), text);
            let made_for = made_for(megabytes);
            let kept = shelf.keep("a", made_for, FACTS, &from).unwrap();
            assert_eq!(fs::read_to_string(kept.join("base/file")).unwrap(), text);
        }
        assert_eq!(shelf.find("a", &made_for(3)), None);
        fs::create_dir(folder.path().join("mine")).unwrap();
        let error = shelf.clear("mine").unwrap_err().to_string();
        assert!(error.contains("move it away"), "{error}");
        assert!(folder.path().join("mine").is_dir());
    }
}
