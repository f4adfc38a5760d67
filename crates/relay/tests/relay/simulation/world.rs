//! Relay, primary and clients together, driven by chance, and what goes wrong.

use lockstep_relay::fault::Fault;
use lockstep_relay::send::sender::Event;
use lockstep_simulation::disk::Disk;
use lockstep_simulation::primary::{Primary, START, Sizes, Unit, Wish};
use lockstep_spool::Limits;
use lockstep_wire::backend::Report;

use super::counts::Counts;
use super::relay::{Relay, part};
use super::sessions::{Started, name};
use super::subscriber::Subscriber;

/// Most subscribers.
const SUBSCRIBERS: usize = 5;

/// Rounds in which all must catch up once nothing goes wrong any more.
const QUIET: usize = 3_000;

const SMALL: Sizes = Sizes {
    most_changes: 10,
    most_bytes: 120,
    long_one_in: 100,
    long_bytes: 5_000,
};

/// Sizes of which a small spool holds several.
const TIGHT: Sizes = Sizes {
    long_bytes: 1_000,
    ..SMALL
};

/// Longer than a chunk, a segment, the cache.
const LARGE: Sizes = Sizes {
    most_changes: 6,
    most_bytes: 30_000,
    long_one_in: 20,
    long_bytes: 700_000,
};

/// See the module.
pub struct World {
    random: fastrand::Rng,
    primary: Primary,
    relay: Relay,
    subscribers: Vec<Subscriber>,
    large: bool,
    /// Subscriptions are altered.
    alters: bool,
    /// Nothing is removed before there is no room: a spool is full most of the time.
    tight: bool,
    /// Number of steps for which the disk is still full.
    full: Option<u32>,
    show: bool,
}

fn caches(large: bool) -> [u64; 4] {
    match large {
        true => [0, 300_000, 1 << 20, 8 << 20],
        false => [0, 3_000, 20_000, 1 << 20],
    }
}

