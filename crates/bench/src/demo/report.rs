//! The demo's report: one HTML file with everything in it.

use super::{Findings, statistics_lines, table};
use crate::plot::escape;
use crate::plot::lines::{self, Panel};

/// Style of the demos' reports.
pub const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;color:#111827;background:#fff;\
max-width:900px;margin:2rem auto;padding:0 1rem}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}\
table{border-collapse:collapse}th,td{padding:.35rem .9rem;border-bottom:1px solid #e5e7eb;text-align:right}\
th:first-child,td:first-child{text-align:left}td.text{text-align:left;font-size:13px}\
svg{max-width:100%;height:auto}footer{margin-top:2rem;color:#6b7280;font-size:13px}";

/// The whole file.
pub fn html(findings: &Findings, panels: &[Panel]) -> String {
    let title = "Lockstep demo: replay lag under readers";
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>{}</p>\n{}\n{}\n\
         {}\n<footer>{}</footer>\n</body></html>\n",
        escape(&introduction(findings)),
        html_table(&table(findings)),
        lines::svg(
            &format!("Standbys one after the other: {}", findings.order),
            panels
        ),
        statistics(findings),
        escape(&format!(
            "{}. PostgreSQL {}. {}. Lag: from flush on the primary until visible on the standby, \
             sampled on both ends every 2 ms where the server answers in time.",
            findings.date, findings.postgresql, findings.machine
        )),
    )
}

fn introduction(findings: &Findings) -> String {
    let seconds = findings.rows.first().map_or(0.0, |row| row.trial.seconds);
    format!(
        "One primary with {} writers (pgbench, scale {}); {} readers on a standby, each reading {}. \
         Two standbys, {}, each from fresh data on the same cores, measured for {seconds:.0} s after \
         {} s under full load.",
        findings.writers,
        findings.scale,
        findings.readers,
        findings.read_query,
        findings.order,
        findings.warmup_s
    )
}

/// A table; the first row is its head.
pub fn html_table(rows: &[Vec<String>]) -> String {
    let rows: Vec<String> = rows
        .iter()
        .enumerate()
        .map(|(index, cells)| {
            let tag = if index == 0 { "th" } else { "td" };
            let cells: Vec<String> = cells
                .iter()
                .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)))
                .collect();
            format!("<tr>{}</tr>", cells.concat())
        })
        .collect();
    format!("<table>{}</table>", rows.concat())
}

/// The extension's statistics, if a standby had it.
fn statistics(findings: &Findings) -> String {
    if findings.statistics.is_empty() {
        return String::new();
    }
    let rows: Vec<String> = statistics_lines(findings)
        .iter()
        .map(|(view, columns)| {
            format!(
                "<tr><td>{}</td><td class=\"text\">{}</td></tr>",
                escape(view),
                escape(columns)
            )
        })
        .collect();
    format!(
        "<h2>What the extension says</h2>\n<table>{}</table>",
        rows.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_needs_nothing_from_outside_and_escapes_what_it_shows() {
        let findings = Findings {
            name: "demo",
            order: "stock first, then Lockstep",
            command: String::new(),
            commit: String::new(),
            postgresql: "15".to_owned(),
            machine: "a <machine>".to_owned(),
            date: "today".to_owned(),
            writers: 1,
            readers: 2,
            read_query: "rows",
            scale: 1,
            warmup_s: 1,
            rows: vec![],
            statistics: serde_json::from_str(r#"{"v":[{"a":null,"b":"x<y","c":3}]}"#).unwrap(),
            report: String::new(),
            kept: vec![],
        };
        let html = html(&findings, &[]);
        assert!(html.contains("a &lt;machine&gt;"));
        assert!(html.contains("b x&lt;y, c 3") && !html.contains("a null"));
        assert!(!html.contains("src=") && !html.contains("href="));
        assert!(html.contains("<svg") && html.trim_end().ends_with("</html>"));
    }
}
