//! Settings of a session on which the text of values depends, beside `client_encoding`.
//!
//! A group's stream has those of its subscribers, whatever the relay's role, its database or the
//! environment sets. Each is one that an output function of PostgreSQL reads:
//!
//! | setting | types | in a group |
//! |---|---|---|
//! | `DateStyle` | dates and times | always `ISO`, in which the order of day and month does not matter |
//! | `IntervalStyle` | `interval` | always `postgres` |
//! | `extra_float_digits` | `float4`, `float8`, geometric types | always 3: all above 0 are the same |
//! | `TimeZone` | `timestamptz` | that of its subscribers |
//! | `bytea_output` | `bytea` | that of its subscribers |
//! | `search_path`, `quote_all_identifiers` | `regclass`, `regproc`, `regtype` and the like | those of its subscribers |
//! | `lc_monetary` | `money` | that of its subscribers |
//!
//! Arrays, ranges, composite types and domains are written by the functions of what they hold.

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection};
use lockstep_wire::publication_names;
use serde::{Deserialize, Serialize};

/// The search path that sessions of subscriptions set.
const OF_SUBSCRIPTIONS: (&str, &str) = ("search_path", "");

/// Asks for the schemas that the session's search path finds, with those that it does not name.
/// No cast: a search path decides what the name of a type means.
pub const SCHEMAS: &str = "SELECT pg_catalog.array_to_json(pg_catalog.current_schemas(true))";

/// Schemas of temporary tables begin with this.
const TEMPORARY: &str = "pg_temp_";

/// Names of the zone that is always at the offset 0, which `ISO` writes instead of the name.
const UTC: [&str; 18] = [
    "UTC",
    "Etc/UTC",
    "UCT",
    "Etc/UCT",
    "Universal",
    "Etc/Universal",
    "Zulu",
    "Etc/Zulu",
    "GMT",
    "Etc/GMT",
    "GMT0",
    "Etc/GMT0",
    "GMT+0",
    "Etc/GMT+0",
    "GMT-0",
    "Etc/GMT-0",
    "Greenwich",
    "Etc/Greenwich",
];

/// What subscribers of one group have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OutputSettings {
    /// `TimeZone`. Empty in a group of an earlier version, whose stream had what the relay's
    /// role had: no session asks for it.
    pub time_zone: String,
    pub bytea_output: String,
    /// The schemas that `search_path` stands for in a session: it may say `"$user"`, and leaves
    /// out what the session's role may not use.
    pub schemas: Vec<String>,
    pub quote_all_identifiers: bool,
    pub lc_monetary: String,
}

impl OutputSettings {
    /// Settings as a session shows them; None if no other session has the same, since a schema
    /// of temporary tables is among its schemas. `schemas` is the answer to [`SCHEMAS`].
    pub fn shown(
        [time_zone, bytea_output, quote_all, lc_monetary]: [&str; 4],
        schemas: &str,
    ) -> Option<Self> {
        let schemas: Vec<String> = serde_json::from_str(schemas).ok()?;
        let time_zone = match UTC.contains(&time_zone) {
            true => "UTC",
            false => time_zone,
        };
        let temporary = schemas.iter().any(|name| name.starts_with(TEMPORARY));
        (!temporary && !time_zone.is_empty()).then(|| Self {
            time_zone: time_zone.to_owned(),
            bytea_output: bytea_output.to_owned(),
            schemas,
            quote_all_identifiers: quote_all == "on",
            lc_monetary: lc_monetary.to_owned(),
        })
    }

    /// Settings of a session of the relay's role that sets what a group's configuration names. What
    /// it does not name is as for any other session of that role, but for the search path.
    pub fn configured(
        upstream: &mut Connection,
        named: &[(String, String)],
    ) -> Result<Self, ClientError> {
        let (name, value) = OF_SUBSCRIPTIONS;
        let path = (name.to_owned(), value.to_owned());
        // The search path comes last, since it decides what names in later statements mean.
        let (paths, others): (Vec<_>, Vec<_>) = named.iter().partition(|(given, _)| given == name);
        for (name, value) in others.into_iter().chain([*paths.first().unwrap_or(&&path)]) {
            upstream.query(&set(&[(name, value)])?)?;
        }
        let mut shown = Vec::new();
        for question in [
            "SHOW TimeZone",
            "SHOW bytea_output",
            "SHOW quote_all_identifiers",
            "SHOW lc_monetary",
            SCHEMAS,
        ] {
            let rows = upstream.query(question)?;
            shown.extend(rows.into_iter().flatten().flatten().take(1));
        }
        let settings = match shown.as_slice() {
            [zone, bytea, quote, money, schemas] => {
                Self::shown([zone, bytea, quote, money], schemas)
            }
            _ => None,
        };
        settings.ok_or_else(|| {
            let what = "settings that a stream's text depends on are not shown as they should be";
            ClientError::Protocol(what.to_owned())
        })
    }

