//! Physical replication slots, as far as a player needs them: names, and which session uses
//! each.
//!
//! They live in memory and do not hold back WAL: a recording keeps all its WAL anyway. A slot
//! that `START_REPLICATION` names is created if it does not exist, so that a standby's
//! `primary_slot_name` need not be changed.

use std::collections::BTreeMap;

use lockstep_wire::Lsn;
use lockstep_wire::backend::Report;

const MOST: usize = 64;

/// Longest name in bytes, the same as a server's limit.
const LONGEST_NAME: usize = 63;

#[derive(Debug, Default)]
pub(crate) struct Slots {
    by_name: BTreeMap<String, Slot>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    /// Where the session that used the slot will continue.
    pub restart: Option<Lsn>,
    /// The session that uses the slot now.
    user: Option<u64>,
    /// The session with which a temporary slot ends.
    temporary: Option<u64>,
}

impl Slots {
    pub fn get(&self, name: &str) -> Option<&Slot> {
        self.by_name.get(name)
    }

    pub fn create(
        &mut self,
        name: &str,
        temporary: Option<u64>,
        restart: Option<Lsn>,
    ) -> Result<(), Report> {
        let valid = (1..=LONGEST_NAME).contains(&name.len())
            && name
                .bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
        if !valid {
            return Err(Report::error(
                "42602",
                format!("replication slot name \"{name}\" is not valid"),
            )
            .hint("Use up to 63 lower case letters, digits and underscores."));
        }
        if self.by_name.contains_key(name) {
            return Err(Report::error(
                "42710",
                format!("replication slot \"{name}\" already exists"),
            ));
        }
        if self.by_name.len() >= MOST {
            return Err(Report::error("53400", "all replication slots are in use")
                .hint(format!("The WAL player has {MOST}; drop one.")));
        }
        let slot = Slot {
            restart,
            user: None,
            temporary,
        };
        self.by_name.insert(name.to_owned(), slot);
        Ok(())
    }

    /// Gives a session the use of a slot, which is created if it does not exist.
    pub fn acquire(&mut self, name: &str, session: u64) -> Result<(), Report> {
        if !self.by_name.contains_key(name) {
            self.create(name, None, None)?;
        }
        match self.by_name.get_mut(name) {
            Some(slot) if slot.user.is_none_or(|user| user == session) => {
                slot.user = Some(session);
                Ok(())
            }
            _ => Err(in_use(name)),
        }
    }

    /// Ends a session's use of a slot. WAL up to `restart` has been sent to it.
    pub fn release(&mut self, name: &str, session: u64, restart: Lsn) {
        if let Some(slot) = self.by_name.get_mut(name) {
            if slot.user == Some(session) {
                slot.user = None;
                slot.restart = Some(restart);
            }
        }
    }

    /// Removes the temporary slots of a session that has ended.
    pub fn forget(&mut self, session: u64) {
        self.by_name
            .retain(|_, slot| slot.temporary != Some(session));
    }

    pub fn drop_slot(&mut self, name: &str, session: u64) -> Result<(), Report> {
        match self.by_name.get(name) {
            None => Err(Report::error(
                "42704",
                format!("replication slot \"{name}\" does not exist"),
            )),
            Some(slot) if slot.user.is_some_and(|user| user != session) => Err(in_use(name)),
            Some(_) => {
                self.by_name.remove(name);
                Ok(())
            }
        }
    }
}

fn in_use(name: &str) -> Report {
    Report::error(
        "55006",
        format!("replication slot \"{name}\" is in use by another session"),
    )
    .hint("Give each standby a slot of its own, or none.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_user_at_a_time() {
        let mut slots = Slots::default();
        slots.acquire("a", 1).unwrap();
        assert_eq!(slots.acquire("a", 2).unwrap_err().sqlstate, "55006");
        assert_eq!(slots.drop_slot("a", 2).unwrap_err().sqlstate, "55006");
        slots.release("a", 2, Lsn::from(1));
        assert!(slots.acquire("a", 2).is_err());
        slots.release("a", 1, Lsn::from(7));
        assert_eq!(slots.get("a").unwrap().restart, Some(Lsn::from(7)));
        slots.acquire("a", 2).unwrap();
        slots.drop_slot("a", 2).unwrap();
        assert_eq!(slots.drop_slot("a", 2).unwrap_err().sqlstate, "42704");
    }

    #[test]
    fn temporary_slots_go_with_their_session() {
        let mut slots = Slots::default();
        slots.create("t", Some(1), None).unwrap();
        slots.create("p", None, None).unwrap();
        assert_eq!(slots.create("p", None, None).unwrap_err().sqlstate, "42710");
        slots.forget(1);
        assert!(slots.get("t").is_none());
        assert!(slots.get("p").is_some());
    }

    #[test]
    fn names_and_numbers_are_limited() {
        let mut slots = Slots::default();
        for name in ["", "A", "a-b", "é", &"x".repeat(64)] {
            assert_eq!(
                slots.create(name, None, None).unwrap_err().sqlstate,
                "42602"
            );
        }
        for n in 0..MOST {
            slots.create(&format!("s{n}"), None, None).unwrap();
        }
        assert_eq!(slots.acquire("more", 1).unwrap_err().sqlstate, "53400");
    }
}
