//! The relay: its groups and sessions, and what it does every second.

use std::collections::BTreeMap;

use lockstep_relay::fault::Fault;
use lockstep_simulation::primary::{Primary, Upstream};
use lockstep_spool::Limits;

use super::feed::Feed;
use super::house::House;
use super::sessions::Session;
use super::subscriber::Subscriber;

/// See the module.
pub struct Relay {
    /// Groups by name.
    pub feeds: BTreeMap<String, Feed>,
    pub house: House,
    /// Sessions by subscriber.
    pub sessions: Vec<Option<Session>>,
}

impl Relay {
    pub fn new(limits: Limits, batched: bool, fault: Option<Fault>, random: fastrand::Rng) -> Self {
        Self {
            feeds: BTreeMap::new(),
            house: House::new(limits, batched, fault, random),
            sessions: Vec::new(),
        }
    }

    /// Makes a group whose slot is a copy of one that has confirmed `start`. False if that is
    /// not finished: the primary may have the slot by then.
    pub fn make_group(&mut self, name: &str, start: u64, primary: &mut Primary) -> bool {
        let upstream = Upstream::at(start);
        primary.upstreams.insert(name.to_owned(), upstream);
        if self.house.random.u8(..10) == 0 {
            return false;
        }
        let feed = Feed::new(name, start, &self.house);
        self.feeds.insert(name.to_owned(), feed);
        self.house.counts.made += 1;
        true
    }

    /// Removes groups that no slot uses.
    pub fn forget_unused(&mut self, primary: &mut Primary) {
        let unused = |name: &&String| self.house.book.saved(name).is_none();
        let unused: Vec<String> = self.feeds.keys().filter(unused).cloned().collect();
        for name in unused {
            if let Some(mut feed) = self.feeds.remove(&name) {
                feed.disconnect(&mut self.house);
                primary.upstreams.remove(&name);
                self.house.counts.forgotten += 1;
            }
        }
    }

    /// One of the groups, if there is one.
    pub fn any(&mut self) -> Option<(&mut Feed, &mut House)> {
        let house = &mut self.house;
        let feed = house.random.choice(self.feeds.values_mut())?;
        Some((feed, house))
    }

    /// One of the groups receives.
    pub fn receive(&mut self, actions: usize, primary: &Primary) {
        if let Some((feed, house)) = self.any() {
            feed.receive(actions, primary, house);
        }
    }

    /// Something is done for each group.
    pub fn each(&mut self, mut what: impl FnMut(&mut Feed, &mut House)) {
        for feed in self.feeds.values_mut() {
            what(feed, &mut self.house);
        }
    }

    /// What a relay does every second.
    pub fn keep_house(&mut self) {
        if let Err(error) = self.house.book.save_if_moved() {
            self.house.arranged(&error, None);
        }
        self.each(|feed, house| feed.retain(house));
    }

    /// Other threads of the relay may do something just then.
    pub fn meanwhile(&mut self, primary: &Primary) {
        if self.house.random.bool() {
            for _ in 0..self.house.random.u8(1..4) {
                self.receive(40, primary);
                self.each(|feed, _| feed.sync());
            }
        }
        if self.house.random.bool() {
            self.keep_house();
        }
    }

    pub fn has_stopped(&self) -> bool {
        let stopped = |feed: &Feed| feed.disk.has_stopped();
        self.house.book_disk.has_stopped() || self.feeds.values().any(stopped)
    }

    pub fn is_poisoned(&self) -> bool {
        self.feeds
            .values()
            .any(|feed| feed.log.poisoned().is_some())
    }

    /// The process stops, or the machine, and starts again. Whoever was connected is not.
    pub fn restart(&mut self, crash: bool, orderly: bool) {
        if orderly {
            self.each(|feed, house| {
                feed.stop(house);
                feed.sync();
            });
            self.keep_house();
        }
        self.sessions.iter_mut().for_each(|session| *session = None);
        // It may have stopped just now.
        let crash = crash || self.has_stopped();
        self.house.reopen(crash);
        self.each(|feed, house| {
            feed.disconnect(house);
            feed.reopen(crash, house);
        });
    }

    /// What holds at all times.
    pub fn check(&self) {
        self.feeds.values().for_each(|feed| feed.check(&self.house));
        for slot in self.house.book.all() {
            let route = slot.route();
            let next = route.next.filter(|next| !next.group.is_empty());
            for group in [Some(route.group), next.map(|next| next.group)] {
                let is_there = group.is_none_or(|group| self.feeds.contains_key(&group));
                assert!(is_there, "{} reads a group that is gone", slot.name);
            }
        }
    }

    /// Whether a stream waits for room.
    pub fn is_blocked(&self) -> bool {
        self.feeds.values().any(Feed::is_blocked)
    }
}

/// Takes a subscriber's connection away on both ends.
pub fn part(relay: &mut Relay, number: usize, subscriber: &mut Subscriber, primary: &Primary) {
    relay.sessions[number] = None;
    subscriber.disconnect(primary);
}
