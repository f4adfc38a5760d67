//! A diagnosis as text of 80 columns.

use std::fmt::Write;

use lockstep_lag::commit_probe::ROWS;
use lockstep_lag::diagnosis::checks::{Answer, CHECKS};
use lockstep_lag::diagnosis::{Finding, LinkReport, NodeReport};
use lockstep_lag::point::TOLD_LATE;
use lockstep_lag::replica::{Doing, ReplicaReport};
use lockstep_lag::rules::Severity;
use lockstep_lag::{Diagnosis, Role, failover};
use lockstep_service::words::figures::{bytes, counted, percent, seconds};
use lockstep_service::words::lines::{cut_name, table, wrapped};

use super::Probed;

/// Why a replica is behind, if no rule says it.
pub const UNKNOWN: &str = "behind, for no reason that is known here";

/// Columns of the output.
const WIDTH: usize = 80;

pub fn report(diagnosis: &Diagnosis, watched: u32) -> String {
    let mut text = String::new();
    let nodes = counted(diagnosis.nodes.len() as u64, "node");
    let _ = writeln!(text, "Watched {nodes} for {watched} s.\n");
    for node in &diagnosis.nodes {
        node_lines(&mut text, node);
    }
    let rows = links(diagnosis);
    if rows.len() > 1 {
        text.push('\n');
        for line in rows {
            let _ = writeln!(text, "{line}");
        }
        for line in diagnosis.links.iter().filter_map(more_of) {
            wrap(&mut text, "- ", &line);
        }
        if diagnosis.links.iter().any(|link| link.bound.lag_is_most) {
            wrap(&mut text, "≤ is ", TOLD_LATE);
        }
    }
    text.push('\n');
    wrap(&mut text, "", &verdict(diagnosis));
    for unseen in &diagnosis.unknown {
        wrap(&mut text, "Not known: ", &format!("{unseen}."));
    }
    for (link, why) in diagnosis.lagging() {
        let words = match why {
            Some(found) => format!("{}: {}", link.replica, found.title),
            None => format!("{}: {UNKNOWN}; watch for longer (--seconds)", link.replica),
        };
        wrap(&mut text, "- ", &words);
    }
    let findings = diagnosis.findings.iter();
    for (index, finding) in findings.filter(|found| !found.is_aside()).enumerate() {
        text.push('\n');
        for line in finding_lines(&format!("{}. ", index + 1), finding, WIDTH) {
            let _ = writeln!(text, "{line}");
        }
    }
    let asides: Vec<&str> = asides(diagnosis).map(|found| found.at.as_str()).collect();
    if !asides.is_empty() {
        let _ = writeln!(
            text,
            "\nCommits of {} wait for no flush there (--explain).",
            some(&asides)
        );
    }
    text
}

/// What is worth a line and no more.
fn asides(diagnosis: &Diagnosis) -> impl Iterator<Item = &Finding> {
    diagnosis.findings.iter().filter(|found| found.is_aside())
}

/// Every check, and what has come of it.
pub fn explained(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in asides(diagnosis) {
        text.push('\n');
        for line in finding_lines("Note: ", finding, WIDTH) {
            let _ = writeln!(text, "{line}");
        }
    }
    text.push_str("\nChecks:\n");
    for check in CHECKS {
        text.push('\n');
        wrap(&mut text, &format!("{}: ", check.id), check.proves);
        let asked = format!("{} ({})", check.asks, check.who);
        wrap(&mut text, "  asked: ", &asked);
        let done: Vec<_> = diagnosis
            .checks
            .iter()
            .filter(|one| one.check == check.id)
            .collect();
        if done.is_empty() {
            text.push_str("  - not done: there is nothing to look at\n");
        }
        for one in done {
            let lead = match one.answer {
                Answer::Well => "  + ",
                Answer::Wrong => "  x ",
                Answer::NotKnown => "  ? ",
            };
            wrap(&mut text, lead, &format!("{}: {}", one.at, one.words));
        }
    }
    text
}

