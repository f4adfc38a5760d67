//! Rows.

use super::MOST_COLUMNS;
use crate::cursor::{Cursor, put_counted_bytes};
use crate::{Result, WireError};

const NULL: u8 = b'n';
const UNCHANGED: u8 = b'u';
const TEXT: u8 = b't';
const BINARY: u8 = b'b';

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    Null,
    /// A large value that the update did not change, and that is not sent.
    Unchanged,
    /// Text, in the format of the type's output function.
    Text(&'a [u8]),
    /// Bytes, in the format of the type's send function.
    Binary(&'a [u8]),
}

impl<'a> Value<'a> {
    fn parse(cursor: &mut Cursor<'a>) -> Result<Self> {
        match cursor.u8()? {
            NULL => Ok(Self::Null),
            UNCHANGED => Ok(Self::Unchanged),
            TEXT => cursor.counted().map(Self::Text),
            BINARY => cursor.counted().map(Self::Binary),
            _ => Err(WireError::Malformed("an unknown kind of value")),
        }
    }

    fn put(self, out: &mut Vec<u8>) -> Result<()> {
        let (kind, bytes) = match self {
            Self::Null => (NULL, None),
            Self::Unchanged => (UNCHANGED, None),
            Self::Text(bytes) => (TEXT, Some(bytes)),
            Self::Binary(bytes) => (BINARY, Some(bytes)),
        };
        out.push(kind);
        bytes.map_or(Ok(()), |bytes| put_counted_bytes(out, bytes))
    }
}

/// A row that is checked, and left as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    /// All values; each is known to be complete.
    bytes: &'a [u8],
    /// Some value is [`Value::Unchanged`], and some [`Value::Binary`].
    has_unchanged: bool,
    has_binary: bool,
}

impl<'a> Tuple<'a> {
    /// Makes a row of `values`, in `buffer`.
    pub fn new(values: &[Value<'_>], buffer: &'a mut Vec<u8>) -> Result<Self> {
        let columns = super::relation::columns(values.len())?;
        buffer.clear();
        for value in values {
            value.put(buffer)?;
        }
        Ok(Self {
            columns,
            bytes: buffer,
            has_unchanged: values.contains(&Value::Unchanged),
            has_binary: values.iter().any(|it| matches!(it, Value::Binary(_))),
        })
    }

    pub(super) fn parse(cursor: &mut Cursor<'a>) -> Result<Self> {
        let columns = cursor.u16()?;
        if usize::from(columns) > MOST_COLUMNS {
            return Err(WireError::Malformed("an impossible number of columns"));
        }
        let start = *cursor;
        let (mut has_unchanged, mut has_binary) = (false, false);
        for _ in 0..columns {
            match Value::parse(cursor)? {
                Value::Unchanged => has_unchanged = true,
                Value::Binary(_) => has_binary = true,
                Value::Null | Value::Text(_) => {}
            }
        }
        let bytes = cursor.taken_since(start)?;
        Ok(Self {
            columns,
            bytes,
            has_unchanged,
            has_binary,
        })
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.columns.to_be_bytes());
        out.extend_from_slice(self.bytes);
    }

    pub fn len(&self) -> usize {
        self.columns.into()
    }

    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// Some value is [`Value::Unchanged`].
    pub fn has_unchanged(&self) -> bool {
        self.has_unchanged
    }

    /// Some value is [`Value::Binary`].
    pub fn has_binary(&self) -> bool {
        self.has_binary
    }

    /// All values as they were sent, each after its kind and, but for null and what is unchanged, its
    /// length: four bytes, the highest first.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Values in the order of the relation's columns.
    pub fn values(&self) -> Values<'a> {
        Values {
            left: self.columns,
            cursor: Cursor::new(self.bytes, "row"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Values<'a> {
    left: u16,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // Checked when the row was made.
        Value::parse(&mut self.cursor).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Values<'_> {}

/// What an update or a delete says about the row before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old<'a> {
    /// The columns of the replica identity; all others are null.
    Key(Tuple<'a>),
    /// The whole row, as with `REPLICA IDENTITY FULL`.
    Row(Tuple<'a>),
}

impl<'a> Old<'a> {
    pub fn tuple(&self) -> Tuple<'a> {
        match self {
            Self::Key(tuple) | Self::Row(tuple) => *tuple,
        }
    }

    /// Parses the row after `tag`, which was read already. None if this is another tag.
    pub(super) fn parse(tag: u8, cursor: &mut Cursor<'a>) -> Result<Option<Self>> {
        match tag {
            b'K' => Tuple::parse(cursor).map(|tuple| Some(Self::Key(tuple))),
            b'O' => Tuple::parse(cursor).map(|tuple| Some(Self::Row(tuple))),
            _ => Ok(None),
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Key(_) => b'K',
            Self::Row(_) => b'O',
        });
        self.tuple().put(out);
    }
}
