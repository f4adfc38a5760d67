//! The sessions that are there, and how one of them is ended or its command canceled.

use std::collections::BTreeMap;
use std::sync::Mutex;

use lockstep_service::clock;
use lockstep_wire::backend::Report;
use tokio::sync::watch;

use crate::lock::lock;
use crate::session::{Canceled, Facts, Secret, Terminated};
use crate::stats::{ClientStat, ClientState};

/// See the module; by the relay's numbers of them.
#[derive(Debug, Default)]
pub struct Clients(Mutex<BTreeMap<u64, Client>>);

#[derive(Debug)]
struct Client {
    stat: ClientStat,
    secret: Secret,
    /// The session has a connection to the primary.
    at_primary: bool,
    terminate: watch::Sender<Option<Report>>,
    cancel: watch::Sender<()>,
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
            role_oid: None,
            since_unix_us: clock::unix_us(),
        };
        let (terminate, terminated) = watch::channel(None);
        let client = Client {
            stat,
            secret: facts.secret.clone(),
            at_primary: true,
            terminate,
            cancel: watch::Sender::new(()),
        };
        lock(&self.0).insert(facts.id, client);
        terminated
    }

    /// The session has no connection to the primary any more.
    pub fn left_primary(&self, id: u64) {
        if let Some(client) = lock(&self.0).get_mut(&id) {
            client.at_primary = false;
        }
    }

    /// Notes the OID of the role that has logged in.
    pub fn is_role(&self, id: u64, oid: u32) {
        if let Some(client) = lock(&self.0).get_mut(&id) {
            client.stat.role_oid = Some(oid);
        }
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

    /// What tells a session to cancel what the relay does for it, from now on. None if there is
    /// no such session any more.
    pub fn canceled(&self, id: u64) -> Option<Canceled> {
        let clients = lock(&self.0);
        clients.get(&id).map(|client| client.cancel.subscribe())
    }

    /// Has a session's command canceled if the relay executes it. True if it may be the
    /// primary's to cancel.
    pub fn cancel(&self, process: u32, secret: &[u8]) -> bool {
        let clients = lock(&self.0);
        let mut all = clients.values();
        let theirs = |client: &&Client| client.stat.pid == process && client.secret.is(secret);
        all.find(theirs).is_none_or(|client| {
            // An error is that nobody listens.
            client.cancel.send(()).is_err() && client.at_primary
        })
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
