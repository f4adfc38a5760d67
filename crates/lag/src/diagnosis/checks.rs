//! What must be true of each node and link, as a list of checks. A diagnosis is healthy only if each check
//! was done and came out well. It is not enough that no rule has found anything, since a rule knows only
//! what once went wrong.
//!
//! A check is wrong where a rule of one of its causes has found something; that rule says what to do.
//! Otherwise it is well only if [`Check::holds`] says so from what was seen. What cannot be seen, and a state
//! that no check knows, is not known.

use lockstep_service::words::figures::{counted, seconds, verb};
use serde::Serialize;

use crate::diagnosis::{Finding, LinkReport};
use crate::link::Link;
use crate::node::{Role, Trouble};
use crate::point::LinkKind;
use crate::points::may_lack_segment;
use crate::questions::Part;
use crate::rules::{
    Cause, Copying, LONG_COMMIT_MS, Severity, View, all_slots, copied_for, copying,
    difference_known, is_copied_by, is_fresh, open_words,
};
use crate::states::{ReceiverStatus, ReplayPause, SenderState, WalStatus};
use crate::views::Slot;
use crate::window::NodeWindow;

mod table;

pub use table::CHECKS;

/// What a check is done for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// All nodes together.
    Cluster,
    /// All nodes together, if somebody remembers who was there before.
    Memory,
    Node,
    Primary,
    Standby,
    /// Each slot of a server that is not temporary.
    Slot,
    /// Each link to a replica.
    Link,
    /// Each link to a standby.
    Physical,
    /// Each link to a subscription whose subscriber was named.
    Subscription,
}

/// What a check has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Well,
    Wrong,
    NotKnown,
}

/// A check of one node, slot or link.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// The check, as in [`Check::id`].
    pub check: &'static str,
    /// The node, slot or link, by name.
    pub at: String,
    pub answer: Answer,
    /// What was seen, or why nothing was.
    pub words: String,
    /// What the check proves, as in [`Check::proves`].
    pub proves: &'static str,
}

/// A row of the table.
pub struct Check {
    /// The check's name in JSON, which never changes.
    pub id: &'static str,
    pub of: Subject,
    /// What servers are asked.
    pub asks: &'static str,
    /// Who may ask that.
    pub who: &'static str,
    /// What is true if it comes out well.
    pub proves: &'static str,
    /// Parts of a sample without which it cannot be done.
    needs: &'static [Part],
    /// Causes that make it wrong.
    pub causes: &'static [Cause],
    /// Whether it is well, from what was seen: what, or why that is not known.
    holds: fn(&Place<'_, '_>) -> Result<String, String>,
}

/// What a check looks at.
pub struct Place<'v, 'a> {
    view: &'v View<'a>,
    node: Option<&'a NodeWindow>,
    slot: Option<&'v Slot>,
    link: Option<(&'v Link<'a>, &'v LinkReport)>,
}

impl Place<'_, '_> {
    /// The name that findings have for it.
    fn name(&self) -> String {
        match (self.slot, self.link, self.node) {
            (Some(slot), _, Some(node)) => format!("slot {} on {}", slot.slot_name, node.name),
            (_, Some((link, _)), _) => link.name.clone(),
            (_, _, Some(node)) => node.name.clone(),
            _ => "all nodes".to_owned(),
        }
    }

    /// The finding is about this place, or about a node if the place is all of them.
    fn is_at(&self, finding: &Finding) -> bool {
        let (name, at) = (self.name(), &finding.at);
        let everywhere = self.link.map(|(link, _)| all_slots(&link.upstream.name));
        *at == name || Some(at) == everywhere.as_ref() || self.node.is_none() && self.link.is_none()
    }

