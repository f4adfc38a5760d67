//! Whether this server still watches the nodes. Lag does not make it unhealthy: metrics report
//! that.

use std::sync::Arc;
use std::time::Duration;

use lockstep_lag::Role;
use lockstep_lag::monitor::MonitorState;

/// How old the newest state, or the primary's newest sample, may be, in addition to three
/// intervals.
const PATIENCE: Duration = Duration::from_secs(12);

/// The answer of `/healthz`: true if the primary of each cluster answers and its samples are recent, and JSON
/// that says what is wrong, with the names of clusters if there are several.
pub fn health(states: &[Arc<MonitorState>], now_ms: i64) -> (bool, String) {
    let of_one = |state: &Arc<MonitorState>| {
        let lead = match &state.cluster {
            Some(name) if states.len() > 1 => format!("{name}: "),
            _ => String::new(),
        };
        let reasons = reasons(state, now_ms).into_iter();
        reasons.map(move |why| format!("{lead}{why}"))
    };
    let reasons: Vec<String> = states.iter().flat_map(of_one).collect();
    let status = match reasons.is_empty() {
        true => "ok",
        false => "not watching",
    };
    let body = serde_json::json!({ "status": status, "reasons": reasons });
    (reasons.is_empty(), format!("{body}\n"))
}

fn reasons(state: &MonitorState, now_ms: i64) -> Vec<String> {
    if state.number == 0 {
        return vec!["nothing was asked yet".to_owned()];
    }
    let limit_ms = PATIENCE.as_secs_f64() * 1000.0 + 3000.0 * state.every_s;
    let since_ms = now_ms.saturating_sub(state.at_ms).max(0) as f64;
    let mut reasons = Vec::new();
    if since_ms > limit_ms {
        reasons.push(format!(
            "the newest diagnosis is {:.0} s old",
            since_ms / 1000.0
        ));
    }
    let mut primaries = state.nodes.iter().filter(|node| node.role == Role::Primary);
    if primaries.clone().next().is_none() {
        let why = state.diagnosis.unknown.first().map(String::as_str);
        let why = why.unwrap_or("none is named");
        reasons.push(format!("there is no primary: {why}"));
    }
    for node in &mut primaries {
        let age_ms = node.sample_age_ms.map(|age| age + since_ms);
        match (node.usable, age_ms) {
            (true, Some(age_ms)) if age_ms > limit_ms => reasons.push(format!(
                "{} has not answered for {:.0} s",
                node.name,
                age_ms / 1000.0
            )),
            (true, _) => {}
            (false, _) if node.troubles.is_empty() => {
                reasons.push(format!("{} has not answered yet", node.name));
            }
            (false, _) => {
                reasons.push(format!("{}: {}", node.name, node.troubles.join("; ")));
            }
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{self, AT_MS};

    fn why(change: impl FnOnce(&mut MonitorState), later_ms: i64) -> String {
        let mut state = example::state();
        change(&mut state);
        let (healthy, body) = health(&[Arc::new(state)], AT_MS + later_ms);
        assert_eq!(healthy, body.contains("\"reasons\":[]"), "{body}");
        assert_eq!(healthy, body.contains("\"ok\""), "{body}");
        body
    }

    #[test]
    fn only_what_stops_the_watching_is_unhealthy() {
        assert!(why(|_| {}, 0).contains("\"ok\""));
        assert!(why(|_| {}, -60_000).contains("\"ok\""));
        assert!(why(|state| example::lag(state, 0, 1e9), 0).contains("\"ok\""));
        assert!(why(|state| example::lose(state, "standby"), 0).contains("\"ok\""));
        assert!(why(|state| state.number = 0, 0).contains("nothing was asked"));
        assert!(why(|state| example::lose(state, "primary"), 0).contains("unreachable: no"));
        assert!(why(|state| state.nodes[0].usable = false, 0).contains("not answered yet"));
        let none = |state: &mut MonitorState| {
            state.nodes.remove(0);
            state.diagnosis.unknown.push("Patroni is deaf".to_owned());
        };
        assert!(why(none, 0).contains("there is no primary: Patroni is deaf"));
        assert!(why(|_| {}, 20_000).contains("20 s old"));
        let hangs = |state: &mut MonitorState| state.nodes[0].sample_age_ms = Some(16_000.0);
        assert!(why(hangs, 0).contains("not answered for 16 s"));
        let rarely = |state: &mut MonitorState| {
            state.every_s = 60.0;
            state.nodes[0].sample_age_ms = Some(60_000.0);
        };
        assert!(why(rarely, 60_000).contains("\"ok\""));
    }

    #[test]
    fn the_cluster_that_is_not_watched_is_named() {
        let of = |name: &str, lost: bool| {
            let mut state = example::state();
            state.cluster = Some(name.to_owned());
            if lost {
                example::lose(&mut state, "primary");
            }
            Arc::new(state)
        };
        let (healthy, body) = health(&[of("shop", false), of("users", true)], AT_MS);
        assert!(
            !healthy && body.contains("\"users: primary: unreachable: no\""),
            "{body}"
        );
        assert!(!body.contains("shop"), "{body}");
        assert!(health(&[of("shop", false)], AT_MS).0);
    }
}
