//! The player: the primary's part in physical streaming, with WAL from a recording.
//!
//! Each address has a thread, and the published position has one. Each session has a thread
//! that answers and sends, and while it streams another that reads from the standby. The play
//! begins when enough standbys stream. From then on the published position follows the pace
//! even if the standbys do not keep up, as a primary's would.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_lab::pinning::{Pinning, Side, run_promptly};
use lockstep_lab::progress::Sample;
use lockstep_wire::Lsn;
use nix::unistd::gettid;

use super::listener::{Listener, Stream};
use super::pace::Schedule;
use super::publisher::{Publisher, locked};
use super::session::{self, Session};
use super::slots::Slots;
use super::{Address, Pace, PlayerError, PlayerStatus, Recording, SessionStatus};
use crate::Result;

/// Most open connections.
pub(crate) const MOST_SESSIONS: usize = 64;

/// Most ended sessions that the status still shows.
const MOST_OVER: usize = 256;

const MOST_NOTICES: usize = 100;

/// Interval at which [`Player::await_done`] checks.
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug, Clone)]
pub struct PlayerOptions {
    /// One address or more.
    pub listen: Vec<Address>,
    pub pace: Pace,
    /// How many standbys must stream before the play begins.
    pub standbys: usize,
    /// WAL up to here is published from the start, whatever the pace. With a lead-in the play
    /// also waits for [`Player::release`].
    pub lead_in: Option<Lsn>,
    /// The cores of the player's threads; None leaves the threads unpinned.
    pub pin: Option<(Pinning, Side)>,
}

/// A running player. Dropping the value ends it.
#[derive(Debug)]
pub struct Player {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<Address>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub recording: Recording,
    pub publisher: Publisher,
    pub slots: Mutex<Slots>,
    standbys: usize,
    pin: Option<(Pinning, Side)>,
    sessions: Mutex<Sessions>,
    notices: Mutex<VecDeque<String>>,
    next_session: AtomicU64,
}

#[derive(Debug, Default)]
struct Sessions {
    open: BTreeMap<u64, Open>,
    over: VecDeque<SessionStatus>,
}

