//! Which question a request asks, and its answer: Patroni's paths and status codes, ours for HAProxy, and the
//! words of HAProxy's agent-check.
//!
//! Patroni's paths mean what they mean there, with two differences: a replica that is out or late is none
//! that can be read, and `lag` may be a time. A parameter that is not known is refused, since whoever wrote
//! it relies on it.

use std::time::Duration;

use lockstep_service::words::{amount, quoted, span};

use crate::judge::{Rules, Verdict};
use crate::state::{Door, NodeState, Reason};

/// How late a node may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lag {
    Bytes(u64),
    Time(Duration),
}

/// What a request asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The node takes writes.
    Primary,
    /// The node can be read.
    Replica {
        lag: Option<Lag>,
        is_streaming: bool,
        /// A primary will do.
        or_primary: bool,
    },
    /// The server answers.
    Health,
    /// The node takes writes, or has what the primary has.
    Readiness {
        lag: Option<Lag>,
        /// Received is enough.
        is_write: bool,
    },
    /// HAProxy asks for a door. The node is judged for it, whatever the agent's own door is.
    Pool(PoolDoor),
}

/// A back end of HAProxy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolDoor {
    Readers(Door),
    /// Late nodes of a door, if none is in.
    Late(Door),
    Writes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckAnswer {
    /// 200, 503, or 404 for a node that HAProxy sends no new session, and that keeps those it has.
    pub status: u16,
    /// Why it is not 200.
    pub why: Option<&'static str>,
}

impl Lag {
    /// Parses bytes as Patroni does, or a time.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(bytes) = text.parse() {
            return Ok(Self::Bytes(bytes));
        }
        if let Ok(bytes) = amount::parse(text) {
            return Ok(Self::Bytes(bytes));
        }
        span::parse(text).map(Self::Time).map_err(|_| {
            format!(
                "{} is no lag: write bytes (1048576, 16kB, 64MB) or a time (100ms, 2s)",
                quoted(text)
            )
        })
    }

    /// None if the lag is within this, and otherwise the words why not.
    fn exceeded(self, age: Option<Duration>, bytes: Option<u64>) -> Option<&'static str> {
        const NOT_KNOWN: &str = "the lag is not known";
        const MORE: &str = "the lag is larger than asked for";
        let is_within = match self {
            Self::Bytes(most) => bytes.map(|bytes| bytes <= most),
            Self::Time(most) => age.map(|age| age <= most),
        };
        match is_within {
            Some(true) => None,
            Some(false) => Some(MORE),
            None => Some(NOT_KNOWN),
        }
    }
}

/// Text of a path, or of a query (`is_query`: `+` is a space there), with its `%` sequences decoded.
fn decoded(text: &str, is_query: bool) -> Result<String, String> {
    let wrong = || format!("{} is wrongly encoded", quoted(text));
    let mut bytes = text.bytes();
    let mut whole = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        whole.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let code = digit().zip(digit()).map(|(high, low)| high * 16 + low);
                code.and_then(|code| u8::try_from(code).ok())
                    .ok_or_else(wrong)?
            }
            b'+' if is_query => b' ',
            other => other,
        });
    }
    String::from_utf8(whole).map_err(|_| wrong())
}

