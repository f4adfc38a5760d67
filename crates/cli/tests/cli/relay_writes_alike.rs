//! What a client gets through the relay is what the primary would send it, whatever settings its
//! session has on which the text of values depends, and whatever the relay's role has.
//!
//! `SEED` repeats the random sessions.

use crate::relay_support::raw::{Message, Raw, packet};
use crate::relay_support::{Relay, allow_plugin, logical, slots};
use fastrand::Rng;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{self, TestLab};
use lockstep_lab::server::{SUPERUSER, Server};

/// A role with a schema of its own, and one that may not use all schemas.
const OWNER: &str = "app";
const OTHER: &str = "plain";

/// The relay's role: whatever it sets must not reach anybody.
const RELAY: &str = "relay";

/// Each setting with values that write something differently. The first one is usual.
const SETTINGS: [(&str, &[&str]); 5] = [
    (
        "TimeZone",
        &["Europe/Berlin", "Asia/Kathmandu", "UTC", "<+03>-03"],
    ),
    ("bytea_output", &["hex", "escape"]),
    (
        "search_path",
        &[
            "",
            "\"$user\", public",
            "app, public",
            "public, pg_catalog",
            "gone, hidden",
        ],
    ),
    ("quote_all_identifiers", &["off", "on"]),
    ("lc_monetary", &["C", "C.UTF-8"]),
];

/// Random sessions, beside those that differ in one setting from the usual one.
const RANDOM: usize = 4;

/// Columns, with a value of each whose text depends on a session, or could.
const COLUMNS: [(&str, &str); 34] = [
    ("timestamptz", "'2026-03-29 00:59:59.5+00'"),
    (
        "timestamptz[]",
        "'{2026-03-29 00:59:59.5+00, 1900-01-01 00:00+00, infinity}'",
    ),
    (
        "tstzrange",
        "'[2026-03-29 00:59:59.5+00, 2026-10-25 02:30+01)'",
    ),
    (
        "tstzmultirange",
        "'{[2026-03-29 00:59:59.5+00, 2026-10-25 02:30+01)}'",
    ),
    ("app.stamped", "ROW('2026-07-01 12:00+00', 'x', '\\xff00')"),
    ("app.moment", "'2026-07-01 12:00+00'"),
    ("timestamp", "'2026-07-01 12:00'"),
    ("date", "'2026-07-01'"),
    ("timetz", "'12:00+05:45'"),
    ("time", "'12:00'"),
    ("interval", "'1 year -2 days 03:04:05.6'"),
    ("float4", "0.1"),
    ("float8", "0.1::float8 + 0.2"),
    ("point", "'(0.1, 0.30000000000000004)'"),
    ("bytea", "'\\xdeadbeef00'"),
    ("bytea[]", "ARRAY['\\xdead'::bytea]"),
    ("money", "'-1234.5'::numeric::money"),
    ("regclass", "'app.items'"),
    (
        "regclass[]",
        "ARRAY['app.items'::regclass, 'public.\"Odd name\"', 'hidden.secret', 'pg_class']",
    ),
    ("regproc", "'app.answer'"),
    ("regprocedure", "'app.answer(app.color)'"),
    ("regtype", "'app.color'"),
    ("regoper", "'app.@@@@'"),
    ("regoperator", "'app.@@@@(app.color, app.color)'"),
    ("regconfig", "'app.words'"),
    ("regcollation", "'app.french'"),
    ("regnamespace", "'app'"),
    ("regrole", "'app'"),
    ("app.color", "'red'"),
    (
        "xml",
        "'<?xml version=\"1.0\" encoding=\"UTF-8\"?><a>é</a>'",
    ),
    ("jsonb", "'{\"a\": 1.50}'"),
    ("numeric", "1.50"),
    ("tsvector", "'a:1 b:2'"),
    ("text", "'\"é\\'"),
];

