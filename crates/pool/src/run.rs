//! An agent that answers, by itself until a signal ends it, or inside another program.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockstep_service::address::HostPort;
use lockstep_service::http::checks::Checks;
use lockstep_service::http::door::Doors;
use lockstep_service::http::hosts::Hosts;
use lockstep_service::http::server::{self, Server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
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
    /// The option that names this address.
    pub listen_option: &'static str,
    /// Where HAProxy's agent-check is answered.
    pub agent_check: HostPort,
    /// Other names that requests may ask for while the agent listens on the loopback.
    pub allowed_hosts: Vec<String>,
    pub rules: Rules,
    pub servers: Servers,
    /// Age from which idle sessions of readers are ended.
    pub max_session_age: Option<Duration>,
}

/// An agent that answers.
pub struct Answering {
    agent: Arc<Agent>,
    /// Where it answers, in words.
    pub places: String,
    served: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Answering {
    /// Begins to ask and to answer.
    pub async fn start(agency: Agency, doors: &Arc<Doors>) -> Result<Self, PoolError> {
        let (listener, address) = bind(&agency.listen, agency.listen_option).await?;
        let (checks, checked_at) = bind(&agency.agent_check, "--agent-check").await?;
        warn_about(address, checked_at, doors);
        let agent = Agent::start(agency.rules, agency.servers, agency.max_session_age);
        let (stop, stopping) = watch::channel(false);
        let http = Server {
            hosts: Hosts::of(address, &agency.listen.host, &agency.allowed_hosts),
            is_open: |path| path != routes::STATUS,
            checks: Some(checks_of(&agent)),
            doors: Arc::clone(doors),
            stopping: stopping.clone(),
        };
        tokio::spawn(agent_check::serve(checks, Arc::clone(&agent), stopping));
        let router = routes::router(&agent);
        let served = tokio::spawn(server::serve(listener, Arc::new(http), router));
        let scheme = match doors.tls() {
            Some(_) => "https",
            None => "http",
        };
        Ok(Self {
            agent,
            places: format!("{scheme}://{address}/, agent-check on {checked_at}"),
            served,
            stop,
        })
    }

    /// An operator wants that the node takes no new session, or wants it no longer.
    pub fn drain(&self, is_drained: bool) {
        self.agent.drain(is_drained);
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> Result<(), PoolError> {
        failed((&mut self.served).await)
    }

    /// Ends it.
    pub async fn stop(self) -> Result<(), PoolError> {
        self.agent.stop();
        self.stop.send_replace(true);
        failed(self.served.await)
    }
}

fn failed(ended: Result<(), JoinError>) -> Result<(), PoolError> {
    ended.map_err(PoolError::Serving)
}

/// What checks of proxies get.
fn checks_of(agent: &Arc<Agent>) -> Checks {
    let agent = Arc::clone(agent);
    Box::new(move |path| routes::status_of(&agent, path))
}

/// Answers until a signal ends it.
pub fn run(agency: Agency, doors: Doors) -> Result<(), PoolError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(PoolError::Threads)?;
    let result = runtime.block_on(until_signal(agency, Arc::new(doors)));
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
async fn until_signal(agency: Agency, doors: Arc<Doors>) -> Result<(), PoolError> {
    let on = |kind| signal(kind).map_err(PoolError::Signals);
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut hangup = on(SignalKind::hangup())?;
    let mut drain = on(SignalKind::user_defined1())?;
    let mut join = on(SignalKind::user_defined2())?;
    let mut answering = Answering::start(agency, &doors).await?;
    info!("serving on {}", answering.places);
    loop {
        tokio::select! {
            ended = answering.ended() => return ended,
            _ = hangup.recv() => match doors.open_again() {
                Ok(()) => info!("passwords, certificate and key are read again"),
                Err(failed) => error!(error = %failed, "the old ones stay in force"),
            },
            _ = drain.recv() => answering.drain(true),
            _ = join.recv() => answering.drain(false),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    info!("ending");
    answering.stop().await
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
