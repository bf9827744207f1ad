//! Slow memory for a workload: a NUMA node of the machine, or emulated.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use kernel::{Roots, mempolicy, numa};
use serde::{Deserialize, Serialize};

use super::run::{command, timed};

/// The latencies of a sample, as multiples of local latency, and in added nanoseconds (Pond section 6.1).
const RATIOS: [f64; 2] = [1.82, 2.22];
const ADDED_NS: [f64; 2] = [64.0, 140.0];

/// The emulated latency, well above the emulator's own cost. Slowdowns at shorter latencies are proportional, because
/// accesses are counted.
const EMULATED_NS: u64 = 1_000;

/// The program that emulates slow memory (`bench/emulator`).
const EMULATOR: &str = "thermocline-emulator";

/// Slow memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Slow {
    /// A NUMA node without processors.
    Node {
        /// Its number.
        node: u32,
        /// The closest node with processors, whose memory is local.
        local: u32,
        /// Processors of the local node.
        #[serde(skip)]
        cpus: Vec<u32>,
        /// Latency of the slow node as a multiple of local latency.
        ratio: f64,
    },
    /// Every anonymous page is slow by emulation.
    Emulated {
        /// The emulated added latency.
        latency_ns: u64,
        /// The program that emulates it.
        #[serde(skip)]
        emulator: PathBuf,
    },
}

impl Slow {
    /// Returns the machine's slow node, or emulated memory if there is none or `emulated` is set.
    pub(super) fn find(roots: &Roots, ratio: Option<f64>, emulated: bool, emulator: Option<&Path>) -> Result<Self> {
        let nodes = if emulated { Vec::new() } else { numa::nodes(roots)? };
        let Some(slow) = numa::slow_nodes(&nodes).first().copied() else {
            if ratio.is_some() {
                bail!("--ratio requires a slow NUMA node, and this machine has none; without --ratio slow memory is emulated");
            }
            let emulator = emulator.map_or_else(default_emulator, Path::to_owned);
            return Ok(Self::Emulated { latency_ns: EMULATED_NS, emulator });
        };
        let Some(local) = numa::fast_node(&nodes, slow) else { bail!("no node has both processors and memory") };
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds")]
        let reported = slow.read_latency_ns().zip(local.read_latency_ns()).map(|(slow, local)| slow as f64 / local.max(1) as f64);
        let Some(ratio) = ratio.or(reported).filter(|ratio| *ratio > 1.0) else {
            bail!("firmware does not report the latency of node {} relative to node {}; give it with --ratio", slow.id, local.id);
        };
        Ok(Self::Node { node: slow.id, local: local.id, cpus: local.cpus.clone(), ratio })
    }

    pub(super) fn is_node(&self) -> bool {
        matches!(self, Self::Node { .. })
    }

    /// Binds a command to local memory if the machine has a slow node.
    pub(super) fn keep_local(&self, command: &mut Command) -> Result<()> {
        if let Self::Node { local, cpus, .. } = self {
            mempolicy::bind(command, *local, cpus)?;
        }
        Ok(())
    }

    /// Runs a command on slow memory. Returns the wall time in seconds, and the counted slowdown if memory is emulated.
    pub(super) fn run(&self, words: &[OsString]) -> Result<(f64, f64)> {
        match self {
            Self::Node { node, cpus, .. } => {
                let mut command = command(words)?;
                mempolicy::bind(&mut command, *node, cpus)?;
                Ok((timed(&mut command)?, 0.0))
            }
            Self::Emulated { latency_ns, emulator } => emulated(emulator, words, *latency_ns),
        }
    }

    /// Scales a slowdown to the two latencies of a sample, in proportion to the added latency.
    pub(super) fn at_published(&self, slowdown: f64) -> [f64; 2] {
        match self {
            Self::Node { ratio, .. } => RATIOS.map(|at| slowdown * (at - 1.0) / (ratio - 1.0)),
            #[expect(clippy::cast_precision_loss, reason = "nanoseconds")]
            Self::Emulated { latency_ns, .. } => ADDED_NS.map(|added| slowdown * added / *latency_ns as f64),
        }
    }

    pub(super) fn description(&self) -> String {
        match self {
            Self::Node { node, ratio, .. } => format!("slow memory is node {node}, at {:.0} % of local latency", ratio * 100.0),
            Self::Emulated { .. } => "slow memory was emulated".to_owned(),
        }
    }
}

/// Returns the emulator beside this program, or the one in `PATH`.
fn default_emulator() -> PathBuf {
    let beside = std::env::current_exe().map(|program| program.with_file_name(EMULATOR));
    beside.ok().filter(|file| file.is_file()).unwrap_or_else(|| PathBuf::from(EMULATOR))
}

