//! The model's answer as tables.

use std::fmt::Write;
use std::time::Duration;

use model::generate::fit::{NOT_SHOWN, Row};
use model::tally::ratio;
use units::Bytes;
use units::quantity::print_duration;

use super::agents::AsAgents;
use super::report::{Answer, FleetAsItIs, Pair, Report, TrackerRow, Worker, Written};
use super::tiers::TierRow;
use crate::table::Table;

/// The whole answer.
pub(crate) fn report(report: &Report) -> String {
    let mut text = String::new();
    if report.generated {
        text += "a generated fleet: nothing here was measured\n";
    }
    let days = report.span_seconds / 86_400.0;
    let (used, cold) = (bytes(report.used_bytes), percent(report.cold_bytes / report.used_bytes.max(1.0), 1));
    let _ = writeln!(text, "{} jobs, {} entries over {days:.1} d; {used} used, {cold} of it cold", report.jobs, report.entries);
    if report.jobs_without_sample > 0 {
        let _ = writeln!(text, "{} jobs were never sampled; they are taken to compress to a third", report.jobs_without_sample);
    }
    if report.row_groups_missing > 0 {
        let _ = writeln!(text, "{} row groups of the files are missing, and what is in them", report.row_groups_missing);
    }
    for row in &report.trackers {
        text += &tracker(row);
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let share = percent(report.objective_percentile_ratio, 0);
    let _ = writeln!(
        text,
        "objective: {share} of the entries with far memory on at or below {}/min of the working set",
        percent(report.objective_ratio_per_min, 3)
    );
    if let Some(fleet) = &report.fleet {
        text += &as_it_is(fleet);
    }
    for given in &report.answers {
        text += &answer(given);
    }
    if !report.tiers.is_empty() {
        text += &in_tiers(&report.tiers);
    }
    if let Some(agents) = &report.agents {
        text += &as_agents(agents);
    }
    if let Some(rows) = &report.fit {
        text += &fit(rows);
    }
    text
}

/// The answer of a part of the pieces: what is configured, and the best pair.
pub(super) fn so_far(report: &Report, pieces: usize, of: usize) -> String {
    let mut text = format!("partial answer, of {pieces} of {of} pieces: {} jobs, {} entries\n", report.jobs, report.entries);
    for given in &report.answers {
        let mut table = Table::new(&["<", "K", "S", "stored", "coverage", "saved", "of memory", "rate", "of all", "on", ""]);
        for (name, pair) in [("partial, configured", &given.configured), ("partial, best", &given.best)] {
            if let Some(pair) = pair {
                row(&mut table, name, pair);
            }
        }
        let _ = write!(text, "P {}/min\n{table}", percent(given.promotion_rate_max_ratio_per_min, 3));
    }
    text
}

fn tracker(row: &TrackerRow) -> String {
    let name = if row.tracker.is_empty() { "unknown" } else { &row.tracker };
    let mut text = format!("tracker {name}: {} of the entries", percent(row.entries_ratio, 1));
    if let Some(seconds) = row.resolved_to_seconds {
        let share = percent(ratio(row.limited_entries.into(), row.entries.into()), 1);
        let _ = write!(text, "; {share} of them do not distinguish all ages, the least up to {}", duration(seconds));
    }
    if row.sampled_entries > 0 {
        let _ = write!(text, "; {} entries are estimated from a sample", row.sampled_entries);
    }
    text + "\n"
}

/// The sampling error of a pair, if there is one.
fn sampling_error(pair: &Pair) -> Option<String> {
    let ([low, high], [few, many]) = (pair.coverage_interval_ratio?, pair.promotions_interval_pages_per_second?);
    let coverage = format!("coverage {} to {}", fixed(low, 2), fixed(high, 2));
    Some(format!("  sampling error (95%): {coverage}, {few:.1} to {many:.1} promotions/s\n"))
}

fn answer(answer: &Answer) -> String {
    let rate = percent(answer.promotion_rate_max_ratio_per_min, 3);
    let mut text = format!("\nP {rate}/min, minimum age {} s", answer.minimum_age_seconds);
    if answer.half_life_seconds > 0.0 {
        text += ", half-life ";
        text += &duration(answer.half_life_seconds);
    }
    text += if answer.spikes { "" } else { ", without spikes" };
    text += if answer.bound { "\n" } else { ", without bound\n" };
    let worth = if answer.front.iter().any(|pair| pair.saved_worth.is_some()) { "worth" } else { "" };
    let mut table = Table::new(&["<", "K", "S", "stored", "coverage", "saved", "of memory", "rate", "of all", "on", worth]);
    let named = [("configured", &answer.configured, "is none of the pairs"), ("best", &answer.best, "none holds the objective")];
    for (name, pair, otherwise) in named {
        match pair {
            Some(pair) => {
                row(&mut table, name, pair);
                table.remark(&sampling_error(pair).unwrap_or_default());
            }
            None => table.remark(&format!("{name} {otherwise}\n")),
        }
    }
    let beyond = answer.front.iter().filter(|pair| !pair.holds).count();
    for pair in answer.front.iter().skip(beyond.saturating_sub(BEYOND_SHOWN)) {
        row(&mut table, if pair.holds { "front" } else { "front, over" }, pair);
    }
    for group in &answer.groups {
        for (what, pair) in [("fleet's best", &group.at_fleets_best), ("own best", &group.own_best)] {
            if let Some(pair) = pair {
                row(&mut table, &format!("{}, {what}", group.name), pair);
            }
        }
    }
    text + &table.to_string()
}

/// What agents would have done.
fn as_agents(agents: &AsAgents) -> String {
    let (stored, coverage) = (bytes(agents.stored_bytes), percent(agents.coverage_ratio, 0));
    let over = percent(agents.entries_over_ratio, 2);
    let mut text = format!("\nagents, with parts of the cold pages: {stored} stored, coverage {coverage}, {over} of the entries over\n");
    if agents.parts_ratio > 0.0 {
        let parts = percent(agents.parts_ratio, 0);
        let _ = writeln!(text, "{parts} of it is in parts, where live agents differ from each other: an order of magnitude");
    }
    if let Some(rate) = agents.rate_ratio_per_min {
        let _ = write!(text, "promotions {}/min of the working set", percent(rate, 3));
        let further = agents.rate_interval_ratio_per_min;
        let further = further.map(|[low, high]| format!("; {} to {} in 95 % of further traces", percent(low, 3), percent(high, 3)));
        text += &further.unwrap_or_else(|| "; too few entries for an interval".to_owned());
        text += "\n";
    }
    text
}

/// The tiers as a table.
fn in_tiers(rows: &[TierRow]) -> String {
    let mut text = String::new();
    if let Some(TierRow { at, .. }) = rows.first() {
        let (k, s) = (percent(at.percentile_ratio, 2), duration(at.warmup_seconds));
        let _ = writeln!(text, "\nthe same far memory in other tiers, K {k} and S {s}; time lost is of all jobs together");
    }
    let mut table = Table::new(&["<tier", "latency", "price", "saved", "net of price", "lost", "saved per ms/s", "the last ms/s"]);
    let per_ms = |saved: Option<f64>| saved.filter(|saved| saved.is_finite()).map_or_else(|| "-".to_owned(), bytes);
    for row in rows {
        let at = &row.at;
        table.row(&[
            &row.tier,
            &print_duration(Duration::from_secs_f64(row.latency_seconds)),
            &row.price_ratio.map_or_else(|| "-".to_owned(), |price| percent(price, 1)),
            &bytes(at.saved_bytes),
            &bytes(at.net_bytes.max(0.0)),
            &format!("{:.3} ms/s", at.lost_milliseconds_per_second),
            &per_ms(Some(at.saved_bytes / at.lost_milliseconds_per_second)),
            &per_ms(at.marginal_bytes_per_millisecond),
        ]);
    }
    text + &table.to_string()
}

/// The file written for `--merge`.
pub(crate) fn written(written: &Written) -> String {
    let (size, file) = (Bytes(written.bytes), written.tally.display());
    format!("{} jobs, {} entries in {file} ({size}); add it to others with thermocline model --merge\n", written.jobs, written.entries)
}

/// The share of each worker, as arguments.
pub(crate) fn shares(workers: &[Worker]) -> String {
    let mut text = String::new();
    for worker in workers {
        text += "--trace";
        for path in &worker.trace {
            let _ = write!(text, " '{}'", path.to_string_lossy().replace('\'', "'\\''"));
        }
        match &worker.groups {
            Some(groups) => _ = writeln!(text, " --groups {groups}"),
            None => text += "\n",
        }
    }
    text
}

/// The most pairs shown that exceed the objective, nearest first.
const BEYOND_SHOWN: usize = 5;

fn row(table: &mut Table, name: &str, pair: &Pair) {
    let per_minute = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| fixed(rate, 3) + "/min");
    table.row(&[
        &name,
        &percent(pair.percentile_ratio, 2),
        &duration(pair.warmup_seconds),
        &bytes(pair.stored_bytes),
        &fixed(pair.coverage_ratio, 2),
        &bytes(pair.saved_bytes),
        &fixed(pair.saved_ratio, 2),
        &per_minute(pair.rate_ratio_per_min),
        &per_minute(pair.rate_of_all_ratio_per_min),
        &fixed(pair.on_ratio, 1),
        &pair.saved_worth.map(|worth| format!("{worth:.0}")).unwrap_or_default(),
    ]);
}

