//! Ways to copy a database from one server to another, timed: Lockstep's and others'.
//!
//! | module | what |
//! |---|---|
//! | [`servers`] | source and target, what is in them, and what they used |
//! | [`cycling`] | what follows the source with pauses: a replica by cycles, a subscription |
//! | [`programs`] | ways to copy a whole database |
//! | [`streams`] | rows of one table: each server alone, `psql` twice, the loopback |
//! | [`link`] | what a copy goes through: the loopback, or a limited one |
//! | [`side_by_side`] | several copies of one database at the same time |

pub mod cycling;
pub mod link;
pub mod programs;
pub mod servers;
pub mod side_by_side;
pub mod streams;

/// What a copy took.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// Time from the first command to the end of the last.
    pub seconds: f64,
    /// The rows alone, if the way says so.
    pub copy_seconds: Option<f64>,
}

impl Took {
    /// A way that does not say how long the rows alone took.
    fn whole(seconds: f64) -> Self {
        Self {
            seconds,
            copy_seconds: None,
        }
    }
}
