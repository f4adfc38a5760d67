//! Integer keys of rows to delete, sorted and packed into buckets of one statement each. No I/O.
//!
//! | form | chosen | what the statement is given |
//! |---|---|---|
//! | [`Packed::Runs`] | most keys follow others without a gap | first and last key of each run |
//! | [`Packed::Offsets`] | otherwise | a key, and of each key its distance from that, in as few bytes as the largest needs |
//!
//! Every integer of a run is a key that is to be deleted, so a run as a range finds the same rows as its
//! keys.

use crate::source_table::Identity;
use crate::table::Table;

/// Fewest keys that are packed: fewer are quicker as a list.
pub const PACK_FROM: usize = 50;

/// Fewest keys of a run, on average, for keys to be given as runs.
const RUN: usize = 8;

/// The keys of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packed {
    Runs(Vec<(i64, i64)>),
    Offsets {
        /// What the distances are from: the smallest key, or 0 if they would not fit otherwise.
        from: i64,
        /// Bytes of a distance.
        width: usize,
        count: usize,
        bytes: Vec<u8>,
    },
}

/// The target's table has a key of one integer, whose rows an index finds; its name and type.
pub fn packable(table: &Table) -> Option<(&str, &str)> {
    let Identity::Key(key) = &table.identity else {
        return None;
    };
    let [key] = &key[..] else {
        return None;
    };
    let column = table.columns.get(key.place)?;
    let is_integer = matches!(
        column.kind.as_str(),
        "pg_catalog.int2" | "pg_catalog.int4" | "pg_catalog.int8"
    );
    // Ranges of a list of values would be looked for in every partition.
    let fits = is_integer && !table.partitioned && key.operator.as_deref() == Some("pg_catalog.=");
    fits.then_some((&column.name, &column.kind))
}

/// Packs keys, which are all different, into buckets of this size. None if one is no integer.
pub fn pack<'a>(keys: impl Iterator<Item = &'a [u8]>, most: usize) -> Option<Vec<Packed>> {
    let mut keys = keys.map(integer).collect::<Option<Vec<_>>>()?;
    keys.sort_unstable();
    Some(keys.chunks(most.max(1)).map(bucket).collect())
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Packs sorted keys.
fn bucket(keys: &[i64]) -> Packed {
    let follows = |(before, key): (&i64, &i64)| before.checked_add(1) == Some(*key);
    let pairs = || keys.iter().zip(keys.iter().skip(1));
    let runs = 1 + pairs().filter(|pair| !follows(*pair)).count();
    if runs * RUN <= keys.len() {
        let ends = pairs()
            .filter(|pair| !follows(*pair))
            .map(|(before, _)| *before);
        let begins = pairs().filter(|pair| !follows(*pair)).map(|(_, key)| *key);
        let begins = keys.first().copied().into_iter().chain(begins);
        return Packed::Runs(begins.zip(ends.chain(keys.last().copied())).collect());
    }
    offsets(keys)
}

fn offsets(keys: &[i64]) -> Packed {
    let least = keys.first().copied().unwrap_or(0);
    let most = keys.last().copied().unwrap_or(0);
    // The server adds what it reads as a signed number: eight bytes are the key itself.
    let (from, width) = match most.checked_sub(least) {
        Some(span) => (least, bytes_of(span)),
        None => (0, size_of::<i64>()),
    };
    let mut bytes = Vec::with_capacity(keys.len() * width);
    for key in keys {
        let all = key.wrapping_sub(from).to_be_bytes();
        bytes.extend_from_slice(all.get(all.len() - width..).unwrap_or(&all));
    }
    Packed::Offsets {
        from,
        width,
        count: keys.len(),
        bytes,
    }
}

/// Bytes that hold a number, which is not negative.
fn bytes_of(number: i64) -> usize {
    let bits = (i64::BITS - number.leading_zeros()) as usize;
    bits.div_ceil(8).max(1)
}

impl Packed {
    /// Values of the statement's parameters in the binary format.
    pub fn values(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Runs(runs) => vec![
                array(runs.iter().map(|(first, _)| *first)),
                array(runs.iter().map(|(_, last)| *last)),
            ],
            Self::Offsets {
                from,
                width,
                count,
                bytes,
            } => {
                let mut bits = int(bytes.len() * 8);
                bits.extend_from_slice(bytes);
                vec![
                    bits,
                    from.to_be_bytes().to_vec(),
                    int(width * 8),
                    int(*count),
                ]
            }
        }
    }
}

