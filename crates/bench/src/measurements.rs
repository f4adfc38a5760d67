//! `docs/measurements.md` and README's table of claims, from the files in `bench/results`.
//!
//! The text stands in `docs/measurements.in.md`. There `{{NAME: …}}` is replaced by what
//! `bench/results/NAME.json` says:
//!
//! | placeholder | becomes |
//! |---|---|
//! | `{{NAME: table}}` | medians over rounds by case and variant |
//! | `{{NAME: table CASE; CASE}}` | the same of these cases |
//! | `{{NAME: source}}` | file, command, commits, dates and machine |
//! | `{{NAME: median CASE/VARIANT/KEY}}` | one median with its unit |
//! | `{{NAME: percent A of B}}` | median A as a percentage of median B, both as above |
//! | `{{NAME: headline KEY}}` | ours in the file's headline, in the unit of this key |
//! | `{{NAME: headline ratio}}` | the headline's ratio |
//! | `{{claims}}` | everything that is claimed, README's rows first |
//!
//! Results stand in the text by these only, so that a later run leaves none behind.

mod claims;
mod columns;
mod figures;
mod results;

use std::path::{Path, PathBuf};
use std::{fs, io};

use columns::{Column, Layout};
use figures::{percentage, ratio, shown};
use results::Results;

/// Where the results are, from the root of the working folder.
const RESULTS: &str = "bench/results";
const TEMPLATE: &str = "docs/measurements.in.md";
const DOCUMENT: &str = "docs/measurements.md";
const README: &str = "README.md";

/// README's table stands between these lines.
const CLAIMS_BEGIN: &str = "<!-- claims: `make measurements` writes this table -->\n";
const CLAIMS_END: &str = "<!-- end of claims -->\n";

/// What stock PostgreSQL did, in `variant` of most benchmarks.
const STOCK: &str = "stock";
const LOCKSTEP: &str = "lockstep";

pub type Result<T, E = MeasurementsError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum MeasurementsError {
    #[error("cannot {what} {path}: {source}")]
    File {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{path} holds no results of a benchmark: {source}")]
    NotResults {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("placeholder {{{{{0}}}}} is none of those that are described in measurements.rs")]
    Placeholder(String),
    #[error("benchmark {0} has no columns in measurements/columns.rs")]
    Unknown(String),
    #[error("the results of {benchmark} have no figure {figure}")]
    Missing { benchmark: String, figure: String },
    #[error("README.md lacks the lines that mark the table of claims")]
    NoMarks,
}

impl MeasurementsError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }
}

/// The template with every placeholder replaced by what the files in folder `results` say.
pub fn render(template: &str, results: &Path) -> Result<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (placeholder, after) = after
            .split_once("}}")
            .ok_or_else(|| MeasurementsError::Placeholder(after.chars().take(40).collect()))?;
        text.push_str(before);
        text.push_str(&replacement(placeholder, results)?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// The files that this module writes below `root`, and what they should hold.
pub fn rendered(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let results = root.join(RESULTS);
    let template = read(&root.join(TEMPLATE))?;
    let readme_path = root.join(README);
    let readme = read(&readme_path)?;
    let (before, rest) = readme
        .split_once(CLAIMS_BEGIN)
        .ok_or(MeasurementsError::NoMarks)?;
    let (_, after) = rest
        .split_once(CLAIMS_END)
        .ok_or(MeasurementsError::NoMarks)?;
    let table = claims::short_table(&results)?;
    Ok(vec![
        (root.join(DOCUMENT), render(&template, &results)?),
        (
            readme_path,
            format!("{before}{CLAIMS_BEGIN}\n{table}\n{CLAIMS_END}{after}"),
        ),
    ])
}

/// Writes those files, and returns their paths.
pub fn write(root: &Path) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for (path, text) in rendered(root)? {
        fs::write(&path, text).map_err(MeasurementsError::file("write", &path))?;
        written.push(path);
    }
    Ok(written)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(MeasurementsError::file("read", path))
}

