//! Rows in COPY's binary form, if all their columns have types whose text is easy to read. No I/O.
//!
//! The source sends text. A server that is given text looks at each byte twice before it has a row's values,
//! and reads a time as people may write it. What is read here is what PostgreSQL itself writes, with the
//! settings that a stream has; a value that is anything else is left to the server, as text.
//!
//! What must stay true: the target makes of a row in this form what it would make of its text, or refuses
//! both. So a type is here only if its receive function does with length, precision, encoding and JSON what
//! its input function does, and what that one checks besides is checked here. `binary_alike` of crate
//! `replica` asks a server; `docs/decisions/2026-11-28-rows-in-binary-form.md` has the rule in full.

use crate::row::{Cell, RowRef};
use crate::table::{Table, TargetColumn};

/// What stands before the rows: the signature, no flags, nothing more.
pub const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// What stands after them.
pub const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();

/// Longest row that is made: a longer one goes in pieces, as text.
const LONGEST: usize = 32 * 1024;

/// How values of a type are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Bool,
    Text,
    /// Text behind the number of its version.
    Jsonb,
    Bytea,
    Uuid,
    Date,
    Timestamp,
    Timestamptz,
}

/// Types by their names in `pg_catalog`.
const FORMS: [(&str, Form); 16] = [
    ("int2", Form::Int2),
    ("int4", Form::Int4),
    ("int8", Form::Int8),
    ("float4", Form::Float4),
    ("float8", Form::Float8),
    ("bool", Form::Bool),
    ("text", Form::Text),
    ("varchar", Form::Text),
    ("bpchar", Form::Text),
    ("json", Form::Text),
    ("jsonb", Form::Jsonb),
    ("bytea", Form::Bytea),
    ("uuid", Form::Uuid),
    ("date", Form::Date),
    ("timestamp", Form::Timestamp),
    ("timestamptz", Form::Timestamptz),
];

/// The form of each column that statements write, with its place. None if some column has none.
pub fn forms(table: &Table) -> Option<Vec<(usize, Form)>> {
    let form = |(place, column): (usize, &TargetColumn)| {
        // Domains and types of users are in other schemas. Names that are keywords are quoted.
        let name = column.kind.strip_prefix("pg_catalog.")?.trim_matches('"');
        let found = FORMS.iter().find(|(kind, _)| *kind == name);
        found.map(|(_, form)| (place, *form))
    };
    table.written().map(form).collect()
}

