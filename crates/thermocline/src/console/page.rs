//! The page with all of its answers in one file, which loads nothing: a report of a fleet, a rollout or a pool.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use config::Config;
use serde_json::Value;

use super::data::{Data, Found};
use super::{Shown, assets, live};
use crate::fleet::model::text::{bytes, percent};

/// Jobs of a machine that have a page of their own.
const MACHINE_JOBS_MAX: usize = 200;
/// Jobs of a fleet that have a page of their own: those with most memory, and as many that save most.
const FLEET_JOBS_MAX: usize = 100;

/// Answers without an index.
const PATHS: [&str; 8] = ["status", "machine", "fleet", "fleet/series", "fleet/jobs", "what-if", "rollout", "pool"];

/// A page that loads nothing may run only what is in it.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// What was read.
#[derive(Debug)]
pub(crate) struct Page {
    /// The server's answers, by path below `/api/`.
    answers: BTreeMap<String, Value>,
}

impl Page {
    /// Reads everything that is named.
    ///
    /// # Errors
    /// Something that is named cannot be read, or has nothing in it.
    pub(crate) fn read(config: &Config, journals: &[PathBuf], shown: &Shown) -> Result<Self> {
        shown.check(journals)?;
        let (sources, data) = (shown.sources(config.clone(), journals, None), Data::default());
        data.read_named(&sources);
        live::read_once(&data, &sources);
        let page = Self { answers: collect(&data) };
        let fleet = !shown.traces.is_empty();
        let named = [
            ("machine", !journals.is_empty()),
            ("fleet", fleet),
            ("what_if", fleet),
            ("rollout", shown.rollout.is_some()),
            ("pool", shown.pool.is_some()),
        ];
        for (source, _) in named.into_iter().filter(|&(_, named)| named) {
            let state = &page.answers["status"][source];
            if state["state"] != "ready" {
                bail!("{source}: {}", state["why"].as_str().unwrap_or("was not read"));
            }
        }
        Ok(page)
    }

    /// The answers, for programs.
    pub(crate) fn answers(&self) -> &BTreeMap<String, Value> {
        &self.answers
    }

    /// What the page says first, in a line each.
    pub(crate) fn verdict(&self) -> Vec<String> {
        let answers = &self.answers;
        let lines = |path: &str, of: fn(&Value) -> Vec<String>| answers.get(path).map(of).unwrap_or_default();
        [lines("machine", machine), lines("fleet", fleet), lines("rollout", rollout), lines("pool", pool)].concat()
    }

    /// The file.
    ///
    /// # Errors
    /// The console's page is not of the shape that its files are put into.
    pub(crate) fn html(&self) -> Result<String> {
        let text = |path: &str| {
            let asset = assets::find(path).with_context(|| format!("the page has no {path}"))?;
            std::str::from_utf8(asset.bytes).with_context(|| format!("{path} is no text"))
        };
        // Names of jobs are chosen by others: no text in the answers may end the element that holds them.
        let answers = serde_json::to_string(&self.answers)?.replace('<', "\\u003c");
        let mut html = text("/")?.to_owned();
        let inline = [
            ("<link rel=\"icon\" href=\"/icon.svg\" />", format!("<meta http-equiv=\"content-security-policy\" content=\"{POLICY}\" />")),
            ("<link rel=\"stylesheet\" href=\"/console.css\" />", format!("<style>\n{}</style>", text("/console.css")?)),
            ("<script src=\"/console.js\" defer></script>", String::new()),
            (
                "</body>",
                format!(
                    "<script type=\"application/json\" id=\"answers\">{answers}</script>\n<script>\n{}</script>\n</body>",
                    text("/console.js")?
                ),
            ),
        ];
        for (from, to) in inline {
            let Some((before, after)) = html.split_once(from) else { bail!("the page has no {from}") };
            html = [before, &to, after].concat();
        }
        Ok(html)
    }
}

fn collect(data: &Data) -> BTreeMap<String, Value> {
    let mut answers = BTreeMap::new();
    for path in PATHS {
        add(&mut answers, data, path.to_owned());
    }
    let _clusters = (0..).take_while(|index| add(&mut answers, data, format!("fleet/cluster/{index}"))).count();
    let _jobs = (0..MACHINE_JOBS_MAX).take_while(|index| add(&mut answers, data, format!("machine/job/{index}"))).count();
    let columns = answers.get("fleet/jobs").map(|jobs| ["memory_bytes", "saved_bytes"].map(|column| largest(&jobs[column])));
    for index in columns.into_iter().flatten().flatten() {
        add(&mut answers, data, format!("fleet/job/{index}"));
    }
    answers
}

/// Adds the answer to a path, if there is one. Returns whether there is.
fn add(answers: &mut BTreeMap<String, Value>, data: &Data, path: String) -> bool {
    let answer = match data.find(&path) {
        Found::Json(bytes) => serde_json::from_slice(&bytes).ok(),
        Found::Unknown | Found::NotReady(_) => None,
    };
    answer.map(|answer| answers.insert(path, answer)).is_some()
}

