//! A server from its start to the signal that ends it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_lag::monitor::{Monitor, Settings};
use lockstep_lag::nodes::Watched;
use lockstep_pool::error::PoolError;
use lockstep_pool::run::{Agency, Answering};
use lockstep_service::address::HostPort;
use lockstep_service::http::door::Doors;
use lockstep_service::http::hosts::Hosts;
use lockstep_service::http::server::{self, Server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::error::ServeError;
use crate::forecast::Forecaster;
use crate::history::Keeper;
use crate::pool::{self, PoolSource};
use crate::site::{ClusterSite, Site, readers, streams};
use crate::{feed, routes};

/// How long threads may take to end.
const LAST_WORK: Duration = Duration::from_millis(500);

/// What a server needs.
pub struct Serving {
    pub listen: HostPort,
    /// Other names that browsers may ask for while the server listens on the loopback.
    pub allowed_hosts: Vec<String>,
    pub doors: Doors,
    /// At least one.
    pub clusters: Vec<ServedCluster>,
    /// The agent of a node, if it runs in here.
    pub agency: Option<Agency>,
    pub settings: Settings,
}

/// A cluster that is watched.
pub struct ServedCluster {
    pub watched: Watched,
    /// What keeps its history on disk.
    pub keeper: Option<Keeper>,
    pub forecaster: Forecaster,
    pub pool: Option<PoolSource>,
}

/// Begins to watch clusters.
fn start(clusters: Vec<ServedCluster>, settings: &Settings) -> Vec<ClusterSite> {
    let (watched, rest): (Vec<_>, Vec<_>) = clusters
        .into_iter()
        .map(|it| (it.watched, (it.keeper, it.forecaster, it.pool)))
        .unzip();
    let names: Vec<_> = watched.iter().map(|it| it.cluster.clone()).collect();
    let monitors = Monitor::start_all(watched, settings);
    let all = names.into_iter().zip(monitors).zip(rest);
    let begin = |((name, monitor), rest)| {
        let (keeper, forecaster, pool): (Option<Keeper>, _, Option<PoolSource>) = rest;
        let monitor = Arc::new(monitor);
        let keeper = keeper.map(|mut keeper| {
            keeper.start();
            Arc::new(keeper)
        });
        ClusterSite {
            name,
            news: feed::start(&monitor, keeper.clone(), forecaster),
            monitor,
            keeper,
            pool: pool.map(pool::start),
        }
    };
    all.map(begin).collect()
}

/// Serves until a signal ends it.
pub fn run(serving: Serving) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(ServeError::Threads)?;
    let result = runtime.block_on(until_signal(serving));
    runtime.shutdown_timeout(LAST_WORK);
    result
}

/// SIGTERM and SIGINT end the server; SIGHUP reloads passwords, certificate and key. With an agent, SIGUSR1
/// drains its node, and SIGUSR2 lets it join again.
async fn until_signal(serving: Serving) -> Result<(), ServeError> {
    let on = |kind| signal(kind).map_err(ServeError::Signals);
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    let mut hangup = on(SignalKind::hangup())?;
    let mut drain = on(SignalKind::user_defined1())?;
    let mut join = on(SignalKind::user_defined2())?;
    let listen = &serving.listen;
    let listener = TcpListener::bind((listen.host.as_str(), listen.port))
        .await
        .map_err(|error| ServeError::Listen(listen.clone(), error))?;
    let address = listener.local_addr().map_err(ServeError::Address)?;
    let doors = Arc::new(serving.doors);
    warn_about(address, &doors);
    let mut agent = match serving.agency {
        Some(agency) => Some(Answering::start(agency, &doors).await?),
        None => None,
    };
    let settings = serving.settings;
    let clusters = start(serving.clusters, &settings);
    let keepers: Vec<_> = clusters.iter().filter_map(|it| it.keeper.clone()).collect();
    let (stop, stopping) = watch::channel(false);
    let server = Server {
        doors: Arc::clone(&doors),
        is_open: |_| false,
        checks: None,
        hosts: Hosts::of(address, &listen.host, &serving.allowed_hosts),
        stopping: stopping.clone(),
    };
    let site = Site {
        clusters,
        readers: readers(),
        stopping,
        streams: streams(),
    };
    let scheme = if doors.tls().is_some() {
        "https"
    } else {
        "http"
    };
    info!("serving on {scheme}://{address}/");
    if let Some(agent) = &agent {
        info!("the agent answers on {}", agent.places);
    }
    let mut served = tokio::spawn(server::serve(
        listener,
        Arc::new(server),
        routes::router(&Arc::new(site)),
    ));
    loop {
        tokio::select! {
            ended = &mut served => return ended.map_err(ServeError::Serving),
            _ = hangup.recv() => match doors.open_again() {
                Ok(()) => info!("passwords, certificate and key are read again"),
                Err(failed) => error!(error = %failed, "the old ones stay in force"),
            },
            ended = agent_ended(&mut agent) => return Ok(ended?),
            _ = drain.recv() => agent.iter().for_each(|agent| agent.drain(true)),
            _ = join.recv() => agent.iter().for_each(|agent| agent.drain(false)),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    info!("ending");
    stop.send_replace(true);
    let ended = served.await.map_err(ServeError::Serving);
    if let Some(agent) = agent {
        agent.stop().await?;
    }
    keepers.iter().for_each(|keeper| keeper.stop());
    let until = Instant::now() + LAST_WORK;
    for keeper in keepers {
        keeper.finish(until.saturating_duration_since(Instant::now()));
    }
    ended
}

/// Waits until the agent has ended by itself; for ever if there is none.
async fn agent_ended(agent: &mut Option<Answering>) -> Result<(), PoolError> {
    match agent {
        Some(agent) => agent.ended().await,
        None => std::future::pending().await,
    }
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
