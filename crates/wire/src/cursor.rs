//! Reads the inside of one message from front to back, and never past its end.

use crate::{Lsn, Result, WireError};

/// What is left of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    left: &'a [u8],
    /// The message's name, for errors.
    what: &'static str,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { left: bytes, what }
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, left) = self
            .left
            .split_at_checked(length)
            .ok_or(WireError::Truncated(self.what))?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, left) = self
            .left
            .split_first_chunk::<N>()
            .ok_or(WireError::Truncated(self.what))?;
        self.left = left;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub fn lsn(&mut self) -> Result<Lsn> {
        self.array().map(u64::from_be_bytes).map(Lsn::from)
    }

    /// Reads a position that must not be `0/0`.
    pub fn valid_lsn(&mut self) -> Result<Lsn> {
        let lsn = self.lsn()?;
        match lsn.is_valid() {
            true => Ok(lsn),
            false => Err(WireError::Malformed("position 0/0")),
        }
    }

    /// Reads a length of four bytes, and as many bytes as it says.
    pub fn counted(&mut self) -> Result<&'a [u8]> {
        let length = self.i32()?;
        let length = usize::try_from(length).map_err(|_| WireError::BadLength(length))?;
        self.take(length)
    }

    /// The bytes between `start`, an earlier copy of this cursor, and this one.
    pub fn taken_since(self, mut start: Self) -> Result<&'a [u8]> {
        let length = start.left.len().checked_sub(self.left.len());
        start.take(length.ok_or(WireError::Truncated(self.what))?)
    }

    /// Reads up to a zero byte, and takes that byte as well.
    pub fn c_bytes(&mut self) -> Result<&'a [u8]> {
        let end = self
            .left
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(WireError::Truncated(self.what))?;
        let text = self.take(end)?;
        self.u8()?;
        Ok(text)
    }

    /// Like [`Cursor::c_bytes`], but the bytes must be UTF-8.
    pub fn c_str(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.c_bytes()?)
            .map_err(|_| WireError::Malformed("text that is not UTF-8"))
    }

    pub fn rest(self) -> &'a [u8] {
        self.left
    }

    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Fails if something is left.
    pub fn end(self) -> Result<()> {
        match self.left.is_empty() {
            true => Ok(()),
            false => Err(WireError::Malformed("bytes after the end of the content")),
        }
    }
}

/// Appends `text` and a zero byte. Zero bytes inside the text are left out, because they would
/// end it.
pub(crate) fn put_c_str(out: &mut Vec<u8>, text: &str) {
    put_c_bytes(out, text.as_bytes());
}

/// Like [`put_c_str`], for text in any encoding.
pub(crate) fn put_c_bytes(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(text.iter().filter(|&&byte| byte != 0));
    out.push(0);
}

/// Appends a length of four bytes, and the bytes. Fails if there are too many.
pub(crate) fn put_counted_bytes(out: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    let length = i32::try_from(bytes.len()).map_err(|_| WireError::TooLong {
        length: bytes.len(),
        limit: i32::MAX as usize,
    })?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}
