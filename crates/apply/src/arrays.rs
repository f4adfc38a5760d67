//! Values in text form: as arrays, one for each column, which are a statement's parameters, and as
//! lines of COPY.

use std::ffi::CString;

use crate::row::{Cell, RowRef};

/// An array that is being written.
#[derive(Debug)]
pub struct ArrayText {
    bytes: Vec<u8>,
    delimiter: u8,
}

impl ArrayText {
    pub fn new(delimiter: u8) -> Self {
        Self {
            bytes: vec![b'{'],
            delimiter,
        }
    }

    /// Adds a value. One that was not sent is null: the statement does not use it.
    pub fn push(&mut self, cell: Cell<'_>) {
        if self.bytes.len() > 1 {
            self.bytes.push(self.delimiter);
        }
        match cell {
            Cell::Null | Cell::Unchanged => self.bytes.extend_from_slice(b"NULL"),
            Cell::Text(text) if is_plain(text) => self.bytes.extend_from_slice(text),
            Cell::Text(text) => self.push_quoted(text),
        }
    }

    fn push_quoted(&mut self, text: &[u8]) {
        // Few values have more to escape: a large one is not moved as it grows.
        self.bytes.reserve(text.len() + 64);
        self.bytes.push(b'"');
        let mut left = text;
        while let Some(place) = left.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            let (plain, rest) = left.split_at(place);
            self.bytes.extend_from_slice(plain);
            self.bytes.push(b'\\');
            let (special, rest) = rest.split_at(1);
            self.bytes.extend_from_slice(special);
            left = rest;
        }
        self.bytes.extend_from_slice(left);
        self.bytes.push(b'"');
    }

    /// The array. None if a value holds a NUL character, which no text of a server can.
    pub fn finish(mut self) -> Option<CString> {
        self.bytes.push(b'}');
        CString::new(self.bytes).ok()
    }
}

/// A number, a time or the like, which needs no quotation marks.
fn is_plain(text: &[u8]) -> bool {
    text.first()
        .is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-')
        && text.len() <= 40
        && text
            .iter()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'+' | b':'))
}

/// A long value is copied in pieces of so many bytes.
const PIECE: usize = 64 * 1024;

/// Appends a row as a line of COPY in text format. `written` are the places of its columns. `send` may
/// take what there is so far, which may end within the row: a long row is never here as a whole.
pub fn copy_line<E>(
    row: RowRef<'_>,
    written: &[usize],
    out: &mut Vec<u8>,
    send: &mut impl FnMut(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let mut wanted = written.iter().copied().peekable();
    let mut is_first = true;
    for (place, cell) in row.cells().enumerate() {
        if wanted.next_if_eq(&place).is_none() {
            continue;
        }
        if !is_first {
            out.push(b'\t');
        }
        is_first = false;
        match cell {
            Cell::Null | Cell::Unchanged => out.extend_from_slice(b"\\N"),
            Cell::Text(text) => {
                for piece in text.chunks(PIECE) {
                    copy_value(piece, out);
                    send(out)?;
                }
            }
        }
    }
    out.push(b'\n');
    Ok(())
}

fn is_special(byte: &u8) -> bool {
    matches!(byte, b'\\' | b'\n' | b'\r' | b'\t')
}

/// Bytes that are compared at once, without a branch for each.
const AT_ONCE: usize = 16;

/// The place of the first byte that has to be escaped.
fn first_special(text: &[u8]) -> Option<usize> {
    let is_plain = |piece: &&[u8]| !piece.iter().fold(false, |any, byte| any | is_special(byte));
    let plain = text.chunks(AT_ONCE).take_while(is_plain);
    let before: usize = plain.map(<[u8]>::len).sum();
    let place = text.get(before..)?.iter().position(is_special)?;
    Some(before + place)
}

fn copy_value(text: &[u8], out: &mut Vec<u8>) {
    let mut left = text;
    while let Some(place) = first_special(left) {
        let (plain, rest) = left.split_at(place);
        out.extend_from_slice(plain);
        if let Some((byte, rest)) = rest.split_first() {
            out.push(b'\\');
            out.push(match byte {
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                other => *other,
            });
            left = rest;
        }
    }
    out.extend_from_slice(left);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::OwnedRow;

    #[test]
    fn values_are_quoted_where_they_must_be() {
        let mut array = ArrayText::new(b';');
        for text in [
            "1",
            "-2.5",
            "",
            "NULL",
            "a b",
            "q\"u\"ote",
            "back\\slash",
            "{}",
            "é",
            "2026-11-22",
            "2026-11-22 10:00:00",
        ] {
            array.push(Cell::Text(text.as_bytes()));
        }
        array.push(Cell::Null);
        array.push(Cell::Unchanged);
        assert_eq!(
            array.finish().unwrap().to_str().unwrap(),
            "{1;-2.5;\"\";\"NULL\";\"a b\";\"q\\\"u\\\"ote\";\"back\\\\slash\";\"{}\";\"é\";2026-11-22;\
             \"2026-11-22 10:00:00\";NULL;NULL}"
        );
        assert_eq!(ArrayText::new(b',').finish().unwrap().to_str(), Ok("{}"));
    }

    #[test]
    fn lines_of_copy_are_escaped() {
        let cells = ["a\tb", "", "\\N", "x\r\ny", "\\."];
        let cells = cells.iter().map(|text| Cell::Text(text.as_bytes()));
        let row = OwnedRow::new(cells.chain([Cell::Null]));
        let mut line = Vec::new();
        let mut keep = |_: &mut Vec<u8>| Ok::<_, ()>(());
        copy_line(row.get(), &[0, 1, 2, 3, 4, 5], &mut line, &mut keep).unwrap();
        copy_line(row.get(), &[1, 5], &mut line, &mut keep).unwrap();
        let expected = "a\\tb\t\t\\\\N\tx\\r\\ny\t\\\\.\t\\N\n\t\\N\n";
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }
    #[test]
    fn of_a_long_line_only_a_piece_is_in_memory() {
        let long = "a\tb".repeat(PIECE);
        let row = OwnedRow::new([Cell::Text(b"1"), Cell::Text(long.as_bytes())]);
        let (mut line, mut sent, mut most) = (Vec::new(), Vec::new(), 0);
        let mut send = |line: &mut Vec<u8>| {
            most = most.max(line.len());
            sent.append(line);
            Ok::<_, ()>(())
        };
        copy_line(row.get(), &[0, 1], &mut line, &mut send).unwrap();
        sent.append(&mut line);
        assert!(most <= 2 * PIECE, "{most}");
        let expected = format!("1\t{}\n", "a\\tb".repeat(PIECE));
        assert_eq!(String::from_utf8(sent).unwrap(), expected);
    }
}
