//! Replication commands as clients write them.

use std::fmt;

use crate::{Lsn, Result, Timeline, WireError};

/// Longest command that is parsed, in bytes.
pub const LIMIT: usize = 8 * 1024;

/// A replication command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Who are you, on which timeline, and where does your WAL end?
    IdentifySystem,
    /// A setting's value.
    Show {
        /// The setting, in lower case.
        name: String,
    },
    /// What is known about a slot.
    ReadReplicationSlot {
        /// The slot.
        slot: String,
    },
    /// A slot for physical replication.
    CreatePhysicalSlot {
        /// The slot.
        slot: String,
        /// It goes away with the session.
        temporary: bool,
        /// It keeps WAL from now on, rather than from its first use.
        reserve_wal: bool,
    },
    /// A slot goes away.
    DropReplicationSlot {
        /// The slot.
        slot: String,
        /// Wait until nobody uses it.
        wait: bool,
    },
    /// The file that says how a timeline came to be.
    TimelineHistory {
        /// The timeline.
        timeline: Timeline,
    },
    /// Physical streaming.
    StartReplication {
        /// The slot to use.
        slot: Option<String>,
        /// The first byte to send.
        start: Lsn,
        /// On which timeline; None is the server's own.
        timeline: Option<Timeline>,
    },
    /// A replication command that is known but not spelled out here; its first word.
    Other(&'static str),
    /// No replication command, so SQL perhaps.
    Sql,
}

/// Words of commands that [`Command::Other`] stands for.
const OTHERS: [&str; 3] = ["BASE_BACKUP", "ALTER_REPLICATION_SLOT", "UPLOAD_MANIFEST"];

/// Why `START_REPLICATION` and `CREATE_REPLICATION_SLOT` may be [`Command::Other`].
pub const LOGICAL: &str = "LOGICAL";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// A bare word, as it is written.
    Word(String),
    /// A quoted identifier.
    Quoted(String),
    /// A string.
    Text(String),
    /// Anything else is one character.
    Sign(char),
}

impl Command {
    /// Parses a command. An error is a replication command that makes no sense.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > LIMIT {
            return Err(WireError::TooLong {
                length: text.len(),
                limit: LIMIT,
            });
        }
        let first: String = text
            .trim_start()
            .chars()
            .take_while(|&c| is_word(c))
            .collect();
        let first = first.to_ascii_uppercase();
        if let Some(other) = OTHERS.into_iter().find(|&other| other == first) {
            return Ok(Self::Other(other));
        }
        type Parser = fn(&mut Tokens<'_>) -> Result<Command>;
        let parser: Parser = match first.as_str() {
            "IDENTIFY_SYSTEM" => |_| Ok(Command::IdentifySystem),
            "SHOW" => show,
            "READ_REPLICATION_SLOT" => |tokens| {
                Ok(Command::ReadReplicationSlot {
                    slot: tokens.name()?,
                })
            },
            "CREATE_REPLICATION_SLOT" => create_slot,
            "DROP_REPLICATION_SLOT" => |tokens| {
                Ok(Command::DropReplicationSlot {
                    slot: tokens.name()?,
                    wait: tokens.accept("WAIT"),
                })
            },
            "TIMELINE_HISTORY" => |tokens| {
                Ok(Command::TimelineHistory {
                    timeline: tokens.timeline()?,
                })
            },
            "START_REPLICATION" => start_replication,
            _ => return Ok(Self::Sql),
        };
        let list = tokenize(text)?;
        let mut tokens = Tokens {
            left: list.get(1..).unwrap_or_default(),
            text,
        };
        let command = parser(&mut tokens)?;
        if matches!(command, Self::Other(_)) {
            return Ok(command);
        }
        tokens.sign(';');
        match tokens.left.is_empty() {
            true => Ok(command),
            false => Err(tokens.error()),
        }
    }
}

fn show(tokens: &mut Tokens<'_>) -> Result<Command> {
    let mut name = tokens.name()?;
    while tokens.sign('.') {
        name.push('.');
        name.push_str(&tokens.name()?);
    }
    Ok(Command::Show {
        name: name.to_ascii_lowercase(),
    })
}

