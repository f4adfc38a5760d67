//! Spans of time, written as PostgreSQL writes them.

use std::time::Duration;

/// Units and their microseconds.
const UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// A time such as `100ms`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let units = UNITS.iter().find(|(name, _)| *name == unit.trim());
    let micros = units
        .zip(number.parse().ok())
        .and_then(|((_, unit), number)| u64::checked_mul(*unit, number));
    micros.map(Duration::from_micros).ok_or_else(|| {
        format!(
            "{} is no time: write a whole number with ms, s, min, h or d, such as 100ms",
            super::quoted(text)
        )
    })
}

/// A time in the largest unit that is exact.
pub fn show(time: Duration) -> String {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let exact = UNITS.iter().rev();
    let mut exact = exact.filter(|(_, unit)| micros > 0 && micros % unit == 0);
    exact.next().map_or_else(
        || "0".to_owned(),
        |(name, unit)| format!("{} {name}", micros / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_postgresql_reads_them() {
        for (text, expected) in [
            ("100ms", 100),
            ("2s", 2000),
            ("1min", 60_000),
            ("1 s", 1000),
            ("1d", 86_400_000),
        ] {
            let expected = Duration::from_millis(expected);
            assert_eq!(parse(text), Ok(expected), "{text}");
            assert_eq!(parse(&show(expected)), Ok(expected), "{text}");
        }
        for text in ["", "1", "ms", "1.5s", "-1s", "1S", "99999999999999999999s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_shown_in_the_largest_unit_that_is_exact() {
        for (ms, shown) in [
            (0, "0"),
            (1_500, "1500 ms"),
            (60_000, "1 min"),
            (90_000, "90 s"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), shown);
        }
    }
}
