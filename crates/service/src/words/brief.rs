//! Times and bytes in at most six characters, so that the columns of a table do not move.

/// A time in milliseconds, displayed in ms, s, min or h.
pub fn time(ms: f64) -> String {
    match ms {
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 9_950.0 => format!("{:.1} s", ms / 1e3),
        ms if ms < 119_500.0 => format!("{:.0} s", ms / 1e3),
        ms if ms < 99.5 * 60e3 => format!("{:.0} min", ms / 60e3),
        ms => format!("{:.1} h", ms / 3600e3),
    }
}

/// A number of bytes, displayed in B, kB, MB, GB or TB (powers of 1024).
pub fn bytes(count: f64) -> String {
    let mut value = count;
    let mut unit = "B";
    for next in ["kB", "MB", "GB", "TB"] {
        if value < 999.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    match unit != "B" && value < 9.95 {
        true => format!("{value:.1} {unit}"),
        false => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_six_columns() {
        for (ms, expected) in [
            (0.0, "0 ms"),
            (999.4, "999 ms"),
            (999.6, "1.0 s"),
            (9_949.0, "9.9 s"),
            (9_960.0, "10 s"),
            (119_400.0, "119 s"),
            (120_000.0, "2 min"),
            (99.0 * 60e3, "99 min"),
            (100.0 * 60e3, "1.7 h"),
        ] {
            assert_eq!(time(ms), expected);
        }
        for (count, expected) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.0 kB"),
            (1024.0 * 999.0, "999 kB"),
            (1024.0 * 1023.0, "1.0 MB"),
            (1024.0 * 1024.0 * 45.4, "45 MB"),
            (1e15, "909 TB"),
        ] {
            assert_eq!(bytes(count), expected);
            assert!(bytes(count).len() <= 6);
        }
    }
}