fn create_slot(tokens: &mut Tokens<'_>) -> Result<Command> {
    let slot = tokens.name()?;
    let temporary = tokens.accept("TEMPORARY");
    if tokens.accept(LOGICAL) {
        return Ok(Command::Other(LOGICAL));
    }
    tokens.expect("PHYSICAL")?;
    let mut reserve_wal = false;
    if tokens.sign('(') {
        loop {
            if !tokens.accept("RESERVE_WAL") {
                return Err(tokens.error());
            }
            reserve_wal = tokens.boolean()?;
            if !tokens.sign(',') {
                break;
            }
        }
        if !tokens.sign(')') {
            return Err(tokens.error());
        }
    } else {
        while tokens.accept("RESERVE_WAL") {
            reserve_wal = true;
        }
    }
    Ok(Command::CreatePhysicalSlot {
        slot,
        temporary,
        reserve_wal,
    })
}

fn start_replication(tokens: &mut Tokens<'_>) -> Result<Command> {
    let slot = match tokens.accept("SLOT") {
        true => Some(tokens.name()?),
        false => None,
    };
    if tokens.accept(LOGICAL) {
        return Ok(Command::Other(LOGICAL));
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

/// Tokens not parsed yet.
struct Tokens<'a> {
    left: &'a [Token],
    text: &'a str,
}

impl<'a> Tokens<'a> {
    fn error(&self) -> WireError {
        WireError::text("a replication command", self.text)
    }

    fn next(&mut self) -> Result<&'a Token> {
        let (first, left) = self.left.split_first().ok_or_else(|| self.error())?;
        self.left = left;
        Ok(first)
    }

    /// Takes the keyword if it is next.
    fn accept(&mut self, keyword: &str) -> bool {
        match self.left.split_first() {
            Some((Token::Word(word), left)) if word.eq_ignore_ascii_case(keyword) => {
                self.left = left;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, keyword: &str) -> Result<()> {
        match self.accept(keyword) {
            true => Ok(()),
            false => Err(self.error()),
        }
    }

    fn sign(&mut self, sign: char) -> bool {
        match self.left.split_first() {
            Some((Token::Sign(found), left)) if *found == sign => {
                self.left = left;
                true
            }
            _ => false,
        }
    }

    fn name(&mut self) -> Result<String> {
        match self.next()? {
            Token::Quoted(name) => Ok(name.clone()),
            Token::Word(name) => Ok(name.to_ascii_lowercase()),
            _ => Err(self.error()),
        }
    }

    /// The value of a boolean option; without one it is true.
    fn boolean(&mut self) -> Result<bool> {
        let value = match self.left.first() {
            Some(Token::Word(value) | Token::Text(value) | Token::Quoted(value)) => value,
            _ => return Ok(true),
        };
        let truth = match value.to_ascii_lowercase().as_str() {
            "true" | "on" | "1" => true,
            "false" | "off" | "0" => false,
            _ => return Err(self.error()),
        };
        self.next()?;
        Ok(truth)
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            _ => Err(self.error()),
        }
    }

    fn timeline(&mut self) -> Result<Timeline> {
        self.word()?.parse()
    }

    fn lsn(&mut self) -> Result<Lsn> {
        let high = self.word()?;
        if !self.sign('/') {
            return Err(self.error());
        }
        format!("{high}/{}", self.word()?).parse()
    }
}

/// Letters, digits and what else a bare name or number may hold.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

fn tokenize(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_ascii_whitespace() => {}
            '"' => tokens.push(Token::Quoted(quoted(&mut chars, '"', text)?)),
            '\'' => tokens.push(Token::Text(quoted(&mut chars, '\'', text)?)),
            c if is_word(c) => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|&c| is_word(c)) {
                    word.push(c);
                }
                tokens.push(Token::Word(word));
            }
            c => tokens.push(Token::Sign(c)),
        }
    }
    Ok(tokens)
}

/// What is between two quotes; a doubled quote is one.
fn quoted(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    quote: char,
    text: &str,
) -> Result<String> {
    let mut inside = String::new();
    while let Some(c) = chars.next() {
        if c != quote {
            inside.push(c);
        } else if chars.next_if_eq(&quote).is_some() {
            inside.push(quote);
        } else {
            return Ok(inside);
        }
    }
    Err(WireError::text("a replication command", text))
}

