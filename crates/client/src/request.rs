//! What is asked of a server, in the form that libpq takes.

use std::ffi::CString;

/// A request to the server.
pub(crate) enum Request {
    /// Statements without parameters.
    Simple(CString),
    /// One statement and the values of its parameters.
    Parameters {
        sql: CString,
        values: Vec<Option<CString>>,
    },
    /// One statement to prepare under a name.
    Prepare { name: CString, sql: CString },
    /// The name of a prepared statement, and the values of its parameters.
    Prepared {
        name: CString,
        values: Vec<Option<CString>>,
    },
    /// Like `Prepared`, with values in the binary format, none of which is null.
    Binary { name: CString, values: Vec<Vec<u8>> },
}

impl Request {
    /// Bytes of the statement and its values.
    pub fn size(&self) -> usize {
        let (first, second, values) = match self {
            Self::Binary { name, values } => {
                let values = values.iter().map(Vec::len).sum::<usize>();
                return name.count_bytes() + values;
            }
            Self::Simple(sql) => (sql, None, &[][..]),
            Self::Prepare { name, sql } => (name, Some(sql), &[][..]),
            Self::Parameters { sql, values } => (sql, None, &values[..]),
            Self::Prepared { name, values } => (name, None, &values[..]),
        };
        let texts = [Some(first), second].into_iter().flatten();
        let texts = texts.chain(values.iter().flatten());
        texts.map(|text| text.count_bytes()).sum()
    }
}
