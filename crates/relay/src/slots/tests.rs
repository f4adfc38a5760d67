//! The book on a disk, and what a slot counts.

use std::fs;

use super::*;

fn route(group: &str) -> Route {
    Route {
        group: group.to_owned(),
        next: None,
    }
}

fn book(folder: &Path) -> SlotBook {
    SlotBook::open(folder, 0).unwrap()
}

#[test]
fn slots_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = book(folder.path());
    let a = first
        .add("a", "app", route("g"), 5.into(), 0, || true)
        .unwrap()
        .unwrap();
    first
        .add("b", "app", route("g"), 9.into(), 0, || true)
        .unwrap()
        .unwrap();
    assert!(
        first
            .add("a", "app", route("g"), 1.into(), 0, || true)
            .unwrap()
            .is_err()
    );
    let altered = Route {
        group: "g".to_owned(),
        next: Some(Switch {
            group: "h".to_owned(),
            at: 30.into(),
        }),
    };
    assert!(!first.reroute(&a, altered.clone(), || false).unwrap());
    assert_eq!(a.route(), route("g"));
    assert!(first.reroute(&a, altered.clone(), || true).unwrap());
    first.adopted(&a).unwrap();
    first.note_two_phase(&a, true).unwrap();
    a.confirm(7.into());
    a.confirm(6.into());
    assert_eq!((a.confirmed(), a.saved()), (7.into(), 5.into()));

    // Nothing was saved since: the file still says 5.
    let crashed = book(folder.path());
    assert_eq!(crashed.get("a").unwrap().confirmed(), 5.into());
    let flags = |name: &str| {
        let slot = crashed.get(name).unwrap();
        (slot.is_adopting(), slot.is_two_phase())
    };
    assert_eq!((flags("a"), flags("b")), ((false, true), (true, false)));
    assert_eq!(crashed.saved("g"), Some(5.into()));

    first.save_if_moved().unwrap();
    let second = book(folder.path());
    let a = second.get("a").unwrap();
    assert_eq!((a.confirmed(), a.route()), (7.into(), altered));
    // The next group is read from where it takes over.
    assert_eq!(
        (second.saved("g"), second.saved("h")),
        (Some(7.into()), Some(30.into()))
    );
    assert_eq!(second.slowest("g").unwrap().name, "a");
    a.note(25.into(), 20.into());
    let applied = |group: &str, named: &[&str]| {
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        second.applied(group, &named)
    };
    assert_eq!(applied("g", &[]), Some(9.into()));
    assert_eq!(applied("g", &["a"]), Some(20.into()));
    assert_eq!(applied("g", &["a", "gone"]), Some(Lsn::INVALID));
    assert_eq!(applied("h", &[]), Some(30.into()));
    assert_eq!(applied("i", &[]), None);
    assert!(second.remove("a").unwrap());
    assert!(!second.remove("a").unwrap());
    assert_eq!(book(folder.path()).saved("g"), Some(9.into()));
    assert_eq!(second.saved("h"), None);
}

#[test]
fn a_copy_counts_once_its_position_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let first = book(folder.path());
    let added = first.add("a", "app", route("g"), 5.into(), 0, || true);
    let slot = added.unwrap().unwrap();
    first.adopted(&slot).unwrap();
    assert!(first.copying(&slot).unwrap());
    // A crash here leaves a copy that is to be dropped.
    let crashed = book(folder.path()).get("a").unwrap();
    assert!(crashed.is_adopting() && !crashed.route().leaves());
    let back = Route {
        group: "g".to_owned(),
        next: Some(Switch {
            group: PRIMARY.to_owned(),
            at: 30.into(),
        }),
    };
    first.copied(&slot, back.clone()).unwrap();
    let kept = book(folder.path()).get("a").unwrap();
    assert_eq!((kept.is_adopting(), kept.route()), (false, back));
    assert!(kept.route().leaves());
    // Nobody would know of a copy of one that was dropped.
    assert!(!first.remove_if("a", |slot| !slot.route().leaves()).unwrap());
    assert!(first.remove("a").unwrap());
    assert!(!first.copying(&slot).unwrap());
}

#[test]
fn a_slot_has_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let book = book(folder.path());
    let slot = book
        .add("a", "app", route("g"), 5.into(), 0, || true)
        .unwrap()
        .unwrap();
    let used = slot.acquire(1, 77).unwrap();
    let other = slot.acquire(2, 78).unwrap_err();
    assert_eq!((other.session, other.pid), (1, 77));
    assert_eq!(slot.stat().active_pid, Some(77));
    drop(used);
    assert!(slot.acquire(2, 78).is_ok());
}

