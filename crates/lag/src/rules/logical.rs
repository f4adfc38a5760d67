//! Signals of decoding and applying.

use lockstep_service::words::figures::{bytes, counted, percent, seconds};

use super::connection::ended_with_upstream;
use super::ended::{ended, moves};
use super::lock::of_holder;
use super::published::{followed, some};
use super::suspects::{AS_TEXT, CATCH_ALL, PARTITION, RETYPE, WIDEN, of_worker};
use super::synchronised::is_fresh;
use super::{Cause, Evidence, Rule, Severity, View, all_slots, server};
use crate::figures::{median, ratio};
use crate::link::Link;
use crate::point::{LinkKind, Stage};
use crate::states::{BackendType, SynchronousCommit, WaitType};
use crate::tables::Tables;
use crate::views::{Decoding, Process, Searched, Sender};

/// A flush waits for something if it comes at least this much later than the apply,
/// milliseconds,
const LATE_FLUSH_MS: f64 = 30.0;

/// and takes at least this many times as long.
const LATE_FLUSH_TIMES: f64 = 4.0;

/// Share of samples from which an apply worker that waits for a lock counts as blocked.
const BLOCKED_SHARE: f64 = 0.2;

/// Share of samples from which an apply worker that waits for data holds nothing back.
const IDLE_SHARE: f64 = 0.5;

/// Share of samples from which a walsender that runs counts as decoding.
const DECODING_SHARE: f64 = 0.5;

/// Share of samples from which a walsender that cannot send counts as held up by its consumer.
pub(super) const PUSHED_SHARE: f64 = 0.3;

/// Rows read in each search of a whole table from which an index is missed.
const MANY_ROWS: f64 = 1_000.0;

/// A transaction is giant if it fills the memory of decoding this many times.
const GIANT_TIMES: f64 = 8.0;

/// The rule of a subscription that applies nothing.
pub(super) const STOPPED: Rule = Rule {
    cause: Cause::ApplyStopped,
    title: "the subscription does not apply",
    signal: stopped,
    remedies: &[
        "find out who uses slot {taken_slot} (pg_stat_replication on {upstream}) before the subscription \
         is enabled: of two consumers of one slot each gets only a part of the changes, and loses \
         the rest",
        "on {server}: ALTER SUBSCRIPTION {disabled_subscription} ENABLE; if it need not be disabled any \
         longer; until then its slot keeps WAL on {upstream}",
        "on {server}: correct what its log says of subscription {failed_subscription}, which has \
         disabled itself (disable_on_error), and then ALTER SUBSCRIPTION {failed_subscription} \
         ENABLE;",
        WIDEN,
        PARTITION,
        CATCH_ALL,
        "on {server}: ALTER TABLE {trigger_table} ENABLE TRIGGER {trigger}; if the log names that trigger: it \
         then fires for local changes only",
        "on {server}: ALTER TABLE {referencing} DROP CONSTRAINT {constraint}; if the log names that key: the \
         worker then empties the table that it leads to. Rows that lead to none must go before it can be \
         made again",
        AS_TEXT,
        RETYPE,
        "look at the subscriber's log for the error of subscription {subscription}, and correct what it \
         names: a row that is there already, a table or column that is missing, a connection that is \
         refused",
        "only if that row cannot be corrected: ALTER SUBSCRIPTION {stuck_subscription} SKIP (lsn = ...) \
         with the position from the log: all changes of that transaction are lost there, and the tables \
         differ from then on",
    ],
};

pub(super) fn logical<'v, 'a>(view: &'v View<'a>) -> impl Iterator<Item = &'v Link<'a>> {
    view.links
        .iter()
        .filter(|link| link.kind == LinkKind::Logical)
}

/// Logical links that end at an apply worker: neither a relay nor a replica of Lockstep has one.
fn workers<'v, 'a>(view: &'v View<'a>) -> impl Iterator<Item = &'v Link<'a>> {
    logical(view).filter(|link| !link.is_to_relay() && link.replica_name.is_none())
}

