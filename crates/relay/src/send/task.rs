//! The task of one session: drives its [`Sender`] between the log and the client.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockstep_service::clock;
use lockstep_spool::{End, FileStorage, LogError, Read, Reader};
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{self, FRONTEND_LIMIT};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::stream::{FromServer, FromStandby};
use lockstep_wire::{Lsn, WireError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tracing::{info, warn};

use super::sender::{Action, Event, Onward, Sender};
use crate::group::{Group, Phase, Reading};
use crate::session::{After, Canceled, Client, Stream, Terminated, canceled, told};
use crate::slots::{InUse, Slot};

/// Frames that are handed out at once, in bytes.
const READ_BYTES: usize = 256 * 1024;

/// Pieces are gathered into one write up to this size, in bytes.
const WRITE_BYTES: usize = 64 * 1024;

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
    /// Tells the session to end.
    pub terminated: Terminated,
    /// Tells it to end the stream only.
    pub canceled: Canceled,
}

/// Where a slot goes on.
#[derive(Debug, Clone)]
pub enum Next {
    /// The slot goes on in another group, from this key on.
    Group(Arc<Group>, Lsn),
    /// The slot goes on at the primary, from this key on: the session ends there.
    Primary(Lsn),
}

impl From<&Next> for Onward {
    fn from(next: &Next) -> Self {
        match next {
            Next::Group(_, at) => Self::Group(*at),
            Next::Primary(at) => Self::Primary(*at),
        }
    }
}

impl Stream for Sending {
    async fn run(self, mut client: Client) -> io::Result<(Client, After)> {
        // Given back at the end.
        let in_use = self.in_use;
        let slot = in_use.slot().clone();
        info!(slot = slot.name, group = self.group.name(), from = %self.from, "streaming begins");
        put(&mut client.writer, &Backend::CopyBothResponse).await?;
        let next = self.next.as_ref().map(Onward::from);
        let sender = Sender::new(
            &slot.name,
            slot.confirmed(),
            self.from,
            next,
            Instant::now(),
        );
        let Client { reader, writer } = client;
        let mut task = Task {
            client: Heard {
                reader,
                bytes: Vec::with_capacity(1024),
                sender,
                slot: slot.clone(),
                group: self.group.clone(),
            },
            writer,
            ended: slot.ended(),
            group: self.group,
            next: self.next,
            stop: self.stop,
            terminated: self.terminated,
            canceled: self.canceled,
            source: None,
            frames: Frames::default(),
        };
        let after = task.run().await?;
        info!(slot = slot.name, confirmed = %slot.confirmed(), "streaming has ended");
        let Task { client, writer, .. } = task;
        let reader: Box<dyn AsyncRead + Send + Unpin> = match client.bytes.is_empty() {
            true => client.reader,
            false => Box::new(io::Cursor::new(client.bytes).chain(client.reader)),
        };
        Ok((Client { reader, writer }, after))
    }
}

struct Task {
    client: Heard,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    group: Arc<Group>,
    next: Option<Next>,
    /// Turns true when the relay stops, or the slot is dropped.
    stop: watch::Receiver<bool>,
    ended: watch::Receiver<bool>,
    terminated: Terminated,
    canceled: Canceled,
    source: Option<Source>,
    /// What was read last.
    frames: Frames,
}

/// What a sender reads, and how it learns of more.
struct Source {
    reader: Reader<FileStorage>,
    log: watch::Receiver<End>,
    phase: watch::Receiver<Phase>,
    _reading: Reading,
}

/// What was read and is to be written, and what is counted then.
#[derive(Debug, Default)]
struct Frames {
    pieces: Vec<Bytes>,
    hit_bytes: u64,
    miss_bytes: u64,
    sent: Lsn,
    behind: u64,
}

