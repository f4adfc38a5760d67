//! One stream: WAL goes out, status messages come in.
//!
//! The session's own thread sends. A second thread reads, so that the positions of a standby
//! that has stopped receiving are still read. Neither thread parses the WAL.

use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::progress::Micros;
use lockstep_wire::Lsn;
use lockstep_wire::backend::Backend;
use lockstep_wire::frame;
use lockstep_wire::frontend::Frontend;
use lockstep_wire::stream::{
    FromServer, FromStandby, MOST_WAL, Timestamp, XLOG_DATA_HEADER, xlog_data_header,
};

use super::connection::{Incoming, Outgoing, invalid};
use super::play::Play;
use super::session_state::{Session, TIMEOUT};
use lockstep_wal::segment::{PAGE, SegmentReader};

/// Bytes of a message before the WAL in it.
const HEAD: usize = frame::HEADER + XLOG_DATA_HEADER;

/// A keepalive is sent after this time without a message. It is well below a standby's
/// `wal_receiver_timeout`.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Interval at which a standby that was sent all WAL is asked how far it has replayed.
const ASK_AT_END: Duration = Duration::from_millis(200);

/// Streams until the standby or the player ends it. After an error the connection is closed.
pub(crate) fn stream(
    play: &Play,
    session: &Session,
    incoming: &mut Incoming,
    outgoing: &mut Outgoing,
) -> io::Result<()> {
    thread::scope(|scope| {
        let listener = scope.spawn(|| {
            play.pin();
            let heard = listen(play, session, incoming);
            session.ending.store(true, Ordering::SeqCst);
            play.publisher.wake();
            heard
        });
        let sent = Sender::new(play, session, outgoing).run();
        if sent.is_err() {
            // Otherwise the listener would wait for the standby's next message.
            outgoing.stream.close();
        }
        let heard = listener
            .join()
            .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        // If both have failed, return the listener's error: it explains why sending failed.
        heard.and(sent)?;
        outgoing.send(&Backend::CopyDone)
    })
}

/// Reads the standby's messages until it ends its side. An error if the connection is gone.
fn listen(play: &Play, session: &Session, incoming: &mut Incoming) -> io::Result<()> {
    let end = play.recording.end();
    loop {
        let Some(frame) = incoming.next()? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match Frontend::parse(frame).map_err(invalid)? {
            Frontend::CopyData(data) => match FromStandby::parse(data).map_err(invalid)? {
                FromStandby::Status(status) => {
                    session.note(status, end);
                    session.heard.store(Micros::now().0, Ordering::Relaxed);
                    if status.reply {
                        session.reply_wanted.store(true, Ordering::SeqCst);
                        play.publisher.wake();
                    }
                }
                // Hot standby feedback has no effect: the recorded WAL cannot change.
                FromStandby::Feedback(_) => {
                    session.heard.store(Micros::now().0, Ordering::Relaxed);
                }
            },
            Frontend::CopyDone | Frontend::CopyFail(_) => return Ok(()),
            Frontend::Terminate => {
                session.terminated.store(true, Ordering::SeqCst);
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Frontend::Query(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a command in the middle of a stream",
                ));
            }
        }
    }
}

struct Sender<'a> {
    play: &'a Play,
    session: &'a Session,
    outgoing: &'a mut Outgoing,
    reader: SegmentReader,
    /// Buffer for one message: its head and its WAL.
    message: Vec<u8>,
    sent: Lsn,
    /// When the last message was sent.
    spoke: Instant,
    /// When the standby was last asked for a reply.
    asked: Instant,
}

impl<'a> Sender<'a> {
    fn new(play: &'a Play, session: &'a Session, outgoing: &'a mut Outgoing) -> Self {
        let now = Instant::now();
        Self {
            reader: play.recording.reader(),
            message: vec![0; HEAD + MOST_WAL],
            sent: Lsn::from(session.sent.load(Ordering::Relaxed)),
            spoke: now,
            asked: now,
            play,
            session,
            outgoing,
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let (session, publisher) = (self.session, &self.play.publisher);
        while !session.ending.load(Ordering::SeqCst) && !publisher.is_closing() {
            if session.reply_wanted.swap(false, Ordering::SeqCst) {
                self.keepalive(false)?;
            }
            let published = publisher.published();
            if published > self.sent {
                self.piece(published)?;
                continue;
            }
            self.when_idle()?;
            publisher.wait(self.sent, || {
                !session.ending.load(Ordering::SeqCst)
                    && !session.reply_wanted.load(Ordering::SeqCst)
            });
        }
        Ok(())
    }

    /// Sends the next piece of WAL: up to 128 kB of one segment. If more WAL is published, the
    /// piece ends at a page boundary, since records may be split only there.
    fn piece(&mut self, published: Lsn) -> io::Result<()> {
        let start = u64::from(self.sent);
        let size = self.play.recording.segment_size();
        let segment_end = u64::from(size.start_of(self.sent)) + size.bytes();
        let mut end = (start + MOST_WAL as u64)
            .min(u64::from(published))
            .min(segment_end);
        if end < u64::from(published) && end - end % PAGE > start {
            end -= end % PAGE;
        }
        let length = usize::try_from(end - start).unwrap_or(MOST_WAL);
        let (head, wal) = self.message.split_at_mut(HEAD);
        let wal = wal.get_mut(..length).ok_or(io::ErrorKind::InvalidInput)?;
        self.reader.read(self.sent, wal)?;
        let data = xlog_data_header(self.sent, published, clock());
        put_head(head, length, data);
        let message = self.message.get(..HEAD + length);
        self.outgoing
            .stream
            .write_all(message.ok_or(io::ErrorKind::InvalidInput)?)?;
        self.sent = Lsn::from(end);
        self.session.sent.store(end, Ordering::Relaxed);
        self.session
            .bytes
            .fetch_add(length as u64, Ordering::Relaxed);
        self.spoke = Instant::now();
        Ok(())
    }

    /// Called while there is no WAL to send: sends keepalives, asks for a reply when one is due,
    /// and fails if the standby has been silent for [`TIMEOUT`].
    fn when_idle(&mut self) -> io::Result<()> {
        let end = self.play.recording.end();
        let all_sent = self.sent >= end;
        let silent = self.session.silent_for();
        if silent > TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let ask = match all_sent && !self.session.has_end() {
            true => self.asked.elapsed() >= ASK_AT_END,
            false => silent > TIMEOUT / 2 && self.asked.elapsed() >= TIMEOUT / 4,
        };
        if ask {
            self.asked = Instant::now();
            return self.keepalive(true);
        }
        match self.spoke.elapsed() >= KEEPALIVE {
            true => self.keepalive(false),
            false => Ok(()),
        }
    }

    fn keepalive(&mut self, reply: bool) -> io::Result<()> {
        let mut data = Vec::new();
        FromServer::Keepalive {
            end: self.play.publisher.published(),
            sent_at: clock(),
            reply,
        }
        .encode(&mut data);
        self.spoke = Instant::now();
        self.outgoing.send(&Backend::CopyData(&data))
    }
}

fn put_head(head: &mut [u8], length: usize, data: [u8; XLOG_DATA_HEADER]) {
    // A message is far below 4 GB. Its length field counts itself.
    let counted = u32::try_from(4 + XLOG_DATA_HEADER + length).unwrap_or(u32::MAX);
    let bytes = [b'd'].into_iter().chain(counted.to_be_bytes()).chain(data);
    for (place, byte) in head.iter_mut().zip(bytes) {
        *place = byte;
    }
}

fn clock() -> Timestamp {
    Timestamp::from_unix_micros(Micros::now().0)
}
