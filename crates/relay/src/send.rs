//! Streams one slot to one client: the walsender's part.
//!
//! Two halves in one task: the sender reads the log and writes frames; the receiver reads
//! the client's feedback, also while a write waits for a slow client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{self, FRONTEND_LIMIT};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::stream::{FromServer, FromStandby};
use lockstep_wire::{Lsn, WireError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::clock;
use crate::group::{Group, Phase, Reading};
use crate::log::{FileStorage, LogError, Read, Reader};
use crate::session::{After, Client, Stream};
use crate::slots::{InUse, Slot};

/// Frames that are handed out at once, in bytes.
const READ_BYTES: usize = 256 * 1024;

/// Pieces are gathered into one write up to this size, in bytes.
const WRITE_BYTES: usize = 64 * 1024;

/// A session that has just sent waits so long for more, for each other session of its
/// group. A wake-up and a write cost many times what a small transaction's bytes do, so many
/// sessions share fewer of them; one alone never waits.
const PACE: Duration = Duration::from_micros(300);

/// Longest such wait.
const LONGEST_PACE: Duration = Duration::from_millis(5);

/// A client that is sent nothing learns how far the stream is this often.
const COVER_EVERY: Duration = Duration::from_secs(1);

/// A client that says nothing is asked after this time and left after twice that; the
/// same as `wal_sender_timeout` by default.
const ASK_AFTER: Duration = Duration::from_secs(30);

/// A stream that is about to begin.
#[derive(Debug)]
pub struct Sending {
    /// The slot, taken for this session.
    pub in_use: InUse,
    /// Where it reads.
    pub group: Arc<Group>,
    /// Where it goes on after that.
    pub next: Option<Next>,
    /// The first key to send.
    pub from: Lsn,
    /// Turns true when the relay stops.
    pub stop: watch::Receiver<bool>,
}

/// Where a slot goes on.
#[derive(Debug, Clone)]
pub enum Next {
    /// In another group, from this key on.
    Group(Arc<Group>, Lsn),
    /// On the primary, from this key on: the session ends there.
    Primary(Lsn),
}

impl Next {
    fn at(&self) -> Lsn {
        match self {
            Self::Group(_, at) | Self::Primary(at) => *at,
        }
    }
}

/// What the two halves tell each other.
#[derive(Debug, Default)]
struct Halves {
    /// The client has ended its side.
    done: AtomicBool,
    /// The client wants an answer at once.
    asked: AtomicBool,
    changed: Notify,
    /// The highest position that the client was told of.
    offered: AtomicU64,
    /// Counts messages of the client.
    heard: AtomicU64,
}

/// How the receiver ended.
enum Received {
    /// The client ended the copy; what it sent after that.
    Done(Vec<u8>),
    /// The client left, or sent what it must not.
    Closed(Option<Report>),
}

/// How the sender ended.
enum Sent {
    /// The client ended the copy, and was answered.
    Done,
    /// With this error, which the client has not been told yet.
    Failed(Report),
}

impl Stream for Sending {
    async fn run(self, mut client: Client) -> io::Result<(Client, After)> {
        let slot = self.in_use.slot().clone();
        info!(slot = slot.name, group = self.group.name(), from = %self.from, "streaming begins");
        let shared = Halves::default();
        shared.offered.store(self.from.into(), Ordering::Relaxed);
        let mut sender = Sender::new(&self, &shared);
        put(&mut client, &Backend::CopyBothResponse).await?;
        let (ended, rest) = {
            let receive = receive(&mut client.reader, &shared, &slot);
            let send = sender.run(&mut client.writer);
            tokio::pin!(receive, send);
            let mut rest = None;
            loop {
                tokio::select! {
                    received = &mut receive, if rest.is_none() => match received? {
                        Received::Done(bytes) => {
                            rest = Some(bytes);
                            shared.done.store(true, Ordering::Release);
                            shared.changed.notify_one();
                        }
                        Received::Closed(report) => break (report.map(Sent::Failed), None),
                    },
                    sent = &mut send => break (Some(sent?), rest),
                }
            }
        };
        let after = match ended {
            Some(Sent::Done) => After::Idle,
            Some(Sent::Failed(report)) => {
                warn!(
                    slot = slot.name,
                    error = report.message,
                    detail = report.detail,
                    "streaming ends"
                );
                // Within a frame it would be taken for a part of a row.
                if !sender.midway {
                    put(&mut client, &Backend::ErrorResponse(report)).await?;
                }
                After::Closed
            }
            None => After::Closed,
        };
        info!(slot = slot.name, confirmed = %slot.confirmed(), "streaming has ended");
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            client.reader = Box::new(io::Cursor::new(rest).chain(client.reader));
        }
        Ok((client, after))
    }
}

