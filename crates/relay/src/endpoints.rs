//! Where a [`Relay`] is reached: listener, console and metrics.

use std::sync::Arc;

use lockstep_client::Server;
use lockstep_service::address::Listen as Place;
use lockstep_wire::backend::{Column, Report};
use tokio::sync::watch;
use tracing::{error, info};

use crate::config::Config;
use crate::console::Console;
use crate::error::{RelayError, Result};
use crate::metrics;
use crate::relay::Relay;
use crate::serve::{
    ConsoleService, Finding, Limits, Listen, Listener, Primary, PrimaryAddress, Rights, Service,
    TlsToPrimary, Verify, stop,
};
use crate::slot_commands::Sessions;
use crate::stats::Source;

impl ConsoleService for Console {
    fn answer(&self, rights: &Rights, query: &str) -> Vec<u8> {
        Console::answer(self, rights, query)
    }

    fn columns(&self, query: &str) -> Result<Vec<Column<'static>>, Report> {
        Console::columns(self, query)
    }
}

/// Serves until `shutdown` turns true, and all sessions have ended.
pub async fn serve(
    relay: &Arc<Relay>,
    config: &Config,
    mut shutdown: watch::Receiver<bool>,
) -> Result<()> {
    let place = match &config.listen {
        Place::Tcp(at) => Listen::Tcp {
            host: at.host.clone(),
            port: at.port,
        },
        Place::Unix { folder, port } => Listen::Socket {
            folder: folder.clone(),
            port: *port,
        },
    };
    let listener = Listener::bind(&[place])
        .await
        .map_err(|error| RelayError::Listen {
            address: error.place.to_string(),
            source: error.source,
        })?;
    let (stopper, stop) = stop::channel();
    let metrics = match &config.metrics {
        Some(at) => Some(tokio::spawn(serve_metrics(
            tokio::net::TcpListener::bind((at.host.as_str(), at.port))
                .await
                .map_err(|source| RelayError::Listen {
                    address: at.to_string(),
                    source,
                })?,
            relay.clone(),
            stop.clone(),
        ))),
        None => None,
    };
    for place in listener.places() {
        info!(%place, "listening");
    }
    let service = Arc::new(service(relay, config));
    let serving = listener.run(service, stop);
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => {}
        _ = shutdown.wait_for(|&stop| stop) => {
            stopper.stop();
            serving.await;
        }
    }
    if let Some(metrics) = metrics {
        let _ = metrics.await;
    }
    Ok(())
}

async fn serve_metrics(listener: tokio::net::TcpListener, relay: Arc<Relay>, mut stop: stop::Stop) {
    let stopped = async move { stop.told().await };
    if let Err(failed) = metrics::serve(listener, move || relay.snapshot(), stopped).await {
        error!(error = %failed, "metrics are not served any more");
    }
}

fn service(relay: &Arc<Relay>, config: &Config) -> Service<Sessions, Console> {
    Service {
        commands: Arc::new(Sessions(relay.clone())),
        console: Arc::new(Console::new(relay.clone())),
        terms: relay.terms(),
        primary: Box::new(ToPrimary {
            relay: relay.clone(),
            looking: tokio::sync::Mutex::default(),
        }),
        limits: Limits {
            sessions: config.max_connections as usize,
            ..Limits::default()
        },
    }
}

/// Where sessions find the primary.
struct ToPrimary {
    relay: Arc<Relay>,
    /// Held while a session's look is under way, which blocks a thread: others wait for its end
    /// without one.
    looking: tokio::sync::Mutex<()>,
}

impl Primary for ToPrimary {
    fn primary(&self) -> std::result::Result<PrimaryAddress, String> {
        let known = self.relay.primary().known();
        known
            .map(|server| address(&server))
            .ok_or_else(|| "the relay has not found the primary yet".to_owned())
    }

    fn find<'a>(&'a self, gone: Option<&'a PrimaryAddress>) -> Finding<'a> {
        Box::pin(async move {
            let known = self.relay.primary().known();
            if let Some(known) = known.filter(|known| Some(&address(known)) == gone) {
                self.relay.primary().forget(&known);
            }
            let _one = self.looking.lock().await;
            let relay = self.relay.clone();
            let found = tokio::task::spawn_blocking(move || relay.primary().find()).await;
            let found = found.map_err(|failed| failed.to_string())?;
            found.map(|server| address(&server))
        })
    }
}

/// How a second connection to the same server is made.
fn address(server: &Server) -> PrimaryAddress {
    let verify = match server.sslmode.as_str() {
        "verify-full" => Verify::Full,
        "verify-ca" => Verify::Ca,
        // As libpq has it: with authorities given, `require` checks them.
        "require" if server.sslrootcert.is_some() => Verify::Ca,
        _ => Verify::None,
    };
    PrimaryAddress {
        host: server.host.clone(),
        hostaddr: server.hostaddr.clone(),
        port: server.port,
        tls: server.tls.then(|| TlsToPrimary {
            verify,
            root_certificates: server.sslrootcert.clone().map(Into::into),
            server_name: None,
            required: true,
        }),
    }
}
