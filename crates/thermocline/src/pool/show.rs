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
use crate::progress::progress;
use crate::table::Table;

/// Contents of a trace.
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
    /// Number of VMs for which each value is known.
    known: BTreeMap<&'static str, u64>,
    untouched_median: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Size {
    cores: u32,
    memory_bytes: Bytes,
    vms: u64,
}

/// Number of sizes to print.
const SIZES_PRINTED: usize = 12;

/// Prints the contents of a trace.
pub(super) fn show(path: &Path, format: Format) -> Result<()> {
    let trace = Trace::open(path)?;
    let progress = progress("VMs", trace.len());
    let mut sizes: BTreeMap<(u32, Bytes), u64> = BTreeMap::new();
    let (mut clusters, mut customers) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    let mut known: BTreeMap<&'static str, u64> = BTreeMap::new();
    // Lifetimes in seconds and shares in thousandths: a few thousand counters for any number of VMs.
    let (mut lifetimes, mut untouched): (BTreeMap<i64, u64>, BTreeMap<i64, u64>) = Default::default();
    let mut begins = None;
    for vm in trace.vms() {
        let vm = vm?;
        progress.inc(1);
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
            ("pool_bytes", vm.recorded.is_some()),
        ] {
            *known.entry(name).or_default() += u64::from(has);
        }
        if let Some(seconds) = vm.lifetime() {
            // Above a day, the resolution is an hour.
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

/// Returns the smallest value that at least `percent` percent of the counted values do not exceed.
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
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let days = (shown.about.ends - shown.begins) as f64 / 86_400.0;
    let _ = writeln!(text, "{} VMs in {days:.1} days, {} clusters, {} customers", shown.vms, shown.clusters, shown.customers);
    if let (Some(median), Some(p95)) = (shown.lifetime_median_seconds, shown.lifetime_p95_seconds) {
        let _ = writeln!(
            text,
            "lifetime of the VMs that left: median {median} s, 95th percentile {p95} s; {} did not leave",
            shown.still_running
        );
    }
    if let Some(untouched) = shown.untouched_median {
        let _ = writeln!(text, "untouched memory: median {:.1} %", untouched * 100.0);
    }
    let missing: Vec<_> = shown.known.iter().filter(|(_, vms)| **vms == 0).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        let _ = writeln!(text, "missing in the trace: {}", missing.join(", "));
    }
    let mut table = Table::new(&["cores", "memory", "VMs"]);
    for size in shown.sizes.iter().take(SIZES_PRINTED) {
        table.row(&[&size.cores, &size.memory_bytes, &size.vms]);
    }
    let _ = write!(text, "\n{table}");
    if shown.sizes.len() > SIZES_PRINTED {
        let _ = writeln!(text, "and {} other sizes", shown.sizes.len() - SIZES_PRINTED);
    }
    text
}
