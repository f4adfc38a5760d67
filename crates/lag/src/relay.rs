//! What a relay says about itself in its console.
//!
//! Columns are found by name, from this crate's own list of those that it needs. So the relay
//! is not linked in, a newer relay may have more columns, and a server that is no relay is
//! recognised.

use lockstep_client::Table;
use lockstep_wire::Lsn;
use serde::Serialize;

use crate::states::GroupState;
use crate::{LagError, Result};
use lockstep_service::sanitize::sanitize;

/// What a relay is asked for a sample. Slots come first, so that the ends that they are
/// compared with are not older.
pub const QUESTIONS: &str = "SHOW SLOTS; SHOW UPSTREAM; SHOW SPOOL";

/// The question that [`ends`] reads the answer of.
pub const UPSTREAM: &str = "SHOW UPSTREAM";

/// A relay's `application_name` on its primary, unless one is configured.
pub const APPLICATION: &str = "lockstep relay";

pub const VERSION: &str = "SHOW VERSION";

/// The answer to [`VERSION`] begins with this.
pub const VERSION_WORDS: &str = "lockstep relay ";

/// Most groups and most slots that are read. A relay has at most 1,024 slots.
pub const MOST_ROWS: usize = 2_048;

/// Longest text that is kept, in characters. The longest is a group's reason.
const MOST_TEXT: usize = 1_000;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Relay {
    /// Ordered by name.
    pub groups: Vec<Group>,
    /// Slots of subscribers, ordered by name.
    pub slots: Vec<RelaySlot>,
}

/// A slot on the primary and the log that the relay fills from it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Group {
    pub name: String,
    pub upstream_slot: String,
    /// The database that is decoded.
    pub database: String,
    pub state: GroupState,
    /// Why the group does not stream.
    pub reason: Option<String>,
    /// Host and port of the primary that the group is connected to.
    pub primary: Option<String>,
    /// End of the primary's WAL in the last message from it.
    pub sent: Option<Lsn>,
    /// End of what was received.
    pub received: Option<Lsn>,
    /// End of what is durable, which is confirmed to the primary.
    pub durable: Option<Lsn>,
    /// End of the last transaction received. A subscriber that has got this far misses nothing.
    pub committed: Option<Lsn>,
    /// Transactions received since the relay started.
    pub transactions: u64,
    /// Bytes of the stream received since the relay started.
    pub received_bytes: u64,
    pub cache_bytes: u64,
    /// 0 if the cache is off.
    pub cache_limit_bytes: u64,
    pub spool_bytes: u64,
    /// 0 if there is no limit.
    pub spool_limit_bytes: u64,
}

/// A subscriber's slot.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RelaySlot {
    pub name: String,
    pub database: String,
    pub group: String,
    /// Process number of the session that uses the slot, as its client knows it.
    pub active_pid: Option<u32>,
    pub sent: Option<Lsn>,
    /// Received by the subscriber.
    pub written: Option<Lsn>,
    /// Applied by the subscriber.
    pub applied: Option<Lsn>,
    /// Durable at the subscriber.
    pub confirmed: Option<Lsn>,
    /// Bytes of the stream that are still to be sent, while the slot is in use.
    pub behind_bytes: u64,
    /// Blocks of 8 kB that were served from memory.
    pub cache_hit: u64,
    /// Blocks of 8 kB that were served from the spool.
    pub cache_miss: u64,
}

impl Relay {
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    pub fn slot(&self, name: &str) -> Option<&RelaySlot> {
        self.slots.iter().find(|slot| slot.name == name)
    }

    /// Slots of a group, the one that has confirmed least first.
    pub fn readers(&self, group: &str) -> Vec<&RelaySlot> {
        let mut slots: Vec<_> = self.slots.iter().filter(|s| s.group == group).collect();
        slots.sort_by_key(|slot| slot.confirmed);
        slots
    }

    /// The latest end of all groups.
    pub fn end(&self) -> Option<Lsn> {
        self.groups.iter().filter_map(Group::end).max()
    }

    /// Reads the answers to [`QUESTIONS`].
    pub fn read(answers: &[Table]) -> Result<Self> {
        let [slots, upstream, spool] = answers else {
            return Err(LagError::WrongRole(format!(
                "it gave {} answers to three questions",
                answers.len()
            )));
        };
        let mut groups = groups(upstream)?;
        let spool = Listing::new("SHOW SPOOL", spool)?;
        let [name, cache, cache_limit, bytes, limit] = spool.columns([
            "group",
            "cache_bytes",
            "cache_limit_bytes",
            "spool_bytes",
            "spool_limit_bytes",
        ])?;
        for row in spool.rows() {
            let Some(group) = groups.iter_mut().find(|group| group.name == row.text(name)) else {
                continue;
            };
            group.cache_bytes = row.number(cache)?;
            group.cache_limit_bytes = row.number(cache_limit)?;
            group.spool_bytes = row.number(bytes)?;
            group.spool_limit_bytes = row.number(limit)?;
        }
        Ok(Self {
            groups,
            slots: self::slots(slots)?,
        })
    }
}

impl Group {
    /// The position up to which subscribers have something to get.
    pub fn end(&self) -> Option<Lsn> {
        self.committed.or(self.received)
    }

    pub fn is_streaming(&self) -> bool {
        self.state == GroupState::Streaming
    }
}

