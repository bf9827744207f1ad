//! Settings with a fixed set of values.

use settings::choice;

choice! {
    /// What tracks the accesses of a job.
    Tracker {
        /// The most exact tracker that the kernel offers for the job, within the agent's CPU budget.
        Auto = "auto",
        /// Idle page tracking: exact, one bit per page.
        PageIdle = "page_idle",
        /// The ages of a random sample of page frames, by idle page tracking; generations only choose what is offloaded.
        SampledFrames = "sampled_frames",
        /// The exact ages of a random sample of pages, by DAMON; generations only choose what is offloaded.
        Sampled = "sampled",
        /// The multi-generational LRU's generations.
        LruGen = "lru_gen",
        /// DAMON's sampled regions.
        Damon = "damon",
    }
}

choice! {
    /// What moves cold pages of a job into far memory.
    Actuator {
        /// The most exact actuator that the kernel offers for the job.
        Auto = "auto",
        /// The pages that reached the threshold and no others, by `process_madvise(MADV_PAGEOUT)`.
        Exact = "exact",
        /// Eviction of the oldest generations through the multi-generational LRU's debugfs file.
        LruGen = "lru_gen",
        /// `memory.reclaim` in small bounded steps: the kernel chooses the pages.
        MemoryReclaim = "memory_reclaim",
    }
}

choice! {
    /// What decides how much of a job may leave DRAM.
    Policy {
        /// Pages older than the threshold that meets the objective for promotions (SDFM section 4.3).
        ColdAge = "cold_age",
        /// Proactive reclaim while PSI stalls stay below their target (TMO section 3.3).
        Pressure = "pressure",
        /// All memory of the job once it is in the background (LPC talk).
        Background = "background",
        /// Anonymous memory by age, with an objective derived from the stall target and the measured latency of the tier; page cache by
        /// pressure; nothing while the job stalls; all memory once the job is in the background.
        Auto = "auto",
        /// Memory that is accessed rarely enough for a slow memory node (Thermostat section 3).
        Slowdown = "slowdown",
    }
}

choice! {
    /// Where the swap-backed memory of a job goes.
    Tier {
        /// By the compression ratio of its cold pages, the latency that its class tolerates, and the remaining write budget.
        Auto = "auto",
        /// zswap only, or zram if the machine swaps to it and zswap is off; nothing is written to a device.
        Zswap = "zswap",
        /// The swap device only.
        Swap = "swap",
        /// zswap, which writes its oldest pages to the swap device.
        Both = "both",
    }
}

choice! {
    /// The purpose of a job, by which savings are summed (TMO section 2.3).
    Kind {
        /// The machine's main workload.
        Application = "application",
        /// Services that run on every machine: agents, logging, package management.
        DatacenterTax = "datacenter_tax",
        /// Services that an application requires: proxies, routers and other sidecars.
        ApplicationTax = "application_tax",
    }
}

choice! {
    /// What happens to a job that has reached its memory limit.
    AtLimit {
        /// Its class decides: `conservative` stops, others are offloaded.
        Auto = "auto",
        /// It is offloaded as any other job.
        Offload = "offload",
        /// Offloading stops; memory that is already in far memory stays there.
        Stop = "stop",
        /// Offloading stops; and at all times `memory.swap.max` is kept at the job's current use, except during the agent's own
        /// requests, so that it fails instead of thrashing.
        FailFast = "fail_fast",
    }
}

choice! {
    /// How a job is treated. The guard kills jobs of the greatest class first.
    Class {
        /// Not even observed.
        Off = "off",
        /// Observed and decided for, never acted on.
        Observe = "observe",
        /// Far memory with a quarter of the usual objective, for jobs that are most sensitive to latency.
        Conservative = "conservative",
        /// Far memory with the objective of `cold_age`.
        Standard = "standard",
        /// Far memory with a higher objective, for sidecars and other memory tax.
        Aggressive = "aggressive",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for &class in Class::ALL {
            assert_eq!(Class::from_name(class.as_str()), Some(class));
            assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{class}\""));
        }
        assert_eq!(Tracker::from_name("Page_idle"), None);
    }

    #[test]
    fn the_guard_kills_the_greatest_class_first() {
        assert_eq!(Class::ALL.iter().max(), Some(&Class::Aggressive));
        assert!(Class::Conservative < Class::Standard);
    }
}
