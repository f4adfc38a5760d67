//! The positions of a link at one moment, and the stages between them.

use std::time::Duration;

use lockstep_wire::Lsn;
use serde::{Deserialize, Serialize};

/// A lag is known well enough if the least and the most that it can be are this close,
const CLOSE: Duration = Duration::from_millis(200);

/// or differ by this part of the most.
const CLOSE_PART: f64 = 0.2;

/// How WAL gets to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// WAL is sent as it is.
    Physical,
    /// WAL is decoded first.
    Logical,
}

impl LinkKind {
    /// The kind's name in JSON, metrics and text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Physical => "physical",
            Self::Logical => "logical",
        }
    }
}

/// The parts of the way from the upstream's end to the replica, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// WAL between flushed on the upstream and sent; on a logical link, decoding.
    Send,
    Receive,
    /// WAL between received and flushed; on a logical link, between received and applied.
    Flush,
    /// WAL between flushed and replayed; on a logical link, between applied and flushed.
    Replay,
}

impl Stage {
    pub const ALL: [Self; 4] = [Self::Send, Self::Receive, Self::Flush, Self::Replay];

    /// The stage's name on a link of this kind.
    pub fn name(self, kind: LinkKind) -> &'static str {
        match (kind, self) {
            (LinkKind::Physical, Self::Send) => "send",
            (LinkKind::Logical, Self::Send) => "decode",
            (_, Self::Receive) => "receive",
            (LinkKind::Physical, Self::Flush) => "flush",
            (LinkKind::Logical, Self::Flush) => "apply",
            (LinkKind::Physical, Self::Replay) => "replay",
            (LinkKind::Logical, Self::Replay) => "flush",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Time since the window began.
    pub at: Duration,
    /// End of the upstream's WAL.
    pub end: Lsn,
    pub sent: Lsn,
    /// Received by the replica.
    pub write: Lsn,
    pub flush: Lsn,
    /// Replayed, or applied by a subscriber.
    pub replay: Lsn,
    /// Applied, as the replica last told its upstream, together with `flush`. A busy apply worker
    /// tells nothing until it has applied all that has come, so this may be older than `replay`.
    pub told: Lsn,
    /// How long the upstream has had WAL beyond `replay`.
    pub age: Duration,
    /// How much shorter the lag may be than `age`, since the replica may have applied more than
    /// it told.
    pub doubt: Duration,
    /// The age begins where the watch began, and the lag began earlier.
    pub capped: bool,
    /// The most that the age can be, if that is known.
    pub age_most: Option<Duration>,
    /// The upstream has something to send, and its consumer takes nothing more.
    pub pushed: bool,
    /// The apply worker is not waiting for data.
    pub busy: bool,
}

/// Why a lag is [the most](Bound::MOST) that it can be, and what helps.
pub const TOLD_LATE: &str = "at most: a busy subscriber tells late what it has applied. \
     For the exact lag name it with --subscriber, so that it is asked.";

/// What a lag in time is to the true one. It is the true one, nearly, if neither holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// The lag began before anybody watched: the true one is as long, or longer.
    pub lag_is_least: bool,
    /// The replica may have applied more than it told: the true one is as long, or shorter.
    pub lag_is_most: bool,
}

impl Bound {
    pub const LEAST: Self = Self {
        lag_is_least: true,
        lag_is_most: false,
    };

    pub const MOST: Self = Self {
        lag_is_least: false,
        lag_is_most: true,
    };

    /// A sign to stand before the lag.
    pub fn sign(self) -> &'static str {
        match self {
            Self {
                lag_is_least: true, ..
            } => "≥",
            Self {
                lag_is_most: true, ..
            } => "≤",
            _ => "",
        }
    }
}

impl Point {
    /// How long the replica is behind: as far as is known, or at least.
    pub fn lag(&self, is_least: bool) -> Duration {
        match (self.bytes(), is_least) {
            (0, _) => Duration::ZERO,
            (_, true) => self.age.saturating_sub(self.doubt),
            (_, false) => self.age,
        }
    }

    /// What [`Self::lag`] is to the true one.
    pub fn bound(&self) -> Bound {
        match self.capped {
            true => Bound::LEAST,
            false if self.doubt > close(self.age) => Bound::MOST,
            false => Bound::default(),
        }
    }

    /// Bytes that are not visible on the replica yet.
    pub fn bytes(&self) -> u64 {
        self.end.bytes_since(self.replay)
    }

    /// The bytes that a stage holds. A consumer that takes nothing more holds what is not sent to
    /// it, and a busy apply worker what it has not received: it is one process, and receives only
    /// when it has applied.
    pub fn stage(&self, kind: LinkKind, stage: Stage) -> u64 {
        let (sent, write) = match kind {
            LinkKind::Physical => (self.sent, self.write),
            LinkKind::Logical => {
                let sent = if self.pushed { self.end } else { self.sent };
                (sent, if self.busy { sent } else { self.write })
            }
        };
        match (kind, stage) {
            (_, Stage::Send) => self.end.bytes_since(sent),
            (_, Stage::Receive) => sent.bytes_since(write),
            (LinkKind::Physical, Stage::Flush) => write.bytes_since(self.flush),
            (LinkKind::Physical, Stage::Replay) => self.flush.bytes_since(self.replay),
            (LinkKind::Logical, Stage::Flush) => write.bytes_since(self.replay),
            (LinkKind::Logical, Stage::Replay) => self.told.bytes_since(self.flush),
        }
    }
}

/// How far apart the least and the most that a lag can be are, if it is known well enough.
pub(crate) fn close(most: Duration) -> Duration {
    CLOSE.max(most.mul_f64(CLOSE_PART))
}
