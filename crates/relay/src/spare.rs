//! What the relay gives up while the primary has too few walsenders or slots for what a client
//! wants now, decided without I/O.
//!
//! - First goes a group that is not configured and that no slot uses, as a whole.
//! - If there is none, walsenders can be had from groups from which nobody streams; slots cannot.
//! - A group whose walsender is given up keeps its slot on the primary, so nothing that a
//!   subscriber still needs is lost: the primary keeps it meanwhile.
//! - A group for which commits on the primary may wait gives up nothing.
//! - A login is refused before anybody has said a password, so one alone at a time has something
//!   given up for it ([`Turn`]). If it leaves without having logged in, the next one gets what it
//!   had.

use std::time::{Duration, Instant};

use lockstep_client::ClientError;

use crate::error::RelayError;

/// Pause before what was refused is tried again once something was given up.
pub const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How long the primary may take to end what was given up, before more is.
const ENDS_IN: Duration = Duration::from_secs(2);

/// A server's errors where it has no more connections of some kind, and where it has no more
/// slots.
const TOO_MANY_CONNECTIONS: &str = "53300";
const LIMIT_EXCEEDED: &str = "53400";

/// The server's setting, which it does not translate.
const WALSENDERS: &str = "max_wal_senders";

/// What the primary has too few of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scarce {
    Walsenders,
    Slots,
}

impl Scarce {
    /// What a server lacks that refuses replication with this error.
    pub fn of(sqlstate: &str, message: &str) -> Option<Self> {
        match sqlstate {
            // It stands for too many connections of any kind.
            TOO_MANY_CONNECTIONS if message.contains(WALSENDERS) => Some(Self::Walsenders),
            LIMIT_EXCEEDED => Some(Self::Slots),
            _ => None,
        }
    }

    /// What the relay's own connections lack, by their error.
    pub fn met(error: &RelayError) -> Option<Self> {
        match error {
            RelayError::Upstream(ClientError::Connect(words)) => {
                // libpq has no SQLSTATE of a connection that failed.
                words.contains(WALSENDERS).then_some(Self::Walsenders)
            }
            RelayError::Upstream(error) => {
                let refusal = error.report()?;
                Self::of(&refusal.sqlstate, &refusal.message)
            }
            _ => None,
        }
    }
}

/// A group, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    /// The configuration has it.
    pub configured: bool,
    /// A slot of a subscriber needs it.
    pub used: bool,
    /// Somebody streams from it.
    pub read: bool,
    /// The primary streams to it.
    pub streams: bool,
    /// Commits on the primary may wait for it.
    pub awaited: bool,
}

/// What is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gift {
    /// A group, with its slot and its walsender.
    Group(String),
    /// A group's walsender.
    Walsender(String),
}

/// What to give up; None if nothing can be.
pub fn choose(scarce: Scarce, groups: &[Candidate]) -> Option<Gift> {
    let free = |group: &&Candidate| !group.read && !group.awaited;
    let unused = |group: &&Candidate| free(group) && !group.configured && !group.used;
    if let Some(group) = groups.iter().find(unused) {
        return Some(Gift::Group(group.name.clone()));
    }
    let idle = |group: &&Candidate| free(group) && group.streams;
    let mut idle: Vec<&Candidate> = groups.iter().filter(idle).collect();
    // Those first whose stream the operator has not asked for.
    idle.sort_by_key(|group| group.configured);
    match (scarce, idle.first()) {
        (Scarce::Walsenders, Some(group)) => Some(Gift::Walsender(group.name.clone())),
        _ => None,
    }
}

/// One client's need: what comes after each refusal.
#[derive(Debug, Default)]
pub struct Need {
    given: Option<Instant>,
}

/// What to do about a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Give something up, and try again; say what was refused if there is nothing.
    Give,
    /// Try again: what was given up has still to end.
    TryAgain,
}

impl From<&Turn> for Need {
    fn from(turn: &Turn) -> Self {
        Self { given: turn.freed }
    }
}

/// The one login that something may be given up for.
#[derive(Debug, Default)]
pub struct Turn {
    /// When the last one gave up what it may have had.
    freed: Option<Instant>,
}

