//! Programs that end jobs when memory or swap runs out.

use agent::killers::{Killers, Kubelet, Oomd};
use kernel::Roots;

use super::check::{Check, Status, check};

/// Reports systemd-oomd and the kubelet, if they run: what makes them act, and how the agent stays clear of it.
pub(super) fn killers(roots: &Roots) -> Vec<Check> {
    let killers = Killers::read(roots);
    let reserve = killers.swap_reserve();
    let oomd = killers.oomd.map(|Oomd { swap_used_limit, pressure_limit }| {
        let what = format!(
            "kills when more than {swap_used_limit} of both memory and swap is used, and units with ManagedOOMMemoryPressure=kill at a \
             pressure of {pressure_limit} unless they state another; the agent leaves {reserve} of swap free"
        );
        check("systemd-oomd", Status::Ok, what, "")
    });
    let kubelet = killers.kubelet.map(|Kubelet { eviction, swap }| {
        let eviction = eviction.unwrap_or_else(|| "100Mi, its default".to_owned());
        let evicts = format!("evicts pods below memory.available = {eviction}; swap and zswap do not count there");
        if swap {
            return check("kubelet", Status::Ok, evicts, "");
        }
        let remedy = "set memorySwap.swapBehavior: LimitedSwap in its configuration; LimitedSwap opens swap to Burstable pods only";
        check("kubelet", Status::Advice, format!("{evicts}. Swap of pods is closed, so only their page cache can be reclaimed"), remedy)
    });
    oomd.into_iter().chain(kubelet).collect()
}