/// The indices of the largest values of a column.
fn largest(column: &Value) -> Vec<usize> {
    let values = column.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut order: Vec<usize> = (0..values.len()).collect();
    #[expect(clippy::cast_possible_truncation, reason = "whole bytes")]
    order.sort_by_key(|&index| Reverse(values[index].as_f64().unwrap_or(0.0) as i64));
    order.truncate(FLEET_JOBS_MAX);
    order
}

fn machine(machine: &Value) -> Vec<String> {
    machine["verdict"].as_array().into_iter().flatten().filter_map(|line| line.as_str().map(str::to_owned)).collect()
}

fn fleet(fleet: &Value) -> Vec<String> {
    let part = &fleet["fleet"];
    let known = |value: &Value, print: fn(f64) -> String| value.as_f64().map_or_else(|| "-".to_owned(), print);
    let rate = |value: &Value| known(value, |ratio| format!("{}/min", percent(ratio, 3)));
    let found = format!(
        "{} of the entries were at or below {}, and {} is allowed",
        known(&fleet["objective_percentile_ratio"], |ratio| percent(ratio, 2)),
        rate(&part["rate_ratio_per_min"]),
        rate(&fleet["objective_ratio_per_min"])
    );
    let objective = match part["holds"].as_bool() {
        Some(true) => format!("the promotion objective was kept: {found}"),
        Some(false) => format!("the promotion objective was broken: {found}"),
        None => "no job had far memory".to_owned(),
    };
    // More than nothing may be lost: far memory has a cost in DRAM.
    let saved = known(&part["saved_bytes"], |saved| format!("{}{}", if saved < 0.0 { "-" } else { "" }, bytes(saved.abs())));
    vec![
        format!("fleet: {objective}"),
        format!("{saved} saved, on average and net, by {} jobs on {} machines", part["jobs"], part["machines"]),
    ]
}

fn rollout(rollout: &Value) -> Vec<String> {
    vec![format!("rollout {} of bundle {}: {}", text(&rollout["rollout"]), rollout["bundle"], text(&rollout["is"]).replace('_', " "))]
}

fn pool(pool: &Value) -> Vec<String> {
    let slices = |state: &str| pool["slices"][state].as_u64().map_or_else(|| "-".to_owned(), |count| count.to_string());
    let faults = pool["faults"].as_array().into_iter().flatten();
    let free = format!("pool: {} slices free, {} of guests, {} failed", slices("free"), slices("online"), slices("failed"));
    std::iter::once(free).chain(faults.map(|fault| format!("pool: {}: {}", text(&fault["what"]), text(&fault["remedy"])))).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_name_ends_the_element_that_holds_it() {
        let name = "</script><script>alert(1)</script><!--";
        let page = Page { answers: BTreeMap::from([("fleet/jobs".to_owned(), json!({ "job": [name] }))]) };
        let html = page.html().unwrap();
        assert!(!html.contains("alert(1)</script>") && !html.contains("</script><script>"), "{html}");
        let (_, from) = html.split_once("id=\"answers\">").unwrap();
        let (answers, rest) = from.split_once("</script>").unwrap();
        assert_eq!(serde_json::from_str::<Value>(answers).unwrap()["fleet/jobs"]["job"][0], name);
        assert_eq!(rest.matches("<script").count(), 1, "the page's own script");
        assert_eq!(rest.matches("</script").count(), 1, "and nothing in it ends it");
        for loaded in ["src=\"", "href=\"/", "http://", "@import", "url("] {
            let all = html.replace("http://www.w3.org/", "");
            assert!(!all.contains(loaded), "{loaded}");
        }
    }

    #[test]
    fn the_largest_jobs_have_details() {
        assert_eq!(largest(&json!([5.0, 9.5, 0.0, null])), [1, 0, 2, 3]);
        assert_eq!(largest(&Value::Null), [] as [usize; 0]);
    }

    #[test]
    fn the_verdict_comes_first() {
        let part = json!({ "jobs": 3, "machines": 2, "saved_bytes": 3.0 * 1024.0 * 1024.0, "rate_ratio_per_min": 0.0015, "holds": true });
        let value = json!({ "fleet": part, "objective_percentile_ratio": 0.98, "objective_ratio_per_min": 0.002 });
        let lines = fleet(&value);
        assert_eq!(
            lines[0],
            "fleet: the promotion objective was kept: 98% of the entries were at or below 0.15%/min, and 0.2%/min is allowed"
        );
        assert_eq!(lines[1], "3.0 MiB saved, on average and net, by 3 jobs on 2 machines");
        let fault = json!({ "what": "EMC 1 has failed", "remedy": "Replace it." });
        let lines = pool(&json!({ "slices": { "free": 4, "online": 2, "failed": 1 }, "faults": [fault] }));
        assert_eq!(lines, ["pool: 4 slices free, 2 of guests, 1 failed", "pool: EMC 1 has failed: Replace it."]);
    }
}
