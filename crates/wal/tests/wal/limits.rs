//! The simulation's limits are those of the C sources, whose `#define` lines are read here.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use lockstep_wal::limits;

/// Each with the file that defines it.
const LIMITS: [(&str, &str, u64); 17] = [
    ("queue.h", "LS_AHEAD_MAX", limits::AHEAD_MAX as u64),
    ("queue.h", "LS_XID_SLOTS", limits::XID_SLOTS as u64),
    ("memory_hints.h", "LS_BLOCKS", limits::BLOCKS as u64),
    (
        "record_facts.h",
        "LS_BLOCK_SLOTS",
        limits::BLOCK_SLOTS as u64,
    ),
    ("dispatch.c", "LS_MAP_SLOTS", limits::MAP_SLOTS as u64),
    ("pipeline.c", "LS_WORTH_HELPERS", limits::WORTH_HELPERS),
    ("pipeline.c", "LS_REFILL", limits::REFILL as u64),
    ("pipeline.c", "LS_REST", limits::REST),
    ("pipeline.c", "LS_TELL_EVERY", limits::TELL_EVERY as u64),
    ("helper.c", "LS_TAKE", limits::TAKE as u64),
    ("helper.c", "LS_TOO_NEAR", limits::TOO_NEAR as u64),
    ("helper.c", "LS_LEAP", limits::LEAP as u64),
    ("helper.c", "LS_AGAIN", limits::AGAIN as u64),
    ("helper.c", "LS_TRY_EVERY", limits::TRY_EVERY),
    ("helper_count.c", "LS_WINDOW", limits::WINDOW),
    ("helper_rule.c", "LS_MIN_SHARE", limits::MIN_SHARE),
    ("helper_rule.c", "LS_HOLD", limits::HOLD as u64),
];

/// Names and texts of a file's `#define` lines, without comments.
fn defines(text: &str) -> HashMap<&str, &str> {
    let lines = text.lines().filter_map(|line| {
        let (name, value) = line
            .strip_prefix("#define ")?
            .split_once(char::is_whitespace)?;
        let value = value.split("/*").next().unwrap_or_default();
        Some((name, value.trim()))
    });
    lines.collect()
}

/// The value of numbers and names with `*` and `/` between them, from left to right.
fn value(text: &str, defines: &HashMap<&str, &str>) -> Option<u64> {
    let text = text.trim_matches(['(', ')']);
    let mut words = text.split_whitespace();
    let number = |word: &str| match defines.get(word) {
        Some(other) => value(other, defines),
        None => word.parse().ok(),
    };
    let mut result = number(words.next()?)?;
    while let Some(operator) = words.next() {
        let right = number(words.next()?)?;
        result = match operator {
            "*" => result.checked_mul(right)?,
            "/" => result.checked_div(right)?,
            _ => return None,
        };
    }
    Some(result)
}

#[test]
fn limits_are_those_of_the_c_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../extension/src/replay");
    for (file, name, ours) in LIMITS {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let defines = defines(&text);
        let theirs = defines.get(name).and_then(|text| value(text, &defines));
        assert_eq!(
            theirs,
            Some(ours),
            "{name} of extension/src/replay/{file} and its twin in crates/wal/src/limits.rs differ: the \
             simulation must do what the C code does"
        );
    }
}

#[test]
fn values_of_defines_are_found() {
    let text = "#define LS_A 8\n#define LS_B\t(2 * LS_A)\t/* a comment */\n#define LS_C (LS_B + 1)\n#define LS_D\n";
    let defines = defines(text);
    let value_of = |name: &str| value(defines.get(name)?, &defines);
    assert_eq!(value_of("LS_A"), Some(8));
    assert_eq!(value_of("LS_B"), Some(16));
    assert_eq!(value_of("LS_C"), None);
    assert_eq!(value_of("LS_D"), None);
}