/// Who would be promoted if the primary failed now, and what would be lost.
pub fn failovers(diagnosis: &Diagnosis) -> String {
    let mut text = String::from("\n");
    let verdict = failover::verdict(&diagnosis.failover);
    wrap(&mut text, "", &verdict);
    for (index, candidate) in diagnosis.failover.iter().enumerate() {
        let mut words = vec![match candidate.missing_bytes {
            Some(0) => "has received all WAL".to_owned(),
            Some(missing) => format!("{} of WAL would be lost", bytes(missing as f64)),
            None => "what would be lost is not known".to_owned(),
        }];
        if let Some(most @ 1..) = candidate.most_transactions {
            let of = counted(most, "transaction");
            words.push(format!("{of} at most are not visible there"));
        }
        if candidate.unreplayed_bytes > 0 {
            let rest = bytes(candidate.unreplayed_bytes as f64);
            words.push(format!("{rest} would be replayed first"));
        }
        if let Some(age) = candidate.last_commit_age_ms {
            words.push(format!("its last commit is from {} ago", seconds(age)));
        }
        if let Some(lacks) = &candidate.lacks {
            let of = bytes(lacks.bytes as f64);
            words.push(format!("{} has {of} more", lacks.standby));
        }
        if let Some(upstream) = &candidate.follows {
            words.push(format!("streams from {upstream}"));
        }
        if let Some(state) = &candidate.sync_state {
            words.push(format!("sync_state is {state}"));
        }
        if let Some(timeline) = candidate.timeline {
            words.push(format!("timeline {timeline}"));
        }
        let line = format!("{}: {}", candidate.standby, words.join("; "));
        wrap(&mut text, &format!("{}. ", index + 1), &line);
        for against in &candidate.against {
            wrap(&mut text, "   against it: ", against);
        }
        for logical in [true, false] {
            let slots = candidate.missing_slots.iter();
            let slots: Vec<&str> = slots
                .filter(|it| it.logical == logical)
                .map(|it| it.slot.as_str())
                .collect();
            let lead = match logical {
                true => {
                    "   logical slots that are not there, so that their consumers lose changes: "
                }
                false => "   slots of standbys that are not there: ",
            };
            if !slots.is_empty() {
                wrap(
                    &mut text,
                    "   ",
                    &format!("{}{}", lead.trim_start(), some(&slots)),
                );
            }
        }
        for setting in &candidate.settings {
            wrap(&mut text, "   ", setting);
        }
    }
    text
}

