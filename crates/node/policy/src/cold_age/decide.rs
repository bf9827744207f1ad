//! The decision that follows from a threshold, or from a part.

use units::{Age, Pages};

use super::partial::{Part, far};
use super::{Decision, Hold, Input, Params, Reason};
use crate::thresholds::Thresholds;
use crate::veto::Veto;

/// Indices of the threshold by the percentile, by rules 2 and 3, and with the bound; whether no observation is complete.
pub(super) struct Choice {
    pub(super) percentile: usize,
    pub(super) past: usize,
    pub(super) chosen: usize,
    pub(super) young: bool,
}

/// Decides by a threshold of which all pages may go out.
pub(super) fn by_threshold(params: &Params, input: &Input, thresholds: &Thresholds, choice: &Choice) -> Decision {
    let &Choice { percentile, past, chosen, young } = choice;
    let threshold = thresholds.get(chosen);
    match (hold(params, input, threshold), threshold) {
        (Some(Hold::NoThresholdQualifies), _) if young || past < thresholds.len() => Decision::Hold { reason: Hold::ShortHistory },
        (Some(reason), _) => Decision::Hold { reason },
        (None, None) => Decision::Hold { reason: Hold::NoThresholdQualifies },
        (None, Some(_)) if chosen >= input.reached(thresholds) => Decision::Hold { reason: Hold::OutOfReach },
        (None, Some(threshold)) => match input.resident.at_or_above(chosen) {
            Pages::ZERO => Decision::Hold { reason: Hold::NothingCold },
            pages => {
                let reason = match chosen {
                    _ if chosen > past => Reason::ShortHistory,
                    _ if past > percentile => Reason::Spike,
                    _ => Reason::Percentile,
                };
                Decision::Offload { threshold, pages, reason }
            }
        },
    }
}

/// Decides by a part of the cold pages.
pub(super) fn by_part(params: &Params, input: &Input, thresholds: &Thresholds, part: Part) -> Decision {
    let threshold = thresholds.get(part.index);
    match (hold(params, input, threshold), threshold) {
        (Some(reason), _) => Decision::Hold { reason },
        (None, None) => Decision::Hold { reason: Hold::NoThresholdQualifies },
        (None, Some(threshold)) => match (part.far_max - far(input)).min(input.resident.at_or_above(part.index)) {
            Pages::ZERO => Decision::Hold { reason: Hold::PartIsFar },
            pages => Decision::Offload { threshold, pages, reason: Reason::Partial },
        },
    }
}

/// Returns the reason to hold, the most fundamental first.
pub(super) fn hold(params: &Params, input: &Input, threshold: Option<Age>) -> Option<Hold> {
    if let Some(veto @ (Veto::ObserveOnly | Veto::OtherPolicy)) = input.veto {
        return Some(Hold::Vetoed(veto));
    }
    if input.job_age_ms < params.warmup_ms {
        return Some(Hold::WarmingUp);
    }
    if threshold.is_none() {
        return Some(Hold::NoThresholdQualifies);
    }
    input.veto.map(Hold::Vetoed)
}