impl Check {
    /// The check of a path and its query: None for another path. An error says what is wrong.
    pub fn parse(path: &str, query: &str) -> Result<Option<Self>, String> {
        let mut lag = None;
        let mut is_streaming = false;
        let mut is_write = false;
        let mut given = Vec::new();
        let path = decoded(path, false)?;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name, true)?, decoded(value, true)?);
            match (name.as_str(), value.as_str()) {
                ("lag", value) => lag = Some(Lag::parse(value)?),
                ("replication_state", "streaming") => is_streaming = true,
                ("replication_state", _) => {
                    return Err("replication_state can be streaming only".to_owned());
                }
                ("mode", "apply") => is_write = false,
                ("mode", "write") => is_write = true,
                ("mode", _) => return Err("mode is apply or write".to_owned()),
                (other, _) => {
                    return Err(format!("the parameter {} is not known", quoted(other)));
                }
            }
            given.push(name);
        }
        let (check, allowed): (Self, &[&str]) = match path.as_str() {
            "/" | "/primary" | "/read-write" | "/leader" => (Self::Primary, &[]),
            "/replica" | "/read-only" => (
                Self::Replica {
                    lag,
                    is_streaming,
                    or_primary: path == "/read-only",
                },
                &["lag", "replication_state"],
            ),
            "/health" => (Self::Health, &[]),
            "/readiness" => (Self::Readiness { lag, is_write }, &["lag", "mode"]),
            _ => match path.strip_prefix("/pool/").and_then(PoolDoor::parse) {
                Some(door) => (Self::Pool(door), &[]),
                None => return Ok(None),
            },
        };
        match given.iter().find(|name| !allowed.contains(&name.as_str())) {
            Some(name) => Err(format!("{path} knows no parameter {name}")),
            None => Ok(Some(check)),
        }
    }

    /// The door for which a verdict is needed; None for the agent's own.
    pub fn door(&self) -> Option<Door> {
        match self {
            Self::Pool(door) => door.readers(),
            _ => None,
        }
    }

    pub fn answer(&self, verdict: &Verdict, rules: &Rules) -> CheckAnswer {
        let why = match self {
            Self::Primary => no_primary(verdict),
            Self::Replica {
                lag,
                is_streaming,
                or_primary,
            } => match *or_primary && verdict.takes_writes {
                true => no_primary(verdict),
                false => no_replica(verdict, *lag, *is_streaming),
            },
            Self::Health => match verdict.is_standby {
                Some(_) => None,
                None => verdict.state.reason().map(Reason::words),
            },
            Self::Readiness { lag, is_write } => match verdict.takes_writes {
                true => None,
                false => not_ready(verdict, lag.unwrap_or(Lag::Time(rules.bound)), *is_write),
            },
            Self::Pool(door) => door.closed(verdict),
        };
        let is_kept = matches!(self, Self::Pool(_)) && keeps_sessions(verdict.state);
        CheckAnswer {
            status: match (why, is_kept) {
                (None, _) => 200,
                (Some(_), true) => 404,
                (Some(_), false) => 503,
            },
            why,
        }
    }
}

/// Whether a node that takes no new session keeps those it has, also where HAProxy is to cut off those of a
/// node that is out: it may be in again soon, and its data is or was the primary's. An agent that was started
/// anew knows nothing against those sessions.
fn keeps_sessions(state: NodeState) -> bool {
    match state {
        NodeState::Late(_) | NodeState::Draining => true,
        NodeState::Out(reason) => matches!(
            reason,
            Reason::NotAsked | Reason::Full | Reason::Closing | Reason::ServersNotAsked
        ),
        NodeState::In => false,
    }
}

fn no_primary(verdict: &Verdict) -> Option<&'static str> {
    match (verdict.takes_writes, verdict.state, verdict.is_standby) {
        (_, NodeState::Draining, _) => Some(Reason::Drained.words()),
        (true, ..) => None,
        (_, _, Some(true)) => Some("the node is a standby"),
        (_, state, _) => state.reason().map(Reason::words),
    }
}

/// Why a node cannot be read; None if it can.
fn no_replica(verdict: &Verdict, lag: Option<Lag>, is_streaming: bool) -> Option<&'static str> {
    // A lag that is asked for counts in place of the agent's bound.
    let is_asked = matches!(verdict.state, NodeState::Late(Reason::Stale)) && lag.is_some();
    if verdict.state != NodeState::In && !is_asked {
        return verdict.state.reason().map(Reason::words);
    }
    if is_streaming && !verdict.is_streaming {
        return Some(Reason::NotStreaming.words());
    }
    lag?.exceeded(verdict.staleness, verdict.lag_bytes)
}

fn not_ready(verdict: &Verdict, lag: Lag, is_write: bool) -> Option<&'static str> {
    if matches!(verdict.state, NodeState::Out(_) | NodeState::Draining) {
        return verdict.state.reason().map(Reason::words);
    }
    if !verdict.is_streaming {
        return Some(Reason::NotStreaming.words());
    }
    match is_write {
        true => lag.exceeded(verdict.received, verdict.unreceived_bytes),
        false => lag.exceeded(verdict.staleness, verdict.lag_bytes),
    }
}

