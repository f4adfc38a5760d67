//! The worst moments of all links in one step of time, as they are on disk.
//!
//! ```text
//! form 1 │ length, id, ms since the step began, lag in µs, bytes, four stages, visible … │ CRC-32C
//! ```
//!
//! Numbers have seven bits in each byte, the lowest first. `visible` is 0 if it is not known, and
//! else one more than its µs. The checksum covers all before it and is verified on every read: a
//! record that does not match, or has another form, is damaged, and with it the file.

use std::collections::BTreeMap;

use lockstep_lag::monitor::Moment;

/// The first byte.
const FORM: u8 = 1;

/// Longest id of a link that is kept, in bytes.
const MOST_ID: usize = 1024;

/// The worst moment of each link.
pub type Moments = BTreeMap<String, Moment>;

/// Puts a moment where it is the worst.
pub fn keep_worst(moments: &mut Moments, id: &str, moment: &Moment) {
    match moments.get_mut(id) {
        Some(kept) if !moment.is_worse_than(kept) => {}
        Some(kept) => *kept = moment.clone(),
        None if id.len() > MOST_ID => {}
        None => {
            moments.insert(id.to_owned(), moment.clone());
        }
    }
}

/// The record of a step that begins at `step_ms`.
pub fn encode(step_ms: i64, moments: &Moments) -> Vec<u8> {
    let mut bytes = vec![FORM];
    for (id, moment) in moments {
        put(&mut bytes, id.len() as u64);
        bytes.extend_from_slice(id.as_bytes());
        put(&mut bytes, moment.at_ms.abs_diff(step_ms));
        put(&mut bytes, micros(moment.lag_ms));
        put(&mut bytes, moment.lag_bytes);
        for stage in moment.stage_bytes {
            put(&mut bytes, stage);
        }
        put(&mut bytes, moment.visible_ms.map_or(0, |ms| micros(ms) + 1));
    }
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// What a record holds; None if it is damaged.
pub fn decode(step_ms: i64, bytes: &[u8]) -> Option<Moments> {
    let (held, sum) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(held) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (form, mut rest) = held.split_first()?;
    let mut moments = Moments::new();
    while *form == FORM && !rest.is_empty() {
        let length = usize::try_from(take(&mut rest)?).ok()?;
        let (id, after) = rest.split_at_checked(length)?;
        rest = after;
        let id = std::str::from_utf8(id).ok()?;
        let at_ms = step_ms.checked_add_unsigned(take(&mut rest)?)?;
        let lag_ms = millis(take(&mut rest)?);
        let lag_bytes = take(&mut rest)?;
        let mut stage_bytes = [0; 4];
        for stage in &mut stage_bytes {
            *stage = take(&mut rest)?;
        }
        let visible_ms = take(&mut rest)?.checked_sub(1).map(millis);
        let moment = Moment {
            at_ms,
            lag_ms,
            lag_bytes,
            stage_bytes,
            visible_ms,
        };
        moments.insert(id.to_owned(), moment);
    }
    (*form == FORM).then_some(moments)
}

/// Whole µs; times here are neither negative nor long enough to overflow.
fn micros(ms: f64) -> u64 {
    (ms * 1000.0).round().max(0.0) as u64
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(at_ms: i64, lag_ms: f64) -> Moment {
        Moment {
            at_ms,
            lag_ms,
            lag_bytes: u64::MAX,
            stage_bytes: [0, 127, 128, 1 << 40],
            visible_ms: (lag_ms > 1.0).then_some(0.0),
        }
    }

    fn some() -> Moments {
        let mut moments = Moments::new();
        keep_worst(&mut moments, "primary/standby", &moment(20_000, 0.5));
        keep_worst(&mut moments, "primary/a “b”", &moment(29_999, 1234.567));
        moments
    }

    #[test]
    fn the_worst_moment_of_each_link_stays() {
        let mut moments = some();
        keep_worst(&mut moments, "primary/standby", &moment(21_000, 0.25));
        assert_eq!(moments, some());
        keep_worst(&mut moments, "primary/standby", &moment(22_000, 9.0));
        assert_eq!(moments["primary/standby"].at_ms, 22_000);
        keep_worst(&mut moments, &"x".repeat(MOST_ID + 1), &moment(0, 1.0));
        assert_eq!(moments.len(), 2);
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for moments in [Moments::new(), some()] {
            let bytes = encode(20_000, &moments);
            assert_eq!(decode(20_000, &bytes), Some(moments));
        }
    }

    /// Every bit counts, and no bytes make it panic.
    #[test]
    fn damage_is_found() {
        let bytes = encode(20_000, &some());
        for at in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            assert_eq!(decode(20_000, &bytes), None, "bit {at}");
        }
        for length in 0..bytes.len() {
            assert_eq!(decode(20_000, &bytes[..length]), None, "{length} bytes");
        }
        let mut random = fastrand::Rng::with_seed(15);
        for _ in 0..10_000 {
            let mut held: Vec<u8> = (0..random.usize(..60)).map(|_| random.u8(..)).collect();
            held.insert(0, FORM);
            held.extend(crc32c::crc32c(&held).to_le_bytes());
            decode(i64::MAX, &held);
        }
    }
}