/// Logical links that lag, without those that nothing is missing on.
pub(super) fn behind<'v, 'a>(view: &'v View<'a>) -> impl Iterator<Item = &'v Link<'a>> {
    logical(view).filter(|link| link.is_behind() && !nothing_for(link))
}

/// The slot has decoded nothing, nothing is being sent, and its consumer holds nothing back: the
/// WAL that it is behind is not for it.
pub(super) fn nothing_for(link: &Link<'_>) -> bool {
    let Some(slot) = link.slot.as_deref() else {
        return false;
    };
    let active = link
        .upstream
        .share(|sample| sample.slot(slot).is_some_and(|slot| slot.active));
    let pushed = link.pushed_share();
    let known = link
        .upstream
        .last()
        .is_some_and(|sample| sample.decoding(slot).is_some());
    active > 0.9
        && pushed < 0.1
        && known
        && !holds_back(link)
        && grown(link, |row| {
            row.total_bytes
                .saturating_add(row.spill_bytes)
                .saturating_add(row.stream_bytes)
        }) == 0.0
}

/// The consumer has got something that it does not apply: it takes nothing, or its worker is
/// busy, waits for a lock, or is not there.
fn holds_back(link: &Link<'_>) -> bool {
    let idle = link.worker_share(Process::waits_for_changes);
    let blocked = link.worker_share(|process| process.waits(&WaitType::Lock));
    link.takes_nothing()
        || idle.is_some_and(|idle| idle < IDLE_SHARE)
        || blocked.is_some_and(|blocked| blocked >= BLOCKED_SHARE)
}

/// Growth of a counter of the link's slot over the window.
fn grown(link: &Link<'_>, counter: impl Fn(&Decoding) -> u64) -> f64 {
    let Some(slot) = link.slot.as_deref() else {
        return 0.0;
    };
    link.upstream
        .growth(|sample| sample.decoding(slot).map(|row| counter(row) as f64))
}

/// Number of transactions that a relay has received for the link during the window.
fn takes_over(link: &Link<'_>) -> f64 {
    let Some(group) = link.upstream_group() else {
        return 0.0;
    };
    link.upstream.growth(|sample| {
        let group = sample.relay.as_ref()?.group(group)?;
        Some(group.transactions as f64)
    })
}

/// Median time until flushed and until applied, in milliseconds. What the publisher reports is
/// exact, but it measures only once a second and forgets soon, so positions count as well.
fn flush_and_apply(link: &Link<'_>) -> (f64, f64) {
    let told = |number: fn(&Sender) -> Option<f64>| {
        let samples = link.upstream.samples.iter();
        let numbers = samples.filter_map(|sample| number(link.sender(sample)?));
        median(numbers.collect())
    };
    let apply_ms = told(|sender| sender.replay_lag_ms);
    let flush_ms = told(|sender| sender.flush_lag_ms);
    (flush_ms.max(apply_ms + link.unflushed_ms()), apply_ms)
}

