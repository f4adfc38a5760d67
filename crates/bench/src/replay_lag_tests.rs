//! Tables for known cases, and a simulation whose true lag is known: the computed lag
//! must never be below it, and not far above. A failing run is repeated by its seed:
//! `SEED=n cargo test`.

use super::*;

fn at(ms: i64) -> Micros {
    Micros(ms * 1000)
}

fn sample(ms: i64, lsn: u64) -> Sample {
    Sample {
        at: at(ms),
        lsn: Lsn::from(lsn),
    }
}

#[test]
fn bounds_of_known_cases() {
    let primary = [
        sample(0, 100),
        sample(2, 100),
        sample(4, 200),
        sample(6, 300),
        sample(8, 300),
    ];
    let cases = [
        // A sample at or after the time shows that nothing was missing.
        (4, 200, Some(0.0)),
        (5, 300, Some(0.0)),
        (8, 300, Some(0.0)),
        (1, 100, Some(0.0)),
        // Flush passed 200 somewhere from 4 ms on.
        (5, 200, Some(1.0)),
        (8, 200, Some(4.0)),
        (8, 199, Some(6.0)),
        (8, 100, Some(6.0)),
        // After the last sample, flush may have moved on at once.
        (9, 300, Some(1.0)),
        // Behind the first sample: nobody knows.
        (8, 99, None),
    ];
    for (ms, lsn, expected) in cases {
        assert_eq!(
            bound_ms(&primary, at(ms), Lsn::from(lsn)),
            expected,
            "at {ms} ms with {lsn}"
        );
    }
    assert_eq!(bound_ms(&[], at(1), Lsn::from(1)), None);
}

#[test]
fn an_idle_primary_is_no_lag() {
    let primary: Vec<_> = (0..1000).map(|ms| sample(ms, 500)).collect();
    let standby: Vec<_> = (0..1000).step_by(7).map(|ms| sample(ms, 500)).collect();
    let points = on_grid(&primary, &standby, at(0), at(990));
    assert!(points.len() > 400);
    assert!(points.iter().all(|point| point.ms == 0.0));
}

#[test]
fn a_silent_standby_counts_for_as_long_as_it_was_silent() {
    let primary: Vec<_> = (0..2000).map(|ms| sample(ms, ms as u64)).collect();
    let mut standby: Vec<_> = (0..1000).map(|ms| sample(ms, ms as u64)).collect();
    standby.extend((1300..2000).map(|ms| sample(ms, ms as u64)));
    let points = on_grid(&primary, &standby, at(0), at(1990));
    let summary = summarize(&points).unwrap();
    assert!(summary.p50_ms <= 2.0, "{summary:?}");
    assert!(summary.max_ms >= 298.0, "{summary:?}");
    let silent = points.iter().filter(|point| point.ms > 10.0).count();
    assert!((140..150).contains(&silent), "{silent}");
}

#[test]
fn summaries_of_known_shapes() {
    let line: Vec<_> = (0..=5000)
        .map(|i| LagPoint {
            at: Micros(i * STEP_US),
            ms: i as f64 * 2.0,
        })
        .collect();
    let summary = summarize(&line).unwrap();
    // One millisecond of lag a millisecond.
    assert!((summary.slope_ms_per_s - 1000.0).abs() < 1e-6);
    assert_eq!(summary.p50_ms, 5000.0);
    assert_eq!(summary.p99_ms, 9900.0);
    assert_eq!(summary.max_ms, 10_000.0);
    assert!((summary.end_ms - 9501.0).abs() <= 2.0);

    let flat: Vec<_> = line.iter().map(|p| LagPoint { ms: 3.0, ..*p }).collect();
    let summary = summarize(&flat).unwrap();
    assert_eq!(summary.slope_ms_per_s, 0.0);
    assert_eq!((summary.p50_ms, summary.end_ms), (3.0, 3.0));

    assert_eq!(summarize(&[]), None);
    let one = summarize(&line[..1]).unwrap();
    assert_eq!(one.slope_ms_per_s, 0.0);
}

