//! A subscriber: applies whole transactions, and knows what they should be.

use lockstep_simulation::primary::{Described, Primary, Wish};
use lockstep_wire::frame::{self, LOGICAL_LIMIT};
use lockstep_wire::logical::frames::scan;
use lockstep_wire::stream::FromServer;

/// What a session is to get, as the relay's book has it when the session begins.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What the slot has confirmed, and where the stream begins.
    pub confirmed: u64,
    pub from: u64,
    /// What units are sent for, up to where something else begins, and then for that; nothing
    /// once the slot goes back to the primary.
    pub wish: Wish,
    pub next: Option<(u64, Option<Wish>)>,
}

impl Plan {
    /// For what a unit with this key is sent, if it is.
    fn at(&self, key: u64) -> Option<Wish> {
        match self.next {
            Some((at, wish)) if at <= key => wish,
            _ => Some(self.wish),
        }
    }
}

/// A subscriber's end of a connection.
#[derive(Debug)]
pub struct Link {
    plan: Plan,
    /// What was sent to it, and how many bytes of that have arrived.
    pub pipe: Vec<u8>,
    arrived: usize,
    /// Versions of tables and types that this session has described.
    described: Described,
    /// Parts of the next unit that have come.
    parts: usize,
    /// Positions on the way to the relay.
    pub feedback: Vec<u64>,
    /// The subscriber's side of the copy is ended.
    pub done: bool,
    /// The relay has said that it is over.
    pub over: bool,
}

impl Link {
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            pipe: Vec::new(),
            arrived: 0,
            described: Described::default(),
            parts: 0,
            feedback: Vec::new(),
            done: false,
            over: false,
        }
    }

    /// Whether what was sent ends between two messages.
    pub fn is_between_messages(&self) -> bool {
        let mut left = self.pipe.as_slice();
        while let Some((_, length)) = frame::first(left, LOGICAL_LIMIT).unwrap() {
            left = &left[length..];
        }
        left.is_empty()
    }
}

/// See the module. Units are counted as the primary has them.
#[derive(Debug)]
pub struct Subscriber {
    /// Units that are applied, and those of them that are durable.
    pub applied: usize,
    pub durable: usize,
    /// Everything before this position was received, and the origin that its progress
    /// begins with.
    position: u64,
    origin: u64,
    first: usize,
    /// The most that it has said to be durable.
    said: u64,
    /// What it asks for.
    pub wish: Wish,
    pub link: Option<Link>,
    /// How much of what is on the way it takes at once.
    pub most: usize,
    /// Steps that it stays away.
    pub away: u32,
}

impl Subscriber {
    /// Has a copy of everything before `origin`.
    pub fn new(primary: &Primary, origin: u64, wish: Wish, most: usize) -> Self {
        let first = primary.first(origin);
        Self {
            applied: first,
            durable: first,
            position: origin,
            origin,
            first,
            said: origin,
            wish,
            link: None,
            most,
            away: 0,
        }
    }

    /// End of the last unit, of this number of units.
    fn end_of(&self, units: usize, primary: &Primary) -> u64 {
        match units > self.first {
            true => primary.units[units - 1].end,
            false => self.origin,
        }
    }

    /// Where it asks to go on.
    pub fn start(&self, primary: &Primary) -> u64 {
        self.end_of(self.applied, primary)
    }

    /// What it says is durable: all it has heard of, if that is.
    pub fn flushed(&self, primary: &Primary) -> u64 {
        match self.durable == self.applied {
            true => self.position,
            false => self.end_of(self.durable, primary),
        }
    }

    /// Says how far it has flushed.
    pub fn say(&mut self, primary: &Primary) -> u64 {
        let flushed = self.flushed(primary);
        self.said = self.said.max(flushed);
        flushed
    }

    /// A session begins.
    pub fn connect(&mut self, link: Link, primary: &Primary) {
        let Plan {
            confirmed, from, ..
        } = link.plan;
        self.has(confirmed);
        // Of what it has heard is not to come there was nothing for it.
        let applied = self.applied.max(primary.first(from));
        if self.durable == self.applied {
            self.durable = applied;
        }
        self.applied = applied;
        self.position = self.position.max(from);
        self.link = Some(link);
    }