async fn put(client: &mut Client, message: &Backend<'_>) -> io::Result<()> {
    let mut out = Vec::new();
    message.encode(&mut out);
    client.writer.write_all(&out).await?;
    client.writer.flush().await
}

/// Reads what the client sends until it ends the copy or leaves.
async fn receive(
    reader: &mut (impl tokio::io::AsyncRead + Unpin),
    shared: &Halves,
    slot: &Slot,
) -> io::Result<Received> {
    let violation = |error: WireError| {
        let report = Report::fatal(
            "08P01",
            format!("invalid message of the subscriber: {error}"),
        );
        Ok(Received::Closed(Some(report)))
    };
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let mut used = 0;
        loop {
            let left = bytes.get(used..).unwrap_or_default();
            let (frame, length) = match frame::first(left, FRONTEND_LIMIT) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) => return violation(error),
            };
            let message = match Frontend::parse(frame) {
                Ok(message) => message,
                Err(error) => return violation(error),
            };
            used += length;
            match message {
                Frontend::CopyData(data) => match FromStandby::parse(data) {
                    Ok(feedback) => heed(feedback, shared, slot),
                    Err(error) => return violation(error),
                },
                Frontend::CopyDone => {
                    return Ok(Received::Done(bytes.split_off(used)));
                }
                Frontend::Terminate => return Ok(Received::Closed(None)),
                Frontend::CopyFail(_) | Frontend::Query(_) => {
                    let report = Report::fatal(
                        "08P01",
                        "unexpected message of the subscriber while streaming",
                    );
                    return Ok(Received::Closed(Some(report)));
                }
            }
        }
        bytes.drain(..used);
        // A frame is at most FRONTEND_LIMIT, so this is bounded.
        if reader.read_buf(&mut bytes).await? == 0 {
            return Ok(Received::Closed(None));
        }
    }
}

fn heed(feedback: FromStandby, shared: &Halves, slot: &Slot) {
    shared.heard.fetch_add(1, Ordering::Relaxed);
    let FromStandby::Status(status) = feedback else {
        return;
    };
    // Nobody can have made durable what was never sent.
    let offered = Lsn::from(shared.offered.load(Ordering::Acquire));
    slot.confirm(status.flushed.min(offered));
    slot.note(status.written.min(offered), status.applied.min(offered));
    if status.reply {
        shared.asked.store(true, Ordering::Release);
        shared.changed.notify_one();
    }
}

/// The sending half.
struct Sender<'a> {
    slot: Arc<Slot>,
    group: Arc<Group>,
    next: Option<Next>,
    from: Lsn,
    stop: watch::Receiver<bool>,
    shared: &'a Halves,
    /// Last position that a keepalive told, and when.
    told: Lsn,
    told_at: Instant,
    heard: u64,
    heard_at: Instant,
    asked_at: Option<Instant>,
    sent_at: Instant,
    /// What the client was sent may end within a message.
    midway: bool,
}

/// What a sender reads, and how it learns of more.
struct Source {
    reader: Reader<FileStorage>,
    log: watch::Receiver<crate::log::End>,
    phase: watch::Receiver<Phase>,
    _reading: Reading,
}

impl<'a> Sender<'a> {
    fn new(streaming: &Sending, shared: &'a Halves) -> Self {
        let now = Instant::now();
        Self {
            slot: streaming.in_use.slot().clone(),
            group: streaming.group.clone(),
            next: streaming.next.clone(),
            from: streaming.from,
            stop: streaming.stop.clone(),
            shared,
            told: streaming.from,
            told_at: now,
            heard: 0,
            heard_at: now,
            asked_at: None,
            sent_at: now,
            midway: false,
        }
    }

