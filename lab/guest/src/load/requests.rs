//! Keys and values of requests, generated from the seed.

use std::time::Duration;

use fastrand::Rng;

use crate::content;
use crate::rounding::floor;
use crate::zipf::ZipfPages;

/// Range of value sizes in bytes, before they are multiplied by [`Records::factor`].
const VALUE_BYTES: (usize, usize) = (100, 4000);
/// Mean of the exponential distribution that is added to the smallest size; with the limit at the largest one, the mean
/// size is about 1 KiB.
const VALUE_BYTES_SPREAD: f64 = 950.0;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Request {
    /// Read the value of this key.
    Get(u64),
    /// Store a value under this key; the second number distinguishes values of the same key.
    Set(u64, u64),
}

/// The keys and their values.
#[derive(Clone, Copy)]
pub(super) struct Records {
    pub(super) seed: u64,
    /// Number of keys, numbered from zero.
    pub(super) keys: u64,
    /// Factor for the sizes of values, for example for files.
    pub(super) factor: usize,
}

impl Records {
    pub(super) fn key(key: u64) -> String {
        format!("record:{key:010}")
    }

    /// Returns the random numbers of a load.
    pub(super) fn random(self) -> Rng {
        content::seeded(&[self.seed, u64::MAX])
    }

    /// Returns the length of every value stored under `key`, in bytes.
    pub(super) fn value_bytes(self, key: u64) -> usize {
        let uniform = content::seeded(&[self.seed, key]).f64();
        let spread = -VALUE_BYTES_SPREAD * (1.0 - uniform).ln();
        let length = usize::try_from(floor(spread)).unwrap_or(usize::MAX);
        length.saturating_add(VALUE_BYTES.0).min(VALUE_BYTES.1).saturating_mul(self.factor)
    }

    /// Replaces the contents of `out` by the value of `key` with this revision.
    pub(super) fn write_value(self, out: &mut Vec<u8>, key: u64, revision: u64) {
        out.clear();
        let mut rng = content::seeded(&[self.seed, key, revision]);
        // Key and revision share the id without overlap, because there are fewer than 2^32 keys.
        content::write_records(out, self.value_bytes(key), revision << 32 | key, &mut rng);
    }
}

/// A sequence of requests.
pub(super) trait Source {
    /// Returns the next request, `elapsed` after the first one; `None` at the end.
    fn next(&mut self, elapsed: Duration) -> Option<Request>;
}

/// Stores every key once.
pub(super) struct Fill {
    records: Records,
    next_key: u64,
}

impl Fill {
    pub(super) fn new(records: Records) -> Self {
        Self { records, next_key: 0 }
    }
}

impl Source for Fill {
    fn next(&mut self, _: Duration) -> Option<Request> {
        let key = self.next_key;
        self.next_key += 1;
        (key < self.records.keys).then_some(Request::Set(key, 0))
    }
}

/// Distribution of requests over the keys: the first keys are hot, the following ones warm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    /// Exponent of Zipf's law; if set, popularity depends on a key's rank, and there are no hot or warm keys.
    pub(super) zipf: Option<f64>,
    /// Share of the keys that are hot, and share of the requests for them.
    pub(super) hot_fraction: f64,
    pub(super) hot_share: f64,
    /// Share of the keys that receive all other requests; zero: any key receives them.
    pub(super) warm_fraction: f64,
    /// Additional requests per second to any key.
    pub(super) cold_touches_per_s: f64,
    /// Share of the requests that write.
    pub(super) write_share: f64,
}

/// An endless mix of requests.
pub(super) struct Mixed {
    records: Records,
    mix: Mix,
    hot_keys: u64,
    warm_keys: u64,
    popularity: Option<ZipfPages>,
    rng: Rng,
    cold_touches: u64,
    revision: u64,
}

/// Returns the popularity of keys by Zipf's law. `rng` must be new from [`Records::random`].
pub(super) fn popularity(records: Records, exponent: f64, rng: &mut Rng) -> ZipfPages {
    ZipfPages::new(usize::try_from(records.keys).unwrap_or(usize::MAX), exponent, rng)
}

impl Mixed {
    pub(super) fn new(records: Records, mix: Mix) -> Self {
        let share = |fraction: f64| floor(records.keys as f64 * fraction);
        let hot_keys = share(mix.hot_fraction).clamp(1, records.keys);
        let warm_keys = share(mix.warm_fraction).min(records.keys - hot_keys);
        let mut rng = records.random();
        let popularity = mix.zipf.map(|exponent| popularity(records, exponent, &mut rng));
        Self { records, mix, hot_keys, warm_keys, popularity, rng, cold_touches: 0, revision: 0 }
    }

    fn any_key(&mut self) -> u64 {
        self.rng.u64(..self.records.keys)
    }
}

