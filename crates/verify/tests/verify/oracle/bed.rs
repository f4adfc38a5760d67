//! Two equal copies of a settled cluster, and the faults planted into them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings};
use lockstep_verify::oracle::{self, CompareOptions, Comparison, What};

use super::plants::{self, Bit, Change, PAGE, Random, View};
use super::{MORE, SCENE, play, small};

/// How many pages of a sort are looked at for parts that not all of them have.
const TRIES: usize = 24;
/// How many pages are tried for one that has changed.
const SEARCH: usize = 4000;

pub struct Bed {
    lab: Lab,
    /// Two folders of one moment, which are equal.
    sides: [PathBuf; 2],
    /// An earlier moment, a later one.
    before: PathBuf,
    after: PathBuf,
    /// The WAL segment of that moment.
    segment: u64,
    pages: BTreeMap<String, Vec<(String, usize)>>,
    random: Random,
    planted: u64,
    found: u64,
    harmless: u64,
    reported: u64,
}

/// The start of a moment's folders.
fn settle(primary: &Server, a: &mut Server, b: &mut Server) -> u64 {
    oracle::settle(primary, &mut [a, b]).unwrap().into()
}

impl Bed {
    pub fn new(seed: u64) -> Self {
        let lab = Lab::for_tests().unwrap();
        let mut settings = small();
        settings.insert("wal_keep_size".to_owned(), "0".to_owned());
        let primary = lab.primary("primary", None, &settings).unwrap();
        let mut a = lab.standby(&primary, "a", &Settings::new()).unwrap();
        let mut b = lab.standby(&primary, "b", &Settings::new()).unwrap();
        let folder = |name: &str| lab.folder().join(name);
        let (before, side_a, side_b) = (folder("before"), folder("side-a"), folder("side-b"));

        play(&primary, SCENE);
        settle(&primary, &mut a, &mut b);
        plants::copy(a.data(), &before);
        // From here on the WAL is kept: it is what shows a loss that both sides share.
        for standby in [&mut a, &mut b] {
            standby.set([("wal_keep_size", "512MB")]).unwrap();
            standby.start().unwrap();
        }
        play(&primary, MORE);
        // What is held against pages lies in other segments than what must be read anyway.
        play(&primary, "SELECT pg_switch_wal();\n");
        let position = settle(&primary, &mut a, &mut b);
        plants::copy(a.data(), &side_a);
        plants::copy(b.data(), &side_b);
        a.start().unwrap();
        b.start().unwrap();
        play(&primary, MORE);
        settle(&primary, &mut a, &mut b);

        let candidates = plants::candidates(&primary);
        let bed = Self {
            pages: plants::pages(&side_a, &candidates),
            before,
            after: a.data().to_path_buf(),
            // File names count segments of 16 MB: 256 to the first number's one.
            segment: (position >> 32 << 32) + (position >> 24 & 0xff),
            sides: [side_a, side_b],
            lab,
            random: Random::new(seed),
            planted: 0,
            found: 0,
            harmless: 0,
            reported: 0,
        };
        // Databases that nobody was in only cost time.
        for side in &bed.sides {
            fs::remove_dir_all(side.join("base/1")).unwrap();
            fs::remove_dir_all(side.join("base/4")).unwrap();
        }
        let sorts: BTreeSet<&str> = bed.pages.keys().map(String::as_str).collect();
        let all = [
            "brin", "btree", "fsm", "gin", "gist", "hash", "heap", "init", "sequence", "spgist",
            "vm",
        ];
        assert_eq!(sorts, BTreeSet::from(all));
        bed.keep_wal(false);
        assert_eq!(bed.compare().found, 0);
        bed
    }