impl Task {
    async fn run(&mut self) -> io::Result<After> {
        loop {
            let now = Instant::now();
            let sender = &mut self.client.sender;
            if *self.stop.borrow() {
                sender.handle(Event::Stop, now);
            }
            if let Some(report) = &*self.terminated.borrow() {
                sender.handle(Event::Terminated(report.clone()), now);
            }
            if *self.ended.borrow() {
                sender.handle(Event::Dropped, now);
            }
            // An error is that the session is not there any more.
            if self.canceled.has_changed().unwrap_or_default() {
                self.canceled.mark_unchanged();
                sender.handle(Event::Canceled, now);
            }
            let event = match sender.poll(now) {
                Action::Open { from, before } => self.open(from, before),
                Action::Read => self.read(),
                Action::Write => self.write().await?,
                Action::Keepalive { end, reply } => self.keepalive(end, reply).await?,
                Action::Wait(most) => self.wait(most).await?,
                Action::Pause(time) => {
                    let pause = tokio::time::sleep(time);
                    self.client.during(pause, Sender::is_over).await?;
                    Event::Done
                }
                Action::Hear(time) => self.hear(time).await?,
                Action::NextGroup => self.next_group(),
                Action::EndCopy => self.end_copy().await?,
                Action::Cancel => {
                    cancel(&mut self.writer).await?;
                    return Ok(After::Idle);
                }
                Action::Finish { ended } => {
                    finish(&mut self.writer, ended).await?;
                    return Ok(After::Idle);
                }
                Action::End { why, say } => {
                    self.end(why, say).await?;
                    return Ok(After::Closed);
                }
            };
            self.client.sender.handle(event, Instant::now());
        }
    }

    fn open(&mut self, from: Lsn, before: Option<Lsn>) -> Event {
        let log = self.group.log();
        let mut reader = match log.reader(from) {
            Ok(reader) => reader,
            Err(error) => return self.unreadable(error),
        };
        if let Some(before) = before {
            reader.stop_before(before);
        }
        self.source = Some(Source {
            reader,
            log: log.watch(),
            phase: self.group.phase(),
            _reading: self.group.enter_reader(),
        });
        Event::Done
    }

    fn read(&mut self) -> Event {
        let Some(source) = &mut self.source else {
            return Event::Limit;
        };
        // What comes after this look is seen by the next wait.
        source.log.borrow_and_update();
        let reader = &mut source.reader;
        match reader.read(READ_BYTES) {
            Ok(Read::Frames {
                pieces,
                hit_bytes,
                miss_bytes,
            }) => {
                self.frames = Frames {
                    pieces,
                    hit_bytes,
                    miss_bytes,
                    sent: reader.sent(),
                    behind: reader.behind(),
                };
                Event::Frames {
                    sent: reader.sent(),
                    within: reader.within_frame(),
                }
            }
            Ok(Read::Nothing { covered }) => {
                let sent = reader.sent().max(covered);
                self.client.slot.progress(sent, 0);
                Event::Nothing { covered }
            }
            Ok(Read::Limit) => Event::Limit,
            Ok(Read::Cut) => Event::Cut,
            Err(error) => self.unreadable(error),
        }
    }

    /// The slot stands as failed if it can never go on.
    fn unreadable(&self, error: LogError) -> Event {
        if matches!(error, LogError::Gone { .. } | LogError::Corrupt { .. }) {
            self.client.slot.fail(error.to_string());
        }
        Event::Unreadable(error)
    }

    async fn write(&mut self) -> io::Result<Event> {
        let frames = std::mem::take(&mut self.frames);
        let work = write(&mut self.writer, &frames.pieces);
        if self.client.while_writing(work).await?.is_some() {
            let slot = &self.client.slot;
            slot.count(frames.hit_bytes, frames.miss_bytes);
            slot.progress(frames.sent, frames.behind);
        }
        Ok(Event::Done)
    }

    async fn keepalive(&mut self, end: Lsn, reply: bool) -> io::Result<Event> {
        let mut data = Vec::new();
        FromServer::Keepalive {
            end,
            sent_at: clock::timestamp(),
            reply,
        }
        .encode(&mut data);
        let message = Backend::CopyData(&data);
        let work = put(&mut self.writer, &message);
        self.client.while_writing(work).await?;
        Ok(Event::Done)
    }

