//! Turns each new state into JSON once, for all who ask.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::Bytes;
use lockstep_lag::monitor::{Monitor, State};
use serde::Serialize;
use tokio::sync::watch;

use super::verdict::{Verdict, verdict};

/// How soon the thread notices that nobody listens any more.
const PATIENCE: Duration = Duration::from_secs(1);

/// The newest state, and its JSON.
#[derive(Debug)]
pub struct News {
    pub state: Arc<State>,
    /// The state as JSON, with the verdict.
    pub json: Bytes,
}

/// What `/api/state` returns and `/api/events` sends.
#[derive(Serialize)]
struct Told<'a> {
    /// Version of this program.
    version: &'static str,
    verdict: Verdict,
    #[serde(flatten)]
    state: &'a State,
}

impl News {
    pub fn of(state: Arc<State>) -> Self {
        let told = Told {
            version: env!("CARGO_PKG_VERSION"),
            verdict: verdict(&state),
            state: &state,
        };
        // This does not fail: keys of maps are text, and numbers are finite.
        let json = serde_json::to_vec(&told).unwrap_or_default().into();
        Self { state, json }
    }
}

/// Starts a thread that publishes each state, and ends when nobody listens any more.
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
