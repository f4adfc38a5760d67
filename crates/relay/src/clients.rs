//! The sessions that are there, and how one of them is ended.

use std::collections::BTreeMap;
use std::sync::Mutex;

use lockstep_wire::backend::Report;
use tokio::sync::watch;

use crate::clock;
use crate::lock::lock;
use crate::session::{Facts, Terminated};
use crate::stats::{ClientStat, ClientState};

/// See the module; by the relay's numbers of them.
#[derive(Debug, Default)]
pub struct Clients(Mutex<BTreeMap<u64, Client>>);

#[derive(Debug)]
struct Client {
    stat: ClientStat,
    terminate: watch::Sender<Option<Report>>,
}

impl Clients {
    pub fn opened(&self, facts: &Facts) -> Terminated {
        let stat = ClientStat {
            id: facts.id,
            pid: facts.pid,
            user: facts.user.clone(),
            database: facts.database.clone(),
            application_name: facts.application_name.clone(),
            address: facts.peer.map(|peer| peer.to_string()).unwrap_or_default(),
            state: ClientState::PassedThrough,
            slot: String::new(),
            since_unix_us: clock::unix_micros(),
        };
        let (terminate, terminated) = watch::channel(None);
        lock(&self.0).insert(facts.id, Client { stat, terminate });
        terminated
    }

    pub fn closed(&self, id: u64) {
        lock(&self.0).remove(&id);
    }

    pub fn stats(&self) -> Vec<ClientStat> {
        let clients = lock(&self.0);
        clients.values().map(|client| client.stat.clone()).collect()
    }

    /// What tells a session that it must end. None if there is no such session any more.
    pub fn terminated(&self, id: u64) -> Option<Terminated> {
        let clients = lock(&self.0);
        clients.get(&id).map(|client| client.terminate.subscribe())
    }

    /// Tells a session to end, and why; what is known of it, if there is one.
    pub fn terminate(&self, id: u64, why: Report) -> Option<ClientStat> {
        let clients = lock(&self.0);
        let client = clients.get(&id)?;
        client.terminate.send_if_modified(|told| {
            let new = told.is_none();
            told.get_or_insert(why);
            new
        });
        Some(client.stat.clone())
    }
}
