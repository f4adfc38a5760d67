//! The signal of standbys that follow each other: each streams, none lags behind its upstream, and nothing of
//! the primary's comes to any of them.

use std::ptr;

use super::receive::streams;
use super::unfed::{corrected, has_slot, source};
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::point::LinkKind;
use crate::window::NodeWindow;

pub(super) const RULE: Rule = Rule {
    cause: Cause::NoWayToPrimary,
    title: "{ring}",
    signal: ring,
    remedies: &[
        "on {primary}: SELECT pg_create_physical_replication_slot('{absent_slot}'); then on {member}: ALTER \
         SYSTEM SET primary_conninfo = '{new_conninfo}'; SELECT pg_reload_conf(); if it reaches {primary} at \
         that address: the others then get all through it",
        "on {member}: ALTER SYSTEM SET primary_slot_name = ''; ALTER SYSTEM SET primary_conninfo = \
         '{new_conninfo}'; SELECT pg_reload_conf(); if {primary} is not to keep WAL for it",
        "on {member}: ALTER SYSTEM SET primary_conninfo = '{right_conninfo}'; SELECT pg_reload_conf(); if it \
         reaches {primary} at that address: the others then get all through it",
        "on {unled}: primary_conninfo that leads to the primary, and SELECT pg_reload_conf(); the others then \
         get all through it",
    ],
};

/// The links of the ring into which the way to a replica leads.
fn ring_of<'v, 'a>(view: &'v View<'a>, link: &Link<'a>) -> Option<Vec<&'v Link<'a>>> {
    let way = link.way(&view.links);
    let again = way.last()?.fed_by(&view.links)?;
    let begins = way.iter().position(|it| ptr::eq(*it, again))?;
    let mut ring = way.get(begins..)?.to_vec();
    let first = ring.iter().enumerate().min_by_key(|(_, it)| &it.name)?.0;
    ring.rotate_left(first);
    Some(ring)
}

/// Both ends of the link say that it streams.
fn is_connected(link: &Link<'_>) -> bool {
    let sender = link.upstream.last().and_then(|last| link.sender(last));
    let receives = |node: &NodeWindow| node.last().is_some_and(|last| streams(node, last));
    sender.is_some() && link.replica.is_some_and(receives)
}

/// No standby of the ring has got any WAL that none had in the middle of the window.
fn stands(ring: &[&Link<'_>]) -> bool {
    let nodes = || ring.iter().filter_map(|link| link.replica);
    let half = |node: &NodeWindow| node.samples.get(node.samples.len() / 2)?.end();
    nodes().filter_map(half).max() >= nodes().filter_map(|node| node.last()?.end()).max()
}

/// What the standbys do instead of following a primary.
fn words(ring: &[&Link<'_>], primary: Option<&NodeWindow>) -> String {
    let primary = match primary.map(|it| it.name.as_str()) {
        None => "a primary".to_owned(),
        Some("primary") => "the primary".to_owned(),
        Some(name) => format!("primary {name}"),
    };
    match ring {
        [one, other] => format!(
            "{} and {} follow each other, and neither gets anything from {primary}",
            one.name, other.name
        ),
        _ => {
            let each = ring
                .iter()
                .map(|link| format!("{} follows {}", link.name, link.upstream.name));
            let each: Vec<String> = each.collect();
            format!("{}, and none gets anything from {primary}", each.join(", "))
        }
    }
}

/// Adds the member that has most WAL, and what leads it to the primary.
fn of_member(view: &View<'_>, ring: &[&Link<'_>], evidence: Evidence) -> Evidence {
    let members = ring.iter().filter_map(|link| link.replica);
    // Of equal ones the first.
    let member = members
        .rev()
        .max_by_key(|node| node.last().and_then(|last| last.end()));
    let Some(member) = member else {
        return evidence;
    };
    let led = source(member).and_then(|it| Some((it, corrected(view, member, it)?)));
    let Some((source, (primary, conninfo))) = led else {
        return evidence.name("unled", &member.name);
    };
    let evidence = evidence
        .name("member", &member.name)
        .name("primary", &primary.name);
    match source.slot.as_deref() {
        Some(slot) if !has_slot(primary, slot) => evidence
            .name("absent_slot", slot)
            .name("new_conninfo", conninfo),
        _ => evidence.name("right_conninfo", conninfo),
    }
}

fn ring(view: &View<'_>) -> Vec<Evidence> {
    let links = view.links.iter();
    let found = links.filter(|link| link.kind == LinkKind::Physical);
    let found = found.filter_map(|link| {
        let ring = ring_of(view, link)?;
        if !ring.iter().all(|it| is_connected(it)) || !stands(&ring) {
            return None;
        }
        let primary = view.window.primary();
        let mut evidence = Evidence::of(link, 1.0)
            .fact(
                "standbys_in_ring",
                ring.len() as f64,
                format!("it streams from {}", link.upstream.name),
            )
            .name("ring", words(&ring, primary));
        let all = primary.and_then(|it| link.behind_primary(it, &view.links, &link.points));
        evidence.lag_ms = all.map_or(evidence.lag_ms, |all| all.lag_ms);
        Some(of_member(view, &ring, evidence))
    });
    found.collect()
}
