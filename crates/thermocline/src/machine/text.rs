//! Tables for people, made from the same JSON that programs get.

use std::fmt::Write;

use serde_json::Value;
use units::Bytes;

mod losses;

use crate::table::Table;
use losses::{instructions, losses, offload_cost, returns, trial};

/// The table of `thermocline status`.
pub(crate) fn status(view: &Value) -> String {
    let mut text = String::new();
    let machine = &view["machine"];
    let _ = writeln!(
        text,
        "kernel {}, {} memory, {} compressed into {}{}",
        view["kernel"].as_str().unwrap_or("?"),
        bytes(&machine["total_bytes"]),
        bytes(&machine["stored_bytes"]),
        bytes(&machine["pool_bytes"]),
        if view["dry_run"] == true { "; dry run" } else { "" },
    );
    if let Some(why) = machine["no_far_memory"].as_str() {
        let _ = writeln!(text, "no far memory: {why}");
    }
    for trouble in machine["troubles"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let _ = writeln!(text, "error: {trouble}");
    }
    let reclaim = &machine["reclaim"];
    let direct = count(&reclaim["direct_reclaims"]).saturating_sub(count(&reclaim["direct_reclaims_at_start"]));
    if direct > 0 {
        let _ = writeln!(text, "{direct} allocations had to reclaim memory themselves since the agent started");
    }
    text += &tiers(&view["tiers"]["rows"]);
    text += &returns(&view["tiers"]["faults"]);
    text += &slow_memory(view);
    text += &rollout(&view["rollout"]);
    let headings = ["<job", "memory", "working", "cold", "far", "saved", "older", "promotions", "stall"];
    let mut table = Table::with_gap(&headings, 1);
    for job in view["jobs"].as_array().into_iter().flatten() {
        let word = |key: &str| job[key].as_str().unwrap_or("-").to_owned();
        let percent = |ratio: f64, digits: usize| format!("{:.digits$}%", ratio * 100.0);
        let or_none = |shown: Option<String>| shown.unwrap_or_else(|| "-".to_owned());
        let name = table.job(job["job"].as_str().unwrap_or("?"), STATUS_NAME_WIDTH);
        table.row(&[
            &name,
            &bytes(&job["memory_bytes"]),
            &bytes(&job["working_set_bytes"]),
            &bytes(&job["cold_bytes"]),
            &bytes(&job["far_bytes"]),
            &bytes(&job["saved_bytes"]),
            &or_none(job["threshold_seconds"].as_f64().map(|seconds| format!("{seconds} s"))),
            &or_none(job["promotion_rate_ratio_per_min"].as_f64().map(|rate| percent(rate, 3) + "/min")),
            &or_none(job["stall_ratio"].as_f64().map(|stall| percent(stall, 2))),
        ]);
        let (class, policy, tier, tracker) = (word("class"), word("policy"), word("tier"), word("tracker"));
        table.remark(&format!("  class {class}, policy {policy}, tier {tier}, tracker {tracker}\n"));
        table.remark(&format!("  {}\n", job["explanation"].as_str().unwrap_or("")));
        if let Some(remark) = job["remark"].as_str() {
            table.remark(&format!("  {remark}\n"));
        }
        table.remark(&protection(job));
        table.remark(&losses(&job["waits"]));
        table.remark(&instructions(&job["waits"]));
        table.remark(&offload_cost(&job["waits"]));
        table.remark(&trial(&job["trial"]));
    }
    text + &table.to_string() + &totals(&view["totals_by_kind"])
}

/// What protects a job from reclaim; empty if nothing is claimed or inherited.
fn protection(job: &Value) -> String {
    let (claimed, effective) = (&job["protection_claimed_bytes"], &job["protection_bytes"]);
    match (count(claimed), count(effective)) {
        (0, 0) => String::new(),
        (claims, protected) if protected < claims => {
            format!("  {} protected in effect, of {} claimed: its ancestors afford no more\n", bytes(effective), bytes(claimed))
        }
        _ if job["hard_protection"] == true => {
            format!("  {} protected in effect, by memory.min: the kernel reclaimed in spite of memory.low\n", bytes(effective))
        }
        _ => format!("  {} protected in effect\n", bytes(effective)),
    }
}

