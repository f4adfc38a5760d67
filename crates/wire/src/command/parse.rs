//! Parses commands.

use super::tokens::{Tokens, first_keyword, tokenize};
use super::{Command, LIMIT, SnapshotAction, boolean};
use crate::{Result, WireError};

/// First words that [`Command::Other`] stands for.
const OTHERS: [&str; 2] = ["BASE_BACKUP", "UPLOAD_MANIFEST"];

type Parser = fn(&mut Tokens<'_>) -> Result<Command>;

impl Command {
    /// Parses a command. An error means that it begins as a replication command and is none.
    pub fn parse(text: &str) -> Result<Self> {
        let first = first_keyword(text);
        if let Some(other) = OTHERS.into_iter().find(|&other| first == Some(other)) {
            return Ok(Self::Other(other));
        }
        let Some(&(_, parser)) = PARSERS.iter().find(|(word, _)| first == Some(word)) else {
            return Ok(Self::Sql);
        };
        if text.len() > LIMIT {
            return Err(WireError::TooLong {
                length: text.len(),
                limit: LIMIT,
            });
        }
        if text.contains('\0') {
            return Err(WireError::Malformed("a zero byte in a command"));
        }
        let list = tokenize(text)?;
        let mut tokens = Tokens::new(list.get(1..).unwrap_or_default(), text);
        let command = parser(&mut tokens)?;
        tokens.sign(';');
        match tokens.is_empty() {
            true => Ok(command),
            false => Err(tokens.error()),
        }
    }
}

const PARSERS: [(&str, Parser); 8] = [
    ("IDENTIFY_SYSTEM", |_| Ok(Command::IdentifySystem)),
    ("SHOW", show),
    ("READ_REPLICATION_SLOT", |tokens| {
        let slot = dotted(tokens)?;
        Ok(Command::ReadReplicationSlot { slot })
    }),
    ("CREATE_REPLICATION_SLOT", create_slot),
    ("ALTER_REPLICATION_SLOT", |tokens| {
        let slot = tokens.name()?;
        let options = tokens.generic_options()?;
        Ok(Command::AlterReplicationSlot { slot, options })
    }),
    ("DROP_REPLICATION_SLOT", |tokens| {
        let slot = tokens.name()?;
        let wait = tokens.accept("WAIT");
        Ok(Command::DropReplicationSlot { slot, wait })
    }),
    ("TIMELINE_HISTORY", |tokens| {
        let timeline = tokens.timeline()?;
        Ok(Command::TimelineHistory { timeline })
    }),
    ("START_REPLICATION", start_replication),
];

fn show(tokens: &mut Tokens<'_>) -> Result<Command> {
    let mut name = dotted(tokens)?;
    name.make_ascii_lowercase();
    Ok(Command::Show { name })
}

/// A name that servers take with dots.
fn dotted(tokens: &mut Tokens<'_>) -> Result<String> {
    let mut name = tokens.name()?;
    while tokens.sign('.') {
        name.push('.');
        name.push_str(&tokens.name()?);
    }
    Ok(name)
}

fn create_slot(tokens: &mut Tokens<'_>) -> Result<Command> {
    let slot = tokens.name()?;
    let temporary = tokens.accept("TEMPORARY");
    let plugin = match tokens.accept("LOGICAL") {
        true => Some(tokens.name()?),
        false => {
            tokens.expect("PHYSICAL")?;
            None
        }
    };
    let given = SlotOptions::parse(tokens)?;
    match (plugin, given) {
        (
            Some(plugin),
            SlotOptions {
                snapshot,
                two_phase,
                failover,
                reserve_wal: None,
            },
        ) => Ok(Command::CreateLogicalSlot {
            slot,
            temporary,
            plugin,
            snapshot: snapshot.unwrap_or_default(),
            two_phase: two_phase.unwrap_or(false),
            failover: failover.unwrap_or(false),
        }),
        (
            None,
            SlotOptions {
                snapshot: None,
                two_phase: None,
                failover: None,
                reserve_wal,
            },
        ) => Ok(Command::CreatePhysicalSlot {
            slot,
            temporary,
            reserve_wal: reserve_wal.unwrap_or(false),
        }),
        // The option belongs to the other kind of slot.
        _ => Err(tokens.error()),
    }
}

/// Options of a new slot. None is an option that was not given.
#[derive(Default)]
struct SlotOptions {
    snapshot: Option<SnapshotAction>,
    two_phase: Option<bool>,
    failover: Option<bool>,
    reserve_wal: Option<bool>,
}

impl SlotOptions {
    fn parse(tokens: &mut Tokens<'_>) -> Result<Self> {
        let mut options = Self::default();
        if tokens.at_sign('(') {
            for (name, value) in tokens.generic_options()? {
                if !options.set(&name, value.as_deref()) {
                    return Err(tokens.error());
                }
            }
            return Ok(options);
        }
        // Clients before version 15 write them like this.
        loop {
            let known = [
                ("EXPORT_SNAPSHOT", "snapshot", Some("export")),
                ("NOEXPORT_SNAPSHOT", "snapshot", Some("nothing")),
                ("USE_SNAPSHOT", "snapshot", Some("use")),
                ("RESERVE_WAL", "reserve_wal", None),
                ("TWO_PHASE", "two_phase", None),
            ];
            let Some((_, name, value)) = known
                .into_iter()
                .find(|(keyword, ..)| tokens.accept(keyword))
            else {
                return Ok(options);
            };
            if !options.set(name, value) {
                return Err(tokens.error());
            }
        }
    }

    /// False if the option is unknown, was given before, or has no such value.
    fn set(&mut self, name: &str, value: Option<&str>) -> bool {
        if name == "snapshot" {
            let action = SnapshotAction::ALL
                .into_iter()
                .find(|action| Some(action.name()) == value);
            return action.is_some() && std::mem::replace(&mut self.snapshot, action).is_none();
        }
        let place = match name {
            "two_phase" => &mut self.two_phase,
            "failover" => &mut self.failover,
            "reserve_wal" => &mut self.reserve_wal,
            _ => return false,
        };
        let value = boolean(value);
        value.is_some() && std::mem::replace(place, value).is_none()
    }
}

fn start_replication(tokens: &mut Tokens<'_>) -> Result<Command> {
    let slot = match tokens.accept("SLOT") {
        true => Some(tokens.name()?),
        false => None,
    };
    if tokens.accept("LOGICAL") {
        let slot = slot.ok_or_else(|| tokens.error())?;
        let start = tokens.lsn()?;
        let options = match tokens.at_sign('(') {
            true => tokens.plugin_options()?,
            false => Vec::new(),
        };
        return Ok(Command::StartLogical {
            slot,
            start,
            options,
        });
    }
    tokens.accept("PHYSICAL");
    let start = tokens.lsn()?;
    let timeline = match tokens.accept("TIMELINE") {
        true => Some(tokens.timeline()?),
        false => None,
    };
    Ok(Command::StartReplication {
        slot,
        start,
        timeline,
    })
}