impl PoolDoor {
    /// All that HAProxy can ask for.
    pub const ALL: [Self; 5] = [
        Self::Readers(Door::Fresh),
        Self::Readers(Door::Reports),
        Self::Late(Door::Fresh),
        Self::Late(Door::Reports),
        Self::Writes,
    ];

    /// Name in the check's path, and in what HAProxy sends before an agent-check.
    pub fn name(self) -> &'static str {
        match self {
            Self::Readers(Door::Fresh) => "fresh",
            Self::Readers(Door::Reports) => "reports",
            Self::Late(Door::Fresh) => "late-fresh",
            Self::Late(Door::Reports) => "late-reports",
            Self::Writes => "writes",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|door| door.name() == text)
    }

    /// Why the node takes no session of this door; None if it takes some.
    fn closed(self, verdict: &Verdict) -> Option<&'static str> {
        match (verdict.state, self) {
            (_, Self::Writes) => no_primary(verdict),
            (NodeState::In, _) | (NodeState::Late(_), Self::Late(_)) => None,
            (state, _) => state.reason().map(Reason::words),
        }
    }

    /// The door of its readers; None for writers.
    pub fn readers(self) -> Option<Door> {
        match self {
            Self::Readers(door) | Self::Late(door) => Some(door),
            Self::Writes => None,
        }
    }

    /// The words of HAProxy's agent-check. A node that keeps its sessions has no weight. The words `drain`,
    /// `maint` and `ready` are not used: they change what operators set in HAProxy itself, which is theirs.
    pub fn agent_words(self, verdict: &Verdict) -> String {
        match self.closed(verdict) {
            Some(why) if keeps_sessions(verdict.state) => format!("up 0% # {why}"),
            Some(why) => format!("down # {why}"),
            None => {
                let share = match self {
                    Self::Readers(_) => verdict.share,
                    Self::Late(_) => verdict.late_share,
                    Self::Writes => 100,
                };
                format!("up {share}%")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn rules() -> Rules {
        Rules {
            door: Door::Fresh,
            bound: ms(1000),
            interval: ms(100),
            rest: ms(100),
            settle: ms(2000),
            rise: ms(1000),
        }
    }

    fn standby(state: NodeState) -> Verdict {
        Verdict {
            door: Door::Fresh,
            state,
            share: 75,
            is_risen: true,
            late_share: 40,
            staleness: Some(ms(300)),
            received: Some(ms(20)),
            is_known: true,
            lag_bytes: Some(5000),
            unreceived_bytes: Some(0),
            is_standby: Some(true),
            takes_writes: false,
            is_streaming: true,
            load: None,
        }
    }

    fn primary() -> Verdict {
        Verdict {
            takes_writes: true,
            is_standby: Some(false),
            is_streaming: false,
            ..standby(Reason::IsPrimary.state())
        }
    }

    fn status(url: &str, verdict: &Verdict) -> u16 {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let check = Check::parse(path, query).unwrap().unwrap();
        let answer = check.answer(verdict, &rules());
        assert_eq!(answer.status == 200, answer.why.is_none(), "{url}");
        answer.status
    }

    #[test]
    fn patronis_paths_mean_what_they_mean_there() {
        let current = standby(NodeState::In);
        let late = standby(Reason::Stale.state());
        let silent = Verdict {
            is_standby: None,
            ..standby(Reason::NodeSilent.state())
        };
        let unfed = Verdict {
            is_streaming: false,
            lag_bytes: Some(0),
            staleness: Some(ms(0)),
            ..standby(Reason::NotStreaming.state())
        };
        for (url, expected) in [
            ("/", [200, 503, 503, 503, 503]),
            ("/primary", [200, 503, 503, 503, 503]),
            ("/read-write", [200, 503, 503, 503, 503]),
            ("/leader", [200, 503, 503, 503, 503]),
            ("/replica", [503, 200, 503, 503, 503]),
            ("/replica?lag=1MB", [503, 200, 200, 503, 503]),
            ("/replica?lag=4096", [503, 503, 503, 503, 503]),
            ("/replica?lag=5000", [503, 200, 200, 503, 503]),
            ("/replica?lag=100ms", [503, 503, 503, 503, 503]),
            ("/replica?lag=2s", [503, 200, 200, 503, 503]),
            (
                "/replica?replication_state=streaming",
                [503, 200, 503, 503, 503],
            ),
            ("/read-only", [200, 200, 503, 503, 503]),
            ("/read-only?lag=1s", [200, 200, 200, 503, 503]),
            ("/health", [200, 200, 200, 503, 200]),
            ("/readiness", [200, 200, 200, 503, 503]),
            ("/readiness?lag=100ms", [200, 503, 503, 503, 503]),
            ("/readiness?lag=100ms&mode=apply", [200, 503, 503, 503, 503]),
            ("/readiness?lag=100ms&mode=write", [200, 200, 200, 503, 503]),
            ("/readiness?lag=1kB&mode=write", [200, 200, 200, 503, 503]),
        ] {
            let nodes = [&primary(), &current, &late, &silent, &unfed];
            assert_eq!(nodes.map(|node| status(url, node)), expected, "{url}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for url in [
            "/replica?lag=",
            "/replica?lag=5parsec",
            "/replica?lag=-1",
            "/replica?mode=apply",
            "/replica?tag_a=b",
            "/replica?replication_state=in",
            "/readiness?mode=x",
            "/primary?lag=1MB",
            "/health?x",
        ] {
            let (path, query) = url.split_once('?').unwrap();
            assert!(Check::parse(path, query).is_err(), "{url}");
        }
        for path in ["/x", "/pool/", "/pool/x", "/replica/", "/async"] {
            assert_eq!(Check::parse(path, ""), Ok(None), "{path}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let parse = |path, query| Check::parse(path, query);
        let plain = parse("/replica", "lag=1 MB");
        assert!(matches!(plain, Ok(Some(_))));
        for (path, query) in [
            ("/replica", "lag=1%20MB"),
            ("/replica", "lag=1+MB"),
            ("/replica", "l%61g=%31+%4dB"),
            ("/%72eplica", "lag=1%20MB"),
        ] {
            assert_eq!(parse(path, query), plain, "{path} {query}");
        }
        for query in ["lag=1%", "lag=1%2", "lag=1%zz", "lag=%ff"] {
            assert!(parse("/replica", query).is_err(), "{query}");
        }
        assert_eq!(parse("/replica+", ""), Ok(None));
    }

    #[test]
    fn haproxy_gets_its_words() {
        let words = |door: PoolDoor, verdict: &Verdict| {
            let status = status(&format!("/pool/{}", door.name()), verdict);
            (status, door.agent_words(verdict))
        };
        let [fresh, _, late, _, writes] = PoolDoor::ALL;
        let node_in = standby(NodeState::In);
        let stale = standby(Reason::Stale.state());
        let old = standby(Reason::OldTimeline.state());
        let drained = standby(NodeState::Draining);
        let full = standby(Reason::Full.state());
        let not_asked = Verdict {
            is_standby: None,
            ..standby(Reason::NotAsked.state())
        };
        let down = |why: &str| (503, format!("down # {why}"));
        let kept = |why: &str| (404, format!("up 0% # {why}"));
        let up = |share: &str| (200, format!("up {share}"));
        assert_eq!(words(fresh, &node_in), up("75%"));
        assert_eq!(words(late, &node_in), up("40%"));
        assert_eq!(words(late, &stale), up("40%"));
        assert_eq!(
            words(fresh, &stale),
            kept("the data is older than the bound")
        );
        assert_eq!(words(fresh, &full), kept(Reason::Full.words()));
        assert_eq!(words(late, &full), kept(Reason::Full.words()));
        for door in [fresh, late, writes] {
            assert_eq!(words(door, &not_asked), kept(Reason::NotAsked.words()));
        }
        assert_eq!(words(late, &old), down(Reason::OldTimeline.words()));
        assert_eq!(words(writes, &node_in), down("the node is a standby"));
        assert_eq!(words(writes, &primary()), up("100%"));
        assert_eq!(words(fresh, &primary()), down(Reason::IsPrimary.words()));
        for door in [fresh, late, writes] {
            assert_eq!(words(door, &drained), kept("drained by an operator"));
        }
    }
}
