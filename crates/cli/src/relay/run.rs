//! Runs a relay: flags, log, signals.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_relay::config::{Config, Flags};
use lockstep_relay::run;
use lockstep_service::logging;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

/// How long work that cannot be interrupted may take at the end.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Most reloads that wait. While one waits, another would read the same file.
const MOST_RELOADS: usize = 1;

/// Flags: each key of the configuration file but for groups.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address for subscribers, or folder and port of a Unix socket [default: 127.0.0.1:6543]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// How to connect to the primary; without a password, which other users could see
    #[arg(long, value_name = "CONNINFO")]
    primary: Option<String>,
    /// Folder for the stream on disk; no two relays may share it
    #[arg(long, value_name = "FOLDER")]
    spool: Option<String>,
    /// Memory for each group's stream, such as 16MB or 2GB; 0: no cache [default: 16MB]
    #[arg(long, value_name = "SIZE")]
    logical_wal_cache: Option<String>,
    /// Memory in which the primary decodes each group's transactions, if its own setting is lower; it
    /// writes to disk what does not fit. 0: the primary's setting applies [default: 256MB]
    #[arg(long, value_name = "SIZE")]
    logical_decoding_work_mem: Option<String>,
    /// Disk for each group's stream; 0: no limit [default: 0]
    #[arg(long, value_name = "SIZE")]
    spool_limit: Option<String>,
    /// At the limit: wait, or drop-slowest, which drops the slot furthest behind [default: wait]
    #[arg(long, value_name = "WHAT")]
    on_spool_limit: Option<String>,
    /// Address for metrics and the health check, such as 127.0.0.1:9187 [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Certificate chain for clients, PEM; turns TLS on
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<String>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Refuse clients without TLS [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    tls_required: Option<String>,
    /// Role whose members, besides superusers, may drop slots and reload in the console
    #[arg(long, value_name = "ROLE")]
    admin_role: Option<String>,
    /// Database of the primary that console logins connect to [default: postgres]
    #[arg(long, value_name = "NAME")]
    console_database: Option<String>,
    /// Most sessions at once [default: 200]
    #[arg(long, value_name = "N")]
    max_connections: Option<String>,
    /// Keep a session's connection to the primary while the relay streams to it, for SQL after the
    /// copy; each subscriber then occupies a walsender [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    keep_connections: Option<String>,
    /// Create groups for subscriptions that no [[group]] in the file serves [default: true]
    #[arg(long, value_name = "BOOL")]
    auto_groups: Option<String>,
    /// Make the groups' slots on the primary failover slots, from PostgreSQL 17 on [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    failover: Option<String>,
    /// Format of the log on standard error: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// What is logged: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl RunArgs {
    /// The flags that were given, by the key of the configuration.
    fn flags(&self) -> Flags {
        [
            ("listen", &self.listen),
            ("primary", &self.primary),
            ("spool", &self.spool),
            ("logical_wal_cache", &self.logical_wal_cache),
            ("logical_decoding_work_mem", &self.logical_decoding_work_mem),
            ("spool_limit", &self.spool_limit),
            ("on_spool_limit", &self.on_spool_limit),
            ("metrics", &self.metrics),
            ("tls_certificate", &self.tls_certificate),
            ("tls_key", &self.tls_key),
            ("tls_required", &self.tls_required),
            ("admin_role", &self.admin_role),
            ("console_database", &self.console_database),
            ("max_connections", &self.max_connections),
            ("keep_connections", &self.keep_connections),
            ("auto_groups", &self.auto_groups),
            ("failover", &self.failover),
            ("log_format", &self.log_format),
            ("log_level", &self.log_level),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.clone()?)))
        .collect()
    }
}

/// Runs a relay until a signal ends it.
pub fn run(args: &RunArgs) -> Result<()> {
    let config = Config::load(args.config.as_deref(), &args.flags())?;
    logging::start(config.log_format, config.log_level).context("cannot start the log")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let result = runtime.block_on(until_signal(config));
    runtime.shutdown_timeout(LAST_WORK);
    result
}

/// SIGTERM and SIGINT end the relay; a second signal ends it at once. SIGHUP reloads the
/// configuration.
async fn until_signal(config: Config) -> Result<()> {
    let signals = "cannot handle signals";
    let mut terminate = signal(SignalKind::terminate()).context(signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).context(signals)?;
    let mut hangup = signal(SignalKind::hangup()).context(signals)?;
    // Without this, a file that may not grow would kill the relay. With it, that is an error
    // like any other.
    let _too_large = signal(SignalKind::from_raw(Signal::SIGXFSZ as i32)).context(signals)?;
    let (stop, stopping) = watch::channel(false);
    let (reload, reloads) = mpsc::channel(MOST_RELOADS);
    let mut running = std::pin::pin!(run::run(config, stopping, reloads));
    loop {
        tokio::select! {
            result = &mut running => return Ok(result?),
            _ = hangup.recv() => {
                // A reload that waits already will read the file as it is now.
                let _ = reload.try_send(());
                continue;
            }
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if stop.send_replace(true) {
            bail!(
                "ended at once by a second signal; what was not durable yet \
                 will be received again"
            );
        }
        tracing::info!("ending; a second signal ends at once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, FromArgMatches, Parser};

    #[derive(Debug, Parser)]
    struct Relay {
        #[command(flatten)]
        run: RunArgs,
    }

    /// Every key of the configuration has a flag, and every flag is passed on.
    #[test]
    fn flags_are_the_keys_of_the_configuration() {
        let empty = vec![
            ("primary", "host=a".to_owned()),
            ("spool", "/nowhere".to_owned()),
        ];
        let keys: Vec<String> = Config::parse(None, &empty)
            .unwrap()
            .rows()
            .into_iter()
            .map(|(name, ..)| name)
            .collect();
        let mut line = vec!["relay".to_owned()];
        for key in &keys {
            line.push(format!("--{}", key.replace('_', "-")));
            line.push("value".to_owned());
        }
        let matches = Relay::command().try_get_matches_from(line).unwrap();
        let flags = Relay::from_arg_matches(&matches).unwrap().run.flags();
        let handed_on: Vec<&str> = flags.iter().map(|(key, _)| *key).collect();
        assert_eq!(handed_on, keys);
        // The only other flag names the file.
        assert_eq!(Relay::command().get_arguments().count(), keys.len() + 1);
    }

    #[test]
    fn a_flag_without_value_turns_tls_required_on() {
        let flags = |line: &[&str]| Relay::try_parse_from(line).unwrap().run.flags();
        for (line, value) in [
            (&["relay", "--tls-required"][..], "true"),
            (&["relay", "--tls-required", "false"], "false"),
        ] {
            assert_eq!(flags(line), [("tls_required", value.to_owned())]);
        }
        assert!(flags(&["relay"]).is_empty());
    }
}
