//! The log of long-running commands.

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::words::quoted;

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people, one for each event.
    Text,
    /// JSON for machines, one object for each event.
    Json,
}

impl LogFormat {
    /// The one with this name in the configuration.
    pub fn parse(text: &str) -> Result<Self, String> {
        [Self::Text, Self::Json]
            .into_iter()
            .find(|value| value.name() == text)
            .ok_or_else(|| format!("{} is not allowed: text or json", quoted(text)))
    }

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// What is logged. Each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What an operator should look into.
    Warn,
    /// What changes: groups, slots, sessions that stream.
    Info,
    /// Every session.
    Debug,
    /// Every message.
    Trace,
}

impl LogLevel {
    /// The one with this name in the configuration.
    pub fn parse(text: &str) -> Result<Self, String> {
        [
            Self::Error,
            Self::Warn,
            Self::Info,
            Self::Debug,
            Self::Trace,
        ]
        .into_iter()
        .find(|value| value.name() == text)
        .ok_or_else(|| {
            format!(
                "{} is not allowed: error, warn, info, debug or trace",
                quoted(text)
            )
        })
    }

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Starts logging to standard error. Of libraries at most errors and warnings are logged.
pub fn start(format: LogFormat, level: LogLevel) -> Result<(), TryInitError> {
    let level = match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let ours = LevelFilter::from_level(level);
    let filter = Targets::new()
        .with_default(ours.min(LevelFilter::WARN))
        // The names of all our crates begin with this.
        .with_target("lockstep", ours);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
}
