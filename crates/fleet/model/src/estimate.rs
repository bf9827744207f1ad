//! Estimates how long a source takes, from a small part of it.
//!
//! The pieces of the part are spread over the source, because machines of a cluster resemble each other. Their time is that of the
//! threads that read and count them, each piece by itself, so that a thread that waits for the end of the part does not count. The
//! rest takes time in proportion to its size; pieces whose size is unknown are all alike.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fleet::{self, Account, Label, Source};
use crate::series::Series;

/// Of so many pieces, one is in the part.
const SHARE: usize = 64;
/// A source has at least so many pieces for each thread, or there is no part.
const PIECES_PER_THREAD_MIN: usize = 8;
/// The pieces of the part for each thread, at most.
const PIECES_PER_THREAD_MAX: usize = 16;

/// A measured part, and what it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Pieces of the whole.
    pub pieces: usize,
    /// Size of the whole; 0 if it is unknown.
    pub bytes: u64,
    /// Pieces of the part.
    pub measured_pieces: usize,
    /// Size of the part.
    pub measured_bytes: u64,
    /// Time of all threads together for the part.
    pub measured: Duration,
    /// Threads that read the source.
    pub threads: NonZero<usize>,
}

impl Estimate {
    /// Returns the time of all threads together for the whole.
    #[must_use]
    pub fn thread_time(&self) -> Duration {
        let size = |bytes: u64, pieces: usize| u128::from(if self.measured_bytes == 0 { pieces as u64 } else { bytes });
        let (whole, part) = (size(self.bytes, self.pieces), size(self.measured_bytes, self.measured_pieces));
        let nanos = (self.measured.as_nanos() * whole).checked_div(part).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the time that passes until the whole is read. A piece is read by one thread.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.thread_time() / u32::try_from(self.threads.get().min(self.pieces.max(1))).unwrap_or(u32::MAX)
    }
}

/// A source whose pieces' time is added up.
struct Timed<'a, S> {
    source: &'a S,
    nanos: AtomicU64,
}

impl<S: Source> Source for Timed<'_, S> {
    type Error = S::Error;

    fn pieces(&self) -> usize {
        self.source.pieces()
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Self::Error> {
        let start = Instant::now();
        let read = self.source.read(piece, each);
        self.nanos.fetch_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        read
    }
}

/// Splits pieces into a small part that is spread over them, and the rest. Of few pieces there is no part: the end of the part,
/// where threads wait for each other, would take longer than it is worth.
#[must_use]
pub fn split(pieces: &[usize], threads: NonZero<usize>) -> (Vec<usize>, Vec<usize>) {
    let threads = threads.get();
    let few = pieces.len() < threads.saturating_mul(PIECES_PER_THREAD_MIN);
    let count = if few { 0 } else { (pieces.len() / SHARE).clamp(threads, threads.saturating_mul(PIECES_PER_THREAD_MAX)) };
    // The middles of `count` equal stretches.
    let chosen: Vec<usize> = (0..count).map(|at| (2 * at + 1) * pieces.len() / (2 * count)).collect();
    let (part, rest): (Vec<_>, Vec<_>) = pieces.iter().enumerate().partition(|(at, _)| chosen.binary_search(at).is_ok());
    (part.into_iter().map(|(_, &piece)| piece).collect(), rest.into_iter().map(|(_, &piece)| piece).collect())
}

/// Reads a part of the pieces of a source, as [`fleet::run`] does. `whole` are all of them.
///
/// # Errors
/// Those of the source.
pub fn measure<S: Source, A: Account>(
    source: &S,
    (part, whole): (&[usize], &[usize]),
    threads: NonZero<usize>,
    open: impl Fn() -> A + Sync,
    progress: impl Fn(usize) + Sync,
) -> Result<(A, Estimate), S::Error> {
    let timed = Timed { source, nanos: AtomicU64::new(0) };
    let account = fleet::run(&timed, part, threads, open, progress)?;
    let bytes = |pieces: &[usize]| pieces.iter().map(|&piece| source.bytes(piece)).sum();
    let measured = Duration::from_nanos(timed.nanos.into_inner());
    let (pieces, measured_pieces) = (whole.len(), part.len());
    Ok((account, Estimate { pieces, bytes: bytes(whole), measured_pieces, measured_bytes: bytes(part), measured, threads }))
}