/// Appends rows until `out` has `enough` bytes, and returns how many. If `out` has less than that, the next
/// row, if there is one, is too long or has a value that is not read here.
pub fn fill(
    forms: &[(usize, Form)],
    rows: &[RowRef<'_>],
    enough: usize,
    out: &mut Vec<u8>,
) -> usize {
    let mut made = 0;
    for row in rows {
        if out.len() >= enough {
            break;
        }
        let before = out.len();
        if row.size() > LONGEST || put_row(forms, *row, out).is_none() {
            out.truncate(before);
            break;
        }
        made += 1;
    }
    made
}

fn put_row(forms: &[(usize, Form)], row: RowRef<'_>, out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(&i16::try_from(forms.len()).ok()?.to_be_bytes());
    let mut cells = row.cells();
    let mut next = 0;
    for (place, form) in forms {
        let cell = cells.nth(place.checked_sub(next)?)?;
        next = place + 1;
        match cell {
            Cell::Null | Cell::Unchanged => out.extend_from_slice(&(-1_i32).to_be_bytes()),
            Cell::Text(text) => put(*form, text, out)?,
        }
    }
    Some(())
}

fn put_value(value: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(&i32::try_from(value.len()).ok()?.to_be_bytes());
    out.extend_from_slice(value);
    Some(())
}

/// Appends a value with its length.
fn put(form: Form, text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    match form {
        Form::Text => put_value(text, out),
        Form::Int2 => put_value(&i16::try_from(integer(text)?).ok()?.to_be_bytes(), out),
        Form::Int4 => put_value(&i32::try_from(integer(text)?).ok()?.to_be_bytes(), out),
        Form::Int8 => put_value(&integer(text)?.to_be_bytes(), out),
        Form::Float4 => put_value(&float::<f32>(text)?.to_be_bytes(), out),
        Form::Float8 => put_value(&float::<f64>(text)?.to_be_bytes(), out),
        Form::Bool => match text {
            b"t" => put_value(&[1], out),
            b"f" => put_value(&[0], out),
            _ => None,
        },
        Form::Jsonb => {
            out.extend_from_slice(&i32::try_from(text.len() + 1).ok()?.to_be_bytes());
            out.push(1);
            out.extend_from_slice(text);
            Some(())
        }
        Form::Bytea => put_bytes(text.strip_prefix(b"\\x")?, out),
        Form::Uuid => put_value(&uuid(text)?, out),
        Form::Date => put_value(&i32::try_from(date(text)?).ok()?.to_be_bytes(), out),
        Form::Timestamp => put_value(&timestamp(text)?.to_be_bytes(), out),
        Form::Timestamptz => put_value(&timestamptz(text)?.to_be_bytes(), out),
    }
}

fn parsed<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn integer(text: &[u8]) -> Option<i64> {
    let is_plain = |byte: &u8| byte.is_ascii_digit() || *byte == b'-';
    text.iter().all(is_plain).then(|| parsed(text))?
}

/// A finite number. One that is too small to be told from zero is left to the server, which refuses it.
fn float<T: std::str::FromStr + Into<f64> + Copy>(text: &[u8]) -> Option<T> {
    let is_plain = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e');
    let number: T = text.iter().all(is_plain).then(|| parsed(text))??;
    let value: f64 = number.into();
    let is_read = value.is_finite() && (value != 0.0 || matches!(text, b"0" | b"-0"));
    is_read.then_some(number)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn byte(pair: &[u8]) -> Option<u8> {
    match pair {
        [high, low] => Some(nibble(*high)? << 4 | nibble(*low)?),
        _ => None,
    }
}

fn put_bytes(digits: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.extend_from_slice(&i32::try_from(digits.len() / 2).ok()?.to_be_bytes());
    digits.chunks(2).try_for_each(|pair| {
        out.push(byte(pair)?);
        Some(())
    })
}

fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let groups: Vec<&[u8]> = text.split(|byte| *byte == b'-').collect();
    if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
        return None;
    }
    let pairs = groups.into_iter().flat_map(|group| group.chunks(2));
    let bytes = pairs.map(byte).collect::<Option<Vec<u8>>>()?;
    bytes.try_into().ok()
}

/// A number of exactly so many digits, and what follows.
fn digits(text: &[u8], number: usize) -> Option<(i64, &[u8])> {
    let (digits, left) = text.split_at_checked(number)?;
    let mut value = 0;
    for digit in digits {
        value = value * 10 + i64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    Some((value, left))
}

/// Like [`digits`], behind this byte and at most `most`.
fn after(text: &[u8], before: u8, most: i64) -> Option<(i64, &[u8])> {
    let (value, left) = digits(text.strip_prefix(&[before])?, 2)?;
    (value <= most).then_some((value, left))
}

/// Days of a year before each month, without a leap day.
const BEFORE_MONTH: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];

/// Days since 2000-01-01 of a date from year 1 to 9999, and what follows.
fn days(text: &[u8]) -> Option<(i64, &[u8])> {
    let (year, left) = digits(text, 4)?;
    let (month, left) = after(left, b'-', 12)?;
    let (day, left) = after(left, b'-', 31)?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let place = usize::try_from(month).ok()?;
    let before = *BEFORE_MONTH.get(place.checked_sub(1)?)?;
    let length = BEFORE_MONTH.get(place)? - before + i64::from(is_leap && month == 2);
    if year < 1 || !(1..=length).contains(&day) {
        return None;
    }
    let leap_day = i64::from(is_leap && month > 2);
    Some((
        days_before(year) - days_before(2000) + before + leap_day + day - 1,
        left,
    ))
}

/// Days of the years from 1 to the one before.
fn days_before(year: i64) -> i64 {
    let years = year - 1;
    years * 365 + years / 4 - years / 100 + years / 400
}

fn date(text: &[u8]) -> Option<i64> {
    let (days, left) = days(text)?;
    left.is_empty().then_some(days)
}

/// Microseconds since 2000-01-01 00:00:00, and what follows.
fn micros(text: &[u8]) -> Option<(i64, &[u8])> {
    let (days, left) = days(text)?;
    let (hour, left) = after(left, b' ', 23)?;
    let (minute, left) = after(left, b':', 59)?;
    let (second, mut left) = after(left, b':', 59)?;
    let mut micros = 0;
    if let Some(fraction) = left.strip_prefix(b".") {
        let length = fraction.iter().take_while(|it| it.is_ascii_digit()).count();
        let scale = 6_usize.checked_sub(length).filter(|_| length > 0)?;
        let (value, rest) = digits(fraction, length)?;
        micros = value * 10_i64.pow(u32::try_from(scale).ok()?);
        left = rest;
    }
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    Some((seconds * 1_000_000 + micros, left))
}

