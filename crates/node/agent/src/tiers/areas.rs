//! The swap areas of the machine, each with its device.

use kernel::Roots;
use kernel::block::BlockDevice;
use kernel::swap::SwapArea;
use kernel::zram::{MemoryStat, Zram};
use policy::tiering::row::{FREE_MIN, RowId, TooLong};
use units::{Bytes, RatioPpm};

use super::latency::Latency;
use crate::ram_disks::RamDisks;

/// A swap area that the agent may use.
#[derive(Debug)]
pub(super) struct Area {
    /// The kernel's name of its device.
    pub(super) id: RowId,
    /// Its device, if that is zram.
    pub(super) zram: Option<Zram>,
    /// Mean latency of reads from its device, unless that is zram.
    pub(super) latency: Latency,
    /// DRAM that it occupies.
    pub(super) memory: Bytes,
    /// Of it, what holds no page: fragmentation.
    pub(super) unused: Bytes,
    /// Free space.
    pub(super) free: Bytes,
    /// The area with the highest priority is filled first.
    pub(super) priority: i32,
    used: Bytes,
    /// Uncompressed size of what zram stores.
    stored: Bytes,
}

/// The swap areas, in the order in which the kernel fills them.
#[derive(Debug, Default)]
pub(super) struct Areas {
    all: Vec<Area>,
    /// Bytes written to zram devices since boot, when last read.
    ram_written: Option<Bytes>,
    to_devices: Option<RatioPpm>,
}

impl Areas {
    /// Takes over the active areas; latencies of devices that remain are kept. Returns errors, in words.
    pub(super) fn read(&mut self, roots: &Roots, active: &[SwapArea]) -> Vec<String> {
        let mut errors = Vec::new();
        let mut before = std::mem::take(&mut self.all);
        for area in active {
            let mut latency_of = |id: RowId| {
                let known = before.iter().position(|old| old.id == id);
                known.map(|at| before.swap_remove(at).latency).unwrap_or_default()
            };
            match Area::read(roots, area, &mut latency_of) {
                Ok(area) => self.all.push(area),
                Err(error) => errors.push(format!("swap {}: {error}", area.name)),
            }
        }
        self.all.sort_by_key(|area| std::cmp::Reverse(area.priority));
        errors
    }

    /// All areas.
    pub(super) fn all(&self) -> &[Area] {
        &self.all
    }

    /// The areas that the agent may use. If it may write to no device, an area of a higher priority than all of these remains: a
    /// page would go to a device that has space before it goes to a later area.
    pub(super) fn usable(&self, may_write: bool) -> impl Iterator<Item = &Area> {
        let refused = move |area: &&Area| !may_write && area.zram.is_none();
        let barrier = self.all.iter().filter(refused).filter(|area| area.free >= FREE_MIN).map(|area| area.priority).max();
        self.all.iter().filter(move |area| !refused(area) && barrier.is_none_or(|barrier| area.priority > barrier))
    }

    /// Devices other than zram.
    pub(super) fn devices(&self) -> impl Iterator<Item = &BlockDevice> {
        self.all.iter().flat_map(|area| area.latency.devices())
    }

    /// What the zram devices hold, if zswap holds `in_zswap` of what the areas have slots for.
    pub(super) fn ram_disks(&self, in_zswap: Bytes) -> RamDisks {
        let ram = || self.all.iter().filter(|area| area.zram.is_some());
        let elsewhere: Bytes = self.all.iter().filter(|area| area.zram.is_none()).map(|area| area.used).sum();
        let stored: Bytes = ram().map(|area| area.stored).sum();
        RamDisks {
            memory: ram().map(|area| area.memory).sum(),
            stored,
            swapped: stored + (elsewhere - in_zswap),
            to_devices: self.to_devices(),
        }
    }

    /// Of the last writes to swap areas, the share that went to devices that wear out.
    pub(super) fn to_devices(&self) -> RatioPpm {
        let none_wears = !self.all.is_empty() && self.all.iter().all(|area| area.zram.is_some());
        if none_wears { RatioPpm(0) } else { self.to_devices.unwrap_or(RatioPpm::ONE) }
    }

    /// Of the bytes that were swapped out since the last call, those that went to devices that wear out.
    pub(super) fn worn_by(&mut self, written: Bytes) -> Bytes {
        let io = self.all.iter().filter_map(|area| area.zram.as_ref()?.io().ok());
        let ram: Bytes = io.map(|io| io.write_bytes).sum();
        let to_ram = self.ram_written.replace(ram).map_or(Bytes::ZERO, |before| ram - before);
        let worn = written - to_ram;
        self.to_devices = RatioPpm::of(worn.0, written.0).or(self.to_devices);
        worn
    }
}

