//! A fake machine for this crate's tests: the kernel's files in a temporary directory.

use std::path::PathBuf;

use config::Config;
use kernel::Roots;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::page_idle::{KPF_LRU, KPF_SWAPBACKED};
use tempfile::TempDir;

/// Page frames of the machine.
pub(crate) const FRAMES: usize = 256;

/// A machine with cgroup v2, idle page tracking and a swap area, and nothing running on it.
pub(crate) struct Machine {
    directory: TempDir,
    pub(crate) roots: Roots,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let machine = Self { roots: Roots::under(directory.path()), directory };
        machine.put("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n");
        machine.put("proc/zoneinfo", &format!("Node 0, zone Normal\n  spanned {FRAMES}\n  present {FRAMES}\n  start_pfn: 0\n"));
        machine.put("proc/sys/kernel/random/boot_id", "0b7c2b0e-5d5e-4f86-9f1c-2f2a3f6f9a11\n");
        machine.put("proc/sys/kernel/osrelease", "6.12.0-fake\n");
        machine.put("proc/uptime", "1000.00 1900.00\n");
        machine.put("proc/self/statm", "100 50 10 1 0 40 0\n");
        machine.put("proc/meminfo", "MemTotal: 1024 kB\nMemFree: 512 kB\nMemAvailable: 512 kB\nSwapTotal: 1024 kB\nSwapFree: 1024 kB\n");
        machine.put("proc/swaps", "Filename Type Size Used Priority\n/dev/vdb partition 1024 0 -2\n");
        machine.put("sys/module/zswap/parameters/enabled", "Y\n");
        for name in ["proc/kpageflags", "proc/kpagecgroup"] {
            machine.put_words(name, &[0; FRAMES]);
        }
        machine.put_words("sys/kernel/mm/page_idle/bitmap", &[0; FRAMES / 64]);
        machine
    }

    /// Where a file of the machine is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file, with the directories above it.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn put_words(&self, name: &str, words: &[u64]) {
        self.put(name, "");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// What a file holds, without the newline at its end.
    pub(crate) fn get(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap().trim().to_owned()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Makes a cgroup without limits, processes or memory.
    pub(crate) fn cgroup(&self, name: &str) -> Cgroup {
        for (file, text) in [
            ("memory.current", "0"),
            ("memory.min", "0"),
            ("memory.low", "0"),
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("memory.swap.current", "0"),
            ("memory.swap.max", "max"),
            ("memory.stat", "anon 0"),
            ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0"),
        ] {
            self.put(&format!("sys/fs/cgroup{name}/{file}"), &format!("{text}\n"));
        }
        self.put(&format!("sys/fs/cgroup{name}/cgroup.procs"), "");
        Cgroup::open(&CgroupRoot::probe(&self.roots).unwrap(), name).unwrap()
    }

    /// Changes one file of a cgroup.
    pub(crate) fn set(&self, cgroup: &str, file: &str, text: &str) {
        self.put(&format!("sys/fs/cgroup{cgroup}/{file}"), &format!("{text}\n"));
    }

    /// Removes a cgroup.
    pub(crate) fn remove(&self, cgroup: &str) {
        std::fs::remove_dir_all(self.path(&format!("sys/fs/cgroup{cgroup}"))).unwrap();
    }

    /// Gives the first `count` frames to a cgroup, as anonymous memory; the others are free.
    pub(crate) fn own_frames(&self, cgroup: &Cgroup, count: usize) {
        self.put_frames(cgroup, count, KPF_LRU | KPF_SWAPBACKED);
    }

    /// The same, as page cache.
    pub(crate) fn cache_frames(&self, cgroup: &Cgroup, count: usize) {
        self.put_frames(cgroup, count, KPF_LRU);
    }

    fn put_frames(&self, cgroup: &Cgroup, count: usize, flags: u64) {
        let words = |word: u64| (0..FRAMES).map(|frame| if frame < count { word } else { 0 }).collect::<Vec<_>>();
        self.put_words("proc/kpageflags", &words(flags));
        self.put_words("proc/kpagecgroup", &words(cgroup.id()));
    }

    /// Sets the idle bits as they are after exactly the first `count` frames were accessed.
    pub(crate) fn access_frames(&self, count: usize) {
        let word = |index: usize| (0..64).filter(|bit| index * 64 + bit >= count).fold(0, |word, bit| word | 1 << bit);
        self.put_words("sys/kernel/mm/page_idle/bitmap", &(0..FRAMES / 64).map(word).collect::<Vec<_>>());
    }

    /// A configuration whose files are in this machine's directory, with more of it.
    pub(crate) fn config(&self, more: &str) -> Config {
        let (state, run) = (self.path("state"), self.path("run"));
        let text = format!("[agent]\nstate_dir = {state:?}\nruntime_dir = {run:?}\n{more}");
        Config::from_str("test", &text).unwrap()
    }
}
