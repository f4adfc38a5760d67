//! Statements with parameters, prepared statements, and queries of one row.
//!
//! All have the limits of [`Connection::query`]: the patience, and the size of an answer.

use std::ffi::CString;

use crate::connection::{Connection, Rows, c_string};
use crate::error::Step;
use crate::quote::without_nul;
use crate::request::Request;
use crate::value::ToText;
use crate::{ClientError, MOST_PARAMETERS, Result};

impl Connection {
    /// Runs statements and ignores their rows.
    pub fn execute(&mut self, sql: &str) -> Result<()> {
        self.query(sql).map(drop)
    }

    /// Runs a query that returns one row. Any other number of rows is an error.
    pub fn query_one(&mut self, sql: &str) -> Result<Vec<Option<String>>> {
        let row = at_most_one(self.query(sql)?)?;
        row.ok_or_else(|| ClientError::Protocol("no row where one was expected".to_owned()))
    }

    /// Runs a query that returns at most one row. More rows are an error.
    pub fn query_opt(&mut self, sql: &str) -> Result<Option<Vec<Option<String>>>> {
        at_most_one(self.query(sql)?)
    }

    /// Runs one statement with parameters, `$1` and so on. The server infers the type of each from
    /// where it stands; a cast such as `$1::int` states the type.
    pub fn query_with(&mut self, sql: &str, parameters: &[&dyn ToText]) -> Result<Rows> {
        let request = Request::Parameters {
            sql: c_string(sql)?,
            values: texts(parameters)?,
        };
        self.rows(Step::Query, "run a query", request)
    }

    /// Prepares one statement under a name; the server keeps it until the connection ends.
    pub fn prepare(&mut self, name: &str, sql: &str) -> Result<()> {
        let request = Request::Prepare {
            name: c_string(name)?,
            sql: c_string(sql)?,
        };
        self.rows(Step::Query, "prepare a statement", request)
            .map(drop)
    }

    /// Runs a statement that [`Connection::prepare`] has prepared.
    pub fn query_prepared(&mut self, name: &str, parameters: &[&dyn ToText]) -> Result<Rows> {
        let request = Request::Prepared {
            name: c_string(name)?,
            values: texts(parameters)?,
        };
        self.rows(Step::Query, "run a prepared statement", request)
    }

    /// Runs a prepared statement that returns no rows, with values that may be in any encoding.
    /// Returns how many rows it changed.
    pub fn change_prepared(&mut self, name: &str, values: Vec<Option<CString>>) -> Result<u64> {
        self.change(Request::Prepared {
            name: c_string(name)?,
            values,
        })
    }

    /// Like [`Connection::change_prepared`], without a prepared statement.
    pub fn change_with(&mut self, sql: &str, values: Vec<Option<CString>>) -> Result<u64> {
        self.change(Request::Parameters {
            sql: c_string(sql)?,
            values,
        })
    }

    fn change(&mut self, request: Request) -> Result<u64> {
        self.rows(Step::Query, "run a statement", request)?;
        Ok(self.link.changed)
    }
}

fn at_most_one(rows: Rows) -> Result<Option<Vec<Option<String>>>> {
    let count = rows.len();
    if count > 1 {
        return Err(ClientError::Protocol(format!(
            "{count} rows where one was expected"
        )));
    }
    Ok(rows.into_iter().next())
}

pub(crate) fn texts(parameters: &[&dyn ToText]) -> Result<Vec<Option<CString>>> {
    if parameters.len() > MOST_PARAMETERS {
        return Err(ClientError::Protocol(format!(
            "a command of ours has more than {MOST_PARAMETERS} parameters"
        )));
    }
    let one = |parameter: &&dyn ToText| {
        let Some(text) = parameter.to_text() else {
            return Ok(None);
        };
        without_nul("parameter", &text)?;
        c_string(&text).map(Some)
    };
    parameters.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_is_one_row() {
        let row = |text: &str| vec![Some(text.to_owned())];
        assert_eq!(at_most_one(Vec::new()), Ok(None));
        assert_eq!(at_most_one(vec![row("a")]), Ok(Some(row("a"))));
        assert!(at_most_one(vec![row("a"), row("b")]).is_err());
    }

    #[test]
    fn parameters_that_cannot_be_sent_are_refused() {
        let error = texts(&[&1, &"a\0b"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "parameter \"a?b\" cannot be used: it holds a NUL character"
        );
        let many: Vec<&dyn ToText> = vec![&1; MOST_PARAMETERS + 1];
        assert!(texts(&many).is_err());
    }
}
