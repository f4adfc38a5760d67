//! The server that is recorded: queries to it, and a slot that keeps its WAL.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_wire::{Lsn, Timeline};

use super::PlayerError;
use super::client_programs::ClientPrograms;
use super::recording::SETTINGS;
use crate::Result;
use lockstep_wal::segment::SegmentSize;

/// How long the slot may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval of looks for the slot.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub programs: ClientPrograms,
    pub conninfo: String,
}

/// What the recorder needs to know about a server.
#[derive(Debug)]
pub(crate) struct SourceFacts {
    pub version: String,
    pub major: u32,
    pub settings: BTreeMap<String, String>,
    pub size: Option<SegmentSize>,
    pub in_recovery: bool,
    pub tablespaces: Vec<String>,
}

impl Source {
    /// Runs one query. Each line of the answer is a row, with columns separated by `|`.
    pub fn ask(&self, sql: &str) -> Result<String> {
        let mut psql = self.psql();
        psql.args(["--command", sql]);
        let ended = self.programs.run(psql)?;
        if ended.success {
            return Ok(ended.stdout.trim_end().to_owned());
        }
        Err(self.refused("does not answer", ended.reason))
    }

    fn psql(&self) -> std::process::Command {
        let mut psql = self.programs.command("psql");
        psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
        psql.args(["--field-separator=|", "--no-password"]);
        // An error ends psql until its input switches that off.
        psql.args(["--set=ON_ERROR_STOP=1", "--dbname", &self.conninfo]);
        psql
    }

    fn refused(&self, what: &'static str, reason: String) -> PlayerError {
        PlayerError::Source { what, reason }
    }

    /// Reads the facts with one query.
    pub fn facts(&self) -> Result<SourceFacts> {
        let names: Vec<String> = SETTINGS.iter().map(|name| format!("'{name}'")).collect();
        let answer = self.ask(&format!(
            "SELECT 'set', n, current_setting(n) FROM unnest(ARRAY[{}]) n \
             UNION ALL SELECT 'version', '', current_setting('server_version') \
             UNION ALL SELECT 'number', '', current_setting('server_version_num') \
             UNION ALL SELECT 'segment', '', setting FROM pg_settings \
             WHERE name = 'wal_segment_size' \
             UNION ALL SELECT 'recovery', '', pg_is_in_recovery()::text \
             UNION ALL SELECT 'space', '', spcname FROM pg_tablespace \
             WHERE spcname NOT IN ('pg_default', 'pg_global')",
            names.join(",")
        ))?;
        let mut facts = SourceFacts {
            version: String::new(),
            major: 0,
            settings: BTreeMap::new(),
            size: None,
            in_recovery: false,
            tablespaces: Vec::new(),
        };
        for line in answer.lines() {
            let mut columns = line.splitn(3, '|');
            let (Some(what), Some(name), Some(value)) =
                (columns.next(), columns.next(), columns.next())
            else {
                continue;
            };
            match what {
                "set" => {
                    facts.settings.insert(name.to_owned(), value.to_owned());
                }
                "version" => value.clone_into(&mut facts.version),
                "number" => facts.major = value.parse::<u32>().unwrap_or(0) / 10_000,
                "segment" => facts.size = value.parse().ok().and_then(SegmentSize::new),
                "recovery" => facts.in_recovery = value == "true",
                _ => facts.tablespaces.push(value.to_owned()),
            }
        }
        Ok(facts)
    }

    /// The flush position and the timeline.
    pub fn position(&self) -> Result<(Lsn, Timeline)> {
        // The name of a WAL file begins with the timeline.
        let answer = self
            .ask("SELECT l, substr(pg_walfile_name(l), 1, 8) FROM pg_current_wal_flush_lsn() l")?;
        let position = answer.split_once('|').and_then(|(lsn, timeline)| {
            let timeline = u32::from_str_radix(timeline, 16).ok()?;
            Some((lsn.parse().ok()?, Timeline::new(timeline)?))
        });
        position.ok_or_else(|| self.refused("gives no flush position", answer))
    }

    /// Creates a slot that keeps all WAL from now on. The slot is temporary: even if the recorder
    /// is killed, the slot ends with its session and the source can remove WAL again.
    pub fn hold_wal(&self) -> Result<SlotHolder> {
        let name = format!("lockstep_record_{}", std::process::id());
        let mut psql = self.psql();
        psql.stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut holder = SlotHolder {
            child: self.programs.spawn(psql)?,
            name,
            advanced: Lsn::from(0),
        };
        let create = format!(
            "SELECT pg_create_physical_replication_slot('{}', true, true);\n\\set ON_ERROR_STOP 0\n",
            holder.name
        );
        holder.say(&create);
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = holder.child.try_wait() {
                let stderr = holder.child.stderr.take().map(std::io::read_to_string);
                let stderr = stderr.and_then(std::result::Result::ok).unwrap_or_default();
                let reason = super::client_programs::reason(&stderr, &status);
                return Err(self.refused("gives no replication slot", reason));
            }
            let there = self.ask(&format!(
                "SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}'",
                holder.name
            ))?;
            if there == "1" {
                return Ok(holder);
            }
            if started.elapsed() > PATIENCE {
                let reason = format!("no slot within {} s", PATIENCE.as_secs());
                return Err(self.refused("gives no replication slot", reason));
            }
            thread::sleep(POLL);
        }
    }
}

/// A session with a temporary slot that keeps the source's WAL until this value is dropped.
#[derive(Debug)]
pub(crate) struct SlotHolder {
    child: Child,
    name: String,
    /// The position that the slot was last told to advance to.
    advanced: Lsn,
}

impl SlotHolder {
    /// Tells the slot that WAL before `lsn` is no longer needed. A slot beyond `lsn` stays there.
    pub fn advance(&mut self, lsn: Lsn) {
        if self.advanced >= lsn {
            return;
        }
        self.advanced = lsn;
        let advance = format!(
            "SELECT pg_replication_slot_advance(slot_name, '{lsn}') FROM pg_replication_slots \
             WHERE slot_name = '{}' AND restart_lsn < '{lsn}';\n",
            self.name
        );
        self.say(&advance);
    }

    /// Sends SQL to the session. Errors are ignored: if the session is gone, the WAL that it no
    /// longer keeps will be missing, and pg_receivewal reports that.
    fn say(&mut self, sql: &str) {
        if let Some(stdin) = self.child.stdin.as_mut() {
            let _ = stdin.write_all(sql.as_bytes()).and_then(|()| stdin.flush());
        }
    }
}

impl Drop for SlotHolder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // psql ends at the end of its input, unless the source hangs.
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > PATIENCE / 10 {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(POLL / 10);
        }
    }
}
