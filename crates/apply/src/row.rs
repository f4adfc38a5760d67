//! Rows as a batch keeps them: one block of memory each, in the form in which they came.

use lockstep_wire::WireError;
use lockstep_wire::logical::Tuple;

/// The value of one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cell<'a> {
    Null,
    /// A large value that an update left as it was, and that the source has not sent.
    Unchanged,
    /// Text, in the format of the type's output function.
    Text(&'a [u8]),
}

impl Cell<'_> {
    /// Bytes that it takes in a row.
    fn size(self) -> usize {
        match self {
            Self::Null | Self::Unchanged => 1,
            Self::Text(text) => 5 + text.len(),
        }
    }
}

// As pgoutput has them: a row that was sent is kept as it is.
const NULL: u8 = b'n';
const UNCHANGED: u8 = b'u';
const TEXT: u8 = b't';

/// Memory that a row takes beside its bytes, roughly.
const OVERHEAD: usize = 48;

/// A row, or some columns of one. Two are equal if all their values are equal byte by byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnedRow(Box<[u8]>);

impl OwnedRow {
    pub fn new<'a, I>(cells: I) -> Self
    where
        I: IntoIterator<Item = Cell<'a>>,
        I::IntoIter: Clone,
    {
        let cells = cells.into_iter();
        // Once for its size, so that the row is one piece of memory from the start.
        let size = cells.clone().map(Cell::size).sum();
        let mut bytes = Vec::with_capacity(size);
        for cell in cells {
            match cell {
                Cell::Null => bytes.push(NULL),
                Cell::Unchanged => bytes.push(UNCHANGED),
                Cell::Text(text) => {
                    // A message of the protocol, which held the text, is shorter than 2 GB.
                    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                    bytes.push(TEXT);
                    bytes.extend_from_slice(&length.to_be_bytes());
                    bytes.extend_from_slice(text);
                }
            }
        }
        Self(bytes.into_boxed_slice())
    }

    /// A row as it was sent.
    pub fn sent(tuple: Tuple<'_>) -> Result<Self, WireError> {
        if tuple.has_binary() {
            return Err(WireError::Malformed("a binary value, unasked for"));
        }
        Ok(Self(tuple.bytes().into()))
    }

    pub fn cells(&self) -> Cells<'_> {
        Cells { left: &self.0 }
    }

    /// The values at `places`, which are in rising order.
    pub fn at<'a>(&'a self, places: &'a [usize]) -> At<'a> {
        At {
            cells: self.cells(),
            next: 0,
            places: places.iter(),
        }
    }

    /// Memory that the row takes.
    pub fn size(&self) -> usize {
        self.0.len() + OVERHEAD
    }

    pub fn has_unchanged(&self) -> bool {
        self.cells().any(|cell| cell == Cell::Unchanged)
    }

    /// This row, with values of `before` where it has none of its own.
    pub fn over(self, before: &Self) -> Self {
        // A large row is not copied without need.
        if !self.has_unchanged() {
            return self;
        }
        Self::new(
            self.cells()
                .zip(before.cells())
                .map(|(new, old)| match new {
                    Cell::Unchanged => old,
                    new => new,
                }),
        )
    }

    /// The columns at `places`, which are in rising order.
    pub fn columns(&self, places: &[usize]) -> Self {
        Self::new(self.at(places))
    }
}

/// Some values of a row, in order.
#[derive(Debug, Clone)]
pub struct At<'a> {
    cells: Cells<'a>,
    /// Place of the value that `cells` gives next.
    next: usize,
    places: std::slice::Iter<'a, usize>,
}

impl<'a> Iterator for At<'a> {
    type Item = Cell<'a>;

    fn next(&mut self) -> Option<Cell<'a>> {
        let place = *self.places.next()?;
        let skipped = place.checked_sub(self.next)?;
        self.next = place + 1;
        self.cells.nth(skipped)
    }
}

/// The values of a row, in order.
#[derive(Debug, Clone)]
pub struct Cells<'a> {
    left: &'a [u8],
}

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    fn next(&mut self) -> Option<Cell<'a>> {
        let (&kind, left) = self.left.split_first()?;
        self.left = left;
        match kind {
            NULL => Some(Cell::Null),
            UNCHANGED => Some(Cell::Unchanged),
            _ => {
                let (length, left) = left.split_first_chunk::<4>()?;
                let (text, left) = left.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                self.left = left;
                Some(Cell::Text(text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_come_back_as_they_went() {
        let cells = [
            Cell::Text(b"a"),
            Cell::Null,
            Cell::Unchanged,
            Cell::Text(b""),
        ];
        let row = OwnedRow::new(cells);
        assert_eq!(row.cells().collect::<Vec<_>>(), cells);
        assert!(row.has_unchanged());
        assert_eq!(row.columns(&[0, 3]), OwnedRow::new([cells[0], cells[3]]));
        assert_eq!(row.columns(&[]), OwnedRow::new([]));
    }

    #[test]
    fn values_that_were_not_sent_come_from_the_row_before() {
        let before = OwnedRow::new([Cell::Text(b"1"), Cell::Text(b"long"), Cell::Unchanged]);
        let after = OwnedRow::new([Cell::Null, Cell::Unchanged, Cell::Unchanged]);
        assert_eq!(
            after.over(&before),
            OwnedRow::new([Cell::Null, Cell::Text(b"long"), Cell::Unchanged])
        );
    }
}
