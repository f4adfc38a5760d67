//! The points of a link over a window, and for how long its replica has been behind.

use std::time::Duration;

use lockstep_wire::Lsn;

use crate::link::Link;
use crate::point::{LinkKind, Point, close};
use crate::sample::Sample;
use crate::states::BackendType;
use crate::views::Sender;
use crate::window::{EVERY, NodeWindow};

/// Commits whose times are this close count as the same: clocks are read in microseconds, and
/// not at the same instant.
const SAME_COMMIT: Duration = Duration::from_millis(5);

/// The positions on a link, with ages by the clock of this machine. Commits carry the clock of
/// the primary, so that is needed to use their times.
pub fn points(link: &Link<'_>, primary: Option<&NodeWindow>) -> Vec<Point> {
    // Most of a subscriber's positions are those that its publisher was told.
    let replica = link.replica.filter(|_| link.kind == LinkKind::Physical);
    let samples = match replica {
        Some(replica) => replica.samples.as_slice(),
        None => until_answered(link),
    };
    let mut ages = match (replica, primary) {
        (Some(replica), Some(primary)) => commit_ages(replica, primary),
        _ => Vec::new(),
    };
    ages.resize(samples.len(), CommitAges::default());
    let pairs = samples.iter().zip(ages);
    let mut points: Vec<Point> = pairs
        .filter_map(|(sample, ages)| match link.is_archived() {
            true => archived(link, sample),
            false => Some(with_ages(point(link, sample)?, sample, ages)),
        })
        .collect();
    // How far the archive is now is not known.
    let newest = samples.last().filter(|_| link.is_archived());
    if newest.is_some_and(|newest| lacks(link, newest).is_none()) {
        points.clear();
    }
    keep_told(link, &mut points);
    if link.kind == LinkKind::Logical {
        add_doubts(link, &mut points);
    }
    points
}

/// Times between replies after which a consumer that still is silent has ceased to reply.
const MISSED_REPLIES: u32 = 3;

/// How long a consumer that takes all it is sent may be silent: the walsender asks for a reply after half of
/// `wal_sender_timeout`.
fn longest_silence(upstream: &NodeWindow) -> Duration {
    let timeout = upstream.facts.number("wal_sender_timeout");
    timeout.map_or(Duration::MAX, |ms| match ms > 0.0 {
        true => milliseconds(ms / 2.0) + EVERY,
        false => Duration::MAX,
    })
}

/// Leaves only the moments that somebody knows of: of a consumer that [replies as it
/// likes](Link::replies_freely) those at which a reply has come, those since when it should have come, and
/// those at which it had told before that it has all.
fn keep_told(link: &Link<'_>, points: &mut Vec<Point>) {
    if !link.replies_freely() {
        return;
    }
    let samples = &link.upstream.samples;
    let reply = |sample: &Sample| link.sender(sample).map(|it| (it.pid, it.replied_us));
    let pairs = samples.iter().zip(samples.iter().skip(1));
    let replies: Vec<Duration> = pairs
        .filter(|(before, after)| reply(before).is_some() && reply(before) != reply(after))
        .map(|(_, after)| after.at)
        .collect();
    let gaps = replies.iter().zip(replies.iter().skip(1));
    let usual = gaps.map(|(one, next)| next.saturating_sub(*one)).max();
    let silence = usual.map_or_else(
        || longest_silence(link.upstream),
        |usual| usual * MISSED_REPLIES,
    );
    let begin = samples.first().map_or(Duration::ZERO, |first| first.at);
    points.retain(|point| {
        let before = replies.partition_point(|at| *at <= point.at);
        let last = before.checked_sub(1).and_then(|last| replies.get(last));
        let silent = point.at.saturating_sub(*last.unwrap_or(&begin));
        let has_told_all = point.told >= point.end;
        silent.is_zero() && last.is_some() || silent > silence || has_told_all
    });
}

/// The upstream's samples that are not later than the last answer of a subscriber that was asked:
/// where it has been since is not known.
fn until_answered<'a>(link: &Link<'a>) -> &'a [Sample] {
    let samples = link.upstream.samples.as_slice();
    let subscriber = link.replica.filter(|_| link.subscription.is_some());
    let last = subscriber.and_then(NodeWindow::last);
    let answered = last.and_then(|last| {
        let answered = samples.partition_point(|sample| sample.at <= last.at);
        samples.get(..answered.max(1))
    });
    answered.unwrap_or(samples)
}

