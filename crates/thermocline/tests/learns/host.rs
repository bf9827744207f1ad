//! A host of a pool whose hypervisor and pool manager are simulated: guests start, touch memory and end at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use manager::api::{Slice, Slices, Work};
use manager::client::Error as ManagerError;
use pool_host::accesses::{self, Blocks, Choice};
use pool_host::capacity::{Capacity, Renewal};
use pool_host::driver::{Driver, Error, GuestMemory, Machine, Moved, Offline, Usage};
use pool_host::drivers::description::Description;
use pool_host::host::{Host, Models, Settings, Store};
use pool_host::process::Process;
use pool_host::{free_memory, hot, monitor};
use units::{Bytes, RatioPpm};

const SLICE: Bytes = Bytes::mib(128);

/// Slices of the pool, each a sparse file.
const SLICES: u32 = 64;

/// What the guests of the host touch, and the slices that no guest has.
#[derive(Debug, Default)]
struct World {
    usage: Usage,
    processes: i32,
    free: Vec<u32>,
    assigned: BTreeMap<String, Vec<Slice>>,
}

/// The hypervisor and the pool manager of one host.
#[derive(Clone)]
pub(crate) struct Simulated(Arc<Mutex<World>>, PathBuf);

impl Simulated {
    pub(crate) fn new(directory: &Path) -> Self {
        for index in 0..SLICES {
            File::create(directory.join(format!("slice-{index}"))).unwrap().set_len(SLICE.0).unwrap();
        }
        let world = World { free: (0..SLICES).collect(), ..World::default() };
        Self(Arc::new(Mutex::new(world)), directory.to_owned())
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// What guests touch from now on.
    pub(crate) fn touch(&self, local: Bytes, pool: Bytes) {
        self.world().usage = Usage { local_touched_bytes: local, pool_touched_bytes: pool, ..Usage::default() };
    }

    /// The host, with its state and the file of its model in these places.
    pub(crate) fn host(&self, name: &str, state: &Path, model: &Path) -> Host {
        let settings = Settings {
            name: name.to_owned(),
            local: Bytes::gib(64),
            local_min: Bytes::mib(512),
            period: Duration::from_secs(1_800),
            // Guests of a simulated hypervisor live for less than a second.
            least_life: Duration::ZERO,
            counters_agree: 5,
            accesses: accesses::Settings { instrument: Choice::Auto, window: Duration::from_secs(10) },
            monitor: monitor::Settings { touched: RatioPpm(50_000), accessed: RatioPpm(5_000), budget: RatioPpm(10_000), attempts: 3 },
            hot: hot::Settings::default(),
            cooldown: Duration::from_secs(600),
            mitigation_timeout: Duration::from_secs(60),
            margin: free_memory::Margin { ratio: RatioPpm(100_000), min: Bytes::ZERO },
            release_timeout: Duration::from_secs(1),
        };
        let store = Store::open(state).unwrap();
        Host::new(settings, Box::new(self.clone()), Box::new(self.clone()), Some(Models::load(model, None)), store).unwrap()
    }
}

impl Driver for Simulated {
    fn check(&self, _: Option<&Description>) -> Result<(), String> {
        Ok(())
    }

    fn start(&self, _: &Machine, _: Vec<File>) -> Result<Process, Error> {
        let mut world = self.world();
        world.processes += 1;
        Ok(Process { pid: world.processes, starttime: 1, generation: 1 })
    }

    fn resume(&self, _: &Machine, _: Option<Process>) -> Result<Option<Process>, Error> {
        Ok(None)
    }

    fn end_samples(&self, _: &[Process]) -> Result<(), Error> {
        Ok(())
    }

    fn is_alive(&self, _: &Process) -> bool {
        true
    }

    fn touched(&self, _: &Machine, _: &Process) -> Result<Usage, Error> {
        Ok(self.world().usage)
    }

    fn usage(&self, _: &Machine, _: &Process, _: &accesses::Settings) -> Result<Usage, Error> {
        Ok(self.world().usage)
    }

    fn guest_memory(&self, _: &Machine, _: &Process) -> Result<Option<GuestMemory>, Error> {
        Ok(None)
    }

    fn offline(&self, _: &Machine, _: &Process, _: &Slice, _: Duration) -> Result<Offline, Error> {
        Ok(Offline::Done)
    }

    fn mitigation_bytes(&self, machine: &Machine) -> Bytes {
        machine.pool_bytes()
    }

    fn move_to_local(&self, machine: &Machine, _: &Process, _: Duration) -> Result<Moved, Error> {
        Err(Error::Move { guest: machine.name.clone(), why: "no guest of this test is mispredicted for long".to_owned() })
    }

    fn blocks(&self, _: &Machine, _: &Process, _: Duration) -> Result<Blocks, Error> {
        Ok(Blocks::none("no guest of this test is mispredicted for long"))
    }

    fn move_blocks(&self, machine: &Machine, _: &Process, _: &[Range<u64>], _: Bytes, _: Duration) -> Result<Bytes, Error> {
        Err(Error::Move { guest: machine.name.clone(), why: "no guest of this test is mispredicted for long".to_owned() })
    }

    fn stop(&self, _: &Machine, _: &Process, _: Duration) -> Result<(), Error> {
        Ok(())
    }
}

impl Capacity for Simulated {
    fn renew(&self) -> Result<Renewal, ManagerError> {
        Ok(Renewal { lease: Duration::from_secs(10), assignments: None, work: Vec::new() })
    }

    fn slice_size(&self) -> Option<Bytes> {
        Some(SLICE)
    }

    fn assign(&self, _: &str, vm: &str, slices: Slices) -> Result<Vec<Slice>, ManagerError> {
        let mut world = self.world();
        // Guests of this test end, and their slices are free again.
        let left = world.free.len().checked_sub(slices.0 as usize).unwrap();
        let slice = |index| Slice { emc: 0, index, generation: 1, path: self.1.join(format!("slice-{index}")), offset: None, bytes: SLICE };
        let given: Vec<Slice> = world.free.split_off(left).into_iter().map(slice).collect();
        world.assigned.insert(vm.to_owned(), given.clone());
        Ok(given)
    }

    fn give_back(&self, _: &str, vm: &str) -> Result<Vec<Work>, ManagerError> {
        let mut world = self.world();
        let given = world.assigned.remove(vm).unwrap_or_default();
        world.free.extend(given.iter().map(|slice| slice.index));
        Ok(Vec::new())
    }

    fn offlined(&self, _: &Slice) -> Result<(), ManagerError> {
        Ok(())
    }

    fn offline_failed(&self, _: &Slice, _: &str) -> Result<(), ManagerError> {
        Ok(())
    }
}
