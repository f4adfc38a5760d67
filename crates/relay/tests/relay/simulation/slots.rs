//! What becomes of slots: adopted, sent another way, given back, dropped, as the relay decides.

use std::sync::Arc;

use lockstep_relay::adoption::{self, Action, Adoption, Drop, Event, Verdict};
use lockstep_relay::error::Result;
use lockstep_relay::routes::{self, Choice, Wanted};
use lockstep_relay::slots::{Route, Slot};
use lockstep_simulation::primary::{Primary, Wish, slot_state};

use super::relay::Relay;
use super::sessions::{Started, name};

impl Relay {
    /// What `slot_commands` does.
    pub fn adopt(
        &mut self,
        slot: &str,
        wish: Wish,
        primary: &mut Primary,
    ) -> Result<Arc<Slot>, Started> {
        let Some(group) = wish.group() else {
            return Err(Started::Passed);
        };
        let found = primary.slots.get(slot);
        let found = found.map(|confirmed| slot_state("pgoutput", *confirmed));
        let confirmed = match adoption::verdict(found.as_ref(), "d", false) {
            Verdict::Adopt(confirmed) => confirmed,
            other => panic!("{slot}: {other:?}"),
        };
        if !self.feeds.contains_key(group) && !self.make_group(group, confirmed.into(), primary) {
            return Err(Started::Refused);
        }
        let mut adoption = Adoption::begin().with_fault(self.house.fault);
        let mut added = None;
        loop {
            if self.house.random.u8(..4) == 0 {
                self.meanwhile(primary);
            }
            let done = match adoption.poll() {
                Action::Add => {
                    let route = Route {
                        group: group.to_owned(),
                        next: None,
                    };
                    let reaches = || self.feeds[group].fitting().begins <= confirmed;
                    let book = &self.house.book;
                    match book.add(slot, "d", route, confirmed, 0, reaches) {
                        Ok(Ok(slot)) => {
                            added = Some(slot);
                            Ok(())
                        }
                        Ok(Err(why)) => {
                            adoption.handle(why.into());
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
                Action::DropAtPrimary => {
                    adoption.handle(self.drop_at_primary(slot, primary));
                    continue;
                }
                Action::Settle => self.house.book.adopted(added.as_ref().unwrap()),
                Action::TakeBack => self.house.book.remove(slot).map(drop),
                Action::Serve => return Ok(added.unwrap()),
                Action::Pass(adoption::BEHIND) => return Err(Started::Passed),
                Action::Pass(_) => return Err(Started::Refused),
            };
            if let Err(error) = done {
                self.house.arranged(&error, None);
                return Err(Started::Refused);
            }
            adoption.handle(Event::Done);
        }
    }

    fn drop_at_primary(&mut self, slot: &str, primary: &mut Primary) -> Event {
        match self.house.random.u8(..8) {
            0 => Event::Refused,
            1 => Event::NoAnswer,
            2 => {
                primary.slots.remove(slot);
                Event::NoAnswer
            }
            _ => {
                primary.slots.remove(slot);
                Event::Done
            }
        }
    }

    /// What `Relay::finish_adoptions` does.
    pub fn finish_adoptions(&mut self, primary: &mut Primary) {
        for slot in self.house.book.all() {
            if slot.is_adopting() {
                self.house.counts.resumed += 1;
                self.finish_adoption(&slot, primary);
            }
        }
    }

    fn finish_adoption(&mut self, slot: &Slot, primary: &mut Primary) {
        let mut adoption = Adoption::resume();
        loop {
            let event = match adoption.poll() {
                Action::DropAtPrimary => match primary.slots.contains_key(&slot.name) {
                    true => self.drop_at_primary(&slot.name, primary),
                    false => Event::Done,
                },
                Action::Settle => {
                    if let Err(error) = self.house.book.adopted(slot) {
                        self.house.arranged(&error, None);
                        return;
                    }
                    Event::Done
                }
                _ => return,
            };
            adoption.handle(event);
        }
    }

    /// Does what `routes` says until the slot has the route that it says, or is to be given back.
    /// None if something goes wrong.
    pub fn choose(&mut self, slot: &Slot, wish: Wish, primary: &mut Primary) -> Option<Choice> {
        loop {
            let groups = |group| self.feeds.get(group).map(|feed| feed.fitting());
            let wanted = match wish.group() {
                Some(group) => Wanted::Groups(groups(group).into_iter().collect()),
                None => Wanted::Primary,
            };
            let now = slot.route();
            let fault = self.house.fault;
            let choice = routes::choose(now.clone(), slot.confirmed(), &wanted, fault);
            match &choice {
                Choice::GiveBack => return Some(choice),
                Choice::Read(route) if *route == now => return Some(choice),
                _ => self.meanwhile(primary),
            }
            let done = match &choice {
                Choice::GiveBack => return Some(choice),
                Choice::Read(route) => {
                    let begins = |group: &str| Some(self.feeds.get(group)?.fitting().begins);
                    let reaches = || routes::reaches(&now, route, slot.confirmed(), begins);
                    let taken = self.house.book.reroute(slot, route.clone(), reaches);
                    taken.map(|taken| self.house.counts.late += u64::from(!taken))
                }
                Choice::MakeGroup { like } => {
                    let start = primary.upstreams[like].confirmed;
                    if !self.make_group(wish.group().unwrap(), start, primary) {
                        return None;
                    }
                    Ok(())
                }
                Choice::Copy { group } => match self.copy_to_primary(slot, group, primary) {
                    Ok(true) => Ok(()),
                    Ok(false) => return None,
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = done {
                self.house.arranged(&error, None);
                return None;
            }
        }
    }

    /// The copy that a slot goes back to. False if the primary does not answer, or has not yet
    /// dropped what it has.
    fn copy_to_primary(&mut self, slot: &Slot, group: &str, primary: &mut Primary) -> Result<bool> {
        if slot.is_adopting() {
            self.finish_adoption(slot, primary);
        }
        if slot.is_adopting() {
            return Ok(false);
        }
        let name = &slot.name;
        assert!(!primary.slots.contains_key(name), "nobody knows of {name}");
        if !self.house.book.copying(slot)? {
            return Ok(false);
        }
        let answer = self.house.random.u8(..8);
        let at = primary.upstreams[group].confirmed;
        if answer != 0 {
            primary.slots.insert(name.clone(), at);
        }
        if answer < 2 {
            self.house.counts.useless += u64::from(answer);
            return Ok(false);
        }
        let route = routes::back_at(group.to_owned(), at.into());
        self.house.book.copied(slot, route)?;
        Ok(true)
    }

    /// `DROP_REPLICATION_SLOT`. False if it is in use or being adopted, or could not be removed.
    pub fn drop_slot(&mut self, number: usize, primary: &mut Primary) -> bool {
        let slot = name(number);
        let Some(kept) = self.house.book.get(&slot) else {
            primary.slots.remove(&slot);
            self.house.dropped.insert(slot);
            return true;
        };
        let decision = adoption::drop_slot(kept.active(), &kept.route(), kept.is_adopting());
        if matches!(decision, Drop::InUse(_) | Drop::Adopting) {
            return false;
        }
        if decision == Drop::RemoveBoth {
            let answer = self.house.random.u8(..8);
            if answer != 0 {
                primary.slots.remove(&slot);
            }
            if answer < 2 {
                // It was refused, or nobody knows.
                return false;
            }
        }
        match self.house.book.remove(&slot) {
            Ok(_) => {
                kept.end();
                let left = primary.slots.contains_key(&slot);
                assert!(!left, "{slot} is dropped, and the primary keeps WAL for it");
                self.house.counts.dropped += 1;
                self.house.dropped.insert(slot);
                true
            }
            Err(error) => {
                self.house.arranged(&error, None);
                if self.house.book_disk.has_stopped() {
                    self.house.doubtful.insert(slot);
                }
                false
            }
        }
    }
}
