//! Signals of standbys that get no WAL, by what their settings and their upstream say.

use std::cmp::Ordering;

use lockstep_service::words::figures::{bytes, percent, seconds};
use lockstep_wire::{Lsn, Timeline};

use super::receive::{not_streaming_links, streams};
use super::refused;
use super::replay::{standbys, startup_share, unreplayed};
use super::{Cause, Evidence, Rule, Severity, View};
use crate::figures::ratio;
use crate::link::{Link, Unasked};
use crate::sample::Sample;
use crate::source::Source;
use crate::states::SlotType;
use crate::window::NodeWindow;

/// Share of samples from which a standby that asks for more WAL gets none.
const MOSTLY: f64 = 0.5;

/// The rule of WAL that its upstream has removed.
pub(super) const REMOVED: Rule = Rule {
    cause: Cause::WalRemoved,
    title: "{upstream} has removed WAL that the standby needs",
    signal: wal_removed,
    remedies: &[
        "on {node}: ALTER SYSTEM SET restore_command = '...'; SELECT pg_reload_conf(); with a command for \
            the \
         archive that has it, if there is one",
        "build {node} anew (pg_basebackup), with a slot, so that {upstream} keeps what it needs",
    ],
};

/// The rule of an upstream at another address.
pub(super) const ELSEWHERE: Rule = Rule {
    cause: Cause::UpstreamElsewhere,
    title: "primary_conninfo leads to {address}",
    signal: elsewhere,
    remedies: &[
        "let {away} answer, or start it: {node} is to follow that one, and goes on by itself",
        "name the server at {unnamed} here, if there is one: it is then asked, and {node} stays where it is",
        "on {upstream}: SELECT pg_create_physical_replication_slot('{absent_slot}'); then on {node}: ALTER \
         SYSTEM SET primary_conninfo = '{new_conninfo}'; SELECT pg_reload_conf(); if it is to follow \
         {upstream}, \
         and reaches it at that address",
        "on {node}: ALTER SYSTEM SET primary_slot_name = ''; ALTER SYSTEM SET primary_conninfo = \
         '{new_conninfo}'; SELECT pg_reload_conf(); if {upstream} is not to keep WAL for it",
        "on {node}: ALTER SYSTEM SET primary_conninfo = '{right_conninfo}'; SELECT pg_reload_conf(); if it \
            is \
         to follow {upstream}, and reaches it at that address",
        "on {node}: correct host and port in primary_conninfo, and reload; its log says what {address} \
         answers",
    ],
};

/// The rule of a standby that nothing is to come to.
pub(super) const NOWHERE: Rule = Rule {
    cause: Cause::NoUpstream,
    title: "the standby has no upstream: primary_conninfo and restore_command are empty",
    signal: nowhere,
    remedies: &[
        "on {node}: ALTER SYSTEM SET primary_conninfo = '...'; SELECT pg_reload_conf(); with host and port of \
         {upstream}, and a role with REPLICATION: it then streams by itself",
    ],
};

/// The rule of a `restore_command` that gets nothing.
pub(super) const FAILS: Rule = Rule {
    cause: Cause::RestoreFails,
    title: "restore_command does not get WAL that is archived",
    signal: restore_fails,
    remedies: &[
        "on {discarding}: set an archive_command (or archive_library) that stores segments: the one that is there \
         names none (%p), so each is removed as if it were archived. {node} is then built anew, or streams, if it \
         needs one that was removed",
        "look at the log of {node} for what restore_command says, and run it by hand as the server's \
         user: the archive, a path, a right, a password",
        "on {node}: ALTER SYSTEM SET restore_command = '...'; SELECT pg_reload_conf(); with one that works \
            by hand",
        "if pg_receivewal fills the archive: look whether it runs. {node} does not ask for a segment that \
            is called \
         .partial; after a failover it needs the new timeline's .history file there, too",
    ],
};

pub(super) fn source(node: &NodeWindow) -> Option<&Source> {
    node.last()?.source.as_deref()
}

