//! Counts of what runs came to: a simulation that never gets there shows
//! nothing.

use std::fmt;

/// Sums over a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Units that were cut, and subscribers that had a part of one.
    pub cuts: u64,
    pub told_of_cuts: u64,
    /// Connections on which units came that the log had.
    pub repeated: u64,
    /// Keepalives that covered a commit that was held.
    pub covering: u64,
    /// Restarts that lost some of what was received.
    pub lost: u64,
    /// Restarts after data could not be made durable.
    pub poisoned: u64,
    /// Machines that stopped, in the middle of something or not.
    pub crashes: u64,
    /// Steps that found the spool or the disk full.
    pub blocked: u64,
    /// Times that segments were removed.
    pub freed: u64,
    /// Bytes for subscribers: from memory, from the spool, descriptions put in.
    pub hits: u64,
    pub misses: u64,
    pub injected: u64,
    /// Sessions that ended within a message.
    pub silent: u64,
    /// Copies that both sides have ended.
    pub finished: u64,
    /// Adoptions that were resumed, sessions that the primary served, slots dropped.
    pub resumed: u64,
    pub passed: u64,
    pub dropped: u64,
    /// Primaries that were set back, and refused.
    pub refused: u64,
    /// Subscribers that stopped with something that was not durable.
    pub undone: u64,
    /// Groups that were made, and removed again.
    pub made: u64,
    pub forgotten: u64,
    /// Sessions that went on in another group, and choices that came too late.
    pub switched: u64,
    pub late: u64,
    /// Slots that went back to the primary, and copies of no use.
    pub returned: u64,
    pub useless: u64,
    /// Connections to the primary that were given up for others.
    pub spared: u64,
    /// Waits that were given up for an answer.
    pub urgent: u64,
}

impl Counts {
    fn rows(&self) -> [(&'static str, u64); 27] {
        [
            ("units cut", self.cuts),
            ("told of cuts", self.told_of_cuts),
            ("repeated", self.repeated),
            ("covering keepalives", self.covering),
            ("restarts with losses", self.lost),
            ("poisoned", self.poisoned),
            ("crashes", self.crashes),
            ("blocked", self.blocked),
            ("segments removed", self.freed),
            ("bytes from memory", self.hits),
            ("bytes from the spool", self.misses),
            ("bytes of descriptions", self.injected),
            ("ends within a message", self.silent),
            ("ended copies", self.finished),
            ("adoptions resumed", self.resumed),
            ("passed through", self.passed),
            ("slots dropped", self.dropped),
            ("primaries refused", self.refused),
            ("subscribers set back", self.undone),
            ("groups made", self.made),
            ("groups removed", self.forgotten),
            ("group switches", self.switched),
            ("choices too late", self.late),
            ("slots given back", self.returned),
            ("copies of no use", self.useless),
            ("connections given up", self.spared),
            ("waits given up", self.urgent),
        ]
    }

    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.told_of_cuts += other.told_of_cuts;
        self.repeated += other.repeated;
        self.covering += other.covering;
        self.lost += other.lost;
        self.poisoned += other.poisoned;
        self.crashes += other.crashes;
        self.blocked += other.blocked;
        self.freed += other.freed;
        self.hits += other.hits;
        self.misses += other.misses;
        self.injected += other.injected;
        self.silent += other.silent;
        self.finished += other.finished;
        self.resumed += other.resumed;
        self.passed += other.passed;
        self.dropped += other.dropped;
        self.refused += other.refused;
        self.undone += other.undone;
        self.made += other.made;
        self.forgotten += other.forgotten;
        self.switched += other.switched;
        self.late += other.late;
        self.returned += other.returned;
        self.useless += other.useless;
        self.spared += other.spared;
        self.urgent += other.urgent;
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        let rows = self.rows().into_iter();
        rows.filter(|row| row.1 == 0).map(|row| row.0).collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows().map(|(what, number)| format!("{what} {number}"));
        f.write_str(&rows.join(", "))
    }
}
