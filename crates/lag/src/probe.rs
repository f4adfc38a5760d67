//! One connection that takes samples. Reads only.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_upstream::{Purpose, Upstream};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::local;
use crate::node::{Node, Role, Trouble};
use crate::questions::{self, Part};
use crate::sample::{Facts, Sample};
use crate::window::Glance;
use crate::{LagError, Result};

/// Majors that the questions are written for.
pub const SUPPORTED: std::ops::RangeInclusive<u32> = 15..=18;

/// The session's prepared statements: the server plans them once and not each time, which
/// takes several times as long as the answer.
const SAMPLE: &str = "lockstep_sample";
const GLANCE: &str = "lockstep_glance";

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A node that answers.
#[derive(Debug)]
pub struct Probe {
    node: Node,
    server: Upstream,
    facts: Facts,
    /// What is asked for: what the server has refused is left out.
    parts: Vec<(Part, String)>,
    gaps: Vec<Trouble>,
    /// The server runs on this machine, as it seems.
    local: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Moment {
    in_recovery: bool,
    clock_us: i64,
}

impl Probe {
    /// Connects and learns what does not change. An error is a server that does not answer
    /// or that the questions are not written for.
    pub fn connect(node: &Node, application_name: &str) -> Result<Self> {
        let mut server = Upstream::connect(&node.conninfo, Purpose::Sql, application_name)?;
        server.set_patience(PATIENCE);
        let major = server.server_version() / 10_000;
        if !SUPPORTED.contains(&major) {
            return Err(LagError::Version(major));
        }
        server.query(questions::PREPARE)?;
        let mut facts: Facts = json("settings", single(server.query(&questions::facts())?))?;
        let mut gaps = Vec::new();
        match server.query(questions::SYSTEM) {
            Ok(rows) => facts.system = single(rows).unwrap_or_default(),
            Err(error) if error.refusal().is_some() => gaps.push(Trouble::Gap {
                what: "the system identifier".to_owned(),
                reason: error.to_string(),
            }),
            Err(error) => return Err(error.into()),
        }
        if !facts.monitor {
            gaps.push(Trouble::Gap {
                what: "other roles' sessions and replication positions".to_owned(),
                reason: "the role is no member of pg_monitor; GRANT pg_monitor TO it".to_owned(),
            });
        }
        let parts = Part::ALL
            .iter()
            .filter_map(|&part| {
                let sql = questions::expression(part, major, facts.extension.as_deref())?;
                Some((part, sql))
            })
            .collect();
        let local = server
            .server()
            .is_ok_and(|server| server.host.starts_with('/'));
        server.query(&format!("PREPARE {GLANCE} AS {}", questions::END))?;
        let mut probe = Self {
            node: node.clone(),
            server,
            facts,
            parts,
            gaps,
            local,
        };
        probe.prepare()?;
        Ok(probe)
    }

