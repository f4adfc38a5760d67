//! Arguments that name the nodes that `doctor`, `top` and `serve` watch.

use std::path::PathBuf;

use clap::Args;
use lockstep_lag::nodes::{Cluster, NamedNodes, NodesError, PatroniPlace, Watched, named_twice};
use lockstep_lag::patroni::{Ask, understood};
use lockstep_service::clock::unix_ms;
use lockstep_service::exit::Failure;
use lockstep_service::http::client::Asking;

use crate::name::complain;

/// Which servers.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// The primary, as a conninfo string or URI. .pgpass, service files and PG* variables work; may be
    /// left out if PGHOST, PGHOSTADDR or PGSERVICE is set
    #[arg(long, value_name = "CONNINFO")]
    pub primary: Option<String>,
    /// A physical standby, also a cascaded one; may be repeated
    #[arg(long, value_name = "CONNINFO")]
    pub standby: Vec<String>,
    /// A database with subscriptions to the primary, or the target of a lockstep replica; may be
    /// repeated
    #[arg(long, value_name = "CONNINFO")]
    pub subscriber: Vec<String>,
    /// The console of a relay between them. Defaults are host=127.0.0.1 port=6543, the database is
    /// always lockstep; may be repeated
    #[arg(long, value_name = "CONNINFO")]
    pub relay: Vec<String>,
    /// A TOML file with a [[node]] for each server: role, conninfo and optionally name and cluster; or with
    /// a [[cluster]] whose members Patroni names
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Only this cluster of the file
    #[arg(long, value_name = "NAME", requires = "nodes")]
    pub cluster: Option<String>,
}

impl NodesArgs {
    /// The clusters that are named, with their nodes. Conninfos are parsed here and not by the parser of
    /// arguments, because that would print an invalid one with its password.
    pub fn clusters(&self) -> anyhow::Result<Vec<Watched>> {
        let named = NamedNodes {
            primary: self.primary.clone(),
            standbys: self.standby.clone(),
            relays: self.relay.clone(),
            subscribers: self.subscriber.clone(),
            file: self.nodes.clone(),
            cluster: self.cluster.clone(),
        };
        let clusters = usable(&named, NamedNodes::clusters)?;
        let watched: Vec<Watched> = clusters
            .into_iter()
            .map(watched)
            .collect::<Result<_, _>>()?;
        // Patroni may name what another cluster has.
        let nodes = watched
            .iter()
            .map(|it| (it.cluster.as_deref(), it.nodes.as_slice()));
        match named_twice(nodes) {
            Some(words) => Err(Failure::Usage(words).into()),
            None => Ok(watched),
        }
    }
}

/// The cluster with the nodes that there are now. Patroni is asked, if it names them.
pub fn watched(cluster: Cluster) -> Result<Watched, Failure> {
    let ask = cluster.patroni.as_ref().map(ask).transpose()?;
    Ok(cluster.watched(ask, unix_ms()))
}

/// Most bytes of an answer of Patroni.
const MOST_ANSWER: u64 = 1 << 20;

/// Asks one Patroni node after another, until one answers.
fn ask(place: &PatroniPlace) -> Result<Ask, Failure> {
    let asking = Asking::open(
        place.login_file.as_deref(),
        place.ca_file.as_deref(),
        MOST_ANSWER,
    )
    .map_err(|error| Failure::Usage(format!("{}: {error}", place.place)))?;
    let plain = asking.plain();
    let mut urls = place.urls.clone();
    Ok(Box::new(move || {
        let mut refused = Vec::new();
        for index in 0..urls.len() {
            let Some(url) = urls.get(index) else {
                break;
            };
            let asking = if url.tls { &asking } else { &plain };
            match asking.get(&url.at, "/cluster") {
                Ok((200, body)) => match understood(&body) {
                    Ok(()) => {
                        // It is asked first the next time.
                        urls.rotate_left(index);
                        return Ok(body);
                    }
                    Err(words) => refused.push(format!("{url}: {words}")),
                },
                Ok((401, _)) => refused.push(format!(
                    "{url}: it wants a login, or another: see login_file"
                )),
                Ok((status, _)) => refused.push(format!("{url}: it answers {status}")),
                Err(words) => refused.push(format!("{url}: {words}")),
            }
        }
        Err(refused.join("; "))
    }))
}

/// What `take` gives of named nodes, with their errors as the command line has them. Warns of passwords that
/// others can read.
pub fn usable<T>(
    named: &NamedNodes,
    take: impl FnOnce(&NamedNodes) -> Result<T, NodesError>,
) -> anyhow::Result<T> {
    if let Some(warning) = named.exposed() {
        complain(&warning);
    }
    take(named).map_err(|error| match error {
        NodesError::Unusable(words) => Failure::Usage(words).into(),
        NodesError::Conninfo { place, source } => anyhow::Error::from(source).context(place),
    })
}
