//! The choice of a rate tracker.

use kernel::{Error, Result, Roots};

use super::tracker::RateTracker;
use super::{damon, page_idle, perf};

/// Opens the best tracker that this kernel offers: idle page tracking, which sees every access, else DAMON. Hardware samples
/// are used only if `access_sampling` requests them, without a fallback.
///
/// # Errors
/// `Busy` if only DAMON is available and another program uses it; `Unsupported`, with the remedy, if neither is available, or
/// hardware samples are requested and are not.
pub fn choose(roots: &Roots, access_sampling: bool) -> Result<Box<dyn RateTracker>> {
    if access_sampling {
        return Ok(Box::new(perf::Perf::open(roots)?));
    }
    let without = match page_idle::PageIdle::open(roots) {
        Ok(tracker) => return Ok(Box::new(tracker)),
        Err(error) if error.is_unsupported() => error,
        Err(error) => return Err(error),
    };
    match damon::Damon::open(roots) {
        Ok(tracker) => Ok(Box::new(tracker)),
        Err(error) if error.is_unsupported() => Err(Error::Unsupported {
            what: format!("this kernel offers no way to measure access rates: {without}"),
            remedy: format!("or: {error}"),
        }),
        Err(error) => Err(error),
    }
}
