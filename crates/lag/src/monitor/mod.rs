//! All nodes until it is dropped: what `lockstep top` and `lockstep serve` show.
//!
//! Each node has a thread that takes samples and keeps those of the last seconds. Another
//! thread diagnoses them as the window of [`crate::watch`] is diagnosed, about once a second,
//! adds to the history, and publishes a [`MonitorState`]. A node that hangs delays none of this: its
//! samples grow old, and it is shown as unreachable once its connection is given up.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_service::clock::unix_ms;

use crate::diagnosis::diagnose;
use crate::node::{Node, Role};
use crate::watch::compare;
use crate::window::{NodeWindow, Window};

mod heartbeats;
mod history;
mod node_thread;
mod state;

pub use history::{LinkHistory, Moment};
pub use state::{LinkState, MonitorState, NodeState, StageState, Suspect};

#[derive(Debug, Clone)]
pub struct Settings {
    pub application_name: String,
    pub every: Duration,
    /// How far a diagnosis looks back.
    pub window: Duration,
    /// Commit a small logical message on the primary each time, and measure when it becomes
    /// visible on each standby. Nothing else here writes.
    pub heartbeat: bool,
}

/// Shortest window that can be diagnosed.
pub const LEAST_WINDOW: Duration = Duration::from_secs(5);

/// The threads that watch nodes. They end soon after this is dropped.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<MonitorParts>,
}

#[derive(Debug)]
struct MonitorParts {
    settings: Settings,
    nodes: Vec<Node>,
    began: Instant,
    /// A window for each of `nodes`, in their order.
    windows: Vec<Mutex<NodeWindow>>,
    /// Milliseconds from commit to visible, by standby; None if it took too long or failed.
    beats: Mutex<BTreeMap<String, Option<f64>>>,
    published: Mutex<Published>,
    changed: Condvar,
}

#[derive(Debug)]
struct Published {
    state: Arc<MonitorState>,
    history: history::History,
    stopping: bool,
}

impl Monitor {
    /// Starts to watch. The first state says that nothing is known yet.
    pub fn start(nodes: Vec<Node>, settings: Settings) -> Self {
        let windows = nodes
            .iter()
            .map(|node| Mutex::new(NodeWindow::of(node)))
            .collect();
        let shared = Arc::new(MonitorParts {
            windows,
            beats: Mutex::default(),
            published: Mutex::new(Published {
                state: Arc::new(MonitorState::unknown(&nodes, &settings)),
                history: history::History::default(),
                stopping: false,
            }),
            changed: Condvar::new(),
            began: Instant::now(),
            nodes,
            settings,
        });
        for index in 0..shared.nodes.len() {
            let shared = Arc::clone(&shared);
            thread::spawn(move || node_thread::run(&shared, index));
        }
        if shared.settings.heartbeat {
            heartbeats::start(&shared);
        }
        let diagnoser = Arc::clone(&shared);
        thread::spawn(move || {
            while diagnoser.pause(diagnoser.settings.every) {
                diagnoser.publish();
            }
        });
        Self { shared }
    }

    /// The newest state.
    pub fn state(&self) -> Arc<MonitorState> {
        Arc::clone(&lock(&self.shared.published).state)
    }

    /// The first state whose number is higher than `number`, or the newest one when `patience`
    /// is over.
    pub fn state_after(&self, number: u64, patience: Duration) -> Arc<MonitorState> {
        let published = lock(&self.shared.published);
        let waited = self
            .shared
            .changed
            .wait_timeout_while(published, patience, |published| {
                published.state.number <= number
            });
        let (published, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&published.state)
    }

    /// Each link over time: moments later than `since_ms`, which is in milliseconds since 1970.
    pub fn history(&self, since_ms: i64) -> Vec<LinkHistory> {
        lock(&self.shared.published).history.since(since_ms)
    }

    pub fn nodes(&self) -> &[Node] {
        &self.shared.nodes
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        lock(&self.shared.published).stopping = true;
        self.shared.changed.notify_all();
    }
}

impl MonitorParts {
    /// Waits; false if the monitor is being dropped.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut published = lock(&self.published);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if published.stopping || left.is_zero() {
                return !published.stopping;
            }
            let waited = self.changed.wait_timeout(published, left);
            (published, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn publish(&self) {
        let mut nodes: Vec<NodeWindow> = self
            .windows
            .iter()
            .map(|window| lock(window).clone())
            .collect();
        compare(&mut nodes);
        let mut window = Window::new(nodes);
        let at_ms = unix_ms();
        window.remembered = Some(lock(&self.published).history.remembered(at_ms));
        let now = self.began.elapsed();
        let diagnosis = diagnose(&window);
        let mut shown = state::nodes(&self.nodes, &window, &diagnosis);
        state::note_ages(&mut shown, &window, now);
        let beats = lock(&self.beats).clone();
        let mut published = lock(&self.published);
        let state = MonitorState {
            number: published.state.number + 1,
            at_ms,
            window_s: self.settings.window.as_secs_f64(),
            every_s: self.settings.every.as_secs_f64(),
            heartbeat: self.settings.heartbeat,
            nodes: shown,
            links: state::links(&window, &diagnosis, &beats),
            diagnosis,
        };
        published.history.add(at_ms, &state.links);
        published.state = Arc::new(state);
        drop(published);
        self.changed.notify_all();
    }

    fn of_role(&self, role: Role) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.role == role)
    }
}

/// The nodes and links that a state of this window would have.
#[cfg(test)]
pub(crate) fn shown(
    window: &Window,
    diagnosis: &crate::Diagnosis,
) -> (Vec<NodeState>, Vec<LinkState>) {
    let node = |seen: &NodeWindow| Node {
        name: seen.name.clone(),
        role: seen.role,
        conninfo: lockstep_client::Conninfo::parse("").unwrap_or_else(|e| panic!("{e}")),
    };
    let nodes: Vec<Node> = window.nodes.iter().map(node).collect();
    (
        state::nodes(&nodes, window, diagnosis),
        state::links(window, diagnosis, &BTreeMap::new()),
    )
}

/// Locks even after a thread has panicked: what it left is the best there is.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
