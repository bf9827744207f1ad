//! `thermocline plan`: recommended memory limits and promises, as a table.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use advise::plan::{self, Cold, JobPlan, MachinePlan, Options, Saving};
use agent::journal::Journal;
use anyhow::{Context, Result};
use clap::Args;
use config::Config;
use kernel::{Roots, meminfo};
use units::{Bytes, RatioPpm};

use super::kept::Kept;
use crate::options::Format;
use crate::output::print;
use crate::table::Table;
use crate::values::size;

#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Journal files of one machine, in any order [default: those in the configured agent.state_dir, or what `observe` kept]
    #[arg(value_name = "JOURNAL")]
    pub(crate) journals: Vec<std::path::PathBuf>,
    /// Share of control periods in which a limit or the promise may be exceeded
    #[arg(long, value_name = "RATIO", default_value = "1%", value_parser = risk)]
    pub(crate) risk: RatioPpm,
    /// Show only jobs whose cgroup matches; sums of the machine include all jobs
    #[arg(long, value_name = "PATTERN")]
    pub(crate) job: Option<String>,
    /// The machine's DRAM, such as 256GiB [default: this machine's, unless journals are named]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) dram: Option<Bytes>,
    /// Prices of slow memory as shares of DRAM's price, such as 0.25 or 20%: prints what it would save of the cost of DRAM
    #[arg(long = "tier-cost", value_name = "RATIO", value_delimiter = ',', value_parser = tier_cost)]
    pub(crate) tier_costs: Vec<RatioPpm>,
}

pub(super) fn risk(text: &str) -> Result<RatioPpm, String> {
    let ratio = units::quantity::parse_ratio(text).map_err(|invalid| invalid.to_string())?;
    if ratio == RatioPpm(0) || ratio >= RatioPpm::ONE {
        return Err("out of range; give a risk above 0 and below 100%, such as 0.1%".to_owned());
    }
    Ok(ratio)
}

fn tier_cost(text: &str) -> Result<RatioPpm, String> {
    let ratio = units::quantity::parse_ratio(text).map_err(|invalid| invalid.to_string())?;
    if ratio >= RatioPpm::ONE {
        return Err("slow memory at DRAM's price saves nothing; give its share of DRAM's price, below 1, such as 0.25".to_owned());
    }
    Ok(ratio)
}

/// Width of the job column; a longer name has a line of its own.
const NAME_WIDTH: usize = 28;

/// `thermocline plan`.
pub(crate) fn plan(roots: &Roots, config: &Config, format: Format, arguments: &Plan) -> Result<()> {
    let (job, tier_costs) = (arguments.job.clone(), arguments.tier_costs.clone());
    let mut options = Options { risk: arguments.risk, job, dram: arguments.dram, tier_costs };
    let directory = journals(&config.agent.state_dir);
    let advice = if arguments.journals.is_empty() {
        if options.dram.is_none() {
            options.dram = Some(meminfo::read(roots)?.total);
        }
        plan::of_directory(&directory, &options)
    } else {
        plan::of_files(&arguments.journals, &options)
    };
    let from = || arguments.journals.first().unwrap_or(&directory).display().to_string();
    let advice = advice.with_context(|| format!("cannot plan from {}", from()))?;
    print(format, &advice, || text(&advice))
}

/// The directory of the agent's journal, or of that of `observe` where no agent ran.
fn journals(state_dir: &Path) -> PathBuf {
    let kept = Kept::below(state_dir);
    if Journal::path(state_dir).exists() || !Journal::path(kept.directory()).exists() {
        return state_dir.to_owned();
    }
    eprintln!("no agent has run on this machine: planning from what `thermocline observe` kept");
    kept.directory().to_owned()
}

fn text(plan: &plan::Plan) -> String {
    let mut text = machine(plan);
    let columns = [
        "<job",
        "observed",
        "without far",
        "with far",
        "working",
        "saved",
        "potential",
        "promotions",
        "stall",
        "limit",
        "above",
        "at most",
    ];
    let mut table = Table::new(&columns);
    for job in &plan.jobs {
        row(&mut table, job);
        for remark in remarks(job, plan) {
            table.remark(&format!("  {remark}\n"));
        }
    }
    let accepted = percent(plan.accepted_risk_ratio);
    let _ = write!(
        text,
        "\n{table}\nlimit: for memory.max; covers all but {accepted} of the periods, and what was promoted within the reaction time of the agent\n\
         above: share of the periods above that limit; at most: its upper bound for the future, {} confidence\n\
         without far, with far, working, promotions, stall: exceeded in 1% of the periods\n\
         saved, potential: available in all but {accepted} of the periods\n",
        percent(plan.confidence_ratio),
    );
    text
}

