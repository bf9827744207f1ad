//! Everything that reads bytes from outside, each as a target of a fuzzer: `make fuzz SECONDS=n` runs all of them with libFuzzer.
//!
//! A target takes any bytes. It must not panic, and must not take time or memory out of proportion; whether the bytes are valid is
//! its answer. `cargo test` runs each target with its seeds, which are valid files, and with every input in `found/`, which once
//! broke a target.

mod configuration;
mod kernel_files;
mod messages;
mod node;
mod pool;
mod scratch;
mod seeds;
mod traces;

pub use seeds::seeds;

/// A reader of bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, also that of its folder of inputs.
    pub name: &'static str,
    /// What it reads, and from whom.
    pub reads: &'static str,
    /// Reads bytes; returns whether they were valid.
    pub run: fn(&[u8]) -> bool,
    /// Whether the reader makes an error of a panic of the Parquet library.
    pub guarded: bool,
}

/// All targets.
pub const TARGETS: [Target; 18] = [
    Target {
        name: "kernel_files",
        reads: "files of /proc, /sys and cgroups; the first byte selects one",
        run: kernel_files::run,
        guarded: false,
    },
    Target {
        name: "quantities",
        reads: "sizes, times and ratios in settings and arguments",
        run: configuration::quantities,
        guarded: false,
    },
    Target { name: "configuration", reads: "the agent's configuration", run: configuration::agent, guarded: false },
    Target { name: "bundle", reads: "bundles, which a store holds", run: configuration::bundle, guarded: false },
    Target {
        name: "settings",
        reads: "settings of pool hosts, managers, schedulers, guests and rollouts; the first byte selects one",
        run: configuration::others,
        guarded: false,
    },
    Target { name: "import", reads: "settings of other programs, for `thermocline import`", run: configuration::import, guarded: false },
    Target { name: "assignment", reads: "the assignment of machines, which a store holds", run: configuration::assignment, guarded: false },
    Target { name: "journal", reads: "the agent's journal, which is also replayed", run: node::journal, guarded: false },
    Target { name: "undo", reads: "the agent's undo list and its history", run: node::state, guarded: false },
    Target { name: "control", reads: "requests on the agent's control socket", run: messages::control, guarded: false },
    Target {
        name: "store_answer",
        reads: "answers of the process that has the agent's connections to stores",
        run: messages::store_answer,
        guarded: false,
    },
    Target { name: "trace", reads: "traces of jobs, as agents write them or compacted", run: traces::jobs, guarded: true },
    Target { name: "model_trace", reads: "traces of jobs, as the fleet model reads them", run: traces::modelled, guarded: true },
    Target { name: "tally", reads: "tallies of the fleet model", run: traces::tally, guarded: false },
    Target { name: "vm_trace", reads: "traces of VMs", run: traces::vms, guarded: true },
    Target { name: "model", reads: "models of the pool's predictions (ONNX)", run: pool::models, guarded: false },
    Target { name: "placements", reads: "the log of a pool's scheduler, which is also replayed", run: pool::placements, guarded: false },
    Target { name: "audit", reads: "the pool manager's audit log", run: pool::audit, guarded: false },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The text of an input; nothing if it is not UTF-8. Readers of text have checked that before.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}
