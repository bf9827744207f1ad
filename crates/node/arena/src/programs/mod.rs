//! Generated programs, which stand for those of the guest arena (`lab/arena/programs`). The same seed gives the same trace on every
//! machine.
//!
//! Their sizes and rates are those of the guest arena's programs where these are known; what they leave out is in `docs/arena-simulated.md`.

mod builder;
mod jobs;
mod servers;

use crate::trace::Trace;

/// Length of a trace unless another one is asked for: as long as a guest of the arena is watched.
pub const SECONDS: u32 = 400;

/// Seconds that settle and are not measured.
pub const SETTLE_SECONDS: u32 = builder::SETTLE;

/// One program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// One line about it.
    pub what: &'static str,
    generate: fn(&mut builder::Builder),
}

impl Program {
    /// Its trace of [`SECONDS`].
    #[must_use]
    pub fn trace(&self, seed: u64) -> Trace {
        self.trace_of(seed, SECONDS)
    }

    /// Its trace of so many seconds, of which [`SETTLE_SECONDS`] settle.
    #[must_use]
    pub fn trace_of(&self, seed: u64, seconds: u32) -> Trace {
        // Each program has numbers of its own, so that one can be changed without the others.
        let own = self.name.bytes().fold(seed, |mixed, byte| mixed.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
        let mut builder = builder::Builder::new(own, seconds);
        (self.generate)(&mut builder);
        builder.finish(self.name)
    }
}

/// All programs.
pub const PROGRAMS: [Program; 9] = [
    Program {
        name: "phases",
        what: "104 MiB of known ages: hot, at random, never used again, and 24 MiB in use for 40 s of 80",
        generate: jobs::phases,
    },
    Program { name: "zipf", what: "a key-value store: 50,000 keys by Zipf's law, 300 requests/s (Redis)", generate: servers::zipf },
    Program {
        name: "drift",
        what: "a database in the page cache: 36 MB, 60 reads/s, the popular rows move on (SQLite)",
        generate: servers::drift,
    },
    Program {
        name: "collector",
        what: "a heap with generational collections: 72 MB of sessions, all of it marked every 30 s (JVM)",
        generate: jobs::collector,
    },
    Program { name: "build", what: "short-lived processes, headers and old outputs in the page cache (gcc)", generate: jobs::build },
    Program { name: "sandbox", what: "six interpreters that were used and wait", generate: jobs::sandbox },
    Program { name: "scan", what: "queries that each read a table and free a hash table (TPC-H like)", generate: servers::scan },
    Program { name: "periodic", what: "nine parts of 8 MiB, each used every 5 to 160 s or never", generate: jobs::periodic },
    Program { name: "weights", what: "72 MiB that do not compress, of which 24 MiB are read every 2 s", generate: servers::weights },
];
