//! What far memory costs a job and the agent, for people.

use std::fmt::Write;

use serde_json::Value;

/// What a job lost to far memory, by its parts; empty if nothing.
pub(super) fn losses(waits: &Value) -> String {
    let seconds = |part: &str| waits["lost"][part].as_f64().unwrap_or(0.0);
    let parts = [
        ("swap-in", "swap_in_seconds"),
        ("devices", "device_seconds"),
        ("faults", "fault_seconds"),
        ("reclaim", "reclaim_seconds"),
        ("slow memory", "slow_seconds"),
    ];
    let lost = waits["lost_seconds"].as_f64().unwrap_or(0.0);
    if lost < 0.001 {
        return String::new();
    }
    let shown = parts.iter().filter(|(_, key)| seconds(key) >= 0.001).map(|(name, key)| format!("{name} {:.3} s", seconds(key)));
    let mut text = format!("  lost {lost:.3} s to far memory: {}", shown.collect::<Vec<_>>().join(", "));
    if let Some(ratio) = waits["slowdown_ratio"].as_f64() {
        let _ = write!(text, "; slowdown {:.2}% in the last period", ratio * 100.0);
    }
    if waits["measured"] == false {
        text += "; swap-in not measured, see task_delayacct in thermocline doctor";
    }
    text.push('\n');
    let means = &waits["swap_in_means"];
    if !means.is_null() {
        let _ = write!(text, "  swap-in, means by process and period: {}", quantiles(means));
        if let Some(us) = waits["swap_in_max_us"].as_f64() {
            let _ = write!(text, "; longest seen {us:.0} us");
        }
        text.push('\n');
    }
    text
}

/// Instructions per cycle; empty unless they are counted.
pub(super) fn instructions(waits: &Value) -> String {
    let found = waits["instructions_per_cycle"].as_f64();
    found.map_or_else(String::new, |ratio| format!("  {ratio:.2} instructions per cycle in the last period\n"))
}

/// What the agent paid to move a job's memory out; empty if nothing.
pub(super) fn offload_cost(waits: &Value) -> String {
    match waits["offload_cpu_seconds"].as_f64() {
        Some(cpu) if cpu >= 0.001 => format!("  {cpu:.3} s of CPU to move it out, compression included, paid by the agent\n"),
        _ => String::new(),
    }
}

/// The result of a job's trial, and what it limits; empty without one.
pub(super) fn trial(trial: &Value) -> String {
    let Some(slowdown) = trial["slowdown_ratio"].as_f64() else { return String::new() };
    let figure = |key: &str| trial[key].as_f64().unwrap_or(0.0);
    let percent = |key: &str| figure(key) * 100.0;
    let (lower, upper, tolerated) = (percent("lower_ratio"), percent("upper_ratio"), percent("tolerated_ratio"));
    let (age, left) = (hours(figure("age_seconds")), hours(figure("expires_in_seconds")));
    let limit = match trial["promotions_max_per_second"].as_f64() {
        Some(most) => format!("more than {tolerated:.1} % tolerated: at most {most:.3} promotions/s for {left}"),
        None => format!("{tolerated:.1} % tolerated: nothing is limited"),
    };
    format!("  trial: {:.1} % ({lower:.1} to {upper:.1}), {age} ago; {limit}\n", slowdown * 100.0)
}

/// A time in its largest whole unit up to days.
fn hours(seconds: f64) -> String {
    match seconds {
        _ if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.0} h", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// Quantiles of durations, by their number.
fn quantiles(of: &Value) -> String {
    let us = |name: &str| of[name].as_f64().unwrap_or(0.0);
    format!(
        "50 % {:.1} us, 90 % {:.1} us, 99 % {:.1} us of {}",
        us("p50_us"),
        us("p90_us"),
        us("p99_us"),
        of["count"].as_u64().unwrap_or(0)
    )
}

/// How long the agent's own pages take to return, by tier; empty if that was not measured.
pub(super) fn returns(faults: &Value) -> String {
    let line = |(key, name): (&str, &str)| {
        let found = &faults[key];
        if found.is_null() { String::new() } else { format!("page faults, {name}: {}\n", quantiles(found)) }
    };
    [("compressed", "compressed in DRAM"), ("device", "on a device")].map(line).concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn losses_are_shown_by_their_parts() {
        let check = |waits: Value, expected: &str| assert_eq!(losses(&waits), expected);
        check(json!({ "lost_seconds": 0.0 }), "");
        check(Value::Null, "");
        let lost = json!({ "swap_in_seconds": 1.5, "fault_seconds": 0.25, "device_seconds": 0.0 });
        let measured = json!({ "measured": true, "lost": lost, "lost_seconds": 1.75, "slowdown_ratio": 0.0234 });
        check(measured, "  lost 1.750 s to far memory: swap-in 1.500 s, faults 0.250 s; slowdown 2.34% in the last period\n");
        let unmeasured = json!({ "measured": false, "lost": { "slow_seconds": 2.0 }, "lost_seconds": 2.0 });
        check(
            unmeasured,
            "  lost 2.000 s to far memory: slow memory 2.000 s; swap-in not measured, see task_delayacct in thermocline doctor\n",
        );
    }

    #[test]
    fn a_kept_trial_is_shown_with_what_it_limits() {
        assert_eq!(trial(&Value::Null), "");
        let mut kept = json!({
            "slowdown_ratio": 0.021, "lower_ratio": 0.009, "upper_ratio": 0.032, "age_seconds": 10_800.0,
            "expires_in_seconds": 594_000.0, "tolerated_ratio": 0.03, "promotions_max_per_second": null,
        });
        assert_eq!(trial(&kept), "  trial: 2.1 % (0.9 to 3.2), 3 h ago; 3.0 % tolerated: nothing is limited\n");
        kept["promotions_max_per_second"] = json!(0.25);
        assert!(trial(&kept).ends_with("; more than 3.0 % tolerated: at most 0.250 promotions/s for 7 days\n"), "{}", trial(&kept));
    }

    #[test]
    fn distributions_are_shown_where_they_were_measured() {
        let found = json!({ "count": 640, "p50_us": 5.375, "p90_us": 9.215, "p99_us": 40.959 });
        let shown = "50 % 5.4 us, 90 % 9.2 us, 99 % 41.0 us of 640";
        assert_eq!(returns(&json!({ "compressed": found, "device": null })), format!("page faults, compressed in DRAM: {shown}\n"));
        assert_eq!(returns(&json!({})), "");
        let waits = json!({ "lost": { "swap_in_seconds": 1.0 }, "lost_seconds": 1.0, "swap_in_means": found, "swap_in_max_us": 1234.0 });
        let text = losses(&waits);
        assert!(text.ends_with(&format!("  swap-in, means by process and period: {shown}; longest seen 1234 us\n")), "{text}");
        assert_eq!(instructions(&json!({ "instructions_per_cycle": null })), "");
        assert_eq!(instructions(&json!({ "instructions_per_cycle": 1.234 })), "  1.23 instructions per cycle in the last period\n");
        assert_eq!(offload_cost(&json!({ "offload_cpu_seconds": 0.0004 })), "");
        assert!(offload_cost(&json!({ "offload_cpu_seconds": 0.25 })).contains("0.250 s of CPU"));
    }
}