/// One line for each tier, in the order in which the kernel fills them.
fn tiers(rows: &Value) -> String {
    let mut text = String::new();
    for row in rows.as_array().into_iter().flatten() {
        let medium = if row["medium"] == "compressed_dram" { "compressed in DRAM" } else { "device" };
        let _ = write!(text, "tier {}: {medium}", row["name"].as_str().unwrap_or("?"));
        if let Some(priority) = row["priority"].as_i64() {
            let _ = write!(text, ", priority {priority}, {} free", bytes(&row["free_bytes"]));
        }
        let _ = match row["read_us"].as_u64() {
            Some(us) => write!(text, ", {us} us a page"),
            None => write!(text, ", latency not measured yet"),
        };
        if row["medium"] == "compressed_dram" {
            let _ = write!(text, ", occupies {}", bytes(&row["memory_bytes"]));
        }
        if let Some(next) = row["writes_back"].as_str() {
            let _ = write!(text, ", writes back to {next}");
        }
        if !row["writable_bytes"].is_null() {
            let _ = write!(text, ", {} may be written", bytes(&row["writable_bytes"]));
        }
        text.push('\n');
    }
    text
}

/// The slow node and the cost of sampling; empty without one.
fn slow_memory(view: &Value) -> String {
    let mut text = String::new();
    if let Some(why) = view["slow_trouble"].as_str() {
        let _ = writeln!(text, "nothing is placed in slow memory: {why}");
    } else if let Some(node) = view["slow"]["node"].as_u64() {
        let slow = &view["slow"];
        let (free, total, latency) = (bytes(&slow["free_bytes"]), bytes(&slow["total_bytes"]), count(&slow["latency_ns"]));
        let from = slow["latency_from"].as_str().unwrap_or("?");
        let _ = writeln!(text, "slow memory: node {node}, {free} free of {total}, {latency} ns an access by {from}");
        if let (Some(slow_ns), Some(home_ns)) = (slow["measured_ns"].as_u64(), slow["home_measured_ns"].as_u64()) {
            let home = count(&slow["home"]);
            let _ = writeln!(text, "measured latency: {slow_ns} ns on node {node}, {home_ns} ns on node {home} (target of promotions)");
        }
        let costs = &view["costs"];
        let percent = |key: &str| format!("{:.2}%", costs[key].as_f64().unwrap_or(0.0) * 100.0);
        let _ = writeln!(
            text,
            "sampling: {} of a processor; {} huge pages split, {} collapsed, in {} of the time",
            percent("rates_cpu_ratio"),
            count(&costs["rates_splits"]),
            count(&costs["rates_collapses"]),
            percent("rates_held_ratio"),
        );
    }
    text
}

/// The parameters in effect, if the agent follows a rollout.
fn rollout(view: &Value) -> String {
    if view.is_null() {
        return String::new();
    }
    let by = match view["bundle_version"].as_u64().unwrap_or(0) {
        0 => "the configuration file".to_owned(),
        version => format!("bundle {version} ({})", view["bundle_id"].as_str().unwrap_or("?")),
    };
    let (name, stage) = (view["rollout"].as_str().unwrap_or(""), view["stage"].as_str().unwrap_or(""));
    let mut text = format!("parameters: {by}");
    match view["arm"].as_str() {
        Some(arm) if !name.is_empty() => drop(writeln!(text, ": rollout {name}, stage {stage}, among {arm}")),
        Some(_) => text += ": no bundle is assigned\n",
        None => text += ": the rollout is not known yet\n",
    }
    for (key, what) in [("instead", "not as assigned"), ("trouble", "rollout")] {
        if let Some(why) = view[key].as_str() {
            let _ = writeln!(text, "{what}: {why}");
        }
    }
    text
}

/// The longest name of a job that is in its row.
const NAME_WIDTH: usize = 28;

/// The same of `status`, whose table fits a terminal of 100 columns: 17, five sizes of 10, 7, 11 and 7, and 8 spaces.
const STATUS_NAME_WIDTH: usize = 17;

/// Memory and savings by kind of job; empty without jobs.
fn totals(kinds: &Value) -> String {
    let with_jobs: Vec<_> = kinds.as_array().into_iter().flatten().filter(|kind| count(&kind["jobs"]) > 0).collect();
    if with_jobs.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["<kind", "jobs", "memory", "of machine", "saved", "of machine"]);
    for kind in with_jobs {
        let percent = |key: &str| format!("{:.1}%", kind[key].as_f64().unwrap_or(0.0) * 100.0);
        let (memory, saved) = (bytes(&kind["memory_bytes"]), bytes(&kind["saved_bytes"]));
        let (name, jobs) = (kind["kind"].as_str().unwrap_or("?"), count(&kind["jobs"]));
        table.row(&[&name, &jobs, &memory, &percent("memory_ratio"), &saved, &percent("saved_ratio")]);
    }
    format!("\n{table}")
}