/// A number as the server's `int4`. A bucket has fewer bits than that holds.
fn int(number: usize) -> Vec<u8> {
    i32::try_from(number)
        .unwrap_or(i32::MAX)
        .to_be_bytes()
        .to_vec()
}

/// OID of `int8`.
const INT8: u32 = 20;

/// An array of `int8`: dimensions, whether it has nulls, the elements' type, length and first index, and each
/// element behind its length.
fn array(numbers: impl ExactSizeIterator<Item = i64>) -> Vec<u8> {
    let mut bytes = int(1);
    bytes.extend(int(0));
    bytes.extend(INT8.to_be_bytes());
    bytes.extend(int(numbers.len()));
    bytes.extend(int(1));
    for number in numbers {
        bytes.extend(int(size_of::<i64>()));
        bytes.extend(number.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(keys: &[i64]) -> Vec<Packed> {
        let texts: Vec<_> = keys.iter().map(i64::to_string).collect();
        pack(texts.iter().map(String::as_bytes), 2_500).unwrap()
    }

    /// The keys that the statement finds, if the target has all numbers.
    fn found(packed: &Packed) -> Vec<i64> {
        match packed {
            Packed::Runs(runs) => {
                let each = runs.iter().flat_map(|(first, last)| *first..=*last);
                each.collect()
            }
            Packed::Offsets {
                from, width, bytes, ..
            } => {
                let number = |part: &[u8]| {
                    let mut all = [0; 8];
                    all[8 - width..].copy_from_slice(part);
                    from.checked_add(i64::from_be_bytes(all)).unwrap()
                };
                bytes.chunks(*width).map(number).collect()
            }
        }
    }

    fn size(packed: &[Packed]) -> usize {
        packed
            .iter()
            .flat_map(Packed::values)
            .map(|it| it.len())
            .sum()
    }

    #[test]
    fn keys_come_back_as_they_were_whatever_lies_between_them() {
        let lists: [&[i64]; 8] = [
            &[7],
            &[3, 1, 2],
            &[i64::MIN, i64::MAX, 0, -1],
            &[i64::MAX - 1, i64::MAX],
            &[i64::MIN, i64::MIN + 1, -5, -4],
            &[0, 255, 256, 65_536],
            &[-1, i64::MAX - 1],
            &[0, i64::MAX],
        ];
        for keys in lists {
            let mut sorted = keys.to_vec();
            sorted.sort_unstable();
            let all: Vec<_> = packed(keys).iter().flat_map(found).collect();
            assert_eq!(all, sorted);
        }
        let mut random = fastrand::Rng::with_seed(1);
        for step in [1, 2, 1_000, i64::MAX >> 20] {
            let mut key = i64::MIN >> 1;
            let next = |_| {
                key += random.i64(1..=step);
                key
            };
            let keys: Vec<_> = (0..30_000).map(next).collect();
            let all: Vec<_> = packed(&keys).iter().flat_map(found).collect();
            assert_eq!(all, keys);
        }
    }

    #[test]
    fn dense_keys_take_no_more_than_5_bytes_and_any_others_no_more_than_9() {
        let rows = 100_000;
        let each = |keys: &[i64]| size(&packed(keys)) as f64 / keys.len() as f64;
        let dense: Vec<_> = (1..=rows).rev().collect();
        assert!(each(&dense) < 0.05);
        // Gaps make runs short.
        for gap in 2..40 {
            let of = |start: i64| -> Vec<_> { (0..rows).map(|n| start + n + n / gap).collect() };
            for keys in [of(0), of(i64::MAX / 2)] {
                assert!(each(&keys) <= 5.0, "{gap}: {}", each(&keys));
            }
        }
        let third: Vec<_> = (0..rows).map(|n| 3 * n).collect();
        assert!(each(&third) <= 5.0);
        let mut random = fastrand::Rng::with_seed(1);
        let random: Vec<_> = (0..rows).map(|_| random.i64(..)).collect();
        assert!(each(&random) <= 9.0, "{}", each(&random));
    }

    #[test]
    fn keys_are_parted_into_buckets() {
        let keys: Vec<_> = (0..6_000).collect();
        let runs = |from, to| Packed::Runs(vec![(from, to)]);
        let expected = [runs(0, 2_499), runs(2_500, 4_999), runs(5_000, 5_999)];
        assert_eq!(packed(&keys), expected);
        assert_eq!(pack([&b"1"[..], b"x"].into_iter(), 1), None);
    }
}
