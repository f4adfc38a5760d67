//! Messages that a client of replication sends once its session has begun.

use crate::cursor::{Cursor, put_c_str};
use crate::frame::{self, Frame};
use crate::{Result, WireError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frontend<'a> {
    /// A command as text.
    Query(&'a str),
    /// A piece of a copy: see [`crate::stream`].
    CopyData(&'a [u8]),
    /// The client ends its direction of the copy.
    CopyDone,
    /// The client gives up the copy, for this reason.
    CopyFail(&'a str),
    /// The client ends the session.
    Terminate,
}

impl<'a> Frontend<'a> {
    /// Parses the message in a frame.
    pub fn parse(frame: Frame<'a>) -> Result<Self> {
        let mut cursor = Cursor::new(frame.body, "message of the client");
        let message = match frame.tag {
            b'Q' => Self::Query(cursor.c_str()?),
            b'd' => return Ok(Self::CopyData(frame.body)),
            b'c' => Self::CopyDone,
            b'f' => Self::CopyFail(cursor.c_str()?),
            b'X' => Self::Terminate,
            tag => return Err(WireError::UnknownMessage(tag)),
        };
        cursor.end()?;
        Ok(message)
    }

    /// Appends the message with its frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Query(text) => frame::put(out, b'Q', |out| put_c_str(out, text)),
            Self::CopyData(data) => frame::put(out, b'd', |out| out.extend_from_slice(data)),
            Self::CopyDone => frame::put(out, b'c', |_| {}),
            Self::CopyFail(why) => frame::put(out, b'f', |out| put_c_str(out, why)),
            Self::Terminate => frame::put(out, b'X', |_| {}),
        }
    }
}