fn machine(plan: &plan::Plan) -> String {
    let machine = &plan.machine;
    let MachinePlan { periods, firm_saved_bytes, without_far_memory_bytes: without, memory_bytes: with, .. } = machine;
    let accepted = percent(plan.accepted_risk_ratio);
    let mut text = format!("all jobs together, over {} in {periods} periods\n", span(machine.span_seconds));
    let (without, with) = (Bytes(without.p99), Bytes(with.p99));
    let trackers: Vec<_> = plan.jobs_by_tracker.iter().map(|(tracker, jobs)| format!("{} ({jobs} jobs)", tracker_name(tracker))).collect();
    let _ = writeln!(text, "  page ages by {}", trackers.join(", "));
    let _ = writeln!(text, "  DRAM used in all but 1% of them: {with} with far memory, {without} without");
    let _ = write!(text, "  saved at the same time in all but {accepted} of them: {firm_saved_bytes}");
    let (less, at_most, sure) = (percent(machine.risk_ratio), percent(machine.risk_ratio_max), percent(plan.confidence_ratio));
    let _ = writeln!(text, "; less in {less}, in future in at most {at_most} ({sure} confidence)");
    match (machine.dram_bytes, machine.promise_bytes, machine.promise_ratio) {
        (Some(dram), Some(promise), Some(ratio)) => {
            let _ = writeln!(text, "  could be promised: {promise}, {ratio:.3} times its DRAM of {dram}");
        }
        _ => text += "  the promise depends on the machine's DRAM: give --dram SIZE\n",
    }
    if let Some(potential) = machine.firm_potential_bytes {
        let _ = writeln!(text, "  jobs in class observe could save {potential} before compression; not included");
    }
    if let Some(spending) = spending(machine.cold_ratio, machine.cold_ratio_by_tier, &machine.spending) {
        let _ = writeln!(text, "  {spending}");
    }
    if machine.too_short {
        let _ = writeln!(text, "  too short: {accepted} needs {} periods; the minimum of the observed savings is used", plan.periods_min);
    } else if let Some(remark) = slow(*periods, machine.independent_periods, plan.periods_min) {
        let _ = writeln!(text, "  {remark}");
    }
    text
}

fn row(table: &mut Table, job: &JobPlan) {
    let or_none = |shown: Option<String>| shown.unwrap_or_else(|| "-".to_owned());
    let name = table.job(&job.job, NAME_WIDTH);
    table.row(&[
        &name,
        &span(job.span_seconds),
        &Bytes(job.without_far_memory_bytes.p99),
        &Bytes(job.memory_bytes.p99),
        &Bytes(job.working_set_bytes.p99),
        &job.firm_saved_bytes,
        &or_none(job.firm_potential_bytes.map(|bytes| bytes.to_string())),
        &or_none(job.promotion_rate_p99_ratio_per_min.map(|rate| percent(rate) + "/min")),
        &or_none(job.stall_p99_ratio.map(percent)),
        // As memory.max and systemd take it.
        &format!("{}M", job.recommended_limit_bytes.0 >> 20),
        &percent(job.risk_ratio),
        &percent(job.risk_ratio_max),
    ]);
}

