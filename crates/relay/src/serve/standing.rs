//! What the primary says about a session, asked in the session's own connection while that is
//! idle. The client sees neither question nor answer.
//!
//! Only a session of replication may ask `IDENTIFY_SYSTEM`, and only one in a database gets
//! that database's name; so nothing that a client claims is believed. Settings are asked with
//! `SHOW`, which needs no rights and no transaction, and which no search path changes. OIDs take
//! queries, in which every name is qualified: that of the role is the one that logged in, whatever
//! it is called now and whatever role the session has taken since. A session of physical
//! replication may not run them, which comes last.

use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame;
use lockstep_wire::frontend::Frontend;

use lockstep_client::DATABASE_OID;

use super::shown::SETTINGS;
use crate::output_settings::{OutputSettings, SCHEMAS};
use crate::session::{Standing, Written};

/// Asks for the OID of the role that has logged in.
const ROLE_OID: &str = "SELECT a.usesysid \
     FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a";

/// Asks whether the session's role may use replication slots.
const MAY_USE_SLOTS: &str = "SELECT r.rolsuper OR r.rolreplication FROM pg_catalog.pg_roles AS r \
     WHERE r.rolname OPERATOR(pg_catalog.=) current_user";

/// What is asked, each by itself.
const QUESTIONS: [&str; 13] = [
    "IDENTIFY_SYSTEM",
    "SHOW client_encoding",
    "SHOW datestyle",
    "SHOW intervalstyle",
    "SHOW extra_float_digits",
    "SHOW timezone",
    "SHOW bytea_output",
    "SHOW quote_all_identifiers",
    "SHOW lc_monetary",
    SCHEMAS,
    DATABASE_OID,
    ROLE_OID,
    SETTINGS,
];

/// How many answers there are, with a `ReadyForQuery` each.
pub(super) const ANSWERS: usize = QUESTIONS.len();

/// `dbname` in the answer to `IDENTIFY_SYSTEM`.
const DATABASE: usize = 3;

/// A server that knows no such command: the session is none of replication.
const SYNTAX_ERROR: &str = "42601";

/// The encoding of names in this program.
const UTF8: &str = "UTF8";

/// What has been learnt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Learnt {
    /// A session of logical replication.
    Standing(Box<Standing>),
    /// A session of replication without a database, or with one whose name cannot be read here.
    Elsewhere,
    /// Another session: nothing is the relay's in it.
    Other,
    /// The primary refuses to answer: the error, a whole message.
    Refused(Vec<u8>),
}

/// The questions, as messages.
pub(super) fn questions() -> Vec<u8> {
    let mut out = Vec::new();
    for question in QUESTIONS {
        Frontend::Query(question).encode(&mut out);
    }
    out
}

/// The question whether the session's role may use replication slots, as a message.
pub(super) fn slots_question() -> Vec<u8> {
    let mut out = Vec::new();
    Frontend::Query(MAY_USE_SLOTS).encode(&mut out);
    out
}

/// Why the session's role may not use replication slots, by what the primary has answered.
pub(super) fn may_use_slots(messages: &[u8]) -> Result<(), Report> {
    let mut left = messages;
    while let Ok(Some((frame, length))) = frame::first(left, messages.len()) {
        match Backend::parse(frame) {
            Ok(Backend::DataRow(row)) if row == [Some(&b"t"[..])] => return Ok(()),
            Ok(Backend::ErrorResponse(report)) => return Err(report),
            _ => {}
        }
        left = left.get(length..).unwrap_or_default();
    }
    let report = Report::error("42501", "permission denied to use replication slots");
    Err(report.detail("Only roles with the REPLICATION attribute may use replication slots."))
}

