//! Values as arrays in text form, one array for each column: a parameter of a statement.

use std::ffi::CString;

use super::row::Cell;

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

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
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
        self.bytes.reserve(text.len() + 2);
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

    /// True for `true`, as an array of boolean has it.
    pub fn push_bool(&mut self, value: bool) {
        self.push(Cell::Text(if value { b"t" } else { b"f" }));
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

#[cfg(test)]
mod tests {
    use super::*;

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
        array.push_bool(true);
        assert_eq!(
            array.finish().unwrap().to_str().unwrap(),
            "{1;-2.5;\"\";\"NULL\";\"a b\";\"q\\\"u\\\"ote\";\"back\\\\slash\";\"{}\";\"é\";2026-11-22;\
             \"2026-11-22 10:00:00\";NULL;NULL;\"t\"}"
        );
        assert_eq!(ArrayText::new(b',').finish().unwrap().to_str(), Ok("{}"));
    }
}