/// The measurements of `--probe`.
pub fn probed(probed: &Probed) -> String {
    let commits = &probed.commits;
    let mut text = format!(
        "\nTime to commit {ROWS} rows, ms, in the middle of {} commits:\n\n",
        commits.commits
    );
    let mut rows = vec![
        ["replica", "kind", "remote_write", "on", "remote_apply", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    for row in &commits.rows {
        let mut cells = vec![cut_name(&row.replica, 14), row.kind.name().to_owned()];
        cells.extend(row.cells.iter().map(|cell| match cell.median_ms {
            Some(ms) => format!("{ms:.1}"),
            None => "too long".to_owned(),
        }));
        let waited = row.cells.iter().any(|cell| cell.waited);
        cells.push(if waited { "synchronous" } else { "watched" }.to_owned());
        rows.push(cells);
    }
    for line in table(&rows) {
        let _ = writeln!(text, "{line}");
    }
    for row in &commits.rows {
        let _ = writeln!(text, "\n{}:", row.replica);
        for cell in &row.cells {
            wrap(
                &mut text,
                &format!("  {:<13}", cell.level.name()),
                &cell.explanation,
            );
        }
    }
    if !probed.visible_ms.is_empty() {
        text.push('\n');
    }
    for (standby, ms) in &probed.visible_ms {
        let words = match ms {
            Some(ms) => format!("{ms:.1} ms after its commit on the primary"),
            None => "not within 10 s".to_owned(),
        };
        wrap(&mut text, "", &format!("Visible on {standby}: {words}."));
    }
    for missing in &commits.missing {
        wrap(&mut text, "Not measured: ", missing);
    }
    text
}

fn node_lines(text: &mut String, node: &NodeReport) {
    let address = &node.address;
    let version = match (node.version, &node.relay_version) {
        (_, Some(relay)) => format!("Lockstep {relay}"),
        (0, None) => String::new(),
        (number, None) => format!("PostgreSQL {}.{}", number / 10_000, number % 100),
    };
    let _ = writeln!(text, "{:<12} {version:<17} {address}", node.name);
    for trouble in &node.troubles {
        wrap(text, "  ! ", &trouble.to_string());
    }
}

fn lag(link: &LinkReport) -> String {
    let marked = format!("{} {}", link.bound.sign(), seconds(link.lag_ms));
    marked.trim_start().to_owned()
}

/// What a row of the table has no room for.
fn more_of(link: &LinkReport) -> Option<String> {
    let replica = link.lockstep_replica.as_ref();
    let mut words: Vec<String> = replica.map(ReplicaReport::words).into_iter().collect();
    words.extend(
        link.initial_copy
            .map(|copy| format!("its initial copy runs: {}", copy.words())),
    );
    if let Some(all) = link.behind_primary.filter(|all| all.behind) {
        let sign = all.sign();
        let (time, size) = (seconds(all.lag_ms), bytes(all.lag_bytes));
        let most = all.lag_most_ms.map_or(String::new(), |most| {
            format!(" (at most {})", seconds(most))
        });
        let time = format!("{sign} {time}{most}");
        words.push(format!(
            "from end to end {} and {size} behind the primary",
            time.trim_start()
        ));
    }
    if link.behind && link.bound.lag_is_least {
        let most = link.lag_most_ms.map_or(String::new(), |most| {
            format!(", and is at most {}", seconds(most))
        });
        words.push(format!("the lag began before this watch{most}"));
    }
    (!words.is_empty()).then(|| format!("{}: {}", link.replica, words.join("; ")))
}

/// A line for each replica, and one for each that cannot be asked.
fn links(diagnosis: &Diagnosis) -> Vec<String> {
    let links = &diagnosis.links;
    let mut rows = vec![
        [
            "replica",
            "from",
            "kind",
            "lag",
            "at most",
            "behind",
            "mostly in",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    rows.extend(links.iter().map(|link| {
        let most = link.stage_bytes.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let stage = most.filter(|(_, bytes)| link.behind && **bytes >= 1.0);
        // What a source has that is followed no longer is no lag.
        let doing = link.lockstep_replica.as_ref().and_then(|it| it.doing);
        let of_lag = |words: String| match doing {
            Some(Doing::Promoted) => "-".to_owned(),
            _ => words,
        };
        vec![
            cut_name(&link.replica, 14),
            cut_name(link.streams_from.as_ref().unwrap_or(&link.upstream), 10),
            link.kind_words().to_owned(),
            of_lag(lag(link)),
            of_lag(seconds(link.lag_max_ms)),
            of_lag(bytes(link.lag_bytes)),
            stage.map_or("-", |(name, _)| name).to_owned(),
        ]
    }));
    let lost = diagnosis.nodes.iter().filter(|node| {
        let has_row = links.iter().any(|link| link.replica == node.name);
        !node.usable && !has_row && node.role != Role::Primary
    });
    rows.extend(lost.map(|node| {
        let role = node.role.to_string();
        let cells = [
            &cut_name(&node.name, 14),
            "-",
            &role,
            "not known",
            "-",
            "-",
            "-",
        ];
        cells.map(str::to_owned).to_vec()
    }));
    table(&rows)
}

/// Most names of a list that are shown.
const MOST_NAMED: usize = 3;

/// Names one after another, and how many there are besides.
pub fn some(names: &[&str]) -> String {
    some_of(names, ", ")
}

/// Texts one after another, and how many there are besides.
pub fn some_of(names: &[&str], between: &str) -> String {
    let named = names.iter().take(MOST_NAMED).copied();
    let named = named.collect::<Vec<_>>().join(between);
    match names.len().saturating_sub(MOST_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn verdict(diagnosis: &Diagnosis) -> String {
    let behind: Vec<&str> = diagnosis
        .links
        .iter()
        .filter(|link| link.behind)
        .map(|link| link.replica.as_str())
        .collect();
    if diagnosis.healthy {
        let number = diagnosis.checks.len();
        return format!(
            "Healthy: no replica lags; all of {number} checks came out well (--explain)."
        );
    }
    match () {
        () if !behind.is_empty() => "Lag found:".to_owned(),
        () if diagnosis.has_lag() => "Lag found, though positions do not show it:".to_owned(),
        () if diagnosis.has_risk() => "No replica is seen to be behind now, but:".to_owned(),
        () => "No replica that could be looked at lags.".to_owned(),
    }
}

/// A finding with its evidence and remedies, in lines of at most `columns`; the first begins with `lead`.
pub fn finding_lines(lead: &str, finding: &Finding, columns: usize) -> Vec<String> {
    let severity = match finding.severity {
        Severity::Lag => format!("explains {}", percent(finding.explains)),
        Severity::Risk => "risk".to_owned(),
        Severity::Note => "no lag".to_owned(),
    };
    let title = format!("{}: {} ({severity})", finding.at, finding.title);
    let mut lines = wrapped(lead, &title, columns);
    let mut add = |lead: &str, words: &str| lines.extend(wrapped(lead, words, columns));
    for fact in &finding.evidence {
        add("   - ", &fact.words);
    }
    if let Some(query) = finding.names.get("query") {
        add("     query: ", query);
    }
    for (index, remedy) in finding.remedies.iter().enumerate() {
        let lead = match index {
            0 => "   Do: ",
            _ => "   Or: ",
        };
        add(lead, remedy);
    }
    lines
}

/// Writes words in lines of at most [`WIDTH`], with `lead` before the first.
fn wrap(text: &mut String, lead: &str, words: &str) {
    for line in wrapped(lead, words, WIDTH) {
        let _ = writeln!(text, "{line}");
    }
}
