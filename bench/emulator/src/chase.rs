//! A pointer chase: a program with a known number of accesses, for calibrating the emulator.
//!
//! Its pages form one random cycle; each holds the number of the next page, so that no access can begin before the
//! previous one has finished, and none is repeated before all others. It reads commands from standard input: for a line
//! `N` it makes `N` accesses in each thread and prints a [`ChaseResult`] as JSON; for `0` it checks the content of
//! every page.

use std::io::{BufRead, Write};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::choice::PAGE;

/// Words of a page.
const WORDS: usize = (PAGE / 8) as usize;

/// Latencies of one run in nanoseconds, over the accesses of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChaseResult {
    /// Number of accesses in all threads.
    pub accesses: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Mean without the slowest 1 %, which other work on the machine delays.
    pub trimmed_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Whether every page has the expected content.
    pub intact: bool,
}

/// The pages of one thread.
struct Cycle {
    memory: Vec<u64>,
    at: usize,
}

impl Cycle {
    /// Creates a random cycle through all pages (Sattolo's algorithm), the same for the same seed.
    fn new(pages: usize, seed: u64) -> Self {
        let mut order: Vec<usize> = (0..pages).collect();
        let mut state = seed;
        for at in (1..pages).rev() {
            // Knuth's MMIX generator; its high bits are sufficient for shuffling.
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

    /// Makes accesses. Returns the latency of each, in nanoseconds.
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

/// Executes the commands on standard input until its end.
///
/// # Errors
/// If a pipe fails, or a line is not a number.
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
        let chased = ChaseResult { accesses: count, mean_ns, trimmed_ns, p50_ns: at(50), p99_ns: at(99), intact };
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
            let mut visited = vec![false; pages];
            for _ in 0..pages {
                cycle.run(1);
                assert!(!std::mem::replace(&mut visited[cycle.at], true), "{pages} {seed}: page {} twice", cycle.at);
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