pub(super) fn asynchronous_commit(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in workers(view) {
        let (flush_ms, replay_ms) = flush_and_apply(link);
        let commit = link
            .replica
            .and_then(|replica| link.subscribed(replica.last()?))
            .map(|subscription| &subscription.synchronous_commit);
        let late_ms = flush_ms - replay_ms;
        let waits = late_ms >= LATE_FLUSH_MS && flush_ms >= LATE_FLUSH_TIMES * replay_ms;
        if !waits || !matches!(commit, None | Some(SynchronousCommit::Off)) {
            continue;
        }
        let awaiting = link
            .upstream
            .mean(|sample| sample.clients.awaiting_sync as f64);
        // PostgreSQL still shows what it measured for an earlier change.
        let decodes = grown(link, |row| row.total_bytes) > 0.0 || takes_over(link) > 0.0;
        let (severity, explains) = match link.is_synchronous() {
            true => (Severity::Lag, ratio(late_ms, flush_ms)),
            false if decodes => (Severity::Note, 0.0),
            false => continue,
        };
        let mut evidence = Evidence::of(link, explains)
            .severity(severity)
            .fact(
                "flush_lag_ms",
                flush_ms,
                format!("flushed {} after the primary", seconds(flush_ms)),
            )
            .fact(
                "replay_lag_ms",
                replay_ms,
                format!("applied {} after the primary", seconds(replay_ms)),
            )
            .fact(
                "awaiting_commits",
                awaiting,
                match severity {
                    Severity::Lag => format!(
                        "{awaiting:.1} commits at once waited for it on {}",
                        link.upstream.name
                    ),
                    _ if link.is_relayed() => format!(
                        "no commit waits for that: {} answers the primary for it",
                        link.upstream.name
                    ),
                    _ => "it is no synchronous replica, so no commit waits for that".to_owned(),
                },
            );
        evidence.lag_ms = flush_ms;
        if let Some(commit) = commit {
            evidence = evidence.name("synchronous_commit", commit.name());
        }
        if let Some(replica) = link.replica {
            evidence = evidence.setting(replica, "wal_writer_delay");
        }
        found.push(evidence);
    }
    found
}

pub(super) fn stopped(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in logical(view) {
        let Some(replica) = link.replica else {
            continue;
        };
        let Some(last) = replica.last().and_then(|sample| link.subscribed(sample)) else {
            continue;
        };
        let errors =
            replica.growth(|sample| link.subscribed(sample).map(|row| row.apply_errors as f64));
        let away =
            replica.share(|sample| link.subscribed(sample).is_none_or(|row| row.pid.is_none()));
        let is_well = errors == 0.0 || ended_with_upstream(link);
        if (away < 0.5 && is_well) || ended(view, link.upstream) || is_fresh(link) {
            continue;
        }
        let why = match (last.enabled, errors > 0.0) {
            (false, _) => "it is disabled".to_owned(),
            (true, true) => format!("its worker failed {}", counted(errors as u64, "time")),
            (true, false) => format!("it had no worker in {} of the samples", percent(away)),
        };
        let severity = match link.last_bytes() {
            0 => Severity::Risk,
            _ => Severity::Lag,
        };
        let mut evidence = Evidence::of(link, away.max(0.5));
        // Its own worker is not there, so somebody else uses the slot: a copy of this server, perhaps.
        let sender = link.upstream.last().and_then(|last| link.sender(last));
        let taken = link.slot.as_deref().filter(|_| sender.is_some());
        match (last.enabled, taken) {
            (true, _) => {}
            (false, Some(slot)) => evidence = evidence.name("taken_slot", slot),
            (false, None) if last.disable_on_error && last.apply_errors > 0 => {
                evidence = evidence.name("failed_subscription", &last.name);
            }
            (false, None) => evidence = evidence.name("disabled_subscription", &last.name),
        }
        // What fails again and again at one place is the same transaction. A lost connection is
        // counted as an error, too, but then there is progress between two of them.
        let is_stuck = errors > 0.0 && last.enabled && !moves(link);
        if is_stuck {
            evidence = evidence.name("stuck_subscription", &last.name);
        }
        let has_failed = last.enabled || last.disable_on_error;
        let fails = is_stuck || has_failed && last.apply_errors > 0;
        evidence = evidence
            .severity(severity)
            .fact("without_worker_share", away, why)
            .fact(
                "apply_errors",
                last.apply_errors as f64,
                format!(
                    "{} since its statistics began",
                    counted(last.apply_errors, "error")
                ),
            )
            .fact(
                "behind_bytes",
                link.last_bytes() as f64,
                format!("{} behind", bytes(link.last_bytes() as f64)),
            );
        found.push(match fails {
            true => of_worker(evidence, view, link),
            false => evidence,
        });
    }
    found
}

