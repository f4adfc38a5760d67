//! Values of the console in binary format, as clients ask for them whose drivers know the types.

use lockstep_service::words::date;
use lockstep_wire::Lsn;
use lockstep_wire::backend::{Backend, Column, INT4, INT8};
use lockstep_wire::frame;

use super::frames::split;

/// Object identifier of the type `pg_lsn`.
pub(crate) const PG_LSN: u32 = 3220;

/// Object identifier of the type `timestamptz`.
pub(crate) const TIMESTAMPTZ: u32 = 1184;

/// Microseconds from 1970 to 2000, from where servers count.
const TO_2000: i64 = 946_684_800_000_000;

/// A row with the columns in binary that are wanted so.
pub(super) fn in_binary(row: &[u8], columns: &[Column<'_>], wanted: &[bool]) -> Vec<u8> {
    let (tag, body) = split(row);
    let Ok(Backend::DataRow(values)) = Backend::parse(frame::Frame { tag, body }) else {
        return row.to_vec();
    };
    if !wanted.contains(&true) {
        return row.to_vec();
    }
    let formats = columns.iter().zip(wanted);
    let values: Vec<Option<Vec<u8>>> = values
        .into_iter()
        .zip(formats)
        .map(|(value, (column, binary))| {
            let value = value?;
            match binary {
                true => Some(value_in_binary(column.kind, value)),
                false => Some(value.to_vec()),
            }
        })
        .collect();
    let mut out = Vec::new();
    Backend::DataRow(values.iter().map(Option::as_deref).collect()).encode(&mut out);
    out
}

/// Texts are the same in both formats.
fn value_in_binary(kind: u32, text: &[u8]) -> Vec<u8> {
    let value = std::str::from_utf8(text).ok().and_then(|text| match kind {
        INT4 => Some(text.parse::<i32>().ok()?.to_be_bytes().to_vec()),
        INT8 => Some(text.parse::<i64>().ok()?.to_be_bytes().to_vec()),
        PG_LSN => Some(u64::from(text.parse::<Lsn>().ok()?).to_be_bytes().to_vec()),
        TIMESTAMPTZ => {
            let since = date::read_timestamptz(text)? - TO_2000;
            Some(since.to_be_bytes().to_vec())
        }
        _ => None,
    });
    value.unwrap_or_else(|| text.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_a_server_writes_them() {
        for (kind, text, expected) in [
            (INT4, "-2", &[0xff, 0xff, 0xff, 0xfe][..]),
            (INT8, "258", &[0, 0, 0, 0, 0, 0, 1, 2]),
            (PG_LSN, "1/2A", &[0, 0, 0, 1, 0, 0, 0, 0x2a]),
            (
                TIMESTAMPTZ,
                "2000-01-01 00:00:00.000258+00",
                &[0, 0, 0, 0, 0, 0, 1, 2],
            ),
            (25, "x", b"x"),
        ] {
            assert_eq!(value_in_binary(kind, text.as_bytes()), expected, "{text}");
        }
    }
}