    /// A part of these that a node of the place does not show.
    fn hidden(&self, needs: &[Part]) -> Option<String> {
        let link = self.link.map(|(link, _)| link);
        let nodes = [
            self.node,
            link.map(|link| link.upstream),
            link.and_then(|link| link.replica),
        ];
        nodes.into_iter().flatten().find_map(|node| {
            let all = (!node.facts.monitor && node.is_usable()).then(|| "all of it".to_owned());
            let mut troubles = node.troubles.iter();
            let part = troubles.find_map(|trouble| match trouble {
                Trouble::Gap { what, .. } if needs.iter().any(|it| it.words() == what) => {
                    Some(what.clone())
                }
                _ => None,
            });
            Some(format!("{} does not show {}", node.name, all.or(part)?))
        })
    }
}

/// The places at which a check is done.
fn places<'v, 'a>(
    view: &'v View<'a>,
    reports: &'v [LinkReport],
    of: Subject,
) -> Vec<Place<'v, 'a>> {
    let nothing = || Place {
        view,
        node: None,
        slot: None,
        link: None,
    };
    let nodes = |is: fn(&NodeWindow) -> bool| {
        let nodes = view.window.nodes.iter().filter(move |node| is(node));
        nodes.map(|node| Place {
            node: Some(node),
            ..nothing()
        })
    };
    let links = |is: fn(&Link<'_>) -> bool| {
        let links = view.links.iter().zip(reports);
        links.filter(move |(link, _)| is(link)).map(|link| Place {
            link: Some(link),
            ..nothing()
        })
    };
    match of {
        Subject::Cluster => vec![nothing()],
        Subject::Memory => view.window.remembered.iter().map(|_| nothing()).collect(),
        Subject::Node => nodes(|_| true).collect(),
        Subject::Primary => nodes(|it| it.is_usable() && it.role == Role::Primary).collect(),
        Subject::Standby => nodes(|it| it.is_usable() && it.role == Role::Standby).collect(),
        Subject::Slot => {
            let nodes = view
                .window
                .usable()
                .filter(|node| node.role != Role::Subscriber);
            let slots = nodes.flat_map(|node| {
                let slots = node.last().map_or(&[][..], |last| &last.slots);
                let slots = slots.iter().filter(|slot| !slot.temporary && !slot.synced);
                slots.map(move |slot| Place {
                    node: Some(node),
                    slot: Some(slot),
                    ..nothing()
                })
            });
            slots.collect()
        }
        Subject::Link => links(|_| true).collect(),
        Subject::Physical => links(|link| link.kind == LinkKind::Physical).collect(),
        Subject::Subscription => {
            links(|link| link.subscription.is_some() && link.replica.is_some()).collect()
        }
    }
}

/// Does every check.
pub fn check(view: &View<'_>, reports: &[LinkReport], findings: &[Finding]) -> Vec<CheckReport> {
    let mut done = Vec::new();
    for check in CHECKS {
        for place in places(view, reports, check.of) {
            let found = findings.iter().find(|finding| {
                let is_bad = finding.severity != Severity::Note;
                is_bad && check.causes.contains(&finding.cause) && place.is_at(finding)
            });
            let (answer, words) = match (found, place.hidden(check.needs)) {
                (Some(finding), _) => (Answer::Wrong, finding.title.clone()),
                (None, Some(hidden)) => (Answer::NotKnown, hidden),
                (None, None) => match (check.holds)(&place) {
                    Ok(words) => (Answer::Well, words),
                    Err(words) => (Answer::NotKnown, words),
                },
            };
            done.push(CheckReport {
                check: check.id,
                at: place.name(),
                answer,
                words,
                proves: check.proves,
            });
        }
    }
    done
}

/// Whether something is looked at, and what.
fn has_replicas(place: &Place<'_, '_>) -> Result<String, String> {
    let named = place.view.window.nodes.len();
    match place.view.links.len() {
        0 if named <= 1 => Err("no replica is named, and none is connected".to_owned()),
        number => Ok(format!(
            "{} {} looked at",
            counted(number as u64, "replica"),
            verb(number as u64, "is", "are")
        )),
    }
}

fn are_remembered(place: &Place<'_, '_>) -> Result<String, String> {
    let number = place.view.window.remembered.as_ref().map_or(0, Vec::len);
    Ok(format!(
        "{} seen within the last hour, and none is missing",
        counted(number as u64, "replica")
    ))
}

fn is_one_primary(place: &Place<'_, '_>) -> Result<String, String> {
    match place.view.window.primary() {
        Some(primary) => Ok(format!("{} takes the writes", primary.name)),
        None => Err("no primary answers".to_owned()),
    }
}

fn answers(place: &Place<'_, '_>) -> Result<String, String> {
    let node = place.node.ok_or("no node")?;
    let trouble = node.troubles.iter().find(|trouble| trouble.is_blind());
    let lost = node.troubles.iter().find_map(|trouble| match trouble {
        Trouble::Interrupted { reason, .. } => Some(reason),
        _ => None,
    });
    match (trouble, lost, node.samples.len()) {
        (Some(trouble), ..) => Err(trouble.to_string()),
        (None, _, 0) => Err("it has not answered".to_owned()),
        (None, Some(reason), _) => Err(came_back(node, reason)),
        (None, None, number) => Ok(format!(
            "it answered {}, as what it was named",
            counted(number as u64, "time")
        )),
    }
}

/// Words for a node to which there is a new connection. If it was started anew, a rule has said so.
fn came_back(node: &NodeWindow, reason: &str) -> String {
    let up_ms = node.last().and_then(|last| last.up_ms);
    let up = up_ms.map_or(String::new(), |up_ms| {
        format!(
            "; the server was not started anew: it has been up for {}",
            seconds(up_ms)
        )
    });
    format!("the connection was lost, and there is a new one: {reason}{up}")
}

fn has_data(place: &Place<'_, '_>) -> Result<String, String> {
    let node = place.node.ok_or("no node")?;
    match (node.is_usable(), node.role) {
        (false, _) => Err("it has not answered".to_owned()),
        (true, Role::Relay) => Ok("it has no tables".to_owned()),
        (true, _) => Ok("nothing is found".to_owned()),
    }
}

fn is_archived(place: &Place<'_, '_>) -> Result<String, String> {
    let node = place.node.ok_or("no node")?;
    if !node.archives() {
        return Ok("it archives nothing".to_owned());
    }
    let queue = node.last().and_then(|last| last.archive);
    let queue =
        queue.ok_or("it does not show what waits to be archived (pg_ls_archive_statusdir)")?;
    Ok(format!(
        "{} {} to be archived",
        counted(queue.ready, "segment"),
        verb(queue.ready, "waits", "wait")
    ))
}

fn keeps_up(place: &Place<'_, '_>) -> Result<String, String> {
    let (link, report) = place.link.ok_or("no link")?;
    if link.confirms_seldom() {
        let why =
            "it has confirmed nothing in this window, and some consumers do so once a minute only";
        return Err(format!("how much it has stored is not known: {why}"));
    }
    if link.is_first_copy() {
        return Ok("its tables are being copied for the first time".to_owned());
    }
    match (link.points.last(), report.behind) {
        (None, _) => Err("its positions are not known".to_owned()),
        // No rule has said why.
        (Some(_), true) => Err(format!("it is {} behind", seconds(report.lag_ms))),
        (Some(_), false) => match late_from_end_to_end(place.view, link, report) {
            Some(words) => Err(words),
            None => Ok(format!("at most {} behind", seconds(report.lag_max_ms))),
        },
    }
}

/// Words for a replica that is behind the primary although no link on its way lags.
fn late_from_end_to_end(view: &View<'_>, link: &Link<'_>, report: &LinkReport) -> Option<String> {
    let all = report.behind_primary.filter(|all| all.behind)?;
    let way = link.way(&view.links);
    let is_told = way.into_iter().any(Link::is_behind);
    let (sign, late) = (all.sign(), seconds(all.lag_ms));
    (!is_told).then(|| {
        format!("it is {sign}{late} behind the primary, and no server on its way is behind its own upstream")
    })
}

/// The standby streams, or has all that there is.
fn streams(place: &Place<'_, '_>) -> Result<String, String> {
    let (link, report) = place.link.ok_or("no link")?;
    let upstream = &link.upstream.name;
    let Some(replica) = link.replica else {
        let sender = link.upstream.last().and_then(|last| link.sender(last));
        let state = sender.and_then(|sender| sender.state.as_ref());
        return match state {
            Some(SenderState::Streaming | SenderState::Catchup) => {
                Ok(format!("{upstream} streams to it"))
            }
            Some(other) => Err(format!("its walsender on {upstream} is {other}")),
            None => Err(format!("it has no walsender on {upstream} now")),
        };
    };
    let receiver = replica.last().and_then(|last| last.receiver.as_ref());
    let status = receiver.and_then(|receiver| receiver.status.as_ref());
    if let (Some(unasked), Some(_)) = (&link.unasked, status) {
        return Err(format!("it streams from {}", unasked.words()));
    }
    match status {
        Some(ReceiverStatus::Streaming) => Ok(format!("it streams from {upstream}")),
        Some(other) => Err(format!("its walreceiver is {other}")),
        None if may_lack_segment(link) => Err(format!(
            "a segment that {upstream} has filled is not restored, and whether it is archived is not known: watch for \
             longer (--seconds) than wal_retrieve_retry_interval"
        )),
        None if link.is_archived() && !report.behind => {
            Ok("it restores from an archive, and gets on".to_owned())
        }
        // It may restore from an archive besides, or has just lost its walreceiver.
        None if !report.behind && link.last_bytes() == 0 => Ok("it has all WAL".to_owned()),
        None => Err("it has no walreceiver now".to_owned()),
    }
}

fn replays(place: &Place<'_, '_>) -> Result<String, String> {
    let node = place.node.ok_or("no node")?;
    match node.last().and_then(|last| last.wal.pause.as_ref()) {
        Some(ReplayPause::NotPaused) => Ok("replay is not paused".to_owned()),
        Some(other) => Err(format!("its replay is \"{other}\"")),
        None => Err("it does not show whether replay is paused".to_owned()),
    }
}

/// The slot was used in this window, and its WAL is there.
fn is_used(place: &Place<'_, '_>) -> Result<String, String> {
    let (node, slot) = (place.node.ok_or("no node")?, place.slot.ok_or("no slot")?);
    match &slot.wal_status {
        // A relay's slots have no status.
        None | Some(WalStatus::Reserved | WalStatus::Extended) => {}
        Some(other) => return Err(format!("its wal_status is \"{other}\"")),
    }
    let name = &slot.slot_name;
    // Other checks say how a consumer is that was asked.
    let is_its = |link: &&Link<'_>| {
        link.upstream.name == node.name
            && link.slot.as_ref() == Some(name)
            && link.replica.is_some()
    };
    if let Some(link) = place.view.links.iter().find(is_its) {
        return Ok(format!("its consumer is known: {}", link.name));
    }
    if node.last().is_some_and(|last| is_copied_by(last, slot)) {
        return Ok("the worker of its subscription copies a table".to_owned());
    }
    if let Some((replica, row)) = copied_for(place.view, name) {
        return Ok(format!(
            "it was made for the copy of a table of {} ({}), whose checks say how that gets on",
            replica.name, row.name
        ));
    }
    let is_named = |other: &&NodeWindow| {
        let source = other.last().and_then(|last| last.source.as_ref());
        source.is_some_and(|source| source.slot.as_ref() == Some(name))
    };
    if let Some(standby) = place.view.window.usable().find(is_named) {
        return Ok(format!("it is meant for {}, which was asked", standby.name));
    }
    let used = node.share(|sample| sample.slot(name).is_some_and(|slot| slot.active));
    let mut replicas = place.view.replicas();
    let is_asked = replicas.any(|it| it.replica.slot == *name);
    match used > 0.0 || is_asked {
        true if !slot.active && !is_asked => {
            Err("its consumer was connected, and is not now".to_owned())
        }
        true => Ok("its consumer is connected, or known".to_owned()),
        false => Err("nobody uses it, so a replica may be missing".to_owned()),
    }
}

