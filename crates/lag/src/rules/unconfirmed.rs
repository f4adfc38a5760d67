//! The signal of a consumer that takes all that it is sent, replies, and confirms nothing: its slot keeps WAL
//! for ever.

use lockstep_service::words::figures::{bytes, counted, seconds};

use super::standing::kept;
use super::{Cause, Evidence, Rule, View};
use crate::link::SilentReader;

pub(super) const RULE: Rule = Rule {
    cause: Cause::ConfirmsNothing,
    title: "the consumer of slot {slot} confirms nothing",
    signal: confirms_nothing,
    remedies: &[
        "let the consumer report what it has stored, as the flush position of its replies: until then its \
         slot keeps all WAL on {upstream}, and it gets all changes again when it connects again",
        "on {upstream}: set max_slot_wal_keep_size (now {max_slot_wal_keep_size}), so that the \
         slot cannot fill the disk",
    ],
};

pub(super) fn confirms_nothing(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in &view.links {
        let Some(SilentReader { replies, since_ms }) = link.silent_reader() else {
            continue;
        };
        let last = link.upstream.last();
        let slot = last.zip(link.slot.as_deref());
        let kept = slot.and_then(|(last, slot)| Some(kept(last, last.slot(slot)?)));
        let kept = kept.unwrap_or(0.0);
        let words = format!(
            "it has all that it was sent, has replied {}, and has confirmed nothing for {}",
            counted(replies as u64, "time"),
            seconds(since_ms)
        );
        let evidence = Evidence::of(link, 1.0)
            .setting(link.upstream, "max_slot_wal_keep_size")
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
