//! The search for the highest rate at which lag stays bounded: pure computation.

/// How far the first step from the guess goes.
const STEP: f64 = 1.12;

/// The two rates between which lag ceases to be bounded are this close at the end: a rate 5 % above
/// the lower one is above both.
const CLOSE: f64 = 1.03;

/// Most rates tried.
const MOST_TRIES: u32 = 10;

/// Where lag ceases to be bounded, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub struct Knee {
    guess: f64,
    bounded: Option<f64>,
    unbounded: Option<f64>,
    tries: u32,
}

impl Knee {
    /// The search begins at `guess`.
    pub fn near(guess: f64) -> Self {
        Self {
            guess,
            bounded: None,
            unbounded: None,
            tries: 0,
        }
    }

    /// The rate to try; None when the search is over.
    pub fn next(&self) -> Option<f64> {
        if self.tries >= MOST_TRIES {
            return None;
        }
        match (self.bounded, self.unbounded) {
            (None, None) => Some(self.guess),
            (Some(bounded), None) => Some(bounded * STEP),
            (None, Some(unbounded)) => Some(unbounded / STEP),
            (Some(bounded), Some(unbounded)) => {
                (unbounded / bounded > CLOSE).then(|| (bounded * unbounded).sqrt())
            }
        }
    }

    /// Takes note of what a trial at the rate of [`Self::next`] showed.
    pub fn tried(&mut self, rate: f64, is_bounded: bool) {
        self.tries += 1;
        match is_bounded {
            true => self.bounded = Some(rate),
            false => self.unbounded = Some(rate),
        }
    }

    /// The highest rate that was bounded, once the search has found where that ends.
    pub fn found(&self) -> Option<f64> {
        self.unbounded.and(self.bounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where lag is bounded up to `limit`.
    fn search(guess: f64, limit: f64) -> Knee {
        let mut knee = Knee::near(guess);
        while let Some(rate) = knee.next() {
            knee.tried(rate, rate <= limit);
        }
        knee
    }

    #[test]
    fn it_ends_close_below_the_limit() {
        for limit in [70.0, 94.0, 99.9, 100.0, 104.0, 118.0, 150.0] {
            let knee = search(100.0, limit);
            let found = knee.found().unwrap();
            assert!(found <= limit && found * CLOSE * 1.001 > limit, "{knee:?}");
            assert!(found * 1.05 > limit, "{knee:?}");
        }
        for limit in [90.0, 100.0, 111.0] {
            assert_eq!(search(100.0, limit).tries, 4);
        }
    }

    #[test]
    fn it_gives_up_where_everything_or_nothing_is_bounded() {
        for limit in [0.0, 1e9] {
            let knee = search(100.0, limit);
            assert_eq!((knee.found(), knee.tries), (None, MOST_TRIES));
        }
    }
}
