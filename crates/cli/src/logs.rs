//! The log of commands that run for long.

use anyhow::{Context, Result};
use lockstep_relay::config::{LogFormat, LogLevel};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Logs go to standard error. Libraries are heard only about what is wrong.
pub fn start(format: LogFormat, level: LogLevel) -> Result<()> {
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
        // All our crates begin like this.
        .with_target("lockstep", ours);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
    .context("cannot start the log")
}
