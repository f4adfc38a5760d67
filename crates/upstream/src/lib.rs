//! One connection to a primary, through libpq: replication slots, streaming, feedback.
//!
//! libpq itself reads the conninfo, so everything it knows works: URIs, `PG*` variables,
//! service files, `.pgpass`, `sslmode`, several hosts and `target_session_attrs`.
