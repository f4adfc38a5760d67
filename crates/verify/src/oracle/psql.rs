//! Runs SQL on a server that the user has named, through the package's own `psql`, so that
//! PG* variables, service files, .pgpass and sslmode work as usual.

use std::io::Write;
use std::process::{Command, Stdio};

use lockstep_lab::launch::failure_line;
use lockstep_lab::package::Package;

use crate::error::oracle::{OracleError, Result};
use crate::side::Side;

/// Connection timeout in seconds, unless PGCONNECT_TIMEOUT is set.
const CONNECT_TIMEOUT: &str = "10";

/// Separates columns. No name or number contains it.
const SEPARATOR: char = '\u{1f}';

/// One server, and how to connect to it.
#[derive(Debug, Clone)]
pub struct Session {
    package: Package,
    side: Side,
    conninfo: String,
    /// The database to use instead of the conninfo's.
    database: Option<String>,
}

impl Session {
    pub(crate) fn new(package: &Package, side: Side, conninfo: &str) -> Self {
        Self {
            package: package.clone(),
            side,
            conninfo: conninfo.to_owned(),
            database: None,
        }
    }

    /// A session with the same server and user in another database.
    pub(crate) fn in_database(&self, name: &str) -> Self {
        Self {
            database: Some(name.to_owned()),
            ..self.clone()
        }
    }

    pub fn conninfo(&self) -> &str {
        &self.conninfo
    }

    /// The rows of all queries of a script, which may hold psql's own commands.
    pub(crate) fn rows(&self, script: &str) -> Result<Vec<Vec<String>>> {
        let mut psql = Command::new(self.package.program("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-F"]);
        psql.arg(SEPARATOR.to_string());
        psql.args(["-d", &self.conninfo, "-f", "-"]);
        let mut connect = "";
        if let Some(database) = &self.database {
            // The conninfo may be a URI, to which a database cannot simply be added. So psql
            // connects with it and then switches the database.
            let name = database.replace('\\', "\\\\").replace('\'', "\\'");
            psql.arg("-v")
                .arg(format!("lockstep_target=dbname='{name}'"));
            connect = "\\connect -reuse-previous=on :lockstep_target\n";
        }
        if std::env::var_os("PGAPPNAME").is_none() {
            psql.env("PGAPPNAME", "lockstep-lab wal compare");
        }
        if std::env::var_os("PGCONNECT_TIMEOUT").is_none() {
            psql.env("PGCONNECT_TIMEOUT", CONNECT_TIMEOUT);
        }
        // Never ask for a password: a program reads the output.
        psql.arg("-w");
        let mut child = psql
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(OracleError::io("run", &self.package.program("psql")))?;
        if let Some(mut input) = child.stdin.take() {
            // Writing fails if psql has ended early. Its exit code then tells why.
            let _ = input.write_all(format!("{connect}{script}").as_bytes());
        }
        let output = child
            .wait_with_output()
            .map_err(OracleError::io("wait for", &self.package.program("psql")))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = failure_line(&text).unwrap_or_else(|| output.status.to_string());
            return Err(OracleError::Server {
                side: self.side,
                reason: line.trim_start_matches("psql: error: ").to_owned(),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| line.split(SEPARATOR).map(str::to_owned).collect())
            .collect())
    }

    /// The first row of a query. An error unless it has `N` columns.
    pub(crate) fn row<const N: usize>(&self, query: &str) -> Result<[String; N]> {
        let rows = self.rows(query)?;
        let found = rows.into_iter().next().unwrap_or_default();
        found
            .try_into()
            .map_err(|found: Vec<String>| OracleError::Server {
                side: self.side,
                reason: format!("unexpected answer: {}", found.join(" ")),
            })
    }
}