impl Area {
    fn read(roots: &Roots, area: &SwapArea, latency_of: &mut impl FnMut(RowId) -> Latency) -> Result<Self, String> {
        let words = |error: kernel::Error| error.to_string();
        let device = BlockDevice::under_swap(roots, area).map_err(words)?;
        let id: RowId = device.name().parse().map_err(|error: TooLong| error.to_string())?;
        let (free, used, priority) = (area.size - area.used, area.used, area.priority);
        let of = |zram, stat: MemoryStat, free, latency| {
            let (memory, unused, stored) = (stat.memory, stat.memory - stat.compressed, stat.stored);
            Self { id, zram, latency, memory, unused, free, priority, used, stored }
        };
        match Zram::of(device.clone()).map_err(words)? {
            Some(zram) => {
                let stat = zram.memory().map_err(words)?;
                // Beyond its limit of memory, writes fail and the pages stay where they are.
                let free = if stat.limit > Bytes::ZERO && stat.memory >= stat.limit { Bytes::ZERO } else { free };
                Ok(of(Some(zram), stat, free, Latency::default()))
            }
            None => {
                let mut latency = latency_of(id);
                latency.watch(vec![device]);
                latency.measure();
                Ok(of(None, MemoryStat::default(), free, latency))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    /// A machine with zram0, vdb and vdc, and its swap areas with these priorities.
    fn machine(zram: i32, vdb: i32, vdc: i32) -> (Machine, Vec<SwapArea>) {
        let machine = Machine::new();
        for disk in ["vdb", "vdc", "zram0"] {
            io(&machine, disk, 0, 0, 0);
        }
        machine.put("sys/class/block/zram0/comp_algorithm", "lzo [lz4]\n");
        machine.put("sys/class/block/zram0/mm_stat", "0 0 0 0 0 0 0\n");
        let area = |name: &str, priority: i32| format!("/dev/{name} partition 10240 0 {priority}\n");
        let areas = [area("vdc", vdc), area("zram0", zram), area("vdb", vdb)].concat();
        machine.put("proc/swaps", &format!("Filename Type Size Used Priority\n{areas}"));
        let areas = kernel::swap::read(&machine.roots).unwrap();
        (machine, areas)
    }

    /// Sets the counters of a disk.
    fn io(machine: &Machine, disk: &str, reads: u64, read_ms: u64, written: u64) {
        machine.put(&format!("sys/class/block/{disk}/stat"), &format!("{reads} 0 0 {read_ms} 0 0 {} 0\n", written / 512));
    }

    fn names<'a>(areas: impl Iterator<Item = &'a Area>) -> Vec<String> {
        areas.map(|area| area.id.to_string()).collect()
    }

    #[test]
    fn areas_are_in_the_order_in_which_the_kernel_fills_them() {
        let (machine, active) = machine(100, -2, 5);
        let mut areas = Areas::default();
        assert_eq!(areas.read(&machine.roots, &active), [""; 0]);
        assert_eq!(names(areas.all().iter()), ["zram0", "vdc", "vdb"]);
    }

    #[test]
    fn behind_a_device_that_may_not_be_written_nothing_is_used_while_it_has_space() {
        let check = |priorities: (i32, i32, i32), vdb_used: u64, may_write: bool, expected: &[&str]| {
            let (machine, mut active) = machine(priorities.0, priorities.1, priorities.2);
            active.iter_mut().filter(|area| area.name == "/dev/vdb").for_each(|area| area.used = Bytes::mib(vdb_used));
            let mut areas = Areas::default();
            areas.read(&machine.roots, &active);
            assert_eq!(names(areas.usable(may_write)), expected, "{priorities:?} {vdb_used}");
        };
        check((100, -2, -3), 0, true, &["zram0", "vdb", "vdc"]);
        check((100, -2, -3), 0, false, &["zram0"]);
        check((1, 2, -3), 0, false, &[]);
        check((2, 2, -3), 0, false, &[]);
        check((1, 2, -3), 10, false, &["zram0"]);
        check((1, 2, -3), 10, true, &["vdb", "zram0", "vdc"]);
    }

    #[test]
    fn each_device_has_its_own_latency() {
        let (machine, active) = machine(100, -2, 5);
        let mut areas = Areas::default();
        areas.read(&machine.roots, &active);
        io(&machine, "vdb", 10, 80, 0);
        io(&machine, "vdc", 10, 1, 0);
        io(&machine, "zram0", 10, 50, 0);
        areas.read(&machine.roots, &active);
        let latencies: Vec<_> = areas.all().iter().map(|area| area.latency.mean_us).collect();
        assert_eq!(latencies, [None, Some(100), Some(8000)], "a page from zram is decompressed, which its counters do not show");
    }

    #[test]
    fn what_is_on_zram_occupies_memory_and_wears_out_nothing() {
        let (machine, mut active) = machine(100, -2, 5);
        machine.put("sys/class/block/zram0/mm_stat", "4194304 1000000 1048576 0 0 0 0\n");
        active.iter_mut().filter(|area| area.name == "/dev/vdc").for_each(|area| area.used = Bytes::mib(4));
        let mut areas = Areas::default();
        areas.read(&machine.roots, &active);
        assert_eq!(areas.worn_by(Bytes::ZERO), Bytes::ZERO);
        io(&machine, "zram0", 0, 0, 3 << 20);
        assert_eq!((areas.worn_by(Bytes::mib(4)), areas.to_devices()), (Bytes::mib(1), RatioPpm(250_000)));
        let disks = areas.ram_disks(Bytes::ZERO);
        assert_eq!((disks.memory, disks.stored, disks.swapped), (Bytes::mib(1), Bytes::mib(4), Bytes::mib(8)));
        assert_eq!(areas.ram_disks(Bytes::mib(3)).swapped, Bytes::mib(5), "zswap holds pages that have a slot on the disk");
        let only: Vec<_> = active.into_iter().filter(|area| area.name == "/dev/zram0").collect();
        areas.read(&machine.roots, &only);
        assert_eq!(areas.to_devices(), RatioPpm(0));
        // Its memory is limited, and the limit is reached: writes would fail.
        machine.put("sys/class/block/zram0/mm_stat", "4194304 1000000 1048576 1048576 0 0 0\n");
        areas.read(&machine.roots, &only);
        assert_eq!(areas.all()[0].free, Bytes::ZERO);
    }
}