    /// The statement that gives a session these settings; None for a group of an earlier version.
    /// Whatever is asked in the session afterwards is read with a subscriber's search path.
    pub fn statement(&self) -> Result<Option<String>, ClientError> {
        if self.time_zone.is_empty() {
            return Ok(None);
        }
        let quote_all = match self.quote_all_identifiers {
            true => "on",
            false => "off",
        };
        let path = publication_names::write(&self.schemas);
        set(&[
            ("TimeZone", &self.time_zone),
            ("bytea_output", &self.bytea_output),
            ("quote_all_identifiers", quote_all),
            ("lc_monetary", &self.lc_monetary),
            ("search_path", &path),
        ])
        .map(Some)
    }

    /// Why the role of a session of the relay cannot have these schemas in its search path; None
    /// if it can. Only the relay's own names have a meaning in the session.
    pub fn refused(&self, upstream: &mut Connection) -> Result<Option<String>, ClientError> {
        let mut names = Vec::new();
        for schema in &self.schemas {
            names.push(sql_literal("schema", schema)?);
        }
        if names.is_empty() {
            return Ok(None);
        }
        let rows = upstream.query(&format!(
            "SELECT pg_catalog.quote_ident(n.nspname), pg_catalog.quote_ident(current_user) \
             FROM pg_catalog.pg_namespace AS n WHERE n.nspname IN ({}) \
             AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') ORDER BY n.nspname LIMIT 1",
            names.join(", ")
        ))?;
        let row: Vec<String> = rows.into_iter().flatten().flatten().collect();
        Ok(match row.as_slice() {
            [schema, role] => Some(format!(
                "its subscriber's search_path has schema {schema}, which the relay's role may not \
                 use: GRANT USAGE ON SCHEMA {schema} TO {role}"
            )),
            _ => None,
        })
    }
}

/// A statement that sets all of these, the last one last.
fn set(settings: &[(&str, &str)]) -> Result<String, ClientError> {
    let mut calls = Vec::new();
    for (name, value) in settings {
        let value = sql_literal("setting", value)?;
        calls.push(format!("pg_catalog.set_config('{name}', {value}, false)"));
    }
    Ok(format!("SELECT {}", calls.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [&str; 4] = ["Etc/UTC", "hex", "off", "C"];

    #[test]
    fn sessions_agree_if_their_values_are_written_alike() {
        let shown = |four, schemas| OutputSettings::shown(four, schemas);
        let usual = shown(USUAL, r#"["pg_catalog"]"#).unwrap();
        for zone in UTC {
            let same = shown([zone, "hex", "off", "C"], r#"["pg_catalog"]"#);
            assert_eq!(same.as_ref(), Some(&usual), "{zone}");
        }
        for (four, schemas) in [
            (["Europe/Berlin", "hex", "off", "C"], r#"["pg_catalog"]"#),
            (["Etc/UTC", "escape", "off", "C"], r#"["pg_catalog"]"#),
            (["Etc/UTC", "hex", "on", "C"], r#"["pg_catalog"]"#),
            (["Etc/UTC", "hex", "off", "C.UTF-8"], r#"["pg_catalog"]"#),
            (USUAL, r#"["pg_catalog", "public"]"#),
        ] {
            assert_ne!(shown(four, schemas).unwrap(), usual, "{four:?}");
        }
        for (four, schemas) in [
            (USUAL, r#"["pg_temp_3", "pg_catalog"]"#),
            (USUAL, "no JSON"),
            (["", "hex", "off", "C"], "[]"),
        ] {
            assert_eq!(shown(four, schemas), None);
        }
    }

    #[test]
    fn any_name_of_a_schema_is_set() {
        let schemas = r#"["pg_catalog", "a \"b\"', \\c"]"#;
        let statement = OutputSettings::shown(USUAL, schemas).unwrap().statement();
        assert_eq!(
            statement.unwrap().unwrap(),
            "SELECT pg_catalog.set_config('TimeZone', 'UTC', false), \
             pg_catalog.set_config('bytea_output', 'hex', false), \
             pg_catalog.set_config('quote_all_identifiers', 'off', false), \
             pg_catalog.set_config('lc_monetary', 'C', false), \
             pg_catalog.set_config('search_path',  E'\"pg_catalog\",\"a \"\"b\"\"'', \\\\c\"', false)"
        );
        assert_eq!(OutputSettings::default().statement().unwrap(), None);
    }
}
