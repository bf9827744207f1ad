//! Prometheus metrics on loopback, rendered from the published view: a scrape never waits for a scan.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::following::FollowingView;
use crate::view::{JobView, Published, View};

mod labels;
mod losses;

use labels::{FlowLabels, JobLabels, RatioGauge, ReasonLabels, labels};
use losses::{losses, returns};

/// A metric of jobs: name, help text, and how it is read from a job's view.
type Metric<T> = (&'static str, &'static str, fn(&JobView) -> T);

/// The text of one scrape.
///
/// # Errors
/// Only errors of writing to a string.
pub fn render(view: &View) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("thermocline");
    job_sizes(&mut registry, &view.jobs);
    job_rates(&mut registry, &view.jobs);
    job_counts(&mut registry, &view.jobs);
    losses(&mut registry, &view.jobs);
    returns(&mut registry, view);
    flows(&mut registry, &view.jobs);
    whole_agent(&mut registry, view);
    slow_node(&mut registry, view);
    if let Some(rollout) = &view.rollout {
        following(&mut registry, rollout);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn job_sizes(registry: &mut Registry, jobs: &[JobView]) {
    let sizes: [Metric<u64>; 11] = [
        ("job_memory_bytes", "Memory charged to the job", |job| job.memory_bytes.0),
        ("job_working_set_bytes", "Swap-backed memory accessed within the minimum cold age", |job| job.working_set_bytes.0),
        ("job_cold_bytes", "Swap-backed memory idle for the minimum cold age or longer, far memory included", |job| job.cold_bytes.0),
        ("job_far_bytes", "Uncompressed size of the job's pages in far memory", |job| job.far_bytes.0),
        (
            "job_pool_bytes",
            "DRAM occupied by compressed copies of the job's far memory in zswap, with its share of the allocator's pages",
            |job| job.pool_bytes.0,
        ),
        ("job_zram_bytes", "DRAM occupied by the job's far memory on zram devices", |job| job.zram_bytes.0),
        ("job_file_out_bytes", "Page cache of the job that the agent reclaimed and that the kernel would still hold", |job| {
            job.file_out_bytes.0
        }),
        ("job_slow_bytes", "Memory of the job in a slow memory node", |job| job.slow_bytes.0),
        ("job_protection_bytes", "Memory of the job that memory.low or memory.min protects in effect, ancestors considered", |job| {
            job.protection_bytes.0
        }),
        ("job_hard_protection", "1 while the agent has set memory.min, because the kernel reclaims in spite of memory.low", |job| {
            u64::from(job.hard_protection)
        }),
        ("job_saved_bytes", "DRAM that the machine gained from the job", |job| job.saved_bytes.0),
    ];
    for (name, help, read) in sizes {
        let family = Family::<JobLabels, Gauge>::default();
        for job in jobs {
            family.get_or_create(&labels(job)).set(i64::try_from(read(job)).unwrap_or(i64::MAX));
        }
        registry.register(name, help, family);
    }
}

fn job_rates(registry: &mut Registry, jobs: &[JobView]) {
    let rates: [Metric<Option<f64>>; 13] = [
        #[expect(clippy::cast_precision_loss, reason = "a metric has 16 digits")]
        ("job_could_save_bytes", "DRAM that offloading all idle memory of the job would save; absent until known", |job| {
            job.could_save_bytes.map(|bytes| bytes.0 as f64)
        }),
        #[expect(clippy::cast_precision_loss, reason = "a metric has 16 digits")]
        (
            "job_slow_max_bytes",
            "What the job may have in the slow node by its floor of fast memory, its upper bound or its share; absent without a bound",
            |job| job.slow_max_bytes.map(|bytes| bytes.0 as f64),
        ),
        ("job_coverage_ratio", "Far memory as a share of cold memory", |job| Some(job.coverage_ratio)),
        ("job_threshold_seconds", "Cold-age threshold; absent if none qualifies", |job| job.threshold_seconds),
        ("job_promotion_rate_ratio_per_minute", "Promotions per minute as a share of the working set", |job| {
            job.promotion_rate_ratio_per_min
        }),
        ("job_promotion_rate_objective_ratio_per_minute", "Objective of the promotion rate", |job| Some(job.slo_ratio_per_min)),
        ("job_slow_accesses_per_second", "Estimated accesses to the job's memory in a slow node, in the last period", |job| {
            job.slow_rate_per_second
        }),
        ("job_slow_accesses_budget_per_second", "Budget of accesses to slow memory that the job's tolerated slowdown allows", |job| {
            job.slow_budget_per_second
        }),
        ("job_memory_stall_ratio", "Share of the last period in which some task waited for memory", |job| job.stall_ratio),
        ("job_slowdown_ratio", "Time lost to far memory in the last period, as a share of the CPU time of the job's own work", |job| {
            job.waits.slowdown_ratio
        }),
        (
            "job_instructions_per_cycle",
            "Instructions per cycle in the last period; absent unless agent.count_instructions has them counted",
            |job| job.waits.instructions_per_cycle,
        ),
        (
            "job_trial_slowdown_ratio",
            "Slowdown by the last trial that was kept, as the application reports it; absent without one",
            |job| job.trial.map(|trial| trial.slowdown_ratio),
        ),
        ("job_io_stall_ratio", "Share of the last period in which some task waited for I/O", |job| job.io_stall_ratio),
    ];
    for (name, help, read) in rates {
        let family = Family::<JobLabels, RatioGauge>::default();
        for job in jobs {
            if let Some(value) = read(job) {
                family.get_or_create(&labels(job)).set(value);
            }
        }
        registry.register(name, help, family);
    }
}

fn job_counts(registry: &mut Registry, jobs: &[JobView]) {
    let counts: [Metric<u64>; 4] = [
        ("job_control_periods", "Control periods with far memory on", |job| job.totals.periods),
        ("job_swap_written_bytes", "Bytes that the job wrote to swap devices", |job| job.written_bytes.0),
        ("job_moved_to_device_bytes", "Bytes that the agent moved from zswap to a swap device, because they stayed unaccessed", |job| {
            job.moved_to_device_bytes.0
        }),
        ("job_slo_violations", "Control periods whose promotion rate was above the objective", |job| job.totals.slo_violations),
    ];
    for (name, help, read) in counts {
        let family = Family::<JobLabels, Counter>::default();
        for job in jobs {
            family.get_or_create(&labels(job)).inc_by(read(job));
        }
        registry.register(name, help, family);
    }
}

fn flows(registry: &mut Registry, jobs: &[JobView]) {
    let family = Family::<FlowLabels, Counter>::default();
    for job in jobs {
        for (direction, bytes) in [("out", job.totals.moved.offloaded), ("in", job.totals.moved.promoted)] {
            let labels = FlowLabels { cgroup: job.job.clone(), tier: "far".to_owned(), direction: direction.to_owned() };
            family.get_or_create(&labels).inc_by(bytes.0);
        }
    }
    registry.register("moved_bytes", "Memory moved to far memory (out) and back (in)", family);
}

fn whole_agent(registry: &mut Registry, view: &View) {
    let gauges = [
        ("saved_bytes", "DRAM that the machine gained from all jobs, minus what that occupies", view.saved_bytes),
        ("saved_anonymous_bytes", "Anonymous memory that left DRAM, uncompressed", signed(view.savings.anonymous_bytes.0)),
        ("saved_shared_bytes", "Shared memory that left DRAM, uncompressed", signed(view.savings.shared_bytes.0)),
        ("saved_file_bytes", "Page cache that was reclaimed and that the kernel would still hold", signed(view.savings.file_bytes.0)),
        ("saved_in_use_bytes", "Part of the savings that MemAvailable does not show", signed(view.savings.in_use_bytes.0)),
        ("kdamond_memory_bytes", "Memory of the agent's kdamonds, by an upper bound", signed(view.savings.kdamond_bytes.0)),
        ("machine_pool_bytes", "DRAM that zswap's pool occupies", signed(view.machine.pool_bytes.0)),
        ("machine_stored_bytes", "Uncompressed size of what zswap holds", signed(view.machine.stored_bytes.0)),
        ("machine_zram_bytes", "DRAM that zram swap devices occupy", signed(view.tiers.ram_disks.memory.0)),
        ("machine_zram_stored_bytes", "Uncompressed size of what zram swap devices store", signed(view.tiers.ram_disks.stored.0)),
        ("swap_writable_bytes", "Bytes that may be written to swap devices now", signed(view.tiers.writable_bytes.0)),
        ("agent_memory_bytes", "Resident memory of the agent", signed(view.costs.rss_bytes.0)),
    ];
    for (name, help, value) in gauges {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    let seconds = [
        ("agent_cpu_seconds", "CPU time that the agent used", view.costs.cpu_seconds),
        (
            "agent_offload_cpu_seconds",
            "CPU time that moving memory out used, compression included: the agent pays it",
            view.costs.offload_cpu_seconds,
        ),
        ("agent_scan_cpu_seconds", "CPU time that scans used", view.costs.scan_cpu_seconds),
        ("agent_ages_cpu_seconds", "Of the CPU time of scans, that of measuring ages", view.costs.ages_cpu_seconds),
        ("agent_rates_seconds", "Time during which access rates were sampled", view.costs.rates_seconds),
        ("agent_rates_cpu_seconds", "CPU time that sampling of access rates used", view.costs.rates_cpu_seconds),
        ("agent_rates_held_seconds", "Time spent splitting and collapsing huge pages", view.costs.rates_held_seconds),
    ];
    for (name, help, value) in seconds {
        let counter = Counter::<f64, AtomicU64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let counts = [
        ("agent_scans", "Finished scans", view.costs.scans),
        ("agent_ages_splits", "Huge pages split so that the ages of their parts are known", view.costs.ages_splits),
        ("agent_rates_splits", "Huge pages split so that their parts could be sampled", view.costs.rates_splits),
        ("agent_rates_collapses", "Huge pages collapsed after sampling", view.costs.rates_collapses),
        ("swap_written_bytes", "Bytes written to swap devices by any process", view.tiers.written_bytes.0),
        ("swap_errors", "Failed requests to swap devices, as far as the kernel logged them", view.tiers.swap_errors),
        ("machine_direct_reclaims", "Allocations of any task that had to reclaim memory themselves", view.machine.reclaim.direct_reclaims),
        ("machine_direct_reclaimed_bytes", "Memory that such allocations freed", view.machine.reclaim.direct_bytes.0),
        ("machine_kswapd_reclaimed_bytes", "Memory that kswapd freed", view.machine.reclaim.kswapd_bytes.0),
        ("agent_late_scans", "Scans that began more than half a period late", view.costs.late_scans),
        (
            "agent_deadlines_missed",
            "Periods of policies, and checks of the guard, that began more than half a period late",
            view.costs.deadlines_missed,
        ),
    ];
    for (name, help, value) in counts {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    comparisons(registry, view);
}

/// Latencies of the slow node and of the node to which its memory is promoted.
fn slow_node(registry: &mut Registry, view: &View) {
    let Some(slow) = &view.slow else { return };
    let latencies = [
        ("slow_latency_seconds", "Latency of an access to the slow node from which budgets are derived", Some(slow.latency_ns)),
        ("slow_measured_latency_seconds", "Measured latency of the slow node; absent without slow.measure_latency", slow.measured_ns),
        (
            "slow_home_measured_latency_seconds",
            "Measured latency of the node to which slow memory is promoted; absent without slow.measure_latency",
            slow.home_measured_ns,
        ),
    ];
    for (name, help, ns) in latencies {
        let Some(ns) = ns else { continue };
        let gauge = RatioGauge::default();
        #[expect(clippy::cast_precision_loss, reason = "at most a millisecond")]
        gauge.set(ns as f64 / 1e9);
        registry.register(name, help, gauge);
    }
}

/// Latency of the swap device, and differences between counters of the kernel.
fn comparisons(registry: &mut Registry, view: &View) {
    let read = RatioGauge::default();
    if let Some(us) = view.tiers.swap_read_us {
        read.set(f64::from(us) / 1e6);
        registry.register("swap_read_seconds", "Mean time of a read from the swap device", read);
    }
    if let Some(ratio) = view.savings.request_gap_ratio {
        let gap = RatioGauge::default();
        gap.set(ratio);
        registry.register("request_gap_ratio", "Difference between what requests freed by memory.current and what was accounted", gap);
    }
    let gap = RatioGauge::default();
    gap.set(view.machine.reconcile_gap_ratio);
    registry.register(
        "reconcile_gap_ratio",
        "Difference between zswap's and memory.stat's counts of stored bytes, as a share of the larger",
        gap,
    );
}

fn following(registry: &mut Registry, rollout: &FollowingView) {
    let gauges = [
        ("rollout_bundle_version", "Version of the parameter bundle in effect; 0 for the configuration file", rollout.bundle_version),
        (
            "rollout_assigned_version",
            "Version of the bundle assigned to this machine; 0 for the configuration file",
            rollout.assigned_version,
        ),
        ("rollout_trouble", "1 if the last poll of the bundle store failed", u64::from(rollout.trouble.is_some())),
        (
            "rollout_checked_timestamp_seconds",
            "Time at which the store was last read and verified; 0 for never",
            rollout.checked_unix_s.unwrap_or(0),
        ),
    ];
    for (name, help, value) in gauges {
        let gauge = Gauge::<i64>::default();
        gauge.set(signed(value));
        registry.register(name, help, gauge);
    }
    let counts = [
        ("rollout_polls", "Polls of the bundle store", rollout.polls),
        ("rollout_requests", "Requests to the bundle store", rollout.requests),
    ];
    for (name, help, value) in counts {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let by_reason = [
        ("rollout_refused", "Metadata and bundles refused, by reason", &rollout.refused),
        ("rollout_reverts", "Bundles that the agent's guardrail rejected, by violated objective", &rollout.reverts),
    ];
    for (name, help, counts) in by_reason {
        let family = Family::<ReasonLabels, Counter>::default();
        for (reason, count) in counts {
            family.get_or_create(&ReasonLabels { reason: (*reason).to_owned() }).inc_by(*count);
        }
        registry.register(name, help, family);
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Serves the metrics of the published view and returns the bound address. As [`daemon::metrics::serve`].
///
/// # Errors
/// As [`daemon::metrics::serve`].
pub fn serve(address: SocketAddr, view: Published) -> std::io::Result<SocketAddr> {
    daemon::metrics::serve(address, move || render(&view.get()))
}

/// Has them served at `address` by the process that listens at `socket`. As [`daemon::relay::offer`].
///
/// # Errors
/// As [`daemon::relay::offer`].
pub fn offer(socket: &Path, address: SocketAddr, view: Published) -> std::io::Result<()> {
    daemon::relay::offer(socket, address, move || render(&view.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_base_units_and_totals() {
        let costs = crate::costs::Costs { rates_cpu_seconds: 2.5, rates_splits: 7, ..Default::default() };
        let view = View { saved_bytes: -4096, costs, ..View::default() };
        let text = render(&view).unwrap();
        for line in [
            "thermocline_saved_bytes -4096",
            "thermocline_agent_scans_total 0",
            "thermocline_swap_written_bytes_total 0",
            "thermocline_agent_rates_cpu_seconds_total 2.5",
            "thermocline_agent_rates_splits_total 7",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    /// A view of which every figure is known.
    fn whole() -> View {
        let known = Some(1.0);
        let job = JobView {
            job: "/system.slice/redis.service".to_owned(),
            class: "standard",
            kind: "application",
            could_save_bytes: Some(units::Bytes(1)),
            threshold_seconds: known,
            promotion_rate_ratio_per_min: known,
            slow_rate_per_second: known,
            slow_budget_per_second: known,
            slow_max_bytes: Some(units::Bytes(1)),
            stall_ratio: known,
            io_stall_ratio: known,
            trial: Some(crate::trials::TrialView::default()),
            waits: crate::waits::WaitsView {
                slowdown_ratio: known,
                swap_in_means: Some(crate::durations::Quantiles::default()),
                swap_in_max_us: known,
                instructions_per_cycle: known,
                ..Default::default()
            },
            ..JobView::default()
        };
        let reasons = || [("clock", 1)].into();
        let rollout = FollowingView { refused: reasons(), reverts: reasons(), ..FollowingView::default() };
        let mut view = View { jobs: vec![job], rollout: Some(rollout), ..View::default() };
        view.slow = Some(crate::slow_node::SlowNode {
            node: 1,
            home: 0,
            latency_ns: 400,
            latency_from: "HMAT",
            measured_ns: Some(400),
            home_measured_ns: Some(100),
            total_bytes: units::Bytes(1),
            free_bytes: units::Bytes(1),
        });
        view.tiers.swap_read_us = Some(1);
        view.tiers.faults.compressed = Some(crate::durations::Quantiles { count: 64, p50_us: 5.0, p90_us: 9.0, p99_us: 40.0 });
        view.savings.request_gap_ratio = known;
        view
    }

    /// The reference page of a scrape: a row for each metric, with its labels.
    fn page(text: &str) -> String {
        let mut rows = Vec::new();
        let (mut help, mut kind) = ("", "");
        for line in text.lines() {
            if let Some((_, words)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                help = words.trim_end_matches('.');
            } else if let Some((_, word)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                kind = word;
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let labels = line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(labels, _)| labels);
                let labels: Vec<_> =
                    labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| format!("`{name}`")).collect();
                let row = format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "));
                if rows.last() != Some(&row) {
                    rows.push(row);
                }
            }
        }
        rows.sort();
        format!("{PAGE}{}", rows.concat())
    }

    const PAGE: &str = "# Metrics of the agent

<!-- Generated: UPDATE_DOCS=1 cargo test -p thermocline-agent reference_page -->

Served at `agent.metrics_listen`, on loopback by default. `cgroup` is the job's path below the cgroup root. Metrics of
`rollout` exist if `rollout.store` is set; a figure that is not known is absent. Alert rules and a dashboard:
[alerts.md](alerts.md).

| metric | type | labels | meaning |
|---|---|---|---|
";

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/metrics.md");
        let text = render(&whole()).unwrap();
        // `make test-metrics` has a real Prometheus scrape it.
        if let Some(sample) = std::env::var_os("METRICS_SAMPLE") {
            std::fs::write(sample, &text).unwrap();
        }
        let want = page(&text);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &want).unwrap();
        }
        assert!(std::fs::read_to_string(&path).unwrap_or_default() == want, "set UPDATE_DOCS=1 to write {}", path.display());
    }

    #[test]
    fn rollout_metrics_exist_only_with_a_rollout() {
        let rollout = FollowingView {
            bundle_version: 7,
            polls: 12,
            refused: [("rollback", 3)].into(),
            reverts: [("stall", 1)].into(),
            ..FollowingView::default()
        };
        let text = render(&View { rollout: Some(rollout), ..View::default() }).unwrap();
        for line in [
            "thermocline_rollout_bundle_version 7",
            "thermocline_rollout_polls_total 12",
            "thermocline_rollout_refused_total{reason=\"rollback\"} 3",
            "thermocline_rollout_reverts_total{reason=\"stall\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!render(&View::default()).unwrap().contains("rollout"));
    }
}
