//! The newest WAL of a running server, by physical replication.
//!
//! No slot is used: the server keeps no WAL for us. It is told what has come here, as it waits for that
//! before it shuts down, and never that something was flushed: so a primary that waits for
//! standbys does not count us as one.

use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo, Next, Purpose, Stream};
use lockstep_wire::stream::{FromServer, FromStandby, Status};
use lockstep_wire::{Lsn, Timeline};

use crate::memory::WalInMemory;
use crate::reader::{Identity, Reader};
use crate::segment::{LONG_HEADER, PageHeader, SegmentSize, major_of};
use crate::{Result, WalError};

/// What a connection of ours is called.
const APPLICATION: &str = "lockstep wal analyze";

/// SQLSTATE of a segment that the server has removed.
const REMOVED: &str = "58P01";

/// Most times that WAL which the server has just listed may be gone before less is asked for.
const TRIES: u32 = 3;

/// Longest sleep before the clock is looked at.
const NAP: Duration = Duration::from_millis(200);

/// How long the server may send nothing while it has WAL for us.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most bytes that are read, which are in memory: what a busy server writes meanwhile counts.
pub const MOST_BYTES: u64 = 4 << 30;

/// How much to read.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// The newest bytes to read, in whole segments at the beginning.
    pub bytes: u64,
    /// Then what is written meanwhile, for so long.
    pub longer: Duration,
}

/// WAL that a server has sent.
#[derive(Debug)]
pub struct Streamed {
    pub timeline: Timeline,
    pub major: u32,
    pub identity: Identity,
    /// Whether this WAL begins where the oldest WAL of the server does.
    pub from_oldest: bool,
    wal: WalInMemory,
}

impl Streamed {
    /// Reads from the server at a conninfo. Where the server has removed some of what is asked for, what
    /// is left; an error only if it removes its newest WAL, too, before that is read.
    pub fn read(conninfo: &Conninfo, amount: Amount) -> Result<Self> {
        let mut bytes = amount.bytes;
        let mut tries = 0;
        loop {
            let mut listed = false;
            match Self::try_read(conninfo, Amount { bytes, ..amount }, &mut listed) {
                Err(WalError::Removing(_)) if listed && tries + 1 < TRIES => tries += 1,
                Err(WalError::Removing(_)) if bytes > 0 => {
                    tries = 0;
                    bytes /= 2;
                }
                other => return other,
            }
        }
    }

    /// Sets whether the server has listed its WAL: then what has gone went just now.
    fn try_read(conninfo: &Conninfo, amount: Amount, listed: &mut bool) -> Result<Self> {
        let mut connection = Connection::connect(conninfo, Purpose::Replication, APPLICATION)?;
        let server = connection.identify()?;
        let size = segment_size(&mut connection)?;
        let from = u64::from(server.end).saturating_sub(amount.bytes);
        let start = size.start_of(Lsn::from(from.max(size.bytes())));
        let oldest = oldest(&mut connection, server.timeline, size)?;
        *listed = oldest.is_some();
        let start = oldest.map_or(start, |oldest| start.max(oldest));
        let name = connection.server()?.host;
        let stream = connection.start_physical(start, server.timeline);
        let stream = stream.map_err(|error| removing(error.into()))?;
        let received = Receiving::new(stream, start, server.end).all(amount);
        let bytes = received.map_err(removing)?;
        let first = bytes.first_chunk::<LONG_HEADER>().map(PageHeader::parse);
        let header = first.ok_or_else(|| WalError::Sent("there is none".to_owned()))?;
        let major = major_of(header.magic).ok_or_else(|| {
            WalError::Sent(format!(
                "its pages begin with {:04X}, and PostgreSQL 15 to 19 are supported",
                header.magic
            ))
        })?;
        Ok(Self {
            timeline: server.timeline,
            major,
            identity: Identity {
                magic: header.magic,
                size,
                system: server.system,
            },
            from_oldest: oldest == Some(start),
            wal: WalInMemory { start, bytes, name },
        })
    }

    /// The server's host.
    pub fn name(&self) -> &str {
        &self.wal.name
    }

