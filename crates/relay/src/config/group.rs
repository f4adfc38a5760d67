//! `[[group]]`: what one upstream slot decodes.

use std::fmt;

use lockstep_service::words::quoted;

/// Slots on the primary begin with it; the name of the group follows.
pub const SLOT_PREFIX: &str = "lockstep_";

/// Most groups: each holds a slot and a connection of the primary.
pub const MOST_GROUPS: usize = 64;

pub const MOST_PUBLICATIONS: usize = 256;

/// Most slots in `applied_by` of a group.
pub const MOST_APPLIED_BY: usize = 256;

/// Settings on which the text of values depends, and in which a group's subscribers may differ
/// from those of another group.
pub const SETTINGS: [&str; 5] = [
    "TimeZone",
    "bytea_output",
    "lc_monetary",
    "quote_all_identifiers",
    "search_path",
];

/// Longest value of such a setting, in bytes.
const LONGEST_SETTING: usize = 1024;

/// Longest name in PostgreSQL, in bytes.
pub const LONGEST_NAME: usize = 63;

/// Longest name of a group, in bytes: that of its slot must not be too long.
pub const LONGEST_GROUP_NAME: usize = LONGEST_NAME - SLOT_PREFIX.len();

/// One group as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// The group's name, which has the characters of a slot's name.
    pub name: String,
    pub database: String,
    /// Publications; sorted, none twice.
    pub publications: Vec<String>,
    /// Values in binary.
    pub binary: bool,
    /// Which transactions, by their origin.
    pub origin: Origin,
    /// Logical messages too.
    pub messages: bool,
    /// Output plugin of the upstream slot.
    pub plugin: Plugin,
    /// Settings of its stream on which the text of values depends, in the order of their names:
    /// name and value as `set_config` takes them.
    pub settings: Vec<(String, String)>,
    /// The name by which the primary knows its stream, as `synchronous_standby_names` needs it.
    pub application_name: Option<String>,
    /// Slots whose subscribers must have applied what the primary is told is applied; all of
    /// the group if there is none here.
    pub applied_by: Vec<String>,
}

/// Transactions of which origin are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    Any,
    /// Transactions that were not replicated to the primary from elsewhere.
    None,
}

impl Origin {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "any" => Ok(Self::Any),
            "none" => Ok(Self::None),
            _ => Err(format!("{} is not allowed: any or none", quoted(text))),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::None => "none",
        })
    }
}

/// Output plugin of an upstream slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plugin {
    /// `lockstep` where the primary has it, else `pgoutput`.
    Auto,
    /// The extension's plugin.
    Lockstep,
    /// PostgreSQL's own.
    Pgoutput,
}

impl Plugin {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "lockstep" => Ok(Self::Lockstep),
            "pgoutput" => Ok(Self::Pgoutput),
            _ => Err(format!(
                "{} is not allowed: auto, lockstep or pgoutput",
                quoted(text)
            )),
        }
    }
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Lockstep => "lockstep",
            Self::Pgoutput => "pgoutput",
        })
    }
}

impl GroupConfig {
    /// A group with every option as it is by default. Names are not checked.
    pub fn new(name: &str, database: &str, publications: &[&str]) -> Self {
        let mut publications: Vec<String> =
            publications.iter().map(|&name| name.to_owned()).collect();
        publications.sort();
        publications.dedup();
        Self {
            name: name.to_owned(),
            database: database.to_owned(),
            publications,
            binary: false,
            origin: Origin::Any,
            messages: false,
            plugin: Plugin::Auto,
            settings: Vec::new(),
            application_name: None,
            applied_by: Vec::new(),
        }
    }

    /// True if both decode the same, whatever their names and plugins.
    pub fn decodes_like(&self, other: &Self) -> bool {
        let what = |group: &Self| (group.binary, group.origin, group.messages);
        self.database == other.database
            && self.publications == other.publications
            && what(self) == what(other)
            && self.settings == other.settings
    }
}

impl fmt::Display for GroupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "database={} publications={} binary={} origin={} messages={} plugin={}",
            self.database,
            self.publications.join(","),
            self.binary,
            self.origin,
            self.messages,
            self.plugin,
        )?;
        for (name, value) in &self.settings {
            write!(f, " {name}={value}")?;
        }
        if let Some(name) = &self.application_name {
            write!(f, " application_name={name}")?;
        }
        match self.applied_by.is_empty() {
            true => Ok(()),
            false => write!(f, " applied_by={}", self.applied_by.join(",")),
        }
    }
}

/// A group's name: its slot on the primary is called after it.
pub(super) fn group_name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    match (1..=LONGEST_GROUP_NAME).contains(&text.len()) && text.bytes().all(allowed) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{} is not allowed: 1 to {LONGEST_GROUP_NAME} lower-case letters, digits and _",
            quoted(text)
        )),
    }
}

/// An `application_name` that the server takes as it is: others it rewrites.
pub(super) fn application_name(text: &str) -> Result<String, String> {
    let printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    match (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(printable) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{} is not allowed: 1 to {LONGEST_NAME} printable ASCII characters",
            quoted(text)
        )),
    }
}

/// The name of a setting that a group may have, as PostgreSQL spells it.
pub(super) fn setting_name(text: &str) -> Result<&'static str, String> {
    let found = SETTINGS.iter().find(|name| name.eq_ignore_ascii_case(text));
    found.copied().ok_or_else(|| {
        let known = SETTINGS.join(", ");
        format!(
            "there is no setting {} here; there are {known}",
            quoted(text)
        )
    })
}

/// The value of a setting; the primary says what it may be.
pub(super) fn setting_value(text: String) -> Result<String, String> {
    match text.len() <= LONGEST_SETTING && !text.contains('\0') {
        true => Ok(text),
        false => Err(format!(
            "a value of at most {LONGEST_SETTING} bytes is expected"
        )),
    }
}

/// A name of anything in PostgreSQL.
pub(super) fn object_name(text: &str) -> Result<String, String> {
    match (1..=LONGEST_NAME).contains(&text.len()) && !text.contains('\0') {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{} is not allowed: a name of 1 to {LONGEST_NAME} bytes",
            quoted(text)
        )),
    }
}
