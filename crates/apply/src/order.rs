//! The order in which batches may run when there are several writers. No I/O.
//!
//! Parts are numbered as the source's history goes, and commit in that order. A change that touches
//! nothing of an earlier part under way is *free*: it can be made at once, on another connection. A
//! change that does is *bound*: it waits until that part is committed. Changes of one part that touch
//! each other stay together, so that their own order is kept: what a bound change touches, binds the
//! others that touch it.
//!
//! ```text
//! part 7 on writer 1:  ████████ commit
//! part 8 on writer 2:  ██ free     ██ bound  commit
//! part 9 on writer 3:  ████ free              ┊ commit
//! ```
//!
//! A part that is *alone* begins when all before it is committed, and nothing after it begins before
//! it is. With one writer every part is alone.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};

use crate::batch::Part;
use crate::touches::{ROW, Touches};

/// Most writers of one replica.
pub const MOST_WRITERS: usize = 16;

/// Most passes that look for changes which a bound one binds; then all are bound.
const MOST_PASSES: u32 = 8;

/// How a part is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The first part of a session is 1.
    pub number: u64,
    /// Bound changes wait until this part is committed; 0 if none is bound.
    pub after: u64,
    pub changes: Changes,
}

/// Which changes of a part are bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changes {
    /// All: the part is alone.
    Alone,
    /// Changes whose flag is set.
    Bound(Vec<bool>),
}

impl Plan {
    pub fn alone(number: u64) -> Self {
        Self {
            number,
            after: number.saturating_sub(1),
            changes: Changes::Alone,
        }
    }

    pub fn is_alone(&self) -> bool {
        self.changes == Changes::Alone
    }

    /// More than half of the changes wait for another part.
    pub fn is_hindered(&self) -> bool {
        match &self.changes {
            Changes::Alone => true,
            Changes::Bound(flags) => {
                let bound = flags.iter().filter(|flag| **flag).count();
                bound * 2 > flags.len()
            }
        }
    }

    /// Some of the changes, those that are bound or those that are not.
    pub fn has(&self, bound: bool) -> bool {
        match &self.changes {
            Changes::Alone => bound,
            Changes::Bound(flags) => flags.contains(&bound),
        }
    }
}

/// What the parts under way touch.
#[derive(Debug, Default)]
pub struct Order {
    newest: u64,
    /// Parts up to here are committed.
    done: u64,
    /// The newest part that is alone.
    alone: u64,
    /// The newest part that touches a thing.
    touched: HashMap<u64, u64>,
    /// What each part under way touches, the oldest first.
    parts: VecDeque<(u64, Vec<u64>)>,
    /// What the target's catalogs said of tables that parts under way change, by OID.
    facts: HashMap<u32, String>,
}

impl Order {
    /// Parts up to this one are committed.
    pub fn done(&mut self, number: u64) {
        self.done = self.done.max(number);
        while self
            .parts
            .front()
            .is_some_and(|(part, _)| *part <= self.done)
        {
            let (part, touched) = self.parts.pop_front().unwrap_or_default();
            for one in touched {
                if self.touched.get(&one) == Some(&part) {
                    self.touched.remove(&one);
                }
            }
        }
        if self.parts.is_empty() {
            self.facts.clear();
        }
    }

    /// Numbers a part, and says which of its changes wait for which other part.
    pub fn plan(&mut self, part: &Part, alone: bool) -> Plan {
        self.newest += 1;
        let number = self.newest;
        let touches = match alone {
            true => None,
            // What was handed over before a new look at the catalog was cut by the old one.
            false => Touches::of(part).filter(|touches| self.agrees(touches)),
        };
        let Some(touches) = touches else {
            // Whatever follows waits for this part, and so for all before it.
            self.alone = number;
            self.touched.clear();
            self.parts.clear();
            self.facts.clear();
            return Plan::alone(number);
        };
        let plan = self.bind(number, &touches);
        let touched = touches.into_all();
        self.touched
            .extend(touched.iter().map(|&one| (one, number)));
        self.parts.push_back((number, touched));
        plan
    }

