//! Shares and medians.

use std::time::Duration;

/// A part's share of the whole; 0 if the whole is 0 or not finite.
pub fn ratio(part: f64, whole: f64) -> f64 {
    match whole > 0.0 && part.is_finite() && whole.is_finite() {
        true => part / whole,
        false => 0.0,
    }
}

/// The median; 0 if there are no numbers.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// The median over time of figures with their moments, oldest first. A server whose replay has no
/// time to spare answers late too: each of its few samples counts for the longer time.
pub fn median_over_time(figures: &[(Duration, f64)]) -> f64 {
    let at = |index: usize| figures.get(index).map(|(at, _)| *at);
    let gap = |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
    let weight = |index: usize| {
        let before = index
            .checked_sub(1)
            .and_then(|last| gap(at(last), at(index)));
        let after = gap(at(index), at(index + 1));
        // The first and the last count as if there were others as far away.
        let ends = before.or(after).zip(after.or(before));
        ends.map_or(1, |(before, after)| (before + after).as_nanos().max(1))
    };
    let figures = figures.iter().enumerate();
    let mut weighted: Vec<(f64, u128)> = figures
        .map(|(index, (_, figure))| (*figure, weight(index)))
        .collect();
    weighted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: u128 = weighted.iter().map(|(_, weight)| weight).sum();
    let mut so_far = 0;
    let middle = weighted.into_iter().find(|(_, weight)| {
        so_far += weight;
        2 * so_far > all
    });
    middle.map_or(0.0, |(figure, _)| figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_counts_for_the_time_that_it_took() {
        let median = |all: &[(u64, f64)]| {
            let all = all.iter();
            let all = all.map(|(ms, figure)| (Duration::from_millis(*ms), *figure));
            median_over_time(&all.collect::<Vec<_>>())
        };
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[(5, 7.0)]), 7.0);
        assert_eq!(median(&[(0, 1.0), (10, 3.0), (20, 2.0)]), 2.0);
        assert_eq!(median(&[(0, 1.0), (10, 3.0), (20, 2.0), (30, 4.0)]), 3.0);
        // Behind for a second, of which there are two samples; then for 0.3 s not.
        let late = [
            (0, 900.0),
            (1000, 1900.0),
            (1100, 0.0),
            (1200, 0.0),
            (1300, 0.0),
        ];
        assert_eq!(median(&late), 900.0);
    }

    #[test]
    fn nothing_has_no_median_and_no_ratio() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(ratio(1.0, 0.0), 0.0);
    }
}
