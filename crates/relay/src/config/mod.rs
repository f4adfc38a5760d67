//! The configuration: a TOML file, and flags that override it.
//!
//! ```text
//! file ─┐
//!       ├─> keys and groups, each with its place ──> Config ──> checks on disk
//! flags ┘
//! ```
//!
//! Every key is read from text by one function of a table, whether it comes from the file or
//! from a flag, so both allow the same. What is wrong is said with file, line and what is
//! allowed. The connection string may hold a password: nothing here shows it.

mod change;
mod disk;
mod error;
mod file;
mod group;
mod key;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use change::{Applies, Change};
pub use error::{ConfigError, Place};
pub use group::{
    GroupConfig, LONGEST_GROUP_NAME, LONGEST_NAME, MOST_GROUPS, MOST_PUBLICATIONS, Origin, Plugin,
    SLOT_PREFIX,
};

use key::{KEYS, Key};
use lockstep_client::Conninfo;
use lockstep_service::address::{HostPort, Listen};
use lockstep_service::logging::{LogFormat, LogLevel};
use lockstep_service::words::quoted;

/// All that is configured. Sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where subscribers connect.
    pub listen: Listen,
    /// How the relay connects to the primary.
    pub primary: Conninfo,
    /// Folder of the spool.
    pub spool: PathBuf,
    /// Most memory for the stream of each group; 0 turns the cache off.
    pub logical_wal_cache: u64,
    /// Memory in which the primary decodes a group's transactions before it writes them to
    /// disk, at least; 0 leaves it to the primary's own setting.
    pub logical_decoding_work_mem: u64,
    /// Most disk for the stream of each group; 0 is no limit.
    pub spool_limit: u64,
    /// What happens at the limit.
    pub on_spool_limit: OnSpoolLimit,
    /// Where metrics are served, if at all.
    pub metrics: Option<HostPort>,
    /// Certificate chain for clients, PEM; None turns TLS off.
    pub tls_certificate: Option<PathBuf>,
    /// The certificate's key, PEM.
    pub tls_key: Option<PathBuf>,
    /// Refuse clients without TLS, but for those on the Unix socket.
    pub tls_required: bool,
    /// Role, besides superusers, that may drop slots and reload.
    pub admin_role: Option<String>,
    /// Database whose connection authenticates console logins.
    pub console_database: String,
    /// Most sessions at once.
    pub max_connections: u32,
    /// A session keeps its connection to the primary while the relay streams to it.
    pub keep_connections: bool,
    /// Make a group for subscriptions that no group serves.
    pub auto_groups: bool,
    /// Groups' slots on the primary are failover slots (17 and later).
    pub failover: bool,
    /// How logs are written.
    pub log_format: LogFormat,
    /// What is logged.
    pub log_level: LogLevel,
    /// Groups, in the file's order.
    pub groups: Vec<GroupConfig>,
    /// Where each value comes from; what is not here is as by default.
    places: BTreeMap<&'static str, Place>,
    /// To read it all again.
    origin: Given,
}

/// What happens when the spool has reached its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSpoolLimit {
    /// Nothing more is received until slots have confirmed enough. The primary keeps its WAL.
    Wait,
    /// The slot that is furthest behind is dropped.
    DropSlowest,
}

impl OnSpoolLimit {
    fn parse(text: &str) -> Result<Self, String> {
        [Self::Wait, Self::DropSlowest]
            .into_iter()
            .find(|value| value.name() == text)
            .ok_or_else(|| format!("{} is not allowed: wait or drop-slowest", quoted(text)))
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::DropSlowest => "drop-slowest",
        }
    }
}