/// What stands for a placeholder. It may be broken over lines of the template.
fn replacement(placeholder: &str, folder: &Path) -> Result<String> {
    let words = placeholder.split_whitespace().collect::<Vec<_>>().join(" ");
    if words == "claims" {
        return claims::whole_table(folder);
    }
    let unknown = || MeasurementsError::Placeholder(words.clone());
    let (name, what) = words.split_once(':').ok_or_else(unknown)?;
    let results = Results::load(folder, name)?;
    let (verb, rest) = what.trim().split_once(' ').unwrap_or((what.trim(), ""));
    match (verb, rest) {
        ("source", "") => Ok(source(&results)),
        ("table", "") => table(&results, &results.cases()),
        ("table", cases) => {
            let cases: Vec<_> = cases.split("; ").collect();
            let known = results.cases();
            match cases.iter().find(|case| !known.contains(case)) {
                Some(case) => Err(results.missing(case)),
                None => table(&results, &cases),
            }
        }
        ("median", path) => {
            let (key, value) = results.median_at(path)?;
            Ok(shown(key, value))
        }
        ("headline", key) => {
            let headline = results.headline.as_ref();
            let missing = || results.missing("headline");
            let headline = headline.ok_or_else(missing)?;
            match key {
                "ratio" => headline.ratio.map(ratio).ok_or_else(missing),
                _ => Ok(shown(key, headline.ours)),
            }
        }
        ("percent", paths) => {
            let (part, whole) = paths.split_once(" of ").ok_or_else(unknown)?;
            let ((_, part), (_, whole)) = (results.median_at(part)?, results.median_at(whole)?);
            Ok(percentage(part, whole))
        }
        _ => Err(unknown()),
    }
}

/// Where figures come from. Rows may be of an earlier run than the file's last.
fn source(results: &Results) -> String {
    let dates = results.texts("date");
    let days: Vec<_> = dates
        .iter()
        .filter_map(|date| date.split('T').next())
        .collect();
    let days = match (days.iter().min(), days.iter().max()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(day), _) => (*day).to_owned(),
        _ => results
            .date
            .split('T')
            .next()
            .unwrap_or_default()
            .to_owned(),
    };
    let mut commits = results.texts("commit");
    if commits.is_empty() {
        commits.push(&results.commit);
    }
    let plural = if commits.len() > 1 { "s" } else { "" };
    let commits: Vec<_> = commits.into_iter().map(short_commit).collect();
    let last = match results.short_command() {
        short if short == results.command => String::new(),
        _ => format!(" Its last run was `{}`.", results.command),
    };
    let name = &results.name;
    format!(
        "Source: [bench/results/{name}.json](../{RESULTS}/{name}.json), written by `{}` at commit{plural} {} on {days}.{last} Machine: {}.",
        results.short_command(),
        commits.join(", "),
        results.machine
    )
}

/// A commit as people write it; `-dirty`, where the working folder was changed, stays.
fn short_commit(commit: &str) -> String {
    let (hash, dirty) = match commit.strip_suffix("-dirty") {
        Some(hash) => (hash, "-dirty"),
        None => (commit, ""),
    };
    let hash: String = hash.chars().take(8).collect();
    format!("{hash}{dirty}")
}

/// Medians of the cases: a line for each variant and step, and one for the ratio where a case
/// has both stock and ours.
fn table(results: &Results, cases: &[&str]) -> Result<String> {
    let layout = columns::of(&results.name)?;
    let titles = layout.columns.iter().map(|column| column.title);
    let rules = layout.columns.iter().map(Column::rule);
    let mut lines = vec![
        line(["case", "variant"].into_iter().chain(titles)),
        line(["---", "---"].into_iter().chain(rules)),
    ];
    for case in cases {
        for step in results.steps(case, layout.in_steps) {
            lines.extend(step_lines(results, &layout, case, step));
        }
    }
    Ok(lines.join("\n"))
}

fn step_lines(results: &Results, layout: &Layout, case: &str, step: Option<usize>) -> Vec<String> {
    let mut lines = Vec::new();
    for variant in results.variants(case) {
        let rows = results.rows(case, variant, step);
        if rows.is_empty() {
            continue;
        }
        let cells: Vec<String> = layout.columns.iter().map(|c| c.cell(&rows)).collect();
        let cells = cells.iter().map(String::as_str);
        lines.push(line([case, variant].into_iter().chain(cells)));
    }
    let [ours, theirs] = [layout.ours, layout.theirs].map(|v| results.rows(case, v, step));
    let ratios = layout.columns.iter().map(|c| c.ratio(&ours, &theirs));
    let ratios: Vec<Option<String>> = ratios.collect();
    if ratios.iter().any(Option::is_some) {
        let cells = ratios
            .iter()
            .map(|cell| cell.as_deref().unwrap_or_default());
        lines.push(line([case, "*ratio*"].into_iter().chain(cells)));
    }
    lines
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let cells: Vec<&str> = cells.collect();
    format!("| {} |", cells.join(" | "))
}

#[cfg(test)]
mod tests;
