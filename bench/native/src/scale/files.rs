//! The kernel's files of a large machine, below a directory: those that the agent reads, of the right size and shape.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kernel::Roots;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::page_idle::{KPF_BUDDY, KPF_COMPOUND_TAIL, KPF_LRU, KPF_SWAPBACKED};
use units::Bytes;

/// Size of a page frame.
const PAGE_BYTES: u64 = 4096;

/// Frames of a huge page.
const HUGE: u64 = 512;

/// NUMA nodes.
const NODES: u64 = 4;

/// Containers of a job: cgroups below its own.
const CONTAINERS: u64 = 2;

/// Processes of a job.
pub(crate) const PROCESSES: u64 = 20;

/// One job in this many is small, and its first process has reserved nearly all of its address space.
const SMALL_EVERY: u64 = 100;

/// Memory of a small job: a fifteenth of another's, 64 MiB at 1 TiB.
const SMALL_SHARE: u64 = 15;

/// The reservation of a small job's first process: 126 TiB, as language runtimes make them.
const RESERVED: std::ops::Range<u64> = 0x0100_0000_0000..HEAP;

/// Process ids above any that Linux gives out (`PID_MAX_LIMIT`, 4,194,304): no process of this machine is ever meant.
const FIRST_PID: u64 = 5_000_000;

/// Where the anonymous memory of every process begins.
const HEAP: u64 = 0x7f00_0000_0000;

/// `memory.stat`, as far as the agent reads it, and as long as a kernel's.
const STAT_ZEROS: [&str; 46] = [
    "kernel_stack",
    "pagetables",
    "sec_pagetables",
    "percpu",
    "sock",
    "vmalloc",
    "shmem",
    "zswap",
    "zswapped",
    "file_mapped",
    "file_dirty",
    "file_writeback",
    "swapcached",
    "anon_thp",
    "file_thp",
    "shmem_thp",
    "unevictable",
    "slab_reclaimable",
    "slab_unreclaimable",
    "workingset_refault_anon",
    "workingset_refault_file",
    "workingset_activate_anon",
    "workingset_activate_file",
    "workingset_restore_anon",
    "workingset_restore_file",
    "workingset_nodereclaim",
    "pgscan",
    "pgsteal",
    "pgscan_kswapd",
    "pgscan_direct",
    "pgsteal_kswapd",
    "pgsteal_direct",
    "pgfault",
    "pgmajfault",
    "pgrefill",
    "pgactivate",
    "pgdeactivate",
    "pglazyfree",
    "pglazyfreed",
    "zswpin",
    "zswpout",
    "zswpwb",
    "thp_fault_alloc",
    "thp_collapse_alloc",
    "thp_swpout",
    "thp_swpout_fallback",
];

/// A machine of files.
pub(crate) struct Machine {
    /// The directory; its `proc` and `sys` are the machine's.
    pub(crate) directory: PathBuf,
    /// Its memory.
    pub(crate) memory: Bytes,
    /// Its jobs.
    pub(crate) jobs: u64,
}

impl Machine {
    /// Writes the files below an empty directory.
    ///
    /// # Errors
    /// Any error of the file system.
    pub(crate) fn write(directory: &Path, memory: Bytes, jobs: u64) -> Result<Self> {
        let machine = Self { directory: directory.to_owned(), memory, jobs };
        machine.describe()?;
        let mut ids = Vec::new();
        for job in 0..jobs {
            ids.push(machine.job(job)?);
        }
        machine.frames(&ids)?;
        Ok(machine)
    }

    /// The files that a scan reads in bulk.
    pub(crate) fn bulk_files(&self) -> [PathBuf; 3] {
        ["proc/kpageflags", "proc/kpagecgroup", "sys/kernel/mm/page_idle/bitmap"].map(|name| self.directory.join(name))
    }

    fn frame_count(&self) -> u64 {
        self.memory.0 / PAGE_BYTES
    }

