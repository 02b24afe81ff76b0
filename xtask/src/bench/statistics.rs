//! Median and spread of a handful of figures.

/// The middle of some figures and how far they lie apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    pub median: f64,
    /// Tenth percentile.
    pub low: f64,
    /// Ninetieth percentile.
    pub high: f64,
    pub count: usize,
}

impl Summary {
    /// Summarises figures; there must be at least one, and none may be NaN.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share| percentile(&sorted, share);
        Self {
            median: at(0.5),
            low: at(0.1),
            high: at(0.9),
            count: sorted.len(),
        }
    }
}

/// The value at `share` of the way through sorted figures, interpolated between neighbours.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

/// Pseudo-random numbers for the order of contenders (xorshift64), so that no crate is needed.
pub struct Shuffler(u64);

impl Shuffler {
    pub fn new() -> Self {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self(now.as_nanos() as u64 | 1)
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            items.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summarises() {
        let summary = Summary::of([5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((summary.median, summary.count), (3.0, 5));
        assert!((summary.low - 1.4).abs() < 1e-9 && (summary.high - 4.6).abs() < 1e-9);
        assert_eq!(
            Summary::of([7.0]),
            Summary {
                median: 7.0,
                low: 7.0,
                high: 7.0,
                count: 1
            }
        );
    }

    #[test]
    fn a_shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..20).collect();
        Shuffler::new().shuffle(&mut items);
        items.sort_unstable();
        assert_eq!(items, (0..20).collect::<Vec<_>>());
    }
}
