//! The house keeps its rooms: which crate may use which, which module, how long a file may be, and
//! how a comment begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

mod code;
mod doc_comments;
mod layers;

/// Most lines of a source file.
const MOST_LINES: usize = 800;

/// Most columns of a comment in Rust; `rustfmt` sees to the code.
const MOST_COLUMNS: usize = 110;

/// Endings of source files; scripts have none.
const SOURCES: [&str; 9] = ["rs", "c", "h", "sql", "pl", "pm", "js", "css", "sh"];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Crates of the test bed, on which the product does not stand. Tests of any crate may use them.
const TEST_BED: [&str; 6] = ["bench", "lab", "lab-cli", "player", "simulation", "verify"];

/// The crates that each crate may use, by the table "Crates" of ARCHITECTURE.md: the crate's
/// name in its first column, `crate` names in its last.
fn allowed() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, section) = text.split_once("### Crates").expect("a section Crates");
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with("| `"));
    let named = |cell: &str| -> BTreeSet<String> {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    };
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').collect();
        let name = named(cells.first().unwrap()).pop_first().unwrap();
        (name, named(cells.last().unwrap()))
    })
    .collect()
}

/// The crates of ours that a manifest's section names.
fn used(manifest: &str, section: &str) -> BTreeSet<String> {
    let lines = manifest.lines().skip_while(|line| *line != section).skip(1);
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.strip_prefix("lockstep-")?.split(['.', ' ']).next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn crates_use_only_what_the_map_says() {
    let allowed = allowed();
    let folders: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(folders, allowed.keys().cloned().collect());
    for (name, allowed) in &allowed {
        let path = root().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(path).unwrap();
        assert_eq!(&used(&manifest, "[dependencies]"), allowed, "{name}");
        let is_of_the_test_bed = |name: &String| TEST_BED.contains(&name.as_str());
        if !is_of_the_test_bed(name) {
            assert!(!allowed.iter().any(is_of_the_test_bed), "{name}");
        }
        let mut tests_use = used(&manifest, "[dev-dependencies]");
        tests_use.retain(|name| !is_of_the_test_bed(name));
        assert!(tests_use.is_subset(allowed), "{name}: {tests_use:?}");
    }
}

/// All files below a folder of ours.
pub fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

#[test]
fn no_source_file_is_long() {
    let mut found = Vec::new();
    for folder in ["crates", "extension", "scripts"] {
        files(&root().join(folder), &mut found);
    }
    let mut seen = 0;
    for path in found {
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| !SOURCES.contains(&ending)) {
            continue;
        }
        seen += 1;
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(
            lines <= MOST_LINES,
            "{} has {lines} lines, over {MOST_LINES}",
            path.display()
        );
    }
    assert!(seen > 300, "there are only {seen} source files");
}

/// A row of a table cannot be broken.
#[test]
fn no_comment_is_wide() {
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    found.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let mut wide = Vec::new();
    for path in found {
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let text = line.trim_start();
            let is_row = text.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let is_wide = line.chars().count() > MOST_COLUMNS;
            if text.starts_with("//") && !is_row && is_wide {
                wide.push(format!("{}:{}: {line}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// Names that say nothing outside their file, and that two modules would both take.
const EMPTY_NAMES: [&str; 6] = ["Row", "Shared", "Kind", "State", "Found", "Known"];

/// The empty name that a line declares for others than its own file, or takes from another file of
/// its crate.
fn empty_name(line: &str) -> Option<&'static str> {
    let words: Vec<_> = line
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let is_type = |word: &&str| ["struct", "enum", "trait", "type"].contains(word);
    let begins = |word: &str| line.trim_start().starts_with(word);
    let declared = begins("pub")
        .then(|| words.iter().position(is_type))
        .flatten()
        .and_then(|at| words.get(at + 1));
    let used = (begins("use ") && words.contains(&"super")).then_some(words.as_slice());
    let is_named =
        |name: &&str| declared == Some(name) || used.is_some_and(|words| words.contains(name));
    EMPTY_NAMES.into_iter().find(is_named)
}

#[test]
fn types_that_are_shared_say_of_what_they_are() {
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    found.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    for path in found {
        for line in fs::read_to_string(&path).unwrap().lines() {
            assert_eq!(empty_name(line), None, "{}: {line}", path.display());
        }
    }
    for line in [
        "pub struct State {",
        "    pub(crate) enum Kind {",
        "pub(in crate::a) type Row = u8;",
        "use super::{Spool, State};",
        "use super::super::Found;",
    ] {
        assert!(empty_name(line).is_some(), "{line}");
    }
    for line in [
        "struct State {",
        "pub struct LinkState {",
        "pub fn state() -> State {",
        "use lockstep_wire::Kind;",
    ] {
        assert_eq!(empty_name(line), None, "{line}");
    }
}

/// What dies at a failpoint is a process of tests.
#[test]
fn no_program_plants_a_failpoint() {
    let is_source = |path: &Path| path.components().any(|part| part.as_os_str() == "src");
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    found.retain(|path| path.extension().is_some_and(|ending| ending == "rs") && is_source(path));
    let reached = |text: &str| text.matches(".reach();").count();
    let mut reaches = 0;
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        reaches += reached(&text);
        assert!(!text.contains(".plant("), "{}", path.display());
    }
    assert!(reaches > 40, "only {reaches} places reach a failpoint");
}

/// The part of a text after `before` and up to a quotation mark, bracket or line's end.
fn after<'a>(text: &'a str, before: &str) -> &'a str {
    let (_, rest) = text.split_once(before).expect(before);
    rest.split(['"', '\'', ']', '\n']).next().unwrap()
}

#[test]
fn program_library_and_changelog_are_of_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let library = read("extension/src/state/settings.h");
    assert_eq!(after(&library, "#define LS_VERSION \""), version);
    assert_eq!(after(&read("CHANGELOG.md"), "\n## ["), version);
    let control = read("extension/lockstep.control");
    let sql = after(&control, "default_version = '");
    assert!(version.starts_with(&format!("{sql}.")), "{sql} {version}");
}