/// As a client of version 15 or later writes it.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |slot: &str| format!("\"{}\"", slot.replace('"', "\"\""));
        match self {
            Self::IdentifySystem => f.write_str("IDENTIFY_SYSTEM"),
            Self::Show { name: setting } => {
                let parts: Vec<_> = setting.split('.').map(name).collect();
                write!(f, "SHOW {}", parts.join("."))
            }
            Self::ReadReplicationSlot { slot } => {
                write!(f, "READ_REPLICATION_SLOT {}", name(slot))
            }
            Self::CreatePhysicalSlot {
                slot,
                temporary,
                reserve_wal,
            } => {
                write!(f, "CREATE_REPLICATION_SLOT {}", name(slot))?;
                f.write_str(if *temporary { " TEMPORARY" } else { "" })?;
                f.write_str(" PHYSICAL")?;
                f.write_str(if *reserve_wal { " (RESERVE_WAL)" } else { "" })
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
            Self::Other(word) => f.write_str(word),
            Self::Sql => f.write_str("SQL"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(slot: Option<&str>, start: u64, timeline: Option<u32>) -> Command {
        Command::StartReplication {
            slot: slot.map(str::to_owned),
            start: start.into(),
            timeline: timeline.and_then(Timeline::new),
        }
    }

    fn create(slot: &str, temporary: bool, reserve_wal: bool) -> Command {
        Command::CreatePhysicalSlot {
            slot: slot.to_owned(),
            temporary,
            reserve_wal,
        }
    }

    #[test]
    fn what_clients_of_15_to_18_send_is_understood() {
        let show = |name: &str| Command::Show {
            name: name.to_owned(),
        };
        for (text, command) in [
            ("IDENTIFY_SYSTEM", Command::IdentifySystem),
            (" identify_system ; ", Command::IdentifySystem),
            ("SHOW wal_segment_size", show("wal_segment_size")),
            ("SHOW \"Lockstep\".x", show("lockstep.x")),
            (
                "START_REPLICATION 0/2000000 TIMELINE 1",
                start(None, 0x200_0000, Some(1)),
            ),
            (
                "START_REPLICATION PHYSICAL A/B",
                start(None, 0xA_0000_000B, None),
            ),
            (
                "START_REPLICATION SLOT \"a\"\"b\" 16/B374D848 TIMELINE 4294967295",
                start(Some("a\"b"), 0x16_B374_D848, Some(u32::MAX)),
            ),
            (
                "START_REPLICATION SLOT Slot PHYSICAL 0/0",
                start(Some("slot"), 0, None),
            ),
            (
                "CREATE_REPLICATION_SLOT \"pg_walreceiver_7\" TEMPORARY PHYSICAL RESERVE_WAL",
                create("pg_walreceiver_7", true, true),
            ),
            (
                "CREATE_REPLICATION_SLOT \"s\" PHYSICAL",
                create("s", false, false),
            ),
            (
                "CREATE_REPLICATION_SLOT \"s\" PHYSICAL (RESERVE_WAL)",
                create("s", false, true),
            ),
            (
                "CREATE_REPLICATION_SLOT \"s\" PHYSICAL ( reserve_wal 'false' )",
                create("s", false, false),
            ),
            ("BASE_BACKUP ( LABEL 'x' )", Command::Other("BASE_BACKUP")),
            (
                "START_REPLICATION SLOT \"s\" LOGICAL 0/0 (proto_version '1')",
                Command::Other(LOGICAL),
            ),
            (
                "SELECT pg_catalog.set_config('search_path', '', false);",
                Command::Sql,
            ),
            ("", Command::Sql),
        ] {
            assert_eq!(Command::parse(text), Ok(command), "{text}");
        }
    }

    #[test]
    fn commands_that_make_no_sense_are_errors() {
        for text in [
            "SHOW",
            "SHOW a.",
            "IDENTIFY_SYSTEM x",
            "START_REPLICATION",
            "START_REPLICATION 0/0 TIMELINE 0",
            "START_REPLICATION 0/0 TIMELINE -1",
            "START_REPLICATION 0/0 TIMELINE 4294967296",
            "START_REPLICATION SLOT 0/0",
            "START_REPLICATION SLOT \"x 0/0",
            "START_REPLICATION 0/123456789",
            "START_REPLICATION 0",
            "TIMELINE_HISTORY",
            "TIMELINE_HISTORY 0",
            "CREATE_REPLICATION_SLOT PHYSICAL",
            "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (",
            "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (snapshot 'x')",
            "CREATE_REPLICATION_SLOT \"x\" PHYSICAL (reserve_wal maybe)",
            "DROP_REPLICATION_SLOT",
            "READ_REPLICATION_SLOT 'x'",
        ] {
            assert!(Command::parse(text).is_err(), "{text}");
        }
        assert!(Command::parse(&" ".repeat(LIMIT + 1)).is_err());
    }
}
