//! Faults planted into the files of one side: what to change, where, and whether the
//! oracle must see it.
//!
//! Which access method a file belongs to comes from the catalog, and which of its bits may
//! differ is stated here once more, from the methods' own page formats: not taken from the
//! oracle's masks, which are what is tested.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lockstep_client::field;
use lockstep_lab::server::{SUPERUSER, Server};

pub const PAGE: usize = 8192;
const HEADER: usize = 24;

/// SplitMix64: plants must be the same for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0);
        (self.next() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// A bit of a page.
pub type Bit = (usize, u8);

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(page[at..at + 4].try_into().unwrap())
}

/// Bits of a little number at `at`, those in `mask` only.
fn bits_of(at: usize, mask: u32) -> impl Iterator<Item = Bit> {
    (0..32u8)
        .filter(move |bit| mask >> bit & 1 == 1)
        .map(move |bit| (at + usize::from(bit / 8), bit % 8))
}

fn bytes(range: std::ops::Range<usize>) -> Vec<Bit> {
    range
        .flat_map(|at| (0..8).map(move |bit| (at, bit)))
        .collect()
}

/// A relation's file: main fork of an access method, or another fork.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Path in the data folder.
    pub path: String,
    /// Access method or relation kind, or the fork's name.
    pub sort: String,
}

/// The files of the scene's tables, of their indexes, and of the catalog, by sort.
pub fn candidates(server: &Server) -> BTreeMap<String, Vec<Candidate>> {
    let mut client = server.connect(SUPERUSER, "test").unwrap();
    let rows = client
        .query(
            "SELECT pg_relation_filepath(c.oid), coalesce(CASE WHEN c.relkind = 'S' THEN 'sequence' END, a.amname)::text,
                    c.relpersistence = 'u'
             FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam
             WHERE pg_relation_filepath(c.oid) LIKE 'base/%' AND c.relpersistence <> 't'",
        )
        .unwrap();
    let mut found: BTreeMap<String, Vec<Candidate>> = BTreeMap::new();
    for row in rows {
        let path: String = field(&row, 0).unwrap();
        let method: String = field(&row, 1).unwrap();
        let unlogged: bool = field(&row, 2).unwrap();
        let forks = if unlogged {
            vec!["init"]
        } else {
            vec!["main", "fsm", "vm"]
        };
        for fork in forks {
            let (path, sort) = match fork {
                "main" => (path.clone(), method.clone()),
                _ => (format!("{path}_{fork}"), fork.to_owned()),
            };
            found
                .entry(sort.clone())
                .or_default()
                .push(Candidate { path, sort });
        }
    }
    found
}

/// A page with how it is laid out, as far as plants must know.
pub struct View<'a> {
    pub page: &'a [u8],
    pub sort: &'a str,
    lower: usize,
    upper: usize,
    special: usize,
}

impl<'a> View<'a> {
    /// None for pages that are new or free again, whose content means nothing.
    pub fn of(page: &'a [u8], sort: &'a str) -> Option<Self> {
        if page.iter().all(|&byte| byte == 0)
            || u32_at(page, 0) == 0 && u32_at(page, 4) == 0 && !matches!(sort, "fsm" | "init")
        {
            return None;
        }
        let view = Self {
            page,
            sort,
            lower: u16_at(page, 12).into(),
            upper: u16_at(page, 14).into(),
            special: u16_at(page, 16).into(),
        };
        let free = match sort {
            "gin" => view.special_u16(6) & 4 != 0,
            "hash" => view.special_u16(12) & 0xf == 0,
            "fsm" => page[28..].iter().all(|&byte| byte == 0),
            _ => false,
        };
        (!free).then_some(view)
    }

    fn special_u16(&self, at: usize) -> u16 {
        u16_at(self.page, self.special + at)
    }

    fn is_meta(&self) -> bool {
        match self.sort {
            "btree" => self.special_u16(12) & 8 != 0,
            "hash" => self.special_u16(12) & 8 != 0,
            "gin" => self.special_u16(6) & 8 != 0,
            "spgist" => self.special_u16(0) & 1 != 0,
            "brin" => self.special_u16(6) == 0xf091,
            _ => false,
        }
    }

