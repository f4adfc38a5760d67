//! Who may do what in the console, and the console as sessions see it.

use lockstep_wire::backend::{Column, Report};

/// What the primary says about the role of a console session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The role, as the primary names it.
    pub user: String,
    pub superuser: bool,
    /// The role has the rights of `pg_monitor`.
    pub monitor: bool,
    /// The role is a member of the configured role, or is it.
    pub admin: bool,
}

/// What answers the queries of database `lockstep`.
pub trait ConsoleService: Send + Sync + 'static {
    /// Messages of the answer, without `ReadyForQuery`. Called where it may block.
    fn answer(&self, rights: &Rights, query: &str) -> Vec<u8>;

    /// Columns of the answer to a statement that is prepared, which is not run; none if it returns no
    /// rows.
    fn columns(&self, query: &str) -> Result<Vec<Column<'static>>, Report>;
}
