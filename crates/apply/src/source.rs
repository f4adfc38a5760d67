//! The source of a stream: whether it can go on where the replica stands, and the stream from there.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_client::quote::publication_names;
use lockstep_client::{Connection, Purpose, field};
use lockstep_intake::continuity::{FollowedSource, SourceFound};
use lockstep_wire::{Lsn, Timeline};

use crate::continuity::{Holder, gap};
use crate::control::Control;
use crate::error::{ApplyError, Result};
use crate::limited::LimitedStream;
use crate::settings::Settings;

/// Longest time that the source may take to end its stream.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// A connection to the source, and what is wrong with the publication there.
type Begun = (Connection, Option<String>);

/// A connection to the source that is made while the target is asked where it stands. Nobody waits for it if
/// the target refuses.
pub(crate) struct Beginning(JoinHandle<Result<Begun>>);

impl Beginning {
    /// Begins to connect, and to look at the publication.
    pub fn new(settings: &Settings) -> Result<Self> {
        let settings = settings.clone();
        let thread = thread::Builder::new().name("apply source".to_owned());
        let thread = thread.spawn(move || {
            let mut connection = connect(&settings)?;
            let altered = altered(&settings, &mut connection)?;
            Ok((connection, altered))
        });
        let no_thread = |error| ApplyError::System(format!("no thread can be started: {error}"));
        thread.map(Self).map_err(no_thread)
    }

    /// The source, once it goes on where the target stands, with the publication as it should be. Where it
    /// stands is asked only now, right before it streams: nobody else is to move the slot in between.
    pub fn continues(self, settings: &Settings, known: &FollowedSource) -> Result<Source> {
        let (connection, altered) = (self.0.join()).unwrap_or_else(|panic| resume_unwind(panic))?;
        let moved = |now| known.timeline.is_some_and(|before| before != now);
        let source = Source::of(connection, settings, moved)?;
        if let Some(words) = gap(known, &source.found, &settings.slot, Holder::Target) {
            return Err(ApplyError::Gap(words));
        }
        altered.map_or(Ok(source), |words| Err(ApplyError::Publication(words)))
    }
}

fn connect(settings: &Settings) -> Result<Connection> {
    let name = &settings.application_name;
    let connection = Connection::connect(&settings.source, Purpose::Replication, name);
    connection.map_err(ApplyError::Source)
}

/// What is wrong with the publication, if anybody minds.
fn altered(settings: &Settings, source: &mut Connection) -> Result<Option<String>> {
    let expected = settings.published.as_ref();
    let altered = expected.map(|expected| expected.altered(source));
    let altered = altered.transpose().map_err(ApplyError::Source)?;
    Ok(altered.flatten())
}

/// A source that was asked where it stands.
pub(crate) struct Source {
    connection: Connection,
    pub found: SourceFound,
}

impl Source {
    /// Connects, and asks the source what it says of itself and the slot.
    pub fn ask(settings: &Settings) -> Result<Self> {
        Self::of(connect(settings)?, settings, |_| true)
    }

    /// Asks a connection. The source's history is asked for if `wanted` says so of its timeline.
    fn of(
        mut connection: Connection,
        settings: &Settings,
        wanted: impl Fn(Timeline) -> bool,
    ) -> Result<Self> {
        let found = find(&mut connection, &settings.slot, wanted).map_err(ApplyError::Source)?;
        Ok(Self { connection, found })
    }

    /// Checks that the publication is as it should be.
    pub fn check_published(&mut self, settings: &Settings) -> Result<()> {
        let altered = altered(settings, &mut self.connection)?;
        altered.map_or(Ok(()), |words| Err(ApplyError::Publication(words)))
    }

    /// Everything that commits after `from`, or after what the slot confirms if that is later.
    pub fn stream(
        self,
        settings: &Settings,
        from: Lsn,
        control: &Control,
    ) -> Result<LimitedStream> {
        let publications = publication_names(&settings.publications).map_err(ApplyError::Source)?;
        let mut options = vec![
            ("proto_version", "1".to_owned()),
            ("publication_names", publications),
        ];
        if settings.ddl {
            options.push(("messages", "true".to_owned()));
        }
        let stream = self.connection.start(&settings.slot, from, &options);
        let stream = stream.map_err(ApplyError::Source)?;
        Ok(LimitedStream::new(stream, control))
    }
}

/// What the source says of itself and the slot, before it streams.
fn find(
    source: &mut Connection,
    slot: &str,
    wanted: impl Fn(Timeline) -> bool,
) -> lockstep_client::Result<SourceFound> {
    let identity = source.identify()?;
    let is_standby: bool = field(&source.query_one("SELECT pg_is_in_recovery()")?, 0)?;
    let history = match wanted(identity.timeline) {
        true => source.timeline_history(identity.timeline)?,
        false => Vec::new(),
    };
    Ok(SourceFound {
        history,
        slot: source.slot(slot)?,
        is_standby,
        identity,
    })
}
