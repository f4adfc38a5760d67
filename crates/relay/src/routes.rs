//! Which groups a slot reads, and when it goes back to the primary, decided without I/O.
//!
//! A subscription that was altered asks for something else than its slot reads. [`choose`]
//! says how the slot goes on, given where it stands and which groups give what is asked for.
//! Whoever drives it does what that is, and asks again where something was made. The driver
//! of a relay is `slot_commands`, that of the simulation a step of its world.
//!
//! | the slot | its subscriber asks for | choice |
//! |---|---|---|
//! | reads a group that gives it, now or next | | [`Choice::Read`], as it is |
//! | reads another group | what some group gives | [`Choice::Read`]: up to where that group begins from the old one, then from that; at once if everything before is confirmed |
//! | reads another group | what no group gives yet | [`Choice::MakeGroup`] |
//! | reads a group | what only the primary gives | [`Choice::Copy`] |
//! | is about to go back to the primary | whatever it is | [`Choice::Read`], as it is, until everything before the primary's copy is confirmed; then [`Choice::GiveBack`] |
//!
//! What holds at every moment, also if the machine stops: everything that the subscriber has
//! not confirmed is in the logs that the slot reads, or comes from the primary's copy.
//!
//! - A copy, for a new group or of the slot itself, is made of the upstream slot of the group
//!   that is read. It stands at what that group has confirmed, so the group's log has, or had,
//!   everything before; nothing is between the two.
//! - A route is taken only if what it newly reads is still in the log ([`reaches`]), and the log
//!   keeps it from then on. Segments may be removed between a choice and that.
//! - Before the primary makes a copy with the slot's name the book says that the primary may
//!   have such a slot, as it does of one that is adopted. A copy that the book does not know
//!   the position of is dropped there, never used.
//! - The slot is given back only once all before the copy is confirmed: the primary never
//!   sends that.

use lockstep_wire::Lsn;

use crate::fault::Fault;
use crate::slots::{PRIMARY, Route, Switch};

/// A group that gives what a subscriber asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitting {
    pub name: String,
    /// The group's log has everything from here on.
    pub begins: Lsn,
}

/// What a subscriber asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// What these groups give, or a new one.
    Groups(Vec<Fitting>),
    /// What only the primary gives.
    Primary,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Have the slot read this.
    Read(Route),
    /// Make a group for what is asked for, whose upstream slot is a copy of this group's, and
    /// choose again.
    MakeGroup { like: String },
    /// Have the primary copy this group's upstream slot to one with the slot's name, and the
    /// slot read what [`back_at`] says.
    Copy { group: String },
    /// Remove the slot from the book: it is the primary's.
    GiveBack,
}

/// How a slot goes on that is not in use. See the module.
pub fn choose(now: Route, confirmed: Lsn, wanted: &Wanted, fault: Option<Fault>) -> Choice {
    let mut route = now;
    if route.leaves() {
        let early = fault == Some(Fault::GivesBackUnconfirmed);
        let due = |next: &Switch| early || confirmed >= next.at;
        return match route.next.as_ref().is_some_and(due) {
            true => Choice::GiveBack,
            false => Choice::Read(route),
        };
    }
    if let Some(next) = route.next.take_if(|next| confirmed >= next.at) {
        route.group = next.group;
    }
    let Wanted::Groups(groups) = wanted else {
        return Choice::Copy { group: route.group };
    };
    let gives = |name: &str| groups.iter().any(|group| group.name == name);
    if gives(&route.group) {
        // Also if it was altered and altered back.
        route.next = None;
        return Choice::Read(route);
    }
    if route.next.as_ref().is_some_and(|next| gives(&next.group)) {
        return Choice::Read(route);
    }
    match groups.first() {
        None => Choice::MakeGroup { like: route.group },
        Some(group) if group.begins <= confirmed => Choice::Read(Route {
            group: group.name.clone(),
            next: None,
        }),
        Some(group) => Choice::Read(Route {
            next: Some(Switch {
                group: group.name.clone(),
                at: group.begins,
            }),
            ..route
        }),
    }
}

