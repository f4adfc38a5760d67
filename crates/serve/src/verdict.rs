//! A state in one sentence.

use lockstep_lag::monitor::{LinkState, MonitorState, NodeState};
use lockstep_lag::point::Bound;
use lockstep_lag::rules::{Cause, Severity};
use lockstep_lag::{Role, link};
use lockstep_service::words::figures::{bytes, seconds};
use serde::Serialize;

use crate::forecast::Forecast;

/// Most replicas that the sentence names.
const MOST_NAMED: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is known yet.
    Starting,
    /// No lag, no risk, and every node answers.
    Ok,
    /// Nothing lags, but something soon will, or costs something else.
    Risk,
    /// No lag is seen, but some nodes cannot be asked, or do not show all.
    Blind,
    Lag,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub level: Level,
    /// The sentence, with figures.
    pub words: String,
    /// The sentence without figures, so that it changes only when the situation does.
    pub brief: String,
}

/// Sums a state up, with the disks that are full now.
pub fn verdict(state: &MonitorState, forecast: &Forecast) -> Verdict {
    let mut said = of_state(state);
    let full = forecast.nodes.iter().filter(|it| it.full_ms == Some(0.0));
    for folder in full {
        let brief = format!("; pg_wal of {} is full", folder.node);
        let limit = folder.limit_bytes.unwrap_or(0);
        let (has, limit) = (bytes(folder.bytes as f64), bytes(limit as f64));
        said.words += &format!("{brief}: it has {has}, and --wal-disk says {limit}");
        said.brief += &brief;
        if said.level == Level::Ok {
            said.level = Level::Risk;
        }
    }
    said
}

fn of_state(state: &MonitorState) -> Verdict {
    if let Some(unseen) = unseen(state).filter(|_| state.nodes.is_empty()) {
        return said(Level::Blind, &unseen);
    }
    let is_new = |node: &NodeState| !node.usable && node.troubles.is_empty();
    if state.number == 0 || state.nodes.iter().all(is_new) {
        return said(Level::Starting, "Waiting for the first answers");
    }
    let lost = |node: &&NodeState| !node.usable && !node.troubles.is_empty();
    let blind: Vec<&NodeState> = state.nodes.iter().filter(lost).collect();
    if blind.iter().any(|node| node.role == Role::Primary) {
        return said(
            Level::Blind,
            "The primary cannot be asked: whether its replicas lag is not known",
        );
    }
    let mut behind: Vec<&LinkState> = state.links.iter().filter(|link| link.behind).collect();
    behind.sort_by(|a, b| b.lag_max_ms.total_cmp(&a.lag_max_ms));
    let unasked = unasked(&blind);
    if !behind.is_empty() {
        return lagging(state, &behind, &unasked);
    }
    if !blind.is_empty() {
        let words = format!("No replica that could be asked lags{unasked}");
        return said(Level::Blind, &words);
    }
    let findings = &state.diagnosis.findings;
    let wrong = |severity| findings.iter().find(|found| found.severity == severity);
    if let Some(unseen) = unseen(state).filter(|_| wrong(Severity::Lag).is_none()) {
        return said(Level::Blind, &unseen);
    }
    match wrong(Severity::Lag).or_else(|| wrong(Severity::Risk)) {
        Some(found) => {
            let level = match found.severity {
                Severity::Lag => Level::Lag,
                _ => Level::Risk,
            };
            let words = format!("No replica lags, but {}: {}", found.at, found.title);
            said(level, &words)
        }
        None => said(Level::Ok, "No replica lags"),
    }
}

/// What hides whether all is well, in one sentence.
fn unseen(state: &MonitorState) -> Option<String> {
    let unknown = &state.diagnosis.unknown;
    let more = match unknown.len().saturating_sub(1) {
        0 => String::new(),
        number => format!(", and {number} more such gaps"),
    };
    let first = unknown.first()?;
    Some(format!(
        "Not known whether all replicas keep up: {first}{more}"
    ))
}

fn said(level: Level, words: &str) -> Verdict {
    Verdict {
        level,
        words: words.to_owned(),
        brief: words.to_owned(),
    }
}