fn as_it_is(fleet: &FleetAsItIs) -> String {
    let mut ages = Table::new(&["idle for", "cold", "accessed"]);
    for row in &fleet.ages {
        let accessed = fixed(row.accessed_ratio_per_min, 3) + "/min";
        ages.row(&[&format!("{} s", row.threshold_seconds), &fixed(row.cold_ratio, 2), &accessed]);
    }
    let mut clusters = Table::new(&["<cold share of machines", "machines", "least", "25%", "50%", "75%", "most"]);
    for row in &fleet.clusters {
        let shares = [row.least, row.lower_quartile, row.median, row.upper_quartile, row.most];
        let [least, lower, median, upper, most] = shares.map(|share| fixed(share, 1));
        clusters.row(&[&row.cluster, &row.machines, &least, &lower, &median, &upper, &most]);
    }
    let mut text = format!("\n{ages}\n{clusters}\ncold share of jobs\n");
    for row in &fleet.jobs {
        let _ = writeln!(text, "{:>10} of the jobs have at most {:>6}", percent(row.jobs_ratio, 0), fixed(row.cold_ratio, 1));
    }
    text
}

fn fit(rows: &[Row]) -> String {
    let mut table = Table::new(&["<id", "<published figure", "published", "generated", "ratio"]);
    for row in rows {
        let (low, high) = row.published;
        let published = if low.total_cmp(&high).is_eq() { format!("{low}") } else { format!("{low} to {high}") };
        table.row(&[&row.id, &row.what, &published, &format!("{:.4}", row.generated), &format!("{:.2}", row.ratio)]);
    }
    let mut text = format!("\n{table}not shown:\n");
    for (ids, why) in NOT_SHOWN {
        let _ = writeln!(text, "  {ids}: {why}");
    }
    text
}

/// With a fixed number of digits, for columns.
fn fixed(ratio: f64, digits: usize) -> String {
    format!("{:.digits$}%", ratio * 100.0)
}

/// With as few digits as needed.
pub(crate) fn percent(ratio: f64, digits: usize) -> String {
    let digits = format!("{:.digits$}", ratio * 100.0);
    let short = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{short}%")
}

pub(super) fn duration(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| "-".to_owned(), print_duration)
}

pub(crate) fn bytes(bytes: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown with one decimal; saturates")]
    Bytes(bytes as u64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_short_as_they_are_exact() {
        for (ratio, digits, want) in [(0.002, 3, "0.2%"), (1.0, 2, "100%"), (0.985, 2, "98.5%"), (0.0, 2, "0%"), (0.9, 0, "90%")] {
            assert_eq!(percent(ratio, digits), want);
        }
    }
}
