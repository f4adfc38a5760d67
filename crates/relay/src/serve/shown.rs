//! `SHOW` in a session that the relay answers itself: with what the primary showed in that session before it
//! began to stream.

use std::collections::BTreeMap;

use lockstep_wire::backend::{Backend, Column, Report, TEXT};

use super::transport::message;

/// Asks for all settings that the session may see, as `SHOW` writes them.
pub(super) const SETTINGS: &str = "SELECT pg_catalog.json_object_agg(s.name, \
       pg_catalog.current_setting(s.name)) \
     FROM (SELECT p.name FROM pg_catalog.pg_settings AS p UNION SELECT pg_catalog.unnest(\
       '{is_superuser,role,session_authorization}'::pg_catalog.text[])) AS s";

/// Answers `SHOW` from the answer to [`SETTINGS`]; none if that could not be read.
pub(super) fn show(shown: Option<&str>, name: &str) -> Vec<u8> {
    type Settings = BTreeMap<String, String>;
    let Some(settings) = shown.and_then(|shown| serde_json::from_str::<Settings>(shown).ok())
    else {
        let why = "the session's settings cannot be read in its encoding, and its connection to the primary \
                   was closed when streaming began";
        return message(Report::error("55000", why).hint("Reconnect."));
    };
    let same = |known: &&String| known.eq_ignore_ascii_case(name);
    let Some(known) = settings.keys().find(same) else {
        let why = format!("unrecognized configuration parameter \"{name}\"");
        return message(Report::error("42704", why));
    };
    let value = settings.get(known).map(String::as_bytes);
    let mut out = Vec::new();
    for message in [
        Backend::RowDescription(vec![Column {
            name: known,
            kind: TEXT,
        }]),
        Backend::DataRow(vec![value]),
        Backend::CommandComplete("SHOW"),
    ] {
        message.encode(&mut out);
    }
    out
}
