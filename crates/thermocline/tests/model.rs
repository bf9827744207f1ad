//! `thermocline model` as users and their scripts meet it, on generated fleets; and its controller on a real journal.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;
use std::process::{Command, Output};

use agent::journal::{self, Record};
use model::grid::{Grid, Setup};
use model::replay::Replay;
use model::series::Series;
use model::tally::Tally;
use serde_json::Value;
use units::Millis;

fn thermocline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).env_remove("THERMOCLINE_LOG").output().unwrap()
}

/// Runs `model` and expects an exit status and pieces of text in its output.
fn check(arguments: &[&str], code: i32, pieces: &[&str]) -> String {
    let ran = thermocline(&[&["model"], arguments].concat());
    assert_eq!(ran.status.code(), Some(code), "{arguments:?}: {ran:?}");
    let output = String::from_utf8(if code == 0 { ran.stdout } else { ran.stderr }).unwrap();
    for piece in pieces {
        assert!(output.contains(piece), "{arguments:?} does not print {piece:?}: {output}");
    }
    output
}

const SMALL: [&str; 8] = ["--generate", "36", "--days", "1", "--percentiles", "90%,99.9%", "--warmups", "0s"];

#[test]
fn a_generated_fleet_gives_a_front_and_says_that_it_is_generated() {
    let with = |more: &[&'static str]| [&SMALL[..], more].concat();
    check(&with(&[]), 0, &["a generated fleet: nothing here was measured", "objective: 98% of the entries", "configured", "front"]);
    check(&with(&["--survey"]), 0, &["idle for", "cold share of machines", "G01", "not shown:", "30600 s"]);
    check(
        &with(&["--what-if", "promotion_rate=0.5%,minimum_age=240s"]),
        0,
        &["P 0.2%/min, minimum age 120 s", "P 0.5%/min, minimum age 240 s"],
    );
    let (set, what_if) = (
        ["--set", "cold_age.half_life=6h", "--set", "cold_age.percentile=90%"],
        ["--what-if", "spikes=false", "--what-if", "half_life=0s", "--what-if", "bound=false"],
    );
    let output = check(
        &with(&[&set[..], &what_if[..]].concat()),
        0,
        &["minimum age 120 s, half-life 6h\n", "half-life 6h, without spikes\n", "half-life 6h, without bound\n"],
    );
    // Forgetting, spikes and the bound each change what the same pair comes to; what-if takes the rest from the configuration.
    let configured: Vec<&str> = output.lines().filter(|line| line.starts_with("configured")).collect();
    assert!(configured.len() == 4 && configured[1..].iter().all(|other| *other != configured[0]), "{output}");
    assert!(output.ends_with('\n') && check(&with(&set[2..]), 0, &[configured[2]]).contains("minimum age 120 s\n"), "{output}");
    check(&with(&["--by", "class", "--objective", "1%", "--dram-price-per-gib", "3.50"]), 0, &["sidecar, fleet's best", "worth"]);
    check(&with(&["--objective", "100%", "--threads", "1"]), 0, &["at or below 100%/min"]);
}

#[test]
fn programs_get_base_units_and_threads_do_not_show() {
    let json = |threads| {
        let text = check(&[&SMALL[..], &["--threads", threads, "--format", "json", "--by", "cluster"]].concat(), 0, &[]);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let report = json("1");
    assert_eq!(report, json("3"));
    assert_eq!((&report["generated"], &report["span_seconds"]), (&Value::from(true), &Value::from(86_400.0)));
    let configured = &report["answers"][0]["configured"];
    assert_eq!((&configured["percentile_ratio"], &configured["warmup_seconds"]), (&Value::from(0.99), &Value::from(600.0)));
    let share = |key: &str| configured[key].as_f64().unwrap();
    assert!(share("coverage_ratio") > 0.02 && share("coverage_ratio") < 0.9, "{configured}");
    assert!(share("saved_bytes") < share("stored_bytes"));
    let all = check(&[&SMALL[..], &["--pairs", "--format", "json", "--by", "class"]].concat(), 0, &[]);
    let all: Value = serde_json::from_str(&all).unwrap();
    let answer = &all["answers"][0];
    let detailed = check(&[&SMALL[..], &["--detail", "--format", "json"]].concat(), 0, &[]);
    let detailed: Value = serde_json::from_str(&detailed).unwrap();
    let rows = |key: &str| detailed["detail"][key].as_array().unwrap().len();
    assert_eq!((rows("machines"), rows("jobs"), report.get("detail")), (3, 100, None));
    assert!(rows("hours") >= 24);
    // Two percentiles and the configured one; no warm-up and the configured one.
    assert_eq!((answer["pairs"].as_array().unwrap().len(), report["answers"][0].get("pairs")), (6, None));
    assert!(answer["groups"].as_array().unwrap().iter().all(|group| group["pairs"].as_array().unwrap().len() == 6));
    assert!(answer["pairs"].as_array().unwrap().contains(&answer["configured"]));
    let jobs: u64 = report["answers"][0]["groups"].as_array().unwrap().iter().map(|group| group["jobs"].as_u64().unwrap()).sum();
    assert_eq!(Value::from(jobs), report["jobs"]);
}

#[test]
fn a_recorded_fleet_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let output = check(&[&SMALL[..4], &["--record", path]].concat(), 0, &["in 3 files below"]);
    let text = check(&["--trace", path], 0, &["over 1.0 d", "configured"]);
    assert!(!text.contains("a generated fleet") && !output.contains("configured"), "{text}");
    let entries = output.split(' ').next().unwrap();
    assert!(text.contains(&format!("{entries} entries")), "{output}{text}");
    let url = format!("file://{path}");
    assert_eq!(check(&["--trace", &url], 0, &[]), text);
    // Drawn from it: as many jobs as are wanted, for as long, and the same each time.
    let drawn = ["--trace", path, "--resample", "60", "--days", "2"];
    let text = check(&drawn, 0, &["a generated fleet: nothing here was measured", "60 jobs", "over 2.0 d", "34560 entries"]);
    assert_eq!(check(&[&drawn[..], &["--threads", "1"]].concat(), 0, &[]), text);
    assert_ne!(check(&[&drawn[..], &["--seed", "2"]].concat(), 0, &[]), text);
    check(&["--trace", path, "--days", "2"], 2, &["--days", "--resample"]);
    check(&["--trace", path, "--worst-days", "1"], 2, &["--worst-days", "--resample"]);
    // The only day of the traces is their worst one.
    assert_eq!(check(&[&drawn[..], &["--worst-days", "1"]].concat(), 0, &["60 jobs", "over 2.0 d"]), text);
    check(&["--trace", &url, "--plan", "2"], 1, &["--plan and --resume need files that stay where they are", "trace compact"]);
}

#[test]
fn invalid_questions_are_refused_with_a_remedy() {
    check(&[], 2, &["--trace <PATH|URL>...|--trace-list <FILE>|--generate <JOBS>|--merge <TALLY>..."]);
    check(&["--trace", "/nonexistent"], 1, &["/nonexistent"]);
    check(&["--generate", "12", "--what-if", "k=1"], 2, &["there are promotion_rate, minimum_age, half_life, spikes and bound"]);
    check(&["--generate", "12", "--what-if", "minimum_age=9h"], 1, &["give a lower one"]);
    check(&["--generate", "12", "--percentiles", "101%"], 1, &["100% is the highest"]);
    check(&["--generate", "12", "--dram-price-per-gib", "cheap"], 2, &["such as 3.50"]);
}

/// Runs `model` with `--format json`.
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&check(&[arguments, &["--format", "json"]].concat(), 0, &[])).unwrap()
}

