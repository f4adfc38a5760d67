//! `pg_amcheck --heapallindexed` on running servers: compares heap and indexes of each side.

use std::process::{Command, Stdio};

use lockstep_lab::launch::failure_line;
use lockstep_lab::package::Package;

use crate::error::oracle::OracleError;
use crate::oracle::Node;
use crate::oracle::rows::{databases, running};

const PROGRAM: &str = "pg_amcheck";
/// Exit code of pg_amcheck when it has found corruption.
const CORRUPTION: i32 = 2;
/// How many lines of its output are kept for each side.
const LINES: usize = 100;

/// The result for one side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amcheck {
    /// The checked databases: those with the extension amcheck.
    pub databases: Vec<String>,
    /// Lines that report corruption, at most 100; empty if there is none.
    pub corruption: Vec<String>,
}

/// Checks every database of a side that has the extension amcheck.
pub fn amcheck(package: &Package, node: &Node) -> std::result::Result<Amcheck, OracleError> {
    let session = running("--amcheck", node)?;
    let mut result = Amcheck::default();
    for database in databases(session)? {
        let session = session.in_database(&database);
        let query = "SELECT count(*) FROM pg_extension WHERE extname = 'amcheck';";
        if session.row(query)? == ["1"] {
            result.databases.push(database);
        }
    }
    if result.databases.is_empty() {
        return Err(OracleError::NoAmcheck { side: node.side });
    }
    let output = Command::new(package.program(PROGRAM))
        .args(["--all", "--heapallindexed", "--no-password"])
        .arg(format!("--maintenance-db={}", session.conninfo()))
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(OracleError::io("run", &package.program(PROGRAM)))?;
    if output.status.success() {
        return Ok(result);
    }
    result.corruption = lines(&output.stdout);
    if output.status.code() == Some(CORRUPTION) && !result.corruption.is_empty() {
        return Ok(result);
    }
    let reason = failure_line(&String::from_utf8_lossy(&output.stderr));
    Err(OracleError::Program {
        program: PROGRAM,
        path: node.folder().to_path_buf(),
        reason: reason.unwrap_or_else(|| output.status.to_string()),
    })
}

fn lines(output: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(output)
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .take(LINES)
        .collect()
}
