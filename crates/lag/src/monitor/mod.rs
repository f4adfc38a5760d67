//! All nodes until it is dropped: what `lockstep top` and `lockstep serve` show.
//!
//! Each node has a thread that takes samples and keeps those of the last seconds. Another
//! thread diagnoses them as the window of [`crate::watch`] is diagnosed, about once a second,
//! adds to the history, and publishes a [`MonitorState`]. A node that hangs delays none of this: its
//! samples grow old, and it is shown as unreachable once its connection is given up.
//!
//! If Patroni names the nodes, one more thread asks it every few seconds. Nodes that stay are watched on; one
//! that is new, or has another role, gets a thread of its own, and one that has left loses it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_service::clock::unix_ms;
use tracing::{info, warn};

use crate::diagnosis::diagnose;
use crate::diagnosis::twice::{self, Named, named};
use crate::node::Node;
use crate::nodes::Watched;
use crate::patroni::{Members, Membership, News};
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

/// Interval at which Patroni is asked who its members are.
const MEMBERS_EVERY: Duration = Duration::from_secs(5);

/// The threads that watch nodes. They end soon after this is dropped.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<MonitorParts>,
}

/// A node, and what its thread has seen.
#[derive(Debug)]
struct Asked {
    node: Node,
    window: Mutex<NodeWindow>,
    /// The node is no longer watched, so its thread ends.
    over: AtomicBool,
}

/// The servers of all clusters that one program watches, each with the name of its cluster.
type Roll = Mutex<Vec<(Option<String>, Vec<Named>)>>;

#[derive(Debug)]
struct MonitorParts {
    cluster: Option<String>,
    /// The place of the cluster in the roll.
    place: usize,
    roll: Arc<Roll>,
    settings: Settings,
    began: Instant,
    /// The nodes now, in the order in which they are shown.
    asked: Mutex<Vec<Arc<Asked>>>,
    /// What is to be told about the list of nodes.
    membership: Mutex<Option<Membership>>,
    /// Milliseconds from commit to visible, by standby; None if it took too long or failed.
    beats: Mutex<BTreeMap<String, Option<f64>>>,
    /// Set when other threads measure that.
    beating: Mutex<Arc<AtomicBool>>,
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
    /// Starts to watch clusters. The first state of each says that nothing is known yet.
    pub fn start_all(clusters: Vec<Watched>, settings: &Settings) -> Vec<Self> {
        let roll = clusters.iter().map(|it| (it.cluster.clone(), Vec::new()));
        let roll: Arc<Roll> = Arc::new(Mutex::new(roll.collect()));
        let places = clusters.into_iter().enumerate();
        let start = |(place, watched)| Self::join(watched, settings.clone(), place, &roll);
        places.map(start).collect()
    }

    /// Starts to watch a cluster alone.
    pub fn start(watched: Watched, settings: Settings) -> Self {
        let roll = Arc::new(Mutex::new(vec![(watched.cluster.clone(), Vec::new())]));
        Self::join(watched, settings, 0, &roll)
    }

