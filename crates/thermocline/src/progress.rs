//! Progress of long commands on a terminal.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

const DRAWS_PER_SECOND: u8 = 5;

/// Before this no time is estimated.
const ESTIMATED_AFTER: Duration = Duration::from_secs(3);

/// Shows how many of `total` items are done and the time that is left, on standard error if that is a terminal, until it is
/// dropped. A total of 0 is unknown.
pub(crate) fn progress(what: &'static str, total: u64) -> ProgressBar {
    let (total, template) = if total > 0 { (Some(total), "{pos} of {len} {msg}{left}") } else { (None, "{pos} {msg}") };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner()).with_key("left", left);
    ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND)).with_style(style).with_message(what)
}

/// Nothing in the first seconds: the first items may differ from the others.
fn left(state: &ProgressState, out: &mut dyn Write) {
    if state.elapsed() >= ESTIMATED_AFTER && !state.eta().is_zero() {
        let _ = write!(out, ", about {:#} left", HumanDuration(state.eta()));
    }
}
