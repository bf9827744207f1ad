//! The text of the simulated kernel's files.

use crate::group::{Group, PAGE, Place, Role};

/// Memory of the machine, in KiB: more than its jobs ever use.
const TOTAL_KIB: u64 = 40_960;

/// A compressed page's part of a page, as one in this many.
const COMPRESSED: u64 = 3;

/// The first simulated process: above the highest number of a Linux process (`PID_MAX_LIMIT`, 2^22), so that no process of the machine
/// that runs the simulation is ever named.
const FIRST_PID: usize = 5_000_000;

/// A cgroup's directory below the root.
#[must_use]
pub fn directory(path: &str) -> String {
    format!("sys/fs/cgroup{path}")
}

/// Files that do not change.
#[must_use]
pub fn fixed(frames: usize) -> Vec<(String, String)> {
    [
        ("sys/fs/cgroup/cgroup.controllers", "cpu io memory".to_owned()),
        ("proc/zoneinfo", format!("Node 0, zone Normal\n  spanned {frames}\n  present {frames}\n  start_pfn: 0")),
        ("proc/sys/kernel/random/boot_id", "0b7c2b0e-5d5e-4f86-9f1c-2f2a3f6f9a11".to_owned()),
        ("proc/sys/kernel/osrelease", "6.12.0-simulated".to_owned()),
        ("proc/self/statm", "100 50 10 1 0 40 0".to_owned()),
        ("sys/class/block/vdb/stat", "0 0 0 0 0 0 0 0".to_owned()),
    ]
    .map(|(name, text)| (name.to_owned(), text))
    .into()
}

/// Files that change, by name. `kswapd` is the pages that kswapd reclaimed, `now` in seconds since boot.
#[must_use]
pub fn changing(groups: &[Group], swap_pages: u64, kswapd: u64, now: f64) -> Vec<(String, String)> {
    let mut files = of_machine(groups, swap_pages, kswapd, now);
    for group in groups.iter().filter(|group| group.alive) {
        let members: Vec<&Group> = match group.role {
            Role::Ancestor => groups.iter().filter(|member| member.alive && member.path.starts_with(&group.path)).collect(),
            _ => vec![group],
        };
        let directory = directory(&group.path);
        files.extend(of_group(group, &Sum::of(&members), now).into_iter().map(|(name, text)| (format!("{directory}/{name}"), text)));
    }
    files
}

/// The sums of some cgroups.
#[derive(Default)]
struct Sum {
    anon: u64,
    file: u64,
    compressed: u64,
    device: u64,
    zswpin: u64,
    zswpout: u64,
    pswpin: u64,
    pswpout: u64,
    refault_anon: u64,
    refault_file: u64,
    memory_us: u64,
    io_us: u64,
}

impl Sum {
    fn of(groups: &[&Group]) -> Self {
        let mut sum = Self::default();
        for group in groups {
            sum.anon += group.count(Place::Resident, true);
            sum.file += group.count(Place::Resident, false);
            sum.compressed += group.count(Place::Compressed, true);
            sum.device += group.count(Place::Device, true);
            sum.zswpin += group.counters.zswpin;
            sum.zswpout += group.counters.zswpout;
            sum.pswpin += group.counters.pswpin;
            sum.pswpout += group.counters.pswpout;
            sum.refault_anon += group.counters.refault_anon;
            sum.refault_file += group.counters.refault_file;
            sum.memory_us += group.counters.memory_stall_us;
            sum.io_us += group.counters.io_stall_us;
        }
        sum
    }

    fn pool(&self) -> u64 {
        self.compressed * PAGE / COMPRESSED
    }

