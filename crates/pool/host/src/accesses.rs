//! What a guest accesses of its memory, seen from outside, and which instrument saw it.
//!
//! # What each instrument sees
//! The memory of a KVM guest is mapped twice: by the page tables of the hypervisor's process, and by second-level page
//! tables that the processor walks while guest code runs. Guest code sets accessed bits in the second ones only.
//! `/proc/PID/clear_refs` and `/proc/PID/smaps` clear and read the first ones only (`clear_refs_pte_range()` and
//! `smaps_pte_entry()` in `fs/proc/task_mmu.c` call no MMU notifier), so that they show no access of a KVM guest. Idle
//! page tracking (`page_idle_clear_pte_refs_one()` in `mm/page_idle.c`) and DAMON (`damon_ptep_mkold()` in
//! `mm/damon/ops-common.c`, `damon_young_pmd_entry()` in `mm/damon/vaddr.c`) ask the MMU notifiers, and so KVM. Under
//! QEMU's emulation guest memory is accessed through the process's own page tables, which all three see.
//!
//! DAMON passes over pages within a larger folio that are mapped by single entries (`damon_get_folio()` returns none of a tail), and
//! counts them as not accessed. Guest memory in huge pages is mapped by one entry, and is seen.
//!
//! No instrument sees a device that accesses memory by itself (VFIO, vDPA). Such a guest is not judged.
//!
//! **Not tested on KVM**: the machines of the tests have none. Tests use memory that another process accesses through
//! its own mapping, which accessed bits of the first process do not show either.
//!
//! # Accesses that pass no page table
//! `process_vm_readv(2)` and `process_vm_writev(2)` pin pages and copy through the kernel's own mapping
//! (`process_vm_rw_single_vec()` in `mm/process_vm_access.c`): no accessed bit is set. `follow_page_pte()` in `mm/gup.c` calls
//! `folio_mark_accessed()` in their place (`FOLL_TOUCH`). With the multi-generational LRU, which is the default of
//! current distributions, that sets the page's referenced flag and returns; only with the two lists it clears the idle flag as well
//! (`mm/swap.c`). `smaps` counts a referenced page (`smaps_account()` in `fs/proc/task_mmu.c`), and DAMON and idle
//! page tracking ask for the idle flag: with the multi-generational LRU these two do not see such accesses, and nothing shows that a
//! process makes them. Scenario `pool_accesses` measures it.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernel::capability::{self, Capability};
use kernel::smaps::Mapping;
use kernel::{Error, Result, Roots, damon, page_idle, smaps};
use serde::{Deserialize, Serialize};
use units::Bytes;

mod blocks;
mod idle;
mod pages;
mod watched;

pub use blocks::Placed;

settings::choice! {
    /// Which instrument is used.
    Choice {
        /// Accessed bits without KVM; otherwise idle page tracking if the kernel has it, and DAMON if not.
        Auto = "auto",
        /// Idle page tracking.
        PageIdle = "page_idle",
        /// DAMON.
        Damon = "damon",
        /// Accessed bits of the process.
        AccessedBits = "accessed_bits",
    }
}

settings::choice! {
    /// How accesses were seen.
    Instrument {
        /// Idle page tracking of sampled pages, during a window: accesses by any process and any KVM guest.
        PageIdle = "page_idle",
        /// DAMON on sampled pages, during a window: accesses by this process and its KVM guest.
        Damon = "damon",
        /// Accessed bits of all pages of the process since they were cleared: accesses by this process. Those of a KVM
        /// guest are not among them.
        AccessedBits = "accessed_bits",
    }
}

