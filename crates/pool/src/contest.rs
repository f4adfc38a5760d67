//! Which of several servers that take writes is the primary. No I/O.
//!
//! An old primary may come back after a failover, and two standbys may both be promoted. The primary is the
//! server whose history contains the timelines of all others that take writes. If none is that, none is the
//! primary: who chose one would let both be written to.

use std::mem;

use lockstep_wire::SystemId;

use crate::fault::Fault;
use crate::lineage::{Lineage, Relation};

/// A server between a start and its end: when it started, in microseconds. One server that is named twice
/// has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance(pub i64);

/// A server that takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    pub instance: Instance,
    pub lineage: Lineage,
}

/// Which server is the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ruling {
    /// No server is known to take writes, but for some that are older than a primary that was.
    Nobody,
    Primary(Instance),
    /// Several take writes, and none continues the timelines of all others.
    Undecided,
}

/// Rules among servers that take writes. `newest` is the lineage of the newest primary that was known: what
/// it does not lead to is not believed, so that its successor is awaited.
pub fn rule(contenders: &[&Contender], newest: Option<&Lineage>, fault: Option<Fault>) -> Ruling {
    if let (Some(Fault::FirstIsPrimary), Some(first)) = (fault, contenders.first()) {
        return Ruling::Primary(first.instance);
    }
    let to = |one: &Lineage, other: &Lineage| one.seen_with(fault).to(&other.seen_with(fault));
    let continues = |contender: &&&Contender| {
        newest.is_none_or(|newest| {
            let relation = to(newest, &contender.lineage);
            matches!(relation, Relation::Same | Relation::Ancestor(_))
        })
    };
    let is_first = |contender: &&&Contender| {
        contenders.iter().all(|other| {
            other.instance == contender.instance
                || matches!(
                    to(&other.lineage, &contender.lineage),
                    Relation::Ancestor(_)
                )
        })
    };
    let mut first = contenders.iter().filter(is_first);
    match first.next() {
        Some(found) if continues(&found) => Ruling::Primary(found.instance),
        Some(_) => Ruling::Nobody,
        None if contenders.is_empty() => Ruling::Nobody,
        None => Ruling::Undecided,
    }
}

/// What a server that is asked for the primary has said.
#[derive(Debug, Clone, Default)]
enum Said {
    /// Nothing yet. Until each server was asked once, nobody is the primary: a newer one may be among them.
    #[default]
    Nothing,
    /// Neither answer nor standby is of interest.
    NoPrimary,
    TakesWrites(Contender),
}

/// What all servers have said.
#[derive(Debug)]
pub struct Contest {
    servers: Vec<Said>,
    /// The node beside the agent, if it takes writes.
    node: Option<Contender>,
    newest: Option<Lineage>,
    ruling: Ruling,
    fault: Option<Fault>,
}

impl Contest {
    /// A contest among so many servers, and the node.
    pub fn new(servers: usize) -> Self {
        Self {
            servers: vec![Said::Nothing; servers],
            node: None,
            newest: None,
            ruling: Ruling::Nobody,
            fault: None,
        }
    }

    /// The contest with a fault planted, for tests.
    pub fn with_fault(self, fault: Option<Fault>) -> Self {
        Self { fault, ..self }
    }

    /// Takes what a server says; None if it is a standby, or does not answer.
    pub fn server_says(&mut self, server: usize, contender: Option<Contender>) {
        if let Some(place) = self.servers.get_mut(server) {
            *place = contender.map_or(Said::NoPrimary, Said::TakesWrites);
        }
        self.decide();
    }

    /// Takes whether the node takes writes.
    pub fn node_says(&mut self, contender: Option<Contender>) {
        if mem::replace(&mut self.node, contender) != self.node {
            self.decide();
        }
    }

    /// Takes the lineage of a standby: a newer one shows that there is a newer primary.
    pub fn standby_shows(&mut self, lineage: &Lineage) {
        let is_newer = |newest: &Lineage| matches!(newest.to(lineage), Relation::Ancestor(_));
        if self.newest.as_ref().is_some_and(is_newer) {
            self.newest = Some(lineage.clone());
            self.decide();
        }
    }