    /// Whether WAL from before the last checkpoint lies in the folders. Reading it takes
    /// most of a comparison, and only losses that both sides share need it.
    fn keep_wal(&self, keep: bool) {
        for side in &self.sides {
            let (wal, aside) = (side.join("pg_wal"), side.join("wal_aside"));
            let (from, to) = if keep { (&aside, &wal) } else { (&wal, &aside) };
            let _ = fs::create_dir(&aside);
            for entry in fs::read_dir(from).unwrap() {
                let name = entry.unwrap().file_name();
                let text = name.to_string_lossy();
                let number =
                    (text.len() == 24).then(|| u64::from_str_radix(&text[8..], 16).unwrap());
                if number.is_some_and(|number| keep || number < self.segment) {
                    fs::rename(from.join(&name), to.join(&name)).unwrap();
                }
            }
        }
    }

    fn compare(&self) -> Comparison {
        let [a, b] = &self.sides;
        oracle::compare(self.lab.package(), a, b, &CompareOptions::default()).unwrap()
    }

    fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.sides[0].join(path)).unwrap()
    }

    /// Changes a file on one side, or on both, compares, and takes it back. Found is only
    /// what names the file and, where there is one, the block, and nothing besides.
    fn plant(
        &mut self,
        what: &str,
        both: bool,
        path: &str,
        block: Option<usize>,
        after: Option<&[u8]>,
    ) -> Comparison {
        let sides = match both {
            true => vec![0, 1],
            false => vec![self.random.below(2)],
        };
        let changes: Vec<Change> = sides
            .iter()
            .map(|&side| Change::make(&self.sides[side], path, after))
            .collect();
        let comparison = self.compare();
        drop(changes);
        self.planted += 1;
        let told = comparison.differences.iter().all(|difference| {
            difference.file == path
                && (block.is_none() || difference.block == block.map(|b| b as u32))
        });
        if comparison.found > 0 && told {
            self.found += 1;
        } else {
            println!(
                "NOT FOUND: {what} in {path}, block {block:?}: {:?}",
                comparison.differences
            );
        }
        comparison
    }

    /// Random pages of a sort, with their file's content.
    fn some_page(&mut self, sort: &str) -> (String, usize, Vec<u8>) {
        let (path, block) = self.random.pick(&self.pages[sort]).clone();
        let content = self.read(&path);
        (path, block, content)
    }

    /// Every other time a first page: it is the metapage where there is one.
    fn page_of(&mut self, sort: &str, attempt: usize) -> (String, usize, Vec<u8>) {
        loop {
            let (path, block) = self.random.pick(&self.pages[sort]).clone();
            if attempt % 2 == 0 || block < 2 {
                let content = self.read(&path);
                return (path, block, content);
            }
        }
    }

    fn sorts(&self) -> Vec<String> {
        self.pages.keys().cloned().collect()
    }

    /// One bit of every part of every sort of page.
    pub fn flips(&mut self) {
        for sort in self.sorts() {
            let mut done = BTreeSet::new();
            for attempt in 0..TRIES {
                let (path, block, content) = self.page_of(&sort, attempt);
                let parts = parts(&content, block, |page| {
                    View::of(page, &sort).unwrap().firm()
                });
                for (part, bits) in parts {
                    if !bits.is_empty() && done.insert(part) {
                        let flipped = self.flip(&content, block, &bits);
                        let what = format!("{part} of {sort}");
                        self.plant(&what, false, &path, Some(block), Some(&flipped));
                    }
                }
            }
        }
    }

    /// Plants what may differ between clusters: it must not be reported.
    pub fn harmless_changes(&mut self) {
        for sort in self.sorts() {
            let mut done = BTreeSet::new();
            for attempt in 0..TRIES {
                let (path, block, content) = self.page_of(&sort, attempt);
                let parts = parts(&content, block, |page| {
                    View::of(page, &sort).unwrap().soft()
                });
                for (part, bits) in parts {
                    if bits.is_empty() || !done.insert(part) {
                        continue;
                    }
                    let flipped = self.flip(&content, block, &bits);
                    let side = self.random.below(2);
                    let change = Change::make(&self.sides[side], &path, Some(&flipped));
                    let comparison = self.compare();
                    drop(change);
                    self.harmless += 1;
                    if comparison.found > 0 {
                        self.reported += 1;
                        println!("REPORTED: {part} of {sort}: {:?}", comparison.differences);
                    }
                }
            }
        }
    }

    fn flip(&mut self, content: &[u8], block: usize, bits: &[Bit]) -> Vec<u8> {
        let (at, bit) = *self.random.pick(bits);
        let mut flipped = content.to_vec();
        flipped[block * PAGE + at] ^= 1 << bit;
        flipped
    }

    /// A zeroed page, a missing one, a file cut amid a page, one more page.
    pub fn whole_pages(&mut self) {
        for sort in self.sorts() {
            let (path, block, content) = self.some_page(&sort);
            let place = block * PAGE..(block + 1) * PAGE;
            let mut zeroed = content.clone();
            zeroed[place.clone()].fill(0);
            self.plant("zeroed page", false, &path, Some(block), Some(&zeroed));
            self.plant(
                "short file",
                false,
                &path,
                Some(block),
                Some(&content[..place.start]),
            );
            let cut = place.start + 1 + self.random.below(PAGE - 1);
            self.plant("cut page", false, &path, None, Some(&content[..cut]));
            let longer = [&content[..], &content[place]].concat();
            self.plant(
                "extra page",
                false,
                &path,
                Some(content.len() / PAGE),
                Some(&longer),
            );
        }
    }

    /// Pages as they were before a record, on one side and on both; pages of later records.
    pub fn lost_and_future(&mut self) {
        self.keep_wal(true);
        for sort in [
            "heap", "btree", "hash", "gist", "spgist", "gin", "brin", "sequence", "vm",
        ] {
            for (moment, folder) in [
                ("lost", self.before.clone()),
                ("future", self.after.clone()),
            ] {
                let Some((path, block, other)) = self.changed_page(sort, &folder) else {
                    panic!("no {sort} page changed ({moment})");
                };
                for both in [false, true] {
                    let comparison = self.plant(moment, both, &path, Some(block), Some(&other));
                    let as_expected =
                        comparison
                            .differences
                            .iter()
                            .all(|difference| match difference.what {
                                What::Behind { .. } => moment == "lost",
                                What::Future { .. } => moment == "future",
                                _ => false,
                            });
                    assert!(as_expected, "{moment}: {:?}", comparison.differences);
                }
            }
        }
        self.keep_wal(false);
    }

    /// A file with one page replaced by that of another moment with another LSN.
    fn changed_page(
        &mut self,
        sort: &str,
        folder: &std::path::Path,
    ) -> Option<(String, usize, Vec<u8>)> {
        for _ in 0..SEARCH {
            let (path, block, mut content) = self.some_page(sort);
            let place = block * PAGE..(block + 1) * PAGE;
            let Ok(other) = fs::read(folder.join(&path)) else {
                continue;
            };
            let Some(page) = other.get(place.clone()) else {
                continue;
            };
            if page[..8] != content[place.start..place.start + 8] && page[..8] != [0; 8] {
                content[place].copy_from_slice(page);
                return Some((path, block, content));
            }
        }
        None
    }

    /// Missing files, of relations and beside them.
    pub fn files(&mut self) {
        for sort in self.sorts() {
            let (path, _, _) = self.some_page(&sort);
            self.plant("missing file", false, &path, None, None);
        }
        for path in [
            "base/5/pg_filenode.map",
            "global/pg_filenode.map",
            "base/5/PG_VERSION",
        ] {
            let mut content = self.read(path);
            let at = self.random.below(content.len());
            content[at] ^= 1;
            self.plant("changed file", false, path, None, Some(&content));
            self.plant("missing file", false, path, None, None);
        }
    }

    pub fn finish(self) {
        assert_eq!(self.compare().found, 0, "all was taken back");
        println!(
            "harmless changes {}, reported {}",
            self.harmless, self.reported
        );
        println!("planted {}, found {}", self.planted, self.found);
        assert_eq!((self.planted, self.reported), (self.found, 0));
    }
}

/// The parts of one page of a file.
fn parts<T>(content: &[u8], block: usize, of: impl FnOnce(&[u8]) -> T) -> T {
    of(&content[block * PAGE..(block + 1) * PAGE])
}
