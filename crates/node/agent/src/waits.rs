//! What a job loses to far memory: time that its tasks waited, by the kernel's delay accounting and the agent's own measurements.
//!
//! The parts, none of which contains another:
//! - swap-in: the kernel's count of the time in which swapped-out pages were read: decompression, and synchronous devices.
//! - devices: the kernel's count of waits for block devices, as far as they were for memory that had left DRAM, and of the waits for a
//!   processor that follow: a task that waited for a device queues for a processor afterwards, which a page in DRAM would not cost.
//! - faults: the rest of the page faults around these reads, by their duration on pages of the agent.
//! - reclaim: memory that the job's tasks had to reclaim themselves.
//! - slow memory: estimated accesses times the latency of the slow node.
//!
//! Pressure files miss most of it: a wait for zswap counts there only if the page belonged to the working set.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel::cgroup::Cgroup;
use kernel::perf::instructions::Counts as Counted;
use kernel::taskstats::{Delays, TaskStats};
use kernel::{Result, Roots};
use serde::Serialize;
use units::Bytes;

use crate::durations::{Quantiles, RecentDurations};
use crate::tiers::Fault;

/// The kernel's delay accounting, opened when it is on.
#[derive(Debug, Default)]
pub struct Accounting(Option<TaskStats>);

impl Accounting {
    /// Opens it, if it is on now: it may be turned on while the agent runs.
    pub fn open(&mut self, roots: &Roots) {
        if self.0.is_none() {
            self.0 = TaskStats::open(roots).ok();
        }
    }

    /// The open handle; `None` while delay accounting is off.
    pub fn get(&mut self) -> Option<&mut TaskStats> {
        self.0.as_mut()
    }
}

/// What the agent measured on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latencies {
    /// A page fault on swapped-out memory.
    pub fault: Fault,
    /// Accesses per second to the job's memory in a slow node.
    pub slow_rate: f64,
    /// Additional latency of such an access, in nanoseconds.
    pub slow_ns: u64,
}

/// What a job lost, in seconds of its tasks, since the agent first observed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lost {
    /// In reads of swapped-out pages.
    pub swap_in_seconds: f64,
    /// In waits for devices, and then for a processor, for memory that had left DRAM.
    pub device_seconds: f64,
    /// In the page faults around these.
    pub fault_seconds: f64,
    /// In reclaim by its own tasks.
    pub reclaim_seconds: f64,
    /// In accesses to a slow node.
    pub slow_seconds: f64,
}

impl Lost {
    /// All of it.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.swap_in_seconds + self.device_seconds + self.fault_seconds + self.reclaim_seconds + self.slow_seconds
    }

    /// What used the job's CPU time: the rest is waiting.
    fn on_cpu(&self) -> f64 {
        self.seconds() - self.device_seconds
    }

    fn add(&mut self, more: &Self) {
        self.swap_in_seconds += more.swap_in_seconds;
        self.device_seconds += more.device_seconds;
        self.fault_seconds += more.fault_seconds;
        self.reclaim_seconds += more.reclaim_seconds;
        self.slow_seconds += more.slow_seconds;
    }
}

/// A job's waits as status reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WaitsView {
    /// Whether the kernel's delay accounting was read; if not, `lost` has the parts that need none.
    pub measured: bool,
    /// What the job lost since the agent first observed it.
    pub lost: Lost,
    /// The sum of `lost`.
    pub lost_seconds: f64,
    /// Time lost in the last period, as a share of the CPU time that the job used for its own work; `None` before the first, and
    /// without CPU accounting.
    pub slowdown_ratio: Option<f64>,
    /// Mean wait per read of swapped-out pages, in microseconds, without waits for devices; `None` before the first.
    pub swap_in_mean_us: Option<f64>,
    /// How these waits are distributed over the last one to two hours: the mean of each process in each control period, weighted by
    /// its reads. Single waits vary more. `None` without any.
    pub swap_in_means: Option<Quantiles>,
    /// A longest single read of a task, in microseconds, since the task started: there may be longer ones, as the kernel reports that
    /// of one task of each process. `None` where it reports none (before Linux 6.14).
    pub swap_in_max_us: Option<f64>,
    /// CPU time of the agent in the steps that moved memory of the job out: the choice of the pages, and what the kernel does in
    /// the context of the request (unmapping, compression, submission of writes). The agent pays it, in its own cgroup; the
    /// job pays for decompression, in `lost.swap_in_seconds`.
    pub offload_cpu_seconds: f64,
    /// Of these waits, those for pages that belonged to the working set when they left DRAM.
    pub thrashing_seconds: f64,
    /// Page faults that had to read a page.
    pub major_faults: u64,
    /// Pages that returned soon after the kernel or the agent had evicted them, file and swap-backed.
    pub refaults: u64,
    /// CPU time of the job's tasks.
    pub cpu_seconds: f64,
    /// Instructions per cycle in the last period; `None` unless they are counted (`agent.count_instructions`).
    pub instructions_per_cycle: Option<f64>,
}

