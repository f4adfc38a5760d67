//! The source of a stream: whether it can go on where the replica stands, and the stream from there.

use std::time::Duration;

use lockstep_client::quote::publication_names;
use lockstep_client::{Connection, Purpose, Stream, field};
use lockstep_intake::continuity::{FollowedSource, SourceFound};
use lockstep_wire::{Lsn, Timeline};

use crate::continuity::{Holder, gap};
use crate::error::{ApplyError, Result};
use crate::settings::Settings;

/// Longest time that the source may take to end its stream.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// A source that was asked where it stands.
pub(crate) struct Source {
    connection: Connection,
    pub found: SourceFound,
}

impl Source {
    /// Connects, and asks the source what it says of itself and the slot. Its history is asked for if
    /// `wanted` says so of its timeline.
    pub fn ask(settings: &Settings, wanted: impl Fn(Timeline) -> bool) -> Result<Self> {
        let name = &settings.application_name;
        let connection = Connection::connect(&settings.source, Purpose::Replication, name);
        let mut connection = connection.map_err(ApplyError::Source)?;
        let found = find(&mut connection, &settings.slot, wanted).map_err(ApplyError::Source)?;
        Ok(Self { connection, found })
    }

    /// This source, if it goes on where the target stands.
    pub fn continues(self, settings: &Settings, known: &FollowedSource) -> Result<Self> {
        match gap(known, &self.found, &settings.slot, Holder::Target) {
            Some(words) => Err(ApplyError::Gap(words)),
            None => Ok(self),
        }
    }

    /// Checks that the publication is as it should be.
    pub fn check_published(&mut self, settings: &Settings) -> Result<()> {
        let Some(expected) = &settings.published else {
            return Ok(());
        };
        let altered = expected.altered(&mut self.connection);
        match altered.map_err(ApplyError::Source)? {
            Some(words) => Err(ApplyError::Publication(words)),
            None => Ok(()),
        }
    }

    /// Everything that commits after `from`, or after what the slot confirms if that is later.
    pub fn stream(self, settings: &Settings, from: Lsn) -> Result<Stream> {
        let publications = publication_names(&settings.publications).map_err(ApplyError::Source)?;
        let options = [
            ("proto_version", "1".to_owned()),
            ("publication_names", publications),
        ];
        let stream = self.connection.start(&settings.slot, from, &options);
        stream.map_err(ApplyError::Source)
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