/// What a slot reads that goes back to the primary, where a copy of this group's upstream slot
/// stands at `at`.
pub fn back_at(group: String, at: Lsn) -> Route {
    Route {
        group,
        next: Some(Switch {
            group: PRIMARY.to_owned(),
            at,
        }),
    }
}

/// Whether what a slot would newly read is still in the logs. `begins` says from where on a
/// group's log has everything; None if there is no such group.
pub fn reaches(
    now: &Route,
    new: &Route,
    confirmed: Lsn,
    begins: impl Fn(&str) -> Option<Lsn>,
) -> bool {
    let has = |group: &str, from: Lsn| begins(group).is_some_and(|begins| begins <= from);
    let group = now.group == new.group || has(&new.group, confirmed);
    let next = new.next.as_ref().is_none_or(|next| {
        new.leaves() || new.next == now.next || has(&next.group, next.at.max(confirmed))
    });
    group && next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(group: &str, next: Option<(&str, u64)>) -> Route {
        Route {
            group: group.to_owned(),
            next: next.map(|(group, at)| Switch {
                group: group.to_owned(),
                at: at.into(),
            }),
        }
    }

    fn groups(fitting: &[(&str, u64)]) -> Wanted {
        let fitting = fitting.iter().map(|(name, begins)| Fitting {
            name: (*name).to_owned(),
            begins: (*begins).into(),
        });
        Wanted::Groups(fitting.collect())
    }

    #[test]
    fn a_slot_goes_where_what_is_asked_for_is() {
        let read = |group, next| Choice::Read(route(group, next));
        let make = |like: &str| Choice::MakeGroup { like: like.into() };
        let copy = |group: &str| Choice::Copy {
            group: group.into(),
        };
        let (b, c, none) = (&[("b", 300)][..], &[("c", 50)][..], &[][..]);
        // Of a slot that has confirmed 100.
        for (now, wanted, choice) in [
            (route("b", None), groups(b), read("b", None)),
            (route("a", None), groups(b), read("a", Some(("b", 300)))),
            (route("a", None), groups(c), read("c", None)),
            (route("a", None), groups(none), make("a")),
            (route("a", None), Wanted::Primary, copy("a")),
            // It has got to the next one, and not yet.
            (route("a", Some(("b", 100))), groups(b), read("b", None)),
            (route("a", Some(("b", 100))), groups(none), make("b")),
            (route("a", Some(("b", 100))), Wanted::Primary, copy("b")),
            (
                route("a", Some(("b", 101))),
                groups(b),
                read("a", Some(("b", 101))),
            ),
            (route("a", Some(("b", 101))), groups(none), make("a")),
            (route("a", Some(("b", 101))), groups(c), read("c", None)),
            (route("a", Some(("b", 101))), Wanted::Primary, copy("a")),
            // Altered, and altered back.
            (
                route("a", Some(("b", 101))),
                groups(&[("c", 1), ("a", 400)]),
                read("a", None),
            ),
            // A slot that goes back does, whatever is asked for meanwhile.
            (
                route("a", Some((PRIMARY, 101))),
                groups(&[("a", 1)]),
                read("a", Some((PRIMARY, 101))),
            ),
            (
                route("a", Some((PRIMARY, 100))),
                groups(&[("a", 1)]),
                Choice::GiveBack,
            ),
        ] {
            let said = format!("{now:?}, {wanted:?}");
            assert_eq!(choose(now, 100.into(), &wanted, None), choice, "{said}");
        }
    }

    #[test]
    fn what_is_newly_read_must_be_there() {
        let begins = |name: &str| match name {
            "a" => Some(Lsn::from(900)),
            "b" => Some(Lsn::from(300)),
            _ => None,
        };
        let now = route("a", None);
        for (new, confirmed, is_there) in [
            // What it reads already is kept for it.
            (route("a", None), 100, true),
            (route("a", Some(("b", 300))), 100, true),
            (route("a", Some(("b", 299))), 100, false),
            (route("a", Some((PRIMARY, 299))), 100, true),
            (route("b", None), 300, true),
            (route("b", None), 299, false),
            (route("c", None), 1000, false),
        ] {
            let found = reaches(&now, &new, confirmed.into(), begins);
            assert_eq!(found, is_there, "{new:?}");
        }
    }
}