/// Orders pieces so that each beginning of the order is spread over all of them: by the reversed bits of their positions (the van
/// der Corput sequence in base 2).
#[must_use]
pub fn spread(pieces: &[usize]) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..pieces.len()).collect();
    positions.sort_by_key(|position| position.reverse_bits());
    positions.into_iter().map(|position| pieces[position]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn threads(count: usize) -> NonZero<usize> {
        NonZero::new(count).unwrap()
    }

    #[test]
    fn a_part_is_small_and_spread_and_nothing_is_lost() {
        let check = |pieces: usize, count: usize, expected: &[usize], length: usize| {
            let all: Vec<usize> = (0..pieces).collect();
            let (part, rest) = split(&all, threads(count));
            assert!(part.starts_with(expected), "{part:?}");
            assert_eq!((part.len(), rest.len()), (length, pieces - length));
            let mut both = [part, rest].concat();
            both.sort_unstable();
            assert_eq!(both, all);
        };
        check(0, 2, &[], 0);
        check(1, 2, &[], 0);
        check(15, 2, &[], 0);
        check(16, 2, &[4, 12], 2);
        check(8, 1, &[4], 1);
        check(1_000, 2, &[33, 100, 166], 15);
        check(1_000_000, 2, &[15_625], 32);
        check(500, 64, &[], 0);
    }

    #[test]
    fn the_rest_takes_time_in_proportion_to_its_size() {
        let estimate = |bytes, measured_bytes| Estimate {
            pieces: 100,
            bytes,
            measured_pieces: 2,
            measured_bytes,
            measured: Duration::from_millis(300),
            threads: threads(3),
        };
        let check = |estimate: Estimate, core_ms: u64| {
            assert_eq!((estimate.thread_time().as_millis(), estimate.time().as_millis()), (core_ms.into(), (core_ms / 3).into()));
        };
        check(estimate(5_000, 50), 30_000);
        check(estimate(0, 0), 15_000);
        check(Estimate { measured_pieces: 0, ..estimate(0, 0) }, 0);
        // More threads than pieces are no faster.
        let few = Estimate { pieces: 2, measured_pieces: 1, ..estimate(0, 0) };
        assert_eq!((few.thread_time().as_millis(), few.time().as_millis()), (600, 300));
    }

    #[test]
    fn the_time_of_every_piece_is_counted_whoever_reads_it() {
        struct Slow;
        impl Source for Slow {
            type Error = std::convert::Infallible;

            fn pieces(&self) -> usize {
                12
            }

            fn bytes(&self, piece: usize) -> u64 {
                if piece == 0 { 300 } else { 100 }
            }

            fn read(&self, _: usize, _: &mut dyn FnMut(&Label, &Series)) -> Result<(), Self::Error> {
                std::thread::sleep(Duration::from_millis(20));
                Ok(())
            }
        }
        let (part, whole) = ([0, 3, 7], (0..12).collect::<Vec<_>>());
        for count in [1, 3] {
            let Ok((_, found)) = measure(&Slow, (&part, &whole), threads(count), || None::<crate::survey::Survey>, |_| ());
            assert_eq!((found.pieces, found.bytes, found.measured_pieces, found.measured_bytes), (12, 1_400, 3, 500));
            // Sleeps are never shorter; a loaded machine makes them longer.
            assert!(found.measured >= Duration::from_millis(60), "{found:?}");
        }
    }

    #[test]
    fn the_beginning_of_an_order_is_spread_over_all_pieces() {
        let order = spread(&(0..100).collect::<Vec<_>>());
        for half in [8, 16, 64] {
            let in_first = order[..half].iter().filter(|&&piece| piece < 50).count();
            assert!((half * 3 / 8..=half * 5 / 8).contains(&in_first), "{half}: {order:?}");
        }
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }
}
