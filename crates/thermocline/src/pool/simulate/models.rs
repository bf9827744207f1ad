//! Trained models for the memory policy `models`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::{Result, bail};
use predict::{Evidence, Reason};
use simulator::latency::Latency;
use simulator::predictions::{self, Counters, Input, Models, Predictions};
use vmtrace::{Trace, Vm};

use super::arguments::{Simulate, Split};
use super::report::Row;

/// Trained models with the counters that they take as input.
#[derive(Debug)]
pub(super) struct TrainedModels {
    models: Models,
    counters: Option<Counters>,
}

impl TrainedModels {
    /// Reads the models that the arguments name; `None` without `--models`.
    pub(super) fn of(arguments: &Simulate) -> Result<Option<Self>> {
        let Some(directory) = &arguments.models else {
            if arguments.memory.contains(&Split::Models) {
                bail!("--memory models needs trained models; give their directory by --models");
            }
            return Ok(None);
        };
        let models = Models::load(directory)?;
        for fault in models.errors() {
            log::warn!("{fault}; the previous model is used for that night");
        }
        let counters = arguments.counters.as_deref().map(Counters::read).transpose()?;
        Ok(Some(Self { models, counters }))
    }

    /// Start of validity of the first model, in seconds of the trace.
    pub(super) fn begins(&self) -> i64 {
        self.models.valid_from()
    }

    /// Errors of models that were left out.
    pub(super) fn faults(&self) -> &[String] {
        self.models.errors()
    }

    /// Predictions for the trace's VMs, by added latency of a pool access in ns.
    pub(super) fn predict(&self, vms: &[Vm], trace: &Trace, arguments: &Simulate) -> BTreeMap<u32, Predictions> {
        if !arguments.memory.contains(&Split::Models) {
            return BTreeMap::new();
        }
        let sizes = |latency: Latency| arguments.pool_sizes.iter().map(move |&sockets| arguments.added_ns(latency, sockets));
        let added: BTreeSet<u32> = arguments.latency.iter().flat_map(|&latency| sizes(latency)).collect();
        let margin = arguments.margin.as_f64();
        let run_seconds = i64::try_from(arguments.counters_after.as_secs()).unwrap_or(i64::MAX);
        let evidence = Evidence { agree: usize::from(arguments.counters_agree), run_seconds };
        let predictions = added.into_iter().map(|added_ns| {
            let input = Input { vms, names: &trace.about().names, counters: self.counters.as_ref(), added_ns, margin, evidence };
            let predictions = predictions::predict(&self.models, input);
            for alert in &predictions.quality.alerts {
                log::warn!("at {added_ns} ns, {:.1} % of decisions: {}", alert.ratio * 100.0, alert.message);
            }
            (added_ns, predictions)
        });
        predictions.collect()
    }

    /// The VMs that arrive after the first model became valid, and those that run at that time, as if they arrived then.
    pub(super) fn since_first_model(&self, mut vms: Vec<Vm>) -> Result<Vec<Vm>> {
        let begins = self.begins();
        vms.retain(|vm| vm.departure.is_none_or(|departure| departure > begins));
        if vms.last().is_none_or(|last| last.arrival < begins) {
            bail!(
                "no VM arrives after second {begins}, when the training of the first model ended; give models that were trained on this trace"
            );
        }
        for vm in &mut vms {
            vm.arrival = vm.arrival.max(begins);
        }
        Ok(vms)
    }
}

/// Quality of the predictions, once for each latency.
pub(super) fn text(text: &mut String, rows: &[Row<'_>]) {
    let mut by_latency = BTreeMap::new();
    for row in rows {
        if let Some(quality) = row.prediction_quality {
            by_latency.insert(row.added_ns, quality);
        }
    }
    for (added_ns, quality) in by_latency {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let _ = writeln!(
            text,
            "\nmodels at {added_ns} ns, {} VMs: {} insensitive ({} wrongly), {} of a known workload; {} of memory untouched, {} of VMs overpredicted ({} in whole GiB)",
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
