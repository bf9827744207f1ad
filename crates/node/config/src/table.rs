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
    /// The node agent: what it observes with, what it acts with, and what it may use itself.
    pub struct Agent = "agent", Always {
        scan_period: Duration = Unit::Duration, "120s" in "100ms" ..= "1h",
            "How often every page's access is read and its age advanced; the unit in which ages are counted (Lagar-Cavilla et al., section 5.1).";
        control_period: Duration = Unit::Duration, "60s" in "100ms" ..= "1h",
            "How often each job's threshold is decided anew (Lagar-Cavilla et al., section 4.3).";
        policy: Policy = Unit::Choice(Policy::NAMES), "cold_age",
            "What decides how much of a job may leave DRAM, for jobs whose rule does not say: `cold_age` by how often pages come back, `pressure` by how long tasks wait, `auto` by age as far as the wait for what comes back allows, which the measured stalls must confirm; `background` compacts what is not in use; `slowdown` by how often each page is accessed, for slow memory that needs no fault.";
        tier: Tier = Unit::Choice(Tier::NAMES), "auto",
            "Where swap-backed memory goes, for jobs whose rule does not say. `auto` goes by how well the job's own cold pages compress.";
        tracker: Tracker = Unit::Choice(Tracker::NAMES), "auto",
            "What observes accesses. `auto` takes the best that the kernel offers for the job, within `agent.cpu_budget`.";
        actuator: Actuator = Unit::Choice(Actuator::NAMES), "auto",
            "What moves cold pages out: `exact` exactly the pages that reached the threshold, `lru_gen` and `memory_reclaim` what the kernel's own lists hold for old.";
        offload_rate: Bytes = Unit::BytesPerSecond, "64MiB/s" in "1MiB/s" ..= "64GiB/s",
            "How fast memory is moved out, at most, over all jobs of the machine.";
        cpu_budget: RatioPpm = Unit::Ratio, "10%" in "0.1%" ..= "100%",
            "Processor time that the agent may use, as a share of one core. A tracker that would exceed it is not taken.";
        protect_working_set: bool = Unit::Bool, "true",
            "Set each acting job's `memory.low` to its working set, so that a machine short of memory reclaims cold pages first. Undone on exit (Lagar-Cavilla et al., section 5.1).";
        at_limit: AtLimit = Unit::Choice(AtLimit::NAMES), "stop",
            "What happens to a job that has reached its memory limit: `stop` offloads nothing more of it; `fail_fast` also caps its `memory.swap.max` at what it uses, so that it fails rather than thrashes (Lagar-Cavilla et al., section 5.1).";
        state_dir: PathBuf = Unit::Path, "/var/lib/thermocline",
            "Where the journal and what a restart needs are kept.";
        runtime_dir: PathBuf = Unit::Path, "/run/thermocline",
            "Where the control socket, the lock and the record of what is to be undone are kept.";
        metrics_listen: Option<SocketAddr> = Unit::Address, "127.0.0.1:9180",
            "Where metrics are served: a loopback address and a port, or `off`.";
        journal_size: Bytes = Unit::Bytes, "64MiB" in "1MiB" ..= "1TiB",
            "The size at which a file of the journal is closed and the next one begun.";
        journal_files: u32 = Unit::Count, "4" in "1" ..= "100",
            "How many files of the journal are kept; the oldest goes first.";
        jobs_max: u32 = Unit::Count, "1000" in "1" ..= "10000",
            "How many jobs are watched at most. Those that come later wait until one ends.";
        damon_regions_max: u32 = Unit::Count, "4096" in "10" ..= "100000",
            "How many regions DAMON may split one process into: more see finer and cost more.";
        damon_processes_max: u32 = Unit::Count, "64" in "1" ..= "4096",
            "How many processes DAMON watches at once; each has a kernel thread of its own.";
    }

    /// The cold-age controller (Lagar-Cavilla et al., section 4.3): how old a page must be before it may leave DRAM.
    pub struct ColdAge = "cold_age", Always {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "0.2%" in "0%" ..= "100%", search "0.02%" ..= "2%" Log,
            "P: how much of a job's working set may come back from far memory each minute (Lagar-Cavilla et al., section 4.2).";
        percentile: RatioPpm = Unit::Percentile, "99%" in "50%" ..= "100%", search "50%" ..= "99.99%" Tail,
            "K: the threshold taken is at least as high as this share of those that would have been best in the past periods. Higher is safer and saves less.";
        warmup: Duration = Unit::Duration, "600s" in "0s" ..= "24h", search "1m" ..= "4h" Log,
            "S: nothing of a job is offloaded for this long after it was first seen, because too little is known of it.";
        half_life: Duration = Unit::Duration, "0s" in "0s" ..= "90d", search "6h" ..= "60d" Log,
            "After this long a past period's best threshold counts half, after twice as long a quarter, and so on: what a job did long ago is forgotten. 0s forgets nothing.";
        spikes: bool = Unit::Bool, "true", search "false" ..= "true" Linear,
            "Whether a period whose best threshold lies above the percentile raises the threshold at once. Without it, only the percentile counts.";
        thresholds: u32 = Unit::Count, "32" in "2" ..= "64",
            "How many thresholds there are to choose from, each about the same factor above the last, from 1 to 255 scan periods (Lagar-Cavilla et al., section 4.4).";
    }

    /// The pressure controller (Weiner et al., section 3.3): reclaim, each period, `ratio` of the job's memory, less the
    /// closer its stall is to the target, and nothing at or above it.
    pub struct Pressure = "pressure", Always {
        period: Duration = Unit::Duration, "6s" in "100ms" ..= "10m", search "1s" ..= "1m" Log,
            "How often a job is asked for memory: long enough for what was taken to be missed.";
        ratio: RatioPpm = Unit::Ratio, "0.05%" in "0%" ..= "10%", search "0.005%" ..= "1%" Log,
            "The share of a job's memory that is reclaimed each period while nothing stalls.";
        stall_target: RatioPpm = Unit::Ratio, "0.1%" in "0%" ..= "50%", search "0.01%" ..= "2%" Log,
            "The share of time in which some task of the job may wait for memory. 0% reclaims nothing.";
        io_stall_target: RatioPpm = Unit::Ratio, "0.1%" in "0%" ..= "100%", search "0.01%" ..= "5%" Log,
            "The same for I/O. A job that waits for its own I/O most of the time needs a higher one to be offloaded at all.";
        step_max: RatioPpm = Unit::Ratio, "1%" in "0.01%" ..= "10%", search "0.1%" ..= "10%" Log,
            "The most that is reclaimed in one period, as a share of the job's memory.";
        floor: Bytes = Unit::Bytes, "4MiB" in "0B" ..= "1TiB",
            "No job is made smaller than this, nor than the operator's own `memory.low` and `memory.min`.";
        warmup: Duration = Unit::Duration, "60s" in "0s" ..= "24h",
            "Nothing is reclaimed for this long after a job was first seen.";
    }

    /// Jobs that have gone to the background (Baghdasaryan et al.): compacted once, when nobody is in want of memory.
    pub struct Background = "background", Always {
        settle: Duration = Unit::Duration, "10s" in "0s" ..= "24h",
            "How long a job is in the background before it is compacted.";
        idle: Duration = Unit::Duration, "0s" in "0s" ..= "24h",
            "A job without any CPU time for this long counts as in the background; 0s waits to be told, or for a frozen cgroup.";
        pressure_max: RatioPpm = Unit::Ratio, "1%" in "0%" ..= "100%",
            "Nothing is compacted while tasks of the machine wait for memory for this share of the last 10 s or more.";
        available_min: RatioPpm = Unit::Ratio, "5%" in "0%" ..= "90%",
            "Nothing is compacted while less than this share of the machine's memory is available.";
        prefetch: bool = Unit::Bool, "false",
            "Ask for a job's memory back when it returns to the foreground, rather than wait until it is touched.";
    }

    /// Which tier a job's swap-backed memory goes to, where its rule says `auto`.
    pub struct Tiers = "tier", Always {
        compressed_max: RatioPpm = Unit::Ratio, "50%" in "1%" ..= "100%", search "20%" ..= "90%" Linear,
            "A job whose sampled cold pages compress to more than this share of their size goes to the device rather than to zswap.";
        latency_max: Duration = Unit::Duration, "5ms" in "1us" ..= "10s", search "100us" ..= "50ms" Log,
            "A device whose reads take longer than this on average is not used.";
        swap_cost: RatioPpm = Unit::Ratio, "3%" in "0%" ..= "100%",
            "What a byte on the device costs, as a share of a byte of DRAM (Weiner et al., section 2.1).";
    }

    /// Swap devices that wear out: how much may be written to them.
    pub struct Swap = "swap", Always {
        write_budget: Bytes = Unit::Bytes, "50GiB" in "0B" ..= "1PiB",
            "Bytes that may be written to swap devices in a day, by the whole machine: the device's rating, divided by the days that it shall last. 0B writes nothing.";
        burst: Bytes = Unit::Bytes, "1GiB" in "1MiB" ..= "1TiB",
            "Of the budget, how much may be saved up and written at once.";
        job_share: RatioPpm = Unit::Ratio, "50%" in "1%" ..= "100%",
            "How much of the budget one job may use up.";
    }

    /// Slow memory that is loaded and stored directly: a NUMA node such as CXL memory makes (Agarwal and Wenisch, 2017).
    /// Jobs under policy `slowdown` keep there what they access so seldom that it slows them by no more than is tolerable.
    pub struct Slow = "slow", Always {
        slowdown: RatioPpm = Unit::Ratio, "3%" in "0%" ..= "50%", search "0.5%" ..= "20%" Log,
            "How much slower a job may become by accesses to slow memory. 0% brings everything home (Agarwal and Wenisch, section 3.4).";
        latency: Duration = Unit::Duration, "0s" in "0s" ..= "1ms",
            "What one access to slow memory takes; 0s takes what the machine's firmware tells of the node (HMAT).";
        node: String = Unit::Word, "auto",
            "The number of the NUMA node that is slow memory; `auto` takes, of those without processors, the one that is farthest from them.";
        period: Duration = Unit::Duration, "30s" in "1s" ..= "1h", search "5s" ..= "5m" Log,
            "How often a part of a job's memory is sampled and placed anew (Agarwal and Wenisch, section 5).";
        looks: u32 = Unit::Count, "30" in "9" ..= "600",
            "How often a sampled page's accessed bit is looked at in a period; a third each for whole huge pages, for which of their parts are accessed at all, and for the rates of these.";
        sample: RatioPpm = Unit::Ratio, "5%" in "0.1%" ..= "100%", search "1%" ..= "50%" Log,
            "How much of a job's memory is sampled in a period.";
        parts: u32 = Unit::Count, "50" in "5" ..= "512",
            "Of how many accessed parts of a huge page the rates are looked at (Agarwal and Wenisch, section 3.2).";
        split: bool = Unit::Bool, "true",
            "Split sampled huge pages whose accesses are too frequent to be told apart as a whole, for a third of a period or two. Without it such pages stay in fast memory.";
        access_sampling: bool = Unit::Bool, "false",
            "Take rates from the processor's own samples of memory accesses (PEBS, IBS) and not from accessed bits. Not tested on such a processor.";
        move_rate: Bytes = Unit::BytesPerSecond, "30MiB/s" in "1MiB/s" ..= "16GiB/s",
            "How much memory is moved between the nodes, both ways, on average over a period and all jobs.";
        manage: bool = Unit::Bool, "false",
            "Switch `kernel.numa_balancing` off while the agent runs, and leave it as it was found on exit: it moves pages by rules of its own. Without it, nothing is placed in slow memory while it is on.";
    }

    /// What class `conservative` changes in `cold_age`, `pressure`, `tier` and `slow`: for jobs whose latency matters most.
    pub struct Conservative = "class.conservative", Always {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "0.05%" in "0%" ..= "100%", search "0.005%" ..= "0.5%" Log,
            "P for jobs of class `conservative`.";
        percentile: RatioPpm = Unit::Percentile, "99.5%" in "50%" ..= "100%", search "50%" ..= "99.99%" Tail,
            "K for jobs of class `conservative`.";
        warmup: Duration = Unit::Duration, "30m" in "0s" ..= "24h", search "1m" ..= "4h" Log,
            "S for jobs of class `conservative`.";
        stall_target: RatioPpm = Unit::Ratio, "0.05%" in "0%" ..= "50%", search "0.005%" ..= "1%" Log,
            "`pressure.stall_target` for jobs of class `conservative`.";
        io_stall_target: RatioPpm = Unit::Ratio, "0.05%" in "0%" ..= "100%", search "0.005%" ..= "2%" Log,
            "`pressure.io_stall_target` for jobs of class `conservative`.";
        latency_max: Duration = Unit::Duration, "1ms" in "1us" ..= "10s", search "100us" ..= "10ms" Log,
            "`tier.latency_max` for jobs of class `conservative`.";
        slowdown: RatioPpm = Unit::Ratio, "1%" in "0%" ..= "50%", search "0.1%" ..= "5%" Log,
            "`slow.slowdown` for jobs of class `conservative`.";
    }

    /// What class `aggressive` changes in `cold_age`, `pressure`, `tier` and `slow`: for sidecars and other overhead of the machine itself.
    pub struct Aggressive = "class.aggressive", Always {
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "1%" in "0%" ..= "100%", search "0.1%" ..= "10%" Log,
            "P for jobs of class `aggressive`.";
        percentile: RatioPpm = Unit::Percentile, "95%" in "50%" ..= "100%", search "50%" ..= "99.99%" Tail,
            "K for jobs of class `aggressive`.";
        warmup: Duration = Unit::Duration, "300s" in "0s" ..= "24h", search "1m" ..= "4h" Log,
            "S for jobs of class `aggressive`.";
        stall_target: RatioPpm = Unit::Ratio, "0.5%" in "0%" ..= "50%", search "0.05%" ..= "10%" Log,
            "`pressure.stall_target` for jobs of class `aggressive`.";
        io_stall_target: RatioPpm = Unit::Ratio, "0.5%" in "0%" ..= "100%", search "0.05%" ..= "20%" Log,
            "`pressure.io_stall_target` for jobs of class `aggressive`.";
        latency_max: Duration = Unit::Duration, "20ms" in "1us" ..= "10s", search "1ms" ..= "500ms" Log,
            "`tier.latency_max` for jobs of class `aggressive`.";
        slowdown: RatioPpm = Unit::Ratio, "10%" in "0%" ..= "50%", search "1%" ..= "40%" Log,
            "`slow.slowdown` for jobs of class `aggressive`.";
    }

    /// zswap, the compressed pool in DRAM. Its parameters belong to the whole machine.
    pub struct Zswap = "zswap", Always {
        manage: bool = Unit::Bool, "false",
            "Turn zswap on while the agent runs, and leave it as it was found on exit.";
        compressor: String = Unit::Word, "",
            "The compressor to set while `zswap.manage` is on, such as `lz4` or `zstd`; empty leaves it as it is.";
        max_pool: RatioPpm = Unit::WholePercent, "0%" in "0%" ..= "50%",
            "The largest pool to set while `zswap.manage` is on, as a share of the machine's memory; 0% leaves it as it is.";
        shrinker: bool = Unit::Bool, "false",
            "Have zswap's shrinker on while `zswap.manage` is (Linux 6.8): where the kernel reclaims and finds little else, it moves the oldest compressed \
             pages on to the swap device. Without it that happens when the pool is full.";
    }

    /// Memory that does not shrink when compressed, and so is not worth moving into zswap.
    pub struct Incompressible = "incompressible", Always {
        ratio: RatioPpm = Unit::Ratio, "73%" in "1%" ..= "100%",
            "A page that compresses to more than this share of its size counts as incompressible (Lagar-Cavilla et al., section 5.1: 2990 of 4096 bytes).";
        share: RatioPpm = Unit::Ratio, "50%" in "1%" ..= "100%",
            "A job is left alone when at least this share of its sampled pages is incompressible.";
        retry: Duration = Unit::Duration, "10m" in "1s" ..= "24h",
            "How long to wait before a job that was left alone is sampled again.";
        sample_pages: u32 = Unit::Count, "64" in "1" ..= "4096",
            "How many cold pages of a job are compressed as a test.";
    }

    /// The trace: what each job did, summed over some minutes, as Parquet files in a directory or an object store, for the whole
    /// fleet's evaluation. See `docs/trace.md`.
    pub struct Trace = "trace", Always {
        store: String = Unit::Store, "",
            "Where traces are brought: a directory, or `s3://bucket/prefix` with credentials in the environment. Empty keeps none.";
        cluster: String = Unit::Word, "",
            "The name of the machine's cluster: one of the partitions of the store.";
        machine: String = Unit::Word, "",
            "The machine's name in traces, another for each machine of the cluster; empty takes the host name.";
        entry_period: Duration = Unit::Duration, "5m" in "1s" ..= "1h",
            "How much time an entry sums: longer ones take less room and tell less.";
        file_period: Duration = Unit::Duration, "1h" in "1s" ..= "24h",
            "How much time a file holds before it is brought to the store. Until then its entries are safe on the local disk.";
        spool_size: Bytes = Unit::Bytes, "1GiB" in "1MiB" ..= "1TiB",
            "How much may wait in `agent.state_dir` while the store is away; beyond it, the oldest files are lost.";
    }

    /// Following a rollout: signed parameter bundles, and which machines go by them. See `docs/rollout.md`.
    pub struct Rollout = "rollout", Always {
        store: String = Unit::Store, "",
            "Where bundles are published: a directory, or `s3://bucket/prefix` with credentials in the environment. Empty follows none.";
        root: PathBuf = Unit::Path, "/etc/thermocline/root.json",
            "The trusted root of the store's signatures, as `thermocline rollout init` has written it.";
        poll: Duration = Unit::Duration, "5m" in "1s" ..= "24h",
            "How often the store is asked, give or take a tenth.";
        promotion_max: RatioPpm = Unit::Ratio, "300%" in "100%" ..= "4000%",
            "The agent leaves a bundle when far more than 2% of its jobs' control periods have promotion rates beyond this share of their objectives.";
        stall_periods: u32 = Unit::Count, "10" in "2" ..= "1000",
            "The agent leaves a bundle when a job with far memory stalls beyond its class's `stall_target` in so many control periods in a row.";
        starts: u32 = Unit::Count, "3" in "2" ..= "100",
            "The agent leaves a bundle when it has started so often with it, within `starts_within`, without having been stopped.";
        starts_within: Duration = Unit::Duration, "10m" in "10s" ..= "24h",
            "How long starts with a bundle are remembered; an agent that lives longer with it has come up well.";
    }

    /// The last resort when pages come back faster than the machine has memory for (Lagar-Cavilla et al., section 4.2).
    pub struct Guard = "guard", Always {
        enabled: bool = Unit::Bool, "false",
            "End jobs, the lowest class first, through `cgroup.kill`, when pages coming back from far memory exhaust the machine. Why is recorded.";
        available_min: RatioPpm = Unit::Ratio, "2%" in "0.1%" ..= "50%",
            "The guard acts while available memory is below this share of the machine's memory.";
    }
}
