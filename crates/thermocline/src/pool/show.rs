//! `thermocline pool show`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use units::Bytes;
use vmtrace::{About, Trace};

use crate::options::Format;
use crate::output::print;
use crate::progress::Progress;

/// What a trace holds.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    trace: &'a Path,
    version: u64,
    #[serde(flatten)]
    about: &'a About,
    vms: u64,
    begins: i64,
    clusters: usize,
    customers: usize,
    still_running: u64,
    lifetime_median_seconds: Option<i64>,
    lifetime_p95_seconds: Option<i64>,
    /// VMs by cores and memory, the most frequent first.
    sizes: Vec<Size>,
    /// VMs of which each thing is known.
    known: BTreeMap<&'static str, u64>,
    untouched_median: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Size {
    cores: u32,
    memory_bytes: u64,
    vms: u64,
}

/// Sizes that are told.
const SIZES_TOLD: usize = 12;

/// Tells what is in a trace.
pub(super) fn show(path: &Path, format: Format) -> Result<()> {
    let trace = Trace::open(path)?;
    let mut progress = Progress::new("VMs", usize::try_from(trace.len()).unwrap_or(usize::MAX));
    let mut sizes: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let (mut clusters, mut customers) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    let mut known: BTreeMap<&'static str, u64> = BTreeMap::new();
    // Lengths to the second, and shares to a thousandth: a few thousand counters, however many VMs there are.
    let (mut lifetimes, mut untouched): (BTreeMap<i64, u64>, BTreeMap<i64, u64>) = Default::default();
    let mut begins = None;
    for vm in trace.vms() {
        let vm = vm?;
        progress.step();
        begins = begins.or(Some(vm.arrival));
        *sizes.entry((vm.cores, vm.memory_bytes)).or_default() += 1;
        clusters.insert(vm.cluster);
        customers.extend(vm.customer);
        for (name, has) in [
            ("departure", vm.departure.is_some()),
            ("customer", vm.customer.is_some()),
            ("vm_type", vm.vm_type.is_some()),
            ("guest_os", vm.guest_os.is_some()),
            ("location", vm.location.is_some()),
            ("untouched_ratio", vm.untouched_ratio.is_some()),
            ("slowdown_64ns", vm.slowdown_64ns.is_some()),
            ("slowdown_140ns", vm.slowdown_140ns.is_some()),
        ] {
            *known.entry(name).or_default() += u64::from(has);
        }
        if let Some(seconds) = vm.lifetime() {
            // Above a day, by the hour.
            let step = if seconds < 86_400 { 1 } else { 3_600 };
            *lifetimes.entry(seconds / step * step).or_default() += 1;
        }
        if let Some(share) = vm.untouched_ratio {
            #[expect(clippy::cast_possible_truncation, reason = "0 to 1,000")]
            let thousandths = (share * 1_000.0).round() as i64;
            *untouched.entry(thousandths).or_default() += 1;
        }
    }
    drop(progress);
    let mut sizes: Vec<_> = sizes.into_iter().map(|((cores, memory_bytes), vms)| Size { cores, memory_bytes, vms }).collect();
    sizes.sort_by_key(|size| std::cmp::Reverse(size.vms));
    #[expect(clippy::cast_precision_loss, reason = "0 to 1,000")]
    let shown = Shown {
        trace: path,
        version: trace.version(),
        about: trace.about(),
        vms: trace.len(),
        begins: begins.unwrap_or(0),
        clusters: clusters.len(),
        customers: customers.len(),
        still_running: trace.len() - known.get("departure").copied().unwrap_or(0),
        lifetime_median_seconds: percentile(&lifetimes, 50),
        lifetime_p95_seconds: percentile(&lifetimes, 95),
        sizes,
        known,
        untouched_median: percentile(&untouched, 50).map(|thousandths| thousandths as f64 / 1_000.0),
    };
    print(format, &shown, || text(&shown))
}

/// The value that so many percent of the counted do not exceed.
fn percentile(counts: &BTreeMap<i64, u64>, percent: u64) -> Option<i64> {
    let rank = (counts.values().sum::<u64>() * percent).div_ceil(100).max(1);
    let mut up_to = 0;
    counts.iter().find_map(|(&value, &count)| {
        up_to += count;
        (up_to >= rank).then_some(value)
    })
}

fn text(shown: &Shown<'_>) -> String {
    let mut text = format!("{}\n", shown.about.origin);
    if shown.about.generated {
        text += "a generated trace: nothing in it was measured\n";
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let days = (shown.about.ends - shown.begins) as f64 / 86_400.0;
    let _ = writeln!(text, "{} VMs in {days:.1} days, {} clusters, {} customers", shown.vms, shown.clusters, shown.customers);
    if let (Some(median), Some(p95)) = (shown.lifetime_median_seconds, shown.lifetime_p95_seconds) {
        let _ = writeln!(text, "of those that left, half lived {median} s at most, 95 % {p95} s; {} did not leave", shown.still_running);
    }
    if let Some(untouched) = shown.untouched_median {
        let _ = writeln!(text, "half leave {:.1} % of their memory untouched, or less", untouched * 100.0);
    }
    let missing: Vec<_> = shown.known.iter().filter(|(_, vms)| **vms == 0).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        let _ = writeln!(text, "it does not tell: {}", missing.join(", "));
    }
    let _ = writeln!(text, "\n{:>6} {:>10} {:>10}", "cores", "memory", "VMs");
    for size in shown.sizes.iter().take(SIZES_TOLD) {
        let _ = writeln!(text, "{:>6} {:>10} {:>10}", size.cores, Bytes(size.memory_bytes).to_string(), size.vms);
    }
    if shown.sizes.len() > SIZES_TOLD {
        let _ = writeln!(text, "and {} other sizes", shown.sizes.len() - SIZES_TOLD);
    }
    text
}
