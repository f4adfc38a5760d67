//! Masks the places in which two copies of a page may differ, by access method.
//!
//! Masked are bytes that a server changes without WAL, and bytes that replay writes differently
//! from the primary. PostgreSQL's own check of replay (`wal_consistency_checking`) leaves out
//! the same places and more, because it compares pages of different moments. Here the pages
//! are of the same moment, so the page's LSN, the all-visible flag, GiST's sequence numbers
//! and locks in tuple headers are compared too.
//!
//! The mask of a page depends on that page alone, never on the other. That is safe because
//! every byte that decides about a mask (`pd_lower`, line pointers, the special area's flags)
//! is itself compared: if it differs, the page is reported.

use std::ops::Range;

use crate::oracle::Fork;
use crate::oracle::page::{
    self, HEADER_SIZE, Layout, LinePointer, PAGE_SIZE, PageKind, header, i64_at, u16_at, u32_at,
};

/// `pd_flags`: PD_HAS_FREE_LINES and PD_PAGE_FULL. Both are hints.
const HEADER_HINTS: u16 = 0x0003;

/// `t_infomask`: xmin committed and xmin invalid. Both together mean frozen, which is logged.
const XMIN_HINTS: u16 = 0x0300;
/// `t_infomask`: xmax committed, xmax invalid.
const XMAX_HINTS: u16 = 0x0c00;
/// `t_infomask`: combined command id. Command ids are not in the WAL.
const COMBO_CID: u16 = 0x0020;
/// The offset number in `t_ctid` of a speculatively inserted tuple.
const SPECULATIVE: u16 = 0xfffe;

/// Offsets in a heap tuple's header.
mod tuple {
    pub const COMMAND: usize = 8;
    pub const CTID: usize = 12;
    pub const INFOMASK: usize = 20;
}

/// A copy of a page in which the places that may differ are masked.
pub fn masked(page: &[u8; PAGE_SIZE], fork: Fork, block: u32) -> (PageKind, [u8; PAGE_SIZE]) {
    let kind = page::kind(page, fork, block);
    let mut copy = Masked {
        bytes: *page,
        layout: Layout::of(page),
        block,
    };
    copy.apply(kind);
    if fork == Fork::Init {
        // Some access methods write the page to disk before they log it. The primary's file and
        // every copy of it then have LSN 0, while replay sets the record's LSN.
        copy.zero(0..header::CHECKSUM);
    }
    (kind, copy.bytes)
}

/// Makes two masked pages equal in places that may differ, but whose mask needs both pages.
pub(crate) fn reconcile(
    kind: (PageKind, PageKind),
    a: &mut [u8; PAGE_SIZE],
    b: &mut [u8; PAGE_SIZE],
) {
    match kind {
        (PageKind::Sequence, PageKind::Sequence) => sequences(a, b),
        // A page of a map is initialised in memory when it is first read, which alone does not
        // write it to disk.
        (PageKind::New, PageKind::FreeSpaceMap | PageKind::VisibilityMap) if is_empty_map(b) => {
            b.fill(0)
        }
        (PageKind::FreeSpaceMap | PageKind::VisibilityMap, PageKind::New) if is_empty_map(a) => {
            a.fill(0)
        }
        _ => {}
    }
}

pub(crate) fn is_empty_map(page: &[u8; PAGE_SIZE]) -> bool {
    page::lsn(page) == 0.into() && page.get(HEADER_SIZE..).is_some_and(page::is_zero)
}

/// Masks `last_value` and `log_cnt` of a sequence if both pages mean the same.
///
/// A sequence's WAL record holds the value up to which values were logged in advance. The
/// primary then sets the true value on its page, and in `log_cnt` how many logged values are
/// left; a base backup carries such a page to a standby. Replay leaves the record's value.
/// In both cases `last_value + log_cnt * increment` is the same. The increment is only in the
/// catalog, so the check is that the difference of the values is a multiple of the difference
/// of the counts, and that neither is zero.
fn sequences(a: &mut [u8; PAGE_SIZE], b: &mut [u8; PAGE_SIZE]) {
    let (Some(data_a), Some(data_b)) = (sequence_data(a), sequence_data(b)) else {
        return;
    };
    if data_a != data_b {
        return;
    }
    let value = |page: &[u8]| i128::from(i64_at(page, data_a));
    let logged = |page: &[u8]| i128::from(i64_at(page, data_a + 8));
    let ahead = value(a) - value(b);
    let covered = logged(b) - logged(a);
    if covered != 0 && ahead != 0 && ahead % covered == 0 {
        for page in [a, b] {
            fill(page, data_a..data_a + 16);
        }
    }
}

