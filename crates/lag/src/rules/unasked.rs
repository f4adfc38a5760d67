//! The signal of a standby that is late and gets its WAL from a server that was not asked: what holds it up
//! is there, or between, and no server that was asked is to blame.

use lockstep_service::words::figures::{bytes, percent};

use super::halted::receiver_halts;
use super::receive::streams;
use super::{Cause, Evidence, Rule, View};
use crate::point::Stage;

/// The part of the lag that the stages before the standby's disk must hold.
const MOSTLY: f64 = 0.5;

pub(super) const RULE: Rule = Rule {
    cause: Cause::UpstreamNotAsked,
    title: "it gets its WAL from {upstream}, which was not asked",
    signal,
    remedies: &[
        "let {away} answer: {node} gets its WAL from there, and what holds it up is there or between",
        "name the server at {unnamed} here, so that it is asked: {node} gets its WAL from there",
    ],
};

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let late = view.links.iter().filter(|link| link.is_behind());
    // A walreceiver that is stopped is another cause.
    let late = late.filter(|link| !receiver_halts(link));
    let found = late.filter_map(|link| {
        let (unasked, node) = link.unasked.as_ref().zip(link.replica)?;
        let streaming = node.share(|sample| streams(node, sample));
        let stages = [Stage::Send, Stage::Receive].map(|stage| link.stage_share(stage));
        let share = streaming * stages.iter().sum::<f64>();
        if share < MOSTLY {
            return None;
        }
        let behind = link.last_bytes() as f64;
        let evidence = Evidence::of(link, share)
            .fact(
                "streaming_share",
                streaming,
                format!(
                    "it streamed from {} in {} of the samples",
                    unasked.words(),
                    percent(streaming)
                ),
            )
            .fact(
                "behind_bytes",
                behind,
                format!(
                    "it lacks {} of what {} has",
                    bytes(behind),
                    link.upstream.name
                ),
            );
        Some(match &unasked.node {
            Some(away) => evidence.name("away", away),
            None => evidence.name("unnamed", &unasked.address),
        })
    });
    found.collect()
}
