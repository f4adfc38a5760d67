//! Values of random content have the binary form that the server gives them, or none.

use lockstep_apply::binary::{Form, fill};
use lockstep_apply::row::{Cell, OwnedRow};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::number;

use crate::{server, sql};

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
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(0..1_000_000));
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
