//! Descriptions of tables.

use crate::cursor::{Cursor, put_c_bytes};
use crate::{Result, WireError};

/// Most columns of a table, the same as a server's own limit.
pub const MOST_COLUMNS: usize = 1600;

/// The flag of a column that belongs to the replica identity.
const KEY: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation<'a> {
    pub id: u32,
    /// Empty for `pg_catalog`.
    pub namespace: &'a [u8],
    pub name: &'a [u8],
    /// Which columns of the row before come with updates and deletes.
    pub replica_identity: ReplicaIdentity,
    /// Only columns that are published.
    pub columns: Vec<Column<'a>>,
}

/// A table's `relreplident`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key.
    Default,
    /// No columns.
    Nothing,
    /// All columns.
    Full,
    /// The columns of an index.
    Index,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// The lowest bit is set for a column of the replica identity; see [`Column::is_key`].
    pub flags: u8,
    pub name: &'a [u8],
    /// Object identifier of the type.
    pub kind: u32,
    /// Modifier of the type; -1 if it has none.
    pub modifier: i32,
}

impl Column<'_> {
    /// The column belongs to the replica identity.
    pub fn is_key(&self) -> bool {
        self.flags & KEY != 0
    }
}

impl ReplicaIdentity {
    const ALL: [Self; 4] = [Self::Default, Self::Nothing, Self::Full, Self::Index];

    fn letter(self) -> u8 {
        match self {
            Self::Default => b'd',
            Self::Nothing => b'n',
            Self::Full => b'f',
            Self::Index => b'i',
        }
    }
}

/// Checks a number of columns.
pub(super) fn columns(number: usize) -> Result<u16> {
    u16::try_from(number)
        .ok()
        .filter(|_| number <= MOST_COLUMNS)
        .ok_or(WireError::Malformed("an impossible number of columns"))
}

impl<'a> Relation<'a> {
    pub(super) fn parse(cursor: &mut Cursor<'a>) -> Result<Self> {
        let (id, namespace, name) = (cursor.u32()?, cursor.c_bytes()?, cursor.c_bytes()?);
        let letter = cursor.u8()?;
        let replica_identity = ReplicaIdentity::ALL
            .into_iter()
            .find(|identity| identity.letter() == letter)
            .ok_or(WireError::Malformed("an unknown replica identity"))?;
        let number = columns(cursor.u16()?.into())?;
        let columns = (0..number)
            .map(|_| {
                Ok(Column {
                    flags: cursor.u8()?,
                    name: cursor.c_bytes()?,
                    kind: cursor.u32()?,
                    modifier: cursor.i32()?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            id,
            namespace,
            name,
            replica_identity,
            columns,
        })
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(&self.id.to_be_bytes());
        put_c_bytes(out, self.namespace);
        put_c_bytes(out, self.name);
        out.push(self.replica_identity.letter());
        out.extend_from_slice(&columns(self.columns.len())?.to_be_bytes());
        for column in &self.columns {
            out.push(column.flags);
            put_c_bytes(out, column.name);
            out.extend_from_slice(&column.kind.to_be_bytes());
            out.extend_from_slice(&column.modifier.to_be_bytes());
        }
        Ok(())
    }
}