/// Why the accesses of a guest cannot be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Unseen {
    /// A device accesses its memory.
    #[error(
        "a passed-through device accesses its memory by itself, which no instrument sees; its memory is also pinned, so that all of it counts as touched"
    )]
    Device,
    /// It runs under KVM, and accessed bits were asked for.
    #[error("it runs under KVM, and accessed bits do not show what it accesses; set monitor.instrument = \"auto\"")]
    Kvm,
    /// Its memory is in huge pages of hugetlbfs.
    #[error("its memory is in huge pages of hugetlbfs, which only DAMON sees; set monitor.instrument = \"auto\" or \"damon\"")]
    HugePages,
    /// It is memory of a device (`/dev/dax`), or other memory on no list of the kernel.
    #[error(
        "its memory is on none of the kernel's LRU lists, such as that of /dev/dax, and has no accessed bits to read; online it as memory of a node instead"
    )]
    NotTracked,
    /// The kernel has no idle page tracking, or this process may not use it.
    #[error(
        "there is no idle page tracking; it needs CAP_SYS_ADMIN and a kernel with CONFIG_IDLE_PAGE_TRACKING=y, or set monitor.instrument = \"auto\""
    )]
    NoPageIdle,
    /// The kernel has no DAMON for virtual addresses, or this process may not use it.
    #[error(
        "there is neither idle page tracking nor DAMON; idle page tracking needs CAP_SYS_ADMIN and a kernel with CONFIG_IDLE_PAGE_TRACKING=y, DAMON needs Linux 6.7 with CONFIG_DAMON_SYSFS=y"
    )]
    NoDamon,
    /// Another program or module uses DAMON.
    #[error("another program uses DAMON, which it does not share; boot a kernel with CONFIG_IDLE_PAGE_TRACKING=y, or stop that program")]
    DamonBusy,
}

/// How the accesses of a sample were seen, or why they were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// They were seen.
    By(Instrument),
    /// They were not, and count as none.
    Not(Unseen),
}

/// Records of earlier versions are of accessed bits.
impl Default for Seen {
    fn default() -> Self {
        Self::By(Instrument::AccessedBits)
    }
}

/// How to see accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which instrument.
    pub instrument: Choice,
    /// How long sampled pages are watched.
    pub window: Duration,
}

/// What was accessed of one mapping, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accessed {
    /// The estimate; exact for accessed bits.
    pub estimated: Bytes,
    /// A lower bound: in one of forty samples it is higher than what was accessed.
    pub at_least: Bytes,
}

/// What a process's open files and the kernel say about its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    kvm: bool,
    device: bool,
    huge_pages: bool,
    device_memory: bool,
    page_idle: bool,
}

/// Chooses the instrument for a process by its mappings of guest memory.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Io`], `EACCES` without `CAP_SYS_PTRACE`.
pub fn choose(roots: &Roots, pid: i32, mappings: &[Mapping], choice: Choice) -> Result<Seen> {
    let mut facts = Facts {
        huge_pages: mappings.iter().any(|mapping| mapping.hugetlb),
        device_memory: mappings.iter().any(|mapping| mapping.vma.path.starts_with("/dev/dax")),
        ..Facts::default()
    };
    for file in kernel::process::open_files(roots, pid)? {
        facts.kvm |= file == Path::new("anon_inode:kvm-vm");
        facts.device |= is_device(&file);
    }
    // The kernel hides the numbers of page frames from others.
    let sees_frames = capability::credentials(roots)?.has(Capability::SysAdmin);
    facts.page_idle = sees_frames && page_idle::IdleBitmap::open(roots).is_ok();
    Ok(instrument(choice, facts))
}

/// Whether an open file is a device that accesses the process's memory by itself. The container `/dev/vfio/vfio` has no
/// device yet.
fn is_device(file: &Path) -> bool {
    let name = file.to_string_lossy();
    let vfio = name.starts_with("/dev/vfio/") && name != "/dev/vfio/vfio";
    vfio || name.starts_with("/dev/vhost-vdpa") || name == "anon_inode:[vfio-device]"
}