pub(super) fn blocked(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in behind(view) {
        let Some(share) = link.worker_share(|process| process.waits(&WaitType::Lock)) else {
            continue;
        };
        if share < BLOCKED_SHARE {
            continue;
        }
        let mut evidence = Evidence::of(link, share).fact(
            "blocked_share",
            share,
            format!(
                "the apply worker waited for a lock in {} of the samples",
                percent(share)
            ),
        );
        if let Some(replica) = link.replica {
            evidence = of_holder(evidence, replica, |sample| link.worker(Some(sample)));
        }
        evidence = evidence.name("holder_server", server(link));
        found.push(evidence);
    }
    found
}

/// Adds the prepared transactions that hold a lock. Of several, nobody knows which one is to be ended.
pub(super) fn of_prepared(evidence: Evidence, gids: &[String]) -> Evidence {
    let evidence = evidence.fact(
        "prepared_transactions",
        gids.len() as f64,
        format!("the lock is held by a prepared transaction: {}", some(gids)),
    );
    match gids {
        [gid] => to_end(evidence, gid),
        _ => evidence,
    }
}

/// Adds by what a prepared transaction can be ended: its name, or, if a subscription's worker has prepared
/// it, the OID of that subscription, and the transaction's number on the publisher.
pub(super) fn to_end(evidence: Evidence, gid: &str) -> Evidence {
    let applied = || gid.strip_prefix("pg_gid_")?.split_once('_');
    let is_number = |it: &str| it.parse::<u32>().is_ok();
    match applied().filter(|(applier, xid)| is_number(applier) && is_number(xid)) {
        Some((applier, xid)) => evidence.name("applier", applier).name("applied", xid),
        None => evidence.name("gid", gid),
    }
}

/// The shares of samples in which the link's walsender runs, reads or writes, and in which it
/// cannot send.
pub(super) fn sender_shares(link: &Link<'_>) -> (f64, f64) {
    let pushed = link.pushed_share();
    let runs =
        link.walsender_share(|process| process.wait.is_none() || process.waits(&WaitType::Io));
    (runs, pushed)
}

pub(super) fn decoding(view: &View<'_>) -> Vec<Evidence> {
    let mut seen: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for link in behind(view) {
        let upstream = link.upstream.name.as_str();
        if !seen.contains(&upstream) {
            seen.push(upstream);
            found.extend(decoded(view, link));
        }
    }
    found
}

/// Evidence that the upstream of a link, which lags, decodes for longer than it may.
fn decoded(view: &View<'_>, link: &Link<'_>) -> Option<Evidence> {
    let upstream = &link.upstream.name;
    let here = |other: &&Link<'_>| {
        other.upstream.name == *upstream && other.walsender_share(|_| true) > 0.5
    };
    let all: Vec<_> = logical(view).filter(here).collect();
    let late: Vec<_> = behind(view).filter(here).collect();
    let busy: Vec<_> = late
        .iter()
        .map(|link| sender_shares(link))
        .filter(|(runs, pushed)| *runs >= DECODING_SHARE && runs > pushed)
        .collect();
    // A slot that is late alone may have a reason of its own, but a walsender that decodes
    // is none. A giant transaction is one for its slot.
    let has_giant = |link: &&Link<'_>| giant_of(link).is_some();
    let is_giant = late.len() == 1 && late.iter().any(has_giant);
    if late.len() < all.len() || busy.len() * 2 <= late.len() || is_giant {
        return None;
    }
    let runs = ratio(busy.iter().map(|(runs, _)| runs).sum(), busy.len() as f64);
    let undecoded = late
        .iter()
        .map(|link| link.stage_share(Stage::Send))
        .fold(0.0, f64::max);
    let (behind, number) = (late.len(), all.len());
    let words = format!("{behind} of {number} slots on {upstream} are behind");
    let share = percent(runs);
    let mut evidence = Evidence::of(link, runs * undecoded.max(0.5))
        .fact("slots_behind", behind as f64, words)
        .fact(
            "decoding_share",
            runs,
            format!("their walsenders decoded in {share} of the samples"),
        );
    let is_sender = |process: &Process| process.backend_type == BackendType::Walsender;
    if let Some(cpu) = link.upstream.cpu(is_sender) {
        let (ran, queued) = (percent(cpu.ran), percent(cpu.queued));
        let words =
            format!("one of them used {ran} of a core and waited for one {queued} of the time");
        evidence = evidence.fact("walsender_cpu_share", cpu.ran, words);
    }
    let scope = match behind > 1 {
        true => "every slot",
        false => "its slot",
    };
    if behind > 1 {
        evidence.at = all_slots(upstream);
    }
    let evidence = evidence.name("scope", scope);
    Some(evidence.name("setting", "logical_decoding_work_mem"))
}

