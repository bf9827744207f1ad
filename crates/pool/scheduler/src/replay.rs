//! Decisions of a log, made again: to check them, and to ask what another policy would have done.

use std::collections::BTreeSet;
use std::path::Path;

use placement::{Limit, Strategy};
use serde::Serialize;
use units::{RatioPpm, Slices};

use crate::api::{Spread, VmRequest};
use crate::event::{Entry, Event, Host, PoolOfHosts, Topology};
pub use crate::log_file::Error;
use crate::log_file::{self, follow};
use crate::state::{Inconsistent, State};

/// Most decisions that are listed.
const SHOWN_MAX: usize = 20;

/// A decision that is not the recorded one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Number of the entry.
    pub sequence: u64,
    /// Name of the VM.
    pub vm: String,
    /// The host of the log; `None` if it was refused.
    pub recorded: Option<Host>,
    /// The host now.
    pub replayed: Option<Host>,
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Decisions in the log.
    pub decisions: u64,
    /// Of them, those that differ now.
    pub differ: u64,
    /// Requests that no host could hold, by the log.
    pub refused_recorded: u64,
    /// The same, now.
    pub refused_replayed: u64,
    /// Requests that got less pool memory than they could have had, by the log.
    pub local_recorded: u64,
    /// The same, now.
    pub local_replayed: u64,
    /// Slices that VMs got at their start, by the log.
    pub slices_recorded: u64,
    /// The same, now.
    pub slices_replayed: u64,
    /// VMs that started where more of their group fail together now than their limit says; `None` if the simulator decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_limit_replayed: Option<u64>,
    /// The first decisions that differ.
    pub differences: Vec<Difference>,
}

/// A recorded decision.
pub(crate) struct Decision<'a> {
    /// Number of the entry.
    pub(crate) sequence: u64,
    pub(crate) vm: &'a str,
    /// The slices that it could have had.
    pub(crate) wanted: Slices,
    /// The host of the log; `None` if it was refused.
    pub(crate) recorded: Option<&'a Host>,
}

/// Makes every decision of a log again, each from the recorded state before it. A log that this program wrote has none that
/// differ.
///
/// # Errors
/// [`enum@Error`]
pub fn check(path: &Path) -> Result<Replayed, Error> {
    let (mut result, mut state) = (Replayed::default(), None);
    log_file::read(path, |entry| {
        if let (Some(before), Event::Decided { .. }) = (&state, &entry.event) {
            result.compare(before, &entry);
        }
        follow(&mut state, &entry.event)
    })?;
    Ok(result)
}

/// What is different from the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// Another placement policy.
    pub strategy: Option<Strategy>,
    /// Pools of so many times their slices, rounded down.
    pub pool_size: Option<RatioPpm>,
    /// Another limit of each group, and another mode; of VMs without a group nothing changes.
    pub spread: Option<Limit>,
}

/// Decides all requests of a log again by another policy, with pools of another size, or with another limit of groups. VMs stay where they are placed now, and those
/// that are refused now do not run. VMs that the log refused run to its end, if they are placed: nothing is known of their lives. What
/// the pools' managers could assign is not what they could have assigned then, so slices are only counted.
///
/// # Errors
/// [`enum@Error`]
pub fn what_if(path: &Path, what_if: WhatIf) -> Result<Replayed, Error> {
    let (mut result, mut state) = (Replayed::default(), None::<State>);
    let mut absent = BTreeSet::new();
    log_file::read(path, |Entry { sequence, time_ms, who, event }| {
        let event = match event {
            Event::Topology(topology) => Event::Topology(what_if.of(topology)),
            Event::Kept { id, request, on } => Event::Kept { id, request: what_if.requested(request), on },
            Event::Grantable { .. } => return Ok(()),
            Event::Ended { vm } if absent.remove(&vm) => return Ok(()),
            Event::Decided { id, request, on } => {
                let Some(before) = &state else { return Err(Inconsistent("a log begins with a topology".to_owned())) };
                let request = what_if.requested(request);
                if let Some(runs) = before.running_vm(&request.vm) {
                    // The log refused it before, and it was requested again.
                    let (vm, wanted) = (&request.vm, before.slices(&request));
                    let decision = Decision { sequence, vm, wanted, recorded: on.as_ref() };
                    result.count(&decision, Some(&before.on(&runs.placement, runs.slices)));
                    return Ok(());
                }
                let now =
                    result.compare(before, &Entry { sequence, time_ms, who, event: Event::Decided { id, request: request.clone(), on } });
                if now.is_none() {
                    absent.insert(request.vm.clone());
                }
                Event::Decided { id, request, on: now }
            }
            other => other,
        };
        follow(&mut state, &event)
    })?;
    Ok(result)
}

impl WhatIf {
    fn requested(self, request: VmRequest) -> VmRequest {
        let limited = |spread: Spread| match self.spread {
            Some(Limit { most, mode }) => Spread { limit: most, mode, ..spread },
            None => spread,
        };
        VmRequest { spread: request.spread.map(limited), ..request }
    }

    fn of(self, topology: Topology) -> Topology {
        let slices = |Slices(slices)| {
            let sized = self.pool_size.map_or(u64::from(slices), |size| size.share_of(u64::from(slices)));
            Slices(u32::try_from(sized).unwrap_or(u32::MAX))
        };
        let pools = topology.pools.into_iter().map(|pool| PoolOfHosts { managed: false, slices: slices(pool.slices), ..pool }).collect();
        Topology { strategy: self.strategy.unwrap_or(topology.strategy), pools, ..topology }
    }
}

impl Replayed {
    /// Decides a recorded request again, and counts. Returns the host now.
    fn compare(&mut self, before: &State, entry: &Entry) -> Option<Host> {
        let Event::Decided { id, request, on: recorded } = &entry.event else { return None };
        let replayed = before.place(*id, request);
        let over = replayed.as_ref().is_some_and(|on| before.is_over(request, on));
        *self.over_limit_replayed.get_or_insert(0) += u64::from(over);
        let (vm, wanted) = (&request.vm, before.slices(request));
        self.count(&Decision { sequence: entry.sequence, vm, wanted, recorded: recorded.as_ref() }, replayed.as_ref());
        replayed
    }

    /// Counts a decision and what it is now.
    pub(crate) fn count(&mut self, decision: &Decision<'_>, replayed: Option<&Host>) {
        let Decision { sequence, vm, wanted, recorded } = *decision;
        self.decisions += 1;
        self.refused_recorded += u64::from(recorded.is_none());
        self.refused_replayed += u64::from(replayed.is_none());
        let all_local = |on: Option<&Host>| u64::from(on.is_some_and(|on| on.slices < wanted));
        let slices = |on: Option<&Host>| on.map_or(0, |on| u64::from(on.slices.0));
        self.slices_recorded += slices(recorded);
        self.slices_replayed += slices(replayed);
        self.local_recorded += all_local(recorded);
        self.local_replayed += all_local(replayed);
        if replayed != recorded {
            self.differ += 1;
            if self.differences.len() < SHOWN_MAX {
                let (recorded, replayed) = (recorded.cloned(), replayed.cloned());
                self.differences.push(Difference { sequence, vm: vm.to_owned(), recorded, replayed });
            }
        }
    }
}