/// Standbys that should stream and do not, each with its settings, and the evidence for that.
fn unfed<'v>(
    view: &'v View<'_>,
) -> impl Iterator<Item = (&'v Link<'v>, &'v NodeWindow, &'v Source, Evidence)> {
    let links = not_streaming_links(view).into_iter();
    links.filter_map(|(link, evidence)| {
        let node = link.replica?;
        Some((link, node, source(node)?, evidence))
    })
}

/// The server that feeds a standby, or is meant to; None if that one was not asked.
fn feeder<'v>(
    view: &'v View<'_>,
    link: &Link<'v>,
    node: &NodeWindow,
    source: &Source,
) -> Option<&'v NodeWindow> {
    match pointed_at(view, node, source) {
        Some(server) => Some(server).filter(|it| it.is_usable()),
        None => link.unasked.is_none().then_some(link.upstream),
    }
}

/// The node that a standby's `primary_conninfo` leads to, as far as that can be told from here.
fn pointed_at<'v>(
    view: &'v View<'_>,
    node: &NodeWindow,
    source: &Source,
) -> Option<&'v NodeWindow> {
    view.window.server_at(node, source.address.as_ref()?)
}

/// Adds where a standby that does not stream looks for WAL, if nobody here knows that address.
pub(super) fn of_address(view: &View<'_>, link: &Link<'_>, evidence: Evidence) -> Evidence {
    let source = link.replica.and_then(|node| Some((node, source(node)?)));
    let Some((node, source, address)) =
        source.and_then(|(node, source)| Some((node, source, source.address.as_ref()?)))
    else {
        return evidence;
    };
    if pointed_at(view, node, source).is_some() || !link.upstream.may_be_at(address) {
        return evidence;
    }
    let (upstream, (host, port)) = (&link.upstream.name, address);
    let words = format!(
        "primary_conninfo leads to {host}:{port}, by which no server is named here; {upstream} has that port, and \
         may have that address as well"
    );
    let evidence = evidence
        .fact("unknown_address", 1.0, words)
        .name("address", format!("{host}:{port}"));
    match corrected(view, node, source) {
        Some((upstream, conninfo)) => evidence
            .name("upstream", &upstream.name)
            .name("right_conninfo", conninfo),
        None => evidence,
    }
}

pub(super) fn elsewhere(view: &View<'_>) -> Vec<Evidence> {
    let leads = |(link, node, source, evidence): (&Link<'_>, &NodeWindow, &Source, Evidence)| {
        let (host, port) = source.address.as_ref()?;
        let address = format!("{host}:{port}");
        let mut away = None;
        let words = match pointed_at(view, node, source) {
            None if link.upstream.may_be_at(source.address.as_ref()?) => return None,
            None => "no server that was named here has that address".to_owned(),
            Some(other) if other.name == node.name => "that is its own address".to_owned(),
            Some(other) if !other.is_usable() && other.samples.is_empty() => {
                away = Some(&other.name);
                format!("that is {}, which does not answer", other.name)
            }
            Some(other) if is_other_cluster(node, other) => {
                format!("that is {}, which is of another cluster", other.name)
            }
            Some(other) if !other.is_usable() => {
                away = Some(&other.name);
                format!("that is {}, which cannot be asked", other.name)
            }
            Some(_) => return None,
        };
        // A server may have other addresses than those that are known here.
        let mut evidence = evidence.fact("elsewhere", 1.0, format!("{address}: {words}"));
        evidence.explains *= 0.9;
        evidence = match (away, &link.unasked) {
            (Some(away), _) => evidence.name("away", away),
            (None, Some(Unasked { node: None, .. })) => evidence.name("unnamed", &address),
            _ => evidence,
        };
        let corrected = corrected(view, node, source);
        let upstream = corrected.as_ref().map(|(upstream, _)| *upstream);
        let slot = source.slot.as_deref();
        let absent = slot.filter(|slot| !upstream.is_some_and(|it| has_slot(it, slot)));
        if let Some(slot) = absent {
            let where_to = match upstream {
                Some(upstream) => format!("{} has no such slot", upstream.name),
                None => "where it is to go it needs one that is called so".to_owned(),
            };
            let words = format!("primary_slot_name is {slot}: {where_to}");
            evidence = evidence.fact("absent_slots", 1.0, words);
        }
        if let Some((upstream, conninfo)) = corrected {
            evidence = evidence.name("upstream", &upstream.name);
            evidence = match absent {
                Some(slot) => evidence
                    .name("absent_slot", slot)
                    .name("new_conninfo", conninfo),
                None => evidence.name("right_conninfo", conninfo),
            };
        }
        Some(evidence.name("address", address))
    };
    unfed(view)
        .chain(fed_by_itself(view))
        .filter_map(leads)
        .collect()
}

