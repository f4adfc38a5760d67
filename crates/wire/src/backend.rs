//! Messages that a server sends to a client of replication.

use crate::cursor::{Cursor, put_c_str};
use crate::frame::{self, Frame};
use crate::{Result, WireError};

/// Most columns of a result, the same as a server's own limit.
pub const MOST_COLUMNS: usize = 1664;

/// Object identifier of type `text`.
pub const TEXT: u32 = 25;
/// Object identifier of type `int4`.
pub const INT4: u32 = 23;
/// Object identifier of type `int8`.
pub const INT8: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend<'a> {
    /// The client is admitted without saying who it is, or has said so.
    AuthenticationOk,
    /// The client must say who it is, by the method with this number.
    Authentication(u32),
    /// The server speaks an older minor version, or does not know some options.
    NegotiateProtocolVersion {
        /// The newest minor version that the server speaks.
        minor: u32,
        /// The options that it does not know.
        unknown: Vec<&'a str>,
    },
    /// A setting that clients want to know.
    ParameterStatus {
        name: &'a str,
        value: &'a str,
    },
    /// What a cancel request must contain.
    BackendKeyData {
        process: u32,
        /// Four bytes before protocol 3.2.
        secret: &'a [u8],
    },
    /// The server takes the next command. The status is `I` outside a transaction.
    ReadyForQuery(u8),
    /// The columns of the rows that follow.
    RowDescription(Vec<Column<'a>>),
    /// None is NULL.
    DataRow(Vec<Option<&'a [u8]>>),
    /// A command has ended, with this tag.
    CommandComplete(&'a str),
    /// An empty command has ended.
    EmptyQueryResponse,
    /// A command or the session failed.
    ErrorResponse(Report),
    NoticeResponse(Report),
    /// Streaming begins, in both directions.
    CopyBothResponse,
    /// A piece of a copy: see [`crate::stream`].
    CopyData(&'a [u8]),
    /// The server ends its direction of the copy.
    CopyDone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    pub name: &'a str,
    /// Object identifier of the column's type.
    pub kind: u32,
}

/// An error or a notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// `ERROR`, `FATAL`, `NOTICE` and so on.
    pub severity: String,
    /// Five characters.
    pub sqlstate: String,
    pub message: String,
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

impl Report {
    /// An error that ends the command.
    pub fn error(sqlstate: &str, message: impl Into<String>) -> Self {
        Self {
            severity: "ERROR".to_owned(),
            sqlstate: sqlstate.to_owned(),
            message: message.into(),
            detail: None,
            hint: None,
        }
    }

    /// An error that ends the session.
    pub fn fatal(sqlstate: &str, message: impl Into<String>) -> Self {
        Self {
            severity: "FATAL".to_owned(),
            ..Self::error(sqlstate, message)
        }
    }

    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..self
        }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    fn parse(mut cursor: Cursor<'_>) -> Result<Self> {
        let mut report = Self::error("", "");
        report.severity.clear();
        loop {
            let field = cursor.u8()?;
            if field == 0 {
                break;
            }
            let text = String::from_utf8_lossy(cursor.c_bytes()?).into_owned();
            match field {
                b'S' if report.severity.is_empty() => report.severity = text,
                // `V` is never translated, `S` may be.
                b'V' => report.severity = text,
                b'C' => report.sqlstate = text,
                b'M' => report.message = text,
                b'D' => report.detail = Some(text),
                b'H' => report.hint = Some(text),
                _ => {}
            }
        }
        cursor.end()?;
        Ok(report)
    }

    fn put(&self, out: &mut Vec<u8>) {
        let mut field = |tag: u8, text: &str| {
            out.push(tag);
            put_c_str(out, text);
        };
        field(b'S', &self.severity);
        field(b'V', &self.severity);
        field(b'C', &self.sqlstate);
        field(b'M', &self.message);
        if let Some(detail) = &self.detail {
            field(b'D', detail);
        }
        if let Some(hint) = &self.hint {
            field(b'H', hint);
        }
        out.push(0);
    }
}

impl<'a> Backend<'a> {
    /// Parses the message in a frame.
    pub fn parse(frame: Frame<'a>) -> Result<Self> {
        let mut cursor = Cursor::new(frame.body, "message of the server");
        let message = match frame.tag {
            b'R' => return authentication(cursor),
            b'E' => return Report::parse(cursor).map(Self::ErrorResponse),
            b'N' => return Report::parse(cursor).map(Self::NoticeResponse),
            b'd' => return Ok(Self::CopyData(frame.body)),
            b'T' => Self::RowDescription(columns(&mut cursor)?),
            b'D' => Self::DataRow(values(&mut cursor)?),
            b'v' => negotiation(&mut cursor)?,
            b'S' => Self::ParameterStatus {
                name: cursor.c_str()?,
                value: cursor.c_str()?,
            },
            b'K' => {
                let process = cursor.u32()?;
                return Ok(Self::BackendKeyData {
                    process,
                    secret: cursor.rest(),
                });
            }
            b'Z' => Self::ReadyForQuery(cursor.u8()?),
            b'C' => Self::CommandComplete(cursor.c_str()?),
            b'I' => Self::EmptyQueryResponse,
            b'W' => {
                cursor.u8()?;
                let columns = count(&mut cursor)?;
                cursor.take(columns * 2)?;
                Self::CopyBothResponse
            }
            b'c' => Self::CopyDone,
            tag => return Err(WireError::UnknownMessage(tag)),
        };
        cursor.end()?;
        Ok(message)
    }

    /// Appends the message with its frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::AuthenticationOk => frame::put(out, b'R', |out| out.extend([0; 4])),
            Self::Authentication(way) => {
                frame::put(out, b'R', |out| out.extend(way.to_be_bytes()));
            }
            Self::NegotiateProtocolVersion { minor, unknown } => frame::put(out, b'v', |out| {
                out.extend(minor.to_be_bytes());
                out.extend((unknown.len() as u32).to_be_bytes());
                for name in unknown {
                    put_c_str(out, name);
                }
            }),
            Self::ParameterStatus { name, value } => frame::put(out, b'S', |out| {
                put_c_str(out, name);
                put_c_str(out, value);
            }),
            Self::BackendKeyData { process, secret } => frame::put(out, b'K', |out| {
                out.extend(process.to_be_bytes());
                out.extend_from_slice(secret);
            }),
            Self::ReadyForQuery(status) => frame::put(out, b'Z', |out| out.push(*status)),
            Self::RowDescription(columns) => {
                frame::put(out, b'T', |out| put_columns(out, columns));
            }
            Self::DataRow(values) => frame::put(out, b'D', |out| put_values(out, values)),
            Self::CommandComplete(tag) => frame::put(out, b'C', |out| put_c_str(out, tag)),
            Self::EmptyQueryResponse => frame::put(out, b'I', |_| {}),
            Self::ErrorResponse(report) => frame::put(out, b'E', |out| report.put(out)),
            Self::NoticeResponse(report) => frame::put(out, b'N', |out| report.put(out)),
            Self::CopyBothResponse => frame::put(out, b'W', |out| out.extend([0; 3])),
            Self::CopyData(data) => frame::put(out, b'd', |out| out.extend_from_slice(data)),
            Self::CopyDone => frame::put(out, b'c', |_| {}),
        }
    }
}