    /// A slot stands only at what it has confirmed.
    pub fn has(&self, confirmed: u64) {
        let said = self.said;
        assert!(
            confirmed <= said,
            "the slot is at {confirmed}, {said} was confirmed"
        );
    }

    /// The primary, whose slot is at `confirmed`, has sent it everything itself, and it has
    /// confirmed that.
    pub fn catch_up(&mut self, confirmed: u64, primary: &Primary) {
        self.has(confirmed);
        self.applied = primary.units.len();
        self.durable = self.applied;
        self.position = primary.end;
        self.said = primary.end;
    }

    /// The next unit that it is to get.
    fn next(&self, plan: &Plan, primary: &Primary) -> Option<(usize, Option<Wish>)> {
        let units = primary.units.iter().enumerate().skip(self.applied);
        let mut wishes = units.map(|(number, unit)| (number, unit, plan.at(unit.key)));
        wishes.find_map(|(number, unit, wish)| match wish {
            Some(wish) if unit.parts_for(wish).is_empty() => None,
            wish => Some((number, wish)),
        })
    }

    /// The connection is gone.
    pub fn disconnect(&mut self, primary: &Primary) {
        self.link = None;
        self.position = self.start(primary);
    }

    /// The subscriber stops, and comes back with what was durable.
    pub fn crash(&mut self, primary: &Primary) {
        self.applied = self.durable;
        self.disconnect(primary);
    }

    /// Takes at most `most` bytes of what is on the way.
    pub fn receive(&mut self, most: usize, primary: &Primary) {
        let Some(link) = &mut self.link else { return };
        let mut used = 0;
        let pipe = std::mem::take(&mut link.pipe);
        let take = link.arrived.saturating_add(most).min(pipe.len());
        while let Some((found, length)) = frame::first(&pipe[used..take], LOGICAL_LIMIT).unwrap() {
            let whole = &pipe[used..used + length];
            used += length;
            let link = self.link.as_mut().unwrap();
            assert!(
                !link.over || found.tag == b'E',
                "something comes after the end"
            );
            link.over |= matches!(found.tag, b'E' | b'c');
            if link.over {
                continue;
            }
            assert_eq!(found.tag, b'd');
            match FromServer::parse(found.body).unwrap() {
                FromServer::XLogData { .. } => self.message(whole, primary),
                FromServer::Keepalive { end, .. } => {
                    let plan = self.link.as_ref().unwrap().plan;
                    if let Some((number, _)) = self.next(&plan, primary) {
                        assert!(
                            u64::from(end) <= primary.units[number].key,
                            "a keepalive says {end}, unit {number} was not sent"
                        );
                    }
                    self.position = self.position.max(end.into());
                }
            }
        }
        let link = self.link.as_mut().unwrap();
        link.pipe = pipe[used..].to_vec();
        link.arrived = take - used;
    }

    fn message(&mut self, whole: &[u8], primary: &Primary) {
        let plan = self.link.as_ref().unwrap().plan;
        let next = self.next(&plan, primary);
        let link = self.link.as_mut().unwrap();
        let message = scan(whole).next().unwrap().unwrap().message;
        if link.described.note(message) {
            assert!(link.parts > 0, "a description outside of a transaction");
            return;
        }
        let (number, wish) = next.expect("more comes than was committed");
        let unit = &primary.units[number];
        let wish = wish.expect("something comes that is for the primary to send");
        let parts = unit.parts_for(wish);
        let part = parts[link.parts];
        assert!(
            unit.frame(part) == whole,
            "unit {number} ({} to {}), part {}, for {plan:?}: another message comes",
            unit.key,
            unit.end,
            link.parts
        );
        link.described.check(part);
        link.parts += 1;
        if link.parts == parts.len() {
            link.parts = 0;
            self.applied = number + 1;
            self.position = self.position.max(unit.end);
        }
    }
}