fn instrument(choice: Choice, facts: Facts) -> Seen {
    if facts.device {
        return Seen::Not(Unseen::Device);
    }
    if facts.device_memory {
        return Seen::Not(Unseen::NotTracked);
    }
    match choice {
        Choice::Damon => Seen::By(Instrument::Damon),
        Choice::PageIdle if !facts.page_idle => Seen::Not(Unseen::NoPageIdle),
        Choice::PageIdle | Choice::AccessedBits if facts.huge_pages => Seen::Not(Unseen::HugePages),
        Choice::PageIdle => Seen::By(Instrument::PageIdle),
        Choice::AccessedBits if facts.kvm => Seen::Not(Unseen::Kvm),
        Choice::AccessedBits => Seen::By(Instrument::AccessedBits),
        Choice::Auto if facts.huge_pages => Seen::By(Instrument::Damon),
        Choice::Auto if !facts.kvm => Seen::By(Instrument::AccessedBits),
        Choice::Auto if facts.page_idle => Seen::By(Instrument::PageIdle),
        Choice::Auto => Seen::By(Instrument::Damon),
    }
}

/// What [`sample`] saw.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// How, or why not.
    pub seen: Seen,
    /// Of each mapping, in their order.
    pub accessed: Vec<Accessed>,
    /// CPU time of the kernel's threads that saw it, as far as it can be read; the rest is the caller's.
    pub kernel_cpu: Duration,
}

/// Sees what was accessed of each mapping, in their order, which is that of addresses. With idle page tracking and DAMON that is
/// during a window, for which `wait` waits. With accessed bits it is what `mappings`, which were read just before, report; the bits
/// are cleared for the next sample.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Io`].
pub fn sample(roots: &Roots, pid: i32, mappings: &[Mapping], settings: &Settings, wait: impl FnOnce(Duration)) -> Result<Sampled> {
    let seen = choose(roots, pid, mappings, settings.instrument)?;
    let by_us = |seen, accessed| Ok(Sampled { seen, accessed, kernel_cpu: Duration::ZERO });
    let not = |why| by_us(Seen::Not(why), vec![Accessed::default(); mappings.len()]);
    let by = match seen {
        Seen::By(by) => by,
        Seen::Not(why) => return not(why),
    };
    match by {
        Instrument::AccessedBits => {
            smaps::clear_referenced(roots, pid)?;
            let exact = |mapping: &Mapping| Accessed { estimated: Bytes(mapping.referenced), at_least: Bytes(mapping.referenced) };
            by_us(seen, mappings.iter().map(exact).collect())
        }
        Instrument::PageIdle => match idle::sample(roots, pid, mappings, || wait(settings.window))? {
            Some(accessed) => by_us(seen, accessed),
            None => not(Unseen::NotTracked),
        },
        Instrument::Damon => match watched::sample(roots, pid, mappings, settings.window, wait) {
            Ok((accessed, kernel_cpu)) => Ok(Sampled { seen, accessed, kernel_cpu }),
            Err(error) => not(without_damon(pid, error)?),
        },
    }
}

/// Why DAMON sees nothing; any other error as it is.
fn without_damon(pid: i32, error: Error) -> Result<Unseen> {
    match error {
        Error::Busy { what, .. } => {
            log::debug!("process {pid}: {what}");
            Ok(Unseen::DamonBusy)
        }
        Error::Unsupported { .. } => Ok(Unseen::NoDamon),
        Error::Io { source, .. } if matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            Ok(Unseen::NoDamon)
        }
        error => Err(error),
    }
}

/// How much the blocks of a guest's pool memory are accessed.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// Blocks with memory in the pool, by address, or why that cannot be seen.
    pub seen: std::result::Result<Vec<Placed>, String>,
    /// As in [`Sampled`].
    pub kernel_cpu: Duration,
}

impl Blocks {
    /// Blocks that cannot be seen or moved, for this reason.
    #[must_use]
    pub fn none(why: impl ToString) -> Self {
        Self { seen: Err(why.to_string()), kernel_cpu: Duration::ZERO }
    }
}