    /// Prepares the sample, without what is refused already when it is planned.
    fn prepare(&mut self) -> Result<()> {
        loop {
            let list: Vec<&str> = self.parts.iter().map(|(_, sql)| sql.as_str()).collect();
            let statement = format!("PREPARE {SAMPLE} AS SELECT {}", list.join(", "));
            match self.server.query(&statement) {
                Ok(_) => return Ok(()),
                Err(error) if error.refusal().is_some() => self.leave_out_refused()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What does not change while the connection lasts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What cannot be seen. Grows as parts are refused.
    pub fn gaps(&self) -> &[Trouble] {
        &self.gaps
    }

    /// What makes the node something else than was said, by what it says about itself.
    pub fn mismatch(&self, sample: &Sample) -> Option<Trouble> {
        role_mismatch(self.node.role, sample)
    }

    /// The connection, for what else is to be asked.
    pub fn server(&mut self) -> &mut Upstream {
        &mut self.server
    }

    /// Takes a sample; `began` is when the window did.
    pub fn sample(&mut self, began: Instant) -> Result<Sample> {
        loop {
            let asked = Instant::now();
            match self.server.query(&format!("EXECUTE {SAMPLE}")) {
                Ok(rows) => {
                    let answered = Instant::now();
                    let clock = wall_clock_us() - micros(answered - asked) / 2;
                    let columns = rows.into_iter().next().unwrap_or_default();
                    let mut sample = self.read(columns, clock)?;
                    sample.round_trip = answered - asked;
                    sample.at = (asked + sample.round_trip / 2).saturating_duration_since(began);
                    return Ok(sample);
                }
                Err(error) if error.refusal().is_some() => {
                    self.leave_out_refused()?;
                    self.server.query(&format!("DEALLOCATE {SAMPLE}"))?;
                    self.prepare()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks only where WAL ends; None if there is none yet or it may not be read.
    pub fn glance(&mut self, began: Instant) -> Result<Option<Glance>> {
        let asked = Instant::now();
        let rows = match self.server.query(&format!("EXECUTE {GLANCE}")) {
            Ok(rows) => rows,
            Err(error) if error.refusal().is_some() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let middle = asked + asked.elapsed() / 2;
        let end = single(rows).and_then(|text| text.parse().ok());
        Ok(end.map(|end| Glance {
            at: middle.saturating_duration_since(began),
            end,
        }))
    }

    /// Asks for each part alone, and leaves out those that are refused.
    fn leave_out_refused(&mut self) -> Result<()> {
        let before = self.parts.len();
        let mut kept = Vec::new();
        for (part, sql) in std::mem::take(&mut self.parts) {
            match self.server.query(&format!("SELECT {sql}")) {
                Ok(_) => kept.push((part, sql)),
                Err(error) => match error.refusal() {
                    // Nothing is left without these.
                    Some(_) if part == Part::Moment => return Err(error.into()),
                    Some(refusal) => self.gaps.push(Trouble::Gap {
                        what: part.words().to_owned(),
                        reason: refusal.message.clone(),
                    }),
                    None => return Err(error.into()),
                },
            }
        }
        self.parts = kept;
        match self.parts.len() < before {
            true => Ok(()),
            // Each alone is answered: the refusal has passed, or all together are too much.
            false => Err(LagError::Answer {
                what: "everything".to_owned(),
                reason: "it was refused once, and may be asked again".to_owned(),
            }),
        }
    }

    fn read(&self, columns: Vec<Option<String>>, clock_us: i64) -> Result<Sample> {
        let mut sample = Sample::default();
        for ((part, _), text) in self.parts.iter().zip(columns) {
            let what = part.words();
            match part {
                Part::Moment => {
                    let moment: Moment = json(what, text)?;
                    sample.in_recovery = moment.in_recovery;
                    sample.clock_offset_us = moment.clock_us.saturating_sub(clock_us);
                }
                Part::Wal => sample.wal = json(what, text)?,
                Part::Senders => sample.senders = json(what, text)?,
                Part::Slots => sample.slots = json(what, text)?,
                Part::Decoding => sample.decoding = json(what, text)?,
                Part::Receiver => {
                    sample.receiver = text.map(|t| json(what, Some(t))).transpose()?
                }
                Part::Subscriptions => sample.subscriptions = json(what, text)?,
                Part::Processes => sample.processes = json(what, text)?,
                Part::Clients => sample.clients = json(what, text)?,
                Part::Conflicts => sample.conflicts = json(what, text)?,
                Part::Totals => sample.totals = json(what, text)?,
                Part::Extension => {
                    sample.extension = text.map(|t| json(what, Some(t))).transpose()?;
                }
            }
        }
        if self.local {
            for process in &mut sample.processes {
                process.cpu = local::cpu(process.pid, &process.backend_type);
            }
        }
        Ok(sample)
    }
}

/// What makes a node something else than `role`, by what it says about itself.
pub fn role_mismatch(role: Role, sample: &Sample) -> Option<Trouble> {
    let reason = match (role, sample.in_recovery) {
        (Role::Primary, true) => "it is a standby, not a primary: name it with --standby",
        (Role::Standby, false) => {
            "it is no standby: it is a primary, perhaps since a promotion; name a standby"
        }
        (Role::Subscriber, false) if sample.subscriptions.is_empty() => {
            "there is no subscription in this database: name the database that has it (dbname=)"
        }
        (Role::Subscriber, true) => "it is a standby: name the server that applies the changes",
        _ => return None,
    };
    Some(Trouble::WrongRole {
        reason: reason.to_owned(),
    })
}

fn single(rows: Vec<Vec<Option<String>>>) -> Option<String> {
    rows.into_iter().next()?.into_iter().next()?
}

fn json<T: DeserializeOwned>(what: &str, text: Option<String>) -> Result<T> {
    serde_json::from_str(&text.unwrap_or_default()).map_err(|error| LagError::Answer {
        what: what.to_owned(),
        reason: error.to_string(),
    })
}

/// Our wall clock, in microseconds since 1970.
fn wall_clock_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, micros)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Subscription;

    #[test]
    fn roles_are_told_apart() {
        let subscribed = vec![Subscription::default()];
        for (role, in_recovery, subscriptions, fits) in [
            (Role::Primary, false, vec![], true),
            (Role::Primary, true, vec![], false),
            (Role::Standby, true, vec![], true),
            (Role::Standby, false, vec![], false),
            (Role::Subscriber, false, subscribed.clone(), true),
            (Role::Subscriber, false, vec![], false),
            (Role::Subscriber, true, subscribed, false),
        ] {
            let sample = Sample {
                in_recovery,
                subscriptions,
                ..Sample::default()
            };
            assert_eq!(role_mismatch(role, &sample).is_none(), fits, "{role}");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        for text in [None, Some("{"), Some("{\"clock_us\":\"x\"}")] {
            assert!(json::<Moment>("clock", text.map(str::to_owned)).is_err());
        }
    }
}
