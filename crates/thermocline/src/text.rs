//! Results for people: tables from the same JSON that programs get.

use std::fmt::Write;

use agent::job::ClosedPeriod;
use policy::units::Bytes;
use serde_json::Value;

/// A view as a table of jobs.
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
        if view["dry_run"] == true { "; looking only" } else { "" },
    );
    if let Some(why) = machine["no_far_memory"].as_str() {
        let _ = writeln!(text, "no far memory: {why}");
    }
    let _ = writeln!(
        text,
        "{:<32} {:<12} {:<9} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>10}",
        "job", "class", "tracker", "memory", "working", "cold", "far", "saved", "older", "promotions"
    );
    for job in view["jobs"].as_array().into_iter().flatten() {
        let threshold = job["threshold_seconds"].as_f64().map_or_else(|| "-".to_owned(), |s| format!("{s} s"));
        let rate = job["promotion_rate_ratio_per_min"].as_f64().map_or_else(|| "-".to_owned(), |r| format!("{:.3}%/min", r * 100.0));
        let _ = writeln!(
            text,
            "{:<32} {:<12} {:<9} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>10}",
            job["job"].as_str().unwrap_or("?"),
            job["class"].as_str().unwrap_or("?"),
            job["tracker"].as_str().unwrap_or("?"),
            bytes(&job["memory_bytes"]),
            bytes(&job["working_set_bytes"]),
            bytes(&job["cold_bytes"]),
            bytes(&job["far_bytes"]),
            bytes(&job["saved_bytes"]),
            threshold,
            rate,
        );
        let _ = writeln!(text, "  {}", job["explanation"].as_str().unwrap_or(""));
        if let Some(remark) = job["remark"].as_str() {
            let _ = writeln!(text, "  {remark}");
        }
    }
    text
}

/// How much of each job is how old.
pub(crate) fn ages(view: &Value) -> String {
    let mut text = String::new();
    for job in view["jobs"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "\n{}: swap-backed memory by idle time", job["job"].as_str().unwrap_or("?"));
        let resolved = job["resolved_to_seconds"].as_f64().unwrap_or(f64::MAX);
        let all = count(&job["working_set_bytes"]) + count(&job["cold_bytes"]);
        for entry in job["cold_age"].as_array().into_iter().flatten() {
            let (seconds, size) = (entry[0].as_f64().unwrap_or(0.0), count(&entry[1]));
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bar of 40 marks")]
            let marks = (size as f64 / all.max(1) as f64 * 40.0).round() as usize;
            let estimated = if seconds > resolved { " (estimated)" } else { "" };
            let _ = writeln!(text, "  {seconds:>8} s and more {:>10} {}{estimated}", Bytes(size).to_string(), "#".repeat(marks));
        }
    }
    text
}

/// The last decisions about one job.
pub(crate) fn explanation(job: &Value, scan_period_seconds: f64, last: usize) -> String {
    let mut text = format!(
        "{}: class {}, tracker {} ({})\n",
        job["job"].as_str().unwrap_or("?"),
        job["class"].as_str().unwrap_or("?"),
        job["tracker"].as_str().unwrap_or("?"),
        job["tracker_reason"].as_str().unwrap_or("?"),
    );
    let empty = Vec::new();
    let recent = job["recent"].as_array().unwrap_or(&empty);
    for period in recent.iter().skip(recent.len().saturating_sub(last)) {
        let Ok(period) = serde_json::from_value::<ClosedPeriod>(period.clone()) else { continue };
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        let rate = period.promotion_rate_ppm().map_or_else(|| "-".to_owned(), |ppm| format!("{:.3}%/min", ppm as f64 / 1e4));
        let at = period.job_age_ms / 1000;
        let _ = writeln!(text, "  {at:>7} s  promotions {rate:>11}  {}", agent::view::explain(&period, scan_period_seconds));
    }
    text
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn bytes(value: &Value) -> String {
    Bytes(count(value)).to_string()
}