/// The kernel's counters of a cgroup at one reading.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    major_faults: u64,
    refaults_file: u64,
    refaults: u64,
    cpu_us: Option<u64>,
    /// Whether it has swapped-out pages that are not compressed in DRAM.
    on_device: bool,
}

/// A job's waits.
#[derive(Debug, Default)]
pub struct Waits {
    processes: BTreeMap<i32, Delays>,
    last: Option<(Duration, Counts)>,
    delays: Delays,
    swap_ins: RecentDurations,
    measured: MeasuredLoss,
    view: WaitsView,
}

/// What a job lost in the periods in which delay accounting was read, and its own work in these, so that their ratio is a slowdown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeasuredLoss {
    /// Time lost to far memory.
    pub lost: Duration,
    /// CPU time of the job's own work.
    pub own_work: Duration,
}

impl Waits {
    /// Charges CPU time that the agent used to move memory of the job out.
    pub fn charge_offload(&mut self, cpu: Duration) {
        self.view.offload_cpu_seconds += cpu.as_secs_f64();
    }

    /// The figures as of the last reading.
    #[must_use]
    pub fn view(&self) -> WaitsView {
        self.view
    }

    /// Takes in what the processors counted in a period; `None` if the job is not counted.
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    pub fn count_instructions(&mut self, counts: Option<Counted>) {
        let counts = counts.filter(|counts| counts.cycles > 0);
        self.view.instructions_per_cycle = counts.map(|counts| counts.instructions as f64 / counts.cycles as f64);
    }

    /// What was lost in the periods that were measured, since the agent first observed the job.
    #[must_use]
    pub fn measured(&self) -> MeasuredLoss {
        self.measured
    }

    /// Reads what the job's processes waited for since the last reading, where the kernel accounts it. What a process waits for before its first reading and after
    /// its last one is not counted.
    ///
    /// # Errors
    /// Any error of the cgroup's files, including `Gone`.
    pub fn read(
        &mut self,
        cgroup: &Cgroup,
        processes: Option<(Vec<i32>, &mut TaskStats)>,
        now: Duration,
        latencies: Latencies,
    ) -> Result<()> {
        let counts = Counts::read(cgroup)?;
        self.swap_ins.age(now);
        let delays = processes.and_then(|(pids, accounting)| self.delays_of(&pids, accounting));
        self.view.measured = delays.is_some();
        let delays = delays.unwrap_or_default();
        if let Some((then, before)) = self.last.replace((now, counts)) {
            self.close(now.saturating_sub(then), (before, counts), delays, latencies);
        }
        Ok(())
    }

    /// What these processes waited for since their last reading; `None` if the kernel does not permit to read it.
    fn delays_of(&mut self, pids: &[i32], accounting: &mut TaskStats) -> Option<Delays> {
        let mut sum = Delays::default();
        let mut read = BTreeMap::new();
        for &pid in pids {
            match accounting.delays(pid) {
                Ok(now) => {
                    if let Some(before) = self.processes.get(&pid) {
                        let waited = now - *before;
                        if let Some(mean_ns) = waited.swap_in.total_ns.checked_div(waited.swap_in.count) {
                            self.swap_ins.add(Duration::from_nanos(mean_ns), waited.swap_in.count);
                        }
                        sum += waited;
                    }
                    read.insert(pid, now);
                }
                Err(error) if error.is_gone() => {}
                Err(_) => return None,
            }
        }
        self.processes = read;
        Some(sum)
    }

