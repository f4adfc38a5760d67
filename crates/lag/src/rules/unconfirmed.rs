//! The signal of a consumer that takes all that it is sent, replies, and confirms nothing: its slot keeps WAL
//! for ever.

use std::collections::BTreeSet;

use lockstep_service::words::figures::bytes;

use super::standing::kept;
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::point::LinkKind;

/// Share of samples in which its walsender has sent all that there is.
const AT_END: f64 = 0.5;

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::ConfirmsNothing,
    title: "the consumer of slot {slot} confirms nothing",
    signal: confirms_nothing,
    remedies: &[
        "let the consumer report what it has stored, as the flush position of its replies: until then its \
         slot keeps all WAL on {upstream}, and it gets all changes again when it connects again",
        "on {upstream}: max_slot_wal_keep_size (now {max_slot_wal_keep_size} MB, -1 is no limit), so that the \
         slot cannot fill the disk",
    ],
};

/// Number of replies in the window, if the consumer was asked nothing and confirms nothing. None otherwise.
pub(super) fn replies(link: &Link<'_>) -> Option<usize> {
    let is_other = link.subscription.is_none() && link.replica_name.is_none();
    if link.kind != LinkKind::Logical || !is_other || link.is_to_relay() || link.is_relayed() {
        return None;
    }
    let (first, last) = (link.upstream.samples.first()?, link.upstream.last()?);
    let slot = link.slot.as_deref()?;
    let confirmed = |sample| crate::sample::Sample::slot(sample, slot)?.confirmed_flush_lsn;
    let sent = link.sender(first)?.sent_lsn?;
    let stands = confirmed(first)? == confirmed(last)? && sent > confirmed(first)?;
    let is_one = link.sender(first)?.pid == link.sender(last)?.pid;
    let samples = link.upstream.samples.iter();
    let replies = samples.filter_map(|sample| link.sender(sample)?.replied_us);
    let replies = replies.collect::<BTreeSet<i64>>().len().saturating_sub(1);
    (stands && is_one && replies > 0 && link.at_end_share() >= AT_END).then_some(replies)
}

pub(super) fn confirms_nothing(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in &view.links {
        let Some(replies) = replies(link) else {
            continue;
        };
        let last = link.upstream.last();
        let slot = last.zip(link.slot.as_deref());
        let kept = slot.and_then(|(last, slot)| Some(kept(last, last.slot(slot)?)));
        let kept = kept.unwrap_or(0.0);
        let words = format!(
            "it has all that it was sent, has replied {replies} times, and has confirmed nothing"
        );
        let evidence = Evidence::of(link, 1.0)
            .fact("replies", replies as f64, words)
            .fact(
                "retained_bytes",
                kept,
                format!("its slot keeps {} of WAL", bytes(kept)),
            );
        found.push(evidence);
    }
    found
}
