//! Prometheus metrics: gauges of the published state.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::api::Status;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

/// Renders all metrics. Hosts are summed by pool: a cluster has thousands.
///
/// # Errors
/// Formatting failed; writing to a string does not fail in practice.
pub(crate) fn render(status: &Status) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("thermocline_scheduler");
    let drained = status.hosts.iter().filter(|host| host.drained).count();
    for (name, help, value) in [
        ("vms", "VMs that were placed and have not ended", status.vms),
        ("refused_requests", "Requests that no host could hold, since the beginning of the log", status.refused),
        ("groups", "Groups of VMs that run", status.groups),
        ("over_limit_vms", "VMs of groups of which more fail together now than their limit says", status.over_limit),
        ("hosts", "Hosts", status.hosts.len() as u64),
        ("drained_hosts", "Hosts that get no new VMs", drained as u64),
        (
            "log_unavailable",
            "1 while the log cannot be written and nothing is placed; alert on this",
            u64::from(status.log_error.is_some()),
        ),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    let family = Family::<PoolLabels, Gauge>::default;
    let (slices, used, grantable, answers, cores, bytes) = (family(), family(), family(), family(), family(), family());
    for pool in &status.pools {
        let labels = PoolLabels { pool: pool.pool.clone() };
        slices.get_or_create(&labels).set(i64::from(pool.slices.0));
        used.get_or_create(&labels).set(i64::from(pool.used.0));
        grantable.get_or_create(&labels).set(i64::from(pool.grantable.0));
        answers.get_or_create(&labels).set(i64::from(pool.answers));
    }
    for host in &status.hosts {
        let labels = PoolLabels { pool: host.pool.clone() };
        cores.get_or_create(&labels).inc_by(i64::from(host.free_cores));
        bytes.get_or_create(&labels).inc_by(i64::try_from(host.free_bytes.0).unwrap_or(i64::MAX));
    }
    registry.register("pool_slices", "Slices that VMs may have", slices);
    registry.register("pool_used_slices", "Slices of VMs that were placed", used);
    registry.register("pool_grantable_slices", "Most slices that one VM could get now", grantable);
    registry.register("pool_answers", "1 while the pool's manager answers; alert on 0", answers);
    registry.register("free_cores", "Free cores of the pool's hosts that are not drained", cores);
    registry.register_with_unit("free", "Free local memory of the pool's hosts that are not drained", Unit::Bytes, bytes);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
