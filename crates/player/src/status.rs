//! What the player reports about itself and its standbys.

use std::collections::BTreeMap;

use lockstep_lab::progress::Micros;
use lockstep_wire::Lsn;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// The client is connected and does not stream: it has not begun yet, or its stream has
    /// ended. Entered at the start and when a stream ends; left when a stream begins or the
    /// session ends.
    Asking,
    /// WAL is sent to the standby. Left when either side ends the stream.
    Streaming,
    /// The client has sent Terminate. The session is over.
    Left,
    /// The connection broke. The session is over; a killed standby returns in another session.
    Lost,
}

impl SessionState {
    /// The state as one word, for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Streaming => "streaming",
            Self::Left => "left",
            Self::Lost => "lost",
        }
    }
}

/// A session that streams, or has streamed.
#[derive(Debug, Clone)]
pub struct SessionStatus {
    /// Sessions are numbered from 1 on.
    pub number: u64,
    /// The standby's `application_name`.
    pub application_name: String,
    pub state: SessionState,
    /// Where the newest stream began.
    pub start: Lsn,
    /// End of the WAL that was handed to the network.
    pub sent: Lsn,
    /// End of the WAL that the standby has written to its operating system.
    pub written: Lsn,
    /// End of the WAL that is durable on the standby's disk.
    pub flushed: Lsn,
    /// End of the WAL that the standby has replayed; `0/0` if it does not replay.
    pub applied: Lsn,
    /// Bytes of WAL sent, including those sent again.
    pub bytes: u64,
    /// When the newest stream began.
    pub began: Micros,
    /// When the standby first reported that it has the recording's end.
    pub reached_end: Option<Micros>,
}

impl SessionStatus {
    /// True if the standby has replayed all WAL before `lsn`. Of a receiver that does not replay,
    /// such as pg_receivewal, the written WAL counts.
    pub fn has(&self, lsn: Lsn) -> bool {
        match u64::from(self.applied) {
            0 => self.written >= lsn,
            _ => self.applied >= lsn,
        }
    }
}

/// The state of a play.
#[derive(Debug, Clone)]
pub struct PlayerStatus {
    /// WAL up to here may be sent.
    pub published: Lsn,
    /// Where the play began; None while it waits for standbys.
    pub origin: Option<Lsn>,
    pub began: Option<Micros>,
    pub end: Lsn,
    /// Sessions that stream or have streamed, oldest first; only the newest are kept.
    pub sessions: Vec<SessionStatus>,
    /// Messages for people, oldest first; only the newest are kept.
    pub notices: Vec<String>,
}

impl PlayerStatus {
    /// True if at least one standby has the recording's end and no other standby is still
    /// expected to reach it: not one that streams, and not one whose connection was lost, since it
    /// may return. One that has left is not waited for.
    pub fn is_done(&self) -> bool {
        let mut newest: BTreeMap<&str, Vec<&SessionStatus>> = BTreeMap::new();
        for session in &self.sessions {
            let same = newest.entry(&session.application_name).or_default();
            // Two standbys may have the same name, so a session that still streams is kept.
            same.retain(|before| matches!(before.state, SessionState::Streaming));
            same.push(session);
        }
        let all = || newest.values().flatten();
        let wants = |session: &&&SessionStatus| {
            !session.has(self.end)
                && matches!(session.state, SessionState::Streaming | SessionState::Lost)
        };
        all().any(|session| session.has(self.end)) && !all().any(|session| wants(&session))
    }

    /// Seconds until a session had the recording's end, from the start of the play or of the
    /// session's stream, whichever was later.
    pub fn seconds(&self, session: &SessionStatus) -> Option<f64> {
        let from = session.began.max(self.began?);
        Some(session.reached_end?.seconds_since(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64, name: &str, state: SessionState, applied: u64) -> SessionStatus {
        SessionStatus {
            number,
            application_name: name.to_owned(),
            state,
            start: Lsn::from(0),
            sent: Lsn::from(100),
            written: Lsn::from(applied),
            flushed: Lsn::from(applied),
            applied: Lsn::from(applied),
            bytes: 0,
            began: Micros(0),
            reached_end: None,
        }
    }

    fn done(sessions: Vec<SessionStatus>) -> bool {
        PlayerStatus {
            published: Lsn::from(100),
            origin: None,
            began: None,
            end: Lsn::from(100),
            sessions,
            notices: vec![],
        }
        .is_done()
    }

    #[test]
    fn a_play_is_over_when_all_who_want_the_end_have_it() {
        use SessionState::{Left, Lost, Streaming};
        assert!(!done(vec![]));
        assert!(!done(vec![session(1, "a", Streaming, 99)]));
        assert!(done(vec![session(1, "a", Streaming, 100)]));
        assert!(done(vec![session(1, "a", Lost, 100)]));
        let half = |state| vec![session(1, "a", Streaming, 100), session(2, "b", state, 50)];
        assert!(!done(half(Streaming)));
        assert!(!done(half(Lost)));
        assert!(done(half(Left)));
        // Killed, and back.
        assert!(done(vec![
            session(1, "a", Lost, 50),
            session(2, "a", Streaming, 100)
        ]));
        assert!(!done(vec![
            session(1, "a", Lost, 50),
            session(2, "a", Streaming, 60)
        ]));
        // Two with one name.
        assert!(!done(vec![
            session(1, "a", Streaming, 50),
            session(2, "a", Streaming, 100)
        ]));
        assert!(!done(vec![session(1, "a", Left, 50)]));
    }

    #[test]
    fn a_receiver_that_does_not_replay_is_judged_by_what_it_wrote() {
        let mut receiver = session(1, "a", SessionState::Streaming, 0);
        receiver.written = Lsn::from(100);
        assert!(receiver.has(Lsn::from(100)));
        receiver.applied = Lsn::from(1);
        assert!(!receiver.has(Lsn::from(100)));
    }
}
