//! Turns each new state into JSON once, for all who ask.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::Bytes;
use lockstep_lag::monitor::{Monitor, MonitorState};
use serde::Serialize;
use tokio::sync::watch;

use crate::forecast::{Forecast, Forecaster};
use crate::history::incidents::{Incidents, Now};
use crate::history::{HistoryStatus, Keeper};
use crate::verdict::{Verdict, verdict};

/// How soon the thread notices that nobody listens any more.
const PATIENCE: Duration = Duration::from_secs(1);

/// The newest state, and its JSON.
#[derive(Debug)]
pub struct News {
    pub state: Arc<MonitorState>,
    pub forecast: Forecast,
    pub verdict: Verdict,
    /// The state as JSON, with the verdict and what is the matter now.
    pub json: Bytes,
    /// All incidents as JSON, the newest first.
    pub incidents: Bytes,
}

/// What `/api/state` returns and `/api/events` sends.
#[derive(Serialize)]
struct Told<'a> {
    /// Version of this program.
    version: &'static str,
    verdict: &'a Verdict,
    incidents: Now<'a>,
    forecast: &'a Forecast,
    /// Null without `--history`.
    history: Option<HistoryStatus>,
    #[serde(flatten)]
    state: &'a MonitorState,
}

impl News {
    pub fn of(
        state: Arc<MonitorState>,
        incidents: &Incidents,
        history: Option<HistoryStatus>,
        forecast: Forecast,
    ) -> Self {
        let verdict = verdict(&state, &forecast);
        let told = Told {
            version: env!("CARGO_PKG_VERSION"),
            verdict: &verdict,
            incidents: incidents.now(),
            forecast: &forecast,
            history,
            state: &state,
        };
        let all = serde_json::json!({
            "at_ms": state.at_ms,
            "incidents": incidents.newest_first(),
        });
        // This does not fail: keys of maps are text, and numbers are finite.
        let json = serde_json::to_vec(&told).unwrap_or_default().into();
        Self {
            state,
            forecast,
            verdict,
            json,
            incidents: all.to_string().into(),
        }
    }
}

/// Starts a thread that publishes each state, and ends when nobody listens any more.
pub fn start(
    monitor: &Arc<Monitor>,
    keeper: Option<Arc<Keeper>>,
    mut forecaster: Forecaster,
) -> watch::Receiver<Arc<News>> {
    let monitor = Arc::clone(monitor);
    let first = monitor.state();
    let mut number = first.number;
    let mut incidents = Incidents::default();
    let forecast = forecaster.take(&first);
    let news = News::of(first, &incidents, None, forecast);
    let (sender, receiver) = watch::channel(Arc::new(news));
    thread::spawn(move || {
        while !sender.is_closed() {
            let state = monitor.state_after(number, PATIENCE);
            if state.number != number {
                number = state.number;
                match &keeper {
                    Some(keeper) => keeper.take(&state, &mut incidents),
                    None => drop(incidents.take(&state)),
                }
                let history = keeper.as_ref().map(|keeper| keeper.status());
                let forecast = forecaster.take(&state);
                sender.send_replace(Arc::new(News::of(state, &incidents, history, forecast)));
            }
        }
    });
    receiver
}
