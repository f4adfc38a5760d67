//! A diagnosis as a plugin of Nagios, Icinga or another program with their protocol says it: a line with
//! figures, more lines, and an exit code from 0 to 3.

use std::fmt::Write;

use lockstep_lag::diagnosis::LinkReport;
use lockstep_lag::rules::Severity;
use lockstep_lag::{Diagnosis, Finding};
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::figures::{counted, seconds};

use super::{lost, text};

/// How bad it is, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    /// Something cannot be seen, so nobody knows whether all is well.
    Unknown,
    Warning,
    Critical,
}

impl Level {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Critical => 2,
            Self::Unknown => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// Ages of a replica's data, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    /// From here on it is a warning,
    pub warning_s: u32,
    /// and from here on critical.
    pub critical_s: u32,
}

impl Thresholds {
    fn level(self, age_ms: f64) -> Level {
        match age_ms / 1000.0 {
            s if s >= f64::from(self.critical_s) => Level::Critical,
            s if s >= f64::from(self.warning_s) => Level::Warning,
            _ => Level::Ok,
        }
    }
}

/// A line that says that nothing could be checked.
pub fn unknown(why: &str) -> String {
    format!("LOCKSTEP {} - {}", Level::Unknown.name(), line(why))
}

/// What is said of one cluster.
struct Part {
    level: Level,
    words: String,
    figures: String,
    /// More lines.
    more: Vec<String>,
}

/// The level, and all lines, of one cluster or of several with their names; the worst comes first.
pub fn report(clusters: &[(Option<&str>, &Diagnosis)], thresholds: Thresholds) -> (Level, String) {
    let parts = clusters
        .iter()
        .map(|(name, diagnosis)| part(*name, diagnosis, thresholds));
    let mut parts: Vec<Part> = parts.collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.level));
    let level = parts.first().map_or(Level::Unknown, |part| part.level);
    let joined = |of: fn(&Part) -> &str, between| {
        let all: Vec<&str> = parts.iter().map(of).collect();
        all.join(between)
    };
    let words = joined(|part| &part.words, "; ");
    let figures = joined(|part| &part.figures, " ");
    let mut lines = format!("LOCKSTEP {} - {} | {figures}", level.name(), line(&words));
    for more in parts.iter().flat_map(|part| &part.more) {
        let _ = write!(lines, "\n{more}");
    }
    (level, lines)
}

fn part(cluster: Option<&str>, diagnosis: &Diagnosis, thresholds: Thresholds) -> Part {
    let mut said: Vec<(Level, String)> = Vec::new();
    let lost = lost(diagnosis);
    if !lost.is_empty() {
        let why = match lost.as_slice() {
            [_] => why_lost(diagnosis)
                .next()
                .map(|(_, why)| format!(" ({why})")),
            _ => None,
        };
        let (names, why) = (text::some(&lost), why.unwrap_or_default());
        said.push((
            Level::Critical,
            format!("nothing can be said about {names}{why}"),
        ));
    }
    let links = diagnosis.links.iter();
    said.extend(links.filter_map(|link| late(diagnosis, link, thresholds)));
    let findings = diagnosis.findings.iter();
    said.extend(findings.filter_map(|found| other(diagnosis, found)));
    said.extend(diagnosis.unknown.first().map(|unseen| {
        let words = format!("not known whether all is well: {unseen}");
        (Level::Unknown, words)
    }));
    // Within a level the order stays.
    said.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
    let level = match said.first() {
        Some((level, _)) => *level,
        None if diagnosis.healthy || diagnosis.has_lag() => Level::Ok,
        None => Level::Unknown,
    };
    let words: Vec<&str> = said.iter().map(|(_, words)| words.as_str()).collect();
    let words = match words.is_empty() {
        true => {
            let replicas = counted(diagnosis.links.len() as u64, "replica");
            format!("{replicas} looked at, none is late")
        }
        false => text::some_of(&words, "; "),
    };
    let of = cluster.map_or(String::new(), |name| format!("{name}: "));
    Part {
        level,
        words: format!("{of}{words}"),
        figures: figures(cluster, diagnosis, thresholds),
        more: more(&of, diagnosis),
    }
}

/// Why each lost node is lost, and each cause with its first remedy.
fn more(of: &str, diagnosis: &Diagnosis) -> Vec<String> {
    let lost = why_lost(diagnosis).map(|(name, why)| format!("{of}{}: {}", line(name), line(&why)));
    let mut lines: Vec<String> = lost.collect();
    for found in diagnosis.findings.iter().filter(|found| !found.is_aside()) {
        lines.push(format!("{of}{}: {}", line(&found.at), line(&found.title)));
        let remedy = found.remedies.first();
        lines.extend(remedy.map(|remedy| format!("  do: {}", line(remedy))));
    }
    lines
}

/// The nodes that cannot be asked, and why each cannot.
fn why_lost(diagnosis: &Diagnosis) -> impl Iterator<Item = (&str, String)> {
    let lost = diagnosis.nodes.iter().filter(|node| !node.usable);
    lost.filter_map(|node| {
        let why = node.troubles.iter().find(|trouble| trouble.is_blind())?;
        Some((node.name.as_str(), why.to_string()))
    })
}

