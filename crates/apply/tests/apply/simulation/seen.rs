//! Counts of what a run came by: what is never come by is not checked.

/// What a run came by.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub commits: u64,
    pub ahead: u64,
    pub again: u64,
    pub parts: u64,
    pub crashes: u64,
    pub conflicts: u64,
    pub blocked: u64,
    pub holds: u64,
    pub deadlocks: u64,
    pub in_the_way: u64,
    pub spooled: u64,
    /// Cycles, those that were committed, that had several parts, changed nothing, answered a request, began
    /// late, and were begun again.
    pub cycles: u64,
    pub in_cycle_parts: u64,
    pub empty_cycles: u64,
    pub forced_cycles: u64,
    pub late_cycles: u64,
    pub cycles_again: u64,
    pub more_writers: u64,
    pub fewer_writers: u64,
    pub no_room: u64,
    /// Commands that were handed over.
    pub commands: u64,
    /// Commits after which some were on disk that nobody had waited for.
    pub flushed_later: u64,
}

impl Seen {
    fn numbers(&self) -> [u64; 22] {
        [
            self.commits,
            self.ahead,
            self.again,
            self.parts,
            self.crashes,
            self.conflicts,
            self.blocked,
            self.holds,
            self.deadlocks,
            self.in_the_way,
            self.spooled,
            self.cycles,
            self.in_cycle_parts,
            self.empty_cycles,
            self.forced_cycles,
            self.late_cycles,
            self.cycles_again,
            self.more_writers,
            self.fewer_writers,
            self.no_room,
            self.commands,
            self.flushed_later,
        ]
    }

    pub fn least(&self) -> u64 {
        self.numbers().into_iter().min().unwrap_or(0)
    }

    pub fn add(&mut self, more: &Self) {
        self.commits += more.commits;
        self.ahead += more.ahead;
        self.again += more.again;
        self.parts += more.parts;
        self.crashes += more.crashes;
        self.conflicts += more.conflicts;
        self.blocked += more.blocked;
        self.holds += more.holds;
        self.deadlocks += more.deadlocks;
        self.in_the_way += more.in_the_way;
        self.spooled += more.spooled;
        self.cycles += more.cycles;
        self.in_cycle_parts += more.in_cycle_parts;
        self.empty_cycles += more.empty_cycles;
        self.forced_cycles += more.forced_cycles;
        self.late_cycles += more.late_cycles;
        self.cycles_again += more.cycles_again;
        self.more_writers += more.more_writers;
        self.fewer_writers += more.fewer_writers;
        self.no_room += more.no_room;
        self.commands += more.commands;
        self.flushed_later += more.flushed_later;
    }
}
