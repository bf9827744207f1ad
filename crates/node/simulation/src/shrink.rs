//! Removes the faults that a violation does not need.

use crate::plan::Plan;
use crate::run::run;

/// The plan with as few faults as still break a promise: none of those that are left can be left out.
///
/// # Errors
/// As [`run`].
pub fn shrink(plan: &Plan) -> anyhow::Result<Plan> {
    let mut smallest = plan.clone();
    let mut at = 0;
    while at < smallest.faults.len() {
        let mut fewer = smallest.clone();
        fewer.faults.remove(at);
        if run(&fewer)?.violations.is_empty() {
            at += 1;
        } else {
            smallest = fewer;
            at = 0;
        }
    }
    Ok(smallest)
}
