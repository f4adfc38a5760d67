//! One connection to the player: its start, and its commands.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_wire::backend::{Backend, Column, INT4, INT8, Report, TEXT};
use lockstep_wire::command::Command;
use lockstep_wire::frame::FRONTEND_LIMIT;
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{self, Replication, Startup};
use lockstep_wire::{Lsn, Timeline, WireError};

use super::connection::{Incoming, Outgoing, invalid};
use super::listener::Stream;
use super::play::{MOST_SESSIONS, Play};
use super::publisher::locked;
use super::session_state::{Session, TIMEOUT};
use super::status::SessionState;
use super::streaming;
use lockstep_wal::segment::history_name;

/// How long a client may take to send its startup packet.
const STARTUP_PATIENCE: Duration = Duration::from_secs(60);

/// Most packets before a session starts: one request for each kind of encryption, then the
/// startup packet.
const MOST_FIRST_PACKETS: usize = 4;

/// Newest minor version of protocol 3 that the player speaks.
const MINOR: u16 = 0;

/// From major 16 on `IDENTIFY_SYSTEM` returns the timeline as int8.
const TIMELINES_ARE_INT8: u32 = 16;

/// Serves a connection until it ends. With `full` it is refused for lack of a place.
pub(crate) fn serve(play: &Play, session: &Session, stream: Stream, full: bool) {
    let result = Talk::begin(play, session, stream, full);
    let talked = match result {
        Ok(Some(mut talk)) => talk.commands(),
        Ok(None) => Ok(SessionState::Left),
        Err(error) => Err(error),
    };
    session.set_state(match talked {
        Ok(state) => state,
        Err(_) if session.terminated.load(Ordering::SeqCst) => SessionState::Left,
        Err(_) => SessionState::Lost,
    });
    if play.publisher.is_closing() {
        return;
    }
    if let Err(error) = &talked {
        if error.kind() == io::ErrorKind::InvalidData {
            play.notice(format!("{} was disconnected: {error}", session.name()));
        }
    }
    if session.went_away() {
        play.notice(format!(
            "{} asked for our system identifier and timeline and left without streaming; read its log: \
             if they differ from its own ({} and timeline {} here), set it up again from {}",
            session.name(),
            play.recording.system_identifier(),
            play.recording.timeline(),
            play.recording.base().display(),
        ));
    }
}

/// The messages of one session.
struct Talk<'a> {
    play: &'a Play,
    session: &'a Session,
    incoming: Incoming,
    outgoing: Outgoing,
}

