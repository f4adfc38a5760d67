//! The pool of a cluster as its agents tell it, asked again and again.

use std::thread;
use std::time::Duration;

use axum::body::Bytes;
use lockstep_pool::ask::{Asking, as_json};
use lockstep_pool::member::Member;
use lockstep_service::clock::unix_ms;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Time between two questions to all agents.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// The members that there are now, or why nobody knows.
pub type Members = Box<dyn Fn() -> Result<Vec<Member>, String> + Send>;

/// A pool that is to be asked.
pub struct PoolSource {
    pub members: Members,
    pub asking: Asking,
}

impl PoolSource {
    fn told(&self) -> Value {
        let (nodes, trouble) = match (self.members)() {
            Ok(members) => (as_json(&self.asking.ask_all(&members)), None),
            Err(trouble) => (json!([]), Some(trouble)),
        };
        json!({ "schema": 1, "asked": true, "at_ms": unix_ms(), "nodes": nodes, "trouble": trouble })
    }
}

/// What is told where no agent is asked.
pub fn not_asked() -> Bytes {
    let none = json!({ "schema": 1, "asked": false, "at_ms": null, "nodes": [], "trouble": null });
    none.to_string().into()
}

/// Starts a thread that asks, and ends when nobody listens any more.
pub fn start(source: PoolSource) -> watch::Receiver<Bytes> {
    let first = json!({ "schema": 1, "asked": true, "at_ms": null, "nodes": [], "trouble": null });
    let (sender, receiver) = watch::channel(first.to_string().into());
    thread::spawn(move || {
        while !sender.is_closed() {
            sender.send_replace(source.told().to_string().into());
            thread::sleep(ASK_EVERY);
        }
    });
    receiver
}
