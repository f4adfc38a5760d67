//! Our classes of records are those of `extension/src/replay/record_class.c`, which is compiled here
//! into a program that prints them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use lockstep_lab::for_tests::{self, TestLab};
use lockstep_lab::server::Stop;
use lockstep_wal::class::{
    Cause, Class, adds_heap_tuples, classify, classify_hot, clears_visibility_map,
    free_space_map_block, may_change_free_space_map, visibility_map_block,
};
use lockstep_wal::folder::{Range, Run};
use lockstep_wal::record::{Block, Compression, Header, Image, Record, Relation};
use lockstep_wire::Lsn;

use crate::bed;

/// The C program's answers to lines.
fn theirs(lines: &[String]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let extension = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../extension");
    let extension = extension.canonicalize().unwrap();
    let extension = extension.to_str().unwrap();
    let major = for_tests::major().unwrap();
    let made = Command::new("make")
        .args(["-s", "-f", &format!("{extension}/Makefile")])
        .arg(format!("VPATH={extension}"))
        .arg(format!(
            "PG_CONFIG=/usr/lib/postgresql/{major}/bin/pg_config"
        ))
        .args(["with_llvm=no", "unit/print_classes"])
        .current_dir(folder.path())
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut program = Command::new(folder.path().join("unit/print_classes"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = program.stdin.take().unwrap();
    let text = lines.join("\n") + "\n";
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = program.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn line(record: &Record, oversized: bool) -> String {
    // record_class.c looks at no more of it.
    let main: String = record
        .main
        .iter()
        .take(64)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let main = if main.is_empty() { "-" } else { &main };
    let header = &record.header;
    let mut line = format!(
        "{} {} {} {} {main}",
        header.manager,
        header.info,
        header.xid,
        u8::from(oversized)
    );
    for block in &record.blocks {
        let restored = u8::from(block.is_restored());
        let (fork, id, number) = (block.fork, block.id, block.number);
        line.push_str(&format!(" {fork}:{id}:{restored}:{number}"));
    }
    line
}

/// Numbers as in the C program: `LsClass`, `LsCause`.
fn numbers(class: Class) -> String {
    let number = |cause: Cause| Cause::ALL.iter().position(|one| *one == cause).unwrap() + 1;
    let (class, cause) = match class {
        Class::Ahead => (0, 0),
        Class::Inline(cause) => (1, number(cause)),
        Class::Barrier(cause) => (2, number(cause)),
        Class::Removal => (3, number(Cause::Kind)),
        Class::ClearsMap => (4, number(Cause::Map)),
    };
    format!("{class} {cause}")
}

/// Before consistency, in hot standby, and what both need to know.
fn answer(record: &Record, oversized: bool) -> String {
    let major = for_tests::major().unwrap().get();
    format!(
        "{} {} {} {} {}",
        numbers(classify(record, oversized)),
        numbers(classify_hot(record, major, oversized)),
        u8::from(may_change_free_space_map(record)),
        u8::from(adds_heap_tuples(record)),
        u8::from(clears_visibility_map(record)),
    )
}

fn blocks(forks: &[(u8, u8)], restored: bool) -> Vec<Block> {
    let image = Image {
        length: 8_192,
        hole_offset: 0,
        hole_length: 0,
        apply: true,
        compression: Compression::None,
    };
    let block = |&(id, fork): &(u8, u8)| Block {
        id,
        relation: Relation::default(),
        fork,
        number: 0,
        image: restored.then_some(image),
        will_init: false,
        data: 0,
    };
    forks.iter().map(block).collect()
}

/// Each resource manager and operation, with each bit of its main data's first bytes, with blocks
/// of every fork.
fn every_kind() -> Vec<(String, String)> {
    let mut mains = vec![vec![0_u8; 16]];
    for bit in 0..12 * 8 {
        let mut main = vec![0; 16];
        main[bit / 8] |= 1 << (bit % 8);
        mains.push(main);
    }
    // Of records that prune: lock, freezing and removal together.
    for flags in [0x24_u8, 0x44, 0x84, 0x34, 0x74, 0xE4, 0x60] {
        let mut main = vec![0; 16];
        main[1] = flags;
        mains.push(main);
    }
    // Harmless and other flags of commits together.
    for xinfo in [0x2000_0023_u32, 0x2000_0027, 0x8000_0001, u32::MAX] {
        let mut main = vec![0; 16];
        main[8..12].copy_from_slice(&xinfo.to_ne_bytes());
        mains.push(main);
    }
    let sets: [&[(u8, u8)]; 9] = [
        &[],
        &[(0, 0)],
        &[(0, 1)],
        &[(0, 2)],
        &[(0, 3)],
        &[(0, 0), (1, 2)],
        &[(0, 0), (3, 0)],
        &[(1, 0), (4, 0)],
        &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 1)],
    ];
    let managers = (0..=22).chain([128, 255]);
    let mut all = Vec::new();
    for manager in managers {
        for operation in 0..16_u8 {
            let kind = (manager, (operation << 4) | (operation % 4));
            for (number, main) in mains.iter().enumerate() {
                // Single bits of main data meet no blocks, one block and blocks of two forks.
                let few = [sets[0], sets[1], sets[8]];
                let is_bit = (1..=12 * 8).contains(&number);
                add_kind(kind, main, if is_bit { &few } else { &sets }, &mut all);
            }
        }
    }
    all
}

fn add_kind(
    (manager, info): (u8, u8),
    main: &[u8],
    sets: &[&[(u8, u8)]],
    all: &mut Vec<(String, String)>,
) {
    // Oversized, with an image, of a transaction.
    let variants = [(false, false, 7), (true, false, 7), (false, true, 0)];
    let each = sets.iter().flat_map(|set| variants.map(|one| (set, one)));
    for (set, (oversized, restored, xid)) in each {
        let record = Record {
            start: Lsn::from(8),
            end: Lsn::from(16),
            header: Header {
                length: 24,
                xid,
                previous: Lsn::INVALID,
                info,
                manager,
                crc: 0,
            },
            blocks: blocks(set, restored),
            main,
        };
        all.push((line(&record, oversized), answer(&record, oversized)));
    }
}

fn assert_same(cases: &[(String, String)]) {
    let lines: Vec<_> = cases.iter().map(|(line, _)| line.clone()).collect();
    let theirs = theirs(&lines);
    assert_eq!(theirs.len(), cases.len());
    for ((line, ours), theirs) in cases.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "classes, causes, map and tuples of {line}");
    }
}