    /// A reader of it. Call it once: it takes the bytes.
    pub fn reader(&mut self) -> Reader<WalInMemory> {
        let wal = WalInMemory {
            start: self.wal.start,
            bytes: std::mem::take(&mut self.wal.bytes),
            name: self.wal.name.clone(),
        };
        Reader::new(wal, self.identity, self.wal.start)
    }
}

/// The error of a server that has removed what it was to send.
fn removing(error: WalError) -> WalError {
    match error {
        WalError::Server(ClientError::Refused(refusal)) if refusal.sqlstate == REMOVED => {
            WalError::Removing(refusal.message)
        }
        other => other,
    }
}

/// The server's segment size.
fn segment_size(connection: &mut Connection) -> Result<SegmentSize> {
    let rows = connection.query(
        "SELECT s.setting FROM pg_catalog.pg_settings AS s \
         WHERE s.name OPERATOR(pg_catalog.=) 'wal_segment_size'",
    )?;
    let text = rows
        .into_iter()
        .next()
        .and_then(|row| row.into_iter().next());
    let bytes = text.flatten().and_then(|text| text.parse().ok());
    bytes
        .and_then(SegmentSize::new)
        .ok_or_else(|| WalError::Sent("its segments have no size that there is".to_owned()))
}

/// Where the oldest segment of the timeline begins that the server has; None if the role may not list
/// them, or if there is none.
fn oldest(
    connection: &mut Connection,
    timeline: Timeline,
    size: SegmentSize,
) -> Result<Option<Lsn>> {
    let sql = format!(
        "SELECT pg_catalog.min(w.name) FROM pg_catalog.pg_ls_waldir() AS w \
         WHERE w.name OPERATOR(pg_catalog.~) '^{}[0-9A-F]{{16}}$'",
        format_args!("{:08X}", timeline.get())
    );
    let rows = match connection.query(&sql) {
        Ok(rows) => rows,
        Err(error) if error.refusal().is_some() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let name = rows
        .into_iter()
        .next()
        .and_then(|row| row.into_iter().next());
    let place = name.flatten().and_then(|name| size.place_of(&name));
    Ok(place.map(|(_, start)| start))
}

/// A stream that is read.
struct Receiving {
    stream: Stream,
    start: Lsn,
    /// Where the server's WAL ended at first.
    end: Lsn,
    bytes: Vec<u8>,
}

impl Receiving {
    fn new(stream: Stream, start: Lsn, end: Lsn) -> Self {
        Self {
            stream,
            start,
            end,
            bytes: Vec::new(),
        }
    }

    /// All up to the end, and what comes afterwards as long as it is wanted.
    fn all(mut self, amount: Amount) -> Result<Vec<u8>> {
        let began = Instant::now();
        let mut heard = began;
        loop {
            let is_caught_up = self.position() >= self.end;
            let is_full = self.bytes.len() as u64 >= MOST_BYTES;
            if is_full || is_caught_up && began.elapsed() >= amount.longer {
                return Ok(self.bytes);
            }
            match self.stream.next()? {
                Next::Data(data) => {
                    heard = Instant::now();
                    self.take(&data)?;
                }
                Next::NotYet if !is_caught_up && heard.elapsed() > PATIENCE => {
                    return Err(ClientError::TimedOut {
                        what: "send WAL".to_owned(),
                        seconds: PATIENCE.as_secs(),
                    }
                    .into());
                }
                Next::NotYet => {
                    self.stream.wait(None, NAP)?;
                }
                Next::Ended => return Ok(self.bytes),
            }
        }
    }

    fn position(&self) -> Lsn {
        Lsn::from(u64::from(self.start).saturating_add(self.bytes.len() as u64))
    }

    fn take(&mut self, data: &[u8]) -> Result<()> {
        let message = FromServer::parse(data);
        match message.map_err(|error| WalError::Sent(error.to_string()))? {
            FromServer::XLogData { start, wal, .. } if start == self.position() => {
                self.bytes.extend_from_slice(wal);
            }
            FromServer::XLogData { start, .. } => {
                let reason = format!("after {} came {start}", self.position());
                return Err(WalError::Sent(reason));
            }
            FromServer::Keepalive { reply: true, .. } => {
                let status = Status {
                    written: self.position(),
                    ..Status::default()
                };
                self.stream.send(&FromStandby::Status(status))?;
            }
            FromServer::Keepalive { reply: false, .. } => {}
        }
        Ok(())
    }
}
