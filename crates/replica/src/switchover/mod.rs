//! A switchover: all writing moves to a replica's target, with a way back.
//!
//! | module | what |
//! |---|---|
//! | `there` | the server to which a pooler leads |
//! | `pgbouncer` | PgBouncer's clients wait, and go on |
//! | [`haproxy`] | new sessions of HAProxy wait, and are led to the target |
//! | [`pooler`] | either of them |
//! | `reverse` | the replica for the way back |
//! | [`readiness`] | what would make it fail, seen before; the rules do no I/O |
//! | [`decision`] | what comes next; no I/O |
//! | [`left`] | what a command leaves that ends in the middle, in words; no I/O |
//! | [`drive`] | asks that, and has it done, by servers or by a simulation |
//! | [`run`] | does it, on servers |
//! | [`rollback`] | back to the server that was left |

pub mod decision;
pub mod drive;
pub mod haproxy;
pub mod left;
mod pgbouncer;
pub mod pooler;
pub mod readiness;
mod reverse;
pub mod rollback;
pub mod run;
mod there;
