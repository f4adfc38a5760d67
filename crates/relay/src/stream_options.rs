//! What a subscriber asks for in `START_REPLICATION`, and the group that it needs.
//!
//! Two-phase commit is not shared. A server sends a transaction that was prepared before a
//! slot could decode it again, with its old positions, when it is committed; which ones
//! those are differs from slot to slot, so one stream cannot serve them all. Clients ask for
//! it once: from then on the slot knows, and later commands do not say it again.

use lockstep_wire::backend::Report;
use lockstep_wire::publication_names;

use crate::group::GroupKey;

/// Newest version of pgoutput's protocol that is known here (PostgreSQL 16 to 18).
const NEWEST_VERSION: u32 = 4;

/// Most publications in one command.
const MOST_PUBLICATIONS: usize = 1024;

/// What a subscriber asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamOptions {
    /// A stream that others may share.
    Shared(GroupKey),
    /// One of its own, with prepared transactions.
    TwoPhase,
}

/// The group that the options of `START_REPLICATION` need, or the error that a server
/// would answer.
///
/// `streaming` only allows the server to send transactions before they commit; the relay
/// never does, so it does not matter for the group.
pub fn parse(
    database: &str,
    encoding: &str,
    options: &[(String, Option<String>)],
) -> Result<StreamOptions, Report> {
    let mut key = GroupKey::new(database, Vec::new());
    encoding.clone_into(&mut key.encoding);
    let mut two_phase = false;
    let mut version = None;
    for (name, value) in options {
        let value = value.as_deref();
        match name.as_str() {
            "proto_version" => version = Some(proto_version(value)?),
            "publication_names" => key.publications = publications(value)?,
            "binary" => key.binary = boolean(name, value)?,
            "messages" => key.messages = boolean(name, value)?,
            "two_phase" => two_phase = boolean(name, value)?,
            "streaming" if value == Some("parallel") => {}
            "streaming" => {
                boolean(name, value)?;
            }
            "origin" => key.local_only = origin(value)?,
            _ => {
                return Err(Report::error(
                    "42601",
                    format!("unrecognized pgoutput option: {name}"),
                ));
            }
        }
    }
    let missing = |what: &str| Err(Report::error("22023", format!("{what} option missing")));
    match version {
        None => return missing("proto_version"),
        Some(_) if key.publications.is_empty() => return missing("publication_names"),
        Some(version) if two_phase && version < 3 => {
            return Err(Report::error(
                "0A000",
                format!(
                    "requested proto_version={version} does not support two-phase commit, need 3 or higher"
                ),
            ));
        }
        Some(_) if two_phase => return Ok(StreamOptions::TwoPhase),
        Some(_) => {}
    }
    Ok(StreamOptions::Shared(GroupKey {
        publications: GroupKey::new(database, key.publications).publications,
        ..key
    }))
}

fn invalid(name: &str, value: Option<&str>) -> Report {
    let value = value.unwrap_or_default();
    Report::error(
        "22023",
        format!("invalid value for option \"{name}\": \"{value}\""),
    )
}

fn proto_version(value: Option<&str>) -> Result<u32, Report> {
    let version: u32 = value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| invalid("proto_version", value))?;
    match version {
        1..=NEWEST_VERSION => Ok(version),
        0 => Err(Report::error(
            "0A000",
            "client sent proto_version=0 but server only supports protocol 1 or higher",
        )),
        _ => Err(Report::error(
            "0A000",
            format!(
                "client sent proto_version={version} but server only supports protocol {NEWEST_VERSION} or lower"
            ),
        )),
    }
}

fn publications(value: Option<&str>) -> Result<Vec<String>, Report> {
    publication_names::parse(value.unwrap_or_default())
        .ok()
        .filter(|names| (1..=MOST_PUBLICATIONS).contains(&names.len()))
        .ok_or_else(|| Report::error("42602", "invalid publication_names syntax"))
}

fn origin(value: Option<&str>) -> Result<bool, Report> {
    match value.unwrap_or_default().to_ascii_lowercase().as_str() {
        "any" => Ok(false),
        "none" => Ok(true),
        _ => Err(Report::error(
            "22023",
            format!(
                "unrecognized origin value: \"{}\"",
                value.unwrap_or_default()
            ),
        )),
    }
}

/// A boolean as replication commands have it: without a value it is true.
fn boolean(name: &str, value: Option<&str>) -> Result<bool, Report> {
    match value.map(str::to_ascii_lowercase).as_deref() {
        None | Some("true" | "on" | "1") => Ok(true),
        Some("false" | "off" | "0") => Ok(false),
        _ => Err(invalid(name, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), Some(value.to_owned()));
        list.iter().map(owned).collect()
    }

    #[test]
    fn subscribers_that_agree_share_a_group() {
        let of = |list: &[(&str, &str)]| match parse("app", "UTF8", &options(list)) {
            Ok(StreamOptions::Shared(key)) => key,
            other => panic!("{other:?}"),
        };
        let plain = of(&[("proto_version", "3"), ("publication_names", "\"b\",\"a\"")]);
        assert_eq!(plain.publications, ["a", "b"]);
        assert_eq!(
            plain,
            of(&[
                ("proto_version", "4"),
                ("streaming", "parallel"),
                ("origin", "any"),
                ("binary", "false"),
                ("publication_names", "\"a\",\"b\",\"a\""),
            ])
        );
        for other in [("binary", "true"), ("origin", "none"), ("messages", "1")] {
            let list = [("proto_version", "3"), ("publication_names", "a,b"), other];
            let key = of(&list);
            assert_ne!(key, plain, "{other:?}");
            assert_ne!(key.automatic_name(), plain.automatic_name());
        }
    }

    #[test]
    fn two_phase_commit_is_not_shared() {
        let list = [
            ("proto_version", "3"),
            ("publication_names", "p"),
            ("two_phase", "on"),
        ];
        let parsed = parse("app", "UTF8", &options(&list));
        assert_eq!(parsed, Ok(StreamOptions::TwoPhase));
    }

    #[test]
    fn what_a_server_would_refuse_is_refused() {
        let good = [("proto_version", "1"), ("publication_names", "p")];
        for (bad, sqlstate) in [
            (("nonsense", "1"), "42601"),
            (("proto_version", "0"), "0A000"),
            (("proto_version", "5"), "0A000"),
            (("proto_version", "x"), "22023"),
            (("publication_names", ""), "42602"),
            (("publication_names", "\"p"), "42602"),
            (("binary", "perhaps"), "22023"),
            (("origin", "some"), "22023"),
            (("two_phase", "on"), "0A000"),
            (("streaming", "sideways"), "22023"),
        ] {
            let list = options(&[good[0], good[1], bad]);
            let error = parse("app", "UTF8", &list).unwrap_err();
            assert_eq!(error.sqlstate, sqlstate, "{bad:?}");
        }
        assert!(parse("app", "UTF8", &options(&good[..1])).is_err());
        assert!(parse("app", "UTF8", &options(&good[1..])).is_err());
        assert!(parse("app", "UTF8", &options(&good)).is_ok());
    }
}
