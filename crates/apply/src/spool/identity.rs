//! Whose spool a folder holds: file `replica.json` beside the segments.
//!
//! It is written before the first segment, and says whether there are any yet: so a folder without
//! segments is either one that was never begun, or one that has lost them.

use std::io;

use lockstep_client::Switch;
use lockstep_intake::continuity::{read_history, written_history};
use lockstep_spool::Storage;
use lockstep_spool::kept::{checked, read_text, replace, unchecked};
use lockstep_wire::Timeline;
use serde_json::{Value, json};

use crate::settings::Settings;

pub const FILE: &str = "replica.json";

/// Whose stream it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub replica: String,
    /// The source's system identifier. None if it is not known.
    pub system: Option<String>,
    /// These belong to one making of the replica: their names hold a number of their own.
    pub slot: String,
    pub publications: Vec<String>,
    pub origin: String,
    /// The stream has changes of the schema.
    pub ddl: bool,
}

impl Owner {
    /// The owner that the spool of a replica with these settings must have.
    pub fn new(settings: &Settings, system: Option<String>) -> Self {
        Self {
            replica: settings.replica.clone(),
            system,
            slot: settings.slot.clone(),
            publications: settings.publications.clone(),
            origin: settings.origin.clone(),
            ddl: settings.ddl,
        }
    }
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub owner: Owner,
    /// Where the source was when the target was last asked, without secrets: the stream goes on
    /// while the target is away.
    pub source: String,
    /// The source's timeline at the end of what is in the segments.
    pub timeline: Option<Timeline>,
    /// Timelines that this one came from, and where each ended. None: it was not noted, as in 0.2.
    pub history: Option<Vec<Switch>>,
    /// There are segments.
    pub begun: bool,
}

impl Identity {
    fn encode(&self) -> String {
        let Owner {
            replica,
            system,
            slot,
            publications,
            origin,
            ddl,
        } = &self.owner;
        let value = json!({
            "replica": replica,
            "system": system,
            "slot": slot,
            "publications": publications,
            "origin": origin,
            "ddl": ddl,
            "source": self.source,
            "timeline": self.timeline.map(Timeline::get),
            "history": self.history.as_deref().map(written_history),
            "begun": self.begun,
        });
        checked(&value.to_string())
    }

    fn decode(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(unchecked(text)?).map_err(|error| error.to_string())?;
        let field = |name: &str| value.get(name).unwrap_or(&Value::Null);
        let wrong = |name: &str| format!("its \"{name}\" cannot be read");
        let text = |name: &str| {
            let found = field(name).as_str().map(str::to_owned);
            found.ok_or_else(|| wrong(name))
        };
        let names = field("publications").as_array().map(|names| {
            let names = names.iter().filter_map(Value::as_str);
            names.map(str::to_owned).collect()
        });
        let timeline = field("timeline").as_u64();
        let timeline = timeline.and_then(|number| Timeline::new(u32::try_from(number).ok()?));
        let history: Option<Vec<(u32, String)>> =
            serde_json::from_value(field("history").clone()).map_err(|_| wrong("history"))?;
        Ok(Self {
            history: history.as_deref().and_then(read_history),
            owner: Owner {
                replica: text("replica")?,
                system: field("system").as_str().map(str::to_owned),
                slot: text("slot")?,
                publications: names.ok_or_else(|| wrong("publications"))?,
                origin: text("origin")?,
                // An older version knows of none.
                ddl: field("ddl").as_bool().unwrap_or(false),
            },
            source: text("source")?,
            timeline,
            begun: field("begun").as_bool().ok_or_else(|| wrong("begun"))?,
        })
    }

    /// Replaces the file, durably.
    pub fn write<S: Storage>(&self, storage: &S) -> io::Result<()> {
        replace(storage, FILE, &self.encode())
    }
}

/// Reads the file. None if there is none.
pub fn read<S: Storage>(storage: &S) -> Result<Option<Identity>, String> {
    match read_text(storage, FILE) {
        Ok(text) => Identity::decode(&text).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_spool::Folder;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Folder::new(folder.path());
        assert_eq!(read(&storage), Ok(None));
        let history = vec![Switch {
            timeline: Timeline::FIRST,
            at: 64.into(),
        }];
        for (system, timeline, history) in [
            (Some("7".to_owned()), Timeline::new(3), Some(history)),
            (None, None, None),
        ] {
            let identity = Identity {
                owner: Owner {
                    replica: "r".to_owned(),
                    system,
                    slot: "s".to_owned(),
                    publications: vec!["p".to_owned(), "q".to_owned()],
                    origin: "o".to_owned(),
                    ddl: timeline.is_some(),
                },
                source: "host=/a".to_owned(),
                timeline,
                history,
                begun: true,
            };
            identity.write(&storage).unwrap();
            assert_eq!(read(&storage), Ok(Some(identity)));
        }
        // As 0.2 has it.
        let older = json!({"replica": "r", "system": "7", "slot": "s", "publications": ["p"],
            "origin": "o", "source": "host=/a", "timeline": 3, "begun": true});
        replace(&storage, FILE, &checked(&older.to_string())).unwrap();
        let found = read(&storage).unwrap().unwrap();
        assert_eq!((found.timeline, found.history), (Timeline::new(3), None));
        let path = folder.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"s\"", "\"t\"")).unwrap();
        assert!(read(&storage).unwrap_err().contains("checksum"));
    }
}
