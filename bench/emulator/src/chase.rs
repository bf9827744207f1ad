//! A pointer chase: the program with a known number of accesses that the emulator is measured by.
//!
//! Its pages form one random cycle; each holds the number of the next, so that no access can begin before the one
//! before it has ended, and none is repeated before all others were made. It obeys lines on standard input: for `N` it
//! makes `N` accesses in each thread and answers with a [`Chased`] in JSON. At the end it checks that every page still
//! holds what it held.

use std::io::{BufRead, Write};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::choice::PAGE;

/// Words of a page.
const WORDS: usize = (PAGE / 8) as usize;

/// What one run of accesses took, in nanoseconds each, those of all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chased {
    /// Accesses, in all threads.
    pub accesses: u64,
    /// The mean.
    pub mean_ns: u64,
    /// The mean without the slowest of a hundred, which is what else the machine did.
    pub trimmed_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Whether every page held what it should.
    pub intact: bool,
}

/// One thread's pages.
struct Cycle {
    memory: Vec<u64>,
    at: usize,
}

impl Cycle {
    /// A random cycle through so many pages (Sattolo's algorithm), the same for the same seed.
    fn new(pages: usize, seed: u64) -> Self {
        let mut order: Vec<usize> = (0..pages).collect();
        let mut state = seed;
        for at in (1..pages).rev() {
            // Knuth's MMIX generator; its high bits are good enough to shuffle by.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            order.swap(at, usize::try_from(state >> 33).unwrap_or(0) % at);
        }
        let mut memory = vec![0; pages * WORDS];
        for (page, next) in order.iter().enumerate() {
            memory[page * WORDS] = *next as u64;
            memory[page * WORDS + WORDS - 1] = !(*next as u64);
        }
        Self { memory, at: 0 }
    }

    /// Makes accesses; what each of them took, in nanoseconds.
    fn run(&mut self, accesses: usize) -> Vec<u64> {
        let mut took = Vec::with_capacity(accesses);
        let mut before = Instant::now();
        for _ in 0..accesses {
            self.at = usize::try_from(std::hint::black_box(self.memory[self.at * WORDS])).unwrap_or(0);
            let now = Instant::now();
            took.push(u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX));
            before = now;
        }
        took
    }

    fn intact(&self) -> bool {
        let pages = self.memory.chunks_exact(WORDS);
        pages.into_iter().all(|page| page[WORDS - 1] == !page[0] && page[1..WORDS - 1].iter().all(|word| *word == 0))
    }
}

/// Obeys standard input until its end. A line `0` checks every page.
///
/// # Errors
/// Where a pipe fails, or a line is not a number.
pub fn run(pages: usize, threads: usize) -> std::io::Result<()> {
    let mut cycles: Vec<Cycle> = (0..threads as u64).map(|seed| Cycle::new(pages.max(2), seed)).collect();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let accesses: usize = line?.trim().parse().map_err(std::io::Error::other)?;
        let took: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let running: Vec<_> = cycles.iter_mut().map(|cycle| scope.spawn(|| cycle.run(accesses))).collect();
            running.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let mut all: Vec<u64> = took.into_iter().flatten().collect();
        all.sort_unstable();
        let at = |part: usize| all.get(all.len() * part / 100).copied().unwrap_or(0);
        let count = all.len() as u64;
        let mean_ns = all.iter().sum::<u64>() / count.max(1);
        let most = &all[..all.len() * 99 / 100];
        let trimmed_ns = most.iter().sum::<u64>() / (most.len() as u64).max(1);
        let intact = accesses > 0 || cycles.iter().all(Cycle::intact);
        let chased = Chased { accesses: count, mean_ns, trimmed_ns, p50_ns: at(50), p99_ns: at(99), intact };
        serde_json::to_writer(&mut out, &chased)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_visits_every_page_once() {
        let check = |pages: usize, seed: u64| {
            let mut cycle = Cycle::new(pages, seed);
            let mut seen = vec![false; pages];
            for _ in 0..pages {
                cycle.run(1);
                assert!(!std::mem::replace(&mut seen[cycle.at], true), "{pages} {seed}: page {} twice", cycle.at);
            }
            assert!(cycle.intact() && cycle.at == 0);
            cycle.memory[WORDS + 3] = 1;
            assert!(!cycle.intact());
        };
        check(2, 0);
        check(100, 1);
        check(1000, 2);
    }
}