/// A session: its role, and its settings by the place of their values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Session {
    role: &'static str,
    settings: Vec<(&'static str, &'static str)>,
}

impl Session {
    fn usual(role: &'static str) -> Self {
        Self {
            role,
            settings: SETTINGS.map(|(name, values)| (name, values[0])).to_vec(),
        }
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.settings.retain(|(other, _)| *other != name);
        self.settings.push((name, value));
        self
    }

    fn random(rng: &mut Rng) -> Self {
        let role = rng.choice([OWNER, OTHER, SUPERUSER]).unwrap();
        let pick = |(name, values): (_, &[&'static str])| (name, values[rng.usize(..values.len())]);
        Self {
            role,
            settings: SETTINGS.map(pick).to_vec(),
        }
    }

    /// The usual one, each other value of each setting, other roles, and random ones.
    fn all(rng: &mut Rng) -> Vec<Self> {
        let mut all = vec![
            Self::usual(OWNER),
            Self::usual(OTHER).with("search_path", "app, public"),
            Self::usual(OTHER).with("DateStyle", "German"),
            Self::usual(OTHER).with("IntervalStyle", "iso_8601"),
            Self::usual(OTHER).with("extra_float_digits", "-3"),
            Self::usual(OTHER).with("client_encoding", "LATIN1"),
        ];
        for (name, values) in SETTINGS {
            let role = |value: &str| match value {
                "gone, hidden" => SUPERUSER,
                _ => OWNER,
            };
            all.extend(
                values[1..]
                    .iter()
                    .map(|value| Self::usual(role(value)).with(name, value)),
            );
        }
        all.extend((0..RANDOM).map(|_| Self::random(rng)));
        all
    }

    fn log_in(&self, client: Raw) -> Raw {
        let mut parameters = vec![
            ("user", self.role),
            ("database", "postgres"),
            ("replication", "database"),
        ];
        parameters.extend(&self.settings);
        client.log_in(&packet(&parameters)).ok().unwrap()
    }
}

fn start(client: &mut Raw, slot: &str) {
    let answer = client.query(&format!(
        "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
    ));
    assert_eq!(answer.last().unwrap().0, b'W', "{answer:?}");
}

/// What pgoutput sends up to the end of the first transaction.
fn transaction(client: &mut Raw) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (tag, body): Message = client.message().unwrap();
        assert_eq!(tag, b'd', "{}", String::from_utf8_lossy(&body));
        if body[0] != b'w' {
            continue;
        }
        // Behind the header of a piece of WAL.
        let payload = body[25..].to_vec();
        let last = payload[0] == b'C';
        all.push(payload);
        if last {
            return all;
        }
    }
}

