//! Rows as a batch keeps them, in the form in which they came: one block of memory each, or, of rows that are
//! inserted, one for many.

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

    /// The row, borrowed.
    pub fn get(&self) -> RowRef<'_> {
        RowRef(&self.0)
    }

    pub fn cells(&self) -> Cells<'_> {
        self.get().cells()
    }

    /// The values at `places`, which are in rising order.
    pub fn at<'a>(&'a self, places: &'a [usize]) -> At<'a> {
        self.get().at(places)
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

/// A row that somebody else has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRef<'a>(&'a [u8]);

impl<'a> RowRef<'a> {
    pub fn cells(self) -> Cells<'a> {
        Cells { left: self.0 }
    }

    /// The values at `places`, which are in rising order.
    pub fn at(self, places: &'a [usize]) -> At<'a> {
        At {
            cells: self.cells(),
            next: 0,
            places: places.iter(),
        }
    }

    /// Memory that the row takes by itself.
    pub fn size(self) -> usize {
        self.0.len() + OVERHEAD
    }

    /// A copy of the row.
    pub fn owned(self) -> OwnedRow {
        OwnedRow(self.0.into())
    }
}

/// Most bytes of a block, unless one row is longer, and those of the first one.
const BLOCK: usize = 64 * 1024;
const FIRST_BLOCK: usize = 256;

/// A row of so many bytes has a block of its own, so that it is not copied.
const LARGE: usize = BLOCK / 8;

/// Many rows in few blocks of memory: a million of them are made, read and dropped with the work of some
/// hundred.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    blocks: Vec<Block>,
    rows: usize,
    size: usize,
}

#[derive(Debug, Clone)]
struct Block {
    bytes: Vec<u8>,
    /// Where each row ends.
    ends: Vec<usize>,
}

impl Block {
    /// The block of one row, which is not copied.
    fn of(row: OwnedRow) -> Self {
        let bytes = row.0.into_vec();
        let ends = vec![bytes.len()];
        Self { bytes, ends }
    }

    fn with_room(room: usize, row: &OwnedRow) -> Self {
        let mut block = Self {
            bytes: Vec::with_capacity(room),
            ends: Vec::new(),
        };
        block.push(row);
        block
    }

    fn push(&mut self, row: &OwnedRow) {
        self.bytes.extend_from_slice(&row.0);
        self.ends.push(self.bytes.len());
    }

    fn rows(&self) -> impl Iterator<Item = RowRef<'_>> + Clone {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let row = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            RowRef(row)
        })
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }
}

impl Rows {
    pub fn push(&mut self, row: OwnedRow) {
        self.rows += 1;
        let length = row.0.len();
        let has_room = |block: &&mut Block| block.bytes.capacity() - block.bytes.len() >= length;
        let block = match self.blocks.last_mut().filter(has_room) {
            Some(block) => block,
            None if length >= LARGE => return self.add(Block::of(row)),
            None => {
                // As much as there is already, so that a few rows take little.
                let room = self.size.clamp(FIRST_BLOCK, BLOCK).max(length);
                return self.add(Block::with_room(room, &row));
            }
        };
        let before = block.size();
        block.push(&row);
        self.size += block.size() - before;
    }

    fn add(&mut self, block: Block) {
        self.size += block.size();
        self.blocks.push(block);
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Memory in use.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The rows, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = RowRef<'_>> + Clone {
        self.blocks.iter().flat_map(Block::rows)
    }
}

impl PartialEq for Rows {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Rows {}

impl FromIterator<OwnedRow> for Rows {
    fn from_iter<I: IntoIterator<Item = OwnedRow>>(rows: I) -> Self {
        let mut made = Self::default();
        rows.into_iter().for_each(|row| made.push(row));
        made
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
    fn many_rows_share_blocks_and_a_large_one_has_its_own() {
        let row = |text: &str| OwnedRow::new([Cell::Text(text.as_bytes()), Cell::Null]);
        let small: Vec<_> = (0..10_000).map(|n| row(&n.to_string())).collect();
        let large = row(&"x".repeat(3 * BLOCK));
        let all = || small[..5_000].iter().chain([&large]).chain(&small[5_000..]);
        let rows = Rows::from_iter(all().cloned());
        assert_eq!(rows.len(), 10_001);
        assert!(rows.iter().eq(all().map(OwnedRow::get)));
        let bytes: usize = all().map(|row| row.0.len()).sum();
        assert!(rows.blocks.len() < 20, "{} blocks", rows.blocks.len());
        assert!(
            (bytes..2 * bytes).contains(&rows.size()),
            "{} of {bytes}",
            rows.size()
        );
        assert_eq!(Rows::from_iter(rows.iter().map(RowRef::owned)), rows);
        let few = Rows::from_iter([row("a"), row("")]);
        assert!(few.size() < 1_000, "{}", few.size());
        assert!(!few.is_empty() && few != rows && Rows::default().is_empty());
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
