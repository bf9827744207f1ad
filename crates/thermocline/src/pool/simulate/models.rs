//! Trained models behind the policy `models`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::{Result, bail};
use predict::Reason;
use simulator::latency::Latency;
use simulator::predictions::{self, Counters, Input, Models, Predictions};
use vmtrace::{Trace, Vm};

use super::Row;
use super::arguments::{Simulate, Split};

/// Models, and what they are asked with.
#[derive(Debug)]
pub(super) struct Asking {
    models: Models,
    counters: Option<Counters>,
}

impl Asking {
    /// Reads what the arguments name; none where they name no models.
    pub(super) fn of(arguments: &Simulate) -> Result<Option<Self>> {
        let Some(directory) = &arguments.models else {
            if arguments.memory.contains(&Split::Models) {
                bail!("--memory models asks trained models; name their directory by --models");
            }
            return Ok(None);
        };
        let models = Models::load(directory)?;
        for fault in models.errors() {
            log::warn!("{fault}; the night goes by the model before it");
        }
        let counters = arguments.counters.as_deref().map(Counters::read).transpose()?;
        Ok(Some(Self { models, counters }))
    }

    /// When the first model comes into force, in seconds of the trace.
    pub(super) fn begins(&self) -> i64 {
        self.models.valid_from()
    }

    /// What is wrong with models that were left out.
    pub(super) fn faults(&self) -> &[String] {
        self.models.errors()
    }

    /// What the models say of the trace's VMs, by what an access to the pool takes longer.
    pub(super) fn predict(&self, vms: &[Vm], trace: &Trace, arguments: &Simulate) -> BTreeMap<u32, Predictions> {
        if !arguments.memory.contains(&Split::Models) {
            return BTreeMap::new();
        }
        let sizes = |latency: Latency| arguments.pool_sizes.iter().map(move |&sockets| latency.added_ns(sockets));
        let added: BTreeSet<u32> = arguments.latency.iter().flat_map(|&latency| sizes(latency)).collect();
        let margin = arguments.margin.as_f64();
        let told = added.into_iter().map(|added_ns| {
            let asked = Input { vms, names: &trace.about().names, counters: self.counters.as_ref(), added_ns, margin };
            let predictions = predictions::predict(&self.models, asked);
            for alert in &predictions.quality.alerts {
                log::warn!("at {added_ns} ns, {:.1} % of decisions: {}", alert.ratio * 100.0, alert.message);
            }
            (added_ns, predictions)
        });
        told.collect()
    }

    /// The VMs that still run when the first model comes into force, as if they came then, and those that come later.
    pub(super) fn since_then(&self, mut vms: Vec<Vm>) -> Result<Vec<Vm>> {
        let begins = self.begins();
        vms.retain(|vm| vm.departure.is_none_or(|departure| departure > begins));
        if vms.last().is_none_or(|last| last.arrival < begins) {
            bail!("no VM comes after second {begins}, when the training of the first model ended; name models of this trace's nights");
        }
        for vm in &mut vms {
            vm.arrival = vm.arrival.max(begins);
        }
        Ok(vms)
    }
}

/// What the models said, once for each latency.
pub(super) fn text(text: &mut String, rows: &[Row<'_>]) {
    let mut told = BTreeMap::new();
    for row in rows {
        if let Some(quality) = row.prediction_quality {
            told.insert(row.added_ns, quality);
        }
    }
    for (added_ns, quality) in told {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let _ = writeln!(
            text,
            "\nmodels at {added_ns} ns, of {} VMs: {} insensitive ({} wrongly), {} with counters; {} of memory untouched, {} of VMs overpredicted ({} in whole GiB)",
            quality.vms,
            percent(quality.insensitive_ratio),
            percent(quality.false_positive_ratio),
            percent(quality.with_counters_ratio),
            percent(quality.untouched_ratio),
            percent(quality.overpredicted_ratio),
            percent(quality.overpredicted_in_slices_ratio),
        );
        let safe = Reason::ALL.into_iter().filter(|reason| reason.is_safe_answer()).map(|reason| (reason, quality.reasons.of(reason)));
        for (reason, count) in safe.filter(|(_, count)| *count > 0) {
            let _ = writeln!(text, "{count:>10} all local: {}", reason.name());
        }
    }
}
