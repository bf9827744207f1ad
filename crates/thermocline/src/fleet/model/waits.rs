//! `thermocline model --policy pressure` and `--policy slowdown`.

use std::fmt::Write;
use std::num::NonZero;

use ::model::fleet::{self, Account, Label, Source};
use ::model::series::Series;
use ::model::tally::ratio;
use ::model::waits::{Controller, Setup, Waits};
use anyhow::{Context, Result, bail};
use config::{Class, Config, Tier};
use serde::Serialize;
use units::{Bytes, RatioPpm};

use super::arguments::{self, Modelled};
use super::read;
use crate::options::Format;
use crate::output::print;
use crate::table::Table;

/// By which factor live agents may differ from the answer, in both directions. `pressure` follows stalls and `slowdown` the rates of
/// blocks, and a trace of ages has neither: in runs of scenario `model_error` the answer was 0.55 to 1.61 times what the agent moved.
const UNSURE: f64 = 2.0;

/// The classes whose budgets differ, each with its account.
struct ByClass([(Class, Waits); 3]);

impl ByClass {
    fn new(config: &Config, arguments: &arguments::Model, page_bytes: Bytes) -> Result<Self> {
        let given = arguments.tier_latency.map(units::nanos);
        let setup = |class| match arguments.policy {
            Modelled::ColdAge => bail!("cold_age is not judged by the time that far memory costs"),
            Modelled::Pressure => Ok(Setup {
                controller: Controller::Pressure(config.pressure_for(class), config.pressure.period.into()),
                latency_ns: given.context("give --tier-latency, the latency of one promotion, such as 30us from zswap")?,
                page_bytes,
                compressed: config.agent.tier != Tier::Swap,
            }),
            Modelled::Slowdown => {
                let none = "give --tier-latency, or set slow.latency: what one access to slow memory takes, such as 300ns";
                let latency_ns = given.or_else(|| config.slow.latency_ns()).context(none)?;
                let params = config.slowdown_for(class, latency_ns);
                let controller = Controller::Slowdown(params, config.slow.period.into());
                Ok(Setup { controller, latency_ns, page_bytes, compressed: false })
            }
        };
        let account = |class| Ok::<_, anyhow::Error>((class, Waits::new(setup(class)?)));
        Ok(Self([account(Class::Standard)?, account(Class::Conservative)?, account(Class::Aggressive)?]))
    }
}

impl Account for ByClass {
    fn job(&mut self, label: &Label, series: &Series) {
        // Jobs without a class, as in a generated fleet, count as standard.
        let index = self.0.iter().position(|(class, _)| class.as_str() == label.class).unwrap_or(0);
        if let Some((_, waits)) = self.0.get_mut(index) {
            waits.job(label, series);
        }
    }

    fn merge(&mut self, other: Self) {
        for ((_, mine), (_, theirs)) in self.0.iter_mut().zip(other.0) {
            mine.merge(theirs);
        }
    }
}

/// The answer.
#[derive(Debug, Serialize)]
struct Report {
    generated: bool,
    policy: &'static str,
    /// Latency of one promotion or access.
    tier_latency_seconds: f64,
    classes: Vec<Row>,
}

/// The result of one class.
#[derive(Debug, Serialize)]
struct Row {
    class: &'static str,
    /// The budget, as a share of time.
    lost_max_ratio: f64,
    jobs: u64,
    entries: u64,
    /// Mean over the span, like all byte figures.
    used_bytes: f64,
    cold_bytes: f64,
    far_bytes: f64,
    /// What a live agent may have in far memory ([`UNSURE`]).
    far_interval_bytes: [f64; 2],
    saved_bytes: f64,
    saved_ratio: f64,
    coverage_ratio: f64,
    lost_mean_ratio: f64,
    /// At the objective's percentile of the entries with far memory; `null` without such entries, or if it is all of their time.
    lost_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_worth: Option<f64>,
}