    fn job_bytes(&self, job: u64) -> u64 {
        let bytes = self.memory.0 * 9 / 10 / self.jobs;
        if is_small(job) { bytes / SMALL_SHARE } else { bytes }
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn describe(&self) -> Result<()> {
        let (kib, each) = (self.memory.0 / 1024, self.frame_count() / NODES);
        let zone = |node: u64| {
            let (free, start) = (each / 10, node * each);
            format!(
                "Node {node}, zone Normal\n  pages free {free}\n  min 1000\n  low 1200\n  high 1400\n  spanned {each}\n  present {each}\n  start_pfn: {start}\n"
            )
        };
        let zones: String = (0..NODES).map(zone).collect();
        let (free, available) = (kib / 10, kib / 5);
        let memory =
            format!("MemTotal: {kib} kB\nMemFree: {free} kB\nMemAvailable: {available} kB\nSwapTotal: {kib} kB\nSwapFree: {kib} kB\n");
        let quiet = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        for (name, text) in [
            ("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n"),
            ("proc/zoneinfo", &zones),
            ("proc/meminfo", &memory),
            ("proc/pressure/memory", quiet),
            ("proc/swaps", &format!("Filename Type Size Used Priority\n/dev/vdb partition {kib} 0 -2\n")),
            ("proc/vmstat", "allocstall_normal 0\npgsteal_direct 0\npgsteal_kswapd 0\npswpin 0\npswpout 0\nthp_split_page 0\n"),
            ("proc/sys/kernel/random/boot_id", "0b7c2b0e-5d5e-4f86-9f1c-2f2a3f6f9a11\n"),
            ("proc/sys/kernel/osrelease", "6.12.0-files\n"),
            ("proc/uptime", "1000.00 1900.00\n"),
            ("proc/self/statm", "100 50 10 1 0 40 0\n"),
            ("sys/module/zswap/parameters/enabled", "Y\n"),
        ] {
            self.put(name, text)?;
        }
        self.nodes(kib / NODES)
    }

    /// Writes the nodes: one per socket, of `kib` each, and a slow one without processors.
    fn nodes(&self, kib: u64) -> Result<()> {
        for node in 0..=NODES {
            let directory = format!("sys/devices/system/node/node{node}");
            let distance = |other: u64| {
                if other == node {
                    "10"
                } else if other.max(node) == NODES {
                    "40"
                } else {
                    "21"
                }
            };
            let distances: Vec<&str> = (0..=NODES).map(distance).collect();
            let memory = format!("Node {node} MemTotal: {kib} kB\nNode {node} MemFree: {kib} kB\nNode {node} FilePages: 0 kB\n");
            let cpus = if node == NODES { String::new() } else { format!("{}-{}", node * 32, node * 32 + 31) };
            self.put(&format!("{directory}/meminfo"), &memory)?;
            self.put(&format!("{directory}/cpulist"), &(cpus + "\n"))?;
            self.put(&format!("{directory}/distance"), &(distances.join(" ") + "\n"))?;
        }
        Ok(())
    }

    /// Writes a job with its containers and processes. Returns the kernel's ids of the containers.
    fn job(&self, job: u64) -> Result<Vec<u64>> {
        let path = format!("/jobs/job-{job}");
        self.cgroup(&path, self.job_bytes(job), 0..0)?;
        let root = CgroupRoot::probe(&Roots::under(&self.directory))?;
        let mut ids = Vec::new();
        for container in 0..CONTAINERS {
            let each = PROCESSES / CONTAINERS;
            let first = FIRST_PID + job * PROCESSES + container * each;
            let path = format!("{path}/container-{container}");
            self.cgroup(&path, self.job_bytes(job) / CONTAINERS, first..first + each)?;
            for pid in first..first + each {
                let sparse = is_small(job) && container == 0 && pid == first;
                self.process(pid, &path, (self.job_bytes(job) / PROCESSES).next_multiple_of(PAGE_BYTES), sparse)?;
            }
            ids.push(Cgroup::open(&root, &path)?.id());
        }
        Ok(ids)
    }

    fn cgroup(&self, path: &str, bytes: u64, pids: std::ops::Range<u64>) -> Result<()> {
        let anon = bytes * 3 / 4;
        let mut stat = format!("anon {anon}\nfile {}\nkernel 0\ninactive_anon {anon}\nactive_anon 0\n", bytes - anon);
        for name in STAT_ZEROS {
            stat += &format!("{name} 0\n");
        }
        let quiet = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        let events = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n";
        let (current, procs) = (bytes.to_string(), pids.map(|pid| format!("{pid}\n")).collect::<String>());
        for (name, text) in [
            ("memory.current", current.as_str()),
            ("memory.stat", &stat),
            ("cgroup.procs", &procs),
            ("memory.min", "0"),
            ("memory.low", "0"),
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("memory.swap.current", "0"),
            ("memory.swap.max", "max"),
            ("memory.zswap.current", "0"),
            ("memory.zswap.max", "max"),
            ("memory.zswap.writeback", "1"),
            ("memory.events", events),
            ("memory.events.local", events),
            ("memory.pressure", quiet),
            ("io.pressure", quiet),
            ("memory.reclaim", ""),
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cpu.stat", "usage_usec 0\n"),
        ] {
            self.put(&format!("sys/fs/cgroup{path}/{name}"), text)?;
        }
        Ok(())
    }

    /// Writes a process whose address space is empty, but large; if it is `sparse`, as large as it can be.
    fn process(&self, pid: u64, cgroup: &str, bytes: u64, sparse: bool) -> Result<()> {
        let mut maps = String::new();
        if sparse {
            maps += &format!("{:x}-{:x} rw-p 00000000 00:00 0\n", RESERVED.start, RESERVED.end);
        }
        for library in 0..30u64 {
            let start = 0x5500_0000_0000 + library * 0x10_0000;
            maps += &format!("{start:x}-{:x} r-xp 00000000 fd:00 {library} /usr/lib/library-{library}.so\n", start + 0x4_0000);
        }
        maps += &format!("{HEAP:x}-{:x} rw-p 00000000 00:00 0\n", HEAP + bytes);
        self.put(&format!("proc/{pid}/maps"), &maps)?;
        self.put(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"))?;
        // A hole: no page is present.
        let pagemap = File::create(self.directory.join(format!("proc/{pid}/pagemap")))?;
        Ok(pagemap.set_len((HEAP + bytes) / PAGE_BYTES * 8)?)
    }

    /// Writes the files with an entry per page frame: huge pages, runs of small pages and free frames, in random order.
    fn frames(&self, owners: &[Vec<u64>]) -> Result<()> {
        let [flags, cgroups, idle] = self.bulk_files();
        fs::create_dir_all(idle.parent().unwrap_or(&idle))?;
        File::create(idle)?.set_len(self.frame_count() / 8)?;
        let (mut flags, mut cgroups) =
            (BufWriter::with_capacity(1 << 20, File::create(flags)?), BufWriter::with_capacity(1 << 20, File::create(cgroups)?));
        let mut random = fastrand::Rng::with_seed(7);
        let mut write = |flag: u64, owner: u64| -> std::io::Result<()> {
            flags.write_all(&flag.to_ne_bytes())?;
            cgroups.write_all(&owner.to_ne_bytes())
        };
        for _ in 0..self.frame_count() / HUGE {
            let mut job = random.usize(..owners.len());
            // A small job has fewer frames.
            while is_small(job as u64) && random.u64(..SMALL_SHARE) > 0 {
                job = random.usize(..owners.len());
            }
            let containers = &owners[job];
            let owner = containers[random.usize(..containers.len())];
            match random.u8(0..10) {
                0 => (0..HUGE).try_for_each(|_| write(KPF_BUDDY, 0))?,
                1..=4 => (0..HUGE).try_for_each(|frame| {
                    let tail = if frame == 0 { 0 } else { KPF_COMPOUND_TAIL };
                    write(KPF_LRU | KPF_SWAPBACKED | tail, owner)
                })?,
                _ => {
                    let file = random.u64(..HUGE);
                    let other = containers[random.usize(..containers.len())];
                    (0..HUGE)
                        .try_for_each(|frame| if frame < file { write(KPF_LRU | KPF_SWAPBACKED, owner) } else { write(KPF_LRU, other) })?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a job is small.
fn is_small(job: u64) -> bool {
    job.is_multiple_of(SMALL_EVERY)
}
