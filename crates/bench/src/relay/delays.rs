//! Times from commit to arrival, counted in buckets: any number of them in 12 kB.

/// Buckets for each doubling: a value is known to within 1/32.
const STEPS: u64 = 32;

/// Values up to here have a bucket each.
const EXACT: u64 = 2 * STEPS;

/// Buckets in all: five bits are in the place within a doubling.
const BUCKETS: usize = 60 * STEPS as usize;

/// How many delays there are of each length.
#[derive(Debug, Clone)]
pub struct Delays {
    counts: Vec<u64>,
    total: u64,
    largest: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            largest: 0,
        }
    }
}

/// The bucket of a number of microseconds.
fn bucket(micros: u64) -> usize {
    if micros < EXACT {
        return micros as usize;
    }
    // The highest bit and the five after it.
    let shift = micros.ilog2() - STEPS.ilog2();
    let place = u64::from(shift) * STEPS + (micros >> shift);
    place as usize
}

/// The largest number of microseconds in a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    let first = (bucket - shift * STEPS) << shift;
    first + ((1 << shift) - 1)
}

impl Delays {
    /// Counts a delay, in microseconds. A negative one, from a clock that went back, counts as 0.
    pub fn add(&mut self, micros: i64) {
        let micros = u64::try_from(micros).unwrap_or(0);
        if let Some(count) = self.counts.get_mut(bucket(micros)) {
            *count += 1;
        }
        self.total += 1;
        self.largest = self.largest.max(micros);
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.largest = self.largest.max(other.largest);
    }

    /// How many delays were counted.
    pub fn len(&self) -> u64 {
        self.total
    }

    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// A percentile in milliseconds, at most 3 % too long; None if none was counted.
    pub fn percentile_ms(&self, percent: f64) -> Option<f64> {
        if self.is_empty() {
            return None;
        }
        let wanted = ((self.total as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|&count| {
            seen += count;
            seen >= wanted
        })?;
        Some(upper(found).min(self.largest) as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        for micros in (0..100_000).chain((0..58).map(|bit| 1 << bit)) {
            let upper = upper(bucket(micros));
            assert!(upper >= micros, "{micros}");
            assert!(upper as f64 <= micros as f64 * 1.04, "{micros} {upper}");
            assert!(bucket(micros) <= bucket(micros + 1));
            assert_eq!(bucket(upper), bucket(micros));
        }
        assert!(bucket(u64::MAX) < BUCKETS, "{}", bucket(u64::MAX));
    }

    #[test]
    fn percentiles() {
        let mut delays = Delays::default();
        assert_eq!(delays.percentile_ms(50.0), None);
        for micros in 1..=1_000 {
            delays.add(micros * 1_000);
        }
        let near = |found: Option<f64>, expected: f64| {
            let found = found.unwrap();
            assert!(
                found >= expected && found <= expected * 1.04,
                "{found} {expected}"
            );
        };
        near(delays.percentile_ms(50.0), 500.0);
        near(delays.percentile_ms(99.0), 990.0);
        assert_eq!(delays.percentile_ms(100.0), Some(1_000.0));
        let mut both = Delays::default();
        both.add(-5);
        both.merge(&delays);
        assert_eq!(both.len(), 1_001);
        assert_eq!(both.percentile_ms(0.0), Some(0.0));
    }
}
