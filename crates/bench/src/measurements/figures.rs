//! Figures as people read them, in the unit that ends their key.

use lockstep_service::words::figures::{count, ms, of_hundred};

/// What a ratio shows where there is none.
pub const NONE: &str = "–";

/// A figure with the unit that its key ends with. Rates, counts and keys without a unit get
/// none: a heading or the sentence around the figure names it.
pub fn shown(key: &str, value: f64) -> String {
    // Minus zero is zero.
    let value = if value.abs() < 0.005 { 0.0 } else { value };
    let ends = |ends: &[&str]| ends.iter().any(|end| key.ends_with(end));
    if ends(&["_ms_per_s"]) {
        format!("{} ms/s", signed(value))
    } else if ends(&["mb_per_s"]) {
        format!("{} MB/s", three_digits(value))
    } else if ends(&["_percent", "_pct"]) {
        format!("{value:.2} %")
    } else if ends(&["_ms"]) {
        milliseconds(value)
    } else if ends(&["_mb", "_mb_start", "_mb_end"]) {
        format!("{} MB", three_digits(value))
    } else if ends(&["seconds", "_s"]) && !ends(&["_per_s"]) {
        seconds(value)
    } else if value.fract() == 0.0 {
        count(value)
    } else {
        three_digits(value)
    }
}

fn milliseconds(value: f64) -> String {
    match value {
        // Where others show 0.
        v if v < 0.05 => "0.0 ms".to_owned(),
        v => ms(v),
    }
}

fn seconds(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2} s"),
        v if v < 99.95 => format!("{v:.1} s"),
        v => format!("{} s", count(v)),
    }
}

fn signed(value: f64) -> String {
    match value.abs() < 0.05 {
        true => "0.0".to_owned(),
        false => format!("{value:+.1}"),
    }
}

/// Three digits at least, and thousands separated.
fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => count(value),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// How many times better ours is.
pub fn ratio(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => count(v),
    }
}

/// A part of a whole, in percent.
pub fn percentage(part: f64, whole: f64) -> String {
    match whole > 0.0 {
        true => of_hundred(100.0 * part / whole),
        false => NONE.to_owned(),
    }
}
