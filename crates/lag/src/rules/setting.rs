//! Settings as `SHOW` prints them, with what a value means that stands for no limit.

/// Units of `SHOW` for a setting in milliseconds, the largest first: a value is shown in the first that
/// divides it.
const UNITS: [(i64, &str); 5] = [
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "min"),
    (1_000, "s"),
    (1, "ms"),
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

/// Units of `SHOW` for a setting in MB.
const SIZE_UNITS: [(i64, &str); 3] = [(1_048_576, "TB"), (1_024, "GB"), (1, "MB")];

/// Settings in MB.
const SIZES: [(&str, i64, &str); 2] = [
    ("max_slot_wal_keep_size", -1, "no limit"),
    ("max_wal_size", 0, "none"),
];

/// A setting's value in words; other settings than these times and sizes as they are.
pub(crate) fn shown(name: &str, value: &str) -> String {
    let times = TIMES.iter().map(|it| (it, &UNITS[..]));
    let mut all = times.chain(SIZES.iter().map(|it| (it, &SIZE_UNITS[..])));
    let known = all.find(|((known, _, _), _)| *known == name);
    let (Some(((_, none, meaning), units)), Ok(number)) = (known, value.parse::<i64>()) else {
        return value.to_owned();
    };
    if number == *none {
        return format!("{number}, which means {meaning}");
    }
    let unit = units.iter().find(|(size, _)| number % size == 0);
    unit.map_or_else(
        || value.to_owned(),
        |(size, unit)| format!("{}{unit}", number / size),
    )
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
            ("max_slot_wal_keep_size", "1000", "1000MB"),
            ("max_slot_wal_keep_size", "2048", "2GB"),
            ("max_slot_wal_keep_size", "-1", "-1, which means no limit"),
            ("max_connections", "100", "100"),
        ] {
            assert_eq!(shown(name, value), words, "{name}");
        }
    }
}