/// Bytes and transactions that were written to disk, or sent before their end.
struct Spilled {
    bytes: f64,
    transactions: f64,
}

fn spilled(link: &Link<'_>) -> Option<Spilled> {
    let bytes = grown(link, |row| row.spill_bytes.saturating_add(row.stream_bytes));
    (bytes > 0.0).then(|| Spilled {
        bytes,
        // PostgreSQL counts a transaction once for both, with its first piece.
        transactions: grown(link, |row| row.spill_txns.saturating_add(row.stream_txns)).max(1.0),
    })
}

/// `logical_decoding_work_mem` in bytes.
fn work_mem(link: &Link<'_>) -> f64 {
    link.upstream
        .facts
        .number("logical_decoding_work_mem")
        .unwrap_or(65_536.0)
        * 1024.0
}

fn spill_evidence(link: &Link<'_>, spilled: &Spilled, explains: f64) -> Evidence {
    let mean = spilled.bytes / spilled.transactions;
    let (_, lag_max_ms) = link.lag_ms();
    let severity = match link.is_behind() {
        true => Severity::Lag,
        false => Severity::Note,
    };
    let mut evidence = Evidence::of(link, explains)
        .severity(severity)
        .fact(
            "spilled_bytes",
            spilled.bytes,
            format!(
                "{} in {:.0} transactions did not fit into memory",
                bytes(spilled.bytes),
                spilled.transactions
            ),
        )
        .fact("spilled_bytes_each", mean, format!("{} each", bytes(mean)))
        .fact(
            "lag_max_ms",
            lag_max_ms,
            format!("at most {} behind", seconds(lag_max_ms)),
        )
        .setting(link.upstream, "logical_decoding_work_mem");
    let writer = link.upstream.samples.iter().rev().find_map(|sample| {
        sample
            .clients
            .oldest
            .iter()
            .find(|session| session.has_xid() && session.xact_age_ms > Some(1000.0))
    });
    if let Some(session) = writer {
        evidence = evidence.session(session);
    }
    evidence
}

/// What was spilled of a giant transaction, if there is one.
fn giant_of(link: &Link<'_>) -> Option<Spilled> {
    spilled(link).filter(|spilled| {
        let mean = spilled.bytes / spilled.transactions;
        mean >= GIANT_TIMES * work_mem(link) && spilled.transactions <= 3.0
    })
}

pub(super) fn giant(view: &View<'_>) -> Vec<Evidence> {
    let giants = logical(view).filter_map(|link| Some((link, giant_of(link)?)));
    giants
        .map(|(link, spilled)| spill_evidence(link, &spilled, 0.95))
        .collect()
}

pub(super) fn spill(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in logical(view) {
        let Some(spilled) = spilled(link) else {
            continue;
        };
        let decoded = grown(link, |row| row.total_bytes).max(spilled.bytes);
        found.push(spill_evidence(
            link,
            &spilled,
            0.9 * ratio(spilled.bytes, decoded),
        ));
    }
    found
}