/// Offset of a sequence's `last_value`.
fn sequence_data(page: &[u8]) -> Option<usize> {
    let layout = Layout::of(page)?;
    let item = LinePointer::at(page, 1).item(&layout)?;
    let data = item.start + usize::from(*page.get(item.start + 22)?);
    (data + 17 <= item.end).then_some(data)
}

fn fill(page: &mut [u8], range: Range<usize>) {
    if let Some(bytes) = page.get_mut(range) {
        bytes.fill(0);
    }
}

struct Masked {
    bytes: [u8; PAGE_SIZE],
    layout: Option<Layout>,
    block: u32,
}

impl Masked {
    fn apply(&mut self, kind: PageKind) {
        if kind == PageKind::New {
            self.bytes.fill(0);
            return;
        }
        self.zero(header::CHECKSUM..header::FLAGS);
        match kind {
            PageKind::New | PageKind::Invalid | PageKind::VisibilityMap => return,
            PageKind::FreeSpaceMap => {
                // fp_next_slot: where the next search for space begins.
                self.zero(HEADER_SIZE..HEADER_SIZE + 4);
                return;
            }
            _ => {}
        }
        self.clear(header::FLAGS, HEADER_HINTS);
        self.zero(header::PRUNE_XID..HEADER_SIZE);
        match kind {
            PageKind::Heap | PageKind::Sequence => self.heap(),
            PageKind::Btree => self.btree(),
            PageKind::Hash => self.hash(),
            PageKind::Gist => self.gist(),
            PageKind::Spgist => self.spgist(),
            PageKind::Gin => self.gin(),
            PageKind::Brin => self.brin(),
            _ => self.hole_if_lower_is_set(),
        }
    }

    fn zero(&mut self, range: Range<usize>) {
        fill(&mut self.bytes, range);
    }

    fn clear(&mut self, offset: usize, bits: u16) {
        let kept = u16_at(&self.bytes, offset) & !bits;
        self.put(offset, kept);
    }

