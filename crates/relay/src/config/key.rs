//! The keys of the configuration, but for groups: one table says everything about each.

use std::path::{Path, PathBuf};

use lockstep_client::{ClientError, Conninfo};
use lockstep_service::address::{HostPort, Listen};
use lockstep_service::logging::{LogFormat, LogLevel};
use lockstep_service::words::{amount, quoted};

use super::{Applies, Config, OnSpoolLimit, group};

/// Smallest cache, if there is one.
const LEAST_CACHE: u64 = 64 << 10;
/// Largest cache.
const MOST_CACHE: u64 = 1 << 40;
/// What PostgreSQL allows for `logical_decoding_work_mem`.
const LEAST_WORK_MEM: u64 = 64 << 10;
const MOST_WORK_MEM: u64 = ((1 << 31) - 1) << 10;
/// Smallest spool limit, if there is one.
const LEAST_SPOOL: u64 = 1 << 20;
/// Largest spool limit.
const MOST_SPOOL: u64 = 1 << 50;
/// Most sessions that may be allowed.
const MOST_CONNECTIONS: u32 = 10_000;

/// What a key's value is in the file. On the command line all is text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Text,
    /// Text with a unit; a bare 0 as well.
    Size,
    Number,
    Boolean,
}

pub(super) struct Key {
    /// The key's name in the file; flags have dashes in place of underscores.
    pub name: &'static str,
    pub kind: ValueKind,
    /// What has no default.
    pub required: bool,
    pub applies: Applies,
    /// Reads a value. Relative paths begin at the folder given.
    pub set: fn(&mut Config, &str, &Path) -> Result<(), String>,
    /// The value as anyone may see it.
    pub show: fn(&Config) -> String,
    /// Takes the value over from another configuration.
    pub copy: fn(&mut Config, &Config),
}

impl Key {
    const fn new(
        name: &'static str,
        kind: ValueKind,
        applies: Applies,
        set: fn(&mut Config, &str, &Path) -> Result<(), String>,
        show: fn(&Config) -> String,
        copy: fn(&mut Config, &Config),
    ) -> Self {
        Self {
            name,
            kind,
            required: false,
            applies,
            set,
            show,
            copy,
        }
    }

    const fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }

    /// The key of a name in the file.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}

