//! Amounts of memory and disk, written as PostgreSQL writes them.

/// Units and their bytes, the largest first.
const UNITS: [(&str, u64); 5] = [
    ("TB", 1 << 40),
    ("GB", 1 << 30),
    ("MB", 1 << 20),
    ("kB", 1 << 10),
    ("B", 1),
];

/// Bytes of `16MB`, `512 kB`, or 0. A unit is 1024 of the one below; capitals matter.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let wrong = || {
        format!(
            "{} is not an amount: write a whole number with kB, MB, GB or TB, such as 16MB, or 0",
            super::quoted(text)
        )
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.trim_start();
    if unit.is_empty() && number == 0 {
        return Ok(0);
    }
    UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .and_then(|(_, bytes)| number.checked_mul(*bytes))
        .ok_or_else(wrong)
}

/// Like [`parse`], within limits; 0 is always allowed.
pub fn between(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let bytes = parse(text)?;
    match bytes == 0 || (least..=most).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!(
            "{} is out of range: from {} to {}, or 0",
            show(bytes),
            show(least),
            show(most)
        )),
    }
}

/// Bytes in the largest unit that is exact.
pub fn show(bytes: u64) -> String {
    UNITS
        .iter()
        .find(|(_, unit)| bytes > 0 && bytes % unit == 0)
        .map_or_else(
            || "0".to_owned(),
            |(name, unit)| format!("{}{name}", bytes / unit),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_postgresql_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("0MB", 0),
            ("1B", 1),
            ("64kB", 65_536),
            ("16MB", 16 << 20),
            (" 16 MB ", 16 << 20),
            ("2GB", 2 << 30),
            ("1TB", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "MB",
            "16",
            "-1MB",
            "1.5GB",
            "16mb",
            "16KB",
            "16MB 1",
            "16MBB",
            "99999999999TB",
            "18446744073709551616B",
            "١MB",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("16MB"), "{error}");
        }
    }

    #[test]
    fn amounts_are_shown_exactly() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1B"),
            (1536, "1536B"),
            (16 << 20, "16MB"),
            (3 << 29, "1536MB"),
            (u64::MAX, "18446744073709551615B"),
        ] {
            assert_eq!(show(bytes), text);
            assert_eq!(parse(text), Ok(bytes));
        }
    }

    #[test]
    fn limits_hold_and_zero_is_outside_of_them() {
        assert_eq!(between("0", 10, 20), Ok(0));
        assert_eq!(between("10B", 10, 20), Ok(10));
        assert_eq!(between("20B", 10, 20), Ok(20));
        assert!(
            between("9B", 10, 20)
                .unwrap_err()
                .contains("from 10B to 20B")
        );
        assert!(between("21B", 10, 20).is_err());
    }
}