    fn put(&mut self, offset: usize, value: u16) {
        if let Some(bytes) = self.bytes.get_mut(offset..offset + 2) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// Masks the unused space. Freeing an item leaves its bytes there; a full page image does
    /// not keep them.
    fn hole(&mut self) {
        if let Some(layout) = self.layout {
            self.zero(layout.lower..layout.upper);
        }
    }

    /// Like [`Self::hole`], unless `pd_lower` is at the header's end: some access methods then
    /// keep data in the space that the header calls unused.
    fn hole_if_lower_is_set(&mut self) {
        if self.layout.is_some_and(|layout| layout.lower > HEADER_SIZE) {
            self.hole();
        }
    }

    /// Masks everything but the header and the special area, for pages that were freed.
    fn content(&mut self) {
        if let Some(layout) = self.layout {
            self.zero(HEADER_SIZE..layout.special);
            self.zero(header::LOWER..header::SPECIAL);
        }
    }

    fn special(&self) -> usize {
        self.layout.map_or(PAGE_SIZE, |layout| layout.special)
    }

    fn heap(&mut self) {
        self.hole();
        let Some(layout) = self.layout else { return };
        for number in 1..=layout.line_pointers() {
            let Some(item) = LinePointer::at(&self.bytes, number).item(&layout) else {
                continue;
            };
            // The padding up to the next item holds bytes of earlier items.
            self.zero(item.end..item.end.next_multiple_of(8).min(layout.special));
            if item.len() >= page::TUPLE_HEADER_SIZE {
                self.tuple(item.start, number);
            }
        }
    }

    fn tuple(&mut self, start: usize, number: u16) {
        let infomask = u16_at(&self.bytes, start + tuple::INFOMASK);
        let frozen = infomask & XMIN_HINTS == XMIN_HINTS;
        let hints = XMAX_HINTS | COMBO_CID | if frozen { 0 } else { XMIN_HINTS };
        self.put(start + tuple::INFOMASK, infomask & !hints);
        self.zero(start + tuple::COMMAND..start + tuple::CTID);
        // The primary stores the token of a speculative insertion in `t_ctid`. Replay stores the
        // tuple's own position there.
        if u16_at(&self.bytes, start + tuple::CTID + 4) == SPECULATIVE {
            self.put(start + tuple::CTID, (self.block >> 16) as u16);
            self.put(start + tuple::CTID + 2, (self.block & 0xffff) as u16);
            self.put(start + tuple::CTID + 4, number);
        }
    }

    /// Index scans mark items dead without WAL. So dead items that still have their bytes are
    /// changed to normal ones.
    fn killed_items(&mut self) {
        let Some(layout) = self.layout else { return };
        for number in 1..=layout.line_pointers() {
            let place = LinePointer::place(number);
            let word = u32_at(&self.bytes, place);
            let dead_with_bytes = word >> 15 & 3 == 3 && word >> 17 != 0;
            if let (true, Some(bytes)) = (dead_with_bytes, self.bytes.get_mut(place..place + 4)) {
                bytes.copy_from_slice(&(word & !(3 << 15) | 1 << 15).to_ne_bytes());
            }
        }
    }

    fn btree(&mut self) {
        const FLAGS: usize = 12;
        const CYCLE: usize = 14;
        const LEAF: u16 = 1;
        const DELETED: u16 = 1 << 2;
        const META: u16 = 1 << 3;
        const SPLIT_END: u16 = 1 << 5;
        const HAS_GARBAGE: u16 = 1 << 6;
        self.hole();
        let special = self.special();
        let flags = u16_at(&self.bytes, special + FLAGS);
        // Deleted pages and the metapage have no line pointers.
        if flags & LEAF != 0 && flags & (DELETED | META) == 0 {
            self.killed_items();
        }
        // The cycle id, with which a running VACUUM marks splits. Replay leaves it 0.
        self.clear(special + FLAGS, SPLIT_END | HAS_GARBAGE);
        self.zero(special + CYCLE..special + CYCLE + 2);
    }

    fn hash(&mut self) {
        const FLAGS: usize = 12;
        const OVERFLOW_OR_BUCKET: u16 = 3;
        const PAGE_TYPE: u16 = 0xf;
        const HAS_DEAD: u16 = 1 << 7;
        let special = self.special();
        let flags = u16_at(&self.bytes, special + FLAGS);
        self.hole();
        if flags & PAGE_TYPE == 0 {
            self.content();
        } else if flags & OVERFLOW_OR_BUCKET != 0 {
            self.killed_items();
        }
        self.clear(special + FLAGS, HAS_DEAD);
    }

    fn gist(&mut self) {
        const FLAGS: usize = 12;
        const LEAF: u16 = 1;
        const DELETED: u16 = 1 << 1;
        const HAS_GARBAGE: u16 = 1 << 4;
        let special = self.special();
        let flags = u16_at(&self.bytes, special + FLAGS);
        self.hole();
        if flags & LEAF != 0 && flags & DELETED == 0 {
            self.killed_items();
        }
        self.clear(special + FLAGS, HAS_GARBAGE);
    }

    fn spgist(&mut self) {
        const META: u16 = 1;
        let special = self.special();
        if u16_at(&self.bytes, special) & META != 0 {
            // After the magic number lies a cache of pages with room, which is never logged.
            self.zero(HEADER_SIZE + 4..special);
        } else {
            self.hole();
        }
    }

    fn gin(&mut self) {
        const FLAGS: usize = 6;
        const DELETED: u16 = 1 << 2;
        let special = self.special();
        if u16_at(&self.bytes, special + FLAGS) & DELETED != 0 {
            // The primary keeps the content of deleted pages; replay empties them.
            self.content();
            self.zero(special..special + FLAGS);
        } else {
            self.hole_if_lower_is_set();
        }
    }

    fn brin(&mut self) {
        const FLAGS: usize = 4;
        const TYPE: usize = 6;
        const EVACUATE: u16 = 1;
        const META: u16 = 0xf091;
        const REGULAR: u16 = 0xf093;
        let special = self.special();
        match u16_at(&self.bytes, special + TYPE) {
            REGULAR => self.hole(),
            META => self.hole_if_lower_is_set(),
            // A range map page has its array where other pages have unused space.
            _ => {}
        }
        self.clear(special + FLAGS, EVACUATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence's page in bytes: header, one line pointer, one tuple, the magic number.
    fn sequence(last: i64, log: i64) -> [u8; PAGE_SIZE] {
        const START: usize = 8136;
        const LENGTH: usize = 41;
        let mut page = [0; PAGE_SIZE];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &7_u32.to_ne_bytes());
        put(header::LOWER, &28_u16.to_ne_bytes());
        put(header::UPPER, &(START as u16).to_ne_bytes());
        put(header::SPECIAL, &8184_u16.to_ne_bytes());
        let pointer = START as u32 | 1 << 15 | (LENGTH as u32) << 17;
        put(HEADER_SIZE, &pointer.to_ne_bytes());
        put(START + 22, &[24]);
        put(START + 24, &last.to_ne_bytes());
        put(START + 32, &log.to_ne_bytes());
        put(8184, &0x1717_u32.to_ne_bytes());
        page
    }

    #[test]
    fn sequences_agree_when_they_cover_the_same_values() {
        let equal = |a: (i64, i64), b: (i64, i64)| {
            let (kind_a, mut a) = masked(&sequence(a.0, a.1), Fork::Main, 0);
            let (kind_b, mut b) = masked(&sequence(b.0, b.1), Fork::Main, 0);
            assert_eq!((kind_a, kind_b), (PageKind::Sequence, PageKind::Sequence));
            reconcile((kind_a, kind_b), &mut a, &mut b);
            a == b
        };
        assert!(equal((1, 32), (1, 32)));
        assert!(equal((1, 32), (33, 0)), "increment 1");
        assert!(equal((4, 31), (97, 0)), "increment 3");
        assert!(equal((-2, 30), (-62, 0)), "increment -2");
        assert!(equal((i64::MIN, 1), (i64::MAX, 0)), "the widest");
        assert!(!equal((1, 32), (2, 32)), "another value");
        assert!(!equal((33, 1), (33, 0)), "no increment is 0");
        assert!(!equal((1, 31), (33, 0)), "not a whole number of increments");
    }

    #[test]
    fn nothing_on_a_page_is_trusted() {
        let mut state: u64 = 1;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for round in 0..2000_u32 {
            let mut page = [0; PAGE_SIZE];
            for byte in &mut page {
                *byte = next() as u8;
            }
            if round % 4 > 0 {
                // A plausible header and special area, so that the methods' masks are reached.
                let special = PAGE_SIZE - [0, 8, 16][(round % 3) as usize];
                let upper = 24 + next() as usize % (special - 24);
                let lower = 24 + next() as usize % (upper - 23);
                for (at, value) in [
                    (header::LOWER, lower),
                    (header::UPPER, upper),
                    (header::SPECIAL, special),
                ] {
                    page[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
                }
                let marks = [
                    0xff80, 0xff81, 0xff82, 0xf091, 0xf092, 0xf093, 0, 1, 4, 8, 0xff83_u16,
                ];
                let mark = marks[next() as usize % marks.len()];
                page[PAGE_SIZE - 2..].copy_from_slice(&mark.to_ne_bytes());
            }
            for fork in [Fork::Main, Fork::FreeSpace, Fork::Visibility, Fork::Init] {
                let (kind, once) = masked(&page, fork, round);
                let (again, twice) = masked(&once, fork, round);
                if kind == again {
                    assert!(once == twice, "masking {kind} twice changes more");
                }
            }
        }
    }
}