/// A subscriber that was not asked may have applied all that it was ever sent: an apply worker tells
/// so only when it has nothing left to apply. So its lag is no longer than that behind what it told,
/// and no shorter than that behind what it was sent.
fn add_doubts(link: &Link<'_>, points: &mut [Point]) {
    // A replica of Lockstep tells what it has applied after each commit.
    if link.replica_name.is_some() {
        return;
    }
    let from = link.upstream_group();
    let mut most_sent = None;
    for point in points {
        let above = link.upstream.sample_at(point.at);
        let sent = above.and_then(|above| link.sender(above)?.sent_lsn);
        // While nothing is connected nothing is sent.
        let sent = *most_sent.insert(sent.max(most_sent).unwrap_or(point.end));
        let durable = link.received_by(point.at).and_then(|group| group.durable);
        let worker = applied_by_worker(link, point.at).map(|[_, most]| most);
        let applied = durable.or(worker).unwrap_or(sent).max(point.replay);
        let least = link.upstream.age_beyond(from, applied, point.at);
        point.doubt = point.age.saturating_sub(least);
    }
}

/// What the times of replayed commits say about the lag of one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct CommitAges {
    /// Age of the next commit that was seen replayed: the lag is at least that.
    least: Option<Duration>,
    /// Age of the last replayed commit: what is not replayed was committed later.
    most: Option<Duration>,
}

/// For each sample of a standby.
fn commit_ages(standby: &NodeWindow, primary: &NodeWindow) -> Vec<CommitAges> {
    let Some(clock) = primary.clock_offset_us() else {
        return Vec::new();
    };
    let us = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    // On the clock of the window, in microseconds: negative if the commit is older.
    let committed = |sample: &Sample| {
        let age_us = sample.wal.replayed_commit_age_ms? * 1000.0;
        let ahead_us = sample.clock_offset_us.saturating_sub(clock);
        // A float that does not fit becomes the nearest integer.
        Some(
            us(sample.at)
                .saturating_add(ahead_us)
                .saturating_sub(age_us as i64),
        )
    };
    let since = |at: Duration, commit: i64| {
        let age = us(at).saturating_sub(commit);
        u64::try_from(age).ok().map(Duration::from_micros)
    };
    let mut next: Option<i64> = None;
    let mut newest: Option<i64> = None;
    let mut ages: Vec<CommitAges> = Vec::with_capacity(standby.samples.len());
    for sample in standby.samples.iter().rev() {
        let commit = committed(sample);
        if let (Some(commit), Some(later)) = (commit, newest) {
            if later.saturating_sub(commit) > us(SAME_COMMIT) {
                next = newest;
            }
        }
        newest = commit.or(newest);
        ages.push(CommitAges {
            least: next.and_then(|next| since(sample.at, next)),
            most: commit.and_then(|commit| since(sample.at, commit)),
        });
    }
    ages.reverse();
    ages
}

/// Adds what commits and extension lockstep tell about the age.
fn with_ages(mut point: Point, sample: &Sample, ages: CommitAges) -> Point {
    let told = sample.extension.as_ref().and_then(|said| said.lag_ms);
    let told = told.filter(|ms| *ms > 0.0).map(milliseconds);
    if let Some(least) = ages.least.max(told).filter(|_| point.bytes() > 0) {
        point.capped = point.capped && least < point.age;
        point.age = point.age.max(least);
    }
    point.age_most = ages.most.map(|most| most.max(point.age));
    if let Some(most) = point.age_most {
        point.capped = point.capped && most.saturating_sub(point.age) > close(most);
    }
    point
}

/// Positions that a replica has reached, as far as they are known.
struct Reached {
    sent: Lsn,
    write: Lsn,
    flush: Lsn,
    replay: Lsn,
    told: Lsn,
}