fn unasked(blind: &[&NodeState]) -> String {
    let names: Vec<&str> = blind.iter().map(|node| node.name.as_str()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; {} cannot be asked", names.join(", ")),
    }
}

fn lagging(state: &MonitorState, behind: &[&LinkState], unasked: &str) -> Verdict {
    let named = behind.iter().take(MOST_NAMED);
    let (words, briefs): (Vec<String>, Vec<String>) = named
        .map(|link| {
            let why = why(state, link);
            let lag = lag(link, state.window_s);
            let name = &link.replica;
            (format!("{name} {lag} — {why}"), format!("{name} — {why}"))
        })
        .unzip();
    let more = match behind.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        number => format!("; and {number} more"),
    };
    let mut findings = state.diagnosis.findings.iter();
    let hang = findings.find(|found| {
        found.cause == Cause::SynchronousStandbyMissing && found.severity == Severity::Lag
    });
    let hang = hang.map_or(String::new(), |found| {
        format!("{}: {}. ", found.at, found.title)
    });
    let lead = match (behind.len(), state.replicas()) {
        (1, 1) => "The replica lags".to_owned(),
        (1, all) => format!("1 of {all} replicas lags"),
        (some, all) => format!("{some} of {all} replicas lag"),
    };
    let sentence = |parts: &[String]| format!("{hang}{lead}: {}{more}{unasked}", parts.join("; "));
    Verdict {
        level: Level::Lag,
        words: sentence(&words),
        brief: sentence(&briefs),
    }
}

/// The lag now, or the longest of the window if there is less now.
fn lag(link: &LinkState, window_s: f64) -> String {
    let now = seconds(link.lag_ms);
    match (link.lag_ms >= link::LAG_MS, link.bound) {
        (true, Bound::LEAST) => format!("at least {now}"),
        (true, Bound::MOST) => format!("at most {now}"),
        (true, _) => now,
        (false, Bound::LEAST) => "for a time that is not known".to_owned(),
        (false, _) => format!("up to {} in {window_s:.0} s", seconds(link.lag_max_ms)),
    }
}