/// Sees how much the blocks of these mappings are accessed, by DAMON, for `window`, for which `wait` waits. Only pages for which `counts` is
/// true are counted.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Io`].
pub fn blocks(
    roots: &Roots,
    pid: i32,
    mappings: &[Mapping],
    counts: impl Fn(&[u64]) -> Result<Vec<bool>>,
    window: Duration,
    wait: impl FnOnce(Duration),
) -> Result<Blocks> {
    if let Seen::Not(why) = choose(roots, pid, mappings, Choice::Damon)? {
        return Ok(Blocks::none(why));
    }
    let ranges: Vec<_> = mappings.iter().map(|mapping| mapping.vma.range()).collect();
    match blocks::sample(roots, pid, &ranges, counts, window, wait) {
        Ok((seen, kernel_cpu)) => Ok(Blocks { seen: Ok(seen), kernel_cpu }),
        Err(error) => Ok(Blocks::none(without_damon(pid, error)?)),
    }
}

/// A seed that differs from sample to sample.
fn seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::from(since.subsec_nanos()) ^ since.as_secs().rotate_left(32))
}

/// Removes the kdamonds that a killed daemon left on processes of these ids. Those of other programs stay, and are no error.
///
/// # Errors
/// [`Error::Io`]; [`Error::Parse`].
pub fn reap(roots: &Roots, pids: &[i32]) -> Result<usize> {
    match damon::Damon::reap(roots, pids) {
        Err(Error::Busy { .. }) => Ok(0),
        reaped => reaped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accessed_bits_never_judge_a_kvm_guest() {
        use Instrument::{AccessedBits, Damon, PageIdle};
        let check = |choice, facts, expected| assert_eq!(instrument(choice, facts), expected, "{choice} {facts:?}");
        let none = Facts::default();
        let kvm = Facts { kvm: true, ..none };
        check(Choice::Auto, none, Seen::By(AccessedBits));
        check(Choice::Auto, Facts { page_idle: true, ..none }, Seen::By(AccessedBits));
        check(Choice::Auto, kvm, Seen::By(Damon));
        check(Choice::Auto, Facts { page_idle: true, ..kvm }, Seen::By(PageIdle));
        check(Choice::Auto, Facts { page_idle: true, huge_pages: true, ..kvm }, Seen::By(Damon));
        check(Choice::AccessedBits, kvm, Seen::Not(Unseen::Kvm));
        check(Choice::AccessedBits, none, Seen::By(AccessedBits));
        check(Choice::AccessedBits, Facts { huge_pages: true, ..none }, Seen::Not(Unseen::HugePages));
        check(Choice::PageIdle, none, Seen::Not(Unseen::NoPageIdle));
        check(Choice::PageIdle, Facts { page_idle: true, ..none }, Seen::By(PageIdle));
        check(Choice::PageIdle, Facts { page_idle: true, huge_pages: true, ..none }, Seen::Not(Unseen::HugePages));
        check(Choice::Damon, kvm, Seen::By(Damon));
        for choice in Choice::ALL {
            check(*choice, Facts { device_memory: true, page_idle: true, ..kvm }, Seen::Not(Unseen::NotTracked));
            check(*choice, Facts { device: true, page_idle: true, ..kvm }, Seen::Not(Unseen::Device));
        }
    }

    #[test]
    fn devices_are_distinguished_from_the_files_of_their_setup() {
        for (file, expected) in [
            ("/dev/vfio/12", true),
            ("/dev/vfio/devices/vfio0", true),
            ("anon_inode:[vfio-device]", true),
            ("/dev/vhost-vdpa-0", true),
            ("/dev/vfio/vfio", false),
            ("/dev/vhost-net", false),
            ("anon_inode:kvm-vm", false),
        ] {
            assert_eq!(is_device(Path::new(file)), expected, "{file}");
        }
    }
}
