//! Sparse pods on the command line of `thermocline pool simulate`.

use anyhow::{Context, Result, bail};
use simulator::latency::Latency;
use simulator::memory::MemoryPolicy;
use simulator::pod::{Overlap, Pod};
use simulator::{Setup, Site};

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

/// Checks that every pool size can be built as the site's pod.
///
/// # Errors
/// Which size cannot, and why; a latency of switches, which pods do not have.
pub(super) fn check(site: &Site, pool_sizes: &[u32], latencies: &[Latency]) -> Result<()> {
    let Some(pod) = &site.pod else { return Ok(()) };
    if latencies.contains(&Latency::SwitchOnly) {
        bail!("--latency switch_only with --pod: a sparse pod has no switches; use by_pool_size or a time");
    }
    for &sockets in pool_sizes {
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
