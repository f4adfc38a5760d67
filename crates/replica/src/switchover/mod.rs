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
//! | [`run`] | does that |
//! | [`rollback`] | back to the server that was left |

pub mod decision;
pub mod haproxy;
mod pgbouncer;
pub mod pooler;
pub mod readiness;
mod reverse;
pub mod rollback;
pub mod run;
mod there;