/// The standby names no server and no archive.
fn nowhere(view: &View<'_>) -> Vec<Evidence> {
    let found = unfed(view).filter(|(_, _, source, _)| source.streams == Some(false));
    let found = found.filter(|(_, _, source, _)| !source.restores);
    let words = "primary_conninfo and restore_command are empty";
    found
        .map(|(_, _, _, evidence)| evidence.fact("absent_upstreams", 1.0, words))
        .collect()
}

/// Standbys that stream from themselves, which a server allows: they get nothing.
fn fed_by_itself<'v>(
    view: &'v View<'_>,
) -> impl Iterator<Item = (&'v Link<'v>, &'v NodeWindow, &'v Source, Evidence)> {
    view.links.iter().filter_map(|link| {
        let node = link.replica?;
        let (source, last) = source(node).zip(node.last())?;
        let is_its = pointed_at(view, node, source).is_some_and(|it| it.name == node.name);
        if !is_its || !streams(node, last) {
            return None;
        }
        let severity = match link.is_behind() {
            true => Severity::Lag,
            false => Severity::Risk,
        };
        let words = "its walreceiver is connected to its own walsender";
        let evidence = Evidence::of(link, 1.0).severity(severity);
        Some((
            link,
            node,
            source,
            evidence.fact("fed_by_itself", 1.0, words),
        ))
    })
}

pub(super) fn has_slot(node: &NodeWindow, slot: &str) -> bool {
    node.last().is_some_and(|last| last.slot(slot).is_some())
}

/// The primary that a standby may be meant to follow, and its `primary_conninfo` with that one's address.
/// None if that holds a secret, or if the address is one that only its own machine has.
pub(super) fn corrected<'v>(
    view: &'v View<'_>,
    node: &NodeWindow,
    source: &Source,
) -> Option<(&'v NodeWindow, String)> {
    let primary = view.window.primary()?;
    let host = primary.facts.hosts.first()?;
    let is_local = |host: &String| host.starts_with('/') || host == "localhost" || host == "::1";
    let is_local = |host: &String| is_local(host) || host.starts_with("127.");
    let here = is_local(node.facts.hosts.first()?);
    if is_other_cluster(node, primary) || is_local(host) && !here {
        return None;
    }
    let conninfo = source.conninfo.clone()?.without("hostaddr");
    let port = primary.facts.setting("port")?;
    let conninfo = conninfo.with("host", host).ok()?.with("port", port).ok()?;
    Some((primary, conninfo.to_string().replace('\'', "''")))
}

fn is_other_cluster(node: &NodeWindow, other: &NodeWindow) -> bool {
    let (ours, theirs) = (&node.facts.system, &other.facts.system);
    !ours.is_empty() && !theirs.is_empty() && ours != theirs
}

/// The standby's slot is not there on the server that it leads to.
pub(super) fn slot_missing(view: &View<'_>) -> Vec<Evidence> {
    let missing = |(link, node, source, evidence): (&Link<'_>, &NodeWindow, &Source, Evidence)| {
        let slot = source.slot.as_deref()?;
        let upstream = feeder(view, link, node, source)?;
        let last = upstream.last()?;
        // A slot of another cluster would not help it.
        if is_other_cluster(node, upstream) {
            return None;
        }
        let name = &upstream.name;
        let evidence = evidence.name("slot", slot).name("upstream", name);
        match last.slot(slot) {
            None => {
                let words = format!("primary_slot_name is {slot}: {name} has no such slot");
                let evidence = evidence.fact("missing_slots", 1.0, words);
                Some(
                    evidence
                        .name("missing_slot", slot)
                        .name("state", "is not there"),
                )
            }
            Some(other) if other.slot_type == SlotType::Logical => {
                let words =
                    format!("primary_slot_name is {slot}: {name} has a logical slot of that name");
                let evidence = evidence.fact("logical_slots", 1.0, words);
                Some(evidence.name("state", "is a logical one, which is for no standby"))
            }
            Some(_) => None,
        }
    };
    unfed(view).filter_map(missing).collect()
}

