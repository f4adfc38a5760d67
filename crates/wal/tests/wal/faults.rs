//! Files that cannot be read, pages of another version or timeline, segments of other contents: each is
//! named, and none is taken for an end of WAL.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use lockstep_lab::for_tests::TestLab;
use lockstep_wal::folder::{Range, Run};
use lockstep_wal::walk::{self, Ended, Until};
use lockstep_wire::Lsn;

use crate::damage::{SEGMENT, Scene, analysis, change};

const PAGE: usize = 8192;

/// Where reading all ends, or its error in words.
fn failure(scene: &Scene) -> Result<Ended, String> {
    let run = Run::find(scene.path(), Range::default()).map_err(|error| error.to_string())?;
    let ended = walk::read(&mut run.reader(), Until::default(), &mut analysis(&run));
    ended.map_err(|error| error.to_string())
}

/// Reading all fails with an error that has each of `words`.
fn assert_fails(scene: &Scene, words: &[&str]) -> String {
    let error = failure(scene).unwrap_err();
    for words in words {
        assert!(error.contains(words), "{words}: {error}");
    }
    error
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A folder, a link to itself, a pipe: root, too, as whom tests may run, cannot read them.
fn make_unreadable(path: &Path, how: usize) {
    match how {
        0 => fs::create_dir(path).unwrap(),
        1 => symlink(path, path).unwrap(),
        _ => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let (last, _) = scene.last();
    let first = &scene.segments[0];
    for path in [first, &scene.segments[2], last] {
        let whole = fs::read(path).unwrap();
        for how in 0..3 {
            fs::remove_file(path).unwrap();
            make_unreadable(path, how);
            let words = format!("cannot read {}: ", name(path));
            assert_fails(&scene, &[&words, "make it readable"]);
            // What is before can be read.
            if path != first {
                let run = scene.run();
                let until = Until {
                    lsn: Some(Lsn::from(u64::from(run.start) + SEGMENT as u64 / 2)),
                    bytes: None,
                };
                let ended = walk::read(&mut run.reader(), until, &mut analysis(&run));
                assert!(matches!(ended, Ok(Ended::Limit)), "{ended:?}");
            }
            match how {
                0 => fs::remove_dir(path).unwrap(),
                _ => fs::remove_file(path).unwrap(),
            }
            fs::write(path, &whole).unwrap();
        }
    }
    // A link to nothing is no file.
    fs::remove_file(&scene.segments[2]).unwrap();
    symlink("/nowhere", &scene.segments[2]).unwrap();
    let name = scene.segments[2].file_name().unwrap();
    assert_eq!(scene.run().missing(), name.to_str().unwrap());
    // None can be read.
    for path in &scene.segments {
        fs::remove_file(path).unwrap();
        make_unreadable(path, 0);
    }
    assert_fails(&scene, &["cannot read ", "it is no ordinary file"]);
}

#[test]
fn a_page_of_its_place_with_another_magic_or_a_newer_timeline_is_damage() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let (last, at) = scene.last();
    let first = scene.segments[0].as_path();
    // One bit makes 15 of 18, and 18 of 15.
    let other = scene.run().identity.magic ^ 8;
    // The first page of all: of another version, and of none.
    for magic in [other, 0xD1FF] {
        let whole = fs::read(first).unwrap();
        change(first, |bytes| {
            bytes[..2].copy_from_slice(&magic.to_ne_bytes());
        });
        let next = scene.run().identity.size.round_up(scene.run().start);
        let next = Lsn::from(u64::from(next) + SEGMENT as u64);
        let advice = format!("--start {next} ");
        assert_fails(&scene, &[name(first), "is damaged", &advice]);
        fs::write(first, whole).unwrap();
    }
    // The page on which the WAL ends, and one of an earlier segment.
    let place = scene.record_in(2);
    let middle = (scene.segments[place / SEGMENT].as_path(), place % SEGMENT);
    for (path, at) in [(last, at - 8), middle] {
        let whole = fs::read(path).unwrap();
        let page = at - at % PAGE;
        change(path, |bytes| bytes[page] ^= 8);
        let begins = format!("begins with {other:04X}");
        assert_fails(&scene, &[name(path), "is damaged", &begins]);
        fs::write(path, &whole).unwrap();
        change(path, |bytes| {
            bytes[page + 4..page + 8].copy_from_slice(&2_u32.to_ne_bytes());
        });
        let error = assert_fails(&scene, &[name(path), "is damaged", "of timeline 2, newer"]);
        assert!(!error.contains("older"), "{error}");
        fs::write(path, &whole).unwrap();
    }
    // One segment only, whose first page disagrees with all others.
    for path in &scene.segments[1..] {
        fs::remove_file(path).unwrap();
    }
    for bit in [8, 0x40] {
        change(first, |bytes| bytes[0] ^= bit);
        assert_fails(&scene, &[name(first), "is damaged"]);
    }
}

#[test]
fn a_segment_without_wal_of_its_own_between_others_is_damaged() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let middle = scene.segments[1].as_path();
    let other = fs::read(&scene.segments[0]).unwrap();
    let whole = fs::read(middle).unwrap();
    let words = "it is there but does not begin as its segment does";
    for contents in [vec![], vec![0; SEGMENT], other] {
        fs::write(middle, contents).unwrap();
        assert_fails(&scene, &[name(middle), "is damaged", words]);
        // Also if the next one is truly missing.
        let next = fs::read(&scene.segments[2]).unwrap();
        fs::remove_file(&scene.segments[2]).unwrap();
        assert_fails(&scene, &[name(middle), "is damaged", words]);
        fs::write(&scene.segments[2], next).unwrap();
    }
    fs::write(middle, &whole).unwrap();
    // The last one, without its first two pages, and of another version.
    for path in &scene.segments[2..] {
        fs::remove_file(path).unwrap();
    }
    for spoil in [
        (|bytes| bytes[..2 * PAGE].fill(0)) as fn(&mut [u8]),
        |bytes| {
            bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte ^= 8);
        },
    ] {
        let mut spoilt = whole.clone();
        spoil(&mut spoilt);
        fs::write(middle, spoilt).unwrap();
        assert_fails(&scene, &[name(middle), "is damaged", words]);
    }
}

#[test]
fn a_file_that_cannot_be_read_behind_a_gap_is_not_read() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    fs::remove_file(&scene.segments[1]).unwrap();
    fs::remove_file(&scene.segments[2]).unwrap();
    make_unreadable(&scene.segments[2], 0);
    assert!(matches!(failure(&scene), Ok(Ended::Stop(_))));
    let missing = scene.segments[1].file_name().unwrap();
    assert_eq!(scene.run().missing(), missing.to_str().unwrap());
}

#[test]
fn advice_is_of_use() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let first = scene.segments[0].as_path();
    let whole = fs::read(first).unwrap();
    // Nothing can be read before the first record.
    let place = scene.record_in(0);
    change(first, |bytes| bytes[place + 8] ^= 1);
    let error = assert_fails(&scene, &[name(first), "is damaged", "--start "]);
    assert!(!error.contains("--end"), "{error}");
    // The only segment is cut off.
    for path in &scene.segments[1..] {
        fs::remove_file(path).unwrap();
    }
    fs::write(first, &whole[..SEGMENT / 2]).unwrap();
    assert_fails(&scene, &[name(first), "cut off", "524288"]);
}
