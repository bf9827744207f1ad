//! Tables of `thermocline pool simulate`.

use std::fmt::Write;

use simulator::pod::Overlap;
use simulator::service_level::Rule;
use units::Bytes;

use super::models;
use super::report::{Report, Row};
use crate::table::Table;

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn latency(row: &Row<'_>) -> String {
    format!("{} ns", row.added_ns)
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
    pods(&mut text, report);
    configurations(&mut text, report);
    failures(&mut text, report);
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
    let columns = ["<memory", "latency", "sockets", "on pools", "saved", "at once", "uniform", "too slow", "moved", "local", "lost"];
    let mut table = Table::new(&columns);
    for row in &report.results {
        let measured = &row.outcome.measured;
        table.row(&[
            &row.memory,
            &latency(row),
            &row.pool_sockets,
            &percent(row.pool_ratio),
            &percent(row.outcome.saved_ratio),
            &percent(row.outcome.online_saved_ratio),
            &percent(row.outcome.uniform_saved_ratio),
            &format!("{:.2}%", row.mispredicted_ratio * 100.0),
            &measured.moved,
            &measured.fell_back,
            &(measured.lost_with_host + measured.lost_with_emc),
        ]);
    }
    let _ = write!(text, "\n{table}");
}

/// The pods of each size.
fn pods(text: &mut String, report: &Report<'_>) {
    let mut shown = Vec::new();
    for pod in report.results.iter().filter_map(|row| row.pod) {
        if shown.contains(&pod) {
            continue;
        }
        shown.push(pod);
        let Overlap { servers, devices, pairs, sharing_pairs, sharing_several_pairs } = pod;
        let _ = writeln!(
            text,
            "sparse pods of {servers} servers: {devices} devices; of {pairs} pairs of servers {sharing_pairs} share a device, \
             {sharing_several_pairs} more than one"
        );
    }
}

/// What the failure of a controller or device costs.
fn failures(text: &mut String, report: &Report<'_>) {
    if report.site.faults.emc_every.is_none() {
        return;
    }
    *text += "\nVMs lost with a memory controller that fails:\n";
    let mut table = Table::new(&["<memory", "latency", "sockets", "failures", "VMs lost", "for each", "at most"]);
    for row in &report.results {
        let measured = &row.outcome.measured;
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let each = measured.lost_with_emc as f64 / measured.emc_failures.max(1) as f64;
        table.row(&[
            &row.memory,
            &latency(row),
            &row.pool_sockets,
            &measured.emc_failures,
            &measured.lost_with_emc,
            &format!("{each:.1}"),
            &measured.lost_with_emc_max,
        ]);
    }
    *text += &table.to_string();
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
    let columns = ["<memory", "latency", "sockets", "no pools", "local", "pools", "saved", "on pools", "too slow", "moved", "local"];
    let mut table = Table::new(&columns);
    for (row, least) in report.results.iter().filter_map(|row| Some((row, row.outcome.provisioned.as_ref()?))) {
        let [without, local, pools] = [least.local_only_bytes, least.bytes - least.pool_bytes, least.pool_bytes].map(gib);
        let saved = percent(simulator::tally::saved(least.bytes, least.local_only_bytes));
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let of_started = |vms: u64| vms as f64 / least.tally.started.max(1) as f64;
        table.row(&[
            &row.memory,
            &latency(row),
            &row.pool_sockets,
            &without,
            &local,
            &pools,
            &saved,
            &percent(least.tally.pool_ratio()),
            &format!("{:.2}%", of_started(least.tally.mispredicted) * 100.0),
            &percent(of_started(least.tally.moved)),
            &percent(of_started(least.tally.fell_back)),
        ]);
    }
    *text += &table.to_string();
}

/// Whether each configuration pays.
fn money(text: &mut String, report: &Report<'_>) {
    let priced = || report.results.iter().filter_map(|row| Some((row, row.money.as_ref()?)));
    if priced().next().is_none() {
        return;
    }
    *text += "\nsaved for each server at the given prices, with its 95 % interval over clusters:\n";
    let mut table = Table::new(&["<memory", "latency", "sockets", "saved", "interval", "break-even", "answer"]);
    for (row, money) in priced() {
        let interval = money.interval.map_or_else(|| "fewer than 3 clusters".to_owned(), |[low, high]| format!("{low:.2} to {high:.2}"));
        let [saved, break_even] = [money.saved_per_server, money.break_even_per_server].map(|price| format!("{price:.2}"));
        table.row(&[&row.memory, &latency(row), &row.pool_sockets, &saved, &interval, &break_even, &money.verdict]);
    }
    *text += &table.to_string();
    *text += "break-even: the price of all hardware of a pool for each of its servers at which it neither saves nor costs\n";
}

/// The runs with pools of the size found.
fn confirmations(text: &mut String, report: &Report<'_>) {
    *text += "\nrepeated with pools of the size found:\n";
    let mut table = Table::new(&["<memory", "latency", "sockets", "moved", "local", ">1 GiB/s", ">10 GiB/s", "most GiB/s"]);
    for (row, again) in report.results.iter().filter_map(|row| Some((row, row.outcome.confirmed.as_ref()?))) {
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let of_starts = |starts: u64| format!("{:.4}%", starts as f64 / again.started.max(1) as f64 * 100.0);
        table.row(&[
            &row.memory,
            &latency(row),
            &row.pool_sockets,
            &again.moved,
            &again.fell_back,
            &of_starts(again.starts_above_1_gib_per_s),
            &of_starts(again.starts_above_10_gib_per_s),
            &format!("{:.1}", again.release_gib_per_s_max),
        ]);
    }
    *text += &table.to_string();
}
