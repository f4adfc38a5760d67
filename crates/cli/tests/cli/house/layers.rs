//! Modules are layers: each uses only those above it in the table of its crate's `lib.rs`, so there
//! are no circles. The table lists every module, tests included.
//!
//! A use is a path in the code: `use crate::a::b`, `super::a`, `a::b` from the file that declares
//! `a`, in nested modules too. Tests inside a file and below a module may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::code::{Token, tokens};
use super::root;

/// One crate, or a part of one, as its files say it.
#[derive(Default)]
struct Crate {
    /// Modules in the order of the table.
    table: Vec<String>,
    /// Modules that the root file declares.
    declared: BTreeSet<String>,
    /// Names that the root file takes from a module, and which.
    taken: BTreeMap<String, String>,
    /// Paths of the crate that each module's code holds, without the `crate`.
    paths: BTreeMap<String, BTreeSet<(String, Vec<String>)>>,
}

/// The modules of a table, in its order; several of one row from left to right.
fn table(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! "));
    let rows = lines
        .skip_while(|line| !line.starts_with("| module "))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_start_matches('|').split('|').next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

/// What a file says of other modules.
#[derive(Default)]
struct Said {
    /// Modules that it declares as files, and whether only tests have them.
    files: Vec<(String, bool)>,
    /// Paths in its code from the crate's root on; `crate` itself is left out.
    paths: BTreeSet<Vec<String>>,
    /// Names that it takes from elsewhere in the crate by `use`, and their paths.
    taken: BTreeMap<String, Vec<String>>,
}

/// Reads a file's tokens from first to last.
struct Walk<'a> {
    tokens: &'a [Token],
    at: usize,
    /// The module that the tokens belong to, from the crate's root on.
    module: Vec<String>,
    /// How many braces were open where each inline module of `module` began.
    inline: Vec<usize>,
    braces: usize,
    said: Said,
}

