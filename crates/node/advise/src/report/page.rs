//! The report as one HTML page: verdict first, then charts, then the events.

use std::fmt::Write;

use units::Bytes;

use super::chart::{Chart, Line, duration, escaped};
use super::{JobReport, Report};

/// Jobs with charts; the table has all of them.
const CHARTS_MAX: usize = 20;

/// A promotion rate above this share of the objective is drawn here: one spike must not flatten all else.
const RATE_MAX: f64 = 3.0;

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1c2733;--back:#fff;--dim:#5a6b7b;--line:#d4dce4;--far:#0b6bcb;--memory:#8a97a5;--bad:#c62828;--good:#1b7a3d}
@media(prefers-color-scheme:dark){:root{--text:#e8edf2;--back:#14191f;--dim:#9fb0c0;--line:#34404c;--far:#5aa9f5;--memory:#8a97a5;--bad:#ff7961;--good:#66bb84}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .25rem;overflow-wrap:anywhere}
p.dim,td.dim{color:var(--dim)}
.verdict{border-left:6px solid var(--good);padding:.25rem 1rem;margin:1rem 0}.verdict.bad{border-color:var(--bad)}
.verdict p{margin:.25rem 0;overflow-wrap:anywhere}.verdict p:first-child{font-weight:600;font-size:1.1rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}td.bad{color:var(--bad);font-weight:600}
table.events td{text-align:left;white-space:normal;vertical-align:top}table.events td:first-child{white-space:nowrap}
svg{width:100%;max-width:42rem;height:auto;display:block}svg text{font-size:20px;fill:var(--dim)}
.value{text-anchor:end}.end{text-anchor:end}.grid{stroke:var(--line)}
polyline{fill:none;stroke-width:3;stroke-linejoin:round}.far,.saved,.rate{stroke:var(--far)}.memory{stroke:var(--memory)}
.limit{stroke:var(--bad);stroke-width:2;stroke-dasharray:8 6}.breach{fill:var(--bad)}
";

pub(super) fn page(report: &Report) -> String {
    let length = report.ends_unix_ms.0.saturating_sub(report.begins_unix_ms.0);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>Thermocline report</title><style>{STYLE}</style></head><body>\n\
         <h1>Thermocline</h1><p class=\"dim\">{} of control periods, jobs: {}, Linux {}</p>\n",
        duration(length),
        report.jobs.len(),
        escaped(&report.kernel),
    );
    verdict(&mut html, report);
    machine(&mut html, report);
    table(&mut html, report);
    for job in report.jobs.iter().filter(|job| job.points.iter().any(|point| point.far_bytes > Bytes::ZERO)).take(CHARTS_MAX) {
        charts(&mut html, job);
    }
    events(&mut html, report);
    html + "</body></html>\n"
}

fn verdict(html: &mut String, report: &Report) {
    let bad = report.jobs.iter().any(JobReport::breaks_objective) || report.saved_mean_bytes.is_some_and(|saved| saved <= 0);
    let lines: Vec<_> = report.verdict().iter().map(|line| format!("<p>{}</p>", escaped(line))).collect();
    let _ = writeln!(html, "<div class=\"verdict{}\">{}</div>", if bad { " bad" } else { "" }, lines.concat());
}

fn machine(html: &mut String, report: &Report) {
    if report.saved.is_empty() {
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "a position on a screen")]
    let points = report.saved.iter().map(|sample| (sample.unix_ms.0, sample.bytes as f64)).collect();
    let lines = vec![Line { class: "saved", points }];
    let chart = Chart { lines, limit: None, label: &size, title: "DRAM saved over time" };
    let _ = writeln!(html, "<h2>DRAM saved, net</h2>{}", chart.svg());
}

fn table(html: &mut String, report: &Report) {
    html.push_str(
        "<h2>Jobs</h2><div class=\"scroll\"><table><tr><th>job<th>class<th>policy<th>memory<th>far<th>saved<th>periods<th>over</tr>\n",
    );
    for job in &report.jobs {
        let last = job.points.last();
        let over = job.over_ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0));
        let _ = writeln!(
            html,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td class=\"{}\">{over}</tr>",
            escaped(&job.job),
            escaped(&job.class),
            escaped(&job.policy),
            last.map_or(Bytes::ZERO, |point| point.memory_bytes),
            last.map_or(Bytes::ZERO, |point| point.far_bytes),
            job.saved_mean_bytes,
            job.periods,
            if job.breaks_objective() { "bad" } else { "" },
        );
    }
    html.push_str("</table></div><p class=\"dim\">Memory and far memory at the end, savings on average; over: share of the periods over the promotion objective.</p>\n");
}

fn charts(html: &mut String, job: &JobReport) {
    #[expect(clippy::cast_precision_loss, reason = "a position on a screen")]
    let series = |read: fn(&super::Point) -> Bytes| job.points.iter().map(|point| (point.unix_ms.0, read(point).0 as f64)).collect();
    let lines = vec![
        Line { class: "memory", points: series(|point| point.memory_bytes) },
        Line { class: "far", points: series(|point| point.far_bytes) },
    ];
    let memory = Chart { lines, limit: None, label: &size, title: "memory and far memory over time" };
    let _ = writeln!(
        html,
        "<h2>{}</h2><p class=\"dim\">Memory charged (grey), and far memory, uncompressed (blue)</p>{}",
        escaped(&job.job),
        memory.svg(),
    );
    rates(html, job);
}

/// The job's promotion rate; nothing if it has no objective for it.
fn rates(html: &mut String, job: &JobReport) {
    let rate = |point: &super::Point| Some((point.unix_ms.0, point.of_objective_ratio?.min(RATE_MAX)));
    let points: Vec<_> = job.points.iter().filter_map(rate).collect();
    if points.is_empty() {
        return;
    }
    let label = |value: f64| format!("{:.0} %{}", value * 100.0, if value >= RATE_MAX { "+" } else { "" });
    let lines = vec![Line { class: "rate", points }];
    let chart = Chart { lines, limit: Some(1.0), label: &label, title: "promotion rate over time" };
    let _ = writeln!(html, "<p class=\"dim\">Promotion rate, as a share of the objective; breaches are marked</p>{}", chart.svg());
}

fn events(html: &mut String, report: &Report) {
    if report.events.is_empty() {
        return;
    }
    html.push_str("<h2>Events</h2>");
    if report.events_left_out > 0 {
        let _ = write!(html, "<p class=\"dim\">{} earlier ones are left out</p>", report.events_left_out);
    }
    html.push_str("<table class=\"events\">\n");
    for event in &report.events {
        let at = duration(event.unix_ms.0.saturating_sub(report.begins_unix_ms.0));
        let job = event.job.as_deref().unwrap_or("");
        let _ = writeln!(html, "<tr><td class=\"dim\">{at}<td>{}<td>{}</tr>", escaped(job), escaped(&event.what));
    }
    html.push_str("</table>\n");
}

/// A size of the axis.
fn size(bytes: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown to people")]
    let size = Bytes(bytes.abs() as u64);
    format!("{}{size}", if bytes < 0.0 { "-" } else { "" })
}