#[test]
fn every_kind_of_record_has_the_extensions_class() {
    let mut cases = every_kind();
    assert!(cases.len() > 400_000, "{}", cases.len());
    for block in (0..40_000_u32).step_by(7).chain([u32::MAX - 1, 16_556_760]) {
        let answer = format!(
            "{} {}",
            free_space_map_block(block),
            visibility_map_block(block)
        );
        cases.push((format!("map {block}"), answer));
    }
    assert_same(&cases);
}

/// The first heap block that has its bits in page 1 of the map.
const FAR: u32 = 8_168 * 4;

/// A block's identifier, fork and number.
type Named = (u8, u8, u32);

/// A record of heap with these blocks.
fn heap_record<'a>(operation: u8, main: &'a [u8], named: &[Named]) -> Record<'a> {
    let mut all = blocks(
        &named
            .iter()
            .map(|&(id, fork, _)| (id, fork))
            .collect::<Vec<_>>(),
        false,
    );
    for (block, &(_, _, number)) in all.iter_mut().zip(named) {
        block.number = number;
    }
    Record {
        start: Lsn::from(8),
        end: Lsn::from(16),
        header: Header {
            length: 24,
            xid: 7,
            previous: Lsn::INVALID,
            info: operation,
            manager: 10,
            crc: 0,
        },
        blocks: all,
        main,
    }
}

