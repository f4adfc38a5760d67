//! Rows for a statement, and the parameters that they make. No I/O.

use std::ffi::CString;

use lockstep_client::ClientError;

use crate::arrays::ArrayText;
use crate::batch::MOST_BYTES;
use crate::net::Update;
use crate::row::{Cell, OwnedRow, RowRef};
use crate::statements::{Parameter, Statement};
use crate::table::Table;

/// Most rows of one statement's parameters.
pub const MOST_ROWS: usize = 20_000;

/// One row for a statement: the key (or the whole row) before, and the row after.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub before: Option<RowRef<'a>>,
    pub after: Option<RowRef<'a>>,
}

pub fn before(row: &OwnedRow) -> Given<'_> {
    Given {
        before: Some(row.get()),
        after: None,
    }
}

pub fn after(row: RowRef<'_>) -> Given<'_> {
    Given {
        before: None,
        after: Some(row),
    }
}

pub fn both((before, after): &(OwnedRow, OwnedRow)) -> Given<'_> {
    Given {
        before: Some(before.get()),
        after: Some(after.get()),
    }
}

pub fn updated(update: &Update) -> Given<'_> {
    Given {
        before: Some(update.from.get()),
        after: Some(update.row.get()),
    }
}

impl Given<'_> {
    pub fn size(&self) -> usize {
        let rows = [self.before, self.after];
        rows.into_iter().flatten().map(RowRef::size).sum()
    }
}

/// Rows in pieces of at most so many, for one statement each.
pub fn chunks<'r, 'a>(rows: &'r [Given<'a>], most: usize) -> impl Iterator<Item = &'r [Given<'a>]> {
    let mut left = rows;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut number = 0;
        for row in left.iter().take(most) {
            bytes += row.size();
            if number > 0 && bytes > MOST_BYTES {
                break;
            }
            number += 1;
        }
        let (now, later) = left.split_at_checked(number).filter(|_| number > 0)?;
        left = later;
        Some(now)
    })
}

/// Columns that some of the rows keep.
pub fn keeps(rows: &[Given<'_>]) -> Vec<usize> {
    let mut kept = Vec::new();
    for row in rows.iter().filter_map(|row| row.after) {
        for (place, cell) in row.cells().enumerate() {
            if cell == Cell::Unchanged && !kept.contains(&place) {
                kept.push(place);
            }
        }
    }
    kept.sort_unstable();
    kept
}

/// A statement's parameters. `key` are the columns that the rows before consist of.
pub fn values(
    table: &Table,
    statement: &Statement,
    key: &[usize],
    rows: &[Given<'_>],
) -> lockstep_client::Result<Vec<Option<CString>>> {
    let delimiter = |parameter: &Parameter| {
        let place = match parameter {
            Parameter::Key(_) if statement.keys_are_text => None,
            Parameter::Key(place) | Parameter::New(place) => Some(*place),
            Parameter::Keeps => None,
        };
        let column = place.and_then(|place| table.columns.get(place));
        let column = column.filter(|column| column.in_array);
        column.map_or(b',', |column| column.delimiter)
    };
    let arrays = statement.parameters.iter().map(delimiter);
    let mut arrays: Vec<_> = arrays.map(ArrayText::new).collect();
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for row in rows {
        old.clear();
        old.extend(row.before.into_iter().flat_map(RowRef::cells));
        new.clear();
        new.extend(row.after.into_iter().flat_map(RowRef::cells));
        for (parameter, array) in statement.parameters.iter().zip(&mut arrays) {
            let new = |place: &usize| new.get(*place).copied().unwrap_or(Cell::Null);
            match parameter {
                Parameter::Key(place) => {
                    let at = key.iter().position(|of| of == place);
                    let cell = at.and_then(|at| old.get(at)).copied();
                    array.push(cell.unwrap_or(Cell::Null));
                }
                Parameter::New(place) => array.push(new(place)),
                Parameter::Keeps => {
                    let bit = |place| {
                        if new(place) == Cell::Unchanged {
                            b'1'
                        } else {
                            b'0'
                        }
                    };
                    let bits: Vec<u8> = statement.keeps.iter().map(bit).collect();
                    array.push(Cell::Text(&bits));
                }
            }
        }
    }
    let finish = |array: ArrayText| {
        let array = array.finish();
        let words = "the source sent a NUL character in a value";
        let array = array.ok_or_else(|| ClientError::Protocol(words.to_owned()));
        array.map(Some)
    };
    arrays.into_iter().map(finish).collect()
}