#[test]
fn slices_keep_the_largest_lag() {
    let mut points: Vec<_> = (0..1000)
        .map(|i| LagPoint {
            at: Micros(i * STEP_US),
            ms: 1.0,
        })
        .collect();
    points[777].ms = 50.0;
    let slices = slices(&points, Micros(0), 10);
    assert_eq!(slices.len(), 10);
    assert!(slices.iter().all(|slice| slice.median_ms == 1.0));
    assert_eq!(slices[7].max_ms, 50.0);
    assert!(super::slices(&[], Micros(0), 10).is_empty());
}

#[test]
fn medians() {
    assert_eq!(median([]), None);
    assert_eq!(median([3.0]), Some(3.0));
    assert_eq!(median([3.0, 1.0]), Some(2.0));
    assert_eq!(median([5.0, 1.0, 2.0]), Some(2.0));
}

/// xorshift: small, and the same everywhere for one seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as i64
    }
}

/// A primary that flushes at known times and a standby that replays each flush some time
/// later, in order. Positions are flush numbers.
struct World {
    flushed: Vec<i64>,
    replayed: Vec<i64>,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let (mut flushed, mut replayed) = (vec![0], vec![0]);
        let (mut now, mut done) = (0, 0);
        let delay = 1 + random.below(200_000);
        for _ in 0..400 {
            now += 1 + random.below(20_000);
            done = (now + random.below(delay)).max(done + 1);
            flushed.push(now);
            replayed.push(done);
        }
        Self { flushed, replayed }
    }

    fn reached(times: &[i64], at: i64) -> usize {
        times.partition_point(|&time| time <= at) - 1
    }

    fn true_lag_us(&self, at: i64) -> i64 {
        let visible = Self::reached(&self.replayed, at);
        match self.flushed.get(visible + 1) {
            Some(&next) if next <= at => at - next,
            _ => 0,
        }
    }

    /// Samples every 2 ms or, when the sampler gets no CPU, later, with the time between
    /// clock and position that such a sampler has too.
    fn sample(&self, random: &mut Random, times: &[i64], clock_first: bool) -> Vec<Sample> {
        let end = self.replayed[self.replayed.len() - 1];
        let mut samples = Vec::new();
        let mut now = 0;
        while now < end + 400_000 {
            let read = now + random.below(500);
            let (clock, position) = if clock_first {
                (now, read)
            } else {
                (read, now)
            };
            samples.push(Sample {
                at: Micros(clock),
                lsn: Lsn::from(Self::reached(times, position) as u64),
            });
            let starved = random.below(20) == 0;
            now = read + STEP_US + if starved { random.below(100_000) } else { 0 };
        }
        samples
    }
}

#[test]
fn computed_lag_is_never_below_the_true_lag_and_close_above() {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => std::process::id() as u64 * 0x9E37_79B9 + 1,
    };
    for round in 0..50 {
        let mut random = Random(seed.wrapping_add(round * 0x0123_4567_89AB).max(1));
        let world = World::new(&mut random);
        let primary = world.sample(&mut random, &world.flushed, true);
        let standby = world.sample(&mut random, &world.replayed, false);
        let end = *world.replayed.last().unwrap() + 200_000;
        let points = on_grid(&primary, &standby, standby[0].at, Micros(end));
        assert!(points.len() > 500, "SEED={seed}");
        for point in points {
            let truth = world.true_lag_us(point.at.0) as f64 / 1000.0;
            assert!(point.ms + 1e-9 >= truth, "SEED={seed}: {point:?} < {truth}");
            // At most one gap of each sampler above what was true since the sample held.
            let recent = (0..=21).map(|step| world.true_lag_us((point.at.0 - step * 5_000).max(0)));
            let highest = recent.max().unwrap() as f64 / 1000.0;
            assert!(
                point.ms <= highest + 2.0 * 103.0 + 5.0,
                "SEED={seed}: {point:?} >> {highest}"
            );
        }
    }
}
