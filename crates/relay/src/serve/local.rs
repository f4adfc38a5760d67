//! Sessions that the relay answers itself: the console, and those whose connection to the
//! primary was closed when streaming began.

use bytes::BytesMut;
use lockstep_wire::WireError;
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{Frame, HEADER};
use lockstep_wire::frontend::Frontend;
use tokio::io::AsyncWriteExt;

use super::frames::{FrameReader, ReadError, split};
use super::pump::QUERY_LIMIT;
use super::stop::Stop;
use super::transport::{Reader, Writer, after, close_with, message};
use crate::session::Client;

/// A session without a primary.
pub(super) struct Local {
    frames: FrameReader<Reader>,
    writer: Writer,
    /// An error in the extended protocol: everything up to the next Sync is thrown away.
    ignoring: bool,
    /// Whether messages of the extended protocol are asked for.
    extended: bool,
}

/// What a client asks for.
pub(super) enum Asked {
    Query(String),
    /// A Parse, Bind, Describe, Execute, Close or Flush, whole.
    Extended(BytesMut),
    /// A Sync, which is answered already.
    Synced,
}

/// What one message led to.
enum Heard {
    Asked(Asked),
    /// A message that needs nothing more.
    Nothing,
    Left,
}

impl Local {
    pub fn new(client: Client) -> Self {
        Self {
            frames: FrameReader::new(client.reader),
            writer: client.writer,
            ignoring: false,
            extended: false,
        }
    }

    /// A session that speaks the extended protocol.
    pub fn extended(client: Client) -> Self {
        Self {
            extended: true,
            ..Self::new(client)
        }
    }

    /// The connection, with what was read too much.
    pub fn into_client(self) -> Client {
        let (reader, left) = self.frames.into_parts();
        Client {
            reader: after(left, reader),
            writer: self.writer,
        }
    }

    /// The next query; None when the session is over.
    pub async fn query(mut self, stop: &mut Stop) -> Option<(Self, String)> {
        loop {
            match self.asked(stop).await? {
                (next, Asked::Query(text)) => return Some((next, text)),
                (next, Asked::Extended(_) | Asked::Synced) => self = next,
            }
        }
    }

    /// What is asked for next; None when the session is over.
    pub async fn asked(mut self, stop: &mut Stop) -> Option<(Self, Asked)> {
        loop {
            match self.hear(stop).await {
                Ok(Heard::Asked(asked)) => return Some((self, asked)),
                Ok(Heard::Nothing) => {}
                Ok(Heard::Left) | Err(Over::Gone) => return None,
                Err(Over::Report(report)) => {
                    close_with(self.into_client(), &message(report)).await;
                    return None;
                }
            }
        }
    }

    /// Sends whole messages.
    pub async fn reply(&mut self, messages: &[u8]) -> std::io::Result<()> {
        self.writer.write_all(messages).await?;
        self.writer.flush().await
    }

    /// Sends an error that the session survives.
    pub async fn refuse(&mut self, report: Report) -> std::io::Result<()> {
        self.reply(&answer(message(report))).await
    }

    /// Sends an error of the extended protocol; nothing more counts up to the next Sync.
    pub async fn fail(&mut self, messages: &[u8]) -> std::io::Result<()> {
        self.ignoring = true;
        self.reply(messages).await
    }

    /// Resolves when the client has left.
    pub async fn left(&mut self) {
        self.frames.end(QUERY_LIMIT).await;
    }

    async fn hear(&mut self, stop: &mut Stop) -> Result<Heard, Over> {
        let header = tokio::select! {
            header = self.frames.header() => header?,
            () = stop.told() => return Err(Over::Report(stop.why())),
        };
        let Some((tag, length)) = header else {
            return Ok(Heard::Left);
        };
        match tag {
            b'Q' if !self.ignoring && length <= QUERY_LIMIT => return self.hear_query(stop).await,
            b'P' | b'B' | b'D' | b'E' | b'C' | b'H'
                if self.extended && !self.ignoring && length <= QUERY_LIMIT =>
            {
                return Ok(match self.whole(stop).await? {
                    Some(whole) => Heard::Asked(Asked::Extended(whole)),
                    None => Heard::Left,
                });
            }
            b'X' => return Ok(Heard::Left),
            // A copy that has ended may be followed by what was on its way.
            b'Q' | b'S' | b'F' | b'P' | b'B' | b'E' | b'D' | b'C' | b'H' | b'd' | b'c' | b'f' => {}
            tag => {
                let what = format!("invalid frontend message type {tag}");
                return Err(Over::Report(Report::fatal("08P01", what)));
            }
        }
        self.frames.skip(length);
        match tag {
            b'S' => {
                self.ignoring = false;
                self.reply(&answer(Vec::new())).await?;
                return Ok(Heard::Asked(Asked::Synced));
            }
            b'Q' if !self.ignoring => {
                let what = format!("a query of {length} bytes is longer than {QUERY_LIMIT}");
                self.refuse(Report::error("54000", what)).await?;
            }
            b'F' if !self.ignoring => self.refuse(simple_only()).await?,
            b'P' | b'B' | b'E' | b'D' | b'C' if !self.ignoring => {
                let report = match self.extended {
                    true => {
                        let what =
                            format!("a message of {length} bytes is longer than {QUERY_LIMIT}");
                        Report::error("54000", what)
                    }
                    false => simple_only(),
                };
                self.fail(&message(report)).await?;
            }
            _ => {}
        }
        Ok(Heard::Nothing)
    }

    async fn whole(&mut self, stop: &mut Stop) -> Result<Option<BytesMut>, Over> {
        tokio::select! {
            whole = self.frames.message(QUERY_LIMIT) => Ok(whole?),
            () = stop.told() => Err(Over::Report(stop.why())),
        }
    }

    async fn hear_query(&mut self, stop: &mut Stop) -> Result<Heard, Over> {
        let Some(whole) = self.whole(stop).await? else {
            return Ok(Heard::Left);
        };
        match query_text(&whole) {
            Ok(text) => Ok(Heard::Asked(Asked::Query(text.to_owned()))),
            Err(error) => {
                self.refuse(Report::error("08P01", format!("invalid query: {error}")))
                    .await?;
                Ok(Heard::Nothing)
            }
        }
    }
}

/// Why a session is over.
enum Over {
    Gone,
    Report(Report),
}

impl From<ReadError> for Over {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(_) => Self::Gone,
            ReadError::Wire(error) => {
                Self::Report(Report::fatal("08P01", format!("invalid message: {error}")))
            }
        }
    }
}

impl From<std::io::Error> for Over {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

/// Messages and the `ReadyForQuery` behind them.
pub(super) fn answer(mut messages: Vec<u8>) -> Vec<u8> {
    Backend::ReadyForQuery(b'I').encode(&mut messages);
    messages
}

/// The text of a whole message with a query.
pub(super) fn query_text(whole: &[u8]) -> Result<&str, WireError> {
    debug_assert!(whole.len() >= HEADER);
    let (tag, body) = split(whole);
    match Frontend::parse(Frame { tag, body })? {
        Frontend::Query(text) => Ok(text),
        _ => Err(WireError::UnknownMessage(tag)),
    }
}

fn simple_only() -> Report {
    Report::error("0A000", "the relay itself only takes simple queries here")
        .hint("Reconnect, or use a client in simple query mode.")
}