    /// Lets more gather, where there are many sessions and this one has just sent.
    async fn pace(&self) {
        let others = self.group.readers().saturating_sub(1);
        let interval = PACE.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX));
        let until = self.sent_at + interval.min(LONGEST_PACE);
        if Instant::now() < until {
            tokio::time::sleep_until(until).await;
        }
    }

    /// What is read from now on.
    fn source(&self) -> Result<Source, Report> {
        let log = self.group.log();
        let opened = log.reader(self.from);
        let mut reader = opened.map_err(|error| self.unreadable(&error))?;
        if let Some(next) = &self.next {
            reader.stop_before(next.at());
        }
        Ok(Source {
            reader,
            log: log.watch(),
            phase: self.group.phase(),
            _reading: self.group.enter_reader(),
        })
    }

    async fn run<W: tokio::io::AsyncWrite + Unpin>(&mut self, writer: &mut W) -> io::Result<Sent> {
        let mut source = match self.source() {
            Ok(source) => source,
            Err(report) => return Ok(Sent::Failed(report)),
        };
        let mut ended = self.slot.ended();
        loop {
            if self.shared.done.load(Ordering::Acquire) {
                return finish(writer).await.map(|()| Sent::Done);
            }
            if let Some(report) = self.is_over(&ended) {
                return Ok(Sent::Failed(report));
            }
            // What comes after this look is seen by the wait below.
            source.log.borrow_and_update();
            let reader = &mut source.reader;
            let switches = match reader.read(READ_BYTES) {
                Ok(Read::Frames {
                    pieces,
                    hit_bytes,
                    miss_bytes,
                }) => {
                    // Before it is sent: the answer may come while this waits.
                    self.offer(reader.sent());
                    self.midway = true;
                    write(writer, &pieces).await?;
                    self.midway = reader.within_frame();
                    self.sent_at = Instant::now();
                    self.slot.count(hit_bytes, miss_bytes);
                    self.slot.progress(reader.sent(), reader.behind());
                    false
                }
                Ok(Read::Limit) => true,
                Ok(Read::Nothing { covered })
                    if self.next.as_ref().is_some_and(|next| covered >= next.at()) =>
                {
                    true
                }
                Ok(Read::Nothing { covered }) => {
                    self.slot.progress(reader.sent().max(covered), 0);
                    self.keepalive(writer, covered).await?;
                    if let Some(report) = self.wait(&mut source, &mut ended).await {
                        return Ok(Sent::Failed(report));
                    }
                    self.pace().await;
                    false
                }
                Ok(Read::Cut) => return Ok(Sent::Failed(cut())),
                Err(error) => return Ok(Sent::Failed(self.unreadable(&error))),
            };
            if switches {
                source = match self.switch(writer).await? {
                    Ok(next) => next,
                    Err(report) => return Ok(Sent::Failed(report)),
                };
            }
        }
    }

    /// Why nothing more may be sent, if so.
    fn is_over(&self, ended: &watch::Receiver<bool>) -> Option<Report> {
        if *self.stop.borrow() {
            return Some(stopping());
        }
        ended.borrow().then(|| {
            let slot = &self.slot.name;
            Report::fatal(
                "55000",
                format!("replication slot \"{slot}\" was dropped in the relay"),
            )
        })
    }

    /// Goes on in the next group, or lets the client confirm all that it was sent and
    /// sends it to the primary.
    async fn switch<W: tokio::io::AsyncWrite + Unpin>(
        &mut self,
        writer: &mut W,
    ) -> io::Result<Result<Source, Report>> {
        match self.next.take() {
            Some(Next::Group(group, at)) => {
                info!(slot = self.slot.name, group = group.name(), %at, "goes on in another group");
                self.group = group;
                self.from = self.from.max(at);
            }
            Some(Next::Primary(at)) => {
                while self.slot.confirmed() < at
                    && self.silence() < ASK_AFTER
                    && !self.shared.done.load(Ordering::Acquire)
                {
                    self.tell(writer, at, true).await?;
                    let _ = tokio::time::timeout(COVER_EVERY, self.shared.changed.notified()).await;
                }
                let report = Report::error(
                    "57P01",
                    format!(
                        "replication slot \"{}\" goes back to the primary at {at}",
                        self.slot.name
                    ),
                );
                return Ok(Err(report.hint("Connect again.")));
            }
            None => {}
        }
        Ok(self.source())
    }

    fn offer(&self, lsn: Lsn) {
        self.shared.offered.fetch_max(lsn.into(), Ordering::AcqRel);
    }

    /// Tells the client how far the stream is, if it asked, if that has moved for a while,
    /// or if nothing was heard of it.
    async fn keepalive<W: tokio::io::AsyncWrite + Unpin>(
        &mut self,
        writer: &mut W,
        covered: Lsn,
    ) -> io::Result<()> {
        let asked = self.shared.asked.swap(false, Ordering::AcqRel);
        let moved = covered > self.told && self.told_at.elapsed() >= COVER_EVERY;
        let ask = self.asked_at.is_none() && self.silence() >= ASK_AFTER;
        if !(asked || moved || ask) {
            return Ok(());
        }
        self.tell(writer, covered, ask).await?;
        if ask {
            self.asked_at = Some(self.told_at);
        }
        Ok(())
    }

    /// Sends a keepalive.
    async fn tell<W: tokio::io::AsyncWrite + Unpin>(
        &mut self,
        writer: &mut W,
        end: Lsn,
        reply: bool,
    ) -> io::Result<()> {
        self.offer(end);
        let mut data = Vec::new();
        FromServer::Keepalive {
            end,
            sent_at: clock::now(),
            reply,
        }
        .encode(&mut data);
        let mut out = Vec::new();
        Backend::CopyData(&data).encode(&mut out);
        let midway = std::mem::replace(&mut self.midway, true);
        writer.write_all(&out).await?;
        writer.flush().await?;
        self.midway = midway;
        self.told = end;
        self.told_at = Instant::now();
        Ok(())
    }

    /// How long the client has been silent.
    fn silence(&mut self) -> Duration {
        let heard = self.shared.heard.load(Ordering::Relaxed);
        if heard != self.heard {
            self.heard = heard;
            self.heard_at = Instant::now();
            self.asked_at = None;
        }
        self.heard_at.elapsed()
    }

    /// Waits until there may be something to do. Some: it is over.
    async fn wait(
        &mut self,
        source: &mut Source,
        ended: &mut watch::Receiver<bool>,
    ) -> Option<Report> {
        let Source { log, phase, .. } = source;
        if let Phase::Failed(report) = &*phase.borrow_and_update() {
            return Some((**report).clone());
        }
        if self.silence() >= 2 * ASK_AFTER {
            return Some(Report::fatal(
                "57P05",
                "terminating: the subscriber did not answer in time",
            ));
        }
        let Self { stop, shared, .. } = self;
        tokio::select! {
            _ = log.changed() => {}
            _ = phase.changed() => {}
            _ = ended.changed() => {}
            _ = stop.changed() => {}
            () = shared.changed.notified() => {}
            () = tokio::time::sleep(COVER_EVERY) => {}
        }
        None
    }

    fn unreadable(&self, error: &LogError) -> Report {
        let slot = &self.slot.name;
        let report = match error {
            LogError::Gone { .. } => Report::error(
                "55000",
                format!("replication slot \"{slot}\" cannot go on at {}", self.from),
            ),
            LogError::Corrupt { .. } => Report::error(
                "XX001",
                format!("the relay's spool is damaged where replication slot \"{slot}\" reads"),
            ),
            _ => Report::error(
                "58030",
                format!("replication slot \"{slot}\" cannot be read"),
            ),
        };
        report
            .detail(error.to_string())
            .hint("If this does not pass, drop the subscription and create it anew with its initial copy.")
    }
}

