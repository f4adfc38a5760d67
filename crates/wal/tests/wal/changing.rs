//! WAL that a server writes and recycles while it is read: no damage.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lockstep_lab::for_tests::TestLab;
use lockstep_wal::folder::{Run, RunPages};
use lockstep_wal::reader::{Pages, Reader, Stop};
use lockstep_wal::walk::{self, Ended, Until};
use lockstep_wire::{Lsn, Timeline};

use crate::damage::{SEGMENT, Scene, after, analysis};

const PAGE: usize = 8192;

/// Pages of a run, where something happens before each is read.
struct Meddled<F> {
    pages: RunPages,
    before: F,
}

impl<F: FnMut(Lsn)> Pages for Meddled<F> {
    fn read(&mut self, at: Lsn, page: &mut [u8]) -> io::Result<usize> {
        (self.before)(at);
        self.pages.read(at, page)
    }

    fn name(&self, at: Lsn) -> String {
        self.pages.name(at)
    }

    fn timeline(&self) -> Option<Timeline> {
        self.pages.timeline()
    }

    fn look_again(&mut self) -> bool {
        self.pages.look_again()
    }

    fn is_gone(&self, at: Lsn) -> bool {
        self.pages.is_gone(at)
    }

    fn is_broken(&self, at: Lsn) -> bool {
        self.pages.is_broken(at)
    }
}

/// Where reading a run ends while something happens.
fn end(run: &Run, before: impl FnMut(Lsn)) -> Stop {
    let pages = run.pages();
    let mut reader = Reader::new(Meddled { pages, before }, run.identity, run.start);
    let ended = walk::read(&mut reader, Until::default(), &mut analysis(run));
    match ended.unwrap() {
        Ended::Stop(stop) => stop,
        Ended::Limit => panic!("there is no limit"),
    }
}

/// Writes into a file that stays the same.
fn write_at(path: &Path, bytes: &[u8], offset: usize) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset as u64).unwrap();
}

#[test]
fn a_segment_that_is_recycled_while_it_is_read_is_no_damage() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let scene = Scene::new(&lab);
    let run = scene.run();
    let recycled = u64::from(run.start) + (SEGMENT + 3 * PAGE) as u64;
    let other = fs::read(&scene.segments[3]).unwrap();
    let whole: Vec<_> = scene.segments.iter().map(fs::read).collect();
    // Others behind it are there, or have been removed as well.
    for is_alone in [true, false] {
        let mut is_done = false;
        let stop = end(&run, |at| {
            if u64::from(at) != recycled || is_done {
                return;
            }
            is_done = true;
            let later = after(scene.segments.last().unwrap());
            fs::rename(&scene.segments[1], &later).unwrap();
            write_at(&later, &other, 0);
            for path in scene.segments[2..].iter().filter(|_| !is_alone) {
                fs::remove_file(path).unwrap();
            }
        });
        let words = stop.reason.to_string();
        assert!(words.contains("removed or recycled"), "{stop:?}");
        assert_eq!(stop.page, Lsn::from(recycled));
        for (path, bytes) in scene.segments.iter().zip(&whole) {
            fs::write(path, bytes.as_ref().unwrap()).unwrap();
        }
    }
}

#[test]
fn pages_that_are_written_after_they_were_read_are_no_damage() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    // Over more than ten pages from the start of a segment on, and once more behind.
    let message = "SELECT pg_switch_wal(); \
                   SELECT pg_logical_emit_message(false, 'p', repeat('y', 90000)) \
                   FROM generate_series(1, 2)";
    let scene = Scene::ending(&lab, message);
    let run = scene.run();
    let (last, _) = scene.last();
    let start = u64::from(run.identity.size.start_of(scene.end));
    let whole = fs::read(last).unwrap();
    let second = start + PAGE as u64;
    let erase = || write_at(last, &vec![0; SEGMENT - PAGE], PAGE);

    // The server goes on by two pages whenever somebody has read the first of them.
    erase();
    let mut written = PAGE;
    let stop = end(&run, |at| {
        let place = u64::from(at).saturating_sub(start) as usize;
        if (written + 1..SEGMENT).contains(&place) {
            let end = place + PAGE;
            write_at(last, &whole[written..end], written);
            written = end;
        }
    });
    // Where it has not begun the page after the last that was read, the WAL ends at its newest record.
    assert!(u64::from(stop.at) > start + 90_000, "{stop:?}");

    // It writes all after the last look behind the end.
    erase();
    let mut looks = 0;
    let stop = end(&run, |at| {
        looks += u32::from(at == Lsn::from(second + PAGE as u64));
        if looks == 2 {
            write_at(last, &whole, 0);
        }
    });
    assert_eq!(stop.page, Lsn::from(second));
}
