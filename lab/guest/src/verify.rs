//! A program that knows what each of its pages must contain, and checks it again and again: for tests in which memory moves
//! while everything fails.
//!
//! A page's content follows from its number and from how often it was written, so that neither a lost page, nor an old one, nor
//! that of another page passes. Half of it is pseudorandom: it compresses two to one.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::linux::signals::Signals;

/// 64-bit words of a page.
const WORDS: usize = 512;
/// Of the pages, one in this many is written again in a round.
const REWRITTEN: usize = 8;
/// How often the hot part is read.
const HOT_EVERY: Duration = Duration::from_millis(200);

/// The memory, and how often it is checked.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Memory in all
    #[arg(long, value_name = "MIB")]
    mib: usize,
    /// Of this much, from its beginning, every page is read five times a second
    #[arg(long, value_name = "MIB")]
    hot_mib: usize,
    /// Milliseconds from one check of everything to the next
    #[arg(long, value_name = "MS")]
    every_ms: u64,
    /// Where the figures are written after each check
    #[arg(long)]
    figures: PathBuf,
}

#[derive(Default, Serialize)]
struct Figures {
    rounds: u64,
    bytes_verified: u64,
    bytes_corrupt: u64,
}

/// Pages, and how often each was written.
struct Pages {
    words: Vec<u64>,
    versions: Vec<u32>,
}

impl Pages {
    fn new(mib: usize) -> Self {
        let count = (mib << 20) / (WORDS * size_of::<u64>());
        let mut pages = Self { words: vec![0; count * WORDS], versions: vec![0; count] };
        (0..count).for_each(|page| pages.write(page));
        pages
    }

    fn write(&mut self, page: usize) {
        self.versions[page] += 1;
        let version = self.versions[page];
        for (at, word) in self.words[page * WORDS..][..WORDS].iter_mut().enumerate() {
            *word = expected(page, version, at);
        }
    }

    /// Bytes of a page that are not as they were written.
    fn corrupt(&self, page: usize) -> u64 {
        let words = self.words[page * WORDS..][..WORDS].iter().enumerate();
        let wrong = words.filter(|&(at, word)| *word != expected(page, self.versions[page], at)).count();
        (wrong * size_of::<u64>()) as u64
    }
}

/// What a word must be: in the first half of a page it is mixed (the finalizer of splitmix64), in the second half it is the same.
fn expected(page: usize, version: u32, at: usize) -> u64 {
    let seed = (page as u64) << 32 | u64::from(version);
    let mut mixed = seed ^ ((at.min(WORDS / 2) as u64) << 48) ^ 0x9e37_79b9_7f4a_7c15;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Fills the memory, prints `ready`, and checks it until `SIGTERM`.
///
/// # Errors
/// The figures cannot be written.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT])?;
    let mut pages = Pages::new(arguments.mib);
    let hot = ((arguments.hot_mib << 20) / (WORDS * size_of::<u64>())).min(pages.versions.len());
    let mut figures = Figures::default();
    println!("ready");
    std::io::stdout().flush()?;
    let mut due = Instant::now() + Duration::from_millis(arguments.every_ms);
    while signals.take(Some(HOT_EVERY)).is_none() {
        let whole = Instant::now() >= due;
        let checked = if whole { pages.versions.len() } else { hot };
        for page in 0..checked {
            figures.bytes_corrupt += pages.corrupt(page);
        }
        figures.bytes_verified += (checked * WORDS * size_of::<u64>()) as u64;
        if whole {
            let from = usize::try_from(figures.rounds)? % REWRITTEN;
            (from..pages.versions.len()).step_by(REWRITTEN).for_each(|page| pages.write(page));
            figures.rounds += 1;
            due = Instant::now() + Duration::from_millis(arguments.every_ms);
            write(arguments, &figures)?;
        }
    }
    write(arguments, &figures)
}

/// Replaces the file: a reader finds whole figures.
fn write(arguments: &Arguments, figures: &Figures) -> Result<()> {
    let new = arguments.figures.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(figures)?)
        .and_then(|()| std::fs::rename(&new, &arguments.figures))
        .with_context(|| format!("cannot write {}", arguments.figures.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_they_were_written_until_one_changes() {
        let mut pages = Pages::new(1);
        let corrupt = |pages: &Pages| (0..256).map(|page| pages.corrupt(page)).sum::<u64>();
        assert_eq!((pages.versions.len(), corrupt(&pages)), (256, 0));
        pages.write(7);
        assert_eq!(corrupt(&pages), 0);
        pages.words[9 * WORDS + 500] ^= 1;
        assert_eq!(corrupt(&pages), 8);
        // An old page, and that of another: both are found, nearly whole.
        pages.versions[11] += 1;
        assert!(pages.corrupt(11) > 4_000);
        pages.words.copy_within(20 * WORDS..21 * WORDS, 21 * WORDS);
        assert!(pages.corrupt(21) > 4_000);
    }
}
