//! Settings as `SHOW` prints them, with what a value means that stands for no limit.

/// Units of `SHOW` for a setting in milliseconds, the largest first: a value is shown in the first that
/// divides it.
const UNITS: [(i64, &str); 4] = [
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "min"),
    (1_000, "s"),
];

/// Settings in milliseconds, each with the value that stands for no limit, and what that means.
const TIMES: [(&str, i64, &str); 6] = [
    ("max_standby_archive_delay", -1, "for ever"),
    ("max_standby_streaming_delay", -1, "for ever"),
    ("recovery_min_apply_delay", 0, "no delay"),
    ("wal_receiver_timeout", 0, "never"),
    ("wal_sender_timeout", 0, "never"),
    ("wal_writer_delay", 0, "no delay"),
];

/// A setting's value in words; other settings than times as they are.
pub(crate) fn shown(name: &str, value: &str) -> String {
    let time = TIMES.iter().find(|(time, _, _)| *time == name);
    let (Some((_, none, meaning)), Ok(ms)) = (time, value.parse::<i64>()) else {
        return value.to_owned();
    };
    if ms == *none {
        return format!("{ms}, which means {meaning}");
    }
    let unit = UNITS.iter().find(|(size, _)| ms % size == 0);
    match unit {
        Some((size, unit)) => format!("{}{unit}", ms / size),
        None => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_the_server_shows_them() {
        for (name, value, words) in [
            ("wal_sender_timeout", "300000", "5min"),
            ("wal_sender_timeout", "0", "0, which means never"),
            ("wal_receiver_timeout", "82500", "82500ms"),
            ("max_standby_streaming_delay", "30000", "30s"),
            (
                "max_standby_archive_delay",
                "-1",
                "-1, which means for ever",
            ),
            ("recovery_min_apply_delay", "7200000", "2h"),
            ("max_slot_wal_keep_size", "1000", "1000"),
        ] {
            assert_eq!(shown(name, value), words, "{name}");
        }
    }
}