    async fn end_copy(&mut self) -> io::Result<Event> {
        let slot = &self.client.slot;
        info!(
            slot = slot.name,
            confirmed = %slot.confirmed(),
            "streaming ends: the slot goes back to the primary"
        );
        let work = put(&mut self.writer, &Backend::CopyDone);
        self.client.while_writing(work).await?;
        Ok(Event::Done)
    }

    /// Waits until there may be something to do.
    async fn wait(&mut self, most: Duration) -> io::Result<Event> {
        let Some(source) = &mut self.source else {
            return Ok(Event::Woken { sessions: 0 });
        };
        if let Phase::Failed(report) = &*source.phase.borrow_and_update() {
            return Ok(Event::GroupFailed((**report).clone()));
        }
        let (stop, ended) = (&mut self.stop, &mut self.ended);
        let (terminated, mut canceled) = (&mut self.terminated, self.canceled.clone());
        let work = async {
            tokio::select! {
                _ = source.log.changed() => {}
                _ = source.phase.changed() => {}
                _ = ended.changed() => {}
                _ = stop.changed() => {}
                _ = terminated.changed() => {}
                () = told(&mut canceled) => {}
                () = tokio::time::sleep(most) => {}
            }
        };
        self.client.during(work, Sender::is_urgent).await?;
        Ok(Event::Woken {
            sessions: self.group.readers(),
        })
    }

    /// Hears the client, whatever becomes of log and group.
    async fn hear(&mut self, time: Duration) -> io::Result<Event> {
        let (stop, ended) = (&mut self.stop, &mut self.ended);
        let (terminated, mut canceled) = (&mut self.terminated, self.canceled.clone());
        let work = async {
            tokio::select! {
                _ = ended.changed() => {}
                _ = stop.changed() => {}
                _ = terminated.changed() => {}
                () = told(&mut canceled) => {}
                () = tokio::time::sleep(time) => {}
            }
        };
        self.client.during(work, Sender::is_urgent).await?;
        Ok(Event::Done)
    }

    async fn end(&mut self, why: Option<Report>, say: bool) -> io::Result<()> {
        let Some(why) = why else {
            return Ok(());
        };
        warn!(
            slot = self.client.slot.name,
            error = why.message,
            detail = why.detail,
            "streaming ends"
        );
        match say {
            true => put(&mut self.writer, &Backend::ErrorResponse(why)).await,
            false => Ok(()),
        }
    }

    fn next_group(&mut self) -> Event {
        if let Some(Next::Group(group, at)) = self.next.take() {
            let slot = &self.client.slot;
            info!(slot = slot.name, group = group.name(), %at, "goes on in another group");
            self.source = None;
            self.client.group = group.clone();
            self.group = group;
        }
        Event::Done
    }
}

/// The client's side of a session, heard while something else is done.
struct Heard {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    /// What has come of the next message, or after the end of the copy.
    bytes: Vec<u8>,
    sender: Sender,
    slot: Arc<Slot>,
    group: Arc<Group>,
}

