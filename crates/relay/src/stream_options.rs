//! What a subscriber asks for in `START_REPLICATION`, and the group that it needs.
//!
//! Two-phase commit is not shared. A server sends a transaction that was prepared before a
//! slot could decode it again, with its old positions, when it is committed; which ones
//! those are differs from slot to slot, so one stream cannot serve them all. Clients ask for
//! it once: from then on the slot knows, and later commands do not say it again.

use lockstep_wire::backend::Report;
use lockstep_wire::publication_names;

use crate::group::GroupKey;
use crate::output_settings::OutputSettings;

/// Most publications in one command that are shared.
const MOST_PUBLICATIONS: usize = 1024;

/// The encoding of names in this program.
const UTF8: &str = "UTF8";

/// What a subscriber asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamOptions {
    /// A stream that others may share.
    Shared(GroupKey),
    /// One of its own, with prepared transactions.
    TwoPhase,
    /// One of its own, and why.
    Own(&'static str),
}

/// A space between names to newer servers, a part of a name to older ones.
const VERTICAL_TAB: char = '\x0b';

/// What decides how the primary reads options.
#[derive(Debug, Clone, Copy)]
pub struct Server<'a> {
    /// The server's major version.
    pub major: u32,
    /// The encoding of its database.
    pub encoding: &'a str,
    /// The encoding of the session.
    pub client_encoding: &'a str,
    /// The session's settings; None if no other session can have the same.
    pub output: Option<&'a OutputSettings>,
}

/// What was given of each option.
#[derive(Default)]
struct Given<'a> {
    version: Option<u32>,
    /// The list as it was sent, and its names.
    names: Option<(&'a str, Vec<String>)>,
    binary: Option<bool>,
    messages: Option<bool>,
    two_phase: Option<bool>,
    streaming: Option<Streaming>,
    local_only: Option<bool>,
}

/// Whether the server may send transactions before they commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Streaming {
    Off,
    On,
    Parallel,
}

/// The group that the options of `START_REPLICATION` need, or the error that a server
/// would answer.
///
/// `streaming` only allows the server to send transactions before they commit; the relay
/// never does, so it does not matter for the group.
pub fn parse(
    database: &str,
    server: Server<'_>,
    options: &[(String, Option<String>)],
) -> Result<StreamOptions, Report> {
    let given = Given::read(server, options)?;
    given.check(server)?;
    let (list, publications) = given.names.unwrap_or_default();
    if given.two_phase == Some(true) {
        return Ok(StreamOptions::TwoPhase);
    }
    if publications.is_empty() {
        return Ok(StreamOptions::Own("it names no publications"));
    }
    if publications.len() > MOST_PUBLICATIONS {
        return Ok(StreamOptions::Own("it names more than 1,024 publications"));
    }
    if !are_read_alike(server, list, &publications) {
        return Ok(StreamOptions::Own(
            "its publications have names that only the primary can read",
        ));
    }
    let Some(output) = server.output else {
        return Ok(StreamOptions::Own(
            "its search_path has temporary tables, or a schema whose name only the primary can read",
        ));
    };
    Ok(StreamOptions::Shared(GroupKey {
        output: output.clone(),
        encoding: server.client_encoding.to_owned(),
        binary: given.binary.unwrap_or(false),
        messages: given.messages.unwrap_or(false),
        local_only: given.local_only.unwrap_or(false),
        ..GroupKey::new(database, publications)
    }))
}

/// Whether the primary takes the same names from the list, which holds no vertical tab then.
/// Outside of ASCII it converts them
/// first, and folds and cuts them in its own encoding; not so names as subscribers write them,
/// in quotes and not too long.
fn are_read_alike(server: Server<'_>, list: &str, names: &[String]) -> bool {
    let untouched = || server.encoding == UTF8 || publication_names::write(names) == list;
    !list.contains(VERTICAL_TAB)
        && (list.is_ascii() || (server.client_encoding == UTF8 && untouched()))
}

/// Sets what must not have been given before.
fn once<T>(place: &mut Option<T>, value: impl FnOnce() -> Result<T, Report>) -> Result<(), Report> {
    if place.is_some() {
        return Err(Report::error("42601", "conflicting or redundant options"));
    }
    *place = Some(value()?);
    Ok(())
}

impl<'a> Given<'a> {
    fn read(server: Server<'_>, options: &'a [(String, Option<String>)]) -> Result<Self, Report> {
        let mut given = Self::default();
        for (name, value) in options {
            let value = value.as_deref();
            let truth = || boolean(name, value);
            match name.as_str() {
                "proto_version" => once(&mut given.version, || proto_version(value))?,
                "publication_names" => {
                    once(&mut given.names, || publications(value.unwrap_or_default()))?;
                }
                "binary" => once(&mut given.binary, truth)?,
                "messages" => once(&mut given.messages, truth)?,
                "two_phase" => once(&mut given.two_phase, truth)?,
                "streaming" => once(&mut given.streaming, || streaming(server, value))?,
                "origin" if server.major >= 16 => once(&mut given.local_only, || origin(value))?,
                _ => {
                    return Err(Report::error(
                        "XX000",
                        format!("unrecognized pgoutput option: {name}"),
                    ));
                }
            }
        }
        Ok(given)
    }

