//! An agent from its start to the signal that ends it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockstep_service::address::HostPort;
use lockstep_service::http::door::Doors;
use lockstep_service::http::hosts::Hosts;
use lockstep_service::http::server::{self, Server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::agent::{Agent, Servers};
use crate::agent_check;
use crate::error::PoolError;
use crate::judge::Rules;
use crate::routes;

/// How long threads of the runtime may take to end.
const LAST_WORK: Duration = Duration::from_millis(500);

/// What an agent needs.
pub struct Agency {
    pub listen: HostPort,
    /// Where HAProxy's agent-check is answered.
    pub agent_check: HostPort,
    /// Other names that requests may ask for while the agent listens on the loopback.
    pub allowed_hosts: Vec<String>,
    pub doors: Doors,
    pub rules: Rules,
    pub servers: Servers,
    /// Age from which idle sessions of readers are ended.
    pub max_session_age: Option<Duration>,
}

/// Answers until a signal ends it.
pub fn run(agency: Agency) -> Result<(), PoolError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(PoolError::Threads)?;
    let result = runtime.block_on(until_signal(agency));
    runtime.shutdown_timeout(LAST_WORK);
    result
}

async fn bind(
    address: &HostPort,
    option: &'static str,
) -> Result<(TcpListener, SocketAddr), PoolError> {
    let bound = TcpListener::bind((address.host.as_str(), address.port)).await;
    let listener = bound.map_err(|source| PoolError::Listen {
        address: address.clone(),
        option,
        source,
    })?;
    let address = listener.local_addr().map_err(PoolError::Address)?;
    Ok((listener, address))
}

/// SIGTERM and SIGINT end the agent; SIGHUP reloads passwords, certificate and key; SIGUSR1 drains the
/// node, SIGUSR2 lets it join again.
async fn until_signal(agency: Agency) -> Result<(), PoolError> {
    let on = |kind| signal(kind).map_err(PoolError::Signals);
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut hangup = on(SignalKind::hangup())?;
    let mut drain = on(SignalKind::user_defined1())?;
    let mut join = on(SignalKind::user_defined2())?;
    let (listener, address) = bind(&agency.listen, "--listen").await?;
    let (checks, checked_at) = bind(&agency.agent_check, "--agent-check").await?;
    let doors = Arc::new(agency.doors);
    warn_about(address, checked_at, &doors);
    let agent = Agent::start(agency.rules, agency.servers, agency.max_session_age);
    let (stop, stopping) = watch::channel(false);
    let http = Server {
        hosts: Hosts::of(address, &agency.listen.host, &agency.allowed_hosts),
        is_open: |path| path != routes::STATUS,
        doors: Arc::clone(&doors),
        stopping: stopping.clone(),
    };
    let scheme = if doors.tls().is_some() {
        "https"
    } else {
        "http"
    };
    info!("serving on {scheme}://{address}/, agent-check on {checked_at}");
    tokio::spawn(agent_check::serve(checks, Arc::clone(&agent), stopping));
    let mut served = tokio::spawn(server::serve(
        listener,
        Arc::new(http),
        routes::router(&agent),
    ));
    loop {
        tokio::select! {
            ended = &mut served => return ended.map_err(PoolError::Serving),
            _ = hangup.recv() => match doors.open_again() {
                Ok(()) => info!("passwords, certificate and key are read again"),
                Err(failed) => error!(error = %failed, "the old ones stay in force"),
            },
            _ = drain.recv() => agent.drain(true),
            _ = join.recv() => agent.drain(false),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    info!("ending");
    agent.stop();
    stop.send_replace(true);
    served.await.map_err(PoolError::Serving)
}

/// Warns about an agent that others reach.
fn warn_about(address: SocketAddr, checked_at: SocketAddr, doors: &Doors) {
    if !address.ip().is_loopback() && doors.tls().is_none() {
        warn!(
            "there is no TLS on {address}: anybody on the network between can read and change what is said, \
             and read logins; give --tls-cert and --tls-key"
        );
    }
    if !checked_at.ip().is_loopback() {
        warn!(
            "{checked_at} has neither login nor TLS, since HAProxy knows none for its agent-check: let only \
             HAProxy reach it"
        );
    }
}
