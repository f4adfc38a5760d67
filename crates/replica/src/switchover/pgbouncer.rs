//! PgBouncer's admin console, as far as a switchover needs it: a pause of one database in which clients wait
//! without an error, while the server behind it changes.

use std::time::Duration;

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose};

use crate::error::{ReplicaError, Result};
use crate::state::{APPLICATION, system_id};
use crate::switchover::there::is_at;

/// A database of a PgBouncer.
#[derive(Debug, Clone)]
pub struct Pooled {
    /// The admin console.
    pub console: Conninfo,
    /// What clients call the database there.
    pub database: String,
}

/// Where PgBouncer leads to, and whether clients wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Led {
    host: String,
    port: String,
    database: String,
    pub is_paused: bool,
}

fn failed(error: &ClientError) -> ReplicaError {
    ReplicaError::State(format!("PgBouncer's console: {}", error.words()))
}

impl Pooled {
    fn connect(&self) -> Result<Connection> {
        Connection::connect(&self.console, Purpose::Sql, APPLICATION).map_err(|it| failed(&it))
    }

    fn command(&self, verb: &str) -> Result<()> {
        let database = identifier("database", &self.database).map_err(|it| failed(&it))?;
        let done = self.connect()?.query(&format!("{verb} {database}"));
        done.map(drop).map_err(|it| failed(&it))
    }

    /// What the console says of the database. An error with those that it has if it has none of this name.
    pub(super) fn look(&self) -> Result<Led> {
        let tables = self.connect()?.tables("SHOW DATABASES");
        let table = tables.map_err(|it| failed(&it))?.into_iter().next();
        let table = table.unwrap_or_default();
        let place = |name: &str| table.columns.iter().position(|column| column == name);
        let value = |row: &[Option<String>], name: &str| -> String {
            let value = place(name).and_then(|place| row.get(place)).cloned();
            value.flatten().unwrap_or_default()
        };
        let mut rows = table.rows.iter();
        if let Some(row) = rows.find(|row| value(row, "name") == self.database) {
            return Ok(Led {
                host: value(row, "host"),
                port: value(row, "port"),
                database: value(row, "database"),
                is_paused: value(row, "paused") == "1",
            });
        }
        let names: Vec<_> = table.rows.iter().map(|row| value(row, "name")).collect();
        Err(ReplicaError::Usage(format!(
            "PgBouncer has no database \"{}\" (--pgbouncer-database); it has {}",
            self.database,
            names.join(", ")
        )))
    }

    /// Lets clients wait from now on, and returns once none has a transaction open. If that takes longer than
    /// `patience`, nobody waits any more, and it is an error.
    pub(super) fn pause(&self, patience: Duration) -> Result<()> {
        if self.look()?.is_paused {
            return Ok(());
        }
        let database = identifier("database", &self.database).map_err(|it| failed(&it))?;
        let mut console = self.connect()?;
        console.set_patience(patience);
        match console.query(&format!("PAUSE {database}")) {
            Ok(_) => Ok(()),
            Err(ClientError::TimedOut { .. }) => {
                drop(console);
                self.resume()?;
                Err(ReplicaError::State(format!(
                    "transactions of PgBouncer's clients did not end within {} ms",
                    patience.as_millis()
                )))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// Ends the wait, if there is one.
    pub(super) fn resume(&self) -> Result<()> {
        match self.look()?.is_paused {
            true => self.command("RESUME"),
            false => Ok(()),
        }
    }

    /// An error unless PgBouncer leads clients to the target. A server with another address is asked who
    /// it is, with the target's conninfo.
    pub(super) fn check_leads_to(&self, target: &mut Connection, to: &Conninfo) -> Result<()> {
        let led = self.look()?;
        let server = target.server().map_err(ReplicaError::Target)?;
        let is_same = (&led.host, &led.database) == (&server.host, &server.database);
        if is_same && led.port == server.port.to_string() {
            return Ok(());
        }
        let id = system_id(target).map_err(ReplicaError::Target)?;
        let at = (led.host.as_str(), led.port.as_str());
        let asked = || -> Result<bool, ClientError> {
            Ok(is_at(at, Some(&led.database), to, &id)? && led.database == server.database)
        };
        let why = match asked() {
            Ok(true) => return Ok(()),
            Ok(false) => "it is another server or database".to_owned(),
            Err(error) => format!("it cannot be asked: {}", error.words()),
        };
        Err(ReplicaError::State(format!(
            "after the command of --on-switch, PgBouncer's database {} leads to host={} port={} dbname={}, which is not \
             the target ({why}): mend the command",
            self.database, led.host, led.port, led.database
        )))
    }

    /// Lets PgBouncer read its configuration again.
    pub(super) fn reload(&self) -> Result<()> {
        let done = self.connect()?.query("RELOAD");
        done.map(drop).map_err(|it| failed(&it))
    }
}