impl Heard {
    /// Does something while the client is heard. None: it was given up.
    async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
        given_up: fn(&Sender) -> bool,
    ) -> io::Result<Option<T>> {
        tokio::pin!(work);
        while !given_up(&self.sender) {
            tokio::select! {
                done = &mut work => return Ok(Some(done)),
                message = hear(&mut self.reader, &mut self.bytes), if self.sender.hears() => {
                    match message? {
                        Message::Feedback(feedback) => self.heed(&feedback),
                        Message::Event(event) => self.sender.handle(event, Instant::now()),
                    }
                }
            }
        }
        Ok(None)
    }

    /// Writes while the client is heard. None: it was given up, as when the client neither
    /// takes nor says anything.
    async fn while_writing(
        &mut self,
        work: impl Future<Output = io::Result<()>>,
    ) -> io::Result<Option<()>> {
        let began = Instant::now();
        tokio::pin!(work);
        while !self.sender.is_over() {
            let limit = self.sender.gives_up_write_at(began);
            let step = tokio::time::timeout_at(limit.into(), &mut work);
            match self.during(step, Sender::is_over).await? {
                Some(Ok(written)) => return written.map(Some),
                Some(Err(_)) if Instant::now() >= self.sender.gives_up_write_at(began) => {
                    let event = self.sender.takes_nothing();
                    self.sender.handle(event, Instant::now());
                }
                Some(Err(_)) => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn heed(&mut self, feedback: &FromStandby) {
        if let Some(heard) = self.sender.heard(feedback, Instant::now()) {
            self.slot.confirm(heard.flushed);
            self.slot.note(heard.written, heard.applied);
            self.group.synchronous.heard();
        }
    }
}

/// What a client has sent.
enum Message {
    Feedback(FromStandby),
    Event(Event),
}

/// The client's next message. May be dropped and called again: what has come is kept.
async fn hear(reader: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<Message> {
    loop {
        match first_message(bytes) {
            Ok(Some((message, length))) => {
                bytes.drain(..length);
                return Ok(message);
            }
            Ok(None) => {}
            Err(error) => {
                let report = Report::fatal(
                    "08P01",
                    format!("invalid message of the subscriber: {error}"),
                );
                return Ok(Message::Event(Event::ClientGone(Some(report))));
            }
        }
        // A frame is at most FRONTEND_LIMIT, so this is bounded.
        if reader.read_buf(bytes).await? == 0 {
            return Ok(Message::Event(Event::ClientGone(None)));
        }
    }
}

/// The first message, if all of it has come, and its length.
fn first_message(bytes: &[u8]) -> Result<Option<(Message, usize)>, WireError> {
    let Some((frame, length)) = frame::first(bytes, FRONTEND_LIMIT)? else {
        return Ok(None);
    };
    let message = match Frontend::parse(frame)? {
        Frontend::CopyData(data) => Message::Feedback(FromStandby::parse(data)?),
        Frontend::CopyDone => Message::Event(Event::ClientDone),
        Frontend::Terminate => Message::Event(Event::ClientGone(None)),
        Frontend::CopyFail(_) | Frontend::Query(_) => {
            let report = Report::fatal(
                "08P01",
                "unexpected message of the subscriber while streaming",
            );
            Message::Event(Event::ClientGone(Some(report)))
        }
    };
    Ok(Some((message, length)))
}

async fn put<W: AsyncWrite + Unpin>(writer: &mut W, message: &Backend<'_>) -> io::Result<()> {
    let mut out = Vec::new();
    message.encode(&mut out);
    writer.write_all(&out).await?;
    writer.flush().await
}

/// Writes pieces, small ones together.
async fn write<W: AsyncWrite + Unpin>(writer: &mut W, pieces: &[Bytes]) -> io::Result<()> {
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

/// What a walsender sends whose client has canceled the stream.
async fn cancel<W: AsyncWrite + Unpin>(writer: &mut W) -> io::Result<()> {
    let mut out = Vec::new();
    Backend::ErrorResponse(canceled()).encode(&mut out);
    Backend::ReadyForQuery(b'I').encode(&mut out);
    writer.write_all(&out).await?;
    writer.flush().await
}

/// What a walsender sends when the client has ended the copy. Where it was `ended` here first,
/// libpqwalreceiver takes one `CommandComplete` and no more.
async fn finish<W: AsyncWrite + Unpin>(writer: &mut W, ended: bool) -> io::Result<()> {
    let mut out = Vec::new();
    if !ended {
        Backend::CopyDone.encode(&mut out);
        Backend::CommandComplete("COPY 0").encode(&mut out);
    }
    Backend::CommandComplete("START_REPLICATION").encode(&mut out);
    Backend::ReadyForQuery(b'I').encode(&mut out);
    writer.write_all(&out).await?;
    writer.flush().await
}