fn authentication(mut cursor: Cursor<'_>) -> Result<Backend<'_>> {
    match cursor.u32()? {
        0 => cursor.end().map(|()| Backend::AuthenticationOk),
        way => Ok(Backend::Authentication(way)),
    }
}

fn negotiation<'a>(cursor: &mut Cursor<'a>) -> Result<Backend<'a>> {
    let minor = cursor.u32()?;
    let announced = cursor.u32()?;
    let mut unknown = Vec::new();
    while !cursor.is_empty() {
        unknown.push(cursor.c_str()?);
    }
    match unknown.len() == announced as usize {
        true => Ok(Backend::NegotiateProtocolVersion { minor, unknown }),
        false => Err(WireError::Malformed("another number of options")),
    }
}

/// Reads a number of columns and checks it.
fn count(cursor: &mut Cursor<'_>) -> Result<usize> {
    let number = cursor.i16()?;
    usize::try_from(number)
        .ok()
        .filter(|&number| number <= MOST_COLUMNS)
        .ok_or(WireError::Malformed("an impossible number of columns"))
}

fn columns<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Column<'a>>> {
    (0..count(cursor)?)
        .map(|_| {
            let name = cursor.c_str()?;
            cursor.take(6)?;
            let kind = cursor.u32()?;
            cursor.take(8)?;
            Ok(Column { name, kind })
        })
        .collect()
}

fn put_columns(out: &mut Vec<u8>, columns: &[Column<'_>]) {
    out.extend((columns.len() as u16).to_be_bytes());
    for column in columns {
        put_c_str(out, column.name);
        // The column belongs to no table.
        out.extend([0; 6]);
        out.extend(column.kind.to_be_bytes());
        let length: i16 = match column.kind {
            INT4 => 4,
            INT8 => 8,
            _ => -1,
        };
        out.extend(length.to_be_bytes());
        // No type modifier, and text format.
        out.extend((-1_i32).to_be_bytes());
        out.extend([0; 2]);
    }
}

fn values<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Option<&'a [u8]>>> {
    (0..count(cursor)?)
        .map(|_| match cursor.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| WireError::BadLength(length))?;
                cursor.take(length).map(Some)
            }
        })
        .collect()
}

fn put_values(out: &mut Vec<u8>, values: &[Option<&[u8]>]) {
    out.extend((values.len() as u16).to_be_bytes());
    for value in values {
        match value {
            Some(bytes) => {
                out.extend((bytes.len() as u32).to_be_bytes());
                out.extend_from_slice(bytes);
            }
            None => out.extend((-1_i32).to_be_bytes()),
        }
    }
}