/// A command's failure. `Told` goes to the client, which may send further commands; `Broken`
/// ends the connection.
enum Failure {
    Told(Report),
    Broken(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<Report> for Failure {
    fn from(report: Report) -> Self {
        Self::Told(report)
    }
}

type Answer = Result<&'static str, Failure>;

impl<'a> Talk<'a> {
    /// Handles the packets before a session. None if no session follows.
    fn begin(
        play: &'a Play,
        session: &'a Session,
        stream: Stream,
        full: bool,
    ) -> io::Result<Option<Self>> {
        stream.set_timeouts(Some(STARTUP_PATIENCE), Some(TIMEOUT))?;
        let mut talk = Self {
            play,
            session,
            incoming: Incoming::new(stream.again()?, FRONTEND_LIMIT),
            outgoing: Outgoing::new(stream),
        };
        for _ in 0..MOST_FIRST_PACKETS {
            match talk.incoming.startup()? {
                Some(Startup::SslRequest | Startup::GssEncRequest) => {
                    io::Write::write_all(&mut talk.outgoing.stream, b"N")?;
                }
                Some(Startup::Session(start)) => {
                    let told = talk.greet(&start, full)?;
                    talk.outgoing.stream.set_timeouts(None, Some(TIMEOUT))?;
                    return Ok(told.then_some(talk));
                }
                Some(Startup::CancelRequest { .. }) | None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Accepts or refuses the session; false if it is refused.
    fn greet(&mut self, start: &startup::Session, full: bool) -> io::Result<bool> {
        let given = |name: &str| start.text(name).unwrap_or_default();
        let name = &*given("application_name");
        name.clone_into(&mut locked(&self.session.about).application_name);
        if let Some(refusal) = refusal(start, full) {
            self.outgoing.send(&Backend::ErrorResponse(refusal))?;
            return Ok(false);
        }
        self.outgoing.put(&Backend::AuthenticationOk);
        let unknown: Vec<&str> = start.protocol_options().collect();
        if start.minor > MINOR || !unknown.is_empty() {
            self.outgoing.put(&Backend::NegotiateProtocolVersion {
                minor: MINOR.into(),
                unknown,
            });
        }
        let facts = &self.play.recording.facts;
        let recorded = |name: &str| facts.settings.get(name).map_or("", String::as_str);
        let user = &*given("user");
        let encoding = start.text("client_encoding");
        for (name, value) in [
            ("application_name", name),
            (
                "client_encoding",
                encoding.as_deref().unwrap_or("SQL_ASCII"),
            ),
            ("DateStyle", "ISO, MDY"),
            ("default_transaction_read_only", "off"),
            ("in_hot_standby", "off"),
            ("integer_datetimes", "on"),
            ("IntervalStyle", "postgres"),
            ("is_superuser", "off"),
            ("server_encoding", recorded("server_encoding")),
            ("server_version", &facts.server_version),
            ("session_authorization", user),
            ("standard_conforming_strings", "on"),
            ("TimeZone", recorded("TimeZone")),
        ] {
            self.outgoing.put(&Backend::ParameterStatus { name, value });
        }
        let process = u32::try_from(self.session.number).unwrap_or(u32::MAX);
        self.outgoing.put(&Backend::BackendKeyData {
            process,
            secret: &[0; 4],
        });
        self.ready()?;
        Ok(true)
    }

    fn ready(&mut self) -> io::Result<()> {
        self.outgoing.send(&Backend::ReadyForQuery(b'I'))
    }

    /// Answers commands until the client leaves.
    fn commands(&mut self) -> io::Result<SessionState> {
        loop {
            let command = match self.incoming.next()? {
                None => return Ok(SessionState::Lost),
                Some(frame) => match Frontend::parse(frame).map_err(invalid)? {
                    Frontend::Query(text) => Command::parse(text),
                    Frontend::Terminate => return Ok(SessionState::Left),
                    // Late messages of a stream that has ended.
                    Frontend::CopyData(_) | Frontend::CopyDone | Frontend::CopyFail(_) => continue,
                },
            };
            match self.answer(command) {
                Ok(tag) => self.outgoing.put(&Backend::CommandComplete(tag)),
                Err(Failure::Told(report)) => {
                    self.outgoing.put(&Backend::ErrorResponse(report));
                }
                Err(Failure::Broken(error)) => return Err(error),
            }
            self.ready()?;
        }
    }

    fn answer(&mut self, command: Result<Command, WireError>) -> Answer {
        let command =
            command.map_err(|error| Report::error("42601", format!("syntax error: {error}")))?;
        match command {
            Command::IdentifySystem => Ok(self.identify()),
            Command::Show { name } => self.show(&name),
            Command::ReadReplicationSlot { slot } => Ok(self.read_slot(&slot)),
            Command::CreatePhysicalSlot {
                slot,
                temporary,
                reserve_wal,
            } => self.create_slot(&slot, temporary, reserve_wal),
            Command::DropReplicationSlot { slot, .. } => {
                locked(&self.play.slots).drop_slot(&slot, self.session.number)?;
                Ok("DROP_REPLICATION_SLOT")
            }
            Command::TimelineHistory { timeline } => self.timeline_history(timeline),
            Command::StartReplication {
                slot,
                start,
                timeline,
            } => self.start_replication(slot.as_deref(), start, timeline),
            Command::Other("BASE_BACKUP") => Err(Report::error(
                "0A000",
                "the WAL player serves no base backups",
            )
            .hint(format!(
                "Copy {} instead.",
                self.play.recording.base().display()
            ))
            .into()),
            Command::CreateLogicalSlot { .. }
            | Command::AlterReplicationSlot { .. }
            | Command::StartLogical { .. }
            | Command::Other(_)
            | Command::Sql => Err(Report::error(
                "0A000",
                "the WAL player understands only commands of physical replication",
            )
            .into()),
        }
    }

    /// Sends one row of text.
    fn row(&mut self, columns: &[(&str, u32)], values: &[Option<&[u8]>]) {
        let columns = columns
            .iter()
            .map(|&(name, kind)| Column { name, kind })
            .collect();
        self.outgoing.put(&Backend::RowDescription(columns));
        self.outgoing.put(&Backend::DataRow(values.to_vec()));
    }

    /// The position that `IDENTIFY_SYSTEM` returns. Walreceivers of newer minor releases compare it
    /// with the position at which they want to begin, and ask again until it is reached. Before
    /// the play begins the published position does not move, so a client that asks again is given
    /// the recording's end.
    fn position_to_tell(&self) -> Lsn {
        let mut about = locked(&self.session.about);
        about.asked = about.asked.saturating_add(1);
        let end = self.play.recording.end();
        let position = match self.play.publisher.begun() {
            None if about.asked > 1 => end,
            _ => self.play.publisher.published(),
        };
        let in_vain = about.asked > 2 && position == end && about.start.is_none();
        drop(about);
        if in_vain {
            self.play.notice(format!(
                "{} asks again and again and does not stream: read its log; if it is ahead of the \
                 recording's end {end}, set it up again from {}",
                self.session.name(),
                self.play.recording.base().display(),
            ));
        }
        position
    }

    fn identify(&mut self) -> &'static str {
        let position = self.position_to_tell().to_string();
        let recording = &self.play.recording;
        let system = recording.system_identifier().to_string();
        let timeline = recording.timeline().to_string();
        let kind = match recording.major() >= TIMELINES_ARE_INT8 {
            true => INT8,
            false => INT4,
        };
        self.row(
            &[
                ("systemid", TEXT),
                ("timeline", kind),
                ("xlogpos", TEXT),
                ("dbname", TEXT),
            ],
            &[
                Some(system.as_bytes()),
                Some(timeline.as_bytes()),
                Some(position.as_bytes()),
                None,
            ],
        );
        "IDENTIFY_SYSTEM"
    }

    fn show(&mut self, name: &str) -> Answer {
        let facts = &self.play.recording.facts;
        let value = match name {
            "wal_segment_size" => facts.size.shown(),
            "server_version" => facts.server_version.clone(),
            "in_hot_standby" | "transaction_read_only" => "off".to_owned(),
            _ => facts
                .settings
                .iter()
                .find(|(recorded, _)| recorded.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.clone())
                .ok_or_else(|| {
                    Report::error(
                        "42704",
                        format!("the WAL player does not know the setting \"{name}\""),
                    )
                })?,
        };
        self.row(&[(name, TEXT)], &[Some(value.as_bytes())]);
        Ok("SHOW")
    }

    fn read_slot(&mut self, name: &str) -> &'static str {
        let slot = locked(&self.play.slots).get(name).cloned();
        let restart = slot.as_ref().and_then(|slot| slot.restart);
        let restart = restart.map(|lsn| lsn.to_string());
        let timeline = restart
            .as_ref()
            .map(|_| self.play.recording.timeline().to_string());
        self.row(
            &[
                ("slot_type", TEXT),
                ("restart_lsn", TEXT),
                ("restart_tli", INT8),
            ],
            &[
                slot.as_ref().map(|_| &b"physical"[..]),
                restart.as_deref().map(str::as_bytes),
                timeline.as_deref().map(str::as_bytes),
            ],
        );
        "READ_REPLICATION_SLOT"
    }

    fn create_slot(&mut self, name: &str, temporary: bool, reserve_wal: bool) -> Answer {
        let restart = reserve_wal.then(|| self.play.publisher.published());
        let owner = temporary.then_some(self.session.number);
        locked(&self.play.slots).create(name, owner, restart)?;
        self.row(
            &[
                ("slot_name", TEXT),
                ("consistent_point", TEXT),
                ("snapshot_name", TEXT),
                ("output_plugin", TEXT),
            ],
            &[Some(name.as_bytes()), Some(b"0/0"), None, None],
        );
        Ok("CREATE_REPLICATION_SLOT")
    }

    fn timeline_history(&mut self, timeline: Timeline) -> Answer {
        let name = history_name(timeline);
        let content = self.play.recording.history(timeline).map_err(|error| {
            Report::error("58P01", format!("cannot read \"{name}\": {error}"))
                .hint("The recording has no such timeline.")
        })?;
        self.row(
            &[("filename", TEXT), ("content", TEXT)],
            &[Some(name.as_bytes()), Some(&content)],
        );
        Ok("TIMELINE_HISTORY")
    }

    fn start_replication(
        &mut self,
        slot: Option<&str>,
        start: Lsn,
        timeline: Option<Timeline>,
    ) -> Answer {
        if let Err(report) = self.may_start(start, timeline) {
            locked(&self.session.about).refused = true;
            self.play.notice(format!(
                "{} was refused: {}. {}",
                self.session.name(),
                report.message,
                report.hint.clone().unwrap_or_default()
            ));
            return Err(report.into());
        }
        if let Some(slot) = slot {
            locked(&self.play.slots).acquire(slot, self.session.number)?;
        }
        self.session.begin_stream(start);
        let streamed = self
            .outgoing
            .send(&Backend::CopyBothResponse)
            .and_then(|()| {
                self.play.begin_if_enough();
                streaming::stream(
                    self.play,
                    self.session,
                    &mut self.incoming,
                    &mut self.outgoing,
                )
            });
        if let Some(slot) = slot {
            let sent = Lsn::from(self.session.sent.load(Ordering::Relaxed));
            locked(&self.play.slots).release(slot, self.session.number, sent);
        }
        streamed?;
        self.session.set_state(SessionState::Asking);
        // A walsender sends both tags, and some clients wait for the second.
        self.outgoing
            .put(&Backend::CommandComplete("START_STREAMING"));
        Ok("START_REPLICATION")
    }

    fn may_start(&self, start: Lsn, timeline: Option<Timeline>) -> Result<(), Report> {
        let recording = &self.play.recording;
        let ours = recording.timeline();
        if let Some(timeline) = timeline.filter(|&timeline| timeline != ours) {
            return Err(Report::error(
                "55000",
                format!("requested timeline {timeline}, but the recording is of timeline {ours}"),
            )
            .hint(format!(
                "Make the standby from {}.",
                recording.base().display()
            )));
        }
        if start > recording.end() {
            return Err(Report::error(
                "55000",
                format!(
                    "requested starting point {start} is ahead of the recording's end {}",
                    recording.end()
                ),
            )
            .hint(format!(
                "The standby has replayed more than is recorded: set it up again from {}.",
                recording.base().display()
            )));
        }
        if start < recording.first() {
            let name = recording.segment_size().file_name(ours, start);
            return Err(Report::error(
                "58P01",
                format!("requested WAL segment {name} has already been removed"),
            )
            .hint(format!(
                "The recording begins at {}: make the standby from {}.",
                recording.first(),
                recording.base().display()
            )));
        }
        Ok(())
    }
}

/// Why a session is refused; None if it is accepted.
fn refusal(start: &startup::Session, full: bool) -> Option<Report> {
    if !matches!(
        start.replication(),
        Replication::Physical | Replication::Logical
    ) {
        return Some(
            Report::fatal(
                "0A000",
                "this is the WAL player of lockstep, which serves only replication",
            )
            .hint("Name it in a standby's primary_conninfo."),
        );
    }
    full.then(|| Report::fatal("53300", format!("all {MOST_SESSIONS} places are taken")))
}