    /// Ends a period.
    fn close(&mut self, elapsed: Duration, (before, now): (Counts, Counts), delays: Delays, latencies: Latencies) {
        self.delays += delays;
        let major_faults = now.major_faults.saturating_sub(before.major_faults);
        let refaults_file = now.refaults_file.saturating_sub(before.refaults_file);
        let returned = refaults_file.saturating_add(if before.on_device || now.on_device { major_faults } else { 0 });
        let lost = lost(&delays, returned, elapsed, latencies);
        let view = &mut self.view;
        view.lost.add(&lost);
        view.lost_seconds = view.lost.seconds();
        view.major_faults += major_faults;
        view.refaults += now.refaults.saturating_sub(before.refaults);
        view.thrashing_seconds = seconds(self.delays.thrashing.total_ns);
        view.swap_in_means = self.swap_ins.quantiles();
        let max_ns = self.delays.swap_in_max_ns;
        view.swap_in_max_us = (max_ns > 0).then(|| seconds(max_ns) * 1e6);
        view.swap_in_mean_us = (self.delays.swap_in.count > 0).then(|| mean_us(&self.delays));
        let used_us = now.cpu_us.zip(before.cpu_us).map(|(now, before)| now.saturating_sub(before));
        let used = Duration::from_micros(used_us.unwrap_or(0)).as_secs_f64();
        view.cpu_seconds += used;
        let work = used - lost.on_cpu();
        let has_worked = used_us.is_some() && work > 0.0;
        view.slowdown_ratio = has_worked.then(|| lost.seconds() / work);
        if has_worked && view.measured {
            self.measured.lost += Duration::try_from_secs_f64(lost.seconds()).unwrap_or_default();
            self.measured.own_work += Duration::try_from_secs_f64(work).unwrap_or_default();
        }
    }
}

impl Counts {
    fn read(cgroup: &Cgroup) -> Result<Self> {
        let stat = cgroup.stat()?;
        let swapped = cgroup.swap_current()?.unwrap_or_default();
        let elsewhere = swapped - stat.zswapped.unwrap_or_default() - stat.swapcached.unwrap_or_default();
        let refaults_file = stat.workingset_refault_file.unwrap_or(0);
        Ok(Self {
            major_faults: stat.pgmajfault.unwrap_or(0),
            refaults_file,
            refaults: refaults_file.saturating_add(stat.workingset_refault_anon.unwrap_or(0)),
            cpu_us: cgroup.cpu_usage_us()?,
            on_device: elsewhere > Bytes::ZERO,
        })
    }
}

