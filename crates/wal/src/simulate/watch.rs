//! What helpers do in a window of records: `helper_count.c`, `helper_rule.c`. No other process needs the
//! cores here, and none of these waits for storage.

use crate::limits::{HOLD, MIN_SHARE, REST, WINDOW};

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Helpers that take records, the first ones.
    pub used: usize,
    hold: u32,
    records: u64,
    /// Records that a helper had done when their turn came.
    done: u64,
    /// Taken by helpers, and left to the startup process for good.
    pub given_back: u64,
    /// Records until helpers are tried again.
    pub rest: u64,
}

impl Watch {
    pub fn new(helpers: usize) -> Self {
        Self {
            used: helpers,
            ..Self::default()
        }
    }

    /// A record was retired.
    pub fn count(&mut self, by_helper: bool, helpers: usize, is_hot: bool) {
        self.done += u64::from(by_helper);
        self.records += 1;
        if self.records < WINDOW {
            return;
        }
        self.hold = self.hold.saturating_sub(1);
        if self.given_back > self.done && self.used > 1 {
            self.used -= 1;
            self.hold = HOLD;
        } else if self.used < helpers && self.hold == 0 {
            self.used += 1;
        }
        if is_hot && self.done < WINDOW / MIN_SHARE {
            self.rest = REST;
        }
        (self.records, self.done, self.given_back) = (0, 0, 0);
    }
}
