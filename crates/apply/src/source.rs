//! The source of a stream: whether it can go on where the replica stands, and the stream from there.

use std::fmt;

use lockstep_client::quote::publication_names;
use lockstep_client::{Connection, Purpose, Stream, field};
use lockstep_wire::{Lsn, Timeline};

use crate::continuity::{Found, Known, gap};
use crate::error::{ApplyError, Result};
use crate::run::Settings;

/// A replica's publication as it should be on the source.
pub trait Published: fmt::Debug + Send + Sync {
    /// What is not as it should be, in words with what to do; None if nothing is.
    fn altered(&self, source: &mut Connection) -> lockstep_client::Result<Option<String>>;
}

/// A source that can go on.
pub(crate) struct Source {
    connection: Connection,
    pub timeline: Timeline,
}

impl Source {
    /// Connects. An error if the source cannot go on where `known` stands, or if its publication is not as
    /// it should be.
    pub fn ask(settings: &Settings, known: &Known) -> Result<Self> {
        let name = &settings.application_name;
        let connection = Connection::connect(&settings.source, Purpose::Replication, name);
        let mut connection = connection.map_err(ApplyError::Source)?;
        let found = find(&mut connection, &settings.slot, known).map_err(ApplyError::Source)?;
        if let Some(gap) = gap(known, &found, &settings.slot) {
            return Err(ApplyError::Gap(gap));
        }
        if let Some(expected) = &settings.published {
            let altered = expected.altered(&mut connection);
            if let Some(words) = altered.map_err(ApplyError::Source)? {
                return Err(ApplyError::Publication(words));
            }
        }
        Ok(Self {
            connection,
            timeline: found.timeline,
        })
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
fn find(source: &mut Connection, slot: &str, known: &Known) -> lockstep_client::Result<Found> {
    let identity = source.identify()?;
    let is_standby: bool = field(&source.query_one("SELECT pg_is_in_recovery()")?, 0)?;
    let switches = match known.timeline {
        Some(before) if before != identity.timeline => {
            source.timeline_history(identity.timeline)?
        }
        _ => Vec::new(),
    };
    let slot = source.slot(slot)?;
    Ok(Found {
        system: identity.system.to_string(),
        timeline: identity.timeline,
        switches,
        end: Some(identity.end).filter(|_| !is_standby),
        confirmed: slot.as_ref().map(|slot| slot.confirmed),
        invalid: slot.and_then(|slot| slot.invalidation),
    })
}
