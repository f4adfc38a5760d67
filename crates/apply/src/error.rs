//! What can go wrong while changes are applied.

use std::fmt;

use lockstep_client::{ClientError, Refusal};
use lockstep_wire::{Lsn, WireError};

use crate::names::TableName;

pub type Result<T, E = ApplyError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("source: {}", .0.words())]
    Source(ClientError),
    #[error("target: {}", .0.words())]
    Target(ClientError),
    /// The source has sent what the protocol does not allow.
    #[error("the source sent a stream that cannot be read: {0}")]
    Stream(#[from] WireError),
    /// The source has ended the stream, because it shuts down.
    #[error("the source has ended the stream")]
    Ended,
    /// The spool cannot be read on, and something before that is still to be applied.
    #[error("{0}; the changes before it are applied first")]
    Damaged(String),
    /// What the replica's spool holds, or should hold.
    #[error("{0}")]
    Spool(String),
    /// The source cannot go on where the target stands.
    #[error("{0}")]
    Gap(String),
    /// The publication is not as the replica made it.
    #[error("{0}")]
    Publication(String),
    /// This process does not have the replica's lock, and why.
    #[error("{0}")]
    NotTaken(String),
    /// A change does not fit the target. Everything before it is applied.
    #[error("{0}")]
    Conflict(Box<Conflict>),
    #[error("{0}")]
    System(String),
}

/// Why a change cannot be applied, and which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conflict {
    /// The table; empty if it is not known.
    pub table: TableName,
    /// The beginning of the command that changes the schema, if it is one, and the command's position.
    pub command: Option<(String, Lsn)>,
    /// The commit of the source's transaction that holds the change; `0/0` while it is not known.
    pub lsn: Lsn,
    /// The target's error code; None if the change was not tried.
    pub sqlstate: Option<String>,
    pub message: String,
    /// Names the key of a unique violation.
    pub detail: Option<String>,
    /// The functions of the target in which it failed.
    pub context: Option<String>,
    /// What to do, if it is not what follows from the code.
    pub todo: Option<&'static str>,
    /// The replica can go on without the table.
    pub may_leave: bool,
}

/// Where a replica stands that follows changes of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// At the command that ends there.
    Command(Lsn),
    /// At a change up to `at` of a table that has this OID on the source, and this name on the target.
    Table {
        source: u32,
        name: TableName,
        at: Lsn,
    },
}

/// SQLSTATEs that say what kind of error it is.
mod sqlstate {
    pub const UNIQUE_VIOLATION: &str = "23505";
    pub const EXCLUSION_VIOLATION: &str = "23P01";
    pub const DEADLOCK: &str = "40P01";
    pub const CANCELLED: &str = "57014";
    /// What may be gone at the next attempt: a serialization failure or a deadlock, a lock or an
    /// object in use, a statement that was canceled, a disk that is full.
    pub const PASSING: [&str; 5] = ["40", "55006", "55P03", "57014", "53100"];
}

/// A retry may succeed although no user has changed anything.
fn is_passing(error: &ClientError) -> bool {
    let by_code = |sqlstate: &str| sqlstate::PASSING.iter().any(|it| sqlstate.starts_with(it));
    error.may_pass()
        || error
            .report()
            .is_some_and(|report| by_code(&report.sqlstate))
}

