//! WAL in memory.

use std::io;

use lockstep_wire::Lsn;

use crate::reader::Pages;

/// Bytes of WAL from a position on. The rest of the last page counts as not written: a server seldom stands
/// at the end of one.
#[derive(Debug, Clone)]
pub struct WalInMemory {
    pub start: Lsn,
    pub bytes: Vec<u8>,
    /// Where they come from, for people.
    pub name: String,
}

impl Pages for WalInMemory {
    fn read(&mut self, at: Lsn, page: &mut [u8]) -> io::Result<usize> {
        let offset = u64::from(at).checked_sub(u64::from(self.start));
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let rest = offset.and_then(|offset| self.bytes.get(offset..));
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(page.len());
        page.fill(0);
        for (place, byte) in page.iter_mut().zip(rest) {
            *place = *byte;
        }
        Ok(match length {
            0 => 0,
            _ => page.len(),
        })
    }

    fn name(&self, _at: Lsn) -> String {
        self.name.clone()
    }
}