impl Source for Mixed {
    fn next(&mut self, elapsed: Duration) -> Option<Request> {
        if self.cold_touches < floor(elapsed.as_secs_f64() * self.mix.cold_touches_per_s) {
            self.cold_touches += 1;
            return Some(Request::Get(self.any_key()));
        }
        let key = if let Some(popularity) = &self.popularity {
            popularity.draw(&mut self.rng) as u64
        } else if self.rng.f64() < self.mix.hot_share {
            self.rng.u64(..self.hot_keys)
        } else if self.warm_keys > 0 {
            self.hot_keys + self.rng.u64(..self.warm_keys)
        } else {
            self.any_key()
        };
        if self.rng.f64() < self.mix.write_share {
            self.revision += 1;
            return Some(Request::Set(key, self.revision));
        }
        Some(Request::Get(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: Records = Records { seed: 7, keys: 10_000, factor: 1 };

    #[test]
    fn value_sizes_are_in_range() {
        let sizes: Vec<usize> = (0..RECORDS.keys).map(|key| RECORDS.value_bytes(key)).collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((980..1080).contains(&mean), "mean {mean}");
        assert!(sizes.iter().all(|size| (100..=4000).contains(size)));
        assert!(sizes.contains(&4000) && sizes.iter().any(|&size| size < 120));
        let large = Records { factor: 64, ..RECORDS };
        assert!((0..100).all(|key| large.value_bytes(key) == 64 * RECORDS.value_bytes(key)));
    }

    #[test]
    fn values_differ_by_key_and_revision_and_repeat_by_seed() {
        let value = |records: Records, key, revision| {
            let mut out = b"old".to_vec();
            records.write_value(&mut out, key, revision);
            assert_eq!(out.len(), records.value_bytes(key));
            out
        };
        let mut seen = std::collections::HashSet::new();
        for key in 0..500 {
            for revision in 0..3 {
                assert!(seen.insert(value(RECORDS, key, revision)), "{key} {revision}");
                assert_eq!(value(RECORDS, key, revision), value(RECORDS, key, revision));
            }
        }
        assert_ne!(value(RECORDS, 1, 1), value(Records { seed: 8, ..RECORDS }, 1, 1));
    }

    #[test]
    fn values_compress_three_to_one_in_pages() {
        let (mut all, mut one) = (Vec::new(), Vec::new());
        for key in 0..800 {
            RECORDS.write_value(&mut one, key, 0);
            all.extend_from_slice(&one);
        }
        let compressed: usize = all.chunks(4096).map(|page| lz4_flex::block::compress(page).len()).sum();
        let ratio = all.len() as f64 / compressed as f64;
        assert!((2.7..3.4).contains(&ratio), "compresses {ratio}:1");
    }

    #[test]
    fn fill_stores_each_key_once() {
        let mut fill = Fill::new(Records { seed: 1, keys: 3, factor: 1 });
        let stored: Vec<_> = std::iter::from_fn(|| fill.next(Duration::ZERO)).collect();
        assert_eq!(stored, [Request::Set(0, 0), Request::Set(1, 0), Request::Set(2, 0)]);
    }

    /// Draws 20,000 requests over ten seconds and compares the shares of hot, warm and other keys, and of writes, with
    /// the expected ones.
    fn check(mix: Mix, expected: [f64; 4]) {
        const DRAWS: u32 = 20_000;
        let mut mixed = Mixed::new(RECORDS, mix);
        let (hot, warm) = (mixed.hot_keys, mixed.hot_keys + mixed.warm_keys);
        let mut counts = [0_u32; 4];
        for draw in 0..DRAWS {
            let elapsed = Duration::from_secs_f64(10.0 * f64::from(draw) / f64::from(DRAWS));
            let key = match mixed.next(elapsed).unwrap() {
                Request::Get(key) => key,
                Request::Set(key, _) => {
                    counts[3] += 1;
                    key
                }
            };
            assert!(key < RECORDS.keys);
            counts[if key < hot {
                0
            } else if key < warm {
                1
            } else {
                2
            }] += 1;
        }
        for (count, expected) in counts.into_iter().zip(expected) {
            let share = f64::from(count) / f64::from(DRAWS);
            assert!((share - expected).abs() < 0.01, "{mix:?}: {share} instead of {expected} in {counts:?}");
        }
    }

    #[test]
    fn requests_follow_the_mix() {
        let mix = Mix { zipf: None, hot_fraction: 0.1, hot_share: 0.9, warm_fraction: 0.2, cold_touches_per_s: 0.0, write_share: 0.05 };
        check(mix, [0.9, 0.1, 0.0, 0.05]);
        check(Mix { warm_fraction: 0.0, ..mix }, [0.91, 0.0, 0.09, 0.05]);
        // 200 of 2000 requests per second are cold reads, of which a tenth hits hot keys and a fifth warm ones.
        check(Mix { cold_touches_per_s: 200.0, ..mix }, [0.9 * 0.9 + 0.01, 0.09 + 0.02, 0.07, 0.045]);
        check(Mix { hot_fraction: 1.0, write_share: 1.0, ..mix }, [1.0, 0.0, 0.0, 1.0]);
        // Ranks are distributed over all keys: with equal popularity each part gets its share.
        check(Mix { zipf: Some(0.0), ..mix }, [0.1, 0.2, 0.7, 0.05]);
    }
}
