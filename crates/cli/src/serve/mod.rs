//! `lockstep serve`: metrics, a health check, a JSON API and one page about lag, over HTTP.
//!
//! | module | what |
//! |---|---|
//! | [`feed`] | turns each new state into JSON once, for all who ask |
//! | [`routes`] | which address gives which answer |
//! | [`metrics`] | Prometheus' text format |
//! | [`health`] | whether this server still watches the nodes |
//! | [`api`] | states, history and events as JSON |
//! | [`history`] | what was the matter, and what `--history` keeps on disk |
//! | [`verdict`] | a state in one sentence |
//! | [`page`] | the page's files, which are compiled in |
//!
//! The server only reads from the nodes, unless `--heartbeat` is given. Without `--history` nothing
//! is kept on disk: the history begins when the server starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use lockstep_lag::monitor::{Monitor, Settings};
use lockstep_service::address::HostPort;
use lockstep_service::http::door::{Doors, Keys};
use lockstep_service::http::hosts::Hosts;
use lockstep_service::http::server::{self, Server};
use lockstep_service::logging::{self, LogFormat, LogLevel};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::exit::Usage;
use crate::nodes::NodesArgs;

mod api;
#[cfg(test)]
mod example;
mod feed;
mod health;
mod history;
mod metrics;
mod page;
mod routes;
mod verdict;

use history::Keeper;

const APPLICATION_NAME: &str = "lockstep serve";

/// How long threads may take to end.
const LAST_WORK: Duration = Duration::from_millis(500);

/// Fewest samples of a node in a diagnosis.
const LEAST_SAMPLES: u32 = 3;

/// `lockstep serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Which servers.
    #[command(flatten)]
    nodes: NodesArgs,
    /// Address to listen on; port 0 takes a free one, which the log names
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9871", value_parser = HostPort::parse)]
    listen: HostPort,
    /// Another name that browsers may ask for while this listens on the loopback, such as that of a
    /// proxy in front; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Seconds between samples of a node
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = value_parser!(u32).range(1..=60))]
    interval: u32,
    /// Seconds that a diagnosis looks back; at least three intervals
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u32).range(5..=600))]
    window: u32,
    /// Measure from commit to visible on each standby
    ///
    /// Writes: each interval commits a small logical message on the primary.
    #[arg(long)]
    heartbeat: bool,
    /// What is kept.
    #[command(flatten)]
    history: history::HistoryArgs,
    /// Ask for a login: a file of lines user:password, which others must not be able to read
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Certificate chain, PEM; turns TLS on
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Format of the log on standard error: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = LogFormat::parse)]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = LogLevel::parse)]
    log_level: LogLevel,
}

/// Serves until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<()> {
    if args.window < LEAST_SAMPLES * args.interval {
        let least = LEAST_SAMPLES * args.interval;
        let words = format!("--window must be at least three intervals: {least}");
        return Err(Usage(words).into());
    }
    let nodes = args.nodes.nodes()?;
    let keys = Keys {
        auth_file: args.auth_file.clone(),
        tls: args.tls_cert.clone().zip(args.tls_key.clone()),
    };
    let doors = Doors::open(keys).map_err(|error| Usage(error.to_string()))?;
    let keeper = args.history.keeper()?;
    logging::start(args.log_format, args.log_level).context("cannot start the log")?;
    let settings = Settings {
        application_name: APPLICATION_NAME.to_owned(),
        every: Duration::from_secs(args.interval.into()),
        window: Duration::from_secs(args.window.into()),
        heartbeat: args.heartbeat,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let result = runtime.block_on(until_signal(args, doors, keeper, || {
        Monitor::start(nodes, settings)
    }));
    runtime.shutdown_timeout(LAST_WORK);
    result
}

/// SIGTERM and SIGINT end the server; SIGHUP reloads passwords, certificate and key.
async fn until_signal(
    args: &ServeArgs,
    doors: Doors,
    keeper: Option<Keeper>,
    start: impl FnOnce() -> Monitor,
) -> Result<()> {
    let signals = "cannot handle signals";
    let mut terminate = signal(SignalKind::terminate()).context(signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).context(signals)?;
    let mut hangup = signal(SignalKind::hangup()).context(signals)?;
    let listen = &args.listen;
    let listener = TcpListener::bind((listen.host.as_str(), listen.port))
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().context("the address is not known")?;
    let doors = Arc::new(doors);
    warn_about(address, &doors);
    let monitor = Arc::new(start());
    let keeper = keeper.map(|mut keeper| {
        keeper.start();
        Arc::new(keeper)
    });
    let (stop, stopping) = watch::channel(false);
    let server = Server {
        doors: Arc::clone(&doors),
        hosts: Hosts::of(address, &listen.host, &args.allow_host),
        stopping: stopping.clone(),
    };
    let site = routes::Site {
        news: feed::start(&monitor, keeper.clone()),
        monitor,
        keeper: keeper.clone(),
        readers: routes::readers(),
        stopping,
        streams: routes::streams(),
    };
    let scheme = if doors.tls().is_some() {
        "https"
    } else {
        "http"
    };
    info!("serving on {scheme}://{address}/");
    let mut serving = tokio::spawn(server::serve(
        listener,
        Arc::new(server),
        routes::router(&Arc::new(site)),
    ));
    loop {
        tokio::select! {
            ended = &mut serving => return ended.context("serving has failed"),
            _ = hangup.recv() => match doors.open_again() {
                Ok(()) => info!("passwords, certificate and key are read again"),
                Err(failed) => error!(error = %failed, "the old ones stay in force"),
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    info!("ending");
    stop.send_replace(true);
    let ended = serving.await.context("serving has failed");
    if let Some(keeper) = keeper {
        keeper.finish(LAST_WORK);
    }
    ended
}

/// Warns about a server that is open to others without a login or without TLS.
fn warn_about(address: SocketAddr, doors: &Doors) {
    if address.ip().is_loopback() {
        return;
    }
    let others = "whoever reaches this address";
    if !doors.has_logins() {
        warn!(
            "there is no login: {others} can read the names of servers, slots, users and pieces of \
             queries; give --auth-file, or listen on 127.0.0.1"
        );
    }
    if doors.tls().is_none() {
        match doors.has_logins() {
            true => warn!(
                "there is no TLS: passwords travel so that anybody between can read them; give \
                 --tls-cert and --tls-key"
            ),
            false => warn!(
                "there is no TLS: anybody on the network between can read and change what is shown; give \
                 --tls-cert and --tls-key"
            ),
        }
    }
}