    fn join(watched: Watched, settings: Settings, place: usize, roll: &Arc<Roll>) -> Self {
        let first = MonitorState::unknown(&watched, &settings);
        let shared = Arc::new(MonitorParts {
            cluster: watched.cluster,
            place,
            roll: Arc::clone(roll),
            asked: Mutex::default(),
            membership: Mutex::new(watched.membership),
            beats: Mutex::default(),
            beating: Mutex::default(),
            published: Mutex::new(Published {
                state: Arc::new(first),
                history: history::History::default(),
                stopping: false,
            }),
            changed: Condvar::new(),
            began: Instant::now(),
            settings,
        });
        shared.ask(&watched.nodes);
        if let Some(members) = watched.members {
            let shared = Arc::clone(&shared);
            thread::spawn(move || follow(&shared, members));
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
}

/// Asks Patroni again and again, and watches the nodes that it names.
fn follow(shared: &Arc<MonitorParts>, mut members: Members) {
    let name = shared.cluster.as_deref();
    tell(name, members.news());
    while shared.pause(MEMBERS_EVERY) {
        members.look(unix_ms());
        tell(name, members.news());
        let roster = members.roster();
        *lock(&shared.membership) = Some(roster.membership(unix_ms()));
        shared.ask(roster.nodes());
    }
}

/// Logs what is new of a cluster's list of nodes.
fn tell(cluster: Option<&str>, news: Vec<News>) {
    for one in news {
        match one {
            News::Nodes(nodes) => info!(cluster, "the nodes that are watched: {nodes}"),
            News::Silent(why) => warn!(cluster, "Patroni cannot be asked: {why}"),
            News::Answers => info!(cluster, "Patroni answers again"),
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        lock(&self.shared.published).stopping = true;
        self.shared.changed.notify_all();
    }
}

impl MonitorParts {
    /// From now on asks these nodes, each in a thread of its own; goes on with those that it asks already.
    fn ask(self: &Arc<Self>, nodes: &[Node]) {
        let mut asked = lock(&self.asked);
        if asked.iter().map(|one| &one.node).eq(nodes) {
            return;
        }
        let kept = |node: &Node| asked.iter().find(|one| one.node == *node).cloned();
        let mut begun = Vec::new();
        let now = nodes.iter().map(|node| {
            kept(node).unwrap_or_else(|| {
                let new = Arc::new(Asked {
                    node: node.clone(),
                    window: Mutex::new(NodeWindow::of(node)),
                    over: AtomicBool::new(false),
                });
                begun.push(Arc::clone(&new));
                new
            })
        });
        let now: Vec<_> = now.collect();
        for one in asked.iter().filter(|one| !nodes.contains(&one.node)) {
            one.over.store(true, Ordering::Relaxed);
        }
        *asked = now;
        drop(asked);
        for one in begun {
            let shared = Arc::clone(self);
            thread::spawn(move || node_thread::run(&shared, &one));
        }
        if self.settings.heartbeat {
            let over = Arc::new(AtomicBool::new(false));
            let before = std::mem::replace(&mut *lock(&self.beating), Arc::clone(&over));
            before.store(true, Ordering::Relaxed);
            lock(&self.beats).clear();
            heartbeats::start(self, nodes, &over);
        }
    }

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

    /// Compares a diagnosis of this cluster with what the others that are watched have said last.
    fn compare_with_others(&self, diagnosis: &mut crate::Diagnosis) {
        let mut roll = lock(&self.roll);
        if let Some((_, own)) = roll.get_mut(self.place) {
            *own = named(diagnosis);
        }
        let all = roll.iter();
        let all: Vec<_> = all
            .map(|(cluster, nodes)| (cluster.as_deref(), nodes.as_slice()))
            .collect();
        twice::compare(&all, self.place, diagnosis);
    }

    fn publish(&self) {
        let asked = lock(&self.asked).clone();
        let nodes: Vec<Node> = asked.iter().map(|one| one.node.clone()).collect();
        let mut windows: Vec<NodeWindow> =
            asked.iter().map(|one| lock(&one.window).clone()).collect();
        compare(&mut windows);
        let mut window = Window::new(windows);
        window.membership.clone_from(&lock(&self.membership));
        let at_ms = unix_ms();
        window.remembered = Some(lock(&self.published).history.remembered(at_ms));
        let now = self.began.elapsed();
        let mut diagnosis = diagnose(&window);
        self.compare_with_others(&mut diagnosis);
        let mut shown = state::nodes(&nodes, &window, &diagnosis);
        state::note_ages(&mut shown, &window, now);
        let beats = lock(&self.beats).clone();
        let mut published = lock(&self.published);
        let state = MonitorState {
            cluster: self.cluster.clone(),
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
