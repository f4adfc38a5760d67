//! What can go wrong with TPC-C beside a program that fails.

/// Errors of the TPC-C workload.
#[derive(Debug, thiserror::Error)]
pub enum TpccError {
    /// libpq could not connect, or lost the connection.
    #[error("the connection failed: {reason}")]
    Unreachable {
        /// libpq's own words.
        reason: String,
    },
    /// The server or the session takes no writes.
    #[error("{what}; connect to a server that takes writes")]
    ReadOnly {
        /// Why, e.g. that it is a standby.
        what: &'static str,
    },
    /// Loading would overwrite something.
    #[error(
        "{table} exists already; load with --replace to drop the nine TPC-C tables of its schema, or use another database"
    )]
    AlreadyLoaded {
        /// The first table found.
        table: String,
    },
    /// There is nothing to run on or to check.
    #[error(
        "the database holds no completely loaded TPC-C data; load it with `lockstep-lab tpcc load`"
    )]
    NotLoaded,
    /// A statement failed.
    #[error("{what} failed: {reason}")]
    Statement {
        /// What was done.
        what: String,
        /// The server's own words.
        reason: String,
    },
    /// A program said something that we do not understand.
    #[error("{program} answered unexpectedly: {answer}")]
    Answer {
        program: &'static str,
        /// What it said.
        answer: String,
    },
}

impl TpccError {
    /// True when the server cannot be reached or is of the wrong kind.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::ReadOnly { .. })
    }
}