/// The functions and statements in which the target failed. The line of a COPY is that of our own batch, and
/// says nothing to a user.
fn context(report: &Refusal) -> Option<String> {
    let lines = report.context.as_deref().unwrap_or_default().lines();
    let lines: Vec<_> = lines.filter(|line| !line.starts_with("COPY ")).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

impl Conflict {
    fn hint(&self) -> &'static str {
        if let Some(todo) = self.todo {
            return todo;
        }
        match self.sqlstate.as_deref() {
            Some(sqlstate::UNIQUE_VIOLATION | sqlstate::EXCLUSION_VIOLATION) => {
                "if the source has both rows, its index was dropped there: drop it here, too; else change or \
                 delete the target's row with that key; the change is then tried again by itself"
            }
            _ if self.command.is_some() => {
                "make the target such that the command can run there, and it is tried again by itself; or make by \
                 hand what it changes, and then run lockstep replica resume NAME --made-by-hand LSN with the \
                 command's position"
            }
            _ => "repair the target; the change is then tried again by itself",
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.command {
            Some(_) => write!(f, "the target does not follow a command")?,
            None => write!(f, "table {} on the target refused a change", self.table)?,
        }
        if self.lsn.is_valid() {
            write!(f, " of the transaction that committed at {}", self.lsn)?;
        }
        if let Some((command, _)) = &self.command {
            write!(f, ": {command}")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(detail) = &self.detail {
            write!(f, " ({})", detail.trim_end_matches('.'))?;
        }
        if let Some(context) = &self.context {
            write!(f, " (in: {context})")?;
        }
        if let Some((_, position)) = &self.command {
            write!(f, " (the command's position is {position})")?;
        }
        write!(f, "; {}", self.hint())?;
        match self.may_leave {
            true => write!(
                f,
                "; or go on without this table, which gets no more changes then: lockstep replica resume NAME \
                 --leave-out {}.{}",
                self.table.schema, self.table.table
            ),
            false => Ok(()),
        }
    }
}

impl ApplyError {
    pub fn at_commit(error: ClientError) -> Self {
        let table = error.refusal().and_then(|report| report.table.clone());
        match table {
            Some((schema, table)) => Self::on_table(&TableName { schema, table }, error),
            None => Self::Target(error),
        }
    }

    /// The error of a statement on one table of the target.
    pub fn on_table(table: &TableName, error: ClientError) -> Self {
        let Some(report) = error.refusal() else {
            return Self::Target(error);
        };
        match is_passing(&error) {
            true => Self::Target(error),
            false => Self::Conflict(Box::new(Conflict {
                table: table.clone(),
                sqlstate: Some(report.sqlstate.clone()),
                message: report.message.clone(),
                detail: report.detail.clone(),
                context: context(report),
                ..Conflict::default()
            })),
        }
    }

    /// The error of a command that changes the schema: of its beginning, and its position.
    pub fn on_command(command: (String, Lsn), error: ClientError) -> Self {
        let table = error.refusal().and_then(|report| report.table.clone());
        let (schema, table) = table.unwrap_or_default();
        match Self::on_table(&TableName { schema, table }, error) {
            Self::Conflict(conflict) => Self::Conflict(Box::new(Conflict {
                command: Some(command),
                ..*conflict
            })),
            other => other,
        }
    }

    /// Where a replica stands then that follows changes of the schema. `source` tells the OID on the source
    /// of a table of the target; the error then says that the replica can go on without it. `at` is the end
    /// of the batch that failed.
    pub fn stop(
        &mut self,
        at: Lsn,
        source: impl FnOnce(&TableName) -> Option<u32>,
    ) -> Option<Stop> {
        let Self::Conflict(conflict) = self else {
            return None;
        };
        if let Some((_, lsn)) = &conflict.command {
            return Some(Stop::Command(*lsn));
        }
        let name = conflict.table.clone();
        let source = source(&name)?;
        conflict.may_leave = true;
        Some(Stop::Table { source, name, at })
    }

    /// A command that changes the schema and cannot be followed.
    pub fn not_followed(command: (String, Lsn), message: String, todo: &'static str) -> Self {
        Self::Conflict(Box::new(Conflict {
            command: Some(command),
            message,
            todo: Some(todo),
            ..Conflict::default()
        }))
    }

    /// A table that the source changes and the target lacks, or that has another shape there.
    pub fn shape(table: &TableName, message: String) -> Self {
        Self::Conflict(Box::new(Conflict {
            table: table.clone(),
            message,
            ..Conflict::default()
        }))
    }

    /// An update has brought a row into the table's row filter, and the source has not sent these
    /// columns of it.
    pub fn came_in(table: &TableName, columns: &str) -> Self {
        Self::Conflict(Box::new(Conflict {
            table: table.clone(),
            message: format!(
                "an update brought a row into the row filter and left large values as they were, which \
                 the source does not send then: {columns}"
            ),
            todo: Some(
                "ALTER TABLE ... REPLICA IDENTITY FULL on the source, which makes it send them from then \
                 on, drop the replica, and create it again",
            ),
            ..Conflict::default()
        }))
    }

    /// The conflict, with the position of the transaction.
    pub fn at(self, lsn: Lsn) -> Self {
        match self {
            Self::Conflict(mut conflict) => {
                conflict.lsn = lsn;
                Self::Conflict(conflict)
            }
            other => other,
        }
    }

    /// The target refused a change, and the connection can go on.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Conflict(_) => true,
            Self::Target(error) => error.refusal().is_some(),
            _ => false,
        }
    }

    /// The target has ended a deadlock at our cost.
    pub fn is_deadlock(&self) -> bool {
        match self {
            Self::Target(error) => error
                .refusal()
                .is_some_and(|report| report.sqlstate == sqlstate::DEADLOCK),
            _ => false,
        }
    }

    pub fn conflict(&self) -> Option<&Conflict> {
        match self {
            Self::Conflict(conflict) => Some(conflict),
            _ => None,
        }
    }

    /// A retry may succeed although no user has changed anything.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Ended | Self::Damaged(_) | Self::NotTaken(_) => true,
            Self::Source(error) | Self::Target(error) => is_passing(error),
            _ => false,
        }
    }
}

/// The statement was cancelled.
pub fn is_cancelled(error: &ClientError) -> bool {
    let refusal = error.refusal();
    refusal.is_some_and(|report| report.sqlstate == sqlstate::CANCELLED)
}

/// True if rows stand in each other's way, perhaps only because of the order of changes.
pub fn is_in_the_way(error: &ClientError) -> bool {
    error.refusal().is_some_and(|report| {
        [sqlstate::UNIQUE_VIOLATION, sqlstate::EXCLUSION_VIOLATION]
            .contains(&report.sqlstate.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_whose_source_is_known_may_be_left_out() {
        let table = TableName {
            schema: "public".to_owned(),
            table: "t".to_owned(),
        };
        let refused = || ApplyError::shape(&table, "it does not exist".to_owned());
        let mut known = refused();
        let at = Lsn::from(9);
        let expected = Stop::Table {
            source: 7,
            name: table.clone(),
            at,
        };
        assert_eq!(known.stop(at, |_| Some(7)), Some(expected));
        let words = known.to_string();
        assert!(
            words.contains("resume NAME --leave-out public.t"),
            "{words}"
        );
        let mut unknown = refused();
        assert_eq!(unknown.stop(at, |_| None), None);
        assert_eq!(unknown.to_string(), refused().to_string());
        let command = ("DROP TABLE t".to_owned(), Lsn::from(5));
        let mut command = ApplyError::not_followed(command, "no".to_owned(), "mend it");
        let stands = command.stop(at, |_| Some(7));
        assert_eq!(stands, Some(Stop::Command(Lsn::from(5))));
        assert!(!command.to_string().contains("--leave-out"), "{command}");
        assert_eq!(ApplyError::Ended.stop(at, |_| Some(7)), None);
    }
}
