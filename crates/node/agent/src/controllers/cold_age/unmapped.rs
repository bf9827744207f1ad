//! Memory in DRAM that no process maps, and that trackers of mapped pages cannot see.

use config::{Actuator, Tracker};
use policy::tiering::row::Accounting;
use units::Pages;

use crate::actuators;
use crate::context::Context;
use crate::job::Job;

/// Pages of the swap cache that a plan asks the generations for, beside the pages that its tracker has counted.
///
/// zswap refuses a page that does not compress. Before the job's tier is known its pages may not pass zswap, and the kernel keeps
/// what was refused in the swap cache, in its youngest generation: unmapped, dirty, in DRAM (`mm/page_io.c`, `swap_writeout`). A
/// sample of mapped pages does not have it, so that no plan would ask for it. It is idle, since an access would map it. Once the job's
/// memory goes to a device, it leaves with the generations that are old enough: what is younger stays for now.
pub(super) fn pages(job: &Job, context: &Context) -> Pages {
    let (kind, configured) = (job.tracker.0, context.config.agent.actuator);
    let counts_mapped = matches!(kind, Tracker::Sampled | Tracker::SampledFrames);
    let by_generation = actuators::choose(configured, kind) == Actuator::LruGen && context.kernel.lru.is_some();
    let to_device = job.tiering.tier().is_some_and(|tier| tier.accounting != Accounting::Compressed);
    let asked = counts_mapped && by_generation && to_device;
    if asked { job.signals.unmapped.to_pages(kernel::page_size()) } else { Pages::ZERO }
}