/// The age of what a replica's readers see: behind the primary, if its upstream is behind as well.
fn age_ms(link: &LinkReport) -> f64 {
    let all = link.behind_primary.filter(|all| all.behind);
    all.map_or(link.lag_ms, |all| all.lag_ms.max(link.lag_ms))
}

/// A replica whose data is too old. One that was behind before anybody watched may be older than it looks.
fn late(
    diagnosis: &Diagnosis,
    link: &LinkReport,
    thresholds: Thresholds,
) -> Option<(Level, String)> {
    let age_ms = age_ms(link);
    let is_least =
        link.bound.lag_is_least || link.behind_primary.is_some_and(|all| all.lag_is_least);
    let least = match link.behind && is_least {
        true => Level::Warning,
        false => Level::Ok,
    };
    let level = thresholds.level(age_ms).max(least);
    let why = diagnosis.cause_of(&link.upstream, &link.replica, link.kind);
    let why = why.map_or(String::new(), |found| format!(": {}", found.title));
    let sign = if is_least { "at least " } else { "" };
    let words = format!("{} {sign}{} late{why}", link.replica, seconds(age_ms));
    (level > Level::Ok).then_some((level, words))
}

/// What is wrong and is no replica's lag, which has thresholds: a risk is a warning, and what is as bad as
/// lag is critical.
fn other(diagnosis: &Diagnosis, found: &Finding) -> Option<(Level, String)> {
    let of = |link: &&LinkReport| {
        let cause = diagnosis.cause_of(&link.upstream, &link.replica, link.kind);
        link.behind && cause.is_some_and(|cause| cause.at == found.at && cause.cause == found.cause)
    };
    let level = match found.severity {
        Severity::Note => return None,
        Severity::Risk => Level::Warning,
        Severity::Lag if diagnosis.links.iter().any(|link| of(&link)) => return None,
        Severity::Lag => Level::Critical,
    };
    Some((level, format!("{}: {}", found.at, found.title)))
}

/// Performance data: for each replica the age of its data and the bytes behind, and how many nodes are lost.
fn figures(cluster: Option<&str>, diagnosis: &Diagnosis, thresholds: Thresholds) -> String {
    let of = cluster.map_or(String::new(), |name| format!("{name}/"));
    let Thresholds {
        warning_s,
        critical_s,
    } = thresholds;
    let mut all = Vec::new();
    for link in &diagnosis.links {
        let name = label(&format!("{of}{}", called(diagnosis, link)));
        let age = age_ms(link) / 1000.0;
        all.push(format!("'{name} lag'={age:.3}s;{warning_s};{critical_s};0"));
        all.push(format!("'{name} bytes'={:.0}B;;;0", link.lag_bytes));
    }
    all.push(format!("{of}lost_nodes={};;0;0", lost(diagnosis).len()));
    all.join(" ")
}

/// What a replica is called that no other one is called: its name, unless links of two servers have it.
fn called(diagnosis: &Diagnosis, link: &LinkReport) -> String {
    let others = diagnosis
        .links
        .iter()
        .filter(|it| it.replica == link.replica);
    let others: Vec<&LinkReport> = others.collect();
    let here = others.iter().filter(|it| it.upstream == link.upstream);
    match (others.len(), here.count()) {
        (..=1, _) => link.replica.clone(),
        (_, ..=1) => format!("{} of {}", link.replica, link.upstream),
        _ => format!(
            "{} of {} ({})",
            link.replica,
            link.upstream,
            link.kind.name()
        ),
    }
}

/// A label that no other name has: what it cannot hold is written as in a URL.
fn label(name: &str) -> String {
    let mut label = String::new();
    for c in name.chars() {
        let text = c.to_string();
        match matches!(c, '=' | '\'' | '|' | '%') || sanitize(&text) != text {
            true => {
                for byte in text.bytes() {
                    let _ = write!(label, "%{byte:02X}");
                }
            }
            false => label.push(c),
        }
    }
    label
}

/// A text on one line. A bar would begin performance data.
fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    sanitize(&words.join(" ")).replace('|', "/")
}

#[cfg(test)]
mod tests {
    use lockstep_lag::link::BehindPrimary;
    use lockstep_lag::point::Bound;

    use super::super::tests::{found, link};
    use super::*;

    const OF: Thresholds = Thresholds {
        warning_s: 10,
        critical_s: 60,
    };

    fn healthy() -> Diagnosis {
        Diagnosis {
            healthy: true,
            unknown: Vec::new(),
            nodes: Vec::new(),
            links: vec![link("a", 0.0), link("b", 0.0)],
            findings: Vec::new(),
            checks: Vec::new(),
            failover: Vec::new(),
            unlinked: Vec::new(),
        }
    }

    fn said(change: impl Fn(&mut Diagnosis)) -> (u8, String) {
        let mut diagnosis = healthy();
        change(&mut diagnosis);
        let (level, text) = report(&[(None, &diagnosis)], OF);
        (level.code(), text)
    }

