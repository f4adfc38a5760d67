//! The player: the primary's part in physical streaming, with WAL from a recording.
//!
//! Each address has a thread, and the published position has one. Each session has a thread
//! that answers and sends, and while it streams another that reads from the standby. The play
//! begins when enough standbys stream. From then on the published position follows the pace
//! even if the standbys do not keep up, as a primary's would.

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
use super::play::{MOST_SESSIONS, Open, Play};
use super::publisher::{Publisher, locked};
use super::session;
use super::session_state::Session;
use super::{Address, Pace, PlayerStatus, Recording, SessionStatus};
use crate::Result;

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
    play: Arc<Play>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<Address>,
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
        let play = Arc::new(Play {
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
            let play = Arc::clone(&play);
            move || {
                play.pin();
                // This thread needs about 20 microseconds of each millisecond, on time.
                run_promptly(gettid());
                play.publisher.run(&play.recording);
            }
        })];
        for listener in listeners {
            let play = Arc::clone(&play);
            threads.push(thread::spawn(move || accept(&listener, &play)));
        }
        Ok(Self {
            play,
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
        self.play.publisher.release();
        self.play.begin_if_enough();
    }

    pub fn status(&self) -> PlayerStatus {
        let play = &self.play;
        // Read before the sessions, so that none is shown beyond what was published.
        let begun = play.publisher.begun();
        let sessions = locked(&play.sessions);
        let open = sessions.open.values();
        let mut all: Vec<SessionStatus> = sessions.over.iter().cloned().collect();
        all.extend(open.filter_map(|open| open.session.status()));
        all.sort_by_key(|session| session.number);
        PlayerStatus {
            published: play.publisher.published(),
            origin: begun.map(|(origin, _)| origin),
            began: begun.map(|(_, at)| at),
            end: play.recording.end(),
            sessions: all,
            notices: locked(&play.notices).iter().cloned().collect(),
        }
    }

    /// The published position at least every 2 ms, from the start of the play until now. Each
    /// sample's clock was read before its position was published. Only the newest samples are
    /// kept, for more than half an hour.
    pub fn published_line(&self) -> Vec<Sample> {
        self.play.publisher.line()
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
        self.play.publisher.close();
        for address in &self.addresses {
            // A connection wakes the thread that waits in accept.
            let _ = Stream::connect(address);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // From here on no session is added.
        let open: Vec<_> = locked(&self.play.sessions)
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

fn accept(listener: &Listener, play: &Arc<Play>) {
    play.pin();
    while !play.publisher.is_closing() {
        match listener.accept() {
            Ok(stream) if !play.publisher.is_closing() => serve(play, stream),
            Ok(_) => {}
            Err(_) => thread::sleep(ACCEPT_AGAIN),
        }
    }
}

/// Serves a connection on a thread of its own.
fn serve(play: &Arc<Play>, stream: Stream) {
    let Ok(copy) = stream.again() else {
        return;
    };
    let number = play.next_session.fetch_add(1, Ordering::Relaxed);
    let session = Arc::new(Session::new(number));
    // Hold the lock until the session is in the list: a session that ends at once must
    // find itself there to remove itplay.
    let mut sessions = locked(&play.sessions);
    let full = sessions.open.len() >= MOST_SESSIONS;
    let thread = thread::spawn({
        let (play, session) = (Arc::clone(play), Arc::clone(&session));
        move || {
            play.pin();
            session::serve(&play, &session, stream, full);
            play.over(&session);
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
