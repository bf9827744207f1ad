//! Sparse pods on the command line of `thermocline pool simulate`, and in its report.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use simulator::latency::Latency;
use simulator::memory::MemoryPolicy;
use simulator::pod::{Overlap, Pod};
use simulator::{Setup, Site};

use super::arguments::Simulate;
use super::report::Report;
use crate::table::Table;

/// The most ports of a device, and the most devices of a server.
const PORTS_MAX: u16 = 16;

/// Reads `ports=N,per-server=N` and optionally `per-vm=N`, which is `per-server` by default.
pub(super) fn parse(text: &str) -> Result<Pod, String> {
    let (mut ports, mut per_server, mut per_vm) = (None, None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} has no number; write it as KEY=N, such as ports=4"))?;
        let (number, least) = match key {
            "ports" => (&mut ports, 2),
            "per-server" => (&mut per_server, 1),
            "per-vm" => (&mut per_vm, 1),
            _ => return Err(format!("{key:?} is not known; there are ports, per-server and per-vm")),
        };
        let within = value.parse().ok().filter(|number| (least..=PORTS_MAX).contains(number));
        *number = Some(within.ok_or_else(|| format!("{key}={value} is no number from {least} to {PORTS_MAX}"))?);
    }
    let (Some(ports), Some(per_server)) = (ports, per_server) else {
        return Err("give the ports of a device and the devices of a server, such as ports=4,per-server=8".to_owned());
    };
    let per_vm = per_vm.unwrap_or(per_server);
    if per_vm > per_server {
        return Err(format!("a VM cannot have memory of {per_vm} devices if its server reaches {per_server}; give per-vm of at most that"));
    }
    Ok(Pod { ports, per_server, per_vm })
}

/// Checks that every pool size can be built as a pod.
///
/// # Errors
/// Which size cannot, and why.
pub(super) fn check(arguments: &Simulate, site: &Site) -> Result<()> {
    let Some(pod) = &arguments.pod else { return Ok(()) };
    if arguments.latency.contains(&Latency::SwitchOnly) {
        bail!("--latency switch_only with --pod: a sparse pod has no switches; use by_pool_size or a time");
    }
    for &sockets in &arguments.pool_sizes {
        pod.check(servers(sockets, site)).with_context(|| format!("--pod with --pool-sizes {sockets}"))?;
    }
    Ok(())
}

fn servers(pool_sockets: u32, site: &Site) -> u32 {
    Setup { pool_sockets, memory: MemoryPolicy::AllLocal, added_ns: 0 }.pool_servers(&site.shape)
}

/// The overlap of a pod of so many sockets; `None` without pods.
pub(super) fn overlap(pool_sockets: u32, site: &Site) -> Option<Overlap> {
    site.pod.map(|pod| pod.overlap(servers(pool_sockets, site), site.seed))
}

/// The pods of each size.
pub(super) fn text(text: &mut String, report: &Report<'_>) {
    let mut shown = Vec::new();
    for pod in report.results.iter().filter_map(|row| row.pod) {
        if shown.contains(&pod) {
            continue;
        }
        shown.push(pod);
        let Overlap { servers, devices, pairs, sharing_pairs, sharing_several_pairs } = pod;
        let _ = writeln!(
            text,
            "sparse pods of {servers} servers: {devices} devices; of {pairs} pairs of servers {sharing_pairs} share a device, \
             {sharing_several_pairs} more than one"
        );
    }
}

/// What the failure of a controller or device costs.
pub(super) fn failures(text: &mut String, report: &Report<'_>) {
    if report.site.faults.emc_every.is_none() {
        return;
    }
    *text += "\nVMs lost with a memory controller that fails:\n";
    let mut table = Table::new(&["<memory", "latency", "sockets", "failures", "VMs lost", "for each", "at most"]);
    for row in &report.results {
        let measured = &row.outcome.measured;
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let each = measured.lost_with_emc as f64 / measured.emc_failures.max(1) as f64;
        table.row(&[
            &row.memory,
            &format!("{} ns", row.added_ns),
            &row.pool_sockets,
            &measured.emc_failures,
            &measured.lost_with_emc,
            &format!("{each:.1}"),
            &measured.lost_with_emc_max,
        ]);
    }
    *text += &table.to_string();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_read_or_refused() {
        assert_eq!(parse("ports=4,per-server=8"), Ok(Pod { ports: 4, per_server: 8, per_vm: 8 }));
        assert_eq!(parse("per-vm=2,per-server=8,ports=2"), Ok(Pod { ports: 2, per_server: 8, per_vm: 2 }));
        for (text, words) in [
            ("ports=4", "per-server=8"),
            ("ports=1,per-server=8", "2 to 16"),
            ("ports=4,per-server=0", "1 to 16"),
            ("ports=4,per-server=8,per-vm=9", "9 devices"),
            ("ports=4,servers=8", "per-vm"),
            ("4", "has no number"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