/// The tables of `thermocline observe`. A figure that is not known yet is a dash, with the time until it is.
pub(crate) fn observed(view: &Value) -> String {
    let (kernel, memory) = (view["kernel"].as_str().unwrap_or("?"), bytes(&view["machine"]["total_bytes"]));
    let mut text = format!("kernel {kernel}, {memory} memory\n");
    let mut table = Table::new(&["<job", "<tracker", "memory", "working", "cold", "saved", "could save", "older", "compressed"]);
    for job in view["jobs"].as_array().into_iter().flatten() {
        let scanned = |key: &str| if job["scanned_at_seconds"].is_null() { "-".to_owned() } else { bytes(&job[key]) };
        let aged = |key: &str| if has_ages(job) { scanned(key) } else { "-".to_owned() };
        let saved = if count(&job["saved_bytes"]) > 0 { bytes(&job["saved_bytes"]) } else { "-".to_owned() };
        let name = table.job(job["job"].as_str().unwrap_or("?"), NAME_WIDTH);
        table.row(&[
            &name,
            &job["tracker"].as_str().unwrap_or("-"),
            &scanned("memory_bytes"),
            &aged("working_set_bytes"),
            &aged("cold_bytes"),
            &saved,
            &could_save(job),
            &job["threshold_seconds"].as_f64().map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s")),
            &job["would_occupy_ratio"].as_f64().map_or_else(|| "-".to_owned(), |ratio| format!("to {:.0}%", ratio * 100.0)),
        ]);
        if let Some(seconds) = job["could_save_known_in_seconds"].as_f64() {
            table.remark(&format!(
                "  known after two scans, at the next decision and with a sample of its cold pages: in {seconds:.0} s or later\n"
            ));
        }
        if job["could_save_needs_history"] == true {
            table.remark("  its history is too short for a threshold that meets the objective: at most what was idle from scan to scan\n");
        }
        if let Some(remark) = job["remark"].as_str() {
            table.remark(&format!("  {remark}\n"));
        }
    }
    text += &table.to_string();
    // They differ while the history of a job is too short.
    let (estimate, bound) = (view["could_save_bytes"].as_i64(), view["could_save_at_most_bytes"].as_i64());
    if let Some(net) = bound.or(estimate) {
        let agent = bytes(&view["savings"]["agent_bytes"]);
        let at_most = if estimate == Some(net) { "" } else { "at most " };
        let all = if net < 0 {
            format!("nothing: all of it is less than the agent's {agent}")
        } else {
            format!("{at_most}{}", Bytes(net.unsigned_abs()))
        };
        let _ = writeln!(text, "could save, net of compressed copies and the agent's {agent}: {all}; page cache is not included");
    }
    text + &ages(view)
}

/// What a job could save: an estimate, or a bound while there is none.
fn could_save(job: &Value) -> String {
    match (&job["could_save_bytes"], &job["could_save_at_most_bytes"]) {
        (Value::Null, Value::Null) => "-".to_owned(),
        (Value::Null, bound) => format!("<= {}", bytes(bound)),
        (estimate, _) => bytes(estimate),
    }
}

/// Whether a job's ages are known: once a decision was based on them.
fn has_ages(job: &Value) -> bool {
    let decided = !(job["could_save_bytes"].is_null() && job["threshold_seconds"].is_null());
    decided || job["could_save_needs_history"] == true
}

/// Each job's memory by idle time, once it is known.
fn ages(view: &Value) -> String {
    let mut text = String::new();
    for job in view["jobs"].as_array().into_iter().flatten().filter(|job| has_ages(job)) {
        let _ = writeln!(text, "\n{}: swap-backed memory by idle time{}", job["job"].as_str().unwrap_or("?"), sample(job));
        let resolved = job["resolved_to_seconds"].as_f64().unwrap_or(f64::MAX);
        let all = count(&job["working_set_bytes"]) + count(&job["cold_bytes"]);
        let mut table = Table::new(&["", "", "<"]);
        for entry in job["cold_age"].as_array().into_iter().flatten() {
            let (seconds, size) = (entry[0].as_f64().unwrap_or(0.0), count(&entry[1]));
            // No memory was observed for that long.
            if size == 0 {
                break;
            }
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bar of 40 marks")]
            let marks = (size as f64 / all.max(1) as f64 * 40.0).round() as usize;
            let estimated = match (seconds > resolved, job["sample_points"].is_null()) {
                (false, _) => "",
                (true, true) => " (estimated)",
                (true, false) => " (not watched for that long yet)",
            };
            table.row(&[&format!("{seconds} s and more"), &Bytes(size), &("#".repeat(marks) + estimated)]);
        }
        text += &table.to_string();
    }
    text
}

