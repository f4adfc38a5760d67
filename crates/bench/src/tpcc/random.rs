//! Random values of the specification, as expressions of pgbench and of SQL.

use super::{CUSTOMERS, ITEMS};

/// The specification's non-uniform random distribution over `low..=high` (clause 2.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NuRand {
    /// One less than a power of two; the larger, the less skewed.
    pub a: u32,
    /// Smallest value.
    pub low: u32,
    /// Largest value.
    pub high: u32,
    /// Where the frequent values lie: a constant of the run, in `0..=a`.
    pub c: u32,
}

impl NuRand {
    /// Customers by number.
    pub const CUSTOMER: Self = Self {
        a: 1023,
        low: 1,
        high: CUSTOMERS,
        c: 611,
    };

    pub const ITEM: Self = Self {
        a: 8191,
        low: 1,
        high: ITEMS,
        c: 5417,
    };

    /// Last names, by number, while loading.
    pub const LAST_NAME_LOADED: Self = Self {
        a: 255,
        low: 0,
        high: 999,
        c: 42,
    };

    /// Last names while running. Its constant must differ from the loaded one by 65 to
    /// 119, but neither 96 nor 112 (clause 2.1.6.1).
    pub const LAST_NAME: Self = Self {
        c: 117,
        ..Self::LAST_NAME_LOADED
    };

    /// The value that comes of a uniform `first` in `0..=a` and `second` in `low..=high`.
    pub fn value(self, first: u32, second: u32) -> u32 {
        ((first | second) + self.c) % self.span() + self.low
    }

    /// The number as an expression of pgbench.
    pub fn pgbench(self) -> String {
        format!(
            "((random(0, {}) | random({}, {})) + {}) % {} + {}",
            self.a,
            self.low,
            self.high,
            self.c,
            self.span(),
            self.low
        )
    }

    /// The number as an expression of SQL.
    pub fn sql(self) -> String {
        format!(
            "((({} | {}) + {}) % {} + {})",
            between(0, self.a),
            between(self.low, self.high),
            self.c,
            self.span(),
            self.low
        )
    }

    fn span(self) -> u32 {
        self.high - self.low + 1
    }
}

/// A uniform integer in `low..=high`, in SQL.
pub(super) fn between(low: u32, high: u32) -> String {
    format!("({low} + floor(random() * {})::int)", high - low + 1)
}

/// At least `length` random letters and digits, in SQL.
///
/// base64 of hashed random numbers is the cheapest source of them that needs no
/// extension; its two signs become letters and its line ends go.
pub(super) fn letters(length: u32) -> String {
    const HASH_BYTES: u32 = 64;
    // Only whole groups of three bytes, so that the padding is never reached.
    let blocks = (1..)
        .find(|blocks| blocks * HASH_BYTES / 3 * 4 >= length)
        .unwrap_or(1);
    let hashes = vec!["sha512(random()::text::bytea)"; blocks as usize];
    format!(
        "translate(encode({}, 'base64'), E'+/\\n', 'xY')",
        hashes.join(" || ")
    )
}

/// Syllables of last names, by digit (clause 4.3.2.3).
const SYLLABLES: [&str; 10] = [
    "BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING",
];

/// The last name with the number that `number`, an expression of SQL, gives.
pub(super) fn last_name(number: &str) -> String {
    let list = SYLLABLES.map(|syllable| format!("'{syllable}'")).join(",");
    let digit = |divisor: u32| {
        format!(
            "(ARRAY[{list}])[1 + ({number}) / {divisor} % {}]",
            SYLLABLES.len()
        )
    };
    format!("{} || {} || {}", digit(100), digit(10), digit(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [NuRand; 4] = [
        NuRand::CUSTOMER,
        NuRand::ITEM,
        NuRand::LAST_NAME_LOADED,
        NuRand::LAST_NAME,
    ];

    #[test]
    fn values_stay_in_their_range_and_reach_both_ends() {
        for dist in ALL {
            let (mut least, mut most) = (u32::MAX, 0);
            for first in (0..=dist.a).step_by(7) {
                for second in (dist.low..=dist.high).step_by(13) {
                    let value = dist.value(first, second);
                    least = least.min(value);
                    most = most.max(value);
                }
            }
            assert!(least >= dist.low && most <= dist.high, "{dist:?}");
            let span = dist.high - dist.low;
            assert!(least - dist.low < span / 100 + 1, "{dist:?}: {least}");
            assert!(dist.high - most < span / 100 + 1, "{dist:?}: {most}");
        }
    }

    #[test]
    fn the_constants_keep_the_rules() {
        for dist in ALL {
            assert!((dist.a + 1).is_power_of_two() && dist.c <= dist.a);
        }
        let delta = NuRand::LAST_NAME.c.abs_diff(NuRand::LAST_NAME_LOADED.c);
        assert!((65..=119).contains(&delta) && delta != 96 && delta != 112);
    }

    #[test]
    fn expressions_say_the_distribution() {
        assert_eq!(
            NuRand::CUSTOMER.pgbench(),
            "((random(0, 1023) | random(1, 3000)) + 611) % 3000 + 1"
        );
        assert_eq!(
            NuRand::LAST_NAME_LOADED.sql(),
            "((((0 + floor(random() * 256)::int) | (0 + floor(random() * 1000)::int)) + 42) % 1000 + 0)"
        );
    }

    #[test]
    fn letters_are_as_many_as_asked_for() {
        // One hash is 64 bytes: 21 whole groups of three, 84 characters.
        assert_eq!(letters(84).matches("sha512").count(), 1);
        assert_eq!(letters(85).matches("sha512").count(), 2);
    }
}
