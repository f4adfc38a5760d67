//! How fast a server replays: fixed WAL of known workloads, from data that is cached, partly
//! cached or cold.
//!
//! | module | what |
//! |---|---|
//! | [`case`] | what `bench replay` measures, by name |
//! | [`curve`], [`knee`] | what `bench load-curve` measures; the search for its rates |
//! | [`parallel`] | the settings with which Lockstep replays in both |
//! | [`production`], [`sysbench`] | writes as in production, and of another project's load generator |
//! | [`work`] | makes the WAL |
//! | [`wal_contents`] | what it is made of, and how fast its replay is simulated to be |
//! | [`shelf`] | keeps it between runs |
//! | [`temperature`], [`cache`] | what is in memory |
//! | [`slow_reads`] | storage with a read latency |
//! | [`helpers`] | what replay helpers did |
//! | [`placement`] | where a standby gets its WAL from, and its cores |
//! | [`round`] | streams WAL to a standby and measures |
//! | [`local`] | the same with WAL in `pg_wal` |
//! | [`crash`] | recovery of a primary that was killed |

pub mod cache;
pub mod case;
pub mod crash;
pub mod curve;
pub mod helpers;
mod horizon;
pub mod knee;
pub mod local;
pub mod parallel;
pub mod placement;
mod production;
pub mod round;
pub mod shelf;
pub mod slow_reads;
pub mod sysbench;
pub mod temperature;
pub mod wal_contents;
pub mod work;
