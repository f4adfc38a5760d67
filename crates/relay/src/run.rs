//! A relay from its start to its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::{error, info};

use crate::config::Config;
use crate::endpoints;
use crate::error::{RelayError, Result};
use crate::relay::Relay;
use crate::stats::Source;
use crate::terms;

/// What the end of a relay whose disk has failed may take: the disk may not answer either.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Runs a relay until `shutdown` turns true, or its spool cannot be written any more: what
/// the disk holds is not known then, and only opening it anew tells.
pub async fn run(
    config: Config,
    mut shutdown: watch::Receiver<bool>,
    reload: mpsc::Receiver<()>,
) -> Result<()> {
    let terms = terms::read(&config)?;
    let (stop, stopping) = watch::channel(false);
    let opening = {
        let (config, stopping) = (config.clone(), stopping.clone());
        tokio::task::spawn_blocking(move || Relay::open(config, terms, stopping))
    };
    let relay = Arc::new(
        opening
            .await
            .map_err(|failed| RelayError::Gap(failed.to_string()))??,
    );
    let rounds = tokio::spawn(relay.clone().rounds());
    let reloads = tokio::spawn(obey_reloads(relay.clone(), reload));
    let mut broken = relay.broken();
    let stopper = stop.clone();
    let ending = tokio::spawn(async move {
        tokio::select! {
            _ = shutdown.wait_for(|&stop| stop) => {}
            broken = broken.wait_for(Option::is_some) => {
                if let Some((group, why)) = broken.ok().as_deref().and_then(Option::as_ref) {
                    error!(group, why, "the spool cannot be written any more: ending");
                }
            }
        }
        stopper.send_replace(true);
    });
    let served = endpoints::serve(&relay, &config, stopping).await;
    reloads.abort();
    ending.abort();
    // Also where it could not be served at all.
    stop.send_replace(true);
    let closing = async {
        let _ = rounds.await;
        let closing = relay.clone();
        let _ = tokio::task::spawn_blocking(move || closing.close()).await;
    };
    let broken = relay.broken().borrow().clone();
    let Some((group, why)) = broken else {
        closing.await;
        return served;
    };
    let _ = tokio::time::timeout(LAST_WORK, closing).await;
    Err(RelayError::Poisoned { group, why })
}

/// Reads the configuration again whenever asked to.
async fn obey_reloads(relay: Arc<Relay>, mut asked: mpsc::Receiver<()>) {
    while asked.recv().await.is_some() {
        let relay = relay.clone();
        // Sessions wait neither for the disk nor for a lock meanwhile.
        let reloading = tokio::task::spawn_blocking(move || Source::reload(&*relay));
        match reloading
            .await
            .unwrap_or_else(|failed| Err(failed.to_string()))
        {
            Ok(changes) if changes.is_empty() => info!("nothing has changed in the configuration"),
            Ok(changes) => changes
                .iter()
                .for_each(|change| info!(change, "configuration")),
            Err(why) => error!(why, "the configuration cannot be used; the old one stays"),
        }
    }
}
