//! `thermocline arena`: control laws on access traces.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use arena::contenders::Contender;
use arena::contest::{LEVELS, Results, Workload, compete, saved};
use arena::kernel::Costs;
use arena::programs::{PROGRAMS, SETTLE_SECONDS};
use arena::sensitivity::{Sensitivity, sensitivity};
use arena::text;
use arena::trace::Trace;
use clap::Args;
use serde::Serialize;

use crate::options::Format;
use crate::output::print;
use crate::table::Table;
use crate::values::duration;

#[derive(Debug, Args)]
pub(crate) struct Arena {
    /// Run only this generated workload; may be given several times [default: all, or none if there is a trace]
    #[arg(long = "workload", value_name = "NAME")]
    workloads: Vec<String>,
    /// Run only laws whose name contains this text; may be given several times
    #[arg(long = "law", value_name = "NAME")]
    laws: Vec<String>,
    /// Run on the access trace in this file, too; may be given several times (docs/arena-simulated.md has the format)
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Run policy `auto` with `writeback.enabled = false`, too
    #[arg(long)]
    without_writeback: bool,
    /// Seed of generated workloads, of samples and of DAMON's regions
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Length of generated workloads; the first 160s are not measured
    #[arg(long, value_name = "TIME", default_value = "400s", value_parser = duration)]
    duration: Duration,
    /// What an access waits for a page from zswap
    #[arg(long, value_name = "TIME", default_value = "120us", value_parser = duration)]
    zswap_latency: Duration,
    /// What an access waits for a page from a swap device, or for a read of a file
    #[arg(long, value_name = "TIME", default_value = "500us", value_parser = duration)]
    device_latency: Duration,
    /// Adjacent pages of a file that one read brings at most; 1 for no read-ahead
    #[arg(long, value_name = "PAGES", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    readahead: u32,
    /// Vary the constants of policy `auto`, each and on a grid; takes some minutes
    #[arg(long)]
    sensitivity: bool,
    /// Write the access trace of the one workload that is named into this file, and run nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["traces", "laws", "sensitivity"])]
    export: Option<PathBuf>,
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    results: Results,
    #[serde(skip_serializing_if = "Option::is_none")]
    sensitivity: Option<Sensitivity>,
}

/// `thermocline arena`.
pub(crate) fn arena(format: Format, arguments: &Arena) -> Result<()> {
    let traces = traces(arguments)?;
    if let Some(path) = &arguments.export {
        return export(&traces, path);
    }
    let contenders = contenders(&arguments.laws, arguments.without_writeback)?;
    let costs = costs(arguments)?;
    let results = compete(&traces, &contenders, costs, arguments.seed, |name| log::info!("workload {name}"));
    let sensitivity = arguments.sensitivity.then(|| {
        log::info!("the constants of policy auto");
        sensitivity(&traces, costs, arguments.seed)
    });
    let report = Report { results, sensitivity };
    print(format, &report, || table(&report))
}

fn traces(arguments: &Arena) -> Result<Vec<Trace>> {
    let known = || PROGRAMS.map(|program| program.name).join(", ");
    if let Some(unknown) = arguments.workloads.iter().find(|name| PROGRAMS.iter().all(|program| program.name != name.as_str())) {
        bail!("unknown workload {unknown:?}; the generated ones are: {}", known());
    }
    let all = arguments.workloads.is_empty() && arguments.traces.is_empty();
    let chosen = PROGRAMS.iter().filter(|program| all || arguments.workloads.iter().any(|name| name == program.name));
    let seconds = match u32::try_from(arguments.duration.as_secs()) {
        Ok(seconds) if (SETTLE_SECONDS + 1..=7_200).contains(&seconds) => seconds,
        _ => bail!("--duration is {:?}; give 161s to 2h, of which 160s settle", arguments.duration),
    };
    let mut traces: Vec<Trace> = chosen.map(|program| program.trace_of(arguments.seed, seconds)).collect();
    for path in &arguments.traces {
        let trace = read(path)?;
        if traces.iter().any(|other| other.name == trace.name) {
            bail!("{}: there is another workload {:?}; change its line `name`", path.display(), trace.name);
        }
        traces.push(trace);
    }
    Ok(traces)
}

fn read(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    text::read(BufReader::new(file)).with_context(|| format!("{} is no access trace", path.display()))
}