#[derive(Debug)]
struct Open {
    session: Arc<Session>,
    /// A copy of the connection, to close it.
    stream: Stream,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    /// Binds the addresses and starts the player's threads.
    pub fn start(recording: &Recording, options: PlayerOptions) -> Result<Self> {
        Schedule::check(recording, options.pace)?;
        let listeners = options
            .listen
            .iter()
            .map(Listener::bind)
            .collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            recording: recording.clone(),
            publisher: Publisher::new(recording, options.pace, options.lead_in),
            slots: Mutex::default(),
            standbys: options.standbys.max(1),
            pin: options.pin,
            sessions: Mutex::default(),
            notices: Mutex::default(),
            next_session: AtomicU64::new(1),
        });
        let addresses = listeners
            .iter()
            .map(|listener| listener.address().clone())
            .collect();
        let mut threads = vec![thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.pin();
                // This thread needs about 20 microseconds of each millisecond, on time.
                run_promptly(gettid());
                shared.publisher.run(&shared.recording);
            }
        })];
        for listener in listeners {
            let shared = Arc::clone(&shared);
            threads.push(thread::spawn(move || accept(&listener, &shared)));
        }
        Ok(Self {
            shared,
            threads,
            addresses,
        })
    }

    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The conninfo of the first address, for a standby's `primary_conninfo`.
    pub fn conninfo(&self) -> String {
        self.addresses
            .first()
            .map(Address::conninfo)
            .unwrap_or_default()
    }

    /// Lets a play with a lead-in begin.
    pub fn release(&self) {
        self.shared.publisher.release();
        self.shared.begin_if_enough();
    }

    pub fn status(&self) -> PlayerStatus {
        let shared = &self.shared;
        // Read before the sessions, so that none is shown beyond what was published.
        let begun = shared.publisher.begun();
        let sessions = locked(&shared.sessions);
        let open = sessions.open.values();
        let mut all: Vec<SessionStatus> = sessions.over.iter().cloned().collect();
        all.extend(open.filter_map(|open| open.session.status()));
        all.sort_by_key(|session| session.number);
        PlayerStatus {
            published: shared.publisher.published(),
            origin: begun.map(|(origin, _)| origin),
            began: begun.map(|(_, at)| at),
            end: shared.recording.end(),
            sessions: all,
            notices: locked(&shared.notices).iter().cloned().collect(),
        }
    }

    /// The published position at least every 2 ms, from the start of the play until now. Each
    /// sample's clock was read before its position was published. Only the newest samples are
    /// kept, for more than half an hour.
    pub fn published_line(&self) -> Vec<Sample> {
        self.shared.publisher.line()
    }

    /// Waits until the play is over ([`PlayerStatus::is_done`]); false if it takes longer.
    pub fn await_done(&self, patience: Duration) -> bool {
        let started = Instant::now();
        while !self.status().is_done() {
            if started.elapsed() > patience {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }

    /// Ends all sessions. Returns the status before that.
    pub fn finish(mut self) -> PlayerStatus {
        let status = self.status();
        self.close();
        status
    }

    fn close(&mut self) {
        self.shared.publisher.close();
        for address in &self.addresses {
            // A connection wakes the thread that waits in accept.
            let _ = Stream::connect(address);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // From here on no session is added.
        let open: Vec<_> = locked(&self.shared.sessions)
            .open
            .values_mut()
            .map(|open| {
                open.stream.close();
                open.thread.take()
            })
            .collect();
        for thread in open.into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.close();
    }
}

/// How long to wait after an accept that failed, most likely for lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

fn accept(listener: &Listener, shared: &Arc<Shared>) {
    shared.pin();
    while !shared.publisher.is_closing() {
        match listener.accept() {
            Ok(stream) if !shared.publisher.is_closing() => shared.serve(stream),
            Ok(_) => {}
            Err(_) => thread::sleep(ACCEPT_AGAIN),
        }
    }
}

impl Shared {
    pub fn pin(&self) {
        if let Some((pinning, side)) = &self.pin {
            pinning.pin_current_thread(*side);
        }
    }

    /// Serves a connection on a thread of its own.
    fn serve(self: &Arc<Self>, stream: Stream) {
        let Ok(copy) = stream.again() else {
            return;
        };
        let number = self.next_session.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session::new(number));
        // Hold the lock until the session is in the list: a session that ends at once must
        // find itself there to remove itself.
        let mut sessions = locked(&self.sessions);
        let full = sessions.open.len() >= MOST_SESSIONS;
        let thread = thread::spawn({
            let (shared, session) = (Arc::clone(self), Arc::clone(&session));
            move || {
                shared.pin();
                session::serve(&shared, &session, stream, full);
                shared.over(&session);
            }
        });
        sessions.open.insert(
            number,
            Open {
                session,
                stream: copy,
                thread: Some(thread),
            },
        );
    }

    fn over(&self, session: &Session) {
        locked(&self.slots).forget(session.number);
        let mut sessions = locked(&self.sessions);
        sessions.open.remove(&session.number);
        if let Some(status) = session.status() {
            if sessions.over.len() >= MOST_OVER {
                sessions.over.pop_front();
            }
            sessions.over.push_back(status);
        }
    }

    /// Begins the play if enough standbys stream. Called when a session begins to stream.
    pub fn begin_if_enough(&self) {
        let starts: Vec<_> = locked(&self.sessions)
            .open
            .values()
            .filter_map(|open| open.session.streaming_from())
            .collect();
        if let Some(&first) = starts.iter().min() {
            if starts.len() >= self.standbys {
                self.publisher.begin(&self.recording, first);
            }
        }
    }

    /// Adds a notice for people, unless it repeats the newest one.
    pub fn notice(&self, text: String) {
        let mut notices = locked(&self.notices);
        if notices.back() == Some(&text) {
            // A refused standby tries again every few seconds.
            return;
        }
        if notices.len() >= MOST_NOTICES {
            notices.pop_front();
        }
        notices.push_back(text);
    }
}

/// The error of a receiver's connection to the player.
pub(crate) fn connection_failed(error: &std::io::Error) -> PlayerError {
    PlayerError::Connection(error.to_string())
}