/// Longest part of a slot's name that the name of another one begins with, in bytes.
const MOST_NAME: usize = 60;

/// A name for a slot on a server that has none of that name, made of the name of another one.
fn spare(server: &NodeWindow, slot: &str) -> Option<String> {
    let last = server.last()?;
    let short = slot.get(..slot.len().min(MOST_NAME))?;
    let mut names = (2..10).map(|number| format!("{short}_{number}"));
    names.find(|name| last.slot(name).is_none())
}

/// Another standby streams by the slot that this one is to use: one of both is a clone of the other.
pub(super) fn slot_taken(view: &View<'_>) -> Vec<Evidence> {
    let taken = |(link, node, source, evidence): (&Link<'_>, &NodeWindow, &Source, Evidence)| {
        let slot = source.slot.as_deref()?;
        let mut others = view.window.usable();
        let other = others.find(|other| {
            let receiver = other.last().and_then(|last| last.receiver.as_ref());
            other.name != node.name
                && receiver.is_some_and(|it| it.slot_name.as_deref() == Some(slot))
        })?;
        let words = format!("its slot {slot} is in use by {}", other.name);
        let evidence = evidence.fact("taken_slots", 1.0, words);
        let evidence = evidence
            .name("standby", &node.name)
            .name("whose", "standby");
        // Where the standby's address tells nothing, the slot does.
        let used_on = || {
            let mut links = view.links.iter().filter(|it| it.unasked.is_none());
            let of_other = |it: &&Link<'_>| it.replica.is_some_and(|it| it.name == other.name);
            let upstream = links.find(of_other)?.upstream;
            upstream.last()?.slot(slot).map(|_| upstream)
        };
        let feeder = match pointed_at(view, node, source) {
            Some(_) => feeder(view, link, node, source),
            None => feeder(view, link, node, source).or_else(used_on),
        };
        let own = feeder.and_then(|feeder| Some((feeder, spare(feeder, slot)?)));
        let evidence = match own {
            Some((feeder, own)) => evidence
                .name("slot_maker", &feeder.name)
                .name("own_slot", own.replace('\'', "''")),
            None => evidence,
        };
        Some(evidence.name("slot", slot).name("other", &other.name))
    };
    let standbys = unfed(view).filter_map(taken);
    standbys.chain(refused::slot_taken(view)).collect()
}

/// The upstream has removed WAL that the standby needs next.
pub(super) fn wal_removed(view: &View<'_>) -> Vec<Evidence> {
    let removed = |(link, node, source, evidence): (&Link<'_>, &NodeWindow, &Source, Evidence)| {
        let upstream = feeder(view, link, node, source)?;
        let oldest = upstream.last()?.wal_folder?.oldest?;
        let needed = node.last()?.end()?;
        (needed < oldest && !is_other_cluster(node, upstream)).then(|| {
            let gap = oldest.bytes_since(needed) as f64;
            let words = format!(
                "it needs WAL from {needed} on, and the oldest on {} begins at {oldest}: {} are missing",
                upstream.name,
                bytes(gap)
            );
            let evidence = evidence.fact("missing_bytes", gap, words);
            evidence.name("upstream", &upstream.name)
        })
    };
    unfed(view).filter_map(removed).collect()
}

/// The timeline that a server writes, or that a standby has come to.
pub(crate) fn timeline(node: &NodeWindow) -> Option<Timeline> {
    let last = node.last()?;
    last.wal.timeline.or(last.background.timeline)
}