/// Remarks that qualify the numbers of a job.
fn remarks(job: &JobPlan, plan: &plan::Plan) -> Vec<String> {
    let mut remarks = Vec::new();
    if job.too_short {
        let (observed, required) = (job.periods, plan.periods_min);
        remarks.push(format!("too short: {observed} periods of {required} required; the limit is the observed maximum"));
    }
    if !job.too_short {
        remarks.extend(slow(job.periods, job.independent_periods, plan.periods_min));
    }
    if job.unresolved_periods > 0 {
        let (unresolved, tracker) = (job.unresolved_periods, tracker_name(&job.tracker));
        remarks.push(format!(
            "warning: in {unresolved} of {} periods the threshold was above the ages that {tracker} distinguishes; the potential is unknown \
             there and not included: set agent.tracker to \"sampled\" or \"page_idle\"",
            job.periods
        ));
    }
    if job.at_limit_periods > 0 {
        remarks.push(format!("at its limit in {} of {} periods: it may need more than was observed", job.at_limit_periods, job.periods));
    }
    if job.burst_bytes > Bytes::ZERO {
        let reaction = span(job.reaction_seconds);
        remarks.push(format!("used {}, and {} was promoted within {reaction}", job.covered_bytes, job.burst_bytes));
    }
    remarks.extend(spending(job.cold_ratio, job.cold_ratio_by_tier, &job.spending));
    if job.starts > 1 {
        remarks.push(format!("{} jobs of that name in sequence", job.starts));
    }
    if job.ended {
        remarks.push("ended before the journal did".to_owned());
    }
    remarks
}

fn tracker_name(tracker: &str) -> &str {
    if tracker.is_empty() { "an unknown tracker" } else { tracker }
}

/// What slow memory would save, if its price was given.
fn spending(cold: f64, by_tier: Cold<f64>, savings: &[Saving]) -> Option<String> {
    let one = |saving: &Saving| format!("{} at {} of DRAM's price", percent(saving.saved_ratio), percent(saving.tier_cost_ratio));
    let all: Vec<_> = savings.iter().map(one).collect();
    let Cold { far, slow, potential } = by_tier;
    let parts = [(far, "far"), (slow, "slow"), (potential, "could be offloaded")];
    let parts: Vec<_> =
        parts.into_iter().filter(|(share, _)| *share > 0.0).map(|(share, what)| format!("{} {what}", percent(share))).collect();
    let parts = if parts.len() > 1 { format!(" ({})", parts.join(", ")) } else { String::new() };
    (!all.is_empty()).then(|| format!("{}{parts} cold; slow memory would save of the cost of DRAM: {}", percent(cold), all.join(", ")))
}

/// A remark if the periods are correlated, so that fewer independent ones remain than required.
fn slow(periods: u64, independent: u64, required: u64) -> Option<String> {
    (independent < required)
        .then(|| format!("changes slowly: {periods} periods are worth {independent} independent ones; observe it for longer"))
}

fn percent(ratio: f64) -> String {
    let percent = ratio * 100.0;
    if percent > 0.0 && percent < 0.01 {
        // A small share is not shown as zero.
        return "<0.01%".to_owned();
    }
    let digits = format!("{percent:.2}");
    format!("{}%", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// A time in the largest unit that leaves at least one.
fn span(seconds: f64) -> String {
    let (scale, unit) =
        [(86_400.0, "d"), (3_600.0, "h"), (60.0, "min")].into_iter().find(|(scale, _)| seconds >= *scale).unwrap_or((1.0, "s"));
    format!("{:.1} {unit}", seconds / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_shares_are_not_shown_as_zero() {
        for (ratio, want) in [(0.0, "0%"), (1e-6, "<0.01%"), (0.01, "1%"), (0.082_03, "8.2%"), (0.0025, "0.25%"), (1.0, "100%")] {
            assert_eq!(percent(ratio), want);
        }
        for (seconds, want) in [(0.0, "0.0 s"), (59.0, "59.0 s"), (90.0, "1.5 min"), (7_200.0, "2.0 h"), (1_000_000.0, "11.6 d")] {
            assert_eq!(span(seconds), want);
        }
    }

    #[test]
    fn savings_are_split_by_location_of_cold_memory() {
        let quarter = [Saving { tier_cost_ratio: 0.25, saved_ratio: 0.3 }];
        let check = |by_tier: [f64; 3], want: &str| {
            let [far, slow, potential] = by_tier;
            let said = spending(0.4, Cold { far, slow, potential }, &quarter).unwrap();
            assert_eq!(said, format!("40%{want} cold; slow memory would save of the cost of DRAM: 30% at 25% of DRAM's price"));
        };
        check([0.4, 0.0, 0.0], "");
        check([0.1, 0.3, 0.0], " (10% far, 30% slow)");
        check([0.0, 0.3, 0.1], " (30% slow, 10% could be offloaded)");
        assert_eq!(spending(0.4, Cold::default(), &[]), None);
    }
}
