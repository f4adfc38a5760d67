//! What our documents, comments and messages name is there: files of this tree, and headings of
//! Markdown pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::house::{files, root};

/// Folders of the tree with text in them.
const FOLDERS: [&str; 7] = [
    ".ci",
    "bench",
    "crates",
    "docs",
    "extension",
    "packaging",
    "scripts",
];

/// Endings of files that other files name.
const NAMED: [&str; 14] = [
    "c", "h", "json", "md", "pl", "pm", "rs", "service", "sh", "sql", "svg", "toml", "txt", "yml",
];

/// Every text of the tree with its path.
fn texts() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        files(&root().join(folder), &mut paths);
    }
    for entry in fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            paths.push(path);
        }
    }
    let texts = paths.into_iter().filter_map(|path| {
        // Pictures and the like are no text.
        let text = fs::read_to_string(&path).ok()?;
        Some((path, text))
    });
    texts.collect()
}

/// The lines of a Markdown page outside of fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// A page's anchors: its headings in lower case, letters, digits, `_` and `-` only, with `-` for
/// a space and a number behind the second of one name.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(page) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name: String = title
            .trim()
            .chars()
            .filter(|c| c.is_alphanumeric() || " _-".contains(*c))
            .flat_map(char::to_lowercase)
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut anchor = name.clone();
        for again in 1.. {
            if found.insert(anchor) {
                break;
            }
            anchor = format!("{name}-{again}");
        }
    }
    found
}

/// What is wrong with `target`, a path with or without an anchor, seen from `folder`.
fn wrong(folder: &Path, page: &Path, target: &str) -> Option<String> {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let path = match path {
        "" => page.to_owned(),
        path => folder.join(path),
    };
    if !path.exists() {
        return Some(format!("there is no {target}"));
    }
    let anchor = anchor?;
    let known = fs::read_to_string(path).is_ok_and(|text| anchors(&text).contains(anchor));
    (!known).then(|| format!("{target} has no such heading"))
}

fn report(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Most bytes of ARCHITECTURE.md.
const MAP_BYTES: usize = 14_000;

#[test]
fn the_map_is_short() {
    let map = fs::read(root().join("ARCHITECTURE.md")).unwrap();
    assert!(
        map.len() < MAP_BYTES,
        "ARCHITECTURE.md has {} bytes",
        map.len()
    );
}

/// The input of a page that another page is written from.
const INPUT: &str = "docs/measurements.in.md";

#[test]
fn every_page_is_in_a_package() {
    let mut listed = BTreeSet::new();
    for package in ["lockstep", "lockstep-lab"] {
        let list = root().join(format!("packaging/debian/{package}.docs"));
        listed.extend(fs::read_to_string(list).unwrap().lines().map(str::to_owned));
    }
    let pages: Vec<_> = fs::read_dir(root().join("docs")).unwrap().collect();
    let pages = pages.into_iter().map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        format!("docs/{name}")
    });
    let missing: Vec<_> = pages
        .filter(|page| !listed.contains(page) && page != INPUT)
        .collect();
    report(&missing);
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut faults = Vec::new();
    let mut seen = 0;
    for (path, text) in texts() {
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let folder = path.parent().unwrap();
        for line in prose(&text) {
            for rest in line.split("](").skip(1) {
                let target = rest.split(')').next().unwrap();
                if target.contains("://") {
                    continue;
                }
                seen += 1;
                let fault = wrong(folder, &path, target);
                faults.extend(fault.map(|fault| format!("{}: {fault}", path.display())));
            }
        }
    }
    report(&faults);
    assert!(seen > 150, "only {seen} links");
}

/// Words such as `docs/reference.md#settings` or `crates/spool/src/write.rs`, in whatever file, with
/// `../` before them or not.
#[test]
fn files_that_are_named_are_there() {
    let mut faults = Vec::new();
    let mut seen = 0;
    for (path, text) in texts() {
        let part = |c: char| c.is_ascii_alphanumeric() || "_./#-".contains(c);
        for word in text.split(|c| !part(c)) {
            let word = word.trim_end_matches(['.', '-', '#']);
            let named = word.trim_start_matches("../");
            let file = Path::new(named.split('#').next().unwrap());
            let ours = file.components().next().is_some_and(
                |first| matches!(first, Component::Normal(name) if FOLDERS.iter().any(|f| name == *f)),
            );
            let ending = file.extension().and_then(|ending| ending.to_str());
            // NAME stands for any name.
            if !ours || named.contains("NAME") || !ending.is_some_and(|e| NAMED.contains(&e)) {
                continue;
            }
            seen += 1;
            let fault = wrong(&root(), &path, named);
            faults.extend(fault.map(|fault| format!("{}: {fault}", path.display())));
        }
    }
    report(&faults);
    assert!(seen > 300, "only {seen} names of files");
}