impl World {
    /// A world with something wrong in the relay, if that is to be found.
    pub fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let large = random.u8(..12) == 0;
        let tight = random.u8(..5) < 2;
        let (segment, spool) = match large {
            true => (random.u64(100_000..2_000_000), 20_000_000),
            // More than twice the longest transaction.
            false if tight => (random.u64(500..3_000), random.u64(30_000..60_000)),
            false => (random.u64(1_000..20_000), 100_000),
        };
        let limits = Limits {
            cache_bytes: random.choice(caches(large)).unwrap(),
            segment_bytes: segment,
            spool_bytes: (tight || random.bool()).then_some(spool),
        };
        let mut primary = Primary::new(match large {
            true => LARGE,
            false if tight => TIGHT,
            false => SMALL,
        });
        let batched = random.bool();
        let mut relay = Relay::new(limits, batched, fault, random.fork());
        let mut subscribers = Vec::new();
        // Several groups take turns: each fills its spool less.
        let alters = random.u8(..3) > u8::from(tight);
        for number in 0..random.usize(1..SUBSCRIBERS) {
            primary.slots.insert(name(number), START);
            relay.sessions.push(None);
            let most = random.usize(20..5_000);
            subscribers.push(Subscriber::new(&primary, START, Wish::All, most));
        }
        Self {
            random,
            primary,
            relay,
            subscribers,
            large,
            alters,
            tight,
            full: None,
            show: std::env::var_os("SHOW").is_some(),
        }
    }

    /// A whole run.
    pub fn run(mut self) -> Counts {
        let steps = match self.large {
            true => self.random.usize(50..120),
            false => self.random.usize(100..500),
        };
        for step in 0..steps {
            self.step(step);
            self.after_step();
            self.check();
        }
        self.quiet();
        self.set_back();
        self.relay.house.counts
    }

    /// The primary is set back to before a transaction that a group's log still has, and writes
    /// other WAL: the group takes none of it, and leaves its slot where it is.
    fn set_back(&mut self) {
        let Some((feed, house)) = self.relay.any() else {
            return;
        };
        let wish = Wish::of(&feed.name).unwrap();
        let oldest = self.primary.first(feed.log.oldest().into());
        // Messages outside of transactions are not compared.
        let is_compared = |unit: &Unit| unit.parts_for(wish).len() > 1;
        let last = self.primary.units.iter().rposition(is_compared);
        let Some(last) = last.filter(|&last| last >= oldest) else {
            return;
        };
        let number = self.random.usize(oldest..=last);
        feed.disconnect(house);
        let end = self.primary.end;
        self.primary.end_at(self.primary.units[number].key);
        self.primary.write_past(end, &mut self.random);
        let confirmed = self.primary.upstreams[&feed.name].confirmed;
        let received = feed.log.received();
        feed.set_back = true;
        for _ in 0..QUIET {
            feed.receive(100, &self.primary, house);
            feed.deliver(&mut self.primary, house);
            assert_eq!(feed.log.received(), received, "it took other WAL");
            let now = self.primary.upstreams[&feed.name].confirmed;
            assert_eq!(now, confirmed, "it confirmed other WAL");
            if feed.refusals >= 2 {
                house.counts.refused += 1;
                return;
            }
        }
        panic!("the primary was set back, and is not refused");
    }

    fn say(&self, what: &str) {
        if self.show {
            let (relay, primary) = (&self.relay, &self.primary);
            eprintln!(
                "{what}: committed {} to {}, applied {:?}",
                primary.units.len(),
                primary.end,
                self.subscribers
                    .iter()
                    .map(|s| (s.applied, s.wish))
                    .collect::<Vec<_>>()
            );
            for (name, feed) in &relay.feeds {
                eprintln!(
                    "  {name}: {:?}, received {}, durable {}, oldest {}",
                    primary.upstreams[name],
                    u64::from(feed.log.received()),
                    u64::from(feed.log.durable()),
                    u64::from(feed.log.oldest()),
                );
            }
            for slot in relay.house.book.all() {
                eprintln!("  {}: {:?}, {}", slot.name, slot.route(), slot.confirmed());
            }
        }
    }

    fn step(&mut self, step: usize) {
        let chosen = self.random.u8(..100);
        self.say(&format!("{step} ({chosen})"));
        let number = self.random.usize(..self.subscribers.len());
        match chosen {
            0..14 => {
                for _ in 0..self.random.usize(1..6) {
                    self.primary.commit(&mut self.random);
                }
            }
            14 | 15 if self.alters => self.alter(number),
            14..34 => {
                let actions = self.random.usize(1..20);
                self.relay.receive(actions, &self.primary);
            }
            34..54 => self.serve(number),
            54..64 => self.deliver(number),
            64..70 => self.flush(number),
            70..78 => self.feedback(number),
            78..84 => self.relay.each(|feed, _| feed.sync()),
            84..90 => {
                let primary = &mut self.primary;
                self.relay.each(|feed, house| feed.deliver(primary, house));
            }
            90 | 91 if self.tight => {}
            90 | 91 => self.relay.keep_house(),
            92 if self.random.u8(..3) == 0 => self.relay.forget_unused(&mut self.primary),
            92 => self.relay.finish_adoptions(&mut self.primary),
            93 => self.primary.persist(),
            94 => {
                let spares = self.random.u8(..4) == 0;
                match self.relay.any() {
                    Some((feed, house)) if spares => feed.spare(house),
                    Some((feed, _)) => feed.lose(),
                    None => {}
                }
            }
            95 => self.leave(number),
            96 if self.random.bool() => self.leave(number),
            96 => self.join(),
            97 if self.random.u8(..4) == 0 => self.drop_slot(number),
            97 => self.join(),
            98 => self.relay_fault(),
            _ => self.disk_fault(),
        }
    }

    fn after_step(&mut self) {
        if let Some(left) = self.full {
            self.full = left.checked_sub(1);
            if self.full.is_none() {
                self.relay.each(|feed, _| feed.disk.set_room(None));
                self.relay.house.book_disk.set_room(None);
            }
        }
        let stopped = self.relay.has_stopped();
        let poisoned = self.relay.is_poisoned();
        if stopped || (poisoned && self.random.u8(..3) == 0) {
            self.relay.house.counts.poisoned += u64::from(poisoned);
            self.restart(stopped);
        }
    }

    fn restart(&mut self, crash: bool) {
        self.say(if crash { "crash" } else { "restart" });
        self.relay.house.counts.crashes += u64::from(crash);
        let orderly = !crash && self.random.u8(..3) == 0;
        for (number, subscriber) in self.subscribers.iter_mut().enumerate() {
            if let Some(link) = subscriber.link.as_mut().filter(|_| orderly) {
                self.relay.tell(number, Event::Stop);
                self.relay.serve(number, 100, 2_000, link);
                subscriber.receive(self.random.usize(..10_000), &self.primary);
            }
            part(&mut self.relay, number, subscriber, &self.primary);
        }
        self.relay.restart(crash, orderly);
        if crash {
            self.full = None;
        }
        for slot in std::mem::take(&mut self.relay.house.doubtful) {
            if self.relay.house.book.get(&slot).is_none() {
                // Who wanted that asks again.
                self.primary.slots.remove(&slot);
                self.relay.house.dropped.insert(slot);
            }
        }
    }

    /// What holds at all times.
    fn check(&self) {
        self.relay.check();
        for (number, subscriber) in self.subscribers.iter().enumerate() {
            let slot = name(number);
            if let (true, Some(at)) = (self.is_gone(number), self.primary.slots.get(&slot)) {
                // Its subscriber would not notice that it was dropped.
                subscriber.has(*at);
            }
            let gone = self.relay.house.dropped.contains(&slot)
                || self.relay.house.doubtful.contains(&slot);
            let known = self.primary.slots.contains_key(&slot);
            assert!(
                gone || known || self.relay.house.book.get(&slot).is_some(),
                "nobody has slot {slot}"
            );
        }
    }

    fn is_gone(&self, number: usize) -> bool {
        self.relay.house.dropped.contains(&name(number))
    }

    /// A subscription is dropped, but not the last.
    fn drop_slot(&mut self, number: usize) {
        let left = (0..self.subscribers.len()).filter(|number| !self.is_gone(*number));
        if left.count() > 1 && !self.is_gone(number) {
            if self.random.bool() {
                part(
                    &mut self.relay,
                    number,
                    &mut self.subscribers[number],
                    &self.primary,
                );
            }
            self.relay.drop_slot(number, &mut self.primary);
        }
    }

    /// The relay sends to a subscriber, which connects first.
    fn serve(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        if subscriber.away > 0 {
            subscriber.away -= 1;
            return;
        }
        if subscriber.link.is_none() {
            if self.relay.house.dropped.contains(&name(number)) {
                return;
            }
            let start = subscriber.start(&self.primary);
            let wish = subscriber.wish;
            match self.relay.start(number, start, wish, &mut self.primary) {
                Started::Streams(link) => subscriber.connect(*link, &self.primary),
                Started::Passed => {
                    self.relay.house.counts.passed += 1;
                    let confirmed = self.primary.slots.get(&name(number));
                    let confirmed = confirmed.expect("nobody has slot");
                    subscriber.catch_up(*confirmed, &self.primary);
                    self.primary.slots.insert(name(number), self.primary.end);
                }
                Started::Refused => {}
            }
        }
        let Some(link) = &mut subscriber.link else {
            return;
        };
        let most = match self.random.bool() {
            true => self.random.usize(1..2_000),
            false => 256 * 1024,
        };
        let actions = self.random.usize(1..16);
        self.relay.serve(number, actions, most, link);
        if self.relay.sessions[number].is_none() {
            // What is on the way may still be applied.
            subscriber.receive(self.random.usize(..10_000), &self.primary);
            part(&mut self.relay, number, subscriber, &self.primary);
        }
    }

    fn deliver(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        subscriber.receive(self.random.usize(..=subscriber.most), &self.primary);
    }

    /// Some or all of what a subscriber has applied is durable.
    fn flush(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        subscriber.durable = self.random.usize(subscriber.durable..=subscriber.applied);
        if self.random.bool() {
            subscriber.durable = subscriber.applied;
        }
    }

    /// A subscriber says how far it is; the relay hears some of what is on the way.
    fn feedback(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        let flushed = subscriber.say(&self.primary);
        let Some(link) = subscriber.link.as_mut().filter(|link| !link.done) else {
            return;
        };
        if link.over {
            link.done = true;
            return self.relay.tell(number, Event::ClientDone);
        }
        link.feedback.push(flushed);
        while !link.feedback.is_empty() && self.random.u8(..3) > 0 {
            let chosen = self.random.usize(..link.feedback.len());
            let flushed = link.feedback.swap_remove(chosen);
            let reply = self.random.u8(..4) == 0;
            self.relay.heed(number, flushed, reply);
        }
    }

    /// A subscriber ends the copy, sends nonsense, loses its connection or stops; perhaps
    /// for long.
    fn leave(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        if let Some(link) = &mut subscriber.link {
            match self.random.u8(..6) {
                0 => {
                    link.done = true;
                    return self.relay.tell(number, Event::ClientDone);
                }
                1 => {
                    let why = Report::fatal("08P01", "nonsense");
                    self.relay.tell(number, Event::ClientGone(Some(why)));
                    self.relay.serve(number, 1, 1, link);
                    subscriber.receive(self.random.usize(..10_000), &self.primary);
                }
                _ => {}
            }
        }
        part(&mut self.relay, number, subscriber, &self.primary);
        if self.random.bool() {
            self.relay.house.counts.undone += u64::from(subscriber.durable < subscriber.applied);
            subscriber.crash(&self.primary);
        }
        if self.random.u8(..3) == 0 {
            subscriber.away = self.random.u32(1..20);
        }
    }

    /// A subscription asks for something else from now on, and connects again for that.
    fn alter(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        subscriber.wish = self.random.choice(Wish::ALL).unwrap();
        part(&mut self.relay, number, subscriber, &self.primary);
    }

    /// Somebody new, who has a copy of everything up to some point.
    fn join(&mut self) {
        let Some(unit) = self.random.choice(&self.primary.units) else {
            return;
        };
        let origin = self.random.choice([unit.key, unit.end]).unwrap();
        if self.subscribers.len() >= SUBSCRIBERS {
            return;
        }
        let slot = name(self.subscribers.len());
        self.primary.slots.insert(slot, origin);
        self.relay.sessions.push(None);
        let most = self.random.usize(20..5_000);
        let wish = match self.alters {
            true => self.random.choice(Wish::ALL).unwrap(),
            false => Wish::All,
        };
        self.subscribers
            .push(Subscriber::new(&self.primary, origin, wish, most));
    }

    fn relay_fault(&mut self) {
        match self.random.u8(..4) {
            0 => self.restart(false),
            1 => self.restart(true),
            2 => {
                // What a process that was killed has left is not yet on the disk.
                self.restart(false);
                self.restart(true);
            }
            _ => {
                self.relay.each(|feed, _| feed.lose());
                self.primary.restart();
            }
        }
    }

    fn disk_fault(&mut self) {
        let Some((feed, house)) = self.relay.any() else {
            return;
        };
        let (disk, book) = (&feed.disk, &house.book_disk);
        let random = &mut self.random;
        match random.u8(..5) {
            0 if random.bool() => disk.refuse_sync(true),
            0 => {
                house.book_fails = true;
                book.refuse_sync(true);
            }
            1 if random.bool() => disk.stop_after(random.u64(..60)),
            1 => {
                house.book_fails = true;
                book.stop_after(random.u64(..10));
            }
            2 | 3 => {
                let left = random.usize(..2_000);
                disk.set_room(Some(disk.used() + left));
                house.book_fails = true;
                book.set_room(Some(book.used() + left));
                self.full = Some(random.u32(1..30));
            }
            _ => {
                house.limits.cache_bytes = random.choice(caches(self.large)).unwrap();
                let limits = house.limits;
                self.relay.each(|feed, _| feed.log.set_limits(limits));
            }
        }
    }

    /// Nothing goes wrong any more: all catch up.
    fn quiet(&mut self) {
        let crash = self.random.bool();
        self.restart(crash);
        let heal = |disk: &Disk| {
            disk.set_room(None);
            disk.refuse_sync(false);
            disk.stop_after(u64::MAX);
        };
        self.relay.each(|feed, _| heal(&feed.disk));
        heal(&self.relay.house.book_disk);
        for _ in 0..QUIET {
            if self.is_caught_up() {
                return;
            }
            if self.relay.is_poisoned() {
                self.restart(false);
            }
            let primary = &mut self.primary;
            self.relay.each(|feed, house| {
                feed.receive(100, primary, house);
                feed.sync();
                feed.deliver(primary, house);
            });
            for number in 0..self.subscribers.len() {
                self.serve(number);
                self.subscribers[number].receive(usize::MAX, &self.primary);
                self.subscribers[number].durable = self.subscribers[number].applied;
                self.feedback(number);
            }
            self.relay.keep_house();
            self.relay.finish_adoptions(&mut self.primary);
            self.check();
        }
        self.show = true;
        self.say("at last");
        let blocked = self.relay.is_blocked();
        panic!("it does not catch up (waiting for room: {blocked})");
    }

    fn is_caught_up(&self) -> bool {
        let confirmed = |slot| slot == self.primary.end;
        let upstreams = self.relay.feeds.keys();
        (0..self.subscribers.len()).all(|number| self.is_gone(number) || self.has_all(number))
            && upstreams
                .into_iter()
                .all(|name| confirmed(self.primary.upstreams[name].confirmed))
    }

    /// Whether a subscriber has everything, as it asks for it.
    fn has_all(&self, number: usize) -> bool {
        let (subscriber, slot) = (&self.subscribers[number], name(number));
        let end = self.primary.end;
        let has_all = subscriber.flushed(&self.primary) == end;
        has_all
            && match (self.relay.house.book.get(&slot), subscriber.wish.group()) {
                (None, None) => self.primary.slots[&slot] == end,
                (Some(slot), Some(group)) => {
                    let route = slot.route();
                    let read = route.next.map_or(route.group, |next| next.group);
                    read == group && u64::from(slot.saved()) == end
                }
                _ => false,
            }
    }
}