fn applies(place: &Place<'_, '_>) -> Result<String, String> {
    let (link, _) = place.link.ok_or("no link")?;
    let row = link
        .replica
        .and_then(|replica| link.subscribed(replica.last()?));
    let row = row.ok_or("the subscription is not there")?;
    if row.pid.is_none() && is_fresh(link) {
        let why = "one that was just made gets it within wal_retrieve_retry_interval: watch for longer (--seconds)";
        return Err(format!("it has no apply worker yet; {why}"));
    }
    match (row.enabled, row.pid) {
        (true, Some(pid)) => Ok(format!("its apply worker runs (process {pid})")),
        _ => Err("it has no apply worker now".to_owned()),
    }
}

fn is_synchronised(place: &Place<'_, '_>) -> Result<String, String> {
    let (link, _) = place.link.ok_or("no link")?;
    match copying(link) {
        Some(Copying::Done) => Ok("all its tables are synchronised".to_owned()),
        Some(Copying::GetsOn) => Ok("tables are being copied, and that gets on".to_owned()),
        Some(_) => Err(open_words(link)),
        None => Err("the subscription is not there".to_owned()),
    }
}

fn is_published(place: &Place<'_, '_>) -> Result<String, String> {
    let (link, _) = place.link.ok_or("no link")?;
    difference_known(place.view, link).map(|()| "it follows what is published".to_owned())
}

/// No commit waits for long.
fn commits_return(place: &Place<'_, '_>) -> Result<String, String> {
    let clients = place
        .node
        .and_then(NodeWindow::last)
        .map(|last| &last.clients);
    let waits = clients.filter(|it| it.awaiting_sync > 0);
    let waits = waits.and_then(|it| it.awaiting_sync_ms).unwrap_or(0.0);
    match waits >= LONG_COMMIT_MS {
        true => Err(format!(
            "commits have waited for {} for replicas that are connected",
            seconds(waits)
        )),
        false => Ok("nothing is found".to_owned()),
    }
}

/// What no rule has found; its check has no other state.
fn nothing_found(_: &Place<'_, '_>) -> Result<String, String> {
    Ok("nothing is found".to_owned())
}
