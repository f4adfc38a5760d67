//! Words that all commands print: figures, dates, tables.
//!
//! | module | what |
//! |---|---|
//! | [`figures`] | times, bytes, percent and counts in sentences and tables |
//! | [`brief`] | times and bytes in at most six characters |
//! | [`date`] | date and time of day in UTC |
//! | [`amount`] | amounts of memory and disk, written and read as PostgreSQL does |
//! | [`span`] | times, written and read as PostgreSQL does |
//! | [`lines`] | tables, and words broken into lines |
//! | [`output`] | results on standard output |

pub mod amount;
pub mod brief;
pub mod date;
pub mod figures;
pub mod lines;
pub mod output;
pub mod span;

/// Most characters of a wrong value that an error shows.
const MOST_TEXT: usize = 60;

/// A wrong value as errors show it: quoted, shortened, on one line.
pub fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(MOST_TEXT).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}
