//! Serving clients: as if the relay were the primary.
//!
//! | module | what |
//! |---|---|
//! | [`listener`] | where the relay listens; a connection from first to last |
//! | `doorway`, `places` | how many may log in at a time, and how many sessions there may be |
//! | `front` | what comes before a session: encryption, cancel requests |
//! | [`tls`] | TLS towards clients |
//! | `login`, `authenticate` | a login, which the primary judges |
//! | [`pass`] | a session, passed through or streamed |
//! | `aside` | a session's connection to the primary while the relay streams |
//! | `pump`, `exchange` | bytes both ways; whether a session is idle |
//! | `statements` | SQL of a session that concerns replication slots |
//! | `shown` | `SHOW` without the primary |
//! | `standing` | what the primary says about a session |
//! | `local`, [`console_session`] | sessions that the relay answers itself |
//! | `extended`, `binary` | the extended protocol of the console |
//! | [`upstream_leg`] | a session's connection to the primary |
//! | [`transport`], `frames`, `fields` | bytes, messages and their fields |
//! | [`stop`] | how all of it is told to stop |
//!
//! Limits: sessions ([`listener::SESSIONS`]), connections that are not logged in, time to begin
//! ([`listener::STARTUP_DEADLINE`]) and to log in ([`listener::LOGIN_DEADLINE`]), start packets (10,000
//! bytes as a server's), messages during a login (128 kB), queries that the relay looks at (64 kB), and
//! as many of these as are prepared and concern slots (64); what else is passed through has no limit
//! and is not collected: two buffers of 16 kB are a session's memory.
//!
//! The primary sees the relay's address, not the client's: what `pg_hba.conf` says of the
//! relay holds for all of its clients. An entry for the relay must ask for a password;
//! `trust`, `peer`, `ident` and client certificates would be judged by the relay's own.

mod aside;
mod authenticate;
mod binary;
pub mod console_session;
mod doorway;
mod exchange;
mod extended;
mod fields;
mod frames;
mod front;
pub mod listener;
mod local;
mod login;
pub mod pass;
mod places;
mod pump;
pub mod rights;
mod shown;
mod standing;
mod statements;
pub mod stop;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod transport;
pub mod upstream_leg;

pub(crate) use binary::{PG_LSN, TIMESTAMPTZ};
pub use console_session::ConsoleLogin;
pub use listener::{Limits, Listen, ListenError, Listener, Service, Terms};
pub use rights::{ConsoleService, Rights};
pub use stop::{Stop, Stopper};
pub use tls::Tls;
pub use upstream_leg::{Finding, Primary, PrimaryAddress, TlsToPrimary, Verify};