fn cut() -> Report {
    let report = Report::error(
        "57P01",
        "the relay lost its connection to the primary within a transaction",
    );
    report.hint("Connect again: the transaction will be sent from its start.")
}

fn stopping() -> Report {
    Report::fatal("57P01", "terminating connection because the relay stops")
}

/// Writes pieces, small ones together.
async fn write<W: tokio::io::AsyncWrite + Unpin>(
    writer: &mut W,
    pieces: &[Bytes],
) -> io::Result<()> {
    let mut gathered = Vec::new();
    for piece in pieces {
        if gathered.len() + piece.len() > WRITE_BYTES && !gathered.is_empty() {
            writer.write_all(&gathered).await?;
            gathered.clear();
        }
        match piece.len() >= WRITE_BYTES || pieces.len() == 1 {
            true => writer.write_all(piece).await?,
            false => gathered.extend_from_slice(piece),
        }
    }
    if !gathered.is_empty() {
        writer.write_all(&gathered).await?;
    }
    writer.flush().await
}

/// What a walsender sends when both sides have ended the copy.
async fn finish<W: tokio::io::AsyncWrite + Unpin>(writer: &mut W) -> io::Result<()> {
    let mut out = Vec::new();
    for message in [
        Backend::CopyDone,
        Backend::CommandComplete("COPY 0"),
        Backend::CommandComplete("START_REPLICATION"),
        Backend::ReadyForQuery(b'I'),
    ] {
        message.encode(&mut out);
    }
    writer.write_all(&out).await?;
    writer.flush().await
}
