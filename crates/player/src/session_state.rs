//! What a session's thread, the one that reads from its standby and the player know of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_lab::progress::Micros;
use lockstep_wire::Lsn;
use lockstep_wire::stream::Status;

use super::publisher::locked;
use super::status::{SessionState, SessionStatus};

/// How long a client may take no data, or a standby send none, before the connection is
/// closed, like a server's `wal_sender_timeout`.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The state of a session that other threads read.
#[derive(Debug)]
pub(crate) struct Session {
    pub number: u64,
    pub about: Mutex<About>,
    pub sent: AtomicU64,
    pub bytes: AtomicU64,
    /// The standby has asked for a reply.
    pub reply_wanted: AtomicBool,
    /// The standby has ended its side of the stream, or its connection is gone.
    pub ending: AtomicBool,
    /// The client has sent Terminate.
    pub terminated: AtomicBool,
    /// When the standby's last message arrived, in microseconds since 1970.
    pub heard: AtomicI64,
}

/// What a session has said of itself, and what it was answered.
#[derive(Debug)]
pub(crate) struct About {
    pub application_name: String,
    pub state: SessionState,
    /// Where the newest stream began; None before the first.
    pub start: Option<Lsn>,
    pub began: Micros,
    pub said: Status,
    pub reached_end: Option<Micros>,
    /// Times that the client has run `IDENTIFY_SYSTEM`.
    pub asked: u32,
    /// A `START_REPLICATION` was refused.
    pub refused: bool,
}

impl Session {
    pub fn new(number: u64) -> Self {
        Self {
            number,
            about: Mutex::new(About {
                application_name: String::new(),
                state: SessionState::Asking,
                start: None,
                began: Micros::now(),
                said: Status::default(),
                reached_end: None,
                asked: 0,
                refused: false,
            }),
            sent: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            reply_wanted: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            terminated: AtomicBool::new(false),
            heard: AtomicI64::new(0),
        }
    }

    /// None if the session has never streamed.
    pub fn status(&self) -> Option<SessionStatus> {
        let about = locked(&self.about);
        Some(SessionStatus {
            number: self.number,
            application_name: about.application_name.clone(),
            state: about.state,
            start: about.start?,
            sent: Lsn::from(self.sent.load(Ordering::Relaxed)),
            written: about.said.written,
            flushed: about.said.flushed,
            applied: about.said.applied,
            bytes: self.bytes.load(Ordering::Relaxed),
            began: about.began,
            reached_end: about.reached_end,
        })
    }

    /// Where the stream began, if the session streams now.
    pub fn streaming_from(&self) -> Option<Lsn> {
        let about = locked(&self.about);
        about
            .start
            .filter(|_| about.state == SessionState::Streaming)
    }

    /// Takes note of the positions that the standby reports.
    pub fn note(&self, said: Status, end: Lsn) {
        let mut about = locked(&self.about);
        about.said = said;
        if about.reached_end.is_none() {
            let position = match said.applied.is_valid() {
                true => said.applied,
                false => said.written,
            };
            about.reached_end = (position >= end).then(Micros::now);
        }
    }

    /// True once the standby has reported that it has the recording's end.
    pub fn has_end(&self) -> bool {
        locked(&self.about).reached_end.is_some()
    }

    /// The time since the standby's last message.
    pub fn silent_for(&self) -> Duration {
        let micros = Micros::now().0 - self.heard.load(Ordering::Relaxed);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    pub fn begin_stream(&self, start: Lsn) {
        self.sent.store(start.into(), Ordering::Relaxed);
        self.ending.store(false, Ordering::SeqCst);
        self.heard.store(Micros::now().0, Ordering::Relaxed);
        let mut about = locked(&self.about);
        about.state = SessionState::Streaming;
        about.start = Some(start);
        about.began = Micros::now();
    }

    pub fn set_state(&self, state: SessionState) {
        locked(&self.about).state = state;
    }

    pub fn name(&self) -> String {
        match locked(&self.about).application_name.as_str() {
            "" => format!("session {}", self.number),
            name => format!("\"{name}\""),
        }
    }

    /// True if the client ran `IDENTIFY_SYSTEM` and then neither streamed nor was refused: most
    /// likely it belongs to another system or timeline.
    pub fn went_away(&self) -> bool {
        let about = locked(&self.about);
        about.asked > 0 && about.start.is_none() && !about.refused
    }
}
