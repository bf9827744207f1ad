//! Metrics of what jobs lose to far memory, of how long pages take to return, and of what moving them out costs.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::labels::{JobLabels, JobQuantile, LossLabels, RatioGauge, TierQuantile, labels};
use crate::durations::Quantiles;
use crate::view::{JobView, View};

/// What jobs lost to far memory, by its parts.
pub(super) fn losses(registry: &mut Registry, jobs: &[JobView]) {
    let family = Family::<LossLabels, Counter<f64, AtomicU64>>::default();
    let faults = Family::<JobLabels, Counter>::default();
    let offload = Family::<JobLabels, Counter<f64, AtomicU64>>::default();
    for job in jobs {
        offload.get_or_create(&labels(job)).inc_by(job.waits.offload_cpu_seconds);
        let lost = &job.waits.lost;
        for (part, seconds) in [
            ("swap_in", lost.swap_in_seconds),
            ("device", lost.device_seconds),
            ("fault", lost.fault_seconds),
            ("reclaim", lost.reclaim_seconds),
            ("slow_node", lost.slow_seconds),
        ] {
            family.get_or_create(&LossLabels { cgroup: job.job.clone(), part: part.to_owned() }).inc_by(seconds);
        }
        faults.get_or_create(&labels(job)).inc_by(job.waits.major_faults);
    }
    registry.register("job_lost_seconds", "Time of the job's tasks that was lost to far memory, by its parts", family);
    registry.register("job_major_faults", "Page faults of the job that had to read a page", faults);
    registry.register(
        "job_offload_cpu_seconds",
        "CPU time of the agent that moving the job's memory out used, compression included; decompression is in job_lost_seconds",
        offload,
    );
}

/// Distributions of the time that pages take to return.
pub(super) fn returns(registry: &mut Registry, view: &View) {
    let seconds = |found: &Quantiles| [("0.5", found.p50_us), ("0.9", found.p90_us), ("0.99", found.p99_us)].map(|(at, us)| (at, us / 1e6));
    let faults = Family::<TierQuantile, RatioGauge>::default();
    for (tier, found) in [("compressed", view.tiers.faults.compressed), ("device", view.tiers.faults.device)] {
        for (quantile, seconds) in found.iter().flat_map(seconds) {
            faults.get_or_create(&TierQuantile { tier: tier.to_owned(), quantile: quantile.to_owned() }).set(seconds);
        }
    }
    let help = "Duration of page faults on swapped-out pages of the agent, in the last one to two hours";
    registry.register("return_seconds", help, faults);
    let (means, longest) = (Family::<JobQuantile, RatioGauge>::default(), Family::<JobLabels, RatioGauge>::default());
    for job in &view.jobs {
        for (quantile, seconds) in job.waits.swap_in_means.iter().flat_map(seconds) {
            means.get_or_create(&JobQuantile { cgroup: job.job.clone(), quantile: quantile.to_owned() }).set(seconds);
        }
        if let Some(us) = job.waits.swap_in_max_us {
            longest.get_or_create(&labels(job)).set(us / 1e6);
        }
    }
    let help = "Mean read of a swapped-out page by process and control period, weighted by reads, in the last one to two hours";
    registry.register("job_swap_in_mean_seconds", help, means);
    let help = "A longest read of a swapped-out page since its task started; there may be longer ones";
    registry.register("job_swap_in_longest_seconds", help, longest);
}
