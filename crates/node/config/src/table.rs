//! The tables of the agent's configuration file: every knob of the node agent.
//!
//! A knob is declared here and nowhere else. `params.rs` converts it to what a controller takes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use settings::Unit;
use units::{Bytes, RatioPpm};

use crate::choice::{Actuator, AtLimit, Policy, Tier, Tracker};

settings::tables! {
    /// The node agent: its trackers, its actuators and its own limits.
    pub struct Agent = "agent", Always {
        scan_period: Duration = Unit::Duration, "120s" in "100ms" ..= "1h",
            "How often the accessed state of every page is read and its age advanced. Ages are counted in scan periods (SDFM section 5.1).";
        control_period: Duration = Unit::Duration, "60s" in "100ms" ..= "1h",
            "How often the cold-age threshold of each job is decided (SDFM section 4.3).";
        policy: Policy = Unit::Choice(Policy::NAMES), "cold_age",
            "The policy of jobs whose rule names none. `cold_age` offloads pages by their age and limits the promotion rate. `pressure` reclaims while PSI stalls stay below their target. `auto` offloads anonymous memory by age and page cache by its refaults, limited by the stall target and confirmed by measured stalls. `background` compacts jobs that are in the background. `slowdown` places rarely accessed memory in slow memory by its access rate.";
        tier: Tier = Unit::Choice(Tier::NAMES), "auto",
            "Where swap-backed memory goes, for jobs whose rule names no tier. `auto` decides by the compression ratio of the job's cold pages. `zswap` compresses in DRAM: in zswap, or in zram if the machine swaps to it and zswap is off. `swap` uses the swap areas, past zswap; which of several, the kernel decides by priority. `both` compresses, and writes back to a swap device.";
        tracker: Tracker = Unit::Choice(Tracker::NAMES), "auto",
            "What tracks accesses. `auto` uses the most exact tracker that the kernel offers for the job within `agent.cpu_budget`, and samples where the ages of all page frames would take more than 64 MiB (a machine of more than 128 GiB).";
        actuator: Actuator = Unit::Choice(Actuator::NAMES), "auto",
            "What moves cold pages out: `exact` moves the pages that reached the threshold; `lru_gen` and `memory_reclaim` move the pages that are oldest in the kernel's own lists. `auto` uses the most exact one available.";
        offload_rate: Bytes = Unit::BytesPerSecond, "64MiB/s" in "1MiB/s" ..= "64GiB/s",
            "The upper bound of the rate at which memory is offloaded, over all jobs of the machine.";
        cpu_budget: RatioPpm = Unit::Ratio, "10%" in "0.1%" ..= "100%",
            "CPU time that the agent may use, as a share of one core. A tracker that exceeds it samples fewer pages; one that cannot is not used.";
        protect_working_set: bool = Unit::Bool, "true",
            "Whether `memory.low` of each job that is acted on is set to what it uses, and that of the cgroups above it to what their children claim, so that the kernel reclaims cold pages first when the machine is short of memory. Restored on exit (SDFM section 5.1).";
        hard_protection: bool = Unit::Bool, "true",
            "Whether `memory.min` is set as well, while the kernel reclaims in spite of `memory.low`, which MGLRU does where a machine stays short of memory, and what it takes returns faster than 0.2 % of the protected memory a second. Only as far as the kernel can free as much elsewhere: from other cgroups, with room in swap. Not in a slice that has a limit, nor while programs grow, nor for an hour after a process was killed for lack of memory. Restored when the kernel rests, and on exit.";
        at_limit: AtLimit = Unit::Choice(AtLimit::NAMES), "auto",
            "What happens to a job at its memory limit, its own or an ancestor's: `offload` offloads it as any other job, which frees memory below the limit (TMO section 4.2); `stop` stops offloading; `auto` stops for class `conservative` and offloads others. `fail_fast` stops, and closes swap to the job at all times, except for the agent's requests: the kernel swaps nothing of it by itself, and the job is killed at its limit instead of thrashing (SDFM section 5.1). Page cache, which can be reclaimed, fills no limit. Where allocations fail, nothing is offloaded.";
        state_dir: PathBuf = Unit::Path, "/var/lib/thermocline",
            "The directory of the journal and of the records that a restart needs.";
        runtime_dir: PathBuf = Unit::Path, "/run/thermocline",
            "The directory of the control socket, the lock and the undo list.";
        metrics_listen: Option<SocketAddr> = Unit::Address, "127.0.0.1:9180",
            "The address on which metrics are served: a loopback address and a port, or `off`.";
        network: Option<PathBuf> = Unit::PathOrOff, "off",
            "The socket of `thermocline network`, which then has the agent's connections: it serves the metrics, and reaches stores of traces and bundles on the network. `off`: the agent has them itself.";
        journal_size: Bytes = Unit::Bytes, "64MiB" in "1MiB" ..= "1TiB",
            "The size at which a file of the journal is closed and the next one started.";
        journal_files: u32 = Unit::Count, "4" in "1" ..= "100",
            "How many files of the journal are kept; the oldest is deleted first.";
        jobs_max: u32 = Unit::Count, "1000" in "1" ..= "10000",
            "The maximum number of jobs. Further cgroups become jobs when others end.";
        count_instructions: u32 = Unit::Count, "0" in "0" ..= "16",
            "How many jobs, the largest, have their instructions per cycle counted by counters of the processors, with more work at each context switch. Each takes two descriptors per processor: 16 jobs on 1,024 processors take half of what the unit permits. 0 counts none.";
        trial_keep: Duration = Unit::Duration, "7d" in "0s" ..= "90d",
            "How long the result of a trial that was kept (`thermocline trial --keep`) limits what is offloaded from its job. 0s ignores such results.";
        sample_points: u32 = Unit::Count, "16384" in "256" ..= "1000000",
            "The maximum number of pages that trackers `sampled` and `sampled_frames` watch at once on the machine; the latter watches 24 to 48 of each job if that is more. More pages make ages and promotion rates more exact; each costs about a microsecond of CPU time per scan.";
        split_idle: bool = Unit::Bool, "true",
            "Whether tracker `sampled` splits the huge pages of its sample once they have been idle for two scans, for jobs of policy `cold_age` or `auto`. If false, one access to a huge page counts as one to each of its 512 pages, and little or nothing is offloaded from jobs whose cold memory is in huge pages and sometimes accessed.";
        split_busy: bool = Unit::Bool, "true",
            "Whether tracker `sampled` splits huge pages that are in use while most of what they hold is idle, for jobs of policy `auto` whose class is not `conservative`. Up to 16 huge pages of each process are split as a test; if three quarters of their parts are idle for as long as the job's threshold, all are, up to 128 in a scan, and if not, the tested ones are collapsed again. If false, a cache whose objects are spread over huge pages keeps all of its memory. What loses huge pages has more misses of the TLB: accesses that wait for each other, to random places of a quarter of 256 MiB, take 11 % longer (`make bench`).";
        manage_damon_stat: bool = Unit::Bool, "false",
            "Whether `damon_stat`, which Debian enables on Linux 7.2, is switched off while the agent runs, so that tracker `sampled` can use DAMON. Restored on exit. If false, `auto` uses `lru_gen` while `damon_stat` runs.";
        damon_regions_max: u32 = Unit::Count, "4096" in "10" ..= "100000",
            "The maximum number of regions that DAMON splits one process into. More regions are more exact and use more CPU time.";
        damon_processes_max: u32 = Unit::Count, "64" in "1" ..= "4096",
            "The maximum number of processes that DAMON monitors at once. Each has its own kernel thread.";
    }

    /// The cold-age controller (SDFM section 4.3): the age at which a page may leave DRAM.
    pub struct ColdAge = "cold_age", Always {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "0.2%" in "0%" ..= "100%", search "0.02%" ..= "2%" Log,
            "P: the objective for promotions from far memory per minute, as a share of the job's working set (SDFM section 4.2).";
        percentile: RatioPpm = Unit::Percentile, "99%" in "50%" ..= "100%", search "50%" ..= "99.99%" Tail,
            "K: the threshold is at least this percentile of the best thresholds of past control periods. A higher percentile promotes less and saves less.";
        warmup: Duration = Unit::Duration, "600s" in "0s" ..= "24h", search "1m" ..= "4h" Log,
            "S: nothing of a job is offloaded for this long after its first scan, because its history is too short.";
        half_life: Duration = Unit::Duration, "0s" in "0s" ..= "90d", search "6h" ..= "60d" Log,
            "The half-life of the weight of a past control period's best threshold. 0s gives all control periods the same weight.";
        spikes: bool = Unit::Bool, "true", search "false" ..= "true" Linear,
            "Whether a control period whose best threshold exceeds the percentile raises the threshold at once. If false, only the percentile counts.";
        bound: bool = Unit::Bool, "true",
            "Whether the threshold is an upper bound while a job's history is short: no threshold is used that was not measured, and each leaves a margin that shrinks as its history grows. It keeps the objective from the first period on, and offloads later: a job of little memory, of which tracker `sampled` has few pages, after some tens of scans. If false, the rule of SDFM section 4.3, which exceeds the objective in many of a job's first control periods.";
        partial: bool = Unit::Bool, "true",
            "Whether a part of the cold pages is offloaded where all of them would be promoted more often than the objective permits, as pages that are accessed at random are: of pages with three times as many promotions, a third. Needs `bound`. If false, nothing of such a job is offloaded, as in SDFM.";
        mean: bool = Unit::Bool, "true",
            "Whether policy `auto` keeps the stall target in the mean of the last scans, as the target is defined. What returned beyond it holds offloading back until quieter scans have made up for it. If false, `percentile` of the scans keep it, each by itself, which leaves memory resident that returns in bursts. Policy `cold_age` has no stall target.";
        page_cache: bool = Unit::Bool, "true",
            "Whether page cache is reclaimed as well, while its refaults and the promotions together stay within the objective; a refault counts by its latency. For jobs of policies `cold_age` and `auto`, where the objective is the stall target; needs `memory.reclaim` with a swappiness (Linux 6.9), or a machine without swap. If false, `cold_age` leaves page cache to the kernel, and `auto` reclaims it as policy `pressure` does.";
        thresholds: u32 = Unit::Count, "32" in "2" ..= "64",
            "The number of candidate thresholds, spaced by about equal factors from 1 to 255 scan periods (SDFM section 4.4).";
    }

    /// The pressure controller (TMO section 3.3). In each period it reclaims `ratio` of the job's memory, reduced in
    /// proportion as the stall approaches its target, and nothing at or above the target.
    pub struct Pressure = "pressure", Always {
        period: Duration = Unit::Duration, "6s" in "100ms" ..= "10m", search "1s" ..= "1m" Log,
            "The control period. It must be long enough for pages that were reclaimed to be refaulted within it.";
        ratio: RatioPpm = Unit::Ratio, "0.05%" in "0%" ..= "10%", search "0.005%" ..= "1%" Log,
            "The share of a job's memory that is reclaimed in a period without stalls.";
        stall_target: RatioPpm = Unit::Ratio, "0.1%" in "0%" ..= "50%", search "0.01%" ..= "2%" Log,
            "The share of time in which some task of the job may stall on memory (PSI `some`). 0% reclaims nothing.";
        io_stall_target: RatioPpm = Unit::Ratio, "0.1%" in "0%" ..= "100%", search "0.01%" ..= "5%" Log,
            "The same for I/O. A job that stalls on its own I/O most of the time needs a higher target to be offloaded at all.";
        step_max: RatioPpm = Unit::Ratio, "1%" in "0.01%" ..= "10%", search "0.1%" ..= "10%" Log,
            "The upper bound of what is reclaimed in one period, as a share of the job's memory.";
        floor: Bytes = Unit::Bytes, "4MiB" in "0B" ..= "1TiB",
            "No job is reclaimed below this size, nor below its `memory.low` and `memory.min` as set by the operator.";
        warmup: Duration = Unit::Duration, "60s" in "0s" ..= "24h",
            "Nothing is reclaimed for this long after the first scan of a job.";
    }

    /// Jobs in the background (LPC talk): each is compacted once, while the machine is not short of memory.
    pub struct Background = "background", Always {
        settle: Duration = Unit::Duration, "10s" in "0s" ..= "24h",
            "How long a job has to be in the background before it is compacted.";
        idle: Duration = Unit::Duration, "0s" in "0s" ..= "24h",
            "A job that used no CPU time for this long counts as in the background. 0s: only a hint or a frozen cgroup puts it there.";
        pressure_max: RatioPpm = Unit::Ratio, "1%" in "0%" ..= "100%",
            "Nothing is compacted while memory pressure of the machine (PSI `some`, average of 10 s) is at or above this share.";
        available_min: RatioPpm = Unit::Ratio, "5%" in "0%" ..= "90%",
            "Nothing is compacted while less than this share of the machine's memory is available.";
        prefetch: bool = Unit::Bool, "false",
            "Whether a job's memory is swapped in when the job returns to the foreground, before it is accessed.";
    }

    /// The choice of a tier for the swap-backed memory of jobs whose tier is `auto`.
    pub struct Tiers = "tier", Always {
        compressed_max: RatioPpm = Unit::Ratio, "50%" in "1%" ..= "100%", search "20%" ..= "90%" Linear,
            "A job whose sampled cold pages compress to more than this share of their size uses the swap device instead of zswap or zram.";
        latency_max: Duration = Unit::Duration, "5ms" in "1us" ..= "10s", search "100us" ..= "50ms" Log,
            "A swap device with a higher average read latency is not used.";
        by_saving: bool = Unit::Bool, "false",
            "Whether a job under `auto` whose cold pages compress uses the swap device all the same where its stall target permits to save more there, within `swap.write_budget`. What was never accessed since it went out then waits for the device if it is.";
        swap_cost: RatioPpm = Unit::Ratio, "3%" in "0%" ..= "100%",
            "The cost of a byte on the swap device, as a share of the cost of a byte of DRAM (TMO section 2.1).";
    }

    /// Endurance of swap devices: how much may be written to them.
    pub struct Swap = "swap", Always {
        write_budget: Bytes = Unit::Bytes, "50GiB" in "0B" ..= "1PiB",
            "Bytes per day that may be written to swap devices, over all jobs of the machine: the rated endurance of the device divided by its planned lifetime in days. 0B permits no writes.";
        burst: Bytes = Unit::Bytes, "1GiB" in "1MiB" ..= "1TiB",
            "The part of the budget that may accumulate and be written at once.";
        job_share: RatioPpm = Unit::Ratio, "50%" in "1%" ..= "100%",
            "The share of the budget that one job may use.";
    }

    /// Memory that stays unaccessed in zswap goes on to the swap device, where it occupies no DRAM: of jobs under `auto` of the classes
    /// `standard` and `aggressive`, of which blocks of 64 KiB that are nearly all swapped out are watched, 1 GiB of a job at most.
    pub struct Writeback = "writeback", Always {
        enabled: bool = Unit::Bool, "true",
            "Whether that is done. Pages are read from zswap into DRAM for a moment and paged out past it, within `swap.write_budget` and half of the job's stall target. Not done while a swap area is in memory, and where the operator has set `memory.zswap.max` or `memory.zswap.writeback` of the job. What returns from the device waits longer.";
        after_min: Duration = Unit::Duration, "30m" in "1s" ..= "30d", search "5m" ..= "24h" Log,
            "Memory that has been far for less stays in zswap. The second threshold is above it where the device is slower, or the memory compresses better.";
        period_max: Bytes = Unit::Bytes, "64MiB" in "1MiB" ..= "16GiB",
            "The most that is written in a control period, of one job.";
    }

    /// Slow memory that is accessed by loads and stores: a NUMA node such as CXL memory (Thermostat). Under policy `slowdown`
    /// it holds memory that is accessed so rarely that the job's slowdown stays within its limit.
    pub struct Slow = "slow", Always {
        slowdown: RatioPpm = Unit::Ratio, "3%" in "0%" ..= "50%", search "0.5%" ..= "20%" Log,
            "The upper bound of a job's slowdown by accesses to slow memory. 0% moves all memory back to the fast node (Thermostat section 3.4). Under policies `cold_age` and `auto`, the slowdown that a trial of the job may show: beyond it, a trial that is kept limits promotions (`thermocline trial --keep`).";
        latency: Duration = Unit::Duration, "0s" in "0s" ..= "1ms",
            "The latency of one access to slow memory; 0s uses the value that the firmware reports for the node (HMAT).";
        measure_latency: bool = Unit::Bool, "false",
            "Whether the latency of the slow node is measured in each period, by up to 128 loads within 0.2 ms, because it rises where the node's bandwidth is used. Where it is above `latency`, or above the firmware's value, it takes the place of that, and less is placed; it never counts below. The fast node is measured as well, and reported only. x86-64 only; where processors are emulated, the figures mean nothing. Not tested on CXL memory.";
        node: String = Unit::Word, "auto",
            "The number of the NUMA node that is slow memory; `auto` uses the node without CPUs that is farthest from those with CPUs.";
        period: Duration = Unit::Duration, "30s" in "1s" ..= "1h", search "5s" ..= "5m" Log,
            "How often a sample of a job's memory is measured and placed (Thermostat section 5).";
        samples: u32 = Unit::Count, "30" in "9" ..= "600",
            "How often the accessed bit of a sampled page is read in a period: a third each for whole huge pages, for which of their parts are accessed, and for the access rates of those parts. Huge pages that most reads of the first third find accessed are read as often again at an eighth of the interval.";
        sample: RatioPpm = Unit::Ratio, "5%" in "0.1%" ..= "100%", search "1%" ..= "50%" Log,
            "The share of a job's memory that is sampled in a period.";
        parts: u32 = Unit::Count, "50" in "5" ..= "512",
            "The number of accessed parts of a huge page whose access rates are measured (Thermostat section 3.2).";
        split: bool = Unit::Bool, "true",
            "Whether sampled huge pages are split, for one or two thirds of a period, if their access rate is too high to be measured as a whole, and a few slow ones, for a period, to find out what a set accessed bit stands for. If false, the former stay in fast memory, and bursts of accesses are not seen.";
        access_sampling: bool = Unit::Bool, "false",
            "Whether access rates come from hardware sampling of memory accesses (PEBS, IBS) instead of accessed bits. Not tested on such a processor.";
        move_rate: Bytes = Unit::BytesPerSecond, "30MiB/s" in "1MiB/s" ..= "16GiB/s",
            "The upper bound of the rate at which memory is moved between the nodes, averaged over a period, over all jobs. Memory that is too hot for the slow node counts, but is moved back whatever the bound.";
        manage: bool = Unit::Bool, "false",
            "Whether `kernel.numa_balancing` is switched off while the agent runs, because it moves pages by its own rules, and khugepaged slowed down while slow huge pages are split, where it collapses them meanwhile. Restored on exit. If false, nothing is placed in slow memory while the former is on, and bursts of accesses are often not seen on kernels like 7.2.";
    }

    /// Parameters of class `conservative` that differ from `cold_age`, `pressure`, `tier` and `slow`: for jobs that are most
    /// sensitive to latency.
    pub struct Conservative = "class.conservative", Always {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "0.05%" in "0%" ..= "100%", search "0.005%" ..= "0.5%" Log,
            "`cold_age.promotion_rate` for jobs of class `conservative`.";
        percentile: RatioPpm = Unit::Percentile, "99.5%" in "50%" ..= "100%", search "50%" ..= "99.99%" Tail,
            "`cold_age.percentile` for jobs of class `conservative`.";
        warmup: Duration = Unit::Duration, "30m" in "0s" ..= "24h", search "1m" ..= "4h" Log,
            "`cold_age.warmup` for jobs of class `conservative`.";
        stall_target: RatioPpm = Unit::Ratio, "0.05%" in "0%" ..= "50%", search "0.005%" ..= "1%" Log,
            "`pressure.stall_target` for jobs of class `conservative`.";
        io_stall_target: RatioPpm = Unit::Ratio, "0.05%" in "0%" ..= "100%", search "0.005%" ..= "2%" Log,
            "`pressure.io_stall_target` for jobs of class `conservative`.";
        latency_max: Duration = Unit::Duration, "1ms" in "1us" ..= "10s", search "100us" ..= "10ms" Log,
            "`tier.latency_max` for jobs of class `conservative`.";
        slowdown: RatioPpm = Unit::Ratio, "1%" in "0%" ..= "50%", search "0.1%" ..= "5%" Log,
            "`slow.slowdown` for jobs of class `conservative`.";
    }

    /// Parameters of class `aggressive` that differ from `cold_age`, `pressure`, `tier` and `slow`: for sidecars and other
    /// memory tax.
    pub struct Aggressive = "class.aggressive", Always {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "1%" in "0%" ..= "100%", search "0.1%" ..= "10%" Log,
            "`cold_age.promotion_rate` for jobs of class `aggressive`.";
        percentile: RatioPpm = Unit::Percentile, "95%" in "50%" ..= "100%", search "50%" ..= "99.99%" Tail,
            "`cold_age.percentile` for jobs of class `aggressive`.";
        warmup: Duration = Unit::Duration, "300s" in "0s" ..= "24h", search "1m" ..= "4h" Log,
            "`cold_age.warmup` for jobs of class `aggressive`.";
        stall_target: RatioPpm = Unit::Ratio, "0.5%" in "0%" ..= "50%", search "0.05%" ..= "10%" Log,
            "`pressure.stall_target` for jobs of class `aggressive`.";
        io_stall_target: RatioPpm = Unit::Ratio, "0.5%" in "0%" ..= "100%", search "0.05%" ..= "20%" Log,
            "`pressure.io_stall_target` for jobs of class `aggressive`.";
        latency_max: Duration = Unit::Duration, "20ms" in "1us" ..= "10s", search "1ms" ..= "500ms" Log,
            "`tier.latency_max` for jobs of class `aggressive`.";
        slowdown: RatioPpm = Unit::Ratio, "10%" in "0%" ..= "50%", search "1%" ..= "40%" Log,
            "`slow.slowdown` for jobs of class `aggressive`.";
    }

    /// zswap, the compressed pool in DRAM. Its parameters apply to the whole machine.
    pub struct Zswap = "zswap", Always {
        manage: bool = Unit::Bool, "false",
            "Whether zswap is enabled while the agent runs. Restored on exit.";
        compressor: String = Unit::Word, "auto",
            "zswap's compressor while the agent runs. `auto` chooses the one that stores the jobs' cold pages in the least memory, while hardly any other cgroup uses zswap, or `zswap.manage` is true; the original is restored on exit. A name, such as `lz4` or `zstd`, is set if `zswap.manage` is true. Empty keeps the current one.";
        max_pool: RatioPpm = Unit::WholePercent, "0%" in "0%" ..= "50%",
            "The largest pool to set while `zswap.manage` is true, as a share of the machine's memory; 0% keeps the current value.";
        shrinker: bool = Unit::Bool, "false",
            "Whether the zswap shrinker is enabled while `zswap.manage` is true (Linux 6.8): when the kernel reclaims and finds few other pages, it writes the oldest compressed pages to the swap device. If false, this happens when the pool is full.";
    }

    /// Memory that does not compress well enough for zswap.
    pub struct Incompressible = "incompressible", Always {
        ratio: RatioPpm = Unit::Ratio, "73%" in "1%" ..= "100%",
            "A page that compresses to more than this share of its size counts as incompressible (SDFM section 5.1: 2990 of 4096 bytes).";
        share: RatioPpm = Unit::Ratio, "50%" in "1%" ..= "100%",
            "A job is not offloaded to zswap while at least this share of its sampled pages is incompressible.";
        retry: Duration = Unit::Duration, "10m" in "1s" ..= "24h",
            "How long until a job with incompressible memory is sampled again.";
        sample_pages: u32 = Unit::Count, "64" in "1" ..= "4096",
            "How many cold pages of a job are compressed as a sample.";
        each_page: bool = Unit::Bool, "false",
            "Whether the agent compresses each page before it asks for its offload to zswap, and leaves one that exceeds `ratio` where it is until it is accessed (SDFM section 5.1). If false, zswap takes what saves any memory. Only where pages are moved one by one (`agent.actuator`).";
    }

    /// The trace: statistics of each job per entry period, as Parquet files in a directory or an object store, for the
    /// evaluation of whole fleets. See `docs/trace.md`.
    pub struct Trace = "trace", Always {
        store: String = Unit::Store, "",
            "Where trace files are uploaded: a directory, or `s3://bucket/prefix` with credentials in the environment. Empty disables the trace.";
        cluster: String = Unit::Word, "",
            "The name of the machine's cluster, which is a partition of the store.";
        machine: String = Unit::Word, "",
            "The name of the machine in traces, unique in its cluster; empty uses the host name.";
        entry_period: Duration = Unit::Duration, "5m" in "1s" ..= "1h",
            "The time that an entry aggregates. Longer periods take less space and are coarser.";
        file_period: Duration = Unit::Duration, "1h" in "1s" ..= "24h",
            "The time that a file covers before it is uploaded. Until then its entries are on the local disk.";
        spool_size: Bytes = Unit::Bytes, "1GiB" in "1MiB" ..= "1TiB",
            "The maximum size of files that wait in `agent.state_dir` while the store is not reachable; beyond it, the oldest are deleted.";
    }

    /// Rollouts: signed parameter bundles, and which machines follow them. See `docs/rollout.md`.
    pub struct Rollout = "rollout", Always {
        store: String = Unit::Store, "",
            "Where bundles are published: a directory, or `s3://bucket/prefix` with credentials in the environment. Empty follows no rollout.";
        root: PathBuf = Unit::Path, "/etc/thermocline/root.json",
            "The trusted root of the store's signatures, written by `thermocline rollout init`.";
        poll: Duration = Unit::Duration, "5m" in "1s" ..= "24h",
            "The period in which the store is polled, with a random variation of a tenth.";
        promotion_max: RatioPpm = Unit::Ratio, "300%" in "100%" ..= "4000%",
            "The agent returns to the previous parameters if significantly more than 2% of its jobs' control periods have promotion rates above this share of their objectives.";
        stall_periods: u32 = Unit::Count, "10" in "2" ..= "1000",
            "The agent returns to the previous parameters if a job with far memory exceeds the `stall_target` of its class in this many consecutive control periods.";
        starts: u32 = Unit::Count, "3" in "2" ..= "100",
            "The agent returns to the previous parameters after this many starts with a bundle within `starts_within` that did not follow a regular stop.";
        starts_within: Duration = Unit::Duration, "10m" in "10s" ..= "24h",
            "How long starts with a bundle are counted. An agent that runs longer has started successfully.";
    }

    /// The last resort when promotions exhaust the machine's memory (SDFM section 4.2).
    pub struct Guard = "guard", Always {
        enabled: bool = Unit::Bool, "false",
            "Whether jobs are killed through `cgroup.kill`, the lowest class first, when promotions from far memory exhaust the machine's memory. The journal records the reason.";
        available_min: RatioPpm = Unit::Ratio, "2%" in "0.1%" ..= "50%",
            "The guard acts while available memory is below this share of the machine's memory.";
    }
}