    /// Has no line pointers although it has something where they would be.
    fn is_deleted(&self) -> bool {
        match self.sort {
            "btree" => self.special_u16(12) & 4 != 0,
            "gist" => self.special_u16(12) & 2 != 0,
            _ => false,
        }
    }

    fn has_line_pointers(&self) -> bool {
        match self.sort {
            "heap" | "btree" | "gist" | "spgist" | "sequence" => {
                !self.is_meta() && !self.is_deleted()
            }
            "hash" => self.special_u16(12) & 3 != 0,
            "gin" => self.special_u16(6) & (1 | 8) == 0,
            "brin" => self.special_u16(6) == 0xf093,
            _ => false,
        }
    }

    /// Index scans may mark items dead here.
    fn has_killable_items(&self) -> bool {
        self.has_line_pointers()
            && match self.sort {
                "btree" | "gist" => self.special_u16(12) & 1 != 0,
                "hash" => true,
                _ => false,
            }
    }

    fn line_pointers(&self) -> Vec<(usize, u32)> {
        if !self.has_line_pointers() {
            return Vec::new();
        }
        (HEADER..self.lower)
            .step_by(4)
            .map(|at| (at, u32_at(self.page, at)))
            .collect()
    }

    /// Items with bytes: start and length.
    fn items(&self) -> Vec<(usize, usize)> {
        self.line_pointers()
            .into_iter()
            .filter(|(_, word)| word >> 15 & 3 != 2 && word >> 17 > 0)
            .map(|(_, word)| ((word & 0x7fff) as usize, (word >> 17) as usize))
            .collect()
    }

    /// Bits that no copy may have otherwise, by the part of the page.
    pub fn firm(&self) -> Vec<(&'static str, Vec<Bit>)> {
        let mut parts = Vec::new();
        if self.sort != "init" {
            parts.push(("lsn", bytes(0..8)));
        }
        parts.push(("flags", bits_of(10, 0xfffc).collect()));
        parts.push(("bounds", bytes(12..20)));
        if matches!(self.sort, "fsm" | "vm") {
            let start = if self.sort == "fsm" {
                HEADER + 4
            } else {
                HEADER
            };
            parts.push(("map", bytes(start..PAGE)));
            return parts;
        }
        if self.sort == "init" {
            // Every method's metapage begins with its magic number; others are empty.
            if self.lower >= HEADER + 8 {
                parts.push(("magic", bytes(HEADER..HEADER + 4)));
            }
            return parts;
        }
        let pointer_bits = if self.has_killable_items() {
            !(3 << 15)
        } else {
            u32::MAX
        };
        let pointers = self.line_pointers();
        parts.push((
            "line pointers",
            pointers
                .iter()
                .flat_map(|(at, _)| bits_of(*at, pointer_bits))
                .collect(),
        ));
        parts.push(("items", self.item_bits()));
        if !self.has_line_pointers() {
            let end = if self.sort == "spgist" && self.is_meta() {
                HEADER + 4
            } else {
                self.lower
            };
            parts.push(("contents", bytes(HEADER..end)));
        }
        if self.sort == "brin" && self.special_u16(6) == 0xf092 {
            parts.push(("range map", bytes(HEADER..self.special)));
        }
        parts.push(("special", self.special_bits()));
        parts
    }

    fn item_bits(&self) -> Vec<Bit> {
        if !matches!(self.sort, "heap" | "sequence") {
            return self
                .items()
                .into_iter()
                .flat_map(|(start, length)| bytes(start..start + length))
                .collect();
        }
        let mut bits = Vec::new();
        for (start, length) in self.items() {
            bits.extend(bytes(start..start + 8));
            bits.extend(bytes(start + 12..start + 20));
            bits.extend(bits_of(start + 20, 0xf0df));
            bits.extend(bytes(start + 22..start + length));
        }
        bits
    }

    fn special_bits(&self) -> Vec<Bit> {
        let (at, soft) = match self.sort {
            "btree" => (12, 0xffff_0060),
            "hash" => (12, 0x0080),
            "gist" => (12, 0x0010),
            "brin" => (4, 0x0001),
            _ => (0, 0),
        };
        let soft: Vec<Bit> = bits_of(self.special + at, soft).collect();
        let all = bytes(self.special..PAGE);
        all.into_iter().filter(|bit| !soft.contains(bit)).collect()
    }