fn stage(lab: &Lab) -> Server {
    let mut settings = logical();
    for name in ["max_wal_senders", "max_replication_slots"] {
        settings.insert(name.to_owned(), "80".to_owned());
    }
    let mut primary = lab.primary("primary", None, &settings).unwrap();
    allow_plugin(&mut primary);
    primary
        .run(&format!(
            "CREATE ROLE {OWNER} LOGIN REPLICATION; CREATE ROLE {OTHER} LOGIN REPLICATION; \
             CREATE ROLE {RELAY} LOGIN REPLICATION; \
             CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO {OWNER}, {RELAY}; \
             CREATE SCHEMA hidden; CREATE TABLE hidden.secret (); \
             CREATE TABLE public.pg_class (); CREATE TABLE public.\"Odd name\" (); \
             CREATE TYPE app.color AS ENUM ('red'); CREATE TABLE app.items (); \
             CREATE FUNCTION app.answer(app.color) RETURNS int LANGUAGE sql AS 'SELECT 42'; \
             CREATE FUNCTION app.same(app.color, app.color) RETURNS bool LANGUAGE sql AS 'SELECT $1 = $2'; \
             CREATE OPERATOR app.@@@@ (LEFTARG = app.color, RIGHTARG = app.color, FUNCTION = app.same); \
             CREATE TEXT SEARCH CONFIGURATION app.words (COPY = pg_catalog.simple); \
             CREATE COLLATION app.french FROM \"C\"; \
             CREATE TYPE app.stamped AS (at timestamptz, what text, raw bytea); \
             CREATE DOMAIN app.moment AS timestamptz; \
             ALTER ROLE {RELAY} SET timezone = 'America/Caracas'; \
             ALTER ROLE {RELAY} SET bytea_output = escape; \
             ALTER ROLE {RELAY} SET quote_all_identifiers = on; \
             ALTER ROLE {RELAY} SET search_path = hidden, app; \
             ALTER ROLE {RELAY} SET datestyle = German; \
             ALTER ROLE {RELAY} SET intervalstyle = iso_8601; \
             ALTER ROLE {RELAY} SET extra_float_digits = -3; \
             ALTER ROLE {RELAY} IN DATABASE postgres SET lc_monetary = 'C.UTF-8'; \
             ALTER DATABASE postgres SET timezone = 'Pacific/Chatham'"
        ));
    let columns: Vec<String> = COLUMNS
        .iter()
        .enumerate()
        .map(|(at, (kind, _))| format!("c{at} {kind}"))
        .collect();
    primary.run(&format!(
        "CREATE TABLE t ({}); CREATE PUBLICATION p FOR TABLE t",
        columns.join(", ")
    ));
    primary
}

#[test]
fn a_client_gets_what_the_primary_would_send_it() {
    let seed = for_tests::number("SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let sessions = Session::all(&mut Rng::with_seed(seed));
    let lab = TestLab::with_extension().start().unwrap();
    let primary = stage(&lab);
    let relay = Relay::start(&lab, &primary.conninfo(RELAY), &[]);
    let mut through = Vec::new();
    let direct = || Raw::socket(primary.sockets(), primary.port());
    for (at, session) in sessions.iter().enumerate() {
        let mut client = session.log_in(Raw::tcp(relay.port));
        let create = |slot: &str| format!("CREATE_REPLICATION_SLOT {slot}_{at} LOGICAL pgoutput");
        assert_eq!(client.refusal(&create("relayed")), None);
        assert_eq!(session.log_in(direct()).refusal(&create("own")), None);
        start(&mut client, &format!("relayed_{at}"));
        through.push(client);
    }
    let values: Vec<&str> = COLUMNS.iter().map(|(_, value)| *value).collect();
    primary.run(&format!("INSERT INTO t VALUES ({})", values.join(", ")));
    let mut texts = Vec::new();
    for (at, (session, client)) in sessions.iter().zip(&mut through).enumerate() {
        let mut own = session.log_in(direct());
        start(&mut own, &format!("own_{at}"));
        let (expected, found) = (transaction(&mut own), transaction(client));
        let shown = |all: &[Vec<u8>]| -> Vec<String> {
            let text = |one: &Vec<u8>| String::from_utf8_lossy(one).into_owned();
            all.iter().map(text).collect()
        };
        assert_eq!(shown(&found), shown(&expected), "{session:?}");
        assert_eq!(found, expected, "{session:?}");
        texts.push(found);
    }
    // The values did depend on the settings: sessions that differ in one got other bytes.
    texts.sort();
    texts.dedup();
    let left = slots(&primary);
    let passed = left.split(' ').filter(|slot| slot.starts_with("relayed"));
    println!(
        "{} sessions, {} texts, {} passed through",
        sessions.len(),
        texts.len(),
        passed.count()
    );
    assert!(texts.len() >= 13, "{}", texts.len());
    // What is written alike is shared, and only a schema that the relay's role may not use, or
    // another style, is passed through.
    let log = relay.log();
    assert!(log.contains("GRANT USAGE ON SCHEMA"), "{log}");
    assert!(!left.split(' ').any(|slot| slot == "relayed_0"), "{left}");
}