    fn stat(&self) -> String {
        let Self { anon, file, compressed, zswpin, zswpout, pswpin, pswpout, refault_anon, refault_file, .. } = self;
        format!(
            "anon {}\ninactive_anon {}\nactive_anon 0\nfile {}\nkernel {}\nshmem 0\nfile_writeback 0\nswapcached 0\nzswap {}\nzswapped {}\nactive_file {}\ninactive_file 0\n\
             zswpin {zswpin}\nzswpout {zswpout}\nzswpwb 0\npswpin {pswpin}\npswpout {pswpout}\nworkingset_refault_anon {refault_anon}\n\
             workingset_refault_file {refault_file}\npgfault {refault_anon}\npgmajfault {refault_anon}",
            anon * PAGE,
            anon * PAGE,
            file * PAGE,
            self.pool(),
            self.pool(),
            compressed * PAGE,
            file * PAGE,
        )
    }
}

fn psi(total_us: u64) -> String {
    let line = |kind: &str| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}");
    format!("{}\n{}", line("some"), line("full"))
}

fn of_machine(groups: &[Group], swap_pages: u64, kswapd: u64, now: f64) -> Vec<(String, String)> {
    let alive: Vec<&Group> = groups.iter().filter(|group| group.alive).collect();
    let sum = Sum::of(&alive);
    let used_kib = ((sum.anon + sum.file) * PAGE + sum.pool()) / 1024;
    let free = TOTAL_KIB.saturating_sub(used_kib);
    let (swap, swap_used) = (swap_pages * PAGE / 1024, (sum.compressed + sum.device) * PAGE / 1024);
    let mut swaps = "Filename Type Size Used Priority".to_owned();
    if swap > 0 {
        swaps += &format!("\n/dev/vdb partition {swap} {} -2", swap_used.min(swap));
    }
    let Sum { zswpin, zswpout, pswpin, pswpout, refault_anon, refault_file, .. } = sum;
    let vmstat = format!(
        "pswpin {pswpin}\npswpout {pswpout}\nzswpin {zswpin}\nzswpout {zswpout}\nzswpwb 0\nallocstall_normal 0\npgsteal_kswapd {kswapd}\n\
         pgsteal_direct 0\npgfault {refault_anon}\npgmajfault {refault_anon}\nworkingset_refault_anon {refault_anon}\n\
         workingset_refault_file {refault_file}\noom_kill 0"
    );
    let swap_free = swap.saturating_sub(swap_used);
    let meminfo =
        format!("MemTotal: {TOTAL_KIB} kB\nMemFree: {free} kB\nMemAvailable: {free} kB\nSwapTotal: {swap} kB\nSwapFree: {swap_free} kB");
    [
        ("proc/meminfo", meminfo),
        ("proc/swaps", swaps),
        ("proc/vmstat", vmstat),
        ("proc/uptime", format!("{:.2} {:.2}", now, now)),
        ("proc/pressure/memory", psi(sum.memory_us)),
        ("sys/fs/cgroup/memory.stat", sum.stat()),
        ("sys/kernel/debug/zswap/pool_total_size", sum.pool().to_string()),
        ("sys/kernel/debug/zswap/stored_pages", sum.compressed.to_string()),
        ("sys/kernel/debug/zswap/pool_limit_hit", "0".to_owned()),
    ]
    .map(|(name, text)| (name.to_owned(), text))
    .into()
}

fn of_group(group: &Group, sum: &Sum, now: f64) -> Vec<(&'static str, String)> {
    vec![
        ("memory.current", ((sum.anon + sum.file) * PAGE + sum.pool()).to_string()),
        ("memory.max", "max".to_owned()),
        ("memory.high", "max".to_owned()),
        ("memory.swap.current", ((sum.compressed + sum.device) * PAGE).to_string()),
        ("memory.zswap.current", sum.pool().to_string()),
        ("memory.stat", sum.stat()),
        ("memory.events", format!("low {}\nhigh 0\nmax 0\noom 0\noom_kill 0", group.counters.low)),
        ("memory.pressure", psi(sum.memory_us)),
        ("io.pressure", psi(sum.io_us)),
        ("cgroup.procs", if group.role == Role::Ancestor { String::new() } else { (FIRST_PID + group.frame).to_string() }),
        ("cgroup.events", "populated 1\nfrozen 0".to_owned()),
        ("cgroup.freeze", "0".to_owned()),
        ("cpu.stat", format!("usage_usec {}", (now * 1_000.0).round())),
    ]
}