/// Keys given on the command line, with their values as text. Names are those of the file.
pub type Flags = Vec<(&'static str, String)>;

/// What a configuration was read from.
#[derive(Debug, Clone, Default)]
struct Given {
    file: Option<PathBuf>,
    /// The primary's connection string may be among them, but never one with a password.
    flags: Flags,
}

impl Config {
    pub fn new(primary: Conninfo, spool: impl Into<PathBuf>) -> Self {
        Self {
            listen: Listen::Tcp(HostPort {
                host: "127.0.0.1".to_owned(),
                port: 6543,
            }),
            primary,
            spool: spool.into(),
            logical_wal_cache: 16 << 20,
            // What four subscribers of the primary would take at its default.
            logical_decoding_work_mem: 256 << 20,
            spool_limit: 0,
            on_spool_limit: OnSpoolLimit::Wait,
            metrics: None,
            tls_certificate: None,
            tls_key: None,
            tls_required: false,
            admin_role: None,
            console_database: "postgres".to_owned(),
            max_connections: 200,
            keep_connections: false,
            auto_groups: true,
            failover: false,
            log_format: LogFormat::Text,
            log_level: LogLevel::Info,
            groups: Vec::new(),
            places: BTreeMap::new(),
            origin: Given::default(),
        }
    }

    /// Reads the file, if there is one, and the flags, and looks at what they name on disk.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Self, ConfigError> {
        let text = match file {
            Some(path) => Some((path, disk::read(path)?)),
            None => None,
        };
        let text = text.as_ref().map(|(path, text)| (*path, text.as_str()));
        let config = Self::parse(text, flags)?;
        if let (Some(path), Some(Place::File { .. })) = (file, config.places.get("primary")) {
            if config.primary.has_secret() {
                disk::check_private(path)?;
            }
        }
        config.check_disk()?;
        Ok(config)
    }

    /// The configuration read again: what [`Config::load`] gives for the same file and flags now.
    pub fn reload(&self) -> Result<Self, ConfigError> {
        Self::load(self.origin.file.as_deref(), &self.origin.flags)
    }

    /// The configuration that a file's text and flags say. Nothing on disk is looked at.
    pub fn parse(file: Option<(&Path, &str)>, flags: &Flags) -> Result<Self, ConfigError> {
        let empty = key::conninfo("").map_err(|reason| {
            ConfigError::value(&Place::Default, format!("libpq cannot be used: {reason}"))
        })?;
        let mut config = Self::new(empty, PathBuf::new());
        if let Some((path, text)) = file {
            file::read(&mut config, path, text)?;
        }
        for (name, text) in flags {
            config.set_flag(name, text)?;
        }
        if let Some(key) = KEYS
            .iter()
            .find(|key| key.required && !config.places.contains_key(key.name))
        {
            return Err(ConfigError::Missing { key: key.name });
        }
        config.check_together()?;
        config.origin = Given {
            file: file.map(|(path, _)| path.to_owned()),
            flags: flags.clone(),
        };
        Ok(config)
    }

    /// Every setting: name, value without secrets, and `file`, `flag` or `default`.
    pub fn rows(&self) -> Vec<(String, String, String)> {
        let keys = KEYS.iter().map(|key| {
            let source = self.place(key.name).source();
            (key.name.to_owned(), (key.show)(self), source.to_owned())
        });
        let groups = self.groups.iter().map(|group| {
            (
                format!("group {}", group.name),
                group.to_string(),
                "file".to_owned(),
            )
        });
        keys.chain(groups).collect()
    }

    fn place(&self, name: &str) -> &Place {
        self.places.get(name).unwrap_or(&Place::Default)
    }

    fn set_flag(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let place = Place::Flag(name.replace('_', "-"));
        let key =
            Key::find(name).ok_or_else(|| ConfigError::value(&place, "there is no such key"))?;
        (key.set)(self, text, Path::new(""))
            .map_err(|reason| ConfigError::value(&place, reason))?;
        if name == "primary" && self.primary.has_secret() {
            return Err(ConfigError::value(
                &place,
                "a password on the command line can be read by every user of this machine: \
                 put it into the configuration file, PGPASSWORD or ~/.pgpass",
            ));
        }
        self.places.insert(key.name, place);
        Ok(())
    }

    /// What no value says alone.
    fn check_together(&self) -> Result<(), ConfigError> {
        let wrong = |name: &str, reason: &str| Err(ConfigError::value(self.place(name), reason));
        match (&self.tls_certificate, &self.tls_key) {
            (Some(_), None) => return wrong("tls_certificate", "tls_key must be set as well"),
            (None, Some(_)) => return wrong("tls_key", "tls_certificate must be set as well"),
            (None, None) if self.tls_required => {
                return wrong(
                    "tls_required",
                    "tls_certificate and tls_key must be set as well",
                );
            }
            _ => {}
        }
        if !self.auto_groups && self.groups.is_empty() {
            return wrong(
                "auto_groups",
                "without automatic groups there must be a [[group]], or nothing is relayed",
            );
        }
        Ok(())
    }
}
