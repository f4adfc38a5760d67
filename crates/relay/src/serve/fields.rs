//! Fields of messages of the extended protocol.

/// What is left of a message's body.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(length)?;
        self.0 = left;
        Some(taken)
    }

    pub fn c_bytes(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let taken = self.take(end)?;
        self.take(1)?;
        Some(taken)
    }

    /// A text that can be read here; the primary may read others.
    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.c_bytes()?).ok()
    }

    pub fn number(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    }

    /// A parameter; Some(None) is NULL.
    pub fn value(&mut self) -> Option<Option<&'a [u8]>> {
        let length = i32::from_be_bytes(self.take(4)?.try_into().ok()?);
        match usize::try_from(length) {
            Ok(length) => self.take(length).map(Some),
            Err(_) => Some(None),
        }
    }
}