/// The size of the sample that a job's ages are estimated from, with two standard errors of a share of one half, the widest.
fn sample(job: &Value) -> String {
    let Some(points) = job["sample_points"].as_u64().filter(|points| *points > 0) else { return String::new() };
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    let error = 100.0 / (points as f64).sqrt();
    format!(", by a sample of {points} pages (within {error:.1} percentage points)")
}

/// The last decisions about one job, by each controller that has a say.
pub(crate) fn explanation(job: &Value, last: usize, now_unix_ms: u64) -> String {
    let word = |key: &str| job[key].as_str().unwrap_or("none");
    let mut text = format!(
        "{}: policy {}, class {}, tracker {} ({})\n",
        word("job"),
        word("policy"),
        word("class"),
        word("tracker"),
        word("tracker_reason")
    );
    let _ = writeln!(text, "  tier {}: {}", word("tier"), word("tier_reason"));
    if let Some(advice) = job["advice"].as_str() {
        let _ = writeln!(text, "  {advice}");
    }
    if let Some(hint) = job["hint"].as_str() {
        let _ = writeln!(text, "  hint: in the {hint}");
    }
    for controller in job["recent"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "{}", controller["controller"].as_str().unwrap_or("?"));
        let mut decisions: Vec<_> = controller["decisions"].as_array().into_iter().flatten().collect();
        // A repeated explanation is shown once, at its first period.
        decisions.dedup_by(|later, earlier| later["text"] == earlier["text"]);
        for decision in decisions.iter().skip(decisions.len().saturating_sub(last)) {
            let age_s = now_unix_ms.saturating_sub(count(&decision["unix_ms"])) / 1000;
            let _ = writeln!(text, "  {age_s:>7} s ago  {}", decision["text"].as_str().unwrap_or_default());
        }
    }
    text
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn bytes(value: &Value) -> String {
    Bytes(count(value)).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LONG: &str = "/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope";

    fn view() -> Value {
        let job = |name: &str| {
            json!({
                "job": name, "policy": "background", "class": "conservative", "tier": "zswap", "tracker": "page_idle",
                "memory_bytes": 1_099_500_000_000_u64, "saved_bytes": 1_048_575, "threshold_seconds": 15_300.0,
                "promotion_rate_ratio_per_min": 0.02, "stall_ratio": 0.125, "explanation": "in the background, compacted once",
            })
        };
        let kind = |name: &str, jobs: u64| json!({ "kind": name, "jobs": jobs, "memory_bytes": 3 << 29, "memory_ratio": 0.15, "saved_bytes": 1 << 29, "saved_ratio": 0.05 });
        json!({ "jobs": [job("/a"), job(LONG)], "totals_by_kind": [kind("application", 2), kind("datacenter_tax", 0)] })
    }

    #[test]
    fn the_status_table_fits_a_terminal() {
        let text = status(&view());
        let rows: Vec<_> = text.lines().filter(|line| line.contains("12.50%") || line.contains("promotions")).collect();
        assert!(rows.len() == 3 && rows.iter().all(|row| row.len() <= 100), "{text}");
        assert!(text.lines().any(|line| line == LONG), "a long name has its own line");
        let widest = 1_099_400_000_000_u64;
        let job = json!({
            "job": "/a-name-as-wide-x", "memory_bytes": widest, "working_set_bytes": widest, "cold_bytes": widest, "far_bytes": widest,
            "saved_bytes": widest, "threshold_seconds": 15_300.0, "promotion_rate_ratio_per_min": 0.99, "stall_ratio": 0.99,
        });
        let wide = status(&json!({ "jobs": [job] }));
        assert!(wide.contains("1023.9 GiB") && wide.lines().all(|line| line.len() <= 100), "{wide}");
        assert!(!text.contains("protected"), "nothing is claimed: {text}");
    }

    #[test]
    fn protection_is_shown_as_it_is_in_effect() {
        let check = |claimed: u64, effective: u64, expected: &str| {
            assert_eq!(protection(&json!({ "protection_claimed_bytes": claimed, "protection_bytes": effective })), expected);
        };
        check(0, 0, "");
        check(1 << 20, 1 << 20, "  1.0 MiB protected in effect\n");
        check(1 << 20, 0, "  0 B protected in effect, of 1.0 MiB claimed: its ancestors afford no more\n");
        check(0, 1 << 20, "  1.0 MiB protected in effect\n");
        let hard = json!({ "protection_claimed_bytes": 1 << 20, "protection_bytes": 1 << 20, "hard_protection": true });
        assert!(protection(&hard).contains("1.0 MiB protected in effect, by memory.min"));
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        let unknown = json!({ "job": "/a", "tracker": "page_idle", "could_save_known_in_seconds": 60.4, "cold_bytes": 0 });
        let text = observed(&json!({ "jobs": [unknown], "machine": { "total_bytes": 1 << 30 } }));
        assert!(text.contains("in 60 s or later") && !text.contains("0 B") && !text.contains("idle time"), "{text}");
        let ages = json!([[120.0, 1 << 20]]);
        let known = json!({
            "job": "/a", "tracker": "page_idle", "scanned_at_seconds": 9.0, "memory_bytes": 5 << 20, "working_set_bytes": 4 << 20,
            "cold_bytes": 1 << 20, "could_save_bytes": 700 << 10, "would_occupy_ratio": 0.31, "threshold_seconds": 120.0, "cold_age": ages,
        });
        let of = |net: i64| observed(&json!({ "jobs": [known], "could_save_bytes": net, "savings": { "agent_bytes": 300 << 10 } }));
        let text = of(400 << 10);
        assert!(text.contains("700.0 KiB") && text.contains("to 31%") && text.contains("agent's 300.0 KiB: 400.0 KiB"), "{text}");
        assert!(text.contains("120 s and more  1.0 MiB  ####"), "{text}");
        let mut short = known.clone();
        (short["could_save_bytes"], short["threshold_seconds"], short["could_save_needs_history"]) =
            (Value::Null, Value::Null, json!(true));
        short["could_save_at_most_bytes"] = json!(750 << 10);
        let bounded = json!({ "jobs": [short], "machine": { "total_bytes": 1 << 30 }, "could_save_at_most_bytes": 450 << 10, "savings": { "agent_bytes": 300 << 10 } });
        let text = observed(&bounded);
        assert!(text.contains("history is too short") && text.contains("idle time") && !text.contains("0 B"), "{text}");
        assert!(text.contains("<= 750.0 KiB") && text.contains("300.0 KiB: at most 450.0 KiB"), "{text}");
        assert!(of(-1).contains("nothing: all of it is less than the agent's 300.0 KiB"));
    }

    #[test]
    fn each_tier_has_a_line() {
        let rows = json!([
            { "name": "zram0", "medium": "compressed_dram", "priority": 100, "free_bytes": 1 << 30, "read_us": 12, "memory_bytes": 3 << 20 },
            { "name": "vdb", "medium": "device", "priority": -2, "free_bytes": 0, "memory_bytes": 0, "writable_bytes": 1 << 20 },
        ]);
        let expected = "tier zram0: compressed in DRAM, priority 100, 1.0 GiB free, 12 us a page, occupies 3.0 MiB\n\
                        tier vdb: device, priority -2, 0 B free, latency not measured yet, 1.0 MiB may be written\n";
        assert_eq!(tiers(&rows), expected);
    }

    #[test]
    fn savings_are_summed_by_kind() {
        let text = status(&view());
        let last = text.lines().last().unwrap_or_default();
        assert_eq!(last.split_whitespace().collect::<Vec<_>>(), ["application", "2", "1.5", "GiB", "15.0%", "512.0", "MiB", "5.0%"]);
        assert!(!text.contains("datacenter_tax") && totals(&json!([])).is_empty());
    }

    #[test]
    fn repeated_explanations_are_shown_once() {
        let held = |unix_ms: u64, reason: &str| json!({ "unix_ms": unix_ms, "text": reason });
        let recent = [held(1_000, "foreground"), held(2_000, "foreground"), held(9_000, "settling"), held(12_000, "done")];
        let job = json!({ "job": "/a", "policy": "background", "hint": "background", "advice": "zswap uses lzo", "recent": [{ "controller": "background", "decisions": recent }] });
        let check = |last: usize, want: &[&str]| {
            let text = explanation(&job, last, 20_000);
            let said: Vec<_> = text.lines().skip_while(|line| *line != "background").skip(1).map(str::trim).collect();
            assert_eq!(said.len(), want.len(), "{text}");
            assert!(said.iter().zip(want).all(|(said, want)| said.starts_with(want)), "{text}");
            assert!(text.contains("hint: in the background") && text.contains("  zswap uses lzo\n"));
        };
        check(10, &["19 s ago", "11 s ago", "8 s ago"]);
        check(1, &["8 s ago"]);
    }
}
