//! Whether a node takes sessions, and why not.

/// Which readers a node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Readers of fresh data: a node here is held to the bound.
    Fresh,
    /// Long queries: replay waits for them, so a node here may be late.
    Reports,
}

impl Door {
    pub const ALL: [Self; 2] = [Self::Fresh, Self::Reports];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Reports => "reports",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|door| door.name() == text)
    }
}

/// Whether a node takes sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// The node takes sessions. It has been within half the bound for a while, and has not left the
    /// bound since.
    In,
    /// The node answers queries with data that is or may be too old. It takes sessions only if no node of
    /// its door is in, and if that is wanted. It is in again after it has been within half the bound for
    /// a while.
    Late(Reason),
    /// The node takes no session in any case.
    Out(Reason),
    /// An operator has asked that it takes no new session. Left when the operator says so.
    Draining,
}

impl NodeState {
    pub fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Late(_) => "late",
            Self::Out(_) => "out",
            Self::Draining => "draining",
        }
    }

    /// Why the node is not in; None if it is.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Self::In => None,
            Self::Late(reason) | Self::Out(reason) => Some(reason),
            Self::Draining => Some(Reason::Drained),
        }
    }
}

/// Why a node is not in. The words of all are fixed, so that they tell nothing but the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The node has not answered the agent yet.
    NotAsked,
    /// The node does not answer the agent, or its newest answer is too old.
    NodeSilent,
    /// The node accepts no new session, although the agent's own session is answered.
    NoSession,
    /// The node's server shuts down, and waits for its sessions to end.
    Closing,
    /// All connections of the node that ordinary roles may have are in use.
    Full,
    OtherCluster,
    /// The node is the primary.
    IsPrimary,
    /// The node takes writes, and a newer primary is known.
    OldPrimary,
    /// The node takes writes, another server does as well, and neither continues the other's timeline.
    RivalPrimary,
    /// The node takes writes, and not all servers were asked whether they are newer.
    ServersNotAsked,
    /// The node is a standby, and of several servers that take writes none continues the others' timelines.
    TwoPrimaries,
    /// The node's timeline parted from the primary's.
    OtherHistory,
    /// The node has stayed on a timeline that the primary has left.
    OldTimeline,
    /// The primary has left the node's timeline just now.
    TimelineLeft,
    /// The primary has not answered, and what was known is older than the bound.
    PrimarySilent,
    Paused,
    /// `primary_conninfo` is empty, and there is no archive.
    NoUpstream,
    /// WAL comes from an archive.
    Archive,
    /// WAL that the node needs next is not on the primary any more.
    WalRemoved,
    /// No walreceiver streams.
    NotStreaming,
    /// The data is older than the bound.
    Stale,
    /// All is well, but not for long enough yet.
    Settling,
    Drained,
}

impl Reason {
    /// Name for machines.
    pub fn id(self) -> &'static str {
        match self {
            Self::NotAsked => "not_asked",
            Self::NodeSilent => "node_silent",
            Self::NoSession => "no_session",
            Self::Closing => "closing",
            Self::Full => "full",
            Self::OtherCluster => "other_cluster",
            Self::IsPrimary => "is_primary",
            Self::OldPrimary => "old_primary",
            Self::RivalPrimary => "rival_primary",
            Self::ServersNotAsked => "servers_not_asked",
            Self::TwoPrimaries => "two_primaries",
            Self::OtherHistory => "other_history",
            Self::OldTimeline => "old_timeline",
            Self::TimelineLeft => "timeline_left",
            Self::PrimarySilent => "primary_silent",
            Self::Paused => "paused",
            Self::NoUpstream => "no_upstream",
            Self::Archive => "archive",
            Self::WalRemoved => "wal_removed",
            Self::NotStreaming => "not_streaming",
            Self::Stale => "stale",
            Self::Settling => "settling",
            Self::Drained => "drained",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::NotAsked => "the node has not answered yet",
            Self::NodeSilent => "the node does not answer",
            Self::NoSession => "the node accepts no new session",
            Self::Closing => "the node's server shuts down, and waits for its sessions to end",
            Self::OtherCluster => "the node belongs to another cluster than the primary",
            Self::Full => "all connections of the node are in use: raise max_connections",
            Self::IsPrimary => "the node is the primary: readers get standbys",
            Self::OldPrimary => {
                "the node takes writes, and there is a newer primary: stop it, then pg_rewind or rebuild it as a \
                 standby"
            }
            Self::RivalPrimary => {
                "another server takes writes as well, and their histories do not say which is the primary: stop \
                 all but the one whose data is to stay, then pg_rewind or rebuild the others"
            }
            Self::ServersNotAsked => {
                "the node takes writes, and not all servers of --primary were asked whether they do"
            }
            Self::TwoPrimaries => {
                "several servers take writes, and their histories do not say which is the primary: stop all but one"
            }
            Self::OtherHistory => {
                "the node's history has parted from the primary's: pg_rewind or rebuild it; if it has the data that \
                 is to stay, stop the other servers that took writes, and restart the agents"
            }
            Self::OldTimeline => {
                "the node is on a timeline that the primary has left: set primary_conninfo to the new primary; if it \
                 cannot follow, pg_rewind or rebuild it"
            }
            Self::TimelineLeft => "the node has not followed the primary to its timeline yet",
            Self::PrimarySilent => "the primary does not answer, so the staleness is not known",
            Self::Paused => "replay is paused: pg_wal_replay_resume() lets it go on",
            Self::NoUpstream => "primary_conninfo is empty: the node gets no WAL",
            Self::Archive => "WAL comes from the archive",
            Self::WalRemoved => {
                "WAL that the node needs is not on the primary any more: rebuild it"
            }
            Self::NotStreaming => "no walreceiver streams",
            Self::Stale => "the data is older than the bound",
            Self::Settling => "all is well, and has to stay so for a moment",
            Self::Drained => "drained by an operator",
        }
    }

    /// The state of a node for which this holds. A node that is merely late may serve if all are late;
    /// one that cannot answer, or that has data which never was the primary's, may not.
    pub fn state(self) -> NodeState {
        match self {
            Self::Drained => NodeState::Draining,
            Self::NotAsked
            | Self::NodeSilent
            | Self::NoSession
            | Self::Closing
            | Self::Full
            | Self::OtherCluster
            | Self::IsPrimary
            | Self::OldPrimary
            | Self::RivalPrimary
            | Self::ServersNotAsked
            | Self::OtherHistory
            | Self::OldTimeline => NodeState::Out(self),
            Self::TimelineLeft
            | Self::TwoPrimaries
            | Self::PrimarySilent
            | Self::Paused
            | Self::NoUpstream
            | Self::Archive
            | Self::WalRemoved
            | Self::NotStreaming
            | Self::Stale
            | Self::Settling => NodeState::Late(self),
        }
    }
}