/// Three machines for four days, as traces and as one file of five row groups.
fn recorded() -> (tempfile::TempDir, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (traces, merged) = (path("traces"), path("week.parquet"));
    check(&["--generate", "36", "--days", "4", "--record", &traces], 0, &["in 3 files below"]);
    let ran = thermocline(&["trace", "merge", &traces, "--to", &merged]);
    assert!(ran.status.success(), "{ran:?}");
    (directory, traces, merged)
}

const QUESTION: [&str; 9] =
    ["--percentiles", "90%,99.9%", "--warmups", "0s", "--by", "cluster", "--what-if", "promotion_rate=0.5%,minimum_age=240s", "--survey"];

#[test]
fn a_run_shows_what_it_takes_and_what_it_has_found_so_far() {
    let (_directory, traces, _) = recorded();
    let estimate = json(&["--trace", &traces, "--threads", "1", "--estimate"]);
    // Two row groups of each machine's file: too few for a part in front of a run.
    assert_eq!((&estimate["pieces"], &estimate["measured_pieces"], &estimate["threads"]), (&6.into(), &1.into(), &1.into()));
    let number = |key: &str| estimate[key].as_f64().unwrap();
    assert!(number("bytes") > 100_000.0 && number("measured_seconds") > 0.0, "{estimate}");
    assert!(number("seconds") > number("measured_seconds") && number("seconds") <= number("thread_seconds"), "{estimate}");
    check(&["--trace", &traces, "--estimate"], 0, &["6 pieces to read, ", ": about ", "of all threads together, by 1 of the pieces"]);
    check(&["--trace", &traces, "--estimate", "--tally", "x"], 2, &["--estimate"]);
    let question = ["model", "--trace", &traces, "--threads", "1", "--by", "class", "--format", "json"];
    let (whole, partial) = (thermocline(&question), thermocline(&[&question[..], &["--partial-every", "1ms"]].concat()));
    assert!(whole.status.success() && whole.stderr.is_empty(), "{whole:?}");
    assert_eq!(partial.stdout, whole.stdout);
    let shown = String::from_utf8(partial.stderr).unwrap();
    for piece in ["partial answer, of 1 of 6 pieces: ", "partial answer, of 5 of 6 pieces: ", "partial, configured", "P 0.2%/min"] {
        assert!(shown.contains(piece), "{piece:?} is not in {shown}");
    }
    assert!(!shown.contains("of 6 of 6"), "{shown}");
}