#[test]
fn an_update_runs_ahead_only_if_it_names_all_of_its_pages_of_the_map() {
    // The flags of an update: bits of the old page, of the new one, of both.
    let (none, old, new, both) = (0_u8, 1_u8, 2_u8, 3_u8);
    let heap = |new: u32, old: Option<u32>| {
        let old = old.map(|old| (1, 0, old));
        [(0, 0, new)].into_iter().chain(old).collect::<Vec<_>>()
    };
    let ahead = Class::Ahead;
    let at_turn = Class::Inline(Cause::Map);
    let asked = Class::ClearsMap;
    let cases: [(u8, Vec<Named>, &[Named], Class); 18] = [
        (none, heap(0, Some(FAR)), &[], ahead),
        (both, heap(0, Some(FAR)), &[], asked),
        (both, heap(0, Some(FAR)), &[(2, 2, 0), (3, 2, 1)], ahead),
        (both, heap(0, Some(FAR)), &[(2, 2, 0)], at_turn),
        (both, heap(0, Some(FAR)), &[(3, 2, 1)], at_turn),
        (old, heap(0, Some(FAR)), &[(3, 2, 1)], ahead),
        (old, heap(0, Some(FAR)), &[(2, 2, 0)], at_turn),
        (new, heap(0, Some(FAR)), &[(2, 2, 0)], ahead),
        (new, heap(0, Some(FAR)), &[(3, 2, 1)], at_turn),
        (both, heap(FAR - 1, Some(0)), &[(2, 2, 0)], ahead),
        (old, heap(FAR - 1, Some(0)), &[(3, 2, 0)], ahead),
        (both, heap(FAR, None), &[(2, 2, 1)], ahead),
        (old, heap(FAR, None), &[(2, 2, 1)], ahead),
        (new, heap(FAR, None), &[(2, 2, 1)], ahead),
        (old, heap(FAR, None), &[(2, 2, 0)], at_turn),
        (old, heap(FAR, None), &[], asked),
        (none, heap(FAR, None), &[], ahead),
        (new, heap(0, Some(FAR)), &[], asked),
    ];
    let mut lines = Vec::new();
    for (flags, heap, map, class) in cases {
        let mut main = [0; 16];
        main[7] = flags;
        let named = [heap.as_slice(), map].concat();
        // Updates, also within a page.
        for operation in [0x20, 0x40] {
            let record = heap_record(operation, &main, &named);
            assert_eq!(classify(&record, false), class, "{flags} {named:?}");
            lines.push((line(&record, false), answer(&record, false)));
        }
    }
    // A row that is deleted has its bits in one page.
    let mut main = [0; 16];
    main[7] = old;
    for (named, class) in [(1, ahead), (0, at_turn)] {
        let record = heap_record(0x10, &main, &[(0, 0, FAR), (1, 2, named)]);
        assert_eq!(classify(&record, false), class);
        lines.push((line(&record, false), answer(&record, false)));
    }
    assert_same(&lines);
}

#[test]
fn records_of_a_server_have_the_extensions_class() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let mut primary = bed::server(&lab, "primary", &[]);
    bed::write(&primary, &mut fastrand::Rng::with_seed(5), 40);
    let wal = bed::copy_of_wal(&mut primary, Stop::Fast);
    let mut reader = Run::find(wal.path(), Range::default()).unwrap().reader();
    assert_eq!(reader.seek().unwrap(), None);
    let mut cases = Vec::new();
    while let Ok(record) = reader.read().unwrap() {
        cases.push((line(&record, false), answer(&record, false)));
    }
    for class in [
        "0 0 0 0 1 1 0",
        "1 1 1 1 0 0 0",
        "2 5 2 5 0 0 0",
        "2 6 2 6 0 0 0",
        "2 7 2 7 0 0 0",
        "0 0 1 1 0 0 0",
    ] {
        assert!(cases.iter().any(|(_, answer)| answer == class), "{class}");
    }
    // Minors that register the map's page leave the order to rule 1.
    let clears = ["4 3 4 3 1 1 1", "0 0 0 0 1 1 1"];
    assert!(
        cases
            .iter()
            .any(|(_, answer)| clears.contains(&answer.as_str()))
    );
    assert_same(&cases);
}
