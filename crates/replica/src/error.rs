//! What can go wrong with a replica, each in one line that says what to do.

use std::fmt;

use lockstep_client::ClientError;

use lockstep_apply::ApplyError;

pub type Result<T, E = ReplicaError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error("source: {}", .0.words())]
    Source(ClientError),
    /// A drop has not reached the source.
    #[error(
        "source: {}; if it is gone for good, lockstep replica drop {name} --without-source, with the same \
         --target, drops the replica on the target alone",
        .error.words()
    )]
    NoSource { error: ClientError, name: String },
    #[error("target: {}", .0.words())]
    Target(ClientError),
    /// A name or option that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The preflight has found errors; nothing was changed.
    #[error("{} before anything is changed", counted(.0))]
    Preflight(Vec<Finding>),
    /// pg_dump or pg_restore.
    #[error("{0}")]
    Program(String),
    /// What the target's state does not allow.
    #[error("{0}")]
    State(String),
    /// A server or database that the replica was not made from.
    #[error("source: {0}")]
    OtherSource(String),
    /// The replica follows no source any more, or is about to.
    #[error("{}", promoted(.name, *.is_done))]
    Promoted { name: String, is_done: bool },
    /// A command that has ended in the middle, and what it leaves.
    #[error("{error}. {left}")]
    Unfinished {
        error: Box<ReplicaError>,
        left: String,
    },
    /// What no retry of apply can mend.
    #[error("{0}")]
    Apply(ApplyError),
    /// A table could not be copied.
    #[error("table {table}: {error}")]
    Table {
        table: String,
        error: Box<ReplicaError>,
    },
}

/// The end at which something went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Source,
    Target,
}

impl ReplicaError {
    /// Which server it was about, if it was one.
    pub fn end(&self) -> Option<End> {
        match self {
            Self::Source(_) | Self::NoSource { .. } | Self::Apply(ApplyError::Source(_)) => {
                Some(End::Source)
            }
            Self::Target(_) | Self::Apply(ApplyError::Target(_)) => Some(End::Target),
            Self::Table { error, .. } | Self::Unfinished { error, .. } => error.end(),
            _ => None,
        }
    }

    /// A server cannot be reached, or has just ended a session.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Source(error) | Self::Target(error) => error.may_pass(),
            _ => false,
        }
    }
}

fn promoted(name: &str, is_done: bool) -> String {
    match is_done {
        true => format!(
            "replica \"{name}\" is promoted: its target is a database of its own, to which nothing of the \
             source is applied any more; lockstep replica drop {name} forgets the replica and keeps the tables"
        ),
        false => format!(
            "replica \"{name}\" is being promoted, so nothing is applied to its target any more; if no \
             lockstep replica promote works on it, run that command again, which goes on"
        ),
    }
}

fn counted(findings: &[Finding]) -> String {
    let errors: Vec<_> = findings.iter().filter(|one| one.is_error()).collect();
    let first = errors.first().map_or_else(String::new, |one| {
        format!(": {} {}; {}", one.subject, one.says, one.todo)
    });
    match errors.len() {
        1 => format!("1 error was found{first}, found"),
        number => format!("{number} errors were found, the first{first}, found"),
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is begun while there is one.
    Error,
    /// The replica works, but not as one may expect.
    Warning,
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// What it is about: `source`, `target`, or objects.
    pub subject: String,
    pub says: String,
    /// What to do.
    pub todo: String,
}

impl Finding {
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// What is found, in order.
#[derive(Default)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    pub(crate) fn add(
        &mut self,
        severity: Severity,
        subject: impl Into<String>,
        says: impl Into<String>,
        todo: impl Into<String>,
    ) {
        self.0.push(Finding {
            severity,
            subject: subject.into(),
            says: says.into(),
            todo: todo.into(),
        });
    }

    pub(crate) fn error(
        &mut self,
        subject: impl Into<String>,
        says: impl Into<String>,
        todo: impl Into<String>,
    ) {
        self.add(Severity::Error, subject, says, todo);
    }

    pub(crate) fn warning(
        &mut self,
        subject: impl Into<String>,
        says: impl Into<String>,
        todo: impl Into<String>,
    ) {
        self.add(Severity::Warning, subject, says, todo);
    }

    pub(crate) fn info(
        &mut self,
        subject: impl Into<String>,
        says: impl Into<String>,
        todo: impl Into<String>,
    ) {
        self.add(Severity::Info, subject, says, todo);
    }
}
