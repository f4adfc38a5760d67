//! Figures for people.

/// A time in milliseconds, displayed in ms or s, with a digit after the point where it is short.
pub fn ms(value: f64) -> String {
    match value {
        v if v < 0.05 => "0 ms".to_owned(),
        v if v < 9.95 => format!("{v:.1} ms"),
        v if v < 999.5 => format!("{v:.0} ms"),
        v => format!("{:.1} s", v / 1000.0),
    }
}

/// A number of bytes, displayed in bytes, kB, MB, GB or TB (powers of 1024).
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1024.0 {
        return format!("{count:.0} bytes");
    }
    let mut value = count / 1024.0;
    let mut unit = UNITS.iter();
    let mut name = unit.next().copied().unwrap_or_default();
    for next in unit {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        name = next;
    }
    match value < 9.95 {
        true => format!("{value:.1} {name}"),
        false => format!("{value:.0} {name}"),
    }
}

/// A time in milliseconds, displayed in ms, s, min or h.
pub fn seconds(ms: f64) -> String {
    match ms {
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 9_950.0 => format!("{:.1} s", ms / 1000.0),
        ms if ms < 120_000.0 => format!("{:.0} s", ms / 1000.0),
        ms if ms < 7_200_000.0 => format!("{:.0} min", ms / 60_000.0),
        ms => format!("{:.0} h", ms / 3_600_000.0),
    }
}

/// A time in seconds that may be short, displayed in us, ms, s, min or h.
pub fn short(seconds: f64) -> String {
    let time = seconds * 1000.0;
    match time {
        0.0 => "0 ms".to_owned(),
        time if time < 0.9995 => format!("{:.0} us", (time * 1000.0).max(1.0)),
        time if time < 9.95 => ms(time),
        time => self::seconds(time),
    }
}

/// A share from 0 to 1 as a percentage.
pub fn percent(share: f64) -> String {
    of_hundred(share * 100.0)
}

/// A number of things, by the word for one of them: `1 node`, `2,000 nodes`.
pub fn counted(number: u64, one: &str) -> String {
    let more = if number == 1 { "" } else { "s" };
    format!("{} {one}{more}", count(number as f64))
}

/// The verb of so many: `verb(1, "is", "are")` is `is`.
pub fn verb<'a>(number: u64, of_one: &'a str, of_more: &'a str) -> &'a str {
    if number == 1 { of_one } else { of_more }
}

/// A count or a rate, with separators for thousands.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < -0.5 {
        format!("-{text}")
    } else {
        text
    }
}

/// A figure with one digit after the point.
pub fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

/// A figure with two digits after the point.
pub fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

/// A figure with three digits after the point.
pub fn thousandths(value: f64) -> String {
    format!("{value:.3}")
}

/// Whole percents; `value` is 100 for all.
pub fn of_hundred(value: f64) -> String {
    format!("{value:.0} %")
}

/// Growth of lag, in milliseconds a second.
pub fn slope(ms_per_s: f64) -> String {
    // Minus zero is shown as zero.
    format!(
        "{:+.1} ms/s",
        if ms_per_s.abs() < 0.05 { 0.0 } else { ms_per_s }
    )
}

/// A time in seconds, displayed in s or in min and s.
pub fn duration(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, s) => format!("{s} s"),
        (m, 0) => format!("{m} min"),
        (m, s) => format!("{m} min {s} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(ms(0.0), "0 ms");
        assert_eq!(ms(4.68), "4.7 ms");
        assert_eq!(ms(412.3), "412 ms");
        assert_eq!(ms(12_345.0), "12.3 s");
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.6), "1,000");
        assert_eq!(count(1_234_567.0), "1,234,567");
        assert_eq!(count(-1234.0), "-1,234");
        assert_eq!(counted(0, "node"), "0 nodes");
        assert_eq!(counted(1, "node"), "1 node");
        assert_eq!(counted(1_000, "node"), "1,000 nodes");
        assert_eq!(slope(-0.01), "+0.0 ms/s");
        assert_eq!(slope(801.25), "+801.2 ms/s");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(120), "2 min");
        assert_eq!(duration(185), "3 min 5 s");
    }

    #[test]
    fn figures_have_the_unit_that_suits() {
        assert_eq!(bytes(12.0), "12 bytes");
        assert_eq!(bytes(2048.0), "2.0 kB");
        assert_eq!(bytes(50.0 * 1024.0 * 1024.0), "50 MB");
        assert_eq!(seconds(12.4), "12 ms");
        assert_eq!(seconds(3_500.0), "3.5 s");
        assert_eq!(seconds(82_460.0), "82 s");
        assert_eq!(seconds(600_000.0), "10 min");
        assert_eq!(short(0.0), "0 ms");
        assert_eq!(short(1e-9), "1 us");
        assert_eq!(short(0.000_5), "500 us");
        assert_eq!(short(0.001_5), "1.5 ms");
        assert_eq!(short(0.012_4), "12 ms");
        assert_eq!(short(82.46), "82 s");
        assert_eq!(percent(0.504), "50 %");
    }
}