/// All keys, in the order in which they are shown.
pub(super) const KEYS: [Key; 19] = [
    Key::new(
        "listen",
        ValueKind::Text,
        Applies::AtRestart,
        |config, text, _| Listen::parse(text).map(|value| config.listen = value),
        |config| config.listen.to_string(),
        |config, from| config.listen = from.listen.clone(),
    ),
    Key::new(
        "primary",
        ValueKind::Text,
        Applies::AtRestart,
        |config, text, _| match text.trim() {
            "" => Err("an empty connection string names no server; write it as host=db1 user=relay, or as a URI".to_owned()),
            text => conninfo(text).map(|value| config.primary = value),
        },
        |config| config.primary.to_string(),
        |config, from| config.primary = from.primary.clone(),
    )
    .required(),
    Key::new(
        "spool",
        ValueKind::Text,
        Applies::AtRestart,
        |config, text, base| path(text, base).map(|value| config.spool = value),
        |config| config.spool.display().to_string(),
        |config, from| config.spool = from.spool.clone(),
    )
    .required(),
    Key::new(
        "logical_wal_cache",
        ValueKind::Size,
        Applies::Now,
        |config, text, _| {
            amount::between(text, LEAST_CACHE, MOST_CACHE)
                .map(|value| config.logical_wal_cache = value)
        },
        |config| amount::show(config.logical_wal_cache),
        |config, from| config.logical_wal_cache = from.logical_wal_cache,
    ),
    Key::new(
        "logical_decoding_work_mem",
        ValueKind::Size,
        Applies::AtRestart,
        |config, text, _| {
            amount::between(text, LEAST_WORK_MEM, MOST_WORK_MEM)
                .map(|value| config.logical_decoding_work_mem = value)
        },
        |config| amount::show(config.logical_decoding_work_mem),
        |config, from| config.logical_decoding_work_mem = from.logical_decoding_work_mem,
    ),
    Key::new(
        "spool_limit",
        ValueKind::Size,
        Applies::Now,
        |config, text, _| {
            amount::between(text, LEAST_SPOOL, MOST_SPOOL).map(|value| config.spool_limit = value)
        },
        |config| amount::show(config.spool_limit),
        |config, from| config.spool_limit = from.spool_limit,
    ),
    Key::new(
        "on_spool_limit",
        ValueKind::Text,
        Applies::Now,
        |config, text, _| OnSpoolLimit::parse(text).map(|value| config.on_spool_limit = value),
        |config| config.on_spool_limit.name().to_owned(),
        |config, from| config.on_spool_limit = from.on_spool_limit,
    ),
    Key::new(
        "metrics",
        ValueKind::Text,
        Applies::AtRestart,
        |config, text, _| optional(text, HostPort::parse).map(|value| config.metrics = value),
        |config| shown(&config.metrics),
        |config, from| config.metrics = from.metrics.clone(),
    ),
    Key::new(
        "tls_certificate",
        ValueKind::Text,
        Applies::Now,
        |config, text, base| {
            optional(text, |text| path(text, base)).map(|value| config.tls_certificate = value)
        },
        |config| shown_path(config.tls_certificate.as_deref()),
        |config, from| config.tls_certificate = from.tls_certificate.clone(),
    ),
    Key::new(
        "tls_key",
        ValueKind::Text,
        Applies::Now,
        |config, text, base| {
            optional(text, |text| path(text, base)).map(|value| config.tls_key = value)
        },
        |config| shown_path(config.tls_key.as_deref()),
        |config, from| config.tls_key = from.tls_key.clone(),
    ),
    Key::new(
        "tls_required",
        ValueKind::Boolean,
        Applies::Now,
        |config, text, _| boolean(text).map(|value| config.tls_required = value),
        |config| config.tls_required.to_string(),
        |config, from| config.tls_required = from.tls_required,
    ),
    Key::new(
        "admin_role",
        ValueKind::Text,
        Applies::Now,
        |config, text, _| optional(text, group::object_name).map(|value| config.admin_role = value),
        |config| shown(&config.admin_role),
        |config, from| config.admin_role = from.admin_role.clone(),
    ),
    Key::new(
        "console_database",
        ValueKind::Text,
        Applies::AtRestart,
        |config, text, _| group::object_name(text).map(|value| config.console_database = value),
        |config| config.console_database.clone(),
        |config, from| config.console_database = from.console_database.clone(),
    ),
    Key::new(
        "max_connections",
        ValueKind::Number,
        Applies::AtRestart,
        |config, text, _| {
            text.parse()
                .ok()
                .filter(|number| (1..=MOST_CONNECTIONS).contains(number))
                .map(|number| config.max_connections = number)
                .ok_or_else(|| {
                    format!(
                        "{} is not allowed: a whole number from 1 to {MOST_CONNECTIONS}",
                        quoted(text)
                    )
                })
        },
        |config| config.max_connections.to_string(),
        |config, from| config.max_connections = from.max_connections,
    ),
    Key::new(
        "keep_connections",
        ValueKind::Boolean,
        Applies::Now,
        |config, text, _| boolean(text).map(|value| config.keep_connections = value),
        |config| config.keep_connections.to_string(),
        |config, from| config.keep_connections = from.keep_connections,
    ),
    Key::new(
        "auto_groups",
        ValueKind::Boolean,
        Applies::AtRestart,
        |config, text, _| boolean(text).map(|value| config.auto_groups = value),
        |config| config.auto_groups.to_string(),
        |config, from| config.auto_groups = from.auto_groups,
    ),
    Key::new(
        "failover",
        ValueKind::Boolean,
        Applies::AtRestart,
        |config, text, _| boolean(text).map(|value| config.failover = value),
        |config| config.failover.to_string(),
        |config, from| config.failover = from.failover,
    ),
    Key::new(
        "log_format",
        ValueKind::Text,
        Applies::AtRestart,
        |config, text, _| LogFormat::parse(text).map(|value| config.log_format = value),
        |config| config.log_format.name().to_owned(),
        |config, from| config.log_format = from.log_format,
    ),
    Key::new(
        "log_level",
        ValueKind::Text,
        Applies::AtRestart,
        |config, text, _| LogLevel::parse(text).map(|value| config.log_level = value),
        |config| config.log_level.name().to_owned(),
        |config, from| config.log_level = from.log_level,
    ),
];

/// An empty value turns something off.
fn optional<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match text {
        "" => Ok(None),
        text => parse(text).map(Some),
    }
}

/// libpq reads it, and does not repeat passwords.
pub(super) fn conninfo(text: &str) -> Result<Conninfo, String> {
    Conninfo::parse(text).map_err(|error| match error {
        ClientError::Conninfo(words) => {
            format!(
                "not a connection string: {words}; write it as host=db1 user=relay, or as a URI"
            )
        }
        other => other.to_string(),
    })
}

fn boolean(text: &str) -> Result<bool, String> {
    text.parse()
        .map_err(|_| format!("{} is not allowed: true or false", quoted(text)))
}

fn path(text: &str, base: &Path) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains('\0') {
        return Err("a path is expected".to_owned());
    }
    std::path::absolute(base.join(text))
        .map_err(|error| format!("{} cannot be made absolute: {error}", quoted(text)))
}

fn shown<T: std::fmt::Display>(value: &Option<T>) -> String {
    value.as_ref().map(T::to_string).unwrap_or_default()
}

fn shown_path(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string())
        .unwrap_or_default()
}
