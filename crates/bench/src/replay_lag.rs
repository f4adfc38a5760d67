//! Replay lag from samples of both ends: pure computation, no clock, no I/O.
//!
//! Lag at time t is how long ago the primary flushed the first WAL that is not yet
//! visible on the standby, and zero when all flushed WAL is visible. What is computed
//! here is an upper bound of it, so it never flatters:
//!
//! - A sample is a clock and a position, both read in the server in one statement, on
//!   one machine, so both ends have the same clock. The primary reads the clock *before*
//!   its flush position: flush passed that position only later than the clock says. The
//!   standby reads the clock *after* its replay position: at the clock's time it had
//!   replayed that much or more. Both orders can only make lag look longer.
//! - Flush passed a replay position L after the last primary sample with flush <= L. The
//!   lag is counted from that sample, although it may have begun only shortly before the
//!   next one. It is zero only when a sample taken at t or later shows flush <= L.
//! - Samples become sparse when a sampling session gets no CPU, and that happens exactly
//!   when lag is high. So lag is evaluated on an even grid of times, with the newest
//!   replay position sampled by then: a silence of 300 ms counts as such, not as one
//!   sample.

use lockstep_lab::progress::{Micros, Sample};
use lockstep_wire::Lsn;

/// Nominal distance of the primary's samples, and distance of the grid, in microseconds.
pub const STEP_US: i64 = 2_000;

/// How much of the end of a round "lag at the end" is the median of, in seconds.
pub const END_S: f64 = 1.0;

/// Lag at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LagPoint {
    /// When.
    pub at: Micros,
    /// Lag in milliseconds.
    pub ms: f64,
}

/// Upper bound, in milliseconds, of the lag at `at` of a standby that has replayed
/// `replayed`. None when it is behind the first primary sample: then the samples cannot
/// tell how much. Primary samples are in order of time, so also of position.
pub fn bound_ms(primary: &[Sample], at: Micros, replayed: Lsn) -> Option<f64> {
    let within = primary.partition_point(|sample| sample.lsn <= replayed);
    let last = primary.get(within.checked_sub(1)?)?;
    Some(at.ms_since(last.at).max(0.0))
}

/// Lag of the newest standby sample, for display while samples still come in.
pub fn newest(primary: &[Sample], standby: &[Sample]) -> Option<LagPoint> {
    let sample = standby.last()?;
    bound_ms(primary, sample.at, sample.lsn).map(|ms| LagPoint { at: sample.at, ms })
}

/// Lag on the grid from `from` to `to`. Times for which samples cannot tell are left out.
pub fn on_grid(primary: &[Sample], standby: &[Sample], from: Micros, to: Micros) -> Vec<LagPoint> {
    let mut points = Vec::new();
    let mut samples = standby.iter().peekable();
    let mut held: Option<&Sample> = None;
    let mut at = from;
    while at <= to {
        while let Some(sample) = samples.next_if(|sample| sample.at <= at) {
            held = Some(sample);
        }
        let lag = held.and_then(|sample| bound_ms(primary, at, sample.lsn));
        points.extend(lag.map(|ms| LagPoint { at, ms }));
        at = Micros(at.0 + STEP_US);
    }
    points
}

/// What one round says about lag.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LagSummary {
    /// Median, ms.
    pub p50_ms: f64,
    /// 99th percentile, ms.
    pub p99_ms: f64,
    /// Largest, ms.
    pub max_ms: f64,
    /// Median of the last second, ms.
    pub end_ms: f64,
    /// Least-squares slope, ms of lag a second: 0 is bounded, 1000 is no replay at all.
    pub slope_ms_per_s: f64,
}

/// Summary of points on an even grid; None without points.
pub fn summarize(points: &[LagPoint]) -> Option<LagSummary> {
    let last = points.last()?;
    let sorted = sorted(points.iter().map(|point| point.ms));
    let end = self::sorted(
        points
            .iter()
            .filter(|point| last.at.seconds_since(point.at) < END_S)
            .map(|point| point.ms),
    );
    Some(LagSummary {
        p50_ms: percentile(&sorted, 50.0)?,
        p99_ms: percentile(&sorted, 99.0)?,
        max_ms: percentile(&sorted, 100.0)?,
        end_ms: percentile(&end, 50.0)?,
        slope_ms_per_s: slope(points),
    })
}

/// Distances of neighbouring samples within the window, in milliseconds, as a percentile:
/// how sharp the measurement was.
pub fn gap_ms(samples: &[Sample], from: Micros, to: Micros, percent: f64) -> Option<f64> {
    let gaps = samples.windows(2).filter_map(|pair| match pair {
        [a, b] if b.at >= from && a.at <= to => Some(b.at.ms_since(a.at)),
        _ => None,
    });
    percentile(&sorted(gaps), percent)
}

/// One slice of a round for a plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LagSlice {
    /// Middle of the slice, seconds since the round began.
    pub second: f64,
    /// Median lag in it, ms.
    pub median_ms: f64,
    /// Largest lag in it, ms.
    pub max_ms: f64,
}

/// Cuts a round into at most `slices` slices.
pub fn slices(points: &[LagPoint], from: Micros, slices: usize) -> Vec<LagSlice> {
    let size = points.len().div_ceil(slices.max(1)).max(1);
    points
        .chunks(size)
        .filter_map(|chunk| {
            let values = sorted(chunk.iter().map(|point| point.ms));
            let middle = chunk.get(chunk.len() / 2)?;
            Some(LagSlice {
                second: middle.at.seconds_since(from),
                median_ms: percentile(&values, 50.0)?,
                max_ms: percentile(&values, 100.0)?,
            })
        })
        .collect()
}

/// Median; None of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let sorted = sorted(values);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get((sorted.len() / 2).checked_sub(1)?)?;
    Some((lower + upper) / 2.0)
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Nearest rank: the smallest value that at least `percent` of all are not above.
pub(crate) fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

fn slope(points: &[LagPoint]) -> f64 {
    let Some(first) = points.first() else {
        return 0.0;
    };
    let n = points.len() as f64;
    let second = |point: &LagPoint| point.at.seconds_since(first.at);
    let mean_x = points.iter().map(second).sum::<f64>() / n;
    let mean_y = points.iter().map(|point| point.ms).sum::<f64>() / n;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for point in points {
        let dx = second(point) - mean_x;
        covariance += dx * (point.ms - mean_y);
        variance += dx * dx;
    }
    if variance > 0.0 {
        covariance / variance
    } else {
        0.0
    }
}

#[cfg(test)]
#[path = "replay_lag_tests.rs"]
mod tests;