/// The end of each group, by its name: reads the answer to [`UPSTREAM`].
pub fn ends(answers: &[Table]) -> Result<Vec<(String, Lsn)>> {
    let [upstream] = answers else {
        return Err(LagError::WrongRole(format!(
            "it gave {} answers to one question",
            answers.len()
        )));
    };
    let groups = groups(upstream)?;
    Ok(groups
        .into_iter()
        .filter_map(|group| Some((group.end()?, group.name)))
        .map(|(end, name)| (name, end))
        .collect())
}

fn groups(upstream: &Table) -> Result<Vec<Group>> {
    let listing = Listing::new(UPSTREAM, upstream)?;
    let [name, slot, database, state, reason, primary] =
        listing.columns(["group", "slot", "database", "state", "reason", "primary"])?;
    let [sent, received, durable, transactions, bytes] = listing.columns([
        "sent_lsn",
        "received_lsn",
        "durable_lsn",
        "transactions",
        "received_bytes",
    ])?;
    let committed = listing.column("committed_lsn").ok();
    let group = |row: Row<'_>| {
        Ok(Group {
            name: row.text(name),
            upstream_slot: row.text(slot),
            database: row.text(database),
            state: row.text(state).into(),
            reason: row.known(reason),
            primary: row.known(primary),
            sent: row.position(sent)?,
            received: row.position(received)?,
            durable: row.position(durable)?,
            committed: match committed {
                Some(committed) => row.position(committed)?,
                None => None,
            },
            transactions: row.number(transactions)?,
            received_bytes: row.number(bytes)?,
            ..Group::default()
        })
    };
    listing.rows().map(group).collect()
}

fn slots(slots: &Table) -> Result<Vec<RelaySlot>> {
    let listing = Listing::new("SHOW SLOTS", slots)?;
    let [name, database, group, pid, sent, confirmed] = listing.columns([
        "name",
        "database",
        "group",
        "active_pid",
        "sent_lsn",
        "confirmed_lsn",
    ])?;
    let [behind, hit, miss] = listing.columns(["behind_bytes", "cache_hit", "cache_miss"])?;
    // A relay that lacks these columns knows only what was confirmed.
    let written = listing.column("written_lsn").unwrap_or(confirmed);
    let applied = listing.column("applied_lsn").unwrap_or(confirmed);
    let slot = |row: Row<'_>| {
        Ok(RelaySlot {
            name: row.text(name),
            database: row.text(database),
            group: row.text(group),
            active_pid: row.process(pid)?,
            sent: row.position(sent)?,
            written: row.position(written)?,
            applied: row.position(applied)?,
            confirmed: row.position(confirmed)?,
            behind_bytes: row.number(behind)?,
            cache_hit: row.number(hit)?,
            cache_miss: row.number(miss)?,
        })
    };
    listing.rows().map(slot).collect()
}

/// One answer of the console.
struct Listing<'a> {
    question: &'static str,
    table: &'a Table,
}

struct Row<'a> {
    question: &'static str,
    values: &'a [Option<String>],
}

impl<'a> Listing<'a> {
    fn new(question: &'static str, table: &'a Table) -> Result<Self> {
        match table.rows.len() > MOST_ROWS {
            true => Err(LagError::Answer {
                what: question.to_owned(),
                reason: format!("it has more than {MOST_ROWS} rows"),
            }),
            false => Ok(Self { question, table }),
        }
    }

    fn column(&self, name: &str) -> Result<usize> {
        let at = self.table.columns.iter().position(|column| column == name);
        at.ok_or_else(|| {
            LagError::WrongRole(format!(
                "{} has no column \"{name}\": it is no relay, or one of another version",
                self.question
            ))
        })
    }

    fn columns<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N]> {
        let mut places = [0; N];
        for (place, name) in places.iter_mut().zip(names) {
            *place = self.column(name)?;
        }
        Ok(places)
    }

    fn rows(&self) -> impl Iterator<Item = Row<'a>> {
        let question = self.question;
        self.table
            .rows
            .iter()
            .map(move |values| Row { question, values })
    }
}

impl Row<'_> {
    fn value(&self, at: usize) -> Option<&str> {
        self.values.get(at)?.as_deref()
    }

    fn known(&self, at: usize) -> Option<String> {
        let text = sanitize(self.value(at)?);
        Some(match text.char_indices().nth(MOST_TEXT) {
            Some((end, _)) => text.get(..end).unwrap_or_default().to_owned(),
            None => text,
        })
    }

    fn text(&self, at: usize) -> String {
        self.known(at).unwrap_or_default()
    }

    fn parsed<T: std::str::FromStr>(&self, at: usize) -> Result<Option<T>> {
        let Some(text) = self.value(at) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| LagError::Answer {
            what: self.question.to_owned(),
            reason: format!(
                "\"{}\" is not of the form that is expected there",
                sanitize(text).chars().take(40).collect::<String>()
            ),
        })
    }

    fn number(&self, at: usize) -> Result<u64> {
        Ok(self.parsed(at)?.unwrap_or_default())
    }

    fn position(&self, at: usize) -> Result<Option<Lsn>> {
        self.parsed(at)
    }

    /// Reads a process number, which the relay shows with a sign.
    fn process(&self, at: usize) -> Result<Option<u32>> {
        Ok(self.parsed::<i32>(at)?.map(|number| number as u32))
    }
}
