//! Settings that are one word out of a few.

use settings::choice;

choice! {
    /// What observes a job's accesses.
    Tracker {
        /// The best that the kernel offers for the job, within the agent's CPU budget.
        Auto = "auto",
        /// Idle page tracking: exact, one bit per page.
        PageIdle = "page_idle",
        /// The multi-generational LRU's generations.
        LruGen = "lru_gen",
        /// DAMON's sampled regions.
        Damon = "damon",
    }
}

choice! {
    /// What moves a job's cold pages into far memory.
    Actuator {
        /// The most exact that the kernel offers for the job.
        Auto = "auto",
        /// Exactly the pages that reached the threshold, by `process_madvise(MADV_PAGEOUT)`.
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
        /// Pages that were idle for as long as the promotion rate's objective asks (Lagar-Cavilla et al., 2019).
        ColdAge = "cold_age",
        /// As much as stalls nobody, found by trying gently (Weiner et al., 2022).
        Pressure = "pressure",
        /// All of it once the job has gone to the background, nothing before (Baghdasaryan et al., 2019).
        Background = "background",
        /// Anonymous memory by its age, as old as the stall target and the tier's measured latency ask; page cache by
        /// pressure; nothing while the job stalls; and all of it once the job has gone to the background.
        Auto = "auto",
        /// What is accessed so seldom that a slow memory node may hold it (Agarwal and Wenisch, 2017).
        Slowdown = "slowdown",
    }
}

choice! {
    /// Where a job's swap-backed memory goes.
    Tier {
        /// By how well its cold pages compress, what the class tolerates, and what may still be written.
        Auto = "auto",
        /// The compressed pool alone; nothing of it is written to a device.
        Zswap = "zswap",
        /// The swap device alone.
        Swap = "swap",
        /// The compressed pool, and from there, when it has become old, the swap device.
        Both = "both",
    }
}

choice! {
    /// What a job is for, so that savings can be summed up by it (Weiner et al., section 2.3).
    Kind {
        /// What the machine is there for.
        Application = "application",
        /// What every machine carries beside: agents, logging, packages.
        DatacenterTax = "datacenter_tax",
        /// What an application carries beside: proxies, routers and other sidecars.
        ApplicationTax = "application_tax",
    }
}

choice! {
    /// What happens to a job that has reached its memory limit.
    AtLimit {
        /// Offloading stops for the job; what already is far stays where it is.
        Stop = "stop",
        /// Offloading stops, and `memory.swap.max` is capped at what the job uses, so that it fails fast rather than
        /// thrash.
        FailFast = "fail_fast",
    }
}

choice! {
    /// How a job is treated. Later ones give up more for the machine: the guard ends those first.
    Class {
        /// Not even observed.
        Off = "off",
        /// Observed and decided for, never acted on.
        Observe = "observe",
        /// Far memory with a quarter of the usual objective: for jobs whose latency matters most.
        Conservative = "conservative",
        /// Far memory under the objective of `cold_age`.
        Standard = "standard",
        /// Far memory under a loose objective: sidecars and other overhead of the machine itself.
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
    fn what_the_guard_ends_first_is_the_greatest() {
        assert_eq!(Class::ALL.iter().max(), Some(&Class::Aggressive));
        assert!(Class::Conservative < Class::Standard);
    }
}
