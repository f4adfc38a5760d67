//! Values of random content have the binary form that the server gives them, or none. Whatever else a source
//! may send means the same to the target in binary form as in text, or is refused in both.

use fastrand::Rng;
use lockstep_apply::arrays::copy_line;
use lockstep_apply::binary::{Form, HEADER, TRAILER, fill};
use lockstep_apply::row::{Cell, OwnedRow};
use lockstep_client::{ClientError, Connection, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::number;

use crate::{conninfo, server, sql};

/// Values of each type asked for.
const VALUES: usize = 2_000;

/// Forms with the function that gives a value's binary form, and random values. About half of the times are
/// from years that Lockstep reads.
const KINDS: [(Form, &str, &str); 15] = [
    (Form::Int2, "int2send", "(random() * 65535 - 32768)::int2"),
    (
        Form::Int4,
        "int4send",
        "(random() * 4294967295 - 2147483648)::int8::int4",
    ),
    (Form::Int8, "int8send", "((random() - 0.5) * 1.8e19)::int8"),
    (
        Form::Float4,
        "float4send",
        "((random() - 0.5) * 10.0 ^ (random() * 60 - 25)::int)::float4",
    ),
    (
        Form::Float8,
        "float8send",
        "(random() - 0.5) * 10.0::float8 ^ (random() * 600 - 300)::int",
    ),
    (
        Form::Float8,
        "float8send",
        "(random() * 1000)::int / 8.0::float8",
    ),
    (Form::Bool, "boolsend", "random() < 0.5"),
    (
        Form::Text,
        "textsend",
        "repeat(chr((random() * 3000)::int + 1), (random() * 9)::int)",
    ),
    (Form::Jsonb, "jsonb_send", "to_jsonb(array[random(), n])"),
    (
        Form::Bytea,
        "byteasend",
        "substr(sha256(random()::text::bytea), 1, (random() * 32)::int)",
    ),
    (Form::Uuid, "uuid_send", "gen_random_uuid()"),
    (
        Form::Date,
        "date_send",
        "'4713-01-01 BC'::date + (random() * 5e6)::int",
    ),
    (
        Form::Timestamp,
        "timestamp_send",
        "'0001-01-01'::timestamp + random() * interval '20000 years'",
    ),
    (
        Form::Timestamptz,
        "timestamptz_send",
        "'0001-01-01'::timestamptz + random() * interval '20000 years'",
    ),
    (
        Form::Timestamptz,
        "timestamptz_send",
        "'1850-01-01'::timestamptz + random() * interval '250 years'",
    ),
];

/// Zones whose offsets have hours, halves and quarters of an hour, and, long ago, seconds.
const ZONES: [&str; 4] = [
    "UTC",
    "Asia/Kathmandu",
    "America/St_Johns",
    "Europe/Amsterdam",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_binary_form_of_random_values_is_the_servers() {
    let lab = Lab::for_tests().unwrap();
    let server = server(&lab, "server");
    let mut connection = sql(&server);
    let seed = number("SEED").unwrap_or(1_u32);
    println!("SEED={seed}");
    let seeded = seed as f64 / 1e6 % 1.0;
    connection
        .execute(&format!("SELECT setseed({seeded})"))
        .unwrap();
    for zone in ZONES {
        connection
            .execute(&format!("SET TimeZone = '{zone}'"))
            .unwrap();
        for (form, send, value) in KINDS {
            let rows = connection.query(&format!(
                "SELECT format('%s', v), encode({send}(v), 'hex') \
                 FROM generate_series(1, {VALUES}) n, LATERAL (SELECT {value} AS v, n) AS r"
            ));
            let mut read = 0;
            for row in rows.unwrap() {
                let (text, expected) = (row[0].as_deref().unwrap(), row[1].as_deref().unwrap());
                let cell = OwnedRow::new([Cell::Text(text.as_bytes())]);
                let mut out = Vec::new();
                if fill(&[(0, form)], &[cell.get()], usize::MAX, &mut out) == 0 {
                    continue;
                }
                read += 1;
                // the number of columns, the value's length, the value
                let mut all = vec![0, 1];
                all.extend(u32::try_from(expected.len() / 2).unwrap().to_be_bytes());
                assert_eq!(hex(&out), hex(&all) + expected, "{form:?} {text} in {zone}");
            }
            assert!(read >= VALUES / 4, "{form:?}: {read} of {VALUES} were read");
        }
    }
}

/// Types of columns with the form of their values.
const TYPES: [(&str, Form); 21] = [
    ("int2", Form::Int2),
    ("int4", Form::Int4),
    ("int8", Form::Int8),
    ("float4", Form::Float4),
    ("float8", Form::Float8),
    ("bool", Form::Bool),
    ("text", Form::Text),
    ("varchar", Form::Text),
    ("varchar(4)", Form::Text),
    ("char(5)", Form::Text),
    ("json", Form::Text),
    ("jsonb", Form::Jsonb),
    ("bytea", Form::Bytea),
    ("uuid", Form::Uuid),
    ("date", Form::Date),
    ("timestamp", Form::Timestamp),
    ("timestamp(0)", Form::Timestamp),
    ("timestamp(4)", Form::Timestamp),
    ("timestamptz", Form::Timestamptz),
    ("timestamptz(0)", Form::Timestamptz),
    ("timestamptz(5)", Form::Timestamptz),
];

/// Texts of values of many types, as servers and people write them.
const TEXTS: [&[u8]; 76] = [
    b"",
    b" ",
    b"0",
    b"-0",
    b"1",
    b"-1",
    b"+1",
    b" 1",
    b"1 ",
    b"007",
    b"-",
    b"--1",
    b"1-1",
    b"32767",
    b"32768",
    b"-32768",
    b"-32769",
    b"2147483648",
    b"9223372036854775807",
    b"9223372036854775808",
    b"0x1f",
    b"1_000",
    b"1.5",
    b"1.",
    b".5",
    b"1e3",
    b"1e",
    b"e1",
    b"1e+5",
    b"1e-5",
    b"3.4028235e+38",
    b"3.4028236e+38",
    b"1e-45",
    b"7e-46",
    b"1e-46",
    b"5e-324",
    b"2e-324",
    b"1e-400",
    b"1e400",
    b"NaN",
    b"nan",
    b"inf",
    b"Infinity",
    b"-Infinity",
    b"12345678901234567890.123456789",
    b"t",
    b"f",
    b"true",
    b"on",
    b"T",
    b"{}",
    b"{1,2}",
    b"[1, null]",
    b"{\"a\": 1, \"a\": 2}",
    b"{\"a\": \"\\u0000\"}",
    b"\"\\ud800\"",
    b"null",
    b"\\x",
    b"\\x0",
    b"\\x00ff",
    b"\\xAB",
    b"\\x 12",
    b"\\N",
    b"\\.",
    b"a\\b\tc\nd\r",
    b"abcd     ",
    b"\xff",
    b"a\xc3\x28",
    b"\xc3\xa9",
    b"\xe6\xbc\xa2",
    b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    b"{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}",
    b"a0eebc999c0b4ef8bb6d6bb9bd380a11",
    b"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
    b"$1.00",
    b"2 days",
];

/// Likewise, of times.
const TIMES: [&str; 40] = [
    "2000-01-01",
    "1999-12-31",
    "0001-01-01",
    "0000-01-01",
    "9999-12-31",
    "10000-01-01",
    "0044-03-15 BC",
    "2023-02-29",
    "2024-02-29",
    "1900-02-29",
    "2000-02-29",
    "2000-02-30",
    "2000-04-31",
    "2000-13-01",
    "2000-00-10",
    "2000-01-00",
    "2000-1-1",
    "01/02/2003",
    "01-02-2003",
    "infinity",
    "-infinity",
    "now",
    "epoch",
    "2000-01-01 00:00:00",
    "2000-01-01T00:00:00",
    "1999-12-31 23:59:59.999999",
    "1999-12-31 23:59:59.9999995",
    "2000-01-01 24:00:00",
    "2000-01-01 23:60:00",
    "2000-01-01 23:59:60",
    "2000-01-01 00:00:00.",
    "1582-10-10 12:30:00.5",
    "2000-01-01 00:00:00+00",
    "2000-01-01 00:00:00-00",
    "2000-01-01 00:00:00+05:30",
    "2000-01-01 00:00:00-15:59:59",
    "2000-01-01 00:00:00+16",
    "2000-01-01 00:00:00+5",
    "0001-01-01 00:00:00+15",
    "9999-12-31 23:59:59.999999-15",
];

/// A text with a few bytes more, less or other than it had.
fn altered(text: &[u8], rng: &mut Rng) -> Vec<u8> {
    const BYTES: &[u8] = b"0123456789-+.:eE tfxZTN,{}[]\"\\/abcdin\xc3\xa9\n";
    let mut text = text.to_vec();
    for _ in 0..rng.usize(1..3) {
        let byte = BYTES[rng.usize(..BYTES.len())];
        let place = rng.usize(..=text.len());
        match rng.u8(..3) {
            0 => text.insert(place, byte),
            1 if place < text.len() => text[place] = byte,
            _ if place < text.len() => drop(text.remove(place)),
            _ => text.push(byte),
        }
    }
    text
}

fn copy(connection: &mut Connection, sql: &str, data: &[u8]) -> Result<u64, ClientError> {
    let mut copy = connection.copy_in(sql)?;
    copy.send(data)?;
    copy.finish()
}

/// Copies one value as text and in binary form, if it has one. Returns whether it has, and whether the
/// server takes it.
fn copied(connection: &mut Connection, (kind, form): (&str, Form), text: &[u8]) -> (bool, bool) {
    let row = OwnedRow::new([Cell::Text(text)]);
    let mut binary = HEADER.to_vec();
    if fill(&[(0, form)], &[row.get()], usize::MAX, &mut binary) == 0 {
        return (false, false);
    }
    binary.extend(TRAILER);
    let mut line = Vec::new();
    copy_line(
        row.get(),
        &[0],
        &mut line,
        &mut |_| Ok::<_, ClientError>(()),
    )
    .unwrap();
    let taken = [
        ("FROM STDIN", &line),
        ("FROM STDIN (FORMAT binary)", &binary),
    ]
    .map(|(from, data)| {
        let taken = copy(connection, &format!("COPY \"{kind}\" (v) {from}"), data);
        taken.map_err(|error| error.refusal().unwrap().sqlstate.clone())
    });
    let shown = String::from_utf8_lossy(text);
    assert_eq!(
        taken[0].is_ok(),
        taken[1].is_ok(),
        "{kind} {shown:?}: {taken:?}"
    );
    (true, taken[0].is_ok())
}

/// Every text in every type, some altered at random. The target is of UTF8, and of LATIN1, which lacks most
/// characters.
#[test]
fn whatever_a_source_sends_is_the_same_in_binary_form_or_has_none() {
    let lab = Lab::for_tests().unwrap();
    let server = server(&lab, "server");
    let seed = number("SEED").unwrap_or(1);
    println!("SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    server
        .execute(
            "CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
        )
        .unwrap();
    let mut texts: Vec<Vec<u8>> = TEXTS.iter().map(|text| text.to_vec()).collect();
    texts.extend(TIMES.iter().map(|text| text.as_bytes().to_vec()));
    let more: Vec<_> = (0..3 * texts.len())
        .map(|place| altered(&texts[place % texts.len()], &mut rng))
        .collect();
    texts.extend(more);
    for database in ["copy", "latin1"] {
        let to = conninfo(&server).with_database(database).unwrap();
        let mut connection = Connection::connect(&to, Purpose::Sql, "lockstep test").unwrap();
        let settings = "SET synchronous_commit = off; SET datestyle = 'ISO, DMY'; SET TimeZone = 'Asia/Kolkata'";
        connection.execute(settings).unwrap();
        for (kind, form) in TYPES {
            connection
                .execute(&format!("CREATE TABLE \"{kind}\" (n serial, v {kind})"))
                .unwrap();
            let mut taken = 0;
            for text in &texts {
                let (_, is_taken) = copied(&mut connection, (kind, form), text);
                taken += usize::from(is_taken);
            }
            assert!(taken > 0, "{kind}: {taken} of {} were taken", texts.len());
            // Both copies of a value that is taken stand one after the other.
            let differ = connection
                .query(&format!(
                    "SELECT a, b FROM (SELECT v, ROW(v)::text || ' ' || pg_column_size(v) AS a, \
                         lead(ROW(v)::text || ' ' || pg_column_size(v)) OVER (ORDER BY n) AS b, \
                         row_number() OVER (ORDER BY n) % 2 AS is_first FROM \"{kind}\") AS r \
                     WHERE is_first = 1 AND a IS DISTINCT FROM b"
                ))
                .unwrap();
            assert_eq!(
                differ,
                Vec::<Vec<Option<String>>>::new(),
                "{kind} in {database}"
            );
        }
    }
}
