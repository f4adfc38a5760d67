//! The report of the pool's demo: one HTML file with everything in it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::stage::Act;
use super::{BOUND, READERS, WRITERS, table};
use crate::demo::report::{STYLE, html_table};
use crate::plot::escape;
use crate::plot::lines::{self, Axis, Line, Panel};
use crate::pool::ledger::{Ledger, Read};

/// Colours of the primary and of each node.
const COLORS: [&str; 5] = ["#6b7280", "#0f6cbd", "#15803d", "#a21caf", "#c2410c"];

/// What the demo found.
pub struct Findings {
    pub commit: String,
    pub postgresql: String,
    pub machine: String,
    pub date: String,
    pub acts: Vec<Act>,
}

/// What clients saw over time.
pub fn panels(
    reads: &[Read],
    failures: &[Duration],
    ledger: &Ledger,
    names: &[(u16, String)],
) -> Vec<Panel> {
    let second = |at: Duration| at.as_secs();
    let end = reads
        .iter()
        .map(|read| second(read.begun))
        .max()
        .unwrap_or(0);
    let mut oldest: BTreeMap<u64, f64> = BTreeMap::new();
    let mut counts: BTreeMap<(u16, u64), f64> = BTreeMap::new();
    for read in reads {
        let at = second(read.begun);
        let age = ledger.age(&read.seen, read.begun).as_secs_f64() * 1000.0;
        let most = oldest.entry(at).or_default();
        *most = most.max(age);
        *counts.entry((read.port, at)).or_default() += 1.0;
    }
    let mut failed: BTreeMap<u64, f64> = BTreeMap::new();
    for at in failures {
        *failed.entry(second(*at)).or_default() += 1.0;
    }
    let line = |name: &str, color, points| Line {
        name: name.to_owned(),
        color,
        points,
        band: vec![],
    };
    // The last second is not whole.
    let over = |value: &dyn Fn(u64) -> f64| (0..end).map(|at| (at as f64, value(at))).collect();
    let of = |map: &BTreeMap<u64, f64>, at: u64| map.get(&at).copied().unwrap_or(0.0);
    let nodes = names.iter().zip(COLORS).map(|((port, name), color)| {
        let value = |at: u64| counts.get(&(*port, at)).copied().unwrap_or(0.0);
        line(name, color, over(&value))
    });
    let panel = |title: &str, axis, lines| Panel {
        title: title.to_owned(),
        axis,
        lines,
    };
    vec![
        panel(
            "Oldest data that a new session saw, in each second",
            Axis::LogMs,
            vec![line("oldest data", "#111827", over(&|at| of(&oldest, at)))],
        ),
        panel(
            "New sessions a second, by node",
            Axis::Count,
            nodes.collect(),
        ),
        panel(
            "Failed reads a second",
            Axis::Count,
            vec![line("failed", "#dc2626", over(&|at| of(&failed, at)))],
        ),
    ]
}

/// The whole file.
pub fn html(findings: &Findings, panels: &[Panel]) -> String {
    let title = "Lockstep demo: a pool of read nodes";
    let begins: Vec<String> = (findings.acts.iter())
        .map(|act| format!("{} from second {:.0}", act.title, act.from.as_secs_f64()))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>{}</p>\n{}\n<p>{}</p>\n{}\n\
         <footer>{}</footer>\n</body></html>\n",
        escape(&format!(
            "A primary with {WRITERS} writers and three standbys, each with an agent, behind HAProxy. {READERS} \
             readers open a new session for each read. The pool's bound is {BOUND}: new sessions go to nodes \
             whose data is no older."
        )),
        html_table(&table(&findings.acts)),
        escape(&format!("{}.", begins.join("; "))),
        lines::svg("What clients saw", panels),
        escape(&format!(
            "{}. Commit {}. PostgreSQL {}. {}. Data is as old as the oldest commit that a read did not see, from \
             when the writer was told of it until the session was asked for.",
            findings.date, findings.commit, findings.postgresql, findings.machine
        )),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_needs_nothing_from_outside_and_escapes_what_it_shows() {
        let ledger = Ledger::new(1);
        let read = |second: u64| Read {
            begun: Duration::from_secs(second),
            asked: Duration::from_secs(second),
            seen: vec![0],
            is_standby: true,
            port: 7,
        };
        let names = [(7, "a <node>".to_owned())];
        let panels = panels(
            &[read(1), read(2)],
            &[Duration::from_secs(1)],
            &ledger,
            &names,
        );
        assert_eq!(panels[1].lines[0].points, [(0.0, 0.0), (1.0, 1.0)]);
        assert_eq!(panels[2].lines[0].points[1], (1.0, 1.0));
        let findings = Findings {
            commit: String::new(),
            postgresql: "15".to_owned(),
            machine: "a <machine>".to_owned(),
            date: "today".to_owned(),
            acts: vec![],
        };
        let html = html(&findings, &panels);
        assert!(html.contains("a &lt;machine&gt;") && html.contains("a &lt;node&gt;"));
        assert!(!html.contains("src=") && !html.contains("href="));
        assert!(html.contains("<svg") && html.trim_end().ends_with("</html>"));
    }
}
