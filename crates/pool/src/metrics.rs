//! What an agent tells Prometheus. Without a login only state and lag.

use lockstep_service::exposition::{Exposition, Family, NO_LABELS, Value};

use crate::agent::Detail;
use crate::judge::Verdict;

/// States, for one series each.
const STATES: [&str; 4] = ["in", "late", "out", "draining"];

const OPEN: &[Family<Verdict>] = &[
    Family::new(
        "staleness_seconds",
        "The data that the node shows is no older; missing before the node has shown anything.",
        |verdict| verdict.staleness.map(|age| age.as_secs_f64()).into(),
    ),
    Family::new(
        "staleness_known",
        "0 if the primary has not answered for longer than the bound, so that the staleness only says for how \
         long nobody has known more.",
        |verdict| verdict.is_known.into(),
    ),
    Family::new(
        "received_staleness_seconds",
        "What the node has received is no older.",
        |verdict| verdict.received.map(|age| age.as_secs_f64()).into(),
    ),
    Family::new(
        "lag_bytes",
        "WAL that the primary had when it last answered, and that the node does not show.",
        |verdict| verdict.lag_bytes.into(),
    ),
    Family::new(
        "share_percent",
        "The node's share of new sessions, if it is in.",
        |verdict| u64::from(verdict.share).into(),
    ),
];

const WITH_LOGIN: &[Family<(Verdict, Detail)>] = &[
    Family::new(
        "sessions",
        "Sessions of clients on the node.",
        |(verdict, _)| verdict.load.map(|load| u64::from(load.sessions)).into(),
    ),
    Family::new(
        "primary_answers_total",
        "Answers of the primary.",
        |(_, detail)| detail.primary_answers.into(),
    ),
    Family::new(
        "node_answers_total",
        "Answers of the node.",
        |(_, detail)| detail.node_answers.into(),
    ),
    Family::new(
        "primary_failures_total",
        "Sessions to the primary that failed.",
        |(_, detail)| detail.primary_failures.into(),
    ),
    Family::new(
        "node_failures_total",
        "Sessions to the node that failed.",
        |(_, detail)| detail.node_failures.into(),
    ),
    Family::new(
        "sessions_ended_total",
        "Idle sessions that were ended because they were older than --max-session-age.",
        |(_, detail)| detail.sessions_ended.into(),
    ),
    Family::new(
        "state_changes_total",
        "Changes between in, late, out and draining.",
        |(_, detail)| detail.changes.into(),
    ),
];

/// All metrics; those that need a login if there was one.
pub fn render(known: &(Verdict, Detail), has_login: bool) -> String {
    let (verdict, _) = known;
    let mut text = Exposition::new("lockstep_pool_");
    let one = |state| {
        (
            [("state", state)],
            Value::from(verdict.state.name() == state),
        )
    };
    text.metric("state", "1 for the node's state.", STATES.map(one));
    text.families(OPEN, std::iter::once((NO_LABELS, verdict)));
    if has_login {
        text.families(WITH_LOGIN, std::iter::once((NO_LABELS, known)));
    }
    text.into_text()
}
