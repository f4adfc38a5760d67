//! Names that mark what random workloads may change.

/// The schema that a workload works in. The set-up replaces it.
pub const SCHEMA: &str = "lockstep_random";

/// The beginning of the names of all objects outside the schema, and of the names of the
/// databases in which [`run_on`](crate::random::run_on) works without `any_database`.
pub const PREFIX: &str = "lockstep_random";