impl Turn {
    /// The login is over, and the client was let in or not.
    pub fn over(&mut self, let_in: bool, now: Instant) {
        self.freed = (!let_in).then_some(now);
    }
}

impl Need {
    /// What follows once the primary has refused it.
    pub fn refused(&mut self, now: Instant) -> Then {
        let ending = |given: Instant| now.saturating_duration_since(given) < ENDS_IN;
        if self.given.is_some_and(ending) {
            return Then::TryAgain;
        }
        self.given = Some(now);
        Then::Give
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, change: impl Fn(&mut Candidate)) -> Candidate {
        let mut group = Candidate {
            name: name.to_owned(),
            configured: false,
            used: true,
            read: true,
            streams: true,
            awaited: false,
        };
        change(&mut group);
        group
    }

    #[test]
    fn only_what_can_be_spared_is_given_up() {
        let read = || group("read", |_| {});
        let idle = || group("idle", |group| group.read = false);
        let configured = || {
            group("configured", |group| {
                (group.configured, group.used, group.read) = (true, false, false);
            })
        };
        let awaited = || {
            group("awaited", |group| {
                (group.used, group.read, group.awaited) = (false, false, true);
            })
        };
        let away = || group("away", |group| (group.read, group.streams) = (false, false));
        let unused = || group("unused", |group| (group.used, group.read) = (false, false));
        // A slot that is about to be the relay's: its group is read and not used yet.
        let begun = || group("begun", |group| group.used = false);
        let whole = |name: &str| Some(Gift::Group(name.to_owned()));
        let walsender = |name: &str| Some(Gift::Walsender(name.to_owned()));
        for (groups, of_walsenders, of_slots) in [
            (vec![], None, None),
            (vec![read(), awaited(), away(), begun()], None, None),
            (vec![read(), idle()], walsender("idle"), None),
            (vec![configured(), idle()], walsender("idle"), None),
            (vec![configured(), read()], walsender("configured"), None),
            (vec![idle(), unused()], whole("unused"), whole("unused")),
        ] {
            let said = format!("{groups:?}");
            assert_eq!(choose(Scarce::Walsenders, &groups), of_walsenders, "{said}");
            assert_eq!(choose(Scarce::Slots, &groups), of_slots, "{said}");
        }
    }

    #[test]
    fn no_more_is_given_up_before_the_last_gift_has_ended() {
        let (mut need, now) = (Need::default(), Instant::now());
        assert_eq!(need.refused(now), Then::Give);
        assert_eq!(need.refused(now + TRY_AGAIN), Then::TryAgain);
        assert_eq!(need.refused(now + ENDS_IN), Then::Give);
        assert_eq!(need.refused(now + ENDS_IN + TRY_AGAIN), Then::TryAgain);
    }

    #[test]
    fn a_login_takes_over_what_the_last_one_leaves() {
        let (mut turn, now) = (Turn::default(), Instant::now());
        assert_eq!(Need::from(&turn).refused(now), Then::Give);
        turn.over(false, now);
        assert_eq!(Need::from(&turn).refused(now + TRY_AGAIN), Then::TryAgain);
        assert_eq!(Need::from(&turn).refused(now + ENDS_IN), Then::Give);
        turn.over(true, now);
        assert_eq!(Need::from(&turn).refused(now), Then::Give);
    }

    #[test]
    fn servers_say_what_they_lack() {
        let connect = |words: &str| RelayError::from(ClientError::Connect(words.to_owned()));
        let walsenders = "FATAL: number of requested standby connections exceeds \
                          \"max_wal_senders\" (currently 2)";
        let clients = "FATAL: sorry, too many clients already";
        assert_eq!(Scarce::met(&connect(walsenders)), Some(Scarce::Walsenders));
        assert_eq!(Scarce::met(&connect(clients)), None);
        let slots = "all replication slots are in use";
        for (sqlstate, message, lacks) in [
            ("53300", walsenders, Some(Scarce::Walsenders)),
            ("53300", clients, None),
            ("53400", slots, Some(Scarce::Slots)),
            ("53200", "out of memory", None),
        ] {
            let said = Scarce::of(sqlstate, message);
            assert_eq!(said, lacks, "{sqlstate} {message}");
        }
    }
}
