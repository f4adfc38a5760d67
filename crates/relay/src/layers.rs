//! Modules use only what stands above them in the table of `lib.rs`, so there are no circles.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the table, in its order.
fn order() -> Vec<String> {
    include_str!("lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .filter_map(|row| row.split(" |").next())
        .map(|name| name.trim_matches(['[', ']', '`']).to_owned())
        .filter(|name| name != "module")
        .collect()
}

/// All source files of a folder but for tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            _ if stem == "tests" || stem == "layers" => {}
            true => sources(&path, found),
            false if path.extension().is_some_and(|end| end == "rs") => found.push(path),
            false => {}
        }
    }
}

/// The code of a file without its comments and its tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let before = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = before.lines();
    lines
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn modules_use_only_what_stands_above_them() {
    let order = order();
    let place = |name: &str| order.iter().position(|module| module == name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut seen = vec![false; order.len()];
    let mut wrong = Vec::new();
    for file in files {
        let inner = file.strip_prefix(&root).unwrap().to_str().unwrap();
        let module = inner.split(['/', '.']).next().unwrap();
        if module == "lib" {
            continue;
        }
        let own = place(module).unwrap_or_else(|| panic!("lib.rs does not list {module}"));
        seen[own] = true;
        for used in code(&file).split("crate::").skip(1) {
            let name: String = used
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if place(&name).is_none_or(|used| used > own) {
                wrong.push(format!("{inner} uses {name}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let missing: Vec<_> = order.iter().zip(seen).filter(|(_, seen)| !seen).collect();
    assert!(missing.is_empty(), "listed but not there: {missing:?}");
}