    fn decide(&mut self) {
        let is_asked = |said: &Said| !matches!(said, Said::Nothing);
        let is_ready = self.servers.iter().all(is_asked);
        if !is_ready && self.fault != Some(Fault::FirstIsPrimary) {
            return;
        }
        let of_servers = self.servers.iter().filter_map(|said| match said {
            Said::TakesWrites(contender) => Some(contender),
            Said::Nothing | Said::NoPrimary => None,
        });
        let contenders: Vec<_> = of_servers.chain(self.node.as_ref()).collect();
        self.ruling = rule(&contenders, self.newest.as_ref(), self.fault);
        let chosen = contenders
            .iter()
            .find(|contender| self.ruling == Ruling::Primary(contender.instance));
        if let Some(chosen) = chosen {
            self.newest = Some(chosen.lineage.clone());
        }
    }

    /// Whether a server that takes writes, or did, is of another cluster.
    pub fn has_other(&self, system: SystemId) -> bool {
        let is_other = |lineage: &Lineage| lineage.system != system;
        let is_other_server = |said: &Said| match said {
            Said::TakesWrites(contender) => is_other(&contender.lineage),
            Said::Nothing | Said::NoPrimary => false,
        };
        self.servers.iter().any(is_other_server) || self.newest.as_ref().is_some_and(is_other)
    }

    pub fn ruling(&self) -> Ruling {
        self.ruling
    }

    /// The lineage of the newest primary that is or was known.
    pub fn newest(&self) -> Option<&Lineage> {
        self.newest.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineage::tests::{Ends, lineage};

    fn contender(instance: i64, number: u32, ends: Option<Ends>) -> Contender {
        Contender {
            instance: Instance(instance),
            lineage: lineage(number, ends),
        }
    }

    #[test]
    fn the_primary_continues_all_others() {
        let old = contender(1, 1, Some(&[]));
        let new = contender(2, 2, Some(&[(1, 40)]));
        let rival = contender(3, 2, Some(&[(1, 60)]));
        let next = contender(4, 3, Some(&[(1, 40), (2, 90)]));
        let primary = |instance| Ruling::Primary(Instance(instance));
        for (contenders, expected) in [
            (&[] as &[&Contender], Ruling::Nobody),
            (&[&old], primary(1)),
            (&[&old, &old], primary(1)),
            (&[&old, &new], primary(2)),
            (&[&new, &old], primary(2)),
            (&[&old, &next, &new], primary(4)),
            (&[&new, &rival], Ruling::Undecided),
            (&[&old, &new, &rival], Ruling::Undecided),
            (&[&rival, &next], Ruling::Undecided),
        ] {
            assert_eq!(rule(contenders, None, None), expected, "{contenders:?}");
        }
        // What was known of a primary that has gone.
        for (contender, newest, expected) in [
            (&old, &new, Ruling::Nobody),
            (&rival, &new, Ruling::Nobody),
            (&next, &new, primary(4)),
            (&new, &new, primary(2)),
        ] {
            let ruled = rule(&[contender], Some(&newest.lineage), None);
            assert_eq!(ruled, expected, "{contender:?} after {newest:?}");
        }
    }

    #[test]
    fn servers_on_one_timeline_without_histories_are_not_told_apart() {
        let (one, two) = (contender(1, 2, None), contender(2, 2, None));
        assert_eq!(rule(&[&one, &two], None, None), Ruling::Undecided);
        let later = contender(3, 3, None);
        let ruled = rule(&[&one, &later], None, None);
        assert_eq!(ruled, Ruling::Primary(Instance(3)));
    }

    #[test]
    fn nobody_is_the_primary_before_all_were_asked() {
        let old = contender(1, 1, Some(&[]));
        let new = contender(2, 2, Some(&[(1, 40)]));
        let mut contest = Contest::new(2);
        contest.server_says(0, Some(old.clone()));
        contest.node_says(Some(old));
        assert_eq!(contest.ruling(), Ruling::Nobody);
        contest.server_says(1, Some(new));
        assert_eq!(contest.ruling(), Ruling::Primary(Instance(2)));
        // The new one is gone, and the old one is none again.
        contest.server_says(1, None);
        assert_eq!(contest.ruling(), Ruling::Nobody);

        let mut contest = Contest::new(1);
        contest.server_says(0, Some(contender(1, 1, Some(&[]))));
        assert_eq!(contest.ruling(), Ruling::Primary(Instance(1)));
        contest.standby_shows(&lineage(2, Some(&[(1, 40)])));
        contest.server_says(0, Some(contender(1, 1, Some(&[]))));
        assert_eq!(contest.ruling(), Ruling::Nobody);
    }
}