/// The standby has a history that its upstream does not have: it was promoted, or followed a server that was,
/// or the upstream was set back.
pub(super) fn diverged(view: &View<'_>) -> Vec<Evidence> {
    let apart = |(link, node, source, mut evidence): (
        &Link<'_>,
        &NodeWindow,
        &Source,
        Evidence,
    )| {
        let upstream = feeder(view, link, node, source)?;
        if is_other_cluster(node, upstream) {
            return None;
        }
        let (ours, theirs) = (timeline(node)?, timeline(upstream)?);
        let (own, end) = (node.last()?.end()?, upstream.last()?.end()?);
        let words = match ours.cmp(&theirs) {
            Ordering::Greater => format!(
                "it has come to timeline {ours}, and {} is on timeline {theirs}",
                upstream.name
            ),
            _ if own > end => format!(
                "it has WAL up to {own}, and that of {} ends at {end}",
                upstream.name
            ),
            Ordering::Less => {
                // It may only have been stopped since then, and then another cause is there.
                evidence.explains *= 0.8;
                format!(
                    "it is on timeline {ours} at {own}, and {} is on timeline {theirs}: it has WAL from after \
                     that one began, or cannot get the new timeline's history",
                    upstream.name
                )
            }
            Ordering::Equal => return None,
        };
        let evidence = evidence.fact("timeline", f64::from(ours.get()), words);
        Some(evidence.name("upstream", &upstream.name))
    };
    unfed(view).filter_map(apart).collect()
}

/// The startup process waits for `restore_command` most of the time, and gets on.
pub(super) fn restores_slowly(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node) in standbys(view).filter(|(link, _)| link.is_behind()) {
        let waits = startup_share(node, |process| process.waits_for("RestoreCommand"));
        let replay = |sample: &Sample| sample.wal.replay.map(|end| u64::from(end) as f64);
        let replayed = node.growth(replay);
        let restores = source(node).is_some_and(|source| source.restores);
        if waits < MOSTLY || replayed == 0.0 || !restores {
            continue;
        }
        let rate = ratio(replayed, node.length().as_secs_f64());
        let evidence = Evidence::of(link, waits)
            .fact(
                "restoring_share",
                waits,
                format!(
                    "the startup process waited for restore_command in {} of the samples",
                    percent(waits)
                ),
            )
            .fact(
                "restored_bytes_per_s",
                rate,
                format!("{} of WAL a second were restored", bytes(rate)),
            );
        found.push(unreplayed(evidence, link));
    }
    found
}

/// The startup process asks for WAL that is archived, and gets none.
pub(super) fn restore_fails(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node) in standbys(view).filter(|(link, _)| link.is_archived() && link.is_behind()) {
        let asks = node.share(Sample::asks_for_wal);
        let replays = |sample: &Sample| sample.wal.replay;
        let ends = node
            .samples
            .first()
            .and_then(replays)
            .zip(node.last().and_then(replays));
        if asks < MOSTLY || ends.is_none_or(|(first, last): (Lsn, Lsn)| first < last) {
            continue;
        }
        let waits = startup_share(node, |process| process.waits_for("RestoreCommand"));
        let words = match waits >= MOSTLY {
            true => format!(
                "restore_command runs most of the time, and nothing of it was replayed in {}: it may only be slow",
                seconds(node.length().as_secs_f64() * 1000.0)
            ),
            false => "restore_command is run again and again, and gives nothing".to_owned(),
        };
        let evidence = Evidence::of(link, asks).fact("asking_share", asks, words);
        let evidence = match discards(link.upstream) {
            true => of_discarding(evidence, &link.upstream.name),
            false => evidence,
        };
        found.push(unreplayed(evidence, link));
    }
    found
}

/// The server's `archive_command` does not even name the segment that it is to store, as `/bin/true` does
/// not.
fn discards(node: &NodeWindow) -> bool {
    let command = node.facts.setting("archive_command").unwrap_or_default();
    let has_library = node
        .facts
        .setting("archive_library")
        .is_some_and(|it| !it.is_empty());
    let names_it = ["%p", "%f"].iter().any(|name| command.contains(name));
    node.archives() && !command.is_empty() && !has_library && !names_it
}

fn of_discarding(evidence: Evidence, primary: &str) -> Evidence {
    let words = format!("archive_command of {primary} names no segment (%p), so it stores none");
    evidence
        .fact("discarding", 1.0, words)
        .name("discarding", primary)
}