#[test]
fn far_memory_is_compared_between_tiers() {
    let with = |more: &[&'static str]| json(&[&SMALL[..], more].concat());
    let report = with(&["--tiers", "--tier", "ssd=80us", "--tier", "nvm=1us,0.4"]);
    let (rows, best) = (report["tiers"].as_array().unwrap(), &report["answers"][0]["best"]);
    let names: Vec<_> = rows.iter().map(|row| row["tier"].as_str().unwrap()).collect();
    assert_eq!(names, ["zswap", "cxl", "ssd", "nvm"]);
    let near = |found: &Value, expected: f64| assert!((found.as_f64().unwrap() / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    let of_best = |key: &str| best[key].as_f64().unwrap();
    near(&rows[0]["at"]["saved_bytes"], of_best("saved_bytes"));
    near(&rows[2]["at"]["saved_bytes"], of_best("stored_bytes"));
    near(&rows[2]["at"]["net_bytes"], of_best("stored_bytes") * 0.97);
    near(&rows[2]["at"]["lost_milliseconds_per_second"], of_best("promotions_pages_per_second") * 0.08);
    // Each step of the hull costs more for what it saves than the one before it.
    let slopes: Vec<_> =
        rows[3]["steps"].as_array().unwrap().iter().filter_map(|step| step["marginal_bytes_per_millisecond"].as_f64()).collect();
    assert!(!slopes.is_empty() && slopes.windows(2).all(|pair| pair[1] < pair[0]), "{slopes:?}");
    assert_eq!(with(&[]).get("tiers"), None);
    let text =
        check(&[&SMALL[..], &["--tier", "cxl=5us"]].concat(), 0, &["the same far memory in other tiers, K ", "net of price", "zswap"]);
    assert!(text.lines().any(|line| line.starts_with("cxl") && line.contains("5us") && line.contains("50%")), "{text}");
    check(&["--generate", "12", "--tier", "nvm=1us"], 2, &["needs a price", "nvm=1us,0.5"]);
}

#[test]
fn parts_of_a_fleet_answer_as_the_whole() {
    let (directory, traces, merged) = recorded();
    for (whole, workers) in [(&traces, "2"), (&merged, "3")] {
        let want = json(&[&QUESTION[..], &["--trace", whole]].concat());
        let mut tallies = Vec::new();
        for (index, worker) in json(&["--trace", whole, "--plan", workers]).as_array().unwrap().iter().enumerate() {
            let list: Vec<_> = worker["trace"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
            let names = directory.path().join("names");
            std::fs::write(&names, list.join("\n")).unwrap();
            let tally = directory.path().join(format!("{index}.tally")).to_str().unwrap().to_owned();
            let mut arguments = vec!["--trace-list", names.to_str().unwrap(), "--tally", &tally];
            arguments.extend(worker["groups"].as_str().map(|groups| ["--groups", groups]).into_iter().flatten());
            check(&[&QUESTION[..], &arguments].concat(), 0, &["add it to others with"]);
            tallies.push(tally);
        }
        let merge: Vec<_> = std::iter::once("--merge").chain(tallies.iter().map(String::as_str)).collect();
        assert_eq!(json(&merge), want);
        // As a tree, too; and the sums of all are the sums of one run.
        let (both, at_once) = (directory.path().join("both.tally"), directory.path().join("once.tally"));
        check(&[&merge[..], &["--tally", both.to_str().unwrap()]].concat(), 0, &["jobs"]);
        check(&[&QUESTION[..], &["--trace", whole, "--tally", at_once.to_str().unwrap()]].concat(), 0, &["jobs"]);
        assert_eq!(json(&["--merge", both.to_str().unwrap()]), want);
        if whole == &traces {
            assert!(std::fs::read(both).unwrap() == std::fs::read(at_once).unwrap(), "the same bytes");
        }
        check(&["--merge", &tallies[0], &tallies[0]], 1, &[&tallies[0], "counted already"]);
    }
    check(&["--merge", &merged], 1, &["week.parquet: is not a tally"]);
}

#[test]
fn a_run_goes_on_where_the_last_one_stopped() {
    let (directory, traces, _) = recorded();
    let kept = directory.path().join("kept").to_str().unwrap().to_owned();
    let want = json(&[&QUESTION[..], &["--trace", &traces]].concat());
    let again = [&QUESTION[..], &["--trace", &traces, "--resume", &kept]].concat();
    assert_eq!(json(&again), want);
    // Of files that cannot be read any more, what was counted stays counted.
    let files = std::fs::read_dir(&kept).unwrap().count();
    let ran = thermocline(&[&["model"], &again[..], &["--format", "json"]].concat());
    assert_eq!(serde_json::from_slice::<Value>(&ran.stdout).unwrap(), want);
    assert!(String::from_utf8(ran.stderr).unwrap().contains("6 of 6 pieces were counted before"));
    assert_eq!(std::fs::read_dir(&kept).unwrap().count(), files);
    check(&["--trace", &traces, "--resume", &kept], 1, &["kept", ".tally", "percentiles"]);
}

#[test]
fn row_groups_are_of_one_file() {
    let (_directory, traces, merged) = recorded();
    let some = ["--trace", &merged, "--groups", "0..1"];
    check(&[&some[..], &SMALL[4..]].concat(), 0, &["4 row groups of the files are missing"]);
    check(&["--trace", &merged, "--groups", "0..99"], 1, &["the file has 0..5"]);
    check(&["--trace", &traces, "--groups", "0..1"], 1, &["there are several files"]);
    check(&["--trace", &traces, "--groups", "1"], 2, &["such as 0..16"]);
    check(&["--trace", &traces, "--plan", "9"], 0, &["--trace '", "machine=machine-0000002"]);
}

/// The periods of a real journal as entries: the model chooses every threshold that the agent chose.
#[test]
fn a_journals_periods_give_the_agents_thresholds() {
    let records = journal::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../node/agent/tests/journal-6.12-idle.jsonl"))).unwrap();
    let thresholds = records.iter().find_map(|record| match record {
        Record::Agent(agent) => Some(agent.thresholds),
        _ => None,
    });
    let thresholds = thresholds.unwrap();
    let mut compared = 0;
    for job in records.iter().filter_map(|record| if let Record::Job(job) = record { Some(job) } else { None }) {
        let mut series = Series::new(&thresholds);
        let mut decided = Vec::new();
        for record in &records {
            let Record::Period(period) = record else { continue };
            if period.id == job.id {
                series
                    .push_histograms(
                        Millis(period.input.job_age_ms.0),
                        Millis(period.input.window_ms.0),
                        &period.input.promotions,
                        &period.input.cold,
                    )
                    .unwrap();
                decided.push((period.step.threshold, period.input.job_age_ms >= job.params.warmup_ms));
            }
        }
        let grid = Grid::new(vec![job.params.percentile], vec![Millis(job.params.warmup_ms.0)]).unwrap();
        let policy::cold_age::Params { half_life_ms, spikes, bound, partial, .. } = job.params;
        let setup = Setup { half_life_ms: Millis(half_life_ms.0), spikes, bound, partial, ..Setup::new(job.params.promotion_rate_max) };
        let mut modelled = Vec::new();
        Replay::new(&grid, &setup, &thresholds).unwrap().job_observed(&series, &mut Tally::new(&grid), &mut |_, spans, warm| {
            modelled.push((spans.first().and_then(|span| thresholds.get(span.threshold)), warm > 0));
        });
        assert_eq!(modelled, decided, "{}", job.job);
        compared += decided.len();
    }
    assert!(compared > 60, "{compared} periods");
}

#[test]
fn policies_with_a_time_budget_are_judged_by_it() {
    let with = |more: &[&'static str]| [&["--generate", "36", "--days", "1"], more].concat();
    check(&with(&["--policy", "pressure"]), 1, &["give --tier-latency"]);
    check(&with(&["--policy", "slowdown"]), 1, &["slow.latency"]);
    check(&with(&["--policy", "slowdown", "--set", "slow.latency=1us", "--survey"]), 1, &["--survey"]);
    check(
        &with(&["--policy", "pressure", "--tier-latency", "30us"]),
        0,
        &["nothing here was measured", "policy pressure, 30us", "standard"],
    );
    let row = |policy: &str, set: &str| {
        let policy_arguments = ["--policy", policy, "--tier-latency", "30us", "--set", set, "--format", "json"];
        let whole = [&["--generate", "36", "--days", "1"], &policy_arguments[..]].concat();
        let report: Value = serde_json::from_str(&check(&whole, 0, &[])).unwrap();
        report["classes"][0].clone()
    };
    for (policy, less, more) in
        [("pressure", "pressure.stall_target=0.001%", "pressure.stall_target=1%"), ("slowdown", "slow.slowdown=0.01%", "slow.slowdown=3%")]
    {
        let figure = |set, key: &str| row(policy, set)[key].as_f64().unwrap();
        assert!(figure(less, "far_bytes") < figure(more, "far_bytes"), "{policy}");
        // The controller of `pressure` settles within a quarter of its target.
        assert!(figure(more, "lost_mean_ratio") <= 1.25 * figure(more, "lost_max_ratio"), "{policy}");
        assert!(figure(more, "saved_bytes") <= figure(more, "far_bytes"), "{policy}");
    }
}