/// Replays a source under the configured parameters of the policy.
pub(super) fn model<S: Source<Error: std::error::Error + Sync + 'static>>(
    config: &Config,
    arguments: &arguments::Model,
    source: &S,
    page_bytes: Bytes,
    threads: NonZero<usize>,
    format: Format,
) -> Result<()> {
    if arguments.by.is_some()
        || arguments.survey
        || !arguments.what_if.is_empty()
        || arguments.tally.is_some()
        || arguments.resume.is_some()
    {
        bail!("--by, --survey, --what-if, --tally and --resume are of policy cold_age; compare others by --set in two calls");
    }
    // Checked before anything is read.
    ByClass::new(config, arguments, page_bytes)?;
    let open = || ByClass::new(config, arguments, page_bytes).ok();
    let accounts = read(source, &fleet::all(source), threads, open)?.context("no account was kept")?;
    let mut latency_ns = 0;
    let rows = accounts.0.iter().filter(|(_, waits)| waits.jobs > 0).map(|(class, waits)| {
        latency_ns = waits.setup().latency_ns;
        row(*class, waits, page_bytes, arguments)
    });
    let classes: Vec<Row> = rows.collect();
    let policy = if arguments.policy == Modelled::Pressure { "pressure" } else { "slowdown" };
    let generated = arguments.generate.is_some() || arguments.resample.is_some();
    let report = Report { generated, policy, tier_latency_seconds: ratio(u128::from(latency_ns), 1_000_000_000), classes };
    print(format, &report, || text(&report, arguments.objective_percentile))
}

fn row(class: Class, waits: &Waits, page_bytes: Bytes, arguments: &arguments::Model) -> Row {
    let span_ms = waits.span_unix_ms.map_or(0, |(begins, ends)| u128::from(ends.since(begins).0));
    let bytes = |page_ms: u128| ratio(page_ms * u128::from(page_bytes.0), span_ms);
    let saved_bytes = bytes(waits.far_page_ms.saturating_sub(waits.pool_page_ms));
    let lost_max: RatioPpm = match waits.setup().controller {
        Controller::Pressure(params, _) => params.stall_target,
        Controller::Slowdown(params, _) => params.slowdown,
    };
    Row {
        class: class.as_str(),
        lost_max_ratio: lost_max.as_f64(),
        jobs: waits.jobs,
        entries: waits.entries,
        used_bytes: bytes(waits.used_page_ms),
        cold_bytes: bytes(waits.cold_page_ms),
        far_bytes: bytes(waits.far_page_ms),
        far_interval_bytes: [bytes(waits.far_page_ms) / UNSURE, bytes(waits.far_page_ms) * UNSURE],
        saved_bytes,
        saved_ratio: ratio(waits.far_page_ms.saturating_sub(waits.pool_page_ms), waits.used_page_ms),
        coverage_ratio: waits.coverage(),
        lost_mean_ratio: waits.lost_mean(),
        lost_ratio: waits.lost(arguments.objective_percentile).filter(|lost| lost.is_finite()),
        saved_worth: arguments.dram_price_per_gib.map(|price| saved_bytes / f64::from(1 << 30) * price),
    }
}

fn text(report: &Report, percentile: RatioPpm) -> String {
    let mut text = String::new();
    if report.generated {
        text += "a generated fleet: nothing here was measured\n";
    }
    let latency = units::quantity::print_duration(std::time::Duration::from_secs_f64(report.tier_latency_seconds));
    let _ = writeln!(text, "policy {}, {latency} for each access to far memory", report.policy);
    let at = format!("lost at {percentile}");
    let worth = if report.classes.iter().any(|row| row.saved_worth.is_some()) { "worth" } else { "" };
    let headings = ["<class", "jobs", "used", "cold", "far", "saved", "of memory", "may lose", "lost, mean", &at, worth];
    let mut table = Table::new(&headings);
    for row in &report.classes {
        table.row(&[
            &row.class,
            &row.jobs,
            &bytes(row.used_bytes),
            &bytes(row.cold_bytes),
            &bytes(row.far_bytes),
            &bytes(row.saved_bytes),
            &percent(row.saved_ratio),
            &percent(row.lost_max_ratio),
            &percent(row.lost_mean_ratio),
            &row.lost_ratio.map_or_else(|| "-".to_owned(), percent),
            &row.saved_worth.map(|worth| format!("{worth:.0}")).unwrap_or_default(),
        ]);
    }
    text += &table.to_string();
    let _ = writeln!(text, "an order of magnitude: live agents had {:.1} to {UNSURE:.1} times as much in far memory", 1.0 / UNSURE);
    text
}

fn percent(ratio: f64) -> String {
    format!("{:.3}%", ratio * 100.0)
}

fn bytes(bytes: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with one decimal; saturates")]
    Bytes(bytes as u64).to_string()
}