impl Walk<'_> {
    fn word(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", Token::text)
    }

    fn is_name(&self, ahead: usize) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(Token::is_name)
    }

    fn words(&self, words: &[&str]) -> bool {
        let mut wanted = words.iter().enumerate();
        wanted.all(|(ahead, word)| self.word(ahead) == *word)
    }

    /// Goes behind one item: behind its first `;` or the brace that closes its first block.
    fn skip_item(&mut self) {
        let mut open = 0_usize;
        while self.at < self.tokens.len() {
            let word = self.word(0).to_owned();
            self.at += 1;
            match word.as_str() {
                "{" | "(" | "[" => open += 1,
                "}" | ")" | "]" => {
                    open = open.saturating_sub(1);
                    // A field or an argument ends where what holds it ends.
                    if open == 0 && word == "}" {
                        return;
                    }
                }
                ";" | "," if open == 0 => return,
                _ => {}
            }
        }
    }

    fn file(mut self) -> Said {
        while self.at < self.tokens.len() {
            if self.words(&["#", "[", "cfg", "(", "test", ")", "]"]) {
                self.at += 7;
                self.only_for_tests();
            } else if self.word(0) == "mod" && self.is_name(1) {
                self.module_begins();
            } else if self.word(0) == "use" {
                self.at += 1;
                self.path(None, true);
            } else if self.words(&["in", "crate"]) && self.before() == "(" {
                // `pub(in crate::…)` says who may use it.
                self.at += 2;
            } else if self.is_name(0)
                && self.word(1) == "::"
                && !matches!(self.before(), "::" | ".")
            {
                self.path(None, false);
            } else {
                self.brace();
                self.at += 1;
            }
        }
        self.said
    }

    fn before(&self) -> &str {
        let at = self.at.checked_sub(1);
        at.and_then(|at| self.tokens.get(at))
            .map_or("", Token::text)
    }

    fn brace(&mut self) {
        match self.word(0) {
            "{" => self.braces += 1,
            "}" => {
                self.braces = self.braces.saturating_sub(1);
                if self.inline.last() == Some(&self.braces) {
                    self.inline.pop();
                    self.module.pop();
                }
            }
            _ => {}
        }
    }

    /// What follows `#[cfg(test)]`: left out, but for the name of a file.
    fn only_for_tests(&mut self) {
        while self.word(0) == "#" {
            while self.word(0) != "]" {
                self.at += 1;
            }
            self.at += 1;
        }
        let named = (0..5).find(|ahead| self.word(*ahead) == "mod");
        match named {
            Some(ahead) if self.word(ahead + 2) == ";" => {
                let name = self.word(ahead + 1).to_owned();
                self.said.files.push((name, true));
                self.at += ahead + 3;
            }
            _ => self.skip_item(),
        }
    }

    fn module_begins(&mut self) {
        let name = self.word(1).to_owned();
        match self.word(2) {
            ";" => self.said.files.push((name, false)),
            "{" => {
                self.module.push(name);
                self.inline.push(self.braces);
                self.braces += 1;
            }
            _ => {}
        }
        self.at += 3;
    }

    /// A path or a tree of paths after `from`. Notes each that stays in the crate.
    fn path(&mut self, from: Option<Vec<String>>, is_use: bool) {
        let mut path = match (from, self.word(0)) {
            (Some(from), _) => from,
            (None, "crate") => {
                self.at += 1;
                Vec::new()
            }
            (None, "self" | "Self") => {
                self.at += 1;
                self.module.clone()
            }
            (None, "super") => self.module.clone(),
            // Of this module's own modules, or of another crate: who reads the paths can tell.
            (None, _) => {
                let mut own = self.module.clone();
                own.push(self.word(0).to_owned());
                self.at += 1;
                own
            }
        };
        loop {
            match self.word(0) {
                "::" => self.at += 1,
                "super" => {
                    path.pop();
                    self.at += 1;
                }
                "{" if is_use => {
                    self.at += 1;
                    while !matches!(self.word(0), "}" | "") {
                        self.path(Some(path.clone()), true);
                        if self.word(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "self" => self.at += 1,
                "*" if is_use => {
                    path.push("*".to_owned());
                    self.at += 1;
                    break;
                }
                "as" if is_use => {
                    let name = self.word(1).to_owned();
                    self.at += 2;
                    self.said.taken.insert(name, path.clone());
                    self.said.paths.insert(path);
                    return;
                }
                _ if self.is_name(0) && (is_use || self.before() == "::") => {
                    path.push(self.word(0).to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        if let (true, Some(name)) = (is_use, path.last()) {
            self.said.taken.insert(name.clone(), path.clone());
        }
        self.said.paths.insert(path);
    }
}

fn read(path: &Path, module: &[String]) -> Said {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    said(&text, module)
}

fn said(text: &str, module: &[String]) -> Said {
    let walk = Walk {
        tokens: &tokens(text),
        at: 0,
        module: module.to_vec(),
        inline: Vec::new(),
        braces: 0,
        said: Said::default(),
    };
    walk.file()
}

/// A module's file: `name.rs` or `name/mod.rs` in the folder of the module that declares it.
fn file_of(folder: &Path, name: &str) -> PathBuf {
    let plain = folder.join(name).with_extension("rs");
    match plain.is_file() {
        true => plain,
        false => folder.join(name).join("mod.rs"),
    }
}

impl Crate {
    /// Reads a crate's source folder from its root file on.
    fn read(folder: &Path) -> Self {
        let of_library = folder.join("lib.rs");
        let root_file = match of_library.is_file() {
            true => of_library,
            false => folder.join("main.rs"),
        };
        let said = read(&root_file, &[]);
        let mut found = Self {
            table: table(&fs::read_to_string(&root_file).unwrap()),
            ..Self::default()
        };
        found.root_says(&said);
        for (name, _) in said.files {
            found.add(
                &folder.join(&name),
                &file_of(folder, &name),
                vec![name.clone()],
            );
        }
        found
    }

    fn root_says(&mut self, said: &Said) {
        self.declared = said.files.iter().map(|(name, _)| name.clone()).collect();
        let taken = said.taken.iter();
        self.taken = taken
            .filter_map(|(name, path)| Some((name.clone(), path.first()?.clone())))
            .collect();
    }

    /// Adds a module's file, and the files of the modules in it.
    fn add(&mut self, folder: &Path, file: &Path, module: Vec<String>) {
        let said = read(file, &module);
        let shown = file
            .components()
            .rev()
            .take(2)
            .map(|part| part.as_os_str().to_str().unwrap());
        let shown: Vec<_> = shown.collect();
        let shown = shown.into_iter().rev().collect::<Vec<_>>().join("/");
        self.hears(&module, &shown, &said.paths);
        for (name, of_tests) in said.files {
            if !of_tests {
                let mut inner = module.clone();
                inner.push(name.clone());
                self.add(&folder.join(&name), &file_of(folder, &name), inner);
            }
        }
    }

    fn hears(&mut self, module: &[String], file: &str, paths: &BTreeSet<Vec<String>>) {
        let paths = paths.iter().map(|path| (file.to_owned(), path.clone()));
        let own = module.first().unwrap().clone();
        self.paths.entry(own).or_default().extend(paths);
    }

    /// The module that a path means; an empty text for what stands in the root file itself.
    fn meant<'a>(&'a self, path: &'a [String]) -> &'a str {
        let Some(first) = path.first() else {
            return "";
        };
        if self.declared.contains(first) {
            return first;
        }
        self.taken.get(first).map_or("", String::as_str)
    }

    /// What is wrong with the table, or goes against it.
    fn breaks(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let place = |name: &str| self.table.iter().position(|module| module == name);
        for module in &self.declared {
            if place(module).is_none() {
                wrong.push(format!("the table lacks {module}"));
            }
        }
        for module in &self.table {
            if !self.declared.contains(module) {
                wrong.push(format!("the table has {module}, which is not there"));
            }
        }
        for (own, paths) in &self.paths {
            let at = place(own);
            let mut seen = BTreeSet::new();
            for (file, path) in paths {
                let used = self.meant(path);
                let is_below = place(used) > at;
                let is_root = used.is_empty();
                if (is_root || is_below) && seen.insert((file, used)) {
                    let used = if is_root {
                        path.join("::")
                    } else {
                        used.to_owned()
                    };
                    wrong.push(format!("{file} uses {used}"));
                }
            }
        }
        wrong
    }
}

#[test]
fn modules_use_only_what_stands_above_them() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let found = Crate::read(&folder.join("src"));
        if found.table.is_empty() {
            wrong.push(format!("{name}: the root file has no table of modules"));
            continue;
        }
        wrong.extend(
            found
                .breaks()
                .into_iter()
                .map(|text| format!("{name}: {text}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The breaks of a crate with this table, whose modules' files are these.
fn breaks_of(table: &[&str], files: &[(&str, &str)]) -> Vec<String> {
    let mut found = Crate {
        table: table.iter().map(|name| (*name).to_owned()).collect(),
        ..Crate::default()
    };
    for (module, text) in files {
        let module: Vec<_> = module.split("::").map(str::to_owned).collect();
        match module.first().map(String::as_str) {
            Some("lib") => found.root_says(&said(text, &[])),
            _ => {
                let paths = said(text, &module).paths;
                found.hears(&module, &module.join("/"), &paths);
            }
        }
    }
    found.breaks()
}

#[test]
fn every_way_to_use_a_module_is_seen() {
    let root = "mod low; mod high; pub use high::{Top, Error as HighError};";
    let uses =
        |module: &str, text: &str| breaks_of(&["low", "high"], &[("lib", root), (module, text)]);
    let breaks = [
        ("low", "use crate::high;"),
        ("low", "use crate::high::Top;"),
        ("low", "use crate::{low, high::Top};"),
        ("low", "use super::high::Top;"),
        ("low", "use super::{high as other};"),
        ("low", "pub(crate) use crate::high as other;"),
        ("low", "fn f() { crate::high::g(); }"),
        ("low", "fn f() -> super::high::Top { }"),
        ("low", "mod inner { use super::super::high; }"),
        ("low", "mod inner { } use super::high;"),
        (
            "low",
            "#[cfg(test)] fn f() { } fn g() { crate::high::g(); }",
        ),
        (
            "low",
            "#[cfg(test)] mod tests { } fn g(text: &'static str) { crate::high::g(); }",
        ),
        (
            "low",
            "fn f() { let c = '\\''; let d = '\"'; crate::high::g(); }",
        ),
        ("low::inner", "use super::super::high;"),
        (
            "low::inner::core",
            "fn f() { super::super::super::high::g() }",
        ),
        ("low", "use crate::Top;"),
        ("low", "type E = crate::HighError;"),
    ];
    for (module, text) in breaks {
        let found = uses(module, text);
        assert_eq!(
            found,
            [format!("{} uses high", module.replace("::", "/"))],
            "{text}"
        );
    }
    for text in [
        "use crate::*;",
        "use super::*;",
        "fn f() { crate::helper() }",
    ] {
        assert_eq!(uses("high", text).len(), 1, "{text}");
    }
    let fine = [
        (
            "high",
            "use crate::low; use super::low::Low; pub use crate::low::*;",
        ),
        (
            "low",
            "// crate::high\n/* crate::high /* */ crate::high */ /// [`crate::high`]\nfn f() {}",
        ),
        ("low", "fn f() -> &str { \"crate::high \\\" crate::high\" }"),
        (
            "low",
            "fn f() -> &str { r#\"crate::high \" crate::high\"# }",
        ),
        ("low", "#[cfg(test)] mod tests { use crate::high; }"),
        ("low", "#[cfg(test)] #[path = \"x.rs\"] mod tests;"),
        (
            "low",
            "#[cfg(test)] impl Low { fn f() { crate::high::g(); } } fn h() {}",
        ),
        ("low", "#[cfg(test)] use crate::high;"),
        (
            "low",
            "pub(in crate::high) fn f() {} pub(crate) fn g() {} pub(super) fn h() {}",
        ),
        (
            "low::inner",
            "use super::Low; use super::super::low::Low; use std::fs; fn f() { fs::read() }",
        ),
        (
            "low",
            "mod inner { use super::Low; } use tokio::{self, sync::Mutex};",
        ),
    ];
    for (module, text) in fine {
        assert_eq!(uses(module, text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn a_table_lists_exactly_the_modules() {
    let root = [("lib", "mod low; #[cfg(test)] mod high_tests;")];
    let lacks = ["the table lacks high_tests"];
    assert_eq!(breaks_of(&["low"], &root), lacks);
    let more = ["the table has gone, which is not there"];
    assert_eq!(breaks_of(&["low", "high_tests", "gone"], &root), more);
    let text = "//! Words.\n//!\n//! | module | what |\n//! |---|---|\n//! | [`a`], `b` | `x` |\n//! | [`c`](mod@c) | y |\n//!\n//! | other |\n";
    assert_eq!(table(text), ["a", "b", "c"]);
}
