//! A switchover: all writing moves to a replica's target, with a way back.
//!
//! | module | what |
//! |---|---|
//! | [`pgbouncer`] | PgBouncer's clients wait, and go on |
//! | `reverse` | the replica for the way back |
//! | [`readiness`] | what would make it fail, seen before; the rules do no I/O |
//! | [`decision`] | what comes next; no I/O |
//! | [`run`] | does that |

pub mod decision;
pub mod pgbouncer;
pub mod readiness;
mod reverse;
pub mod run;