/// The least and the most that an apply worker has applied, if the subscriber was asked: all that
/// ends before the message that it has received last, and that message as well if it waits for
/// another. A message is at the beginning of a change, or at the end of a commit, which nobody can
/// tell apart. The subscriber's first answer that is not earlier counts, so that a lag is no longer
/// than the true one.
fn applied_by_worker(link: &Link<'_>, at: Duration) -> Option<[Lsn; 2]> {
    let below = link.replica?.sample_from(at)?;
    let received = link.subscribed(below)?.received_lsn?;
    match link.worker(Some(below))?.waits_for_changes() {
        true => Some([received, received]),
        false => Some([Lsn::from(u64::from(received).saturating_sub(1)), received]),
    }
}

/// Bytes of a page of WAL: the WAL writer flushes whole pages while nobody commits.
const PAGE: u64 = 8192;

/// What a standby has replayed. Where the WAL that it has ends with a page, the last record may go on behind
/// it, and then no commit is there that is not replayed: it has replayed all if its startup process waits for
/// more.
fn replayed(own: &Sample) -> Option<Lsn> {
    let received = own.wal.receive.filter(|end| u64::from(*end) % PAGE == 0);
    let startup = own.process(&BackendType::Startup);
    let waits = startup.is_some_and(|startup| {
        let stopped = startup.cpu.is_some_and(|cpu| cpu.stopped);
        !stopped && startup.waits_for("RecoveryWalStream")
    });
    own.wal.replay.max(received.filter(|_| waits))
}

/// From what the replica itself says, what its upstream knows of it, and its slot.
fn reached(
    link: &Link<'_>,
    sample: &Sample,
    above: &Sample,
    own: Option<&Sample>,
    applied: Option<Lsn>,
) -> Option<Reached> {
    let sender = link.sender(above);
    let confirmed = || {
        let slot = above.slot(link.slot.as_deref()?)?;
        match link.kind {
            LinkKind::Logical => slot.confirmed_flush_lsn,
            LinkKind::Physical => slot.restart_lsn,
        }
    };
    let own_replay = own.and_then(replayed);
    // What a replica's target has counts more than what its slot confirms while nobody uses it. Beyond
    // the end of the WAL it is of a source that was set back.
    let by_state = link.replica.and_then(|node| {
        let replica = node
            .sample_at(sample.at)?
            .replica_of(link.slot.as_deref()?)?;
        let applied = replica.applied_lsn?;
        (Some(applied) <= above.end()).then_some(applied)
    });
    let replay = own_replay.or(applied.max(by_state)).or_else(confirmed)?;
    let by_worker = applied_by_worker(link, sample.at);
    let own_flush = own
        .and_then(|own| own.wal.receive)
        .map(|receive| receive.max(replay));
    let flush = own_flush
        .or_else(|| sender.and_then(|sender| sender.flush_lsn))
        .unwrap_or(replay);
    // What only receives WAL has replayed, in this sense, what it has written.
    let flush = match link.kind {
        LinkKind::Physical => flush.max(replay),
        LinkKind::Logical => flush,
    };
    // A relay knows what it has before the primary is told.
    let group = link.received_by(sample.at);
    let durable = group.and_then(|group| group.durable);
    let told = replay.max(durable.unwrap_or(replay));
    let replay = told.max(by_worker.map_or(told, |[least, _]| least));
    let flush = flush.max(durable.unwrap_or(flush));
    let own_write = own
        .and_then(|own| own.receiver.as_ref()?.written_lsn)
        .max(group.and_then(|group| group.received));
    let least = match link.kind {
        LinkKind::Physical => flush,
        LinkKind::Logical => replay,
    };
    let write = own_write
        .max(sender.and_then(|sender| sender.write_lsn))
        .map_or(least, |write| write.max(least));
    let sent = sender
        .and_then(|sender| sender.sent_lsn)
        .map_or(write, |sent| sent.max(write));
    Some(Reached {
        sent,
        write,
        flush,
        replay,
        told,
    })
}

/// Segments, the newest with them, that a standby may not have replayed to their end although it has asked
/// for all: the last record of the one before ends in the newest, which may just have been archived.
const SEGMENTS: f64 = 2.0;

/// How much longer than its interval between two questions it takes until a standby has restored a segment.
const RESTORES: Duration = Duration::from_secs(2);

