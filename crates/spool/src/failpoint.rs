//! Failpoints: places where a test does something to the process that reaches them, as a rule ends it
//! the way `kill -9` would.
//!
//! Only tests plant one, and say what happens there: no option, file or variable of a program does,
//! which `crates/cli/tests/cli/house.rs` holds. Where none is planted, to reach one is a look at a
//! variable that never changes. Each crate lists its own with [`failpoints!`](crate::failpoints).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A place that is reached, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failpoint(&'static str);

/// What happens where.
struct Planted {
    at: Failpoint,
    /// Times that the failpoint is still reached without anything happening.
    left: AtomicU32,
    act: Box<dyn Fn() + Send + Sync>,
}

static PLANTED: OnceLock<Planted> = OnceLock::new();

impl Failpoint {
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    pub fn name(self) -> &'static str {
        self.0
    }

    /// The process is here.
    pub fn reach(self) {
        let Some(planted) = PLANTED.get() else {
            return;
        };
        // It happens once: the number begins anew only after all others.
        if planted.at == self && planted.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            (planted.act)();
        }
    }

    /// `act` happens when this process has been here `before` times and comes again. A process has
    /// one failpoint: false if there is another already.
    pub fn plant(self, before: u32, act: impl Fn() + Send + Sync + 'static) -> bool {
        let planted = Planted {
            at: self,
            left: AtomicU32::new(before),
            act: Box::new(act),
        };
        PLANTED.set(planted).is_ok()
    }
}

/// Makes a constant for each failpoint of a crate, and `ALL`, the table of them.
#[macro_export]
macro_rules! failpoints {
    ($($(#[doc = $what:literal])* $constant:ident = $name:literal;)*) => {
        $($(#[doc = $what])* pub const $constant: $crate::failpoint::Failpoint =
            $crate::failpoint::Failpoint::new($name);)*

        /// All failpoints of the crate.
        pub const ALL: &[$crate::failpoint::Failpoint] = &[$($constant),*];
    };
}

failpoints! {
    /// A new segment's file is there, without its name.
    SEGMENT_MADE = "spool-segment-made";
    /// Frames are in the file, not durable.
    APPENDED = "spool-appended";
    /// A new segment is durable, and has not got its name.
    SEGMENT_DURABLE = "spool-segment-durable";
    /// All that was appended is durable, and nobody knows.
    SYNCED = "spool-synced";
    /// The oldest segment is removed, which is not durable.
    SEGMENT_REMOVED = "spool-segment-removed";
    /// A unit that will come again is to be cut off the file.
    CUT = "spool-cut";
    /// What was not whole is cut off a log that is being opened, which is not durable.
    RECOVERED = "spool-recovered";
}
