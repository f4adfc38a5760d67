//! Timelines with their histories, and what one is to another. No I/O.
//!
//! A timeline's number says little: two standbys of one primary can both be promoted to timeline 2. A history
//! names the timelines before, and where each of them ended.

use std::sync::Arc;

use lockstep_client::Switch;
use lockstep_client::history::{self, Left};
use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::fault::Fault;

/// A timeline of a cluster, and how it came to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    pub system: SystemId,
    pub timeline: Timeline,
    /// The timelines before; None if the server did not tell.
    pub history: Option<Arc<[Switch]>>,
}

/// What one lineage is to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// Both are one timeline, as far as is known.
    Same,
    /// The other one continues this timeline from the position on, if that is known.
    Ancestor(Option<Lsn>),
    /// This one continues the other's timeline.
    Descendant,
    /// Each has WAL that is not the other's, or they are of two clusters.
    Apart,
}

impl Lineage {
    /// The lineage as a judge with this fault sees it.
    pub fn seen_with(&self, fault: Option<Fault>) -> Self {
        let is_told = fault != Some(Fault::HistoriesIgnored);
        Self {
            history: self.history.clone().filter(|_| is_told),
            ..self.clone()
        }
    }

    /// What this is to another lineage. Without a history, the larger number counts as the later timeline.
    pub fn to(&self, other: &Self) -> Relation {
        if self.system != other.system {
            return Relation::Apart;
        }
        if self.timeline > other.timeline {
            return match other.to(self) {
                Relation::Ancestor(_) => Relation::Descendant,
                relation => relation,
            };
        }
        let Some(theirs) = &other.history else {
            return match self.timeline == other.timeline {
                true => Relation::Same,
                false => Relation::Ancestor(None),
            };
        };
        let left = history::left(
            (self.timeline, self.history.as_deref()),
            (other.timeline, theirs),
        );
        let ended = theirs
            .iter()
            .find(|switch| switch.timeline == self.timeline);
        match (left, ended) {
            (Left::Never, _) => Relation::Same,
            (Left::At(at), Some(ended)) if at == ended.at => Relation::Ancestor(Some(at)),
            (Left::At(_) | Left::Unrelated, _) => Relation::Apart,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Timelines that ended, and where.
    pub type Ends = &'static [(u32, u64)];

    pub fn lineage(number: u32, ends: Option<Ends>) -> Lineage {
        let switch = |(number, at): &(u32, u64)| Switch {
            timeline: Timeline::new(*number).unwrap(),
            at: Lsn::from(*at),
        };
        Lineage {
            system: 7.into(),
            timeline: Timeline::new(number).unwrap(),
            history: ends.map(|ends| ends.iter().map(switch).collect()),
        }
    }

    #[test]
    fn lineages_are_related_by_their_histories() {
        let first = lineage(1, Some(&[]));
        let second = lineage(2, Some(&[(1, 40)]));
        let rival = lineage(2, Some(&[(1, 60)]));
        let third = lineage(3, Some(&[(1, 40), (2, 90)]));
        let skipped = lineage(3, Some(&[(1, 60)]));
        let untold = lineage(2, None);
        let ancestor = |at: u64| Relation::Ancestor(Some(Lsn::from(at)));
        for (one, other, expected, back) in [
            (&first, &first, Relation::Same, Relation::Same),
            (&first, &second, ancestor(40), Relation::Descendant),
            (&second, &third, ancestor(90), Relation::Descendant),
            (&first, &third, ancestor(40), Relation::Descendant),
            (&second, &rival, Relation::Apart, Relation::Apart),
            (&rival, &third, Relation::Apart, Relation::Apart),
            (&second, &skipped, Relation::Apart, Relation::Apart),
            (&untold, &second, Relation::Same, Relation::Same),
            (&untold, &third, ancestor(90), Relation::Descendant),
            (
                &first,
                &untold,
                Relation::Ancestor(None),
                Relation::Descendant,
            ),
        ] {
            assert_eq!(
                (one.to(other), other.to(one)),
                (expected, back),
                "{one:?} {other:?}"
            );
        }
        let other_cluster = Lineage {
            system: 8.into(),
            ..first.clone()
        };
        assert_eq!(first.to(&other_cluster), Relation::Apart);
    }
}