fn export(traces: &[Trace], path: &Path) -> Result<()> {
    let [trace] = traces else { bail!("--export writes one trace, and {} workloads are chosen; name one with --workload", traces.len()) };
    let failed = || format!("cannot write {}", path.display());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Beside its place and then renamed: a full disk leaves no trace that is cut.
    let mut file = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
    file.write_all(text::write(trace).as_bytes()).with_context(failed)?;
    file.persist(path).map(drop).map_err(|error| error.error).with_context(failed)
}

fn contenders(laws: &[String], without_writeback: bool) -> Result<Vec<Contender>> {
    let mut all = Contender::all();
    if without_writeback {
        all.extend(Contender::all_without_writeback());
    }
    let matches = |one: &Contender, law: &String| one.name().to_lowercase().contains(&law.to_lowercase());
    if let Some(unknown) = laws.iter().find(|law| !all.iter().any(|one| matches(one, law))) {
        let mut names: Vec<&str> = all.iter().map(Contender::name).collect();
        names.dedup();
        bail!("no law's name contains {unknown:?}; there are: {}", names.join("; "));
    }
    all.retain(|one| laws.is_empty() || laws.iter().any(|law| matches(one, law)));
    Ok(all)
}

fn costs(arguments: &Arena) -> Result<Costs> {
    let us = |name: &str, latency: Duration| match u32::try_from(latency.as_micros()) {
        Ok(us @ 1..=1_000_000) => Ok(us),
        _ => bail!("{name} is {latency:?}; give 1us to 1s"),
    };
    Ok(Costs {
        zswap_us: us("--zswap-latency", arguments.zswap_latency)?,
        device_us: us("--device-latency", arguments.device_latency)?,
        readahead_pages: arguments.readahead,
    })
}