    /// Bits that may differ, by what they are.
    pub fn soft(&self) -> Vec<(&'static str, Vec<Bit>)> {
        let mut parts = vec![("checksum", bytes(8..10))];
        match self.sort {
            "fsm" => {
                parts.push(("next slot", bytes(HEADER..HEADER + 4)));
                return parts;
            }
            "vm" => return parts,
            "init" => {
                // The low half: far from the future.
                parts.push(("lsn of init fork", bytes(4..6)));
                return parts;
            }
            _ => {}
        }
        parts.push(("hints in header", bits_of(10, 3).collect()));
        parts.push(("prune xid", bytes(20..24)));
        let hole = self.has_line_pointers()
            || self.sort == "btree"
            || self.sort == "gin" && self.lower > HEADER;
        if hole {
            parts.push(("unused", bytes(self.lower..self.upper)));
        }
        parts.push((
            "hints in special",
            match self.sort {
                "btree" => bits_of(self.special + 12, 0xffff_0060).collect(),
                "hash" => bits_of(self.special + 12, 0x0080).collect(),
                "gist" => bits_of(self.special + 12, 0x0010).collect(),
                "brin" => bits_of(self.special + 4, 0x0001).collect(),
                "spgist" if self.is_meta() => bytes(HEADER + 4..self.lower),
                _ => Vec::new(),
            },
        ));
        if self.has_killable_items() {
            // normal (1) to dead (3)
            let normal = self
                .line_pointers()
                .into_iter()
                .filter(|(_, word)| word >> 15 & 3 == 1);
            parts.push((
                "killed items",
                normal.flat_map(|(at, _)| bits_of(at, 1 << 16)).collect(),
            ));
        }
        if self.sort == "heap" {
            parts.push(("hints in tuples", self.soft_tuple_bits()));
            parts.push(("padding", self.padding()));
        }
        parts
    }

    fn soft_tuple_bits(&self) -> Vec<Bit> {
        let mut bits = Vec::new();
        for (start, _) in self.items() {
            bits.extend(bytes(start + 8..start + 12));
            bits.extend(bits_of(start + 20, 0x0c20));
            match u16_at(self.page, start + 20) & 0x0300 {
                0 => bits.extend(bits_of(start + 20, 0x0300)),
                0x0300 => {}
                set => bits.extend(bits_of(start + 20, set.into())),
            }
        }
        bits
    }

    fn padding(&self) -> Vec<Bit> {
        let ends = self
            .items()
            .into_iter()
            .map(|(start, length)| start + length);
        ends.flat_map(|end| bytes(end..end.next_multiple_of(8)))
            .collect()
    }
}

/// The pages of one side's files that plants can go to, by sort: path and block.
pub fn pages(
    folder: &Path,
    candidates: &BTreeMap<String, Vec<Candidate>>,
) -> BTreeMap<String, Vec<(String, usize)>> {
    let mut pages: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for candidate in candidates.values().flatten() {
        let content = fs::read(folder.join(&candidate.path)).unwrap_or_default();
        for (block, page) in content.chunks_exact(PAGE).enumerate() {
            if View::of(page, &candidate.sort).is_some() {
                let list = pages.entry(candidate.sort.clone()).or_default();
                list.push((candidate.path.clone(), block));
            }
        }
    }
    pages
}

/// Copies a data folder.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A change to one file, taken back when dropped.
pub struct Change {
    path: PathBuf,
    before: Option<Vec<u8>>,
}

impl Change {
    /// Replaces the content; None removes the file.
    pub fn make(folder: &Path, file: &str, after: Option<&[u8]>) -> Self {
        let path = folder.join(file);
        let before = fs::read(&path).ok();
        match after {
            Some(after) => fs::write(&path, after).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        Self { path, before }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let _ = match &self.before {
            Some(before) => fs::write(&self.path, before),
            None => fs::remove_file(&self.path),
        };
    }
}