    /// What the server checks of options that were read.
    fn check(&self, server: Server<'_>) -> Result<(), Report> {
        let missing = |what: &str| Err(Report::error("22023", format!("{what} option missing")));
        if server.major >= 16 {
            if self.version.is_none() {
                return missing("proto_version");
            }
            if self.names.is_none() {
                return missing("publication_names");
            }
        }
        let version = self.version.unwrap_or(0);
        let newest = newest_version(server.major);
        let refused = |limit: String| {
            let what = format!("client sent proto_version={version} but server only supports");
            Err(Report::error("0A000", format!("{what} protocol {limit}")))
        };
        if version > newest {
            return refused(format!("{newest} or lower"));
        }
        if version == 0 {
            return refused("1 or higher".to_owned());
        }
        let named = self
            .names
            .as_ref()
            .is_some_and(|(_, names)| !names.is_empty());
        if !named && server.major < 17 {
            return missing("publication_names");
        }
        for (wanted, what, least) in [
            (self.streaming == Some(Streaming::On), "streaming", 2),
            (
                self.streaming == Some(Streaming::Parallel),
                "parallel streaming",
                4,
            ),
            (self.two_phase == Some(true), "two-phase commit", 3),
        ] {
            if wanted && version < least {
                return Err(Report::error(
                    "22023",
                    format!(
                        "requested proto_version={version} does not support {what}, need {least} or higher"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Newest version of pgoutput's protocol that the server knows.
fn newest_version(major: u32) -> u32 {
    match major {
        ..16 => 3,
        16.. => 4,
    }
}

fn proto_version(value: Option<&str>) -> Result<u32, Report> {
    value
        .and_then(c_number)
        .and_then(|version| u32::try_from(version).ok())
        .ok_or_else(|| {
            let value = value.unwrap_or_default();
            Report::error("22023", format!("invalid proto_version: \"{value}\""))
        })
}

fn publications(list: &str) -> Result<(&str, Vec<String>), Report> {
    if list.contains(VERTICAL_TAB) {
        // Not read here: see `are_read_alike`.
        return Ok((list, vec![list.to_owned()]));
    }
    match publication_names::parse(list) {
        Ok(names) => Ok((list, names)),
        Err(_) => Err(Report::error("42602", "invalid publication_names syntax")),
    }
}

/// A number as C reads it: spaces before it, a sign. Without digits it is none, as from 15.20
/// on; 15.18 read nothing at all as 0.
fn c_number(text: &str) -> Option<u64> {
    let spaces = [' ', '\t', '\n', '\x0b', '\x0c', '\r'];
    let number = text.trim_start_matches(spaces);
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(if negative {
        number.wrapping_neg()
    } else {
        number
    })
}

fn origin(value: Option<&str>) -> Result<bool, Report> {
    let Some(value) = value else {
        return Err(Report::error("42601", "origin requires a parameter"));
    };
    match value.to_ascii_lowercase().as_str() {
        "any" => Ok(false),
        "none" => Ok(true),
        _ => Err(Report::error(
            "22023",
            format!("unrecognized origin value: \"{value}\""),
        )),
    }
}

fn streaming(server: Server<'_>, value: Option<&str>) -> Result<Streaming, Report> {
    let parallel = value.is_some_and(|value| value.eq_ignore_ascii_case("parallel"));
    if parallel && server.major >= 16 {
        return Ok(Streaming::Parallel);
    }
    Ok(match boolean("streaming", value)? {
        true => Streaming::On,
        false => Streaming::Off,
    })
}

/// A boolean as options of plugins have it: without a value it is true, and numbers are none.
fn boolean(name: &str, value: Option<&str>) -> Result<bool, Report> {
    match value.map(str::to_ascii_lowercase).as_deref() {
        None | Some("true" | "on") => Ok(true),
        Some("false" | "off") => Ok(false),
        _ => Err(Report::error(
            "42601",
            format!("{name} requires a Boolean value"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), Some(value.to_owned()));
        list.iter().map(owned).collect()
    }

    static OUTPUT: OutputSettings = OutputSettings {
        time_zone: String::new(),
        bytea_output: String::new(),
        schemas: Vec::new(),
        quote_all_identifiers: true,
        lc_monetary: String::new(),
    };

    fn server(major: u32) -> Server<'static> {
        Server {
            major,
            encoding: "UTF8",
            client_encoding: "UTF8",
            output: Some(&OUTPUT),
        }
    }

    fn parsed(major: u32, list: &[(&str, &str)]) -> Result<StreamOptions, Report> {
        parse("app", server(major), &options(list))
    }

    #[test]
    fn subscribers_that_agree_share_a_group() {
        let of = |list: &[(&str, &str)]| match parsed(16, list) {
            Ok(StreamOptions::Shared(key)) => key,
            other => panic!("{other:?}"),
        };
        let plain = of(&[("proto_version", "3"), ("publication_names", "\"b\",\"a\"")]);
        assert_eq!(plain.publications, ["a", "b"]);
        assert_eq!(plain.output, OUTPUT);
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
        for other in [("binary", "true"), ("origin", "none"), ("messages", "on")] {
            let list = [("proto_version", "3"), ("publication_names", "a,b"), other];
            let key = of(&list);
            assert_ne!(key, plain, "{other:?}");
            assert_ne!(key.automatic_name(), plain.automatic_name());
        }
    }

    #[test]
    fn a_session_whose_settings_nobody_can_have_gets_a_stream_of_its_own() {
        let list = options(&[("proto_version", "1"), ("publication_names", "p")]);
        let server = Server {
            output: None,
            ..server(15)
        };
        let parsed = parse("app", server, &list).unwrap();
        assert!(matches!(parsed, StreamOptions::Own(_)), "{parsed:?}");
    }

    #[test]
    fn two_phase_commit_is_not_shared() {
        let list = [
            ("proto_version", "3"),
            ("publication_names", "p"),
            ("two_phase", "on"),
        ];
        assert_eq!(parsed(15, &list), Ok(StreamOptions::TwoPhase));
    }

    #[test]
    fn names_that_the_primary_reads_otherwise_are_not_shared() {
        let shared = |list: &str, server: Server<'_>| {
            let list = options(&[("proto_version", "1"), ("publication_names", list)]);
            match parse("app", server, &list).unwrap() {
                StreamOptions::Shared(key) => {
                    assert_eq!(key.encoding, server.client_encoding);
                    true
                }
                _ => false,
            }
        };
        let with = |encoding, client_encoding| Server {
            encoding,
            client_encoding,
            ..server(15)
        };
        let long = format!("\"{}\"", "\u{e9}".repeat(40));
        for (list, utf8, latin1_server, latin1_client) in [
            ("P", true, true, true),
            ("\"\u{e9}\",\"b\"", true, true, false),
            ("\u{e9}", true, false, false),
            ("\"\u{e9}\", b", true, false, false),
            (&*long, true, false, false),
        ] {
            assert_eq!(shared(list, with("UTF8", "UTF8")), utf8, "{list}");
            assert_eq!(
                shared(list, with("LATIN1", "UTF8")),
                latin1_server,
                "{list}"
            );
            assert_eq!(
                shared(list, with("UTF8", "LATIN1")),
                latin1_client,
                "{list}"
            );
        }
    }

    #[test]
    fn what_a_server_would_refuse_is_refused() {
        let good = [("proto_version", "1"), ("publication_names", "p")];
        for (more, at_15, at_16, at_17) in [
            (&[("nonsense", "1")][..], "XX000", "XX000", "XX000"),
            (&[("origin", "any")], "XX000", "", ""),
            (&[("origin", "some")], "XX000", "22023", "22023"),
            (&[("binary", "perhaps")], "42601", "42601", "42601"),
            (&[("binary", "1")], "42601", "42601", "42601"),
            (
                &[("binary", "on"), ("binary", "on")],
                "42601",
                "42601",
                "42601",
            ),
            (&[("proto_version", "1")], "42601", "42601", "42601"),
            (&[("two_phase", "on")], "22023", "22023", "22023"),
            (&[("streaming", "sideways")], "42601", "42601", "42601"),
            (&[("streaming", "on")], "22023", "22023", "22023"),
            (&[("streaming", "off")], "", "", ""),
            (&[("streaming", "parallel")], "42601", "22023", "22023"),
        ] {
            let list = [&good[..], more].concat();
            for (major, expected) in [(15, at_15), (16, at_16), (17, at_17)] {
                let found =
                    parsed(major, &list).map_or_else(|error| error.sqlstate, |_| String::new());
                assert_eq!(found, expected, "{more:?}, {major}");
            }
        }
        for (version, sqlstate) in [
            ("0", "0A000"),
            ("", "22023"),
            ("4", "0A000"),
            ("x", "22023"),
            ("1x", "22023"),
            (" ", "22023"),
            ("-", "22023"),
            ("-1", "22023"),
            ("4294967297", "22023"),
            ("18446744073709551617", "22023"),
            (" +01", ""),
            ("-18446744073709551615", ""),
        ] {
            let found = parsed(15, &[("proto_version", version), good[1]]);
            let found = found.map_or_else(|error| error.sqlstate, |_| String::new());
            assert_eq!(found, sqlstate, "{version:?}");
        }
        for (list, sqlstate) in [("", "22023"), ("\"p", "42602"), ("p,", "42602")] {
            let error = parsed(16, &[good[0], ("publication_names", list)]).unwrap_err();
            assert_eq!(error.sqlstate, sqlstate, "{list:?}");
        }
        let none = parsed(17, &[good[0], ("publication_names", "")]);
        assert!(matches!(none, Ok(StreamOptions::Own(_))));
        for (missing, at_15) in [(&good[..1], "22023"), (&good[1..], "0A000")] {
            assert_eq!(parsed(15, missing).unwrap_err().sqlstate, at_15);
            assert_eq!(parsed(17, missing).unwrap_err().sqlstate, "22023");
        }
    }
}