/// What the primary's messages say.
pub(super) fn learn(messages: &[u8]) -> Learnt {
    let mut rows = Vec::new();
    let mut left = messages;
    while let Ok(Some((frame, length))) = frame::first(left, messages.len()) {
        match Backend::parse(frame) {
            Ok(Backend::DataRow(row)) => rows.push(row),
            Ok(Backend::ErrorResponse(report)) => {
                return match report.sqlstate == SYNTAX_ERROR {
                    true => Learnt::Other,
                    false if has_no_database(&rows) => Learnt::Elsewhere,
                    false => Learnt::Refused(left.get(..length).unwrap_or_default().to_vec()),
                };
            }
            _ => {}
        }
        left = left.get(length..).unwrap_or_default();
    }
    match standing(&rows) {
        Some(standing) => Learnt::Standing(Box::new(standing)),
        None if rows.is_empty() => Learnt::Other,
        None => Learnt::Elsewhere,
    }
}

/// Whether it is a session of physical replication, which may not ask for an OID.
fn has_no_database(rows: &[Vec<Option<&[u8]>>]) -> bool {
    let database = |identity: &Vec<Option<_>>| identity.get(DATABASE).is_some_and(Option::is_some);
    rows.first().is_some_and(|identity| !database(identity))
}

/// None if it is no session of logical replication, or one whose database has a name that
/// cannot be read here.
fn standing(rows: &[Vec<Option<&[u8]>>]) -> Option<Standing> {
    let [identity, settings @ ..] = rows else {
        return None;
    };
    let database = identity.get(DATABASE).copied().flatten()?;
    let setting = |row: &Vec<Option<&[u8]>>| {
        let value = row.first().copied().flatten()?;
        Some(String::from_utf8_lossy(value).into_owned())
    };
    let [
        encoding,
        dates,
        intervals,
        digits,
        output @ ..,
        oid,
        role,
        shown,
    ] = settings
    else {
        return None;
    };
    let [zone, bytea, quote_all, monetary, schemas] = output else {
        return None;
    };
    let encoding = setting(encoding)?;
    let is_readable = |text: &[u8]| encoding == UTF8 || text.iter().all(is_everywhere_the_same);
    let readable = is_readable(database);
    let settings = [zone, bytea, quote_all, monetary].map(setting);
    let schemas = setting(schemas).filter(|schemas| is_readable(schemas.as_bytes()));
    let output = match (&settings, &schemas) {
        ([Some(zone), Some(bytea), Some(quote_all), Some(monetary)], Some(schemas)) => {
            OutputSettings::shown([zone, bytea, quote_all, monetary], schemas)
        }
        _ => None,
    };
    Some(Standing {
        database: String::from_utf8(database.to_vec())
            .ok()
            .filter(|_| readable)?,
        database_oid: setting(oid)?.parse().ok()?,
        role_oid: setting(role)?.parse().ok()?,
        shown: setting(shown).filter(|shown| is_readable(shown.as_bytes())),
        written: Written {
            encoding,
            dates: setting(dates)?,
            intervals: setting(intervals)?,
            float_digits: setting(digits)?.parse().ok()?,
            output,
        },
    })
}

