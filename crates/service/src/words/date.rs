//! Date and time of day in UTC, from the time since 1970.

const MICROS: i64 = 1_000_000;
const DAY: i64 = 86_400;

/// Time of day, `23:59:59 UTC`; `unix_ms` is milliseconds since 1970.
pub fn time_of_day(unix_ms: i64) -> String {
    format!("{} UTC", clock(unix_ms.div_euclid(1000)))
}

/// Date and time in ISO 8601, `2026-01-31T23:59:59Z`; `unix_ms` is milliseconds since 1970.
pub fn iso(unix_ms: i64) -> String {
    let seconds = unix_ms.div_euclid(1000);
    let (year, month, day) = date(seconds.div_euclid(DAY));
    format!("{year:04}-{month:02}-{day:02}T{}Z", clock(seconds))
}

/// Hour, minute and second of seconds since 1970.
fn clock(seconds: i64) -> String {
    let second = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{hour:02}:{minute:02}:{second:02}")
}

/// Text as PostgreSQL prints a `timestamptz` in time zone UTC, `2026-11-21 17:07:12.5+00`; `unix_us` is
/// microseconds since 1970.
pub fn timestamptz(unix_us: i64) -> String {
    let (seconds, fraction) = (unix_us.div_euclid(MICROS), unix_us.rem_euclid(MICROS));
    let (year, month, day) = date(seconds.div_euclid(DAY));
    let clock = clock(seconds);
    let fraction = match fraction {
        0 => String::new(),
        micros => format!(".{micros:06}").trim_end_matches('0').to_owned(),
    };
    // There is no year 0.
    let (year, era) = match year {
        1.. => (year, ""),
        _ => (1 - year, " BC"),
    };
    format!("{year:04}-{month:02}-{day:02} {clock}{fraction}+00{era}")
}

/// Microseconds since 1970 of a text that [`timestamptz`] has written; None for any other, and for
/// years before 1970.
pub fn read_timestamptz(text: &str) -> Option<i64> {
    let (day, clock) = text.strip_suffix("+00")?.split_once(' ')?;
    let numbers = |text: &str, between: char| -> Option<[i64; 3]> {
        let numbers: Option<Vec<i64>> = text.split(between).map(|part| part.parse().ok()).collect();
        numbers?.try_into().ok()
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let ([year, month, day], [hours, minutes, seconds]) =
        (numbers(day, '-')?, numbers(clock, ':')?);
    let fraction: i64 = format!("{fraction:0<6}").parse().ok()?;
    // Days before a year, from 1970 on, and before its month.
    let leap_days = |year: i64| year / 4 - year / 100 + year / 400;
    let days = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    let leaps = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let february = if leaps { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = months
        .iter()
        .take(usize::try_from(month - 1).ok()?)
        .sum::<i64>();
    let seconds = (days + before + day - 1) * DAY + hours * 3600 + minutes * 60 + seconds;
    (year >= 1970).then_some(seconds * MICROS + fraction)
}

/// Year, month and day of a day counted from 1 January 1970, in the Gregorian calendar.
///
/// Years are counted from 1 March, so that the day of the leap year is the last: then the
/// day of a year gives the month, as months repeat the lengths 31, 30, 31, 30, 31 and five
/// of them have 153 days.
fn date(days: i64) -> (i64, i64, i64) {
    const TO_MARCH_OF_0: i64 = 719_468;
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let days = days + TO_MARCH_OF_0;
    let (cycle, day) = (
        days.div_euclid(DAYS_OF_400_YEARS),
        days.rem_euclid(DAYS_OF_400_YEARS),
    );
    // Without the leap days before it, each year of the cycle has 365 days.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (year, month + 3),
        _ => (year + 1, month - 9),
    };
    (cycle * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_postgresql_shows_them() {
        // As `to_timestamp()` on 15.20 with TimeZone = UTC.
        for (unix_us, text) in [
            (0, "1970-01-01 00:00:00+00"),
            (-1, "1969-12-31 23:59:59.999999+00"),
            (951_782_400_000_000, "2000-02-29 00:00:00+00"),
            (1_795_280_832_123_400, "2026-11-21 17:07:12.1234+00"),
            (4_107_542_399_000_001, "2100-02-28 23:59:59.000001+00"),
            (4_107_542_400_000_000, "2100-03-01 00:00:00+00"),
            (-62_135_596_800_000_000, "0001-01-01 00:00:00+00"),
            (-62_135_596_800_000_001, "0001-12-31 23:59:59.999999+00 BC"),
            (253_402_300_800_000_000, "10000-01-01 00:00:00+00"),
        ] {
            assert_eq!(timestamptz(unix_us), text);
            let known = Some(unix_us).filter(|_| unix_us >= 0);
            assert_eq!(read_timestamptz(text), known, "{text}");
        }
        // No overflow anywhere.
        timestamptz(i64::MIN);
        timestamptz(i64::MAX);
    }

    #[test]
    fn times_are_utc() {
        for (at_ms, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399_000, "2000-02-28T23:59:59Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59Z"),
            (1_767_225_600_000, "2026-01-01T00:00:00Z"),
            (1_795_291_512_345, "2026-11-21T20:05:12Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(iso(at_ms), expected);
        }
        assert_eq!(time_of_day(86_399_999), "23:59:59 UTC");
    }

    #[test]
    fn days_follow_each_other() {
        let mut before = date(-1);
        assert_eq!(before, (1969, 12, 31));
        for day in 0..160_000 {
            let (year, month, day) = date(day);
            match before {
                (y, m, d) if d + 1 == day => assert_eq!((y, m), (year, month)),
                (y, m, d) if day == 1 && m + 1 == month => {
                    assert!(d >= 28 && y == year);
                }
                (y, 12, 31) => assert_eq!((year, month, day), (y + 1, 1, 1)),
                other => panic!("{other:?} before {:?}", (year, month, day)),
            }
            before = (year, month, day);
        }
    }
}
