//! A doc comment begins with what the thing is or does, so that it can be read alone: in an editor's
//! tooltip, in a list of fields.

use std::fs;

use super::{files, root};

/// Openings that lack a subject, or leave open what it is.
const NO_SUBJECT: [&str; 44] = [
    "It",
    "It's",
    "Its",
    "They",
    "Their",
    "Them",
    "Those",
    "That",
    "Of",
    "By",
    "With",
    "And",
    "Or",
    "But",
    "Also",
    "Not",
    "Is",
    "Are",
    "Was",
    "Were",
    "May",
    "Must",
    "Can",
    "The same",
    "Same",
    "So many",
    "So much",
    "So often",
    "So long",
    "So far",
    "How often",
    "All of it",
    "All of them",
    "Some of it",
    "As",
    "Between",
    "Up to",
    "In words",
    "In which",
    "In the order",
    "For which",
    "For how",
    "From whom",
    "Done",
];

/// Comments that may begin so: how each begins, and why.
const DECIDED: [(&str, &str); 1] = [(
    "Not at all.",
    "help of `lockstep-lab wal compare`: how a fork is compared",
)];

/// How the doc comments of a file begin: line and text.
fn openings(text: &str) -> Vec<(usize, &str)> {
    let mut before = None;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let mark = ["///", "//!"]
            .into_iter()
            .find(|mark| line.starts_with(mark));
        if let (Some(mark), true) = (mark, mark != before) {
            found.push((number + 1, line.trim_start_matches(mark).trim()));
        }
        before = mark;
    }
    found
}

/// The opening without a subject that a text has.
fn lacks_subject(text: &str) -> Option<&'static str> {
    NO_SUBJECT.into_iter().find(|opening| {
        let rest = text.strip_prefix(opening);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\''))
    })
}

#[test]
fn doc_comments_begin_with_their_subject() {
    let mut sources = Vec::new();
    files(&root().join("crates"), &mut sources);
    sources.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    sources.sort();
    let mut wrong = Vec::new();
    let mut decided = [false; DECIDED.len()];
    for path in sources {
        for (line, text) in openings(&fs::read_to_string(&path).unwrap()) {
            if lacks_subject(text).is_none() {
                continue;
            }
            match DECIDED
                .iter()
                .position(|(begin, _)| text.starts_with(begin))
            {
                Some(at) => decided[at] = true,
                None => wrong.push(format!("{}:{line}: {text}", path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "without a subject:\n{}", wrong.join("\n"));
    let unused = DECIDED.iter().zip(decided).filter(|(_, seen)| !seen);
    let unused: Vec<_> = unused.map(|((begin, _), _)| begin).collect();
    assert!(unused.is_empty(), "decided, and not there: {unused:?}");
}

#[test]
fn an_opening_without_a_subject_is_found() {
    let text =
        "//! It reads.\n//! Its rest.\n\n/// The same.\n/// More.\nfn f() {}\n    /// Item.\n";
    assert_eq!(
        openings(text),
        [(1, "It reads."), (4, "The same."), (7, "Item.")]
    );
    let without = [
        "It reads.",
        "The same, later",
        "So many rows",
        "How often it is",
        "Of it",
        "That.",
    ];
    for text in without {
        assert!(lacks_subject(text).is_some(), "{text}");
    }
    let with = [
        "Item.",
        "The sameness",
        "Offset",
        "So",
        "How many bytes",
        "`It`",
        "Order",
        "Maybe",
    ];
    for text in with {
        assert_eq!(lacks_subject(text), None, "{text}");
    }
}
