//! Prometheus metrics of a machine with pool memory.

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use units::Bytes;

use super::machine::{Assigned, List, Machine};

/// Renders all metrics.
fn render(list: &List) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("thermocline_pool_memory");
    let sum = |of: fn(&Assigned) -> Bytes| list.memory.iter().map(of).sum::<Bytes>().0;
    let online = sum(|assigned| assigned.slices.iter().filter_map(|slice| slice.online_bytes).sum());
    for (name, help, value) in [
        ("assigned_bytes", "Pool memory that is assigned to this machine", sum(|assigned| assigned.bytes)),
        ("online_bytes", "Its part that is known to be online", online),
        (
            "slices_stuck",
            "Slices that are online although this machine returned them or never had them; alert on this",
            list.stuck.len() as u64,
        ),
        ("manager_unavailable", "1 while the pool manager does not answer, or refuses", u64::from(list.pool_error.is_some())),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Serves `/metrics` in threads of its own until the process exits. Returns the address.
///
/// # Errors
/// As [`daemon::metrics::serve`].
pub fn serve(address: SocketAddr, machine: Arc<Machine>) -> std::io::Result<SocketAddr> {
    daemon::metrics::serve(address, move || render(&machine.list()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::AssignedSlice;

    #[test]
    fn what_is_assigned_online_and_stuck_is_counted() {
        let slice = |online_bytes| AssignedSlice { emc: 0, index: 0, generation: 1, online_bytes };
        let assigned = Assigned {
            name: "a".to_owned(),
            bytes: Bytes(300),
            slices: vec![slice(Some(Bytes(100))), slice(Some(Bytes(50))), slice(None)],
        };
        let list = List { host: "h".to_owned(), pool_error: None, memory: vec![assigned.clone(), assigned], stuck: vec!["0/7".to_owned()] };
        let text = render(&list).unwrap();
        for line in ["assigned_bytes 600", "online_bytes 300", "slices_stuck 1", "manager_unavailable 0"] {
            assert!(text.lines().any(|found| found == format!("thermocline_pool_memory_{line}")), "{line}: {text}");
        }
    }
}