    /// The parts under way were made with the same view of the tables.
    fn agrees(&mut self, touches: &Touches) -> bool {
        touches.tables.iter().all(|table| {
            let facts = &table.reach.facts;
            let known = self.facts.entry(table.reach.oid);
            known.or_insert_with(|| facts.clone()) == facts
        })
    }

    /// The part that a change waits for; None if it is free. A row is as the newest part that touches
    /// it leaves it; a value that was another row's may be given up by any part since.
    fn waits(&self, touched: &[u64], number: u64) -> Option<u64> {
        let newest = |row: bool| {
            let of_kind = touched.iter().filter(|one| (*one & ROW == ROW) == row);
            of_kind.filter_map(|one| self.touched.get(one)).max()
        };
        match (newest(true), newest(false)) {
            (row, Some(value)) if row.is_none_or(|row| row < value) => Some(number - 1),
            (row, _) => row.copied(),
        }
    }

    fn bind(&self, number: u64, touches: &Touches) -> Plan {
        if self.alone > self.done {
            let waits = touches.all().iter().filter_map(|one| self.touched.get(one));
            return Plan {
                number,
                after: waits.copied().fold(self.alone, u64::max),
                changes: Changes::Bound(vec![true; touches.number()]),
            };
        }
        let mut after = 0;
        let mut binds: HashSet<u64> = HashSet::new();
        let mut flags: Vec<bool> = (touches.changes())
            .map(|touched| {
                let waits = self.waits(touched, number);
                after = after.max(waits.unwrap_or(0));
                waits.inspect(|_| binds.extend(touched)).is_some()
            })
            .collect();
        let mut passes = 0;
        let mut found = !binds.is_empty();
        while found {
            passes += 1;
            found = false;
            for (flag, touched) in flags.iter_mut().zip(touches.changes()) {
                let meets = touched.iter().any(|one| binds.contains(one));
                if !*flag && (meets || passes > MOST_PASSES) {
                    *flag = true;
                    binds.extend(touched);
                    found = true;
                }
            }
        }
        Plan {
            number,
            after,
            changes: Changes::Bound(flags),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::table::Table;
    use super::*;
    use crate::batch::Change;
    use crate::reach::tests::{key, table, unique};
    use crate::touches::tests::{delete, insert, moved, part, update};

    fn t() -> Arc<Table> {
        table(1, key(0), &[unique(&["b"])])
    }

    fn plan(order: &mut Order, table: &Arc<Table>, changes: Vec<Change>) -> Plan {
        let changes = changes.into_iter().map(|change| (table, change));
        order.plan(&part(changes.collect()), false)
    }

    fn bound(flags: &[u8]) -> Changes {
        Changes::Bound(flags.iter().map(|flag| *flag == 1).collect())
    }

    #[test]
    fn a_change_waits_for_the_newest_part_that_touches_the_same() {
        let (t, mut order) = (t(), Order::default());
        let first = plan(&mut order, &t, vec![insert(&["1", "x", ""])]);
        assert_eq!((first.after, first.changes), (0, bound(&[0])));
        let other = plan(&mut order, &t, vec![insert(&["2", "y", ""])]);
        assert_eq!((other.after, other.changes), (0, bound(&[0])));
        let again = plan(&mut order, &t, vec![update(&["1", "z", ""])]);
        assert_eq!((again.after, again.changes), (1, bound(&[1])));
        let newest = plan(&mut order, &t, vec![delete(&["1", "?", "?"])]);
        assert_eq!((newest.number, newest.after), (4, 3));
    }

    #[test]
    fn a_value_that_another_row_has_had_may_be_given_up_by_any_part_since() {
        let (t, mut order) = (t(), Order::default());
        plan(&mut order, &t, vec![insert(&["1", "x", ""])]);
        plan(&mut order, &t, vec![insert(&["2", "y", ""])]);
        let same_row = plan(&mut order, &t, vec![update(&["1", "x", ""])]);
        assert_eq!((same_row.after, same_row.changes), (1, bound(&[1])));
        plan(&mut order, &t, vec![delete(&["1", "?", "?"])]);
        let other = plan(&mut order, &t, vec![insert(&["4", "x", ""])]);
        assert_eq!((other.after, other.changes), (4, bound(&[1])));
    }

    #[test]
    fn what_is_committed_binds_nothing() {
        let (t, mut order) = (t(), Order::default());
        plan(&mut order, &t, vec![insert(&["1", "x", ""])]);
        plan(&mut order, &t, vec![update(&["1", "y", ""])]);
        order.done(1);
        let two = plan(&mut order, &t, vec![insert(&["2", "x", ""])]);
        assert_eq!(two.changes, bound(&[0]), "x was part 1's");
        order.done(2);
        let one = plan(&mut order, &t, vec![update(&["1", "z", ""])]);
        assert_eq!(one.changes, bound(&[0]));
        order.done(4);
        assert!(order.touched.is_empty() && order.parts.is_empty() && order.facts.is_empty());
    }

    #[test]
    fn a_bound_change_binds_those_of_its_part_that_touch_the_same() {
        let (t, mut order) = (t(), Order::default());
        plan(&mut order, &t, vec![update(&["1", "x", ""])]);
        // Row 7 makes room for row 1, of which part 1 is.
        let changes = vec![
            moved(&["7", "?", "?"], &["8", "k", ""]),
            moved(&["1", "?", "?"], &["7", "m", ""]),
            insert(&["9", "n", ""]),
        ];
        let plan = plan(&mut order, &t, changes);
        assert_eq!((plan.after, &plan.changes), (1, &bound(&[1, 1, 0])));
        assert!(plan.has(true) && plan.has(false));
    }

    #[test]
    fn chains_of_any_length_stay_together() {
        let (t, mut order) = (t(), Order::default());
        plan(&mut order, &t, vec![update(&["0", "x", ""])]);
        // The last is bound first: each pass finds one more.
        let step = |number: u32| {
            let (from, to) = (number.to_string(), (number + 1).to_string());
            moved(&[&from, "?", "?"], &[&to, &format!("v{number}"), ""])
        };
        let plan = plan(&mut order, &t, (0..40).rev().map(step).collect());
        let Changes::Bound(flags) = &plan.changes else {
            panic!("it is not alone");
        };
        assert!(flags.iter().all(|flag| *flag), "{flags:?}");
    }

    #[test]
    fn nothing_runs_beside_a_part_that_is_alone() {
        let (t, mut order) = (t(), Order::default());
        plan(&mut order, &t, vec![insert(&["1", "x", ""])]);
        let alone = order.plan(&part(vec![(&t, insert(&["2", "y", ""]))]), true);
        assert_eq!(alone, Plan::alone(2));
        assert_eq!(alone.after, 1);
        let next = plan(&mut order, &t, vec![insert(&["3", "z", ""])]);
        assert_eq!((next.after, next.changes), (2, bound(&[1])));
        let one = plan(&mut order, &t, vec![insert(&["3", "z", ""])]);
        assert_eq!((one.after, one.changes), (3, bound(&[1])));
        order.done(2);
        let free = plan(&mut order, &t, vec![insert(&["5", "v", ""])]);
        assert_eq!(free.changes, bound(&[0]));
    }

    #[test]
    fn a_table_that_reaches_further_than_it_did_is_done_alone_once() {
        let (old, mut order) = (t(), Order::default());
        plan(&mut order, &old, vec![insert(&["1", "x", ""])]);
        let mut new = (*old).clone();
        new.reach.facts.push_str(" and another index");
        let new = Arc::new(new);
        assert!(plan(&mut order, &new, vec![insert(&["2", "y", ""])]).is_alone());
        assert!(!plan(&mut order, &new, vec![insert(&["3", "z", ""])]).is_alone());
    }
}
