//! Writes commands.

use std::fmt::{self, Display, Formatter, Write};

use super::Command;

/// Quoted so that it is read as one name or one string, whatever it holds.
struct Quoted<'a> {
    text: &'a str,
    quote: char,
}

fn name(text: &str) -> Quoted<'_> {
    Quoted { text, quote: '"' }
}

fn string(text: &str) -> Quoted<'_> {
    Quoted { text, quote: '\'' }
}

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char(self.quote)?;
        // A zero byte would end the command.
        for c in self.text.chars().filter(|&c| c != '\0') {
            if c == self.quote {
                f.write_char(c)?;
            }
            f.write_char(c)?;
        }
        f.write_char(self.quote)
    }
}

/// Writes options in parentheses, or nothing if there are none. With `numbers`, 0 and 1 are
/// written without quotes: servers accept no string for a boolean option.
fn options(
    f: &mut Formatter<'_>,
    options: &[(String, Option<String>)],
    numbers: bool,
) -> fmt::Result {
    if options.is_empty() {
        return Ok(());
    }
    for (number, (option, value)) in options.iter().enumerate() {
        f.write_str(if number == 0 { " (" } else { ", " })?;
        match is_plain(option) {
            true => f.write_str(option)?,
            false => name(option).fmt(f)?,
        }
        match value.as_deref() {
            None => {}
            Some(value @ ("0" | "1")) if numbers => write!(f, " {value}")?,
            Some(value) => write!(f, " {}", string(value))?,
        }
    }
    f.write_char(')')
}

/// True if the name is read unchanged without quotes.
fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Written as a client of version 15 or later does.
impl Display for Command {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdentifySystem => f.write_str("IDENTIFY_SYSTEM"),
            Self::Show { name: setting } => {
                let parts: Vec<_> = setting
                    .split('.')
                    .map(|part| name(part).to_string())
                    .collect();
                write!(f, "SHOW {}", parts.join("."))
            }
            Self::ReadReplicationSlot { slot } => {
                write!(f, "READ_REPLICATION_SLOT {}", name(slot))
            }
            Self::CreatePhysicalSlot { .. } | Self::CreateLogicalSlot { .. } => {
                create_slot(self, f)
            }
            Self::AlterReplicationSlot {
                slot,
                options: given,
            } => {
                write!(f, "ALTER_REPLICATION_SLOT {}", name(slot))?;
                options(f, given, true)
            }
            Self::DropReplicationSlot { slot, wait } => {
                write!(f, "DROP_REPLICATION_SLOT {}", name(slot))?;
                f.write_str(if *wait { " WAIT" } else { "" })
            }
            Self::TimelineHistory { timeline } => write!(f, "TIMELINE_HISTORY {timeline}"),
            Self::StartReplication {
                slot,
                start,
                timeline,
            } => {
                f.write_str("START_REPLICATION")?;
                if let Some(slot) = slot {
                    write!(f, " SLOT {}", name(slot))?;
                }
                write!(f, " PHYSICAL {start}")?;
                timeline.map_or(Ok(()), |timeline| write!(f, " TIMELINE {timeline}"))
            }
            Self::StartLogical {
                slot,
                start,
                options: given,
            } => {
                write!(f, "START_REPLICATION SLOT {} LOGICAL {start}", name(slot))?;
                options(f, given, false)
            }
            Self::Other(word) => f.write_str(word),
            Self::Sql => f.write_str("SQL"),
        }
    }
}

fn create_slot(command: &Command, f: &mut Formatter<'_>) -> fmt::Result {
    match command {
        Command::CreatePhysicalSlot {
            slot,
            temporary,
            reserve_wal,
        } => {
            write!(f, "CREATE_REPLICATION_SLOT {}", name(slot))?;
            f.write_str(if *temporary { " TEMPORARY" } else { "" })?;
            f.write_str(" PHYSICAL")?;
            f.write_str(if *reserve_wal { " (RESERVE_WAL)" } else { "" })
        }
        Command::CreateLogicalSlot {
            slot,
            temporary,
            plugin,
            snapshot,
            two_phase,
            failover,
        } => {
            write!(f, "CREATE_REPLICATION_SLOT {}", name(slot))?;
            f.write_str(if *temporary { " TEMPORARY" } else { "" })?;
            write!(f, " LOGICAL {}", name(plugin))?;
            write!(f, " (SNAPSHOT {}", string(snapshot.name()))?;
            f.write_str(if *two_phase { ", TWO_PHASE" } else { "" })?;
            f.write_str(if *failover { ", FAILOVER" } else { "" })?;
            f.write_char(')')
        }
        _ => Ok(()),
    }
}