/// In other encodings than UTF8 only ASCII is the same, and not all of it: SHIFT_JIS_2004
/// writes other characters as a backslash and a tilde.
fn is_everywhere_the_same(byte: &u8) -> bool {
    byte.is_ascii() && !matches!(byte, b'\\' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(message: Backend<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(&mut out);
        out
    }

    fn answers(database: Option<&[u8]>, settings: [&str; 4]) -> Vec<u8> {
        answers_with(database, settings, "[\"pg_catalog\"]")
    }

    fn answers_with(database: Option<&[u8]>, settings: [&str; 4], schemas: &str) -> Vec<u8> {
        let columns = vec![Some(&b"7"[..]), Some(b"1"), Some(b"0/1"), database];
        let mut out = message(Backend::DataRow(columns));
        let output = ["Europe/Berlin", "hex", "off", "C", schemas];
        let all = settings
            .into_iter()
            .chain(output)
            .chain(["16384", "10", "{}"]);
        for setting in all {
            out.extend(message(Backend::ReadyForQuery(b'I')));
            out.extend(message(Backend::DataRow(vec![Some(setting.as_bytes())])));
        }
        out.extend(message(Backend::ReadyForQuery(b'I')));
        out
    }

    const USUAL: [&str; 4] = ["UTF8", "ISO, MDY", "postgres", "1"];

    /// The settings that [`answers_with`] says.
    fn output(schemas: &str) -> Option<OutputSettings> {
        OutputSettings::shown(["Europe/Berlin", "hex", "off", "C"], schemas)
    }

    #[test]
    fn schemas_that_cannot_be_read_are_not_known() {
        let latin = ["LATIN1", "ISO, MDY", "postgres", "1"];
        for (settings, schemas, known) in [
            (USUAL, "[\"pg_catalog\",\"\u{e9}\"]", true),
            (USUAL, "[\"pg_temp_1\",\"pg_catalog\"]", false),
            (latin, "[\"pg_catalog\",\"app\"]", true),
            (latin, "[\"pg_catalog\",\"\u{e9}\"]", false),
        ] {
            let said = learn(&answers_with(Some(b"app"), settings, schemas));
            let Learnt::Standing(standing) = said else {
                panic!("{said:?}");
            };
            let expected = output(schemas).filter(|_| known);
            assert_eq!(standing.written.output, expected, "{schemas}");
            assert_eq!(expected.is_some(), known);
        }
    }

    #[test]
    fn a_session_of_logical_replication_is_known_by_its_answers() {
        let expected = |database: &str, encoding: &str| {
            Learnt::Standing(Box::new(Standing {
                database: database.to_owned(),
                database_oid: 16_384,
                role_oid: 10,
                shown: Some("{}".to_owned()),
                written: Written {
                    encoding: encoding.to_owned(),
                    dates: "ISO, MDY".to_owned(),
                    intervals: "postgres".to_owned(),
                    float_digits: 1,
                    output: output("[\"pg_catalog\"]"),
                },
            }))
        };
        assert_eq!(
            learn(&answers(Some(b"app"), USUAL)),
            expected("app", "UTF8")
        );
        assert_eq!(
            learn(&answers(Some("\u{e9}".as_bytes()), USUAL)),
            expected("\u{e9}", "UTF8")
        );
        let latin = ["LATIN1", "ISO, MDY", "postgres", "1"];
        assert_eq!(
            learn(&answers(Some(b"app"), latin)),
            expected("app", "LATIN1")
        );
        // Names that cannot be read.
        assert_eq!(learn(&answers(Some(b"\xe9"), USUAL)), Learnt::Elsewhere);
        assert_eq!(learn(&answers(Some(b"a\\b"), latin)), Learnt::Elsewhere);
        assert_eq!(
            learn(&answers(Some(b"a\\b"), USUAL)),
            expected("a\\b", "UTF8")
        );
        let same_bytes = answers(Some("\u{e9}".as_bytes()), latin);
        assert_eq!(learn(&same_bytes), Learnt::Elsewhere);
    }

    #[test]
    fn other_sessions_are_told_apart() {
        let syntax = Report::error(SYNTAX_ERROR, "syntax error at or near \"IDENTIFY_SYSTEM\"");
        for said in [message(Backend::ErrorResponse(syntax)), Vec::new()] {
            assert_eq!(learn(&said), Learnt::Other);
        }
        let digits = ["UTF8", "ISO, MDY", "postgres", "many"];
        let mut physical = message(Backend::DataRow(vec![Some(b"7"), None, None, None]));
        physical.extend(message(Backend::ErrorResponse(Report::error(
            "0A000", "no SQL",
        ))));
        for said in [
            physical,
            answers(None, USUAL),
            answers(Some(b"app"), digits),
        ] {
            assert_eq!(learn(&said), Learnt::Elsewhere);
        }
        let mut some = answers(Some(b"app"), USUAL);
        some.truncate(some.len() - 20);
        assert_eq!(learn(&some), Learnt::Elsewhere);
        let canceled = message(Backend::ErrorResponse(Report::error("57014", "canceled")));
        let mut said = answers(Some(b"app"), USUAL);
        said.extend(&canceled);
        assert_eq!(learn(&said), Learnt::Refused(canceled));
    }
}
