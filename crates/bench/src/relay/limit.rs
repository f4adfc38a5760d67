//! The rows of a backlog, written by one session as quickly as a server takes them: inserted rows with COPY,
//! others by one prepared statement for each table, whose keys are sorted.

use lockstep_client::{Connection, Conninfo, Purpose, ToText};
use lockstep_lab::server::{SUPERUSER, Server};

use super::subscriber::Subscriber;
use crate::{BenchError, Result};

/// Time that reading or writing all of it may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3_600);

/// What is done to one table.
enum Change {
    /// Rows to insert, as COPY has them.
    Copy { table: &'static str, rows: Vec<u8> },
    /// A statement with the arrays that are its parameters.
    Set { sql: String, arrays: Vec<String> },
}

/// Changes of a backlog, by what it has made of the primary's tables.
pub(super) struct Changes<'a> {
    primary: &'a Server,
    session: Connection,
    list: Vec<Change>,
}

impl<'a> Changes<'a> {
    pub fn new(primary: &'a Server) -> Result<Self> {
        let mut session = primary.connect(SUPERUSER, "lockstep-lab bench")?;
        session.set_patience(PATIENCE);
        Ok(Self {
            primary,
            session,
            list: Vec::new(),
        })
    }

    fn add(&mut self, change: lockstep_client::Result<Change>) -> Result<()> {
        let refused = |error| self.primary.refused("refused a query", &error);
        self.list.push(change.map_err(refused)?);
        Ok(())
    }

    /// All rows of a table that had none.
    pub fn inserted(&mut self, table: &'static str) -> Result<()> {
        let change = copied(&mut self.session, table);
        self.add(change)
    }

    /// Rows whose column had this value.
    pub fn updated(&mut self, table: &str, key: &str, column: &str, before: i32) -> Result<()> {
        let change = updated(&mut self.session, table, key, column, before);
        self.add(change)
    }

    /// Rows that are gone, of a table that had this number.
    pub fn deleted(&mut self, table: &str, key: &str, rows: u32) -> Result<()> {
        let change = deleted(&mut self.session, table, key, rows);
        self.add(change)
    }

    /// Makes all changes, in one transaction of one session.
    pub fn write(&self, target: &Subscriber) -> Result<()> {
        let refused =
            |error| BenchError::Unusable(format!("the target refused its changes: {error}"));
        self.written(target).map_err(refused)
    }

    fn written(&self, target: &Subscriber) -> lockstep_client::Result<()> {
        let conninfo = Conninfo::parse(&target.conninfo())?;
        let mut session = Connection::connect(&conninfo, Purpose::Sql, "lockstep-lab bench")?;
        session.set_patience(PATIENCE);
        session.execute("BEGIN")?;
        for (number, change) in self.list.iter().enumerate() {
            match change {
                Change::Copy { table, rows } => {
                    let mut copy = session.copy_in(&format!("COPY {table} FROM STDIN"))?;
                    copy.send(rows)?;
                    copy.finish()?;
                }
                Change::Set { sql, arrays } => {
                    let name = format!("set_{number}");
                    session.prepare(&name, sql)?;
                    let arrays: Vec<_> = arrays.iter().map(|array| array as &dyn ToText).collect();
                    session.query_prepared(&name, &arrays)?;
                }
            }
        }
        session.execute("COMMIT")
    }
}

fn copied(session: &mut Connection, table: &'static str) -> lockstep_client::Result<Change> {
    let mut rows = Vec::new();
    let mut copy = session.copy_out(&format!("COPY {table} TO STDOUT"))?;
    while let Some(data) = copy.next()? {
        rows.extend_from_slice(data.as_ref());
    }
    copy.finish()?;
    Ok(Change::Copy { table, rows })
}

fn updated(
    session: &mut Connection,
    table: &str,
    key: &str,
    column: &str,
    before: i32,
) -> lockstep_client::Result<Change> {
    let arrays = session.query_one(&format!(
        "SELECT coalesce(array_agg({key} ORDER BY {key}), '{{}}')::text, \
           coalesce(array_agg({column} ORDER BY {key}), '{{}}')::text \
         FROM {table} WHERE {column} <> {before}"
    ))?;
    Ok(Change::Set {
        sql: format!(
            "UPDATE {table} AS t SET {column} = v.value \
             FROM unnest($1::bigint[], $2::int[]) AS v(key, value) WHERE t.{key} = v.key"
        ),
        arrays: arrays.into_iter().flatten().collect(),
    })
}

fn deleted(
    session: &mut Connection,
    table: &str,
    key: &str,
    rows: u32,
) -> lockstep_client::Result<Change> {
    let arrays = session.query_one(&format!(
        "SELECT coalesce(array_agg(n ORDER BY n), '{{}}')::text FROM generate_series(1, {rows}) n \
         WHERE NOT EXISTS (SELECT FROM {table} WHERE {key} = n)"
    ))?;
    Ok(Change::Set {
        sql: format!(
            "DELETE FROM {table} AS t USING unnest($1::bigint[]) AS v(key) WHERE t.{key} = v.key"
        ),
        arrays: arrays.into_iter().flatten().collect(),
    })
}
