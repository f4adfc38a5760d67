//! Reads a control file with the package's own `pg_controldata`.
//!
//! With `LC_ALL=C` the lines used here are the same from 15 to 19. pg_controldata checks the
//! file's version and CRC; any warning from it is an error here.

use std::path::Path;
use std::process::{Command, Stdio};

use lockstep_lab::error::one_line;
use lockstep_lab::package::Package;
use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::error::oracle::{OracleError, Result};

const PROGRAM: &str = "pg_controldata";

/// Packaged servers have pages of 8 kB.
const PAGE_SIZE: u32 = 8192;

/// State of a cluster in its control file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterState {
    /// A primary after a clean shutdown.
    ShutDown,
    /// A standby after a clean shutdown.
    ShutDownInRecovery,
    /// A running or crashed server, with the control file's words.
    Other(String),
}

/// The part of a control file that the oracle needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    pub system: SystemId,
    pub state: ClusterState,
    /// Start of the last checkpoint record.
    pub checkpoint: Lsn,
    /// The last checkpoint's redo position, where recovery begins.
    pub redo: Lsn,
    /// The last checkpoint's timeline.
    pub timeline: Timeline,
    /// Minimum recovery point of a standby: no page on disk is newer.
    pub minimum: Lsn,
    /// The minimum recovery point's timeline; 0 if there is none.
    pub minimum_timeline: Option<Timeline>,
    pub page_size: u32,
    /// Pages in one segment of a relation's file.
    pub segment_pages: u32,
    /// Bytes in a page of the WAL.
    pub wal_page_size: u32,
    /// Bytes in a segment of the WAL.
    pub wal_segment_size: u32,
    /// Pages have checksums.
    pub checksums: bool,
}

impl Control {
    /// Reads the control file in `folder`.
    pub(crate) fn read(package: &Package, folder: &Path) -> Result<Self> {
        let output = Command::new(package.program(PROGRAM))
            .arg(folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(OracleError::io("run", &package.program(PROGRAM)))?;
        if !output.status.success() {
            return Err(OracleError::Program {
                program: PROGRAM,
                path: folder.to_path_buf(),
                reason: one_line(&String::from_utf8_lossy(&output.stderr)),
            });
        }
        let text = [output.stderr, output.stdout].concat();
        Self::parse(&String::from_utf8_lossy(&text)).map_err(|reason| OracleError::Control {
            path: folder.to_path_buf(),
            reason,
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        // From 17 on the warning has the usual form `warning: `, before it is a line of its own
        // with `WARNING`.
        let warns = |line: &&str| line.contains("WARNING") || line.contains("warning: ");
        if let Some(warning) = text.lines().find(warns) {
            return Err(one_line(warning));
        }
        let fields = Fields(text);
        let control = Self {
            system: fields.number("Database system identifier")?,
            state: match fields.text("Database cluster state")? {
                "shut down" => ClusterState::ShutDown,
                "shut down in recovery" => ClusterState::ShutDownInRecovery,
                other => ClusterState::Other(other.to_owned()),
            },
            checkpoint: fields.number("Latest checkpoint location")?,
            redo: fields.number("Latest checkpoint's REDO location")?,
            timeline: fields.number("Latest checkpoint's TimeLineID")?,
            minimum: fields.number("Minimum recovery ending location")?,
            minimum_timeline: Timeline::new(fields.number("Min recovery ending loc's timeline")?),
            page_size: fields.number("Database block size")?,
            segment_pages: fields.number("Blocks per segment of large relation")?,
            wal_page_size: fields.number("WAL block size")?,
            wal_segment_size: fields.number("Bytes per WAL segment")?,
            checksums: fields.number::<u32>("Data page checksum version")? != 0,
        };
        control.check()
    }

    /// Checks the sizes that calculations rely on.
    fn check(self) -> std::result::Result<Self, String> {
        let wal_ok = self.wal_page_size.is_power_of_two()
            && self.wal_segment_size.is_power_of_two()
            && self.wal_page_size >= 1024
            && self.wal_segment_size >= self.wal_page_size;
        if self.page_size != PAGE_SIZE {
            return Err(format!(
                "pages of {} bytes are not supported",
                self.page_size
            ));
        }
        if !wal_ok || self.segment_pages == 0 {
            return Err("its sizes make no sense".to_owned());
        }
        Ok(self)
    }
}

/// Lines of the form `name: value`.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn text(&self, name: &str) -> std::result::Result<&'a str, String> {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .ok_or_else(|| format!("no line \"{name}\""))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> std::result::Result<T, String> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| format!("\"{name}\" is \"{text}\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Database system identifier:           7412345678901234567
Database cluster state:               shut down in recovery
pg_control last modified:             Sat Nov 21 14:00:00 2026
Latest checkpoint location:           0/3000060
Latest checkpoint's REDO location:    0/3000028
Latest checkpoint's TimeLineID:       1
Minimum recovery ending location:     1A/3000148
Min recovery ending loc's timeline:   1
Database block size:                  8192
Blocks per segment of large relation: 131072
WAL block size:                       8192
Bytes per WAL segment:                16777216
Data page checksum version:           1
";

    #[test]
    fn a_control_file_is_understood() {
        let control = Control::parse(TEXT).unwrap();
        assert_eq!(control.state, ClusterState::ShutDownInRecovery);
        assert_eq!(control.minimum, Lsn::from(0x1A_0300_0148));
        assert_eq!(control.system.to_string(), "7412345678901234567");
        assert!(control.checksums);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (from, to) in [
            (
                "Database block size:                  8192",
                "Database block size: 32768",
            ),
            ("16777216", "16777215"),
            ("16777216", "0"),
            ("131072", "0"),
            ("0/3000060", "nowhere"),
            ("Latest checkpoint's TimeLineID:", "Timeline:"),
            (
                "Database system",
                "WARNING: Calculated CRC checksum does not match\nDatabase system",
            ),
            (
                "Database system",
                "pg_controldata: warning: calculated CRC checksum does not match\nDatabase system",
            ),
        ] {
            assert!(Control::parse(&TEXT.replacen(from, to, 1)).is_err(), "{to}");
        }
    }
}