    fn late(diagnosis: &mut Diagnosis, lag_ms: f64) {
        diagnosis.healthy = false;
        diagnosis.links[0] = link("a", lag_ms);
        let found = found("a", "replay is paused", Severity::Lag);
        diagnosis.findings.push(found);
    }

    #[test]
    fn levels_are_those_of_the_thresholds() {
        for (lag_ms, code) in [
            (300.0, 0),
            (9_900.0, 0),
            (10_000.0, 1),
            (59_000.0, 1),
            (61_000.0, 2),
        ] {
            let (found, text) = said(|it| late(it, lag_ms));
            assert_eq!(found, code, "{text}");
        }
        let (_, text) = said(|it| late(it, 61_000.0));
        let first = text.lines().next().unwrap();
        assert_eq!(
            first,
            "LOCKSTEP CRITICAL - a 61 s late: replay is paused | 'a lag'=61.000s;10;60;0 'a bytes'=1B;;;0 \
             'b lag'=0.000s;10;60;0 'b bytes'=1B;;;0 lost_nodes=0;;0;0"
        );
        // What is older than it looks is at least a warning.
        let (code, text) = said(|it| {
            late(it, 300.0);
            it.links[0].bound = Bound::LEAST;
        });
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("a at least 300 ms late"), "{text}");
        // The age counts from end to end.
        let (code, text) = said(|it| {
            it.links[1].behind_primary = Some(BehindPrimary {
                behind: true,
                lag_ms: 70_000.0,
                lag_is_least: false,
                lag_most_ms: None,
                lag_bytes: 1.0,
            });
        });
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("'b lag'=70.000s"), "{text}");
    }

    #[test]
    fn what_is_wrong_besides_lag_has_a_level_of_its_own() {
        let (code, text) = said(|_| {});
        assert_eq!(code, 0);
        assert!(
            text.starts_with("LOCKSTEP OK - 2 replicas looked at, none is late | "),
            "{text}"
        );
        let (code, text) = said(|it| it.findings.push(found("a", "a risk", Severity::Risk)));
        assert_eq!((code, text.contains("a: a risk")), (1, true), "{text}");
        let (code, text) = said(|it| {
            it.findings
                .push(found("primary", "commits wait", Severity::Lag))
        });
        assert_eq!(code, 2, "{text}");
        let (code, text) = said(|it| {
            it.healthy = false;
            it.unknown = vec!["a does not show x".to_owned()];
        });
        assert_eq!(code, 3, "{text}");
        // A note is nothing.
        let (code, text) = said(|it| it.findings.push(found("a", "a note", Severity::Note)));
        assert_eq!(code, 0, "{text}");
        // Without replicas nothing was checked.
        let (code, text) = said(|it| {
            it.healthy = false;
            it.links.clear();
        });
        assert_eq!(code, 3, "{text}");
    }

    #[test]
    fn of_several_clusters_the_worst_comes_first() {
        let mut sick = healthy();
        (sick.healthy, sick.links[1]) = (false, link("b", 70_000.0));
        let fine = healthy();
        let (level, text) = report(&[(Some("one"), &fine), (Some("two"), &sick)], OF);
        assert_eq!(level, Level::Critical);
        let first = text.lines().next().unwrap();
        let words =
            "LOCKSTEP CRITICAL - two: b 70 s late; one: 2 replicas looked at, none is late | ";
        assert!(first.starts_with(words), "{first}");
        for figure in [
            "'one/b lag'=0.000s",
            "'two/b lag'=70.000s",
            "two/lost_nodes=0",
        ] {
            assert!(first.contains(figure), "{first}");
        }
        assert_eq!(first.matches('|').count(), 1, "{first}");
    }

    #[test]
    fn names_and_words_cannot_be_taken_for_figures() {
        let (_, text) = said(|it| {
            it.links[0] = link("o'b=1 | x\n2", 0.0);
            let found = found("a|b", "SELECT 1 | 2\nCRITICAL", Severity::Risk);
            it.findings.push(found);
        });
        let first = text.lines().next().unwrap();
        assert_eq!(first.matches('|').count(), 1, "{text}");
        assert!(first.contains("'o%27b%3D1 %7C x%0A2 lag'=0.000s"), "{text}");
        assert_eq!(unknown("a\nb|c"), "LOCKSTEP UNKNOWN - a b/c");
    }

    #[test]
    fn no_two_replicas_have_one_label() {
        let (_, text) = said(|it| {
            let names = [
                "a|b'c=d", "a/b_c_d", "a%7Cb", "a|b", "a  b", "a b", "x", "x",
            ];
            it.links = names.map(|name| link(name, 0.0)).into();
            it.links[7].upstream = "standby".to_owned();
        });
        let first = text.lines().next().unwrap();
        let figures = first.split(" | ").nth(1).unwrap();
        let labels: Vec<&str> = figures.split('\'').skip(1).step_by(2).collect();
        let all: std::collections::BTreeSet<&str> = labels.iter().copied().collect();
        assert_eq!((labels.len(), all.len()), (16, 16), "{figures}");
        assert!(all.contains("x of standby lag"), "{figures}");
    }
}