/// The relevant fields of the emulator's report.
#[derive(Debug, Deserialize)]
struct Report {
    /// The emulated latency, which is higher than requested on a loaded machine.
    latency_ns: u64,
    /// Whether the command executed another program.
    replaced: bool,
    slow_bytes: u64,
    /// Time lost to slow accesses, as a share of the command's processor time.
    slowdown_of_cpu_ratio: f64,
}

/// Runs the command with all of its anonymous memory slow. Returns the wall time of the emulator in seconds, and the time that the
/// counted accesses would cost at `latency_ns`, as a share of the command's processor time.
fn emulated(emulator: &Path, words: &[OsString], latency_ns: u64) -> Result<(f64, f64)> {
    let file = tempfile::NamedTempFile::new().context("cannot create a file for the emulator's report")?;
    let latency = format!("{latency_ns}ns");
    // On a loaded machine a fault is so expensive that only longer latencies can be emulated; the count of accesses is the same.
    let options = ["--format", "json", "--latency", &latency, "--raise-latency", "--slow", "100%", "--report"];
    let mut emulated: Vec<OsString> = vec![emulator.into()];
    emulated.extend(options.map(OsString::from));
    emulated.extend([file.path().into(), "--".into()]);
    emulated.extend_from_slice(words);
    let seconds = timed(&mut command(&emulated)?)
        .context("emulating slow memory needs thermocline-emulator (cargo build --release -p thermocline-emulator); see --emulator")?;
    let text = std::fs::read(file.path()).context("cannot read the emulator's report")?;
    let report: Report =
        serde_json::from_slice(&text).context("the emulator's report has an unexpected format; use the emulator of this version")?;
    if report.replaced {
        bail!("the command executed another program, which was not emulated; run that program directly");
    }
    if report.slow_bytes == 0 {
        bail!("no memory of the command was slow: it exited too early, or has less than a block of 2 MiB; use a longer or larger run");
    }
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds")]
    let slowdown = report.slowdown_of_cpu_ratio * latency_ns as f64 / report.latency_ns as f64;
    Ok((seconds, slowdown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_proportional_to_the_added_latency() {
        let check = |slow: &Slow, slowdown: f64, want: [f64; 2]| {
            let got = slow.at_published(slowdown);
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-9), "{slow:?}: {got:?}");
        };
        let node = |ratio| Slow::Node { node: 1, local: 0, cpus: vec![0], ratio };
        check(&node(1.82), 0.05, [0.05, 0.05 * 1.22 / 0.82]);
        check(&node(2.22), 0.05, [0.05 * 0.82 / 1.22, 0.05]);
        check(&Slow::Emulated { latency_ns: 1_000, emulator: PathBuf::new() }, 1.0, [0.064, 0.14]);
    }

    #[test]
    fn slow_memory_is_emulated_without_a_slow_node() {
        let directory = tempfile::tempdir().unwrap();
        let roots = |files: &[(&str, &str)]| {
            for (file, text) in files {
                let path = directory.path().join("sys/devices/system/node").join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Roots::under(directory.path())
        };
        let meminfo = |node: u32| format!("Node {node} MemTotal: 1048576 kB\nNode {node} MemFree: 1048576 kB\n");
        let (first, second) = (meminfo(0), meminfo(1));
        let one = roots(&[("online", "0\n"), ("node0/meminfo", &first), ("node0/cpulist", "0-1\n"), ("node0/distance", "10\n")]);
        assert_eq!(
            Slow::find(&one, None, false, Some(Path::new("e"))).unwrap(),
            Slow::Emulated { latency_ns: EMULATED_NS, emulator: "e".into() }
        );
        assert!(Slow::find(&one, Some(1.82), false, Some(Path::new("e"))).unwrap_err().to_string().contains("--ratio"));
        let two = [
            ("online", "0-1\n"),
            ("node0/distance", "10 20\n"),
            ("node1/meminfo", &second),
            ("node1/cpulist", "\n"),
            ("node1/distance", "20 10\n"),
        ];
        let two = roots(&two);
        assert!(Slow::find(&two, None, false, Some(Path::new("e"))).unwrap_err().to_string().contains("firmware"));
        let found = Slow::Node { node: 1, local: 0, cpus: vec![0, 1], ratio: 1.82 };
        assert_eq!(Slow::find(&two, Some(1.82), false, Some(Path::new("e"))).unwrap(), found);
        assert_eq!(
            Slow::find(&two, None, true, Some(Path::new("e"))).unwrap(),
            Slow::Emulated { latency_ns: EMULATED_NS, emulator: "e".into() }
        );
    }
}
