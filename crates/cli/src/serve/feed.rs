//! Each new state, once as JSON for all who ask.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::Bytes;
use lockstep_lag::monitor::{Monitor, State};
use serde::Serialize;
use tokio::sync::watch;

use super::verdict::{Verdict, verdict};

/// How soon the thread sees that nobody is interested any more.
const PATIENCE: Duration = Duration::from_secs(1);

/// The newest state.
#[derive(Debug)]
pub struct News {
    /// It.
    pub state: Arc<State>,
    /// The same as JSON, with the verdict.
    pub json: Bytes,
}

/// What `/api/state` answers and `/api/events` sends.
#[derive(Serialize)]
struct Told<'a> {
    /// Of this program.
    version: &'static str,
    /// In one sentence.
    verdict: Verdict,
    /// Everything else.
    #[serde(flatten)]
    state: &'a State,
}

impl News {
    /// Of a state.
    pub fn of(state: Arc<State>) -> Self {
        let told = Told {
            version: env!("CARGO_PKG_VERSION"),
            verdict: verdict(&state),
            state: &state,
        };
        // Maps have text as keys, and numbers are finite: this does not fail.
        let json = serde_json::to_vec(&told).unwrap_or_default().into();
        Self { state, json }
    }
}

/// News as they come, from a thread that ends when nobody listens.
pub fn start(monitor: &Arc<Monitor>) -> watch::Receiver<Arc<News>> {
    let monitor = Arc::clone(monitor);
    let first = monitor.state();
    let mut number = first.number;
    let (sender, receiver) = watch::channel(Arc::new(News::of(first)));
    thread::spawn(move || {
        while !sender.is_closed() {
            let state = monitor.state_after(number, PATIENCE);
            if state.number != number {
                number = state.number;
                sender.send_replace(Arc::new(News::of(state)));
            }
        }
    });
    receiver
}
