//! Instructions and cycles of a cgroup, by counters of the processors (`perf_event_open(2)` with `PERF_FLAG_PID_CGROUP`).
//!
//! The kernel counts per processor, so that each cgroup takes two descriptors on each of them, and switches counters at each context
//! switch between cgroups. Both events of a processor are one group: they are counted during the same time, also where there are
//! fewer counters than events, so that their ratio is right even if each is incomplete.
//!
//! **Not tested with hardware counters**: no machine with any was available. The mechanism is tested with software events.

use std::fs::File;
use std::io;
use std::path::Path;

use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};

use super::online;
use crate::{Error, Result, Roots};

/// Descriptors on each processor.
pub const DESCRIPTORS: usize = 2;

/// What was counted since the counters were opened, in processes of the cgroup and of those below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions that were retired.
    pub instructions: u64,
    /// Cycles in which the processors were not halted.
    pub cycles: u64,
}

/// The counters of one cgroup. Dropping it ends the counting.
#[derive(Debug)]
pub struct CgroupCounters {
    path: std::path::PathBuf,
    pairs: Vec<[Counter; DESCRIPTORS]>,
}

impl CgroupCounters {
    /// Counts from now on in the cgroup of this directory.
    ///
    /// # Errors
    /// [`Error::Gone`] if there is no such directory; [`Error::Unsupported`] if the processor has no counters, or the kernel does not
    /// permit to use them.
    pub fn open(roots: &Roots, directory: &Path) -> Result<Self> {
        let file = File::open(directory).map_err(|source| Error::from_io(directory, "open", source))?;
        let counters = online(roots).and_then(|online| Self::of(directory, &online, &file, [Hardware::INSTRUCTIONS, Hardware::CPU_CYCLES]));
        counters.map_err(|error| {
            let what = format!("the kernel does not count the instructions of a cgroup: {error}");
            Error::unsupported(&what, "leave agent.count_instructions at 0, or permit perf_event_open (docs/guide.md)")
        })
    }

    fn of<E: Event + Clone>(path: &Path, online: &[usize], cgroup: &File, events: [E; DESCRIPTORS]) -> io::Result<Self> {
        let mut pairs = Vec::with_capacity(online.len());
        for &processor in online {
            let counter = |event: &E| {
                let mut builder = Builder::new(event.clone());
                // Work of the kernel for the job counts: it decompresses its memory.
                builder.observe_cgroup(cgroup).one_cpu(processor).include_kernel().exclude_hv(true).enabled(true);
                builder
            };
            let mut leader = counter(&events[0]).build()?;
            let member = counter(&events[1]).build_with_group(&mut leader)?;
            pairs.push([leader, member]);
        }
        Ok(Self { path: path.to_owned(), pairs })
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(&mut self) -> Result<Counts> {
        let mut sum = Counts::default();
        let mut add = |[instructions, cycles]: &mut [Counter; DESCRIPTORS]| -> io::Result<()> {
            sum.instructions = sum.instructions.saturating_add(instructions.read()?);
            sum.cycles = sum.cycles.saturating_add(cycles.read()?);
            Ok(())
        };
        let read = self.pairs.iter_mut().try_for_each(&mut add);
        read.map_err(|source| Error::Io { path: self.path.clone(), op: "count instructions of", source })?;
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use perf_event::events::Software;

    use super::*;
    use crate::testing::{Mapping, tree};

    /// The directory of this process' cgroup; `None` where cgroup v2 is not mounted in a usual place.
    fn own_cgroup() -> Option<std::path::PathBuf> {
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let mount = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists())?;
        Some(mount.join(name))
    }

    #[test]
    fn events_of_a_cgroup_are_counted_on_all_processors() {
        const PAGES: usize = 256;
        let Some(directory) = own_cgroup() else { return eprintln!("skipped, there is no cgroup v2") };
        let (file, online) = (File::open(&directory).unwrap(), online(&Roots::host()).unwrap());
        let mut counters = match CgroupCounters::of(&directory, &online, &file, [Software::PAGE_FAULTS, Software::PAGE_FAULTS_MIN]) {
            Ok(counters) => counters,
            Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => {
                return eprintln!("skipped, not permitted for this user: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(counters.pairs.len(), online.len());
        let before = counters.read().unwrap();
        let memory = Mapping::new(PAGES);
        (0..PAGES).for_each(|page| memory.touch(page));
        let after = counters.read().unwrap();
        assert!(after.instructions >= before.instructions + PAGES as u64, "{before:?} {after:?}");
        assert!(after.cycles >= before.cycles + PAGES as u64, "{before:?} {after:?}");
    }

    #[test]
    fn what_cannot_be_counted_is_reported_with_its_remedy() {
        let (_keep, roots) = tree(&[("sys/devices/system/cpu/online", "0\n"), ("plain/file", "")]);
        // No cgroup: the kernel refuses such a directory.
        let error = CgroupCounters::open(&roots, &roots.sys).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("agent.count_instructions"), "{error}");
        assert!(CgroupCounters::open(&roots, &roots.sys.join("none")).unwrap_err().is_gone());
    }
}
