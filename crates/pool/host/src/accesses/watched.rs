//! Accesses by DAMON: one kdamond samples single pages of the process during a window, and then ends.

use std::time::Duration;

use fastrand::Rng;
use kernel::damon::{Damon, Points};
use kernel::pagemap::Pagemap;
use kernel::smaps::Mapping;
use kernel::{Error, Result, Roots, process};

use super::Accessed;
use super::pages::Sample;

/// Pages of all mappings that are watched. Each costs two writes to sysfs at the start and a read at the end.
const WATCHED_MAX: usize = 2_048;

/// Bounds of the sampling interval. Every interval is watched as a whole, whatever its length; the kernel's handle takes no shorter
/// ones, and with longer ones the end would be late.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(500);
const INTERVAL_MAX: Duration = Duration::from_secs(5);

/// Watches sampled pages of each mapping for `window`, which `wait` waits for. Returns also the CPU time of the kdamond.
///
/// # Errors
/// [`Error::Busy`] if DAMON is used by another program; [`Error::Unsupported`]; [`Error::Gone`]; [`Error::Io`].
pub(super) fn sample(
    roots: &Roots,
    pid: i32,
    mappings: &[Mapping],
    window: Duration,
    wait: impl FnOnce(Duration),
) -> Result<(Vec<Accessed>, Duration)> {
    let damon = Damon::probe(roots)?;
    let pagemap = Pagemap::open(roots, pid)?;
    let mut random = Rng::with_seed(super::seed());
    let limit = WATCHED_MAX / mappings.len().max(1);
    let mut samples = Vec::with_capacity(mappings.len());
    for mapping in mappings {
        samples.push(Sample::draw(&pagemap, mapping.vma.range(), limit.max(1), &mut random)?);
    }
    let addresses: Vec<u64> = samples.iter().flat_map(|sample| &sample.pages).map(|page| page.address).collect();
    if addresses.is_empty() {
        wait(window);
        return Ok((vec![Accessed::default(); mappings.len()], Duration::ZERO));
    }
    let interval = (window / 4).clamp(INTERVAL_MIN, INTERVAL_MAX);
    let mut session = damon.watch_points(interval, &[Points { pid, addresses }])?;
    wait(window);
    let counts = session.counts();
    let cpu = session.kdamond_pid().and_then(|kdamond| process::stat(roots, kdamond).ok()).map_or(Duration::ZERO, |stat| stat.cpu_time());
    session.stop()?;
    let Some(counts) = counts?.accessed.into_iter().next().flatten() else {
        return Err(Error::Gone { path: roots.proc.join(pid.to_string()) });
    };
    let mut counts = counts.into_iter();
    let accessed = |sample: &Sample| {
        let watched = sample.pages.len();
        sample.accessed(counts.by_ref().take(watched).filter(|&count| count > 0).count(), watched)
    };
    Ok((samples.iter().map(accessed).collect(), cpu))
}