/// How long a standby waits between two questions for WAL, unless it says it.
const RETRY_MS: f64 = 5_000.0;

/// The name with which pg_receivewal connects.
const RECEIVEWAL: &str = "pg_receivewal";

/// Where the last segment ends that an archive can have which the server does not fill itself: pg_receivewal
/// and copies of other programs give a segment its name when it is full.
fn filled(above: &Sample, segment: f64) -> Option<Lsn> {
    let mut receivers = above.senders.iter();
    let receiver = receivers.find(|sender| sender.application_name == RECEIVEWAL);
    let end = match receiver {
        Some(receiver) => receiver.flush_lsn.or(receiver.write_lsn),
        None => above.end(),
    };
    let (end, segment) = (u64::from(end?), segment as u64);
    Some(Lsn::from(end - end.checked_rem(segment)?))
}

/// What a standby that restores from an archive lacks of it, at one moment.
struct Lacks {
    /// Where the newest segment ends that the archive has.
    end: Lsn,
    own: Lsn,
    /// True if it has not begun with the newest segment.
    segment: bool,
    /// Time for which that segment has been there; if the server does not archive itself, the least that is
    /// known.
    for_ms: f64,
}

/// None if nothing says how far the archive is.
fn lacks(link: &Link<'_>, sample: &Sample) -> Option<Lacks> {
    let size = link.upstream.facts.number("wal_segment_size")?;
    let archives = link.upstream.archives();
    let above = link.upstream.sample_at(sample.at)?;
    let own = sample.wal.replay?;
    let end_of = |above: &Sample| match archives {
        true => above.archiver.archived_end,
        false => filled(above, size),
    };
    // Nothing was archived since the statistics began, but it may have all the same.
    let end = end_of(above).or_else(|| above.end().filter(|end| *end <= own))?;
    let is_full = |end: Lsn| end.bytes_since(own) as f64 >= size;
    let mut samples = link.upstream.samples.iter();
    let since = samples.find(|above| end_of(above).is_some_and(is_full));
    let seen_ms = since.map_or(0.0, |since| {
        sample.at.saturating_sub(since.at).as_secs_f64() * 1000.0
    });
    let archived_ms = above.archiver.archived_age_ms.filter(|_| archives);
    Some(Lacks {
        end,
        own,
        segment: is_full(end),
        for_ms: archived_ms.unwrap_or(0.0).max(seen_ms),
    })
}

/// Longest time that a standby may lack a segment which its archive has.
fn patience_ms(link: &Link<'_>) -> f64 {
    let retry = link
        .replica
        .and_then(|node| node.facts.number("wal_retrieve_retry_interval"));
    retry.unwrap_or(RETRY_MS) + RESTORES.as_secs_f64() * 1000.0
}

/// True if a standby that restores from an archive lacks a segment, and nobody knows for how long it has been
/// there: another program than the server archives it, and the window is too short.
pub(crate) fn may_lack_segment(link: &Link<'_>) -> bool {
    let Some(node) = link.replica.filter(|_| link.is_archived()) else {
        return false;
    };
    let replay = |sample: &Sample| sample.wal.replay;
    let stands = node.samples.first().and_then(replay) == node.last().and_then(replay);
    let lacks_it = |sample: &Sample| lacks(link, sample).is_some_and(|it| it.segment);
    stands && !link.upstream.archives() && node.samples.iter().all(lacks_it)
}

/// The point of a standby that restores from an archive: what is archived is there for it. None if nothing
/// says how far that is.
fn archived(link: &Link<'_>, sample: &Sample) -> Option<Point> {
    let Lacks {
        end,
        own,
        segment,
        for_ms,
    } = lacks(link, sample)?;
    let size = link.upstream.facts.number("wal_segment_size")?;
    let is_new = end.bytes_since(own) as f64 <= SEGMENTS * size && for_ms <= patience_ms(link);
    let has_all = sample.asks_for_wal() && (!segment || is_new);
    let end = if has_all { own } else { end.max(own) };
    let mut samples = link.upstream.samples.iter();
    let archives = link.upstream.archives();
    let since = samples.position(|above| match archives {
        true => above.archiver.archived_end > Some(own),
        false => filled(above, size) > Some(own),
    });
    let since = since.filter(|_| end > own);
    let at = since.and_then(|index| Some(link.upstream.samples.get(index)?.at));
    Some(Point {
        at: sample.at,
        end,
        sent: end,
        write: end,
        flush: end,
        replay: own,
        told: own,
        age: at.map_or(Duration::ZERO, |at| sample.at.saturating_sub(at)),
        doubt: Duration::ZERO,
        capped: since == Some(0),
        age_most: None,
        pushed: false,
        busy: false,
    })
}

