//! Generates one session's statements: episodes are chosen by weight, each a few statements
//! that belong together.
//!
//! A session works on tables that all sessions share (see [`super::setup`]) and on objects of
//! its own, whose names hold the session's number. It ends all that it began: transactions are
//! closed, and prepared transactions are finished.

use std::cell::{Cell, RefCell};

use fastrand::Rng;

use crate::random::script::{Action, Statement};
use crate::random::{Feature, indexes, rows, server_wide, tables, transactions};

/// Multiplier that spreads the session's number over the bits of the seed.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Most prepared transactions that a session leaves open at a time. Few are best, since their
/// locks make other sessions' statements fail.
pub(crate) const MOST_PREPARED: usize = 2;

type Episode = fn(&mut Session);

/// All episodes with their weights.
const EPISODES: &[(u32, Episode)] = &[
    (8, rows::insert),
    (8, rows::update),
    (6, rows::delete),
    (4, rows::upsert),
    (8, rows::hot_chain),
    (4, rows::prune),
    (6, rows::recycle),
    (4, rows::insert_select),
    (4, rows::copy),
    (5, rows::toast),
    (4, rows::toast_unchanged),
    (4, rows::toast_replaced),
    (8, rows::wide),
    (3, rows::exclusion),
    (5, transactions::savepoints),
    (2, transactions::many_subtransactions),
    (6, transactions::two_phase),
    (4, transactions::finish_prepared),
    (8, transactions::multixact),
    (4, transactions::foreign_key),
    (6, indexes::churn),
    (2, indexes::prefixes),
    (3, indexes::concurrently),
    (2, indexes::reindex),
    (2, indexes::clean_pending),
    (2, indexes::summarize),
    (5, tables::partition_rows),
    (3, tables::partition_life),
    (3, tables::truncate),
    (5, tables::vacuum),
    (1, tables::vacuum_catalog),
    (2, tables::vacuum_truncates),
    (2, tables::cluster),
    (3, tables::private_life),
    (2, tables::create_rolled_back),
    (3, tables::alter),
    (2, tables::rewrite),
    (2, tables::materialized_view),
    (2, tables::unlogged),
    (2, tables::temporary),
    (3, server_wide::sequences),
    (2, server_wide::sequence_life),
    (3, server_wide::large_objects),
    (1, server_wide::database),
    (2, server_wide::tablespace),
    (1, server_wide::checkpoint),
    (1, server_wide::switch_wal),
    (2, server_wide::messages),
    (1, server_wide::origin),
    (3, server_wide::catalog),
];

/// A session whose statements are being generated.
pub(crate) struct Session {
    /// A cell, because a random number is often drawn in an argument of [`Session::sql`]. Each
    /// draw borrows it only for its own call.
    rng: RefCell<Rng>,
    number: u32,
    made: Cell<u32>,
    statements: Vec<Statement>,
    /// Prepared transactions that are left open, oldest first.
    pub(crate) prepared: Vec<String>,
}

impl Session {
    pub(crate) fn new(seed: u64, number: u32) -> Self {
        let own = seed ^ (u64::from(number) + 1).wrapping_mul(SPREAD);
        Self {
            rng: RefCell::new(Rng::with_seed(own)),
            number,
            made: Cell::new(0),
            statements: Vec::new(),
            prepared: Vec::new(),
        }
    }

    /// Adds whole episodes until there are at least `wanted` statements.
    pub(crate) fn generate(mut self, wanted: u32) -> Vec<Statement> {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let total: u32 = EPISODES.iter().map(|(weight, _)| weight).sum();
        while self.statements.len() < wanted {
            let mut left = self.rng.get_mut().u32(..total);
            let chosen = EPISODES.iter().find(|(weight, _)| {
                let here = left < *weight;
                left = left.saturating_sub(*weight);
                here
            });
            if let Some((_, episode)) = chosen {
                episode(&mut self);
            }
        }
        while !self.prepared.is_empty() {
            transactions::finish_prepared(&mut self);
        }
        self.statements
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// A number from `first` to `last`.
    pub(crate) fn between(&self, first: u32, last: u32) -> u32 {
        self.rng.borrow_mut().u32(first..=last)
    }

    /// True in `percent` of all cases.
    pub(crate) fn chance(&self, percent: u32) -> bool {
        self.rng.borrow_mut().u32(..100) < percent
    }

    /// One of several words.
    pub(crate) fn one_of(&self, words: &[&'static str]) -> &'static str {
        self.rng
            .borrow_mut()
            .choice(words)
            .copied()
            .unwrap_or_default()
    }

    /// One of several values.
    pub(crate) fn choose<'a, T>(&self, values: &'a [T]) -> Option<&'a T> {
        self.rng.borrow_mut().choice(values)
    }

    /// A lowercase word of `length` letters.
    pub(crate) fn word(&self, length: u32) -> String {
        let mut rng = self.rng.borrow_mut();
        (0..length).map(|_| rng.lowercase()).collect()
    }

    /// A new name that no other object of this workload has.
    pub(crate) fn fresh(&self, kind: &str) -> String {
        format!("s{}_{kind}_{}", self.number, self.fresh_number())
    }

    /// A new number that no other object of this session has.
    pub(crate) fn fresh_number(&self) -> u32 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }

    pub(crate) fn sql(&mut self, feature: Feature, sql: impl Into<String>) {
        self.act(feature, Action::Sql(sql.into()));
    }

    pub(crate) fn act(&mut self, feature: Feature, action: Action) {
        self.statements.push(Statement { feature, action });
    }

    pub(crate) fn begin(&mut self) {
        let level = self.one_of(&[
            "",
            "",
            "",
            " ISOLATION LEVEL REPEATABLE READ",
            " ISOLATION LEVEL SERIALIZABLE",
        ]);
        self.sql(Feature::Transaction, format!("BEGIN{level}"));
    }

    /// Ends a transaction, one in five by ROLLBACK.
    pub(crate) fn end(&mut self) {
        let how = self.one_of(&["COMMIT", "COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]);
        self.sql(Feature::Transaction, how);
    }
}
