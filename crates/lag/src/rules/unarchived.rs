//! The signal of transactions that are committed and not archived yet: a standby that restores all its WAL
//! from an archive cannot have them.

use lockstep_service::words::figures::{bytes, counted, seconds};

use super::server::archiver_failing;
use super::{Cause, Evidence, Rule, Severity, View};

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::NotArchivedYet,
    title: "what {upstream} has written since its last archived segment is not on the standby",
    signal,
    remedies: &[
        "nothing, if {node} may be as late as archive_timeout ({bounded_s} s) of {upstream} and the way through the \
         archive take",
        "on {upstream}: ALTER SYSTEM SET archive_timeout = '60s'; SELECT pg_reload_conf(); (now {unbounded}): a segment \
         is then archived a minute after something was written into it, also if it is not full",
        "let {node} stream besides: primary_conninfo, and a slot for it on {upstream}",
    ],
};

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let archived = view.links.iter().filter(|link| link.is_archived());
    let found = archived.filter_map(|link| {
        let (node, upstream) = (link.replica?, link.upstream);
        let (first, last) = (upstream.samples.first()?, upstream.last()?);
        // That it has not restored what is archived is another cause.
        if link.points.is_empty() || link.is_behind() {
            return None;
        }
        let (seen, own) = (node.last()?.wal.next_xid?, node.last()?.end()?);
        // What was committed before this window, and is visible at its end nowhere but on the primary.
        let missing = first
            .wal
            .next_xid?
            .checked_sub(seen)
            .filter(|number| *number > 0)?;
        let lacks = last.end()?.bytes_since(own) as f64;
        let timeout = upstream.facts.number("archive_timeout").unwrap_or(0.0);
        let severity = match timeout > 0.0 {
            true => Severity::Note,
            false => Severity::Risk,
        };
        let since = upstream.length().as_secs_f64() * 1000.0;
        let mut evidence = Evidence::of(link, 0.0)
            .severity(severity)
            .fact(
                "unarchived_bytes",
                lacks,
                format!(
                    "{} of WAL are on {} and not on {}",
                    bytes(lacks),
                    upstream.name,
                    node.name
                ),
            )
            .fact(
                "missing_transactions",
                missing as f64,
                format!(
                    "with at most {} that ended more than {} ago",
                    counted(missing, "transaction"),
                    seconds(since)
                ),
            );
        if let Some(age) = last
            .archiver
            .archived_age_ms
            .filter(|_| upstream.archives())
        {
            let words = format!("the last segment was archived {} ago", seconds(age));
            evidence = evidence.fact("archived_age_ms", age, words);
        }
        // A segment that is ended sooner is not archived either.
        if archiver_failing(view)
            .iter()
            .any(|it| it.at == upstream.name)
        {
            return Some(evidence);
        }
        Some(match severity {
            Severity::Note => evidence.name("bounded_s", format!("{timeout:.0}")),
            _ => evidence.name("unbounded", "0, which means never"),
        })
    });
    found.collect()
}