/// What is done then.
type Looks = Arc<Mutex<Option<Box<dyn Fn() + Send>>>>;

/// A folder that does something whenever its file is about to be replaced.
struct Watched {
    folder: Folder,
    looks: Looks,
}

impl Storage for Watched {
    type File = fs::File;

    fn list(&self) -> io::Result<Vec<String>> {
        self.folder.list()
    }
    fn create(&self, name: &str) -> io::Result<fs::File> {
        self.folder.create(name)
    }
    fn open(&self, name: &str) -> io::Result<fs::File> {
        self.folder.open(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if let Some(look) = &*lock(&self.looks) {
            look();
        }
        self.folder.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }
    fn sync(&self) -> io::Result<()> {
        self.folder.sync()
    }
}

/// What the file still says is kept: memory changes after it.
#[test]
fn memory_changes_once_the_file_has() {
    let folder = tempfile::tempdir().unwrap();
    let looks: Looks = Arc::default();
    let storage = Watched {
        folder: Folder::new(folder.path()),
        looks: looks.clone(),
    };
    let book = Arc::new(SlotBook::read(storage, PathBuf::from(FILE), 0).unwrap());
    let slot = book
        .add("a", "app", route("g"), 5.into(), 0, || true)
        .unwrap()
        .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    *lock(&looks) = Some(Box::new({
        let (book, seen) = (book.clone(), seen.clone());
        move || lock(&seen).push((book.saved("g"), book.saved("h")))
    }));
    assert!(book.reroute(&slot, route("h"), || true).unwrap());
    assert_eq!(slot.route(), route("h"));
    assert!(book.remove("a").unwrap());
    assert!(book.get("a").is_none());
    let at = Some(5.into());
    assert_eq!(*lock(&seen), [(at, None), (None, at)]);
    *lock(&looks) = None;
}

#[test]
fn the_slot_that_was_adopted_is_told_from_others() {
    let folder = tempfile::tempdir().unwrap();
    let first = book(folder.path());
    first
        .add("a", "app", route("g"), 5.into(), 0, || true)
        .unwrap()
        .unwrap()
        .confirm(90.into());
    let mut found = SlotState {
        plugin: Some("pgoutput".to_owned()),
        database: Some("app".to_owned()),
        confirmed: 5.into(),
        restart: 1.into(),
        ..SlotState::default()
    };
    for slot in [
        first.get("a").unwrap(),
        book(folder.path()).get("a").unwrap(),
    ] {
        assert!(slot.was(&found));
        for change in [
            (|slot| slot.confirmed = 6.into()) as fn(&mut SlotState),
            |slot| slot.plugin = Some("test_decoding".to_owned()),
            |slot| slot.database = Some("other".to_owned()),
            |slot| slot.temporary = true,
            |slot| slot.active_pid = Some(7),
        ] {
            let mut other = found.clone();
            change(&mut other);
            assert!(!slot.was(&other), "{other:?}");
        }
        // A copy of the group's slot stands anywhere.
        slot.copying.store(true, Ordering::Release);
        found.confirmed = 70.into();
        assert!(slot.was(&found));
        found.confirmed = 5.into();
    }
}

#[test]
fn a_damaged_book_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = book(folder.path());
    first
        .add("a", "app", route("g"), 5.into(), 0, || true)
        .unwrap()
        .unwrap();
    let path = folder.path().join(FILE);
    let good = fs::read(&path).unwrap();
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert!(SlotBook::open(folder.path(), 0).is_err(), "byte {place}");
        fs::write(&path, &good[..place]).unwrap();
        assert!(SlotBook::open(folder.path(), 0).is_err(), "cut at {place}");
    }
}

#[test]
fn blocks_are_counted_until_a_reset() {
    let folder = tempfile::tempdir().unwrap();
    let book = book(folder.path());
    let slot = book
        .add("a", "app", route("g"), 5.into(), 0, || true)
        .unwrap()
        .unwrap();
    slot.count(BLOCK * 3, 1);
    let stat = slot.stat();
    assert_eq!(
        (stat.cache_hit, stat.cache_miss, stat.blks_read()),
        (3, 1, 4)
    );
    slot.reset(9);
    let stat = slot.stat();
    assert_eq!((stat.blks_read(), stat.last_reset_unix_us), (0, 9));
}
