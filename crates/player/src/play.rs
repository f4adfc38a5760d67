//! What the threads of a player share: the recording, how far it is published, the sessions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use lockstep_lab::pinning::{Pinning, Side};

use super::listener::Stream;
use super::publisher::{Publisher, locked};
use super::recording::Recording;
use super::session_state::Session;
use super::slots::Slots;
use super::status::SessionStatus;

/// Most open connections.
pub(crate) const MOST_SESSIONS: usize = 64;

/// Most ended sessions that the status still shows.
const MOST_OVER: usize = 256;

const MOST_NOTICES: usize = 100;

/// One play: what the threads of a player share.
#[derive(Debug)]
pub(crate) struct Play {
    pub recording: Recording,
    pub publisher: Publisher,
    pub slots: Mutex<Slots>,
    pub standbys: usize,
    pub pin: Option<(Pinning, Side)>,
    pub sessions: Mutex<Sessions>,
    pub notices: Mutex<VecDeque<String>>,
    pub next_session: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub open: BTreeMap<u64, Open>,
    pub over: VecDeque<SessionStatus>,
}

#[derive(Debug)]
pub(crate) struct Open {
    pub session: Arc<Session>,
    /// A copy of the connection, to close it.
    pub stream: Stream,
    pub thread: Option<JoinHandle<()>>,
}

impl Play {
    pub fn pin(&self) {
        if let Some((pinning, side)) = &self.pin {
            pinning.pin_current_thread(*side);
        }
    }

    /// A session has ended.
    pub fn over(&self, session: &Session) {
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