/// Longest record that may be flushed in part, in bytes. Longer ones are rare.
const MOST_RECORD: u64 = 1024 * 1024;

/// A standby that was not asked has flushed all that there is, and the last record goes on behind it: then
/// nobody knows whether it has replayed all that it can.
fn ends_within_record(link: &Link<'_>, above: &Sample) -> bool {
    let is_unasked = link.kind == LinkKind::Physical && link.replica.is_none();
    let (Some(end), Some(inserted)) = (above.wal.flush, above.wal.insert) else {
        return false;
    };
    let sender = link.sender(above).filter(|_| is_unasked);
    let flushed = sender.is_some_and(|sender| sender.flush_lsn >= Some(end));
    let replay = sender.and_then(|sender| sender.replay_lsn);
    let rest = replay.map_or(0, |replay| end.bytes_since(replay));
    flushed && u64::from(end) % PAGE == 0 && inserted > end && (1..=MOST_RECORD).contains(&rest)
}

fn point(link: &Link<'_>, sample: &Sample) -> Option<Point> {
    let above = link.upstream.sample_at(sample.at)?;
    if ends_within_record(link, above) {
        return None;
    }
    let own = match (link.kind, link.replica) {
        (LinkKind::Physical, Some(_)) => Some(sample),
        _ => None,
    };
    let applied = |sender: &Sender| match () {
        // What a relay reports as applied is its subscribers': its own part ends on its disk.
        () if link.is_to_relay() => (sender.flush_lsn, sender.flush_lag_ms),
        () if link.flushes_on_timer(sender) => (sender.write_lsn, None),
        () => (sender.replay_lsn, sender.replay_lag_ms),
    };
    let applied = link.sender(above).map(applied);
    let position = applied.and_then(|(position, _)| position);
    let Reached {
        sent,
        write,
        flush,
        replay,
        told,
    } = reached(link, sample, above, own, position)?;
    let from = link.upstream_group();
    let end = link.upstream.end_at(from, sample.at)?;
    let (end, most) = match from {
        // After its last transaction a relay sends positions, and nothing else.
        Some(_) => (end.max(replay), end.max(replay)),
        None => (end.max(sent), Lsn::from(u64::MAX)),
    };
    let [sent, write, flush] = [sent, write, flush].map(|position| position.min(most));
    let since = link.upstream.beyond_since(from, replay);
    let age = since.map_or(Duration::ZERO, |since| sample.at.saturating_sub(since));
    // What the replica reported is finer than the time between our samples, but may be old: a
    // subscriber's is of when it told something last.
    let has_own = own.and_then(|own| own.wal.replay).is_some();
    let most_reported = match has_own || link.kind == LinkKind::Logical {
        true => EVERY.as_secs_f64() * 1000.0,
        false => f64::MAX,
    };
    let reported = applied
        .and_then(|(_, lag_ms)| lag_ms)
        .filter(|_| end > replay)
        .map_or(Duration::ZERO, |ms| milliseconds(ms.min(most_reported)));
    let below = link.replica.and_then(|node| node.sample_at(sample.at));
    Some(Point {
        at: sample.at,
        end,
        sent,
        write,
        flush,
        replay,
        told,
        age: age.max(reported),
        doubt: Duration::ZERO,
        capped: end > replay && since.is_some() && since == link.upstream.first_answer(from),
        age_most: None,
        pushed: link.is_pushed(above),
        busy: link.kind == LinkKind::Logical
            && link
                .worker(below)
                .is_some_and(|worker| !worker.waits_for_changes()),
    })
}

/// A time that a server reported; zero if it makes no sense.
fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms.max(0.0) / 1000.0).unwrap_or_default()
}
