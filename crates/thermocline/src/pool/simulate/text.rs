//! Tables of `thermocline pool simulate`.

use std::fmt::Write;

use simulator::service_level::Rule;
use units::Bytes;

use super::models;
use super::report::Report;

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn gib(bytes: Bytes) -> String {
    format!("{:.0} GiB", bytes.0 as f64 / f64::from(1 << 30))
}

/// The whole report.
pub(super) fn text(report: &Report<'_>, confirmed: bool) -> String {
    let mut text = String::new();
    if report.generated {
        text += "a generated trace; not measured\n";
    }
    let _ = writeln!(
        text,
        "{} VMs on {} servers in {} clusters; {} fit on no server and are left out",
        report.vms, report.servers, report.clusters, report.rejected
    );
    let _ = writeln!(
        text,
        "without pools: {} of DRAM; {} of the VMs span NUMA nodes, with {:.2}% of all memory",
        gib(report.required_bytes),
        percent(report.spanning_ratio),
        report.remote_ratio * 100.0
    );
    configurations(&mut text, report);
    models::text(&mut text, &report.results);
    if report.results.iter().any(|row| row.outcome.provisioned.is_some()) {
        provisioned(&mut text, report);
        money(&mut text, report);
    }
    if confirmed {
        confirmations(&mut text, report);
    }
    text
}

/// One line per configuration.
fn configurations(text: &mut String, report: &Report<'_>) {
    let _ = writeln!(
        text,
        "\n{:<12} {:>7} {:>7} {:>8} {:>7} {:>8} {:>10} {:>9} {:>8} {:>6} {:>7}",
        "memory", "latency", "sockets", "on pools", "saved", "at once", "uniform", "too slow", "moved", "local", "lost"
    );
    for row in &report.results {
        let measured = &row.outcome.measured;
        let _ = writeln!(
            text,
            "{:<12} {:>7} {:>7} {:>8} {:>7} {:>8} {:>10} {:>9} {:>8} {:>6} {:>7}",
            row.memory,
            format!("{} ns", row.added_ns),
            row.pool_sockets,
            percent(row.pool_ratio),
            percent(row.outcome.saved_ratio),
            percent(row.outcome.online_saved_ratio),
            percent(row.outcome.uniform_saved_ratio),
            format!("{:.2}%", row.mispredicted_ratio * 100.0),
            measured.moved,
            measured.fell_back,
            measured.lost_with_host + measured.lost_with_emc,
        );
    }
}

/// The smallest provisioning of each configuration.
fn provisioned(text: &mut String, report: &Report<'_>) {
    let level = report.site.service_level;
    let counted = match level.rule {
        Rule::Replayed => "refused; VMs are moved if they do not fit on their server",
        Rule::RarelyMoved => "refused or moved to another server",
        Rule::Scheduled => "refused; the placement policy chooses every server",
    };
    let _ =
        writeln!(text, "\nthe least memory with equal servers and pools in a cluster; at most {} of the VMs are {counted}:", level.share);
    let _ = writeln!(
        text,
        "{:<12} {:>7} {:>7} {:>12} {:>12} {:>12} {:>7} {:>8} {:>9} {:>7} {:>7}",
        "memory", "latency", "sockets", "no pools", "local", "pools", "saved", "on pools", "too slow", "moved", "local"
    );
    for (row, least) in report.results.iter().filter_map(|row| Some((row, row.outcome.provisioned.as_ref()?))) {
        let latency = format!("{} ns", row.added_ns);
        let [without, local, pools] = [least.local_only_bytes, least.bytes - least.pool_bytes, least.pool_bytes].map(gib);
        let saved = percent(simulator::tally::saved(least.bytes, least.local_only_bytes));
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let of_started = |vms: u64| vms as f64 / least.tally.started.max(1) as f64;
        let _ = writeln!(
            text,
            "{:<12} {latency:>7} {:>7} {without:>12} {local:>12} {pools:>12} {saved:>7} {:>8} {:>8.2}% {:>7} {:>7}",
            row.memory,
            row.pool_sockets,
            percent(least.tally.pool_ratio()),
            of_started(least.tally.mispredicted) * 100.0,
            percent(of_started(least.tally.moved)),
            percent(of_started(least.tally.fell_back)),
        );
    }
}

/// Whether each configuration pays.
fn money(text: &mut String, report: &Report<'_>) {
    let priced = || report.results.iter().filter_map(|row| Some((row, row.money.as_ref()?)));
    if priced().next().is_none() {
        return;
    }
    *text += "\nsaved for each server at the given prices, with its 95 % interval over clusters:\n";
    let _ = writeln!(
        text,
        "{:<12} {:>7} {:>7} {:>9} {:>20} {:>10} {:>12}",
        "memory", "latency", "sockets", "saved", "interval", "break-even", "answer"
    );
    for (row, money) in priced() {
        let interval = money.interval.map_or_else(|| "fewer than 3 clusters".to_owned(), |[low, high]| format!("{low:.2} to {high:.2}"));
        let _ = writeln!(
            text,
            "{:<12} {:>7} {:>7} {:>9.2} {interval:>20} {:>10.2} {:>12}",
            row.memory,
            format!("{} ns", row.added_ns),
            row.pool_sockets,
            money.saved_per_server,
            money.break_even_per_server,
            money.verdict
        );
    }
    *text += "break-even: the price of all hardware of a pool for each of its servers at which it neither saves nor costs\n";
}

/// The runs with pools of the size found.
fn confirmations(text: &mut String, report: &Report<'_>) {
    *text += "\nrepeated with pools of the size found:\n";
    let _ = writeln!(
        text,
        "{:<12} {:>7} {:>7} {:>8} {:>6} {:>11} {:>12} {:>12}",
        "memory", "latency", "sockets", "moved", "local", ">1 GiB/s", ">10 GiB/s", "most GiB/s"
    );
    for (row, again) in report.results.iter().filter_map(|row| Some((row, row.outcome.confirmed.as_ref()?))) {
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let of_starts = |starts: u64| format!("{:.4}%", starts as f64 / again.started.max(1) as f64 * 100.0);
        let _ = writeln!(
            text,
            "{:<12} {:>7} {:>7} {:>8} {:>6} {:>11} {:>12} {:>12.1}",
            row.memory,
            format!("{} ns", row.added_ns),
            row.pool_sockets,
            again.moved,
            again.fell_back,
            of_starts(again.starts_above_1_gib_per_s),
            of_starts(again.starts_above_10_gib_per_s),
            again.release_gib_per_s_max
        );
    }
}