fn timestamp(text: &[u8]) -> Option<i64> {
    let (micros, left) = micros(text)?;
    left.is_empty().then_some(micros)
}

fn timestamptz(text: &[u8]) -> Option<i64> {
    let (micros, left) = micros(text)?;
    let sign = match left.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, mut left) = after(left, *left.first()?, 15)?;
    let mut seconds = hours * 3_600;
    for unit in [60, 1] {
        if !left.is_empty() {
            let (value, rest) = after(left, b':', 59)?;
            seconds += value * unit;
            left = rest;
        }
    }
    left.is_empty()
        .then_some(micros - sign * seconds * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::TableName;
    use crate::reach::Reach;
    use crate::row::OwnedRow;
    use crate::source_table::Identity;
    use crate::types::ColumnType;

    fn made(form: Form, text: &str) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        put(form, text.as_bytes(), &mut out)?;
        let length = i32::from_be_bytes(*out.first_chunk().unwrap());
        assert_eq!(usize::try_from(length).unwrap(), out.len() - 4);
        Some(out[4..].to_vec())
    }

    #[test]
    fn what_postgresql_writes_is_read() {
        let day = 86_400_000_000_i64;
        let cases: [(Form, &str, &[u8]); 30] = [
            (Form::Int2, "-32768", &i16::MIN.to_be_bytes()),
            (Form::Int4, "2147483647", &i32::MAX.to_be_bytes()),
            (Form::Int8, "-9223372036854775808", &i64::MIN.to_be_bytes()),
            (Form::Int8, "0", &0_i64.to_be_bytes()),
            (Form::Float4, "1e-45", &f32::from_bits(1).to_be_bytes()),
            (
                Form::Float8,
                "1.7976931348623157e+308",
                &f64::MAX.to_be_bytes(),
            ),
            (Form::Float8, "-0", &(-0.0_f64).to_be_bytes()),
            (Form::Float8, "0.1", &0.1_f64.to_be_bytes()),
            (Form::Bool, "t", &[1]),
            (Form::Bool, "f", &[0]),
            (Form::Text, "", b""),
            (Form::Text, "\\.\t\n", b"\\.\t\n"),
            (Form::Jsonb, "{}", b"\x01{}"),
            (Form::Bytea, "\\x", b""),
            (Form::Bytea, "\\x00ff1a", b"\x00\xff\x1a"),
            (
                Form::Uuid,
                "00010203-0405-0607-0809-0a0b0c0d0e0f",
                &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            ),
            (Form::Date, "2000-01-01", &0_i32.to_be_bytes()),
            (Form::Date, "1999-12-31", &(-1_i32).to_be_bytes()),
            (Form::Date, "2000-03-01", &60_i32.to_be_bytes()),
            (Form::Date, "1970-01-01", &(-10_957_i32).to_be_bytes()),
            (Form::Date, "0001-01-01", &(-730_119_i32).to_be_bytes()),
            (Form::Date, "2024-02-29", &8_825_i32.to_be_bytes()),
            (Form::Date, "9999-12-31", &2_921_939_i32.to_be_bytes()),
            (Form::Timestamp, "2000-01-01 00:00:00", &0_i64.to_be_bytes()),
            (
                Form::Timestamp,
                "1999-12-31 23:59:59.9",
                &(-100_000_i64).to_be_bytes(),
            ),
            (
                Form::Timestamp,
                "2000-01-02 00:00:00.000001",
                &(day + 1).to_be_bytes(),
            ),
            (
                Form::Timestamptz,
                "2000-01-02 00:00:00+00",
                &day.to_be_bytes(),
            ),
            (
                Form::Timestamptz,
                "2000-01-02 02:00:00+02",
                &day.to_be_bytes(),
            ),
            (
                Form::Timestamptz,
                "2000-01-01 20:30:00-03:30",
                &day.to_be_bytes(),
            ),
            (
                Form::Timestamptz,
                "2000-01-02 00:53:28.5+00:53:28",
                &(day + 500_000).to_be_bytes(),
            ),
        ];
        for (form, text, bytes) in cases {
            assert_eq!(made(form, text).as_deref(), Some(bytes), "{form:?} {text}");
        }
    }

    #[test]
    fn what_else_there_is_is_left_to_the_server() {
        for (form, text) in [
            (Form::Int2, "32768"),
            (Form::Int4, "+1"),
            (Form::Int8, "1.5"),
            (Form::Int8, ""),
            (Form::Float4, "1e39"),
            (Form::Float8, "1e-400"),
            (Form::Float8, "NaN"),
            (Form::Float8, "-Infinity"),
            (Form::Bool, "true"),
            (Form::Bytea, "\\x0"),
            (Form::Bytea, "\\xAB"),
            (Form::Bytea, "\\000"),
            (Form::Uuid, "000102030405060708090a0b0c0d0e0f"),
            (Form::Uuid, "00010203-0405-0607-0809-0a0b0c0d0e0g"),
            (Form::Date, "infinity"),
            (Form::Date, "0000-01-01"),
            (Form::Date, "2000-00-01"),
            (Form::Date, "2023-02-29"),
            (Form::Date, "2023-04-31"),
            (Form::Date, "2023-13-01"),
            (Form::Date, "10000-01-01"),
            (Form::Date, "0044-03-15 BC"),
            (Form::Date, "01/31/2024"),
            (Form::Timestamp, "2000-01-01"),
            (Form::Timestamp, "2000-01-01 24:00:00"),
            (Form::Timestamp, "2000-01-01 00:00:60"),
            (Form::Timestamp, "2000-01-01 00:00:00."),
            (Form::Timestamp, "2000-01-01 00:00:00.1234567"),
            (Form::Timestamp, "0044-03-15 00:00:00 BC"),
            (Form::Timestamptz, "2000-01-01 00:00:00"),
            (Form::Timestamptz, "2000-01-01 00:00:00 UTC"),
            (Form::Timestamptz, "0044-03-15 00:00:00+00 BC"),
        ] {
            assert_eq!(made(form, text), None, "{form:?} {text}");
        }
    }

    #[test]
    fn a_table_has_a_form_if_all_columns_that_are_written_have_one() {
        let table = |kinds: &[&str]| {
            let column = |kind: &&str| TargetColumn {
                name: "c".to_owned(),
                of: ColumnType::default(),
                kind: (*kind).to_owned(),
                in_array: true,
                of_user: false,
                delimiter: b',',
                generated: *kind == "generated",
                always_identity: false,
            };
            Table {
                name: TableName {
                    schema: "s".to_owned(),
                    table: "t".to_owned(),
                },
                columns: kinds.iter().map(column).collect(),
                identity: Identity::Nothing,
                partitioned: false,
                crowded: false,
                kept: Vec::new(),
                attributes: 0,
                reach: Reach::default(),
            }
        };
        let quoted = "pg_catalog.\"timestamp\"";
        let plain = table(&["generated", "pg_catalog.int8", quoted]);
        let expected = vec![(1, Form::Int8), (2, Form::Timestamp)];
        assert_eq!(forms(&plain), Some(expected));
        for other in ["public.int8", "pg_catalog.numeric", "pg_catalog.\"char\""] {
            assert_eq!(forms(&table(&["pg_catalog.int8", other])), None, "{other}");
        }
    }

    #[test]
    fn rows_are_made_up_to_the_first_that_is_not_read() {
        let forms = [(0, Form::Int2), (2, Form::Text)];
        let row = |number: &str, text: Cell<'_>| {
            OwnedRow::new([Cell::Text(number.as_bytes()), Cell::Text(b"skipped"), text])
        };
        let long = "x".repeat(LONGEST);
        let rows = [
            row("1", Cell::Text(b"a")),
            row("2", Cell::Null),
            row("x", Cell::Null),
            row("3", Cell::Text(long.as_bytes())),
        ];
        let rows = rows.each_ref().map(OwnedRow::get);
        let mut out = HEADER.to_vec();
        assert_eq!(fill(&forms, &rows, usize::MAX, &mut out), 2);
        let expected = b"\0\x02\0\0\0\x02\0\x01\0\0\0\x01a\0\x02\0\0\0\x02\0\x02\xff\xff\xff\xff";
        assert_eq!(out.strip_prefix(HEADER), Some(&expected[..]));
        for (left, most, made) in [
            (&rows[2..], 100, 0),
            (&rows[3..], 100, 0),
            (&rows[..2], 1, 1),
        ] {
            assert_eq!(fill(&forms, left, most, &mut Vec::new()), made);
        }
    }
}