/// What was lost in a period in which the tasks had these delays, and `returned` pages came from devices after they had left DRAM.
#[expect(clippy::cast_precision_loss, reason = "estimates; counts of a period are far below 2^52")]
fn lost(delays: &Delays, returned: u64, elapsed: Duration, latencies: Latencies) -> Lost {
    // The kernel counts waits for a job's own files in the same number. Of these, as many are for far memory as pages returned.
    let io = delays.block_io;
    let far_io = if io.count == 0 { 0.0 } else { (returned as f64 / io.count as f64).min(1.0) };
    let mean_ns = delays.swap_in.total_ns.checked_div(delays.swap_in.count).unwrap_or(0);
    let beside = latencies.fault.beside_reads_of(Duration::from_nanos(mean_ns));
    Lost {
        swap_in_seconds: seconds(delays.swap_in.total_ns),
        device_seconds: delays.for_devices().as_secs_f64() * far_io,
        fault_seconds: delays.swap_in.count as f64 * beside.as_secs_f64(),
        reclaim_seconds: seconds(delays.reclaim.total_ns),
        slow_seconds: latencies.slow_rate * latencies.slow_ns as f64 / 1e9 * elapsed.as_secs_f64(),
    }
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn mean_us(delays: &Delays) -> f64 {
    delays.swap_in.total_ns as f64 / delays.swap_in.count as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use kernel::taskstats::Delay;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn delay(count: u64, total_ms: u64) -> Delay {
        Delay { count, total_ns: total_ms * 1_000_000 }
    }

    #[test]
    fn the_parts_of_a_loss_are_apart() {
        let delays = Delays {
            swap_in: delay(1000, 40),
            block_io: delay(10, 50),
            run_queue: delay(200, 60),
            reclaim: delay(1, 7),
            thrashing: delay(9, 30),
            swap_in_max_ns: 0,
        };
        let latencies =
            Latencies { fault: Fault { beside: Duration::from_micros(2), ..Fault::default() }, slow_rate: 1000.0, slow_ns: 3_000 };
        let check = |returned, device_ms: f64| {
            let found = lost(&delays, returned, 2 * SECOND, latencies);
            let near = |found: f64, ms: f64| assert!((found * 1e3 - ms).abs() < 1e-6, "{found} s, not {ms} ms");
            near(found.swap_in_seconds, 40.0);
            near(found.device_seconds, device_ms);
            near(found.fault_seconds, 2.0);
            near(found.reclaim_seconds, 7.0);
            near(found.slow_seconds, 6.0);
            near(found.seconds(), 55.0 + device_ms);
        };
        // The job's own I/O is no loss; read-ahead makes more pages return than there were waits. Each of the ten waits is followed by
        // 0.3 ms for a processor.
        check(0, 0.0);
        check(5, 26.5);
        check(80, 53.0);
    }

    #[test]
    fn slowdown_is_relative_to_the_jobs_own_work() {
        let mut waits = Waits::default();
        let counts = |cpu_us| Counts { cpu_us, major_faults: 4, on_device: true, ..Counts::default() };
        let delays = Delays { swap_in: delay(100, 100), block_io: delay(4, 50), ..Delays::default() };
        // 100 ms of the 600 ms of CPU time were spent on decompression.
        waits.close(SECOND, (Counts::default(), counts(Some(600_000))), delays, Latencies::default());
        assert_eq!(waits.view().slowdown_ratio, None, "the first reading had no CPU time");
        let before = Counts { cpu_us: Some(0), ..Counts::default() };
        waits.close(SECOND, (before, counts(Some(600_000))), delays, Latencies::default());
        let found = waits.view().slowdown_ratio.unwrap();
        assert!((found - 0.3).abs() < 1e-9, "{found}");
        assert!((waits.view().lost_seconds - 0.3).abs() < 1e-9 && waits.view().major_faults == 8);
        assert_eq!(waits.view().swap_in_mean_us, Some(1000.0));
        assert_eq!(waits.measured(), MeasuredLoss::default(), "delay accounting was not read");
        waits.view.measured = true;
        waits.close(SECOND, (before, counts(Some(600_000))), delays, Latencies::default());
        let ms = Duration::from_millis;
        assert_eq!(waits.measured(), MeasuredLoss { lost: ms(150), own_work: ms(500) });
        waits.close(SECOND, (before, counts(Some(50_000))), delays, Latencies::default());
        assert_eq!(waits.view().slowdown_ratio, None, "no work of its own is known");
    }

    #[test]
    fn instructions_per_cycle_are_those_of_the_last_period() {
        let mut waits = Waits::default();
        for (counts, expected) in [(Some((300, 200)), Some(1.5)), (Some((0, 0)), None), (Some((1, 4)), Some(0.25)), (None, None)] {
            waits.count_instructions(counts.map(|(instructions, cycles)| Counted { instructions, cycles }));
            assert_eq!(waits.view().instructions_per_cycle, expected);
        }
    }

    #[test]
    fn without_accounting_only_its_own_parts_are_counted() {
        let machine = crate::testing::Machine::new();
        let cgroup = machine.cgroup("/a");
        let mut waits = Waits::default();
        let latencies = Latencies { slow_rate: 100.0, slow_ns: 1_000_000, ..Latencies::default() };
        for at in 1..=3 {
            waits.read(&cgroup, None, at * SECOND, latencies).unwrap();
        }
        let view = waits.view();
        assert!(!view.measured && (view.lost_seconds - 0.2).abs() < 1e-9, "{view:?}");
        assert_eq!((view.swap_in_mean_us, view.lost.swap_in_seconds), (None, 0.0));
    }
}