/// Names of laws, in the order of their rows.
fn laws(workload: &Workload) -> Vec<&str> {
    let mut names: Vec<&str> = workload.points.iter().map(|row| row.contender.as_str()).collect();
    names.dedup();
    names
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

fn table(report: &Report) -> String {
    let results = &report.results;
    let Costs { zswap_us, device_us, readahead_pages } = results.charged_us;
    let mut text = format!(
        "simulated, seed {}; a page from zswap costs {zswap_us} us, from a device {device_us} us; a read of a file brings {readahead_pages} pages\n",
        results.seed
    );
    for workload in &results.workloads {
        text += &workload_table(workload);
    }
    text += &ranking(results);
    if let Some(sensitivity) = &report.sensitivity {
        text += &constants(sensitivity);
    }
    text
}

fn workload_table(workload: &Workload) -> String {
    let mut table = Table::new(&["<MiB saved at a loss of", "0.5%", "1%", "5%", "<each intensity: MiB saved / share of time lost"]);
    let [least, middle, most] =
        LEVELS.map(|(_, level)| workload.oracle_saved_bytes.get(level).map_or_else(String::new, |&bytes| mib(bytes)));
    table.row(&[&"oracle", &least, &middle, &most]);
    for law in laws(workload) {
        let [least, middle, most] = LEVELS.map(|(lost, _)| mib(saved(workload, law, lost)));
        let rows = workload.points.iter().filter(|row| row.contender == law);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let points = rows.map(|row| format!("{}/{:.2}%", mib(row.saved_bytes as f64), row.lost_ratio * 100.0));
        table.row(&[&law, &least, &middle, &most, &points.collect::<Vec<_>>().join(" ")]);
    }
    format!("\n{}: occupies {}\n{table}", workload.name, workload.occupied_bytes)
}

fn ranking(results: &Results) -> String {
    let mut table = Table::new(&["<of the best peer at", "0.5%", "1%", "5%", "of the oracle at", "0.5%", "1%", "5%"]);
    for law in results.workloads.first().map(laws).unwrap_or_default() {
        let of = |level: &str| results.ranking.get(level).and_then(|rows| rows.get(law));
        let column = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let [a, b, c] = LEVELS.map(|(_, level)| column(of(level).and_then(|rank| rank.geomean_ratio_to_best_peer)));
        let [x, y, z] = LEVELS.map(|(_, level)| column(of(level).map(|rank| rank.geomean_share_of_oracle)));
        table.row(&[&law, &a, &b, &c, &"", &x, &y, &z]);
    }
    let mut text = format!("\nall workloads, geometric means\n{table}");
    if let (Some(best), Some(ratio)) = (&results.best_policy_at_1pct, results.geomean_ratio_to_best_peer_at_1pct) {
        let _ = writeln!(text, "\n{best} at 1% lost saves {ratio:.3} times what the best peer of each workload saves");
        for (workload, ratio) in &results.ratio_to_best_peer_at_1pct {
            let peer = results.best_peer_at_1pct.get(workload).map_or("", String::as_str);
            let _ = writeln!(text, "  {workload:10} {ratio:.2} of {peer}");
        }
    }
    text
}

fn constants(sensitivity: &Sensitivity) -> String {
    let mut text = format!("\nconstants of policy {}: saved at 1% lost, as a multiple of that with defaults\n", sensitivity.policy);
    let mut table = Table::new(&["<", "x0.5/off", "x2/on"]);
    for effect in &sensitivity.effects {
        table.row(&[&effect.key, &format!("{:.3}", effect.halved), &format!("{:.3}", effect.doubled)]);
    }
    text += &table.to_string();
    let factors: Vec<String> = sensitivity.tuned_factors.iter().map(|(key, factor)| format!("{key} x{factor}")).collect();
    let tuned = if factors.is_empty() { "the defaults".to_owned() } else { factors.join(", ") };
    let _ = writeln!(text, "best of {} combinations: {:.3} ({tuned})", sensitivity.combinations, sensitivity.tuned);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Arena {
        use clap::Parser;
        let words = ["thermocline", "arena"].into_iter().chain(line.split_ascii_whitespace());
        match crate::arguments::Arguments::try_parse_from(words).unwrap().command {
            crate::arguments::Command::Arena(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unknown_names_are_refused_with_those_that_exist() {
        let error = traces(&arguments("--workload redis")).unwrap_err().to_string();
        assert!(error.contains("\"redis\"") && error.contains("phases, zipf, drift"), "{error}");
        let error = contenders(&arguments("--law tuner").laws, false).unwrap_err().to_string();
        assert!(error.contains("\"tuner\"") && error.contains("MGLRU script; oomd senpai"), "{error}");
        let error = costs(&arguments("--zswap-latency 2s")).unwrap_err().to_string();
        assert!(error.contains("--zswap-latency is 2s"), "{error}");
        let error = traces(&arguments("--duration 160s")).unwrap_err().to_string();
        assert!(error.contains("--duration is 160s; give 161s to 2h"), "{error}");
        let error = arena(Format::Text, &arguments("--export all.access")).unwrap_err().to_string();
        assert!(error.contains("9 workloads are chosen"), "{error}");
    }

    #[test]
    fn laws_are_chosen_by_a_part_of_their_names() {
        let names = |laws: &[&str], without_writeback: bool| {
            let laws: Vec<String> = laws.iter().map(|&law| law.to_owned()).collect();
            let mut names: Vec<&str> = contenders(&laws, without_writeback).unwrap().iter().map(Contender::name).collect();
            names.dedup();
            names
        };
        assert_eq!(
            names(&["SCRIPT", "auto"], false),
            ["MGLRU script", "Thermocline auto", "Thermocline auto, sampled", "candidate: auto, twice cold", "candidate: auto, two tiers"]
        );
        let without = ["Thermocline auto, without writeback", "Thermocline auto, sampled, without writeback"];
        assert_eq!(names(&["without"], true), without);
        let line = arguments("--without-writeback --law without");
        assert!(line.without_writeback && contenders(&line.laws, false).is_err(), "not unless asked for");
    }

    #[test]
    fn an_exported_trace_gives_the_scores_of_the_workload() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sandbox.access");
        arena(Format::Text, &arguments(&format!("--workload sandbox --export {}", path.display()))).unwrap();
        let laws = contenders(&["script".to_owned(), "auto".to_owned()], false).unwrap();
        let results = |line: &str| compete(&traces(&arguments(line)).unwrap(), &laws, Costs::default(), 1, |_| {});
        let file = results(&format!("--trace {}", path.display()));
        assert_eq!(file, results("--workload sandbox"));
        let text = table(&Report { results: file, sensitivity: None });
        assert!(text.contains("sandbox: occupies 90") && text.contains("oracle") && text.contains("of MGLRU script"), "{text}");
        let twice = format!("--workload sandbox --trace {}", path.display());
        assert!(traces(&arguments(&twice)).unwrap_err().to_string().contains("another workload \"sandbox\""));
    }
}