/// Searches of a whole table.
struct Searches {
    table: String,
    number: f64,
    rows: f64,
}

/// What the apply worker searched during the window, of the table that most rows were read of.
fn searches(link: &Link<'_>) -> Option<Searches> {
    let replica = link.replica?;
    let newest = link.subscribed(replica.last()?)?.searched.as_ref()?;
    let grown = |counter: fn(&Searched) -> u64| {
        replica.growth(|sample| {
            let searched = link.subscribed(sample)?.searched.as_ref()?;
            (searched.table == newest.table).then(|| counter(searched) as f64)
        })
    };
    Some(Searches {
        table: newest.table.clone(),
        number: grown(|searched| searched.searches),
        rows: grown(|searched| searched.rows),
    })
}

/// Rows of a table from which each search of the whole of it is a risk.
const RISKY_ROWS: f64 = 10_000.0;

/// Tables of which whole rows are compared at each change, and that have many rows and no index at the
/// subscriber, before that makes anything late.
fn unindexed(view: &View<'_>) -> Vec<Evidence> {
    let links = workers(view).filter(|link| !link.is_behind());
    let found = links.filter_map(|link| {
        let (_, published) = followed(view, link)?;
        let ours = &link.replica?.last()?.tables;
        let large = |(table, rows): &(&String, &f64)| {
            published.full.contains(*table) && **rows >= RISKY_ROWS
        };
        let tables: Vec<(&String, &f64)> = ours.unindexed.iter().filter(large).collect();
        let (table, rows) = tables.iter().max_by(|a, b| a.1.total_cmp(b.1)).copied()?;
        let all: Vec<String> = tables.iter().map(|(name, _)| (*name).clone()).collect();
        let words = format!(
            "tables with REPLICA IDENTITY FULL on {} and no index here that finds a row: {}",
            link.upstream.name,
            some(&all)
        );
        let evidence = Evidence::of(link, 0.0).severity(Severity::Risk);
        Some(
            evidence
                .fact("unindexed_tables", all.len() as f64, words)
                .fact(
                    "searched_rows",
                    *rows,
                    format!(
                        "each update or delete of {table} will search about {}",
                        counted(*rows as u64, "row")
                    ),
                )
                .name("table", table),
        )
    });
    found.collect()
}

pub(super) fn missing_index(view: &View<'_>) -> Vec<Evidence> {
    let mut found = unindexed(view);
    for link in behind(view).filter(|link| !link.is_to_relay()) {
        let Some(searches) = searches(link) else {
            continue;
        };
        // A search uses the CPU and storage, and waits for nothing else.
        let searching = link
            .worker_share(|process| process.wait.is_none() || process.waits(&WaitType::Io))
            .unwrap_or(0.0);
        let share = searching.min(link.stage_share(Stage::Flush));
        if share < PUSHED_SHARE || ratio(searches.rows, searches.number) < MANY_ROWS {
            continue;
        }
        let whole = |(_, published): (_, &Tables)| published.full.contains(&searches.table);
        let mut evidence = Evidence::of(link, 0.95 * share)
            .fact(
                "searched_rows",
                searches.rows,
                format!(
                    "{:.0} searches of the whole table {} read {}",
                    searches.number,
                    searches.table,
                    counted(searches.rows as u64, "row")
                ),
            )
            .fact(
                "searching_share",
                searching,
                format!(
                    "its apply worker ran in {} of the samples",
                    percent(searching)
                ),
            )
            .name("table", &searches.table);
        if followed(view, link).is_some_and(whole) {
            let words = format!(
                "it has REPLICA IDENTITY FULL on {}: each change is compared with whole rows",
                link.upstream.name
            );
            evidence = evidence.fact("full_identity", 1.0, words);
        }
        found.push(evidence);
    }
    found
}