/// Major versions in a list of `start_rule.c`, which ends with 0.
fn majors(list: &str) -> BTreeSet<u32> {
    let path = root().join("extension/src/replay/start_rule.c");
    let text = fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once(&format!("{list}[] = {{")).expect(list);
    let (numbers, _) = rest.split_once('}').unwrap();
    let numbers = numbers
        .split(',')
        .map(|number| number.trim().parse().unwrap());
    numbers.filter(|number| *number != 0).collect()
}

#[test]
fn docs_say_on_which_majors_helpers_work_in_hot_standby() {
    let text = fs::read_to_string(root().join("docs/explanation.md")).unwrap();
    let (_, text) = text.split_once("### How far it is tested").unwrap();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        Some((cells.get(1)?.parse::<u32>().ok()?, cells[cells.len() - 2]))
    });
    let (on, off): (Vec<_>, Vec<_>) = rows.partition(|(_, meaning)| *meaning == "on");
    let set = |rows: Vec<(u32, &str)>| -> BTreeSet<u32> {
        rows.into_iter().map(|(major, _)| major).collect()
    };
    assert!(off.iter().all(|(_, meaning)| *meaning == "off"), "{off:?}");
    let (on, off) = (set(on), set(off));
    assert_eq!(on, majors("ls_soaked_majors"));
    // For 16 the extension is only compiled, on 19 the long tests have not run.
    let mut all = majors("ls_tested_majors");
    assert!(all.insert(16) && all.insert(19));
    assert_eq!(on.union(&off).copied().collect::<BTreeSet<_>>(), all);
}

/// Nouns that follow numbers in printed words.
const NOUNS: [&str; 8] = [
    "rows", "nodes", "sessions", "segments", "times", "replicas", "errors", "objects",
];

/// Numbers that are never 1, besides constants and numbers with decimals.
const NEVER_ONE: [&str; 6] = [
    "at most {most} sessions",
    "{} rows, not one",
    "{count} rows where one",
    "all {replicas} replicas keep up",
    "{number} errors were found, the first",
    "{factor} times the original pace",
];

/// Where words print a number and a plural, which read wrong for 1. Parts of a whole are plural at any
/// number.
fn plural(line: &str) -> Option<&str> {
    let code = line.split("//").next().unwrap_or(line);
    if NEVER_ONE.iter().any(|words| code.contains(words)) {
        return None;
    }
    code.match_indices("} ").find_map(|(end, _)| {
        let start = code[..end].rfind('{')?;
        let noun = &code[end + 2..];
        let noun = &noun[..noun
            .find(|c: char| !c.is_alphabetic())
            .unwrap_or(noun.len())];
        let is_part = code[..start].ends_with("of ");
        let number = &code[start + 1..end];
        let is_exempt = is_part || number.contains(":.") || number.starts_with(char::is_uppercase);
        (NOUNS.contains(&noun) && !is_exempt).then(|| &code[start..end + 2 + noun.len()])
    })
}

#[test]
fn numbers_agree_with_their_nouns() {
    assert_eq!(plural(r#"format!("{} rows were", n)"#), Some("{} rows"));
    assert_eq!(plural(r#"format!("{left} of {all} nodes", n)"#), None);
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        if TEST_BED.iter().any(|name| *name == entry.file_name()) {
            continue;
        }
        let mut sources = Vec::new();
        files(&entry.path().join("src"), &mut sources);
        let is_rust = |path: &PathBuf| path.extension().is_some_and(|it| it == "rs");
        for path in sources.into_iter().filter(is_rust) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let words = text.lines().filter_map(plural).map(str::to_owned);
            found.extend(words.map(|words| format!("{}: {words}", path.display())));
        }
    }
    assert!(
        found.is_empty(),
        "use figures::counted:\n{}",
        found.join("\n")
    );
}