fn why(state: &MonitorState, link: &LinkState) -> String {
    let found = &state.diagnosis;
    let found = found.cause_of(&link.upstream, &link.replica, link.kind);
    let Some(found) = found else {
        return "the cause is not known yet".to_owned();
    };
    match found.names.get("pid") {
        Some(pid) => format!("{} (pid {pid})", found.title),
        None => found.title.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use crate::forecast::Folder;

    fn words(change: impl FnOnce(&mut MonitorState)) -> (Level, String) {
        let mut state = example::state();
        change(&mut state);
        let said = verdict(&state, &Forecast::default());
        (said.level, said.words)
    }

    #[test]
    fn what_is_the_matter_is_one_sentence() {
        let is = |level, text: &str| (level, text.to_owned());
        assert_eq!(words(|_| {}), is(Level::Ok, "No replica lags"));
        assert_eq!(
            words(|state| state.number = 0),
            is(Level::Starting, "Waiting for the first answers")
        );
        assert_eq!(
            words(|state| state.nodes.iter_mut().for_each(|node| node.usable = false)),
            is(Level::Starting, "Waiting for the first answers")
        );
        assert_eq!(
            words(|state| example::lose(state, "primary")).0,
            Level::Blind
        );
        assert_eq!(
            words(|state| example::lose(state, "standby")),
            is(
                Level::Blind,
                "No replica that could be asked lags; standby cannot be asked"
            )
        );
        assert_eq!(
            words(|state| {
                let risk = example::finding(Cause::UnusedSlot, Severity::Risk, "primary");
                state.diagnosis.findings.push(risk);
            }),
            is(Level::Risk, "No replica lags, but primary: in words")
        );
        assert_eq!(
            words(|state| state.diagnosis.unknown = vec!["primary does not show x".to_owned()]),
            is(
                Level::Blind,
                "Not known whether all replicas keep up: primary does not show x"
            )
        );
        // What only looks like lag is not mentioned.
        assert_eq!(
            words(|state| {
                let note = example::finding(Cause::IdlePrimary, Severity::Note, "standby");
                state.diagnosis.findings.push(note);
            }),
            is(Level::Ok, "No replica lags")
        );
    }

    #[test]
    fn who_lags_is_named_the_worst_first() {
        let (level, text) = words(|state| {
            example::lag(state, 0, 1_400.0);
            let mut found = example::finding(Cause::RecoveryConflict, Severity::Lag, "standby");
            found.names.insert("pid", "123".to_owned());
            state.diagnosis.findings.push(found);
        });
        assert_eq!(level, Level::Lag);
        assert_eq!(
            text,
            "1 of 2 replicas lags: standby 1.4 s — in words (pid 123)"
        );
        // That all commits hang comes first.
        let (_, text) = words(|state| {
            example::lag(state, 0, 1_400.0);
            let found =
                example::finding(Cause::SynchronousStandbyMissing, Severity::Lag, "primary");
            state.diagnosis.findings.push(found);
        });
        assert!(
            text.starts_with("primary: in words. 1 of 2 replicas lags: "),
            "{text}"
        );
        for (bound, lag_ms, lag) in [
            (Bound::LEAST, 1_400.0, "at least 1.4 s"),
            (Bound::MOST, 1_400.0, "at most 1.4 s"),
            (Bound::LEAST, 0.0, "for a time that is not known"),
        ] {
            let (_, text) = words(|state| {
                example::lag(state, 0, lag_ms);
                (state.links[0].behind, state.links[0].bound) = (true, bound);
            });
            assert!(text.contains(&format!("standby {lag} — ")), "{text}");
        }
        let (_, text) = words(|state| {
            example::lag(state, 0, 1_400.0);
            example::lag(state, 1, 61_000.0);
            state.links[1].lag_ms = 0.0;
        });
        assert_eq!(
            text,
            "2 of 2 replicas lag: app up to 61 s in 10 s — the cause is not known yet; \
             standby 1.4 s — the cause is not known yet"
        );
        // A replica that is lost is one all the same.
        let (_, text) = words(|state| {
            example::lag(state, 0, 1_400.0);
            state.links.truncate(1);
        });
        assert!(text.starts_with("1 of 2 replicas lags: standby "), "{text}");
        let (_, text) = words(|state| {
            let link = state.links[0].clone();
            state.links = (0..5)
                .map(|number| LinkState {
                    replica: format!("r{number}"),
                    behind: true,
                    ..link.clone()
                })
                .collect();
        });
        assert!(text.starts_with("5 of 7 replicas lag: r0 "), "{text}");
        assert!(
            text.ends_with("; and 2 more") && !text.contains("r3"),
            "{text}"
        );
    }

    #[test]
    fn a_full_disk_is_told() {
        let folder = |full_ms| Folder {
            node: "primary".to_owned(),
            bytes: 3 << 30,
            growth_bytes_per_s: None,
            limit_bytes: Some(2 << 30),
            max_wal_size_bytes: None,
            full_ms,
        };
        let of = |state: &MonitorState, full_ms| {
            let nodes = vec![folder(full_ms)];
            verdict(
                state,
                &Forecast {
                    nodes,
                    slots: Vec::new(),
                },
            )
        };
        let mut state = example::state();
        for later in [None, Some(1.0)] {
            assert_eq!(of(&state, later).level, Level::Ok);
        }
        let full = of(&state, Some(0.0));
        assert_eq!(full.level, Level::Risk);
        assert_eq!(
            full.words,
            "No replica lags; pg_wal of primary is full: it has 3.0 GB, and --wal-disk says 2.0 GB"
        );
        assert_eq!(full.brief, "No replica lags; pg_wal of primary is full");
        example::lag(&mut state, 0, 1_400.0);
        let full = of(&state, Some(0.0));
        assert!(full.level == Level::Lag && full.words.contains("pg_wal of primary is full"));
    }

    #[test]
    fn the_brief_form_has_no_figures() {
        let mut state = example::state();
        example::lag(&mut state, 0, 1_400.0);
        let before = verdict(&state, &Forecast::default());
        example::lag(&mut state, 0, 99_000.0);
        let after = verdict(&state, &Forecast::default());
        assert_ne!(before.words, after.words);
        assert_eq!(before.brief, after.brief);
    }
}
