//! What returns to the job during a trial, and the result as a limit that the agent keeps.

use std::time::{Duration, Instant};

use ::rollout::trial::{Estimate, Verdict};
use agent::socket;
use anyhow::{Result, bail, ensure};
use config::Config;
use kernel::cgroup::Cgroup;
use serde::Serialize;
use serde_json::Value;

/// The kernel's counters of what returned to a cgroup, ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    at: Instant,
    promoted: u64,
    refaulted: u64,
}

/// What returned in some time, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Returned {
    /// Anonymous and shared pages.
    pub(super) promoted: u64,
    /// Page cache.
    pub(super) refaulted: u64,
    /// The time.
    pub(super) elapsed: Duration,
}

/// What returned in 1,000 s, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Returns {
    pub(super) promoted: u64,
    pub(super) refaulted: u64,
}

impl Counters {
    pub(super) fn read(cgroup: &Cgroup) -> Result<Self> {
        let stat = cgroup.stat()?;
        // As the agent counts: without `pswpin` (before Linux 6.17), refaults show what returned from a device.
        let swapped_in = stat.zswpin.unwrap_or(0) + stat.pswpin.unwrap_or(0);
        let refaulted = if stat.pswpin.is_none() { stat.workingset_refault_anon.unwrap_or(0) } else { 0 };
        Ok(Self { at: Instant::now(), promoted: swapped_in.max(refaulted), refaulted: stat.workingset_refault_file.unwrap_or(0) })
    }

    pub(super) fn since(&self, before: &Self) -> Returned {
        Returned {
            promoted: self.promoted.saturating_sub(before.promoted),
            refaulted: self.refaulted.saturating_sub(before.refaulted),
            elapsed: self.at.saturating_duration_since(before.at),
        }
    }
}

/// The mean of some halves.
pub(super) fn mean(halves: impl Iterator<Item = Returned>) -> Returns {
    let add = |sum: Returned, half: Returned| Returned {
        promoted: sum.promoted + half.promoted,
        refaulted: sum.refaulted + half.refaulted,
        elapsed: sum.elapsed + half.elapsed,
    };
    let all = halves.fold(Returned::default(), add);
    let in_1000_s = |pages: u64| {
        let scaled = u128::from(pages) * 1_000_000 / all.elapsed.as_millis().max(1);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    Returns { promoted: in_1000_s(all.promoted), refaulted: in_1000_s(all.refaulted) }
}

/// Asks the running agent; an error in its answer is one here.
pub(super) fn ask(config: &Config, request: &str) -> Result<Value> {
    let answer = socket::ask(&config.agent.runtime_dir, request)?;
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    Ok(answer)
}

/// What a trial found that the agent may keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) job: &'a str,
    pub(super) estimate: Option<Estimate>,
    /// Whether all of its blocks ran: whoever watches the outcome could stop it when it suits them.
    pub(super) is_whole: bool,
    /// Far memory with far memory on and off, in bytes.
    pub(super) far_bytes: [u64; 2],
    /// What returned with far memory on.
    pub(super) returned: Returns,
}

/// How long the agent may take until it shows what became of a message. It takes them between two steps of its work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has the agent keep the result. Returns what became of it.
pub(super) fn keep(config: &Config, found: &Found<'_>) -> Result<String> {
    ask(config, &found.request()?)?;
    let shown = shown_once(config, found.job, |trial| found.is(trial))?;
    if found.is(&shown) {
        let days = config.agent.trial_keep.as_secs_f64() / 86_400.0;
        return Ok(format!(
            "kept for {days:.1} days: thermocline status shows what it limits, thermocline trial --forget {} undoes it",
            found.job
        ));
    }
    let instead = if shown.is_null() { "" } else { "; that of an earlier one applies" };
    bail!("the agent shows no such result after {} s{instead}: its log says why", PATIENCE.as_secs())
}

/// Has the agent forget the result of a job. Returns what to say.
pub(super) fn forget(config: &Config, job: &str) -> Result<String> {
    let known = trial_of(config, job)?;
    ensure!(known.as_ref().is_none_or(|trial| !trial.is_null()), "no result of a trial of {job} is kept");
    ask(config, &format!("forget {job}"))?;
    if known.is_none() {
        return Ok(format!("the agent watches no job {job} now; if it keeps a result of its trial, it forgets it, and its log says so"));
    }
    ensure!(shown_once(config, job, Value::is_null)?.is_null(), "the result of the trial of {job} is still kept: the agent's log says why");
    Ok(format!("the result of the trial of {job} is forgotten"))
}

/// The result that the agent keeps of a job, null without one; `None` if it watches no such job.
fn trial_of(config: &Config, job: &str) -> Result<Option<Value>> {
    let view = ask(config, "status")?;
    let known = view["jobs"].as_array().into_iter().flatten().find(|known| known["job"] == job);
    Ok(known.map(|known| known["trial"].clone()))
}

/// That result once it is as expected, or when there was no more patience.
fn shown_once(config: &Config, job: &str, expected: impl Fn(&Value) -> bool) -> Result<Value> {
    let begun = Instant::now();
    loop {
        let trial = trial_of(config, job)?.unwrap_or_default();
        if expected(&trial) || begun.elapsed() >= PATIENCE {
            return Ok(trial);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Found<'_> {
    /// Whether the agent shows this result.
    fn is(&self, trial: &Value) -> bool {
        let same = |shown: &Value, found: f64| shown.as_f64().is_some_and(|shown| (shown - found).abs() < 1e-6);
        let fresh = trial["age_seconds"].as_f64().is_some_and(|age| age < 2.0 * PATIENCE.as_secs_f64());
        fresh
            && self
                .estimate
                .is_some_and(|found| same(&trial["slowdown_ratio"], found.slowdown_ratio) && same(&trial["upper_ratio"], found.upper_ratio))
    }

    fn request(&self) -> Result<String> {
        ensure!(self.is_whole, "the trial ended early");
        let Some(found) = self.estimate else { bail!("there is no estimate") };
        let [on, off] = self.far_bytes;
        // Otherwise the difference is not that of far memory.
        ensure!(on > off, "the job had no more far memory in one arm than in the other");
        #[expect(clippy::cast_possible_truncation, reason = "a slowdown of 2,000 times saturates")]
        let ppm = |ratio: f64| (ratio * 1e6).round() as i32;
        let (slowdown, lower, upper) = (ppm(found.slowdown_ratio), ppm(found.lower_ratio), ppm(found.upper_ratio));
        // Interval and test must agree on a slowdown.
        let lower = if found.verdict == Verdict::Slower { lower } else { lower.min(0) };
        let Returns { promoted, refaulted } = self.returned;
        Ok(format!("keep {} {slowdown} {lower} {upper} {promoted} {refaulted}", self.job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_returned_is_a_mean_over_time() {
        let half = |promoted, refaulted, seconds| Returned { promoted, refaulted, elapsed: Duration::from_secs(seconds) };
        assert_eq!(mean([half(30, 0, 100), half(10, 8, 300)].into_iter()), Returns { promoted: 100, refaulted: 20 });
        assert_eq!(mean(std::iter::empty()), Returns::default());
    }

    #[test]
    fn the_result_that_the_agent_shows_is_recognised() {
        let estimate =
            Estimate { blocks: 12, slowdown_ratio: 0.021, lower_ratio: 0.01, upper_ratio: 0.032, p_value: 0.01, verdict: Verdict::Slower };
        let found = Found { job: "/a", estimate: Some(estimate), is_whole: true, far_bytes: [9, 5], returned: Returns::default() };
        let shown = |slowdown: f64, age: f64| serde_json::json!({ "slowdown_ratio": slowdown, "upper_ratio": 0.032, "age_seconds": age });
        assert!(found.is(&shown(0.021, 0.5)));
        assert!(!found.is(&shown(0.08, 0.5)), "that of an earlier trial, which stays");
        assert!(!found.is(&shown(0.021, 3_600.0)), "an earlier one with the same result");
        assert!(!found.is(&Value::Null), "none was stored");
    }

    #[test]
    fn only_a_result_that_shows_something_is_kept() {
        let found = Estimate {
            blocks: 12,
            slowdown_ratio: 0.021,
            lower_ratio: -0.000_9,
            upper_ratio: 0.032,
            p_value: 0.01,
            verdict: Verdict::NoDifference,
        };
        let request = |estimate, on| {
            let returned = Returns { promoted: 7, refaulted: 3 };
            Found { job: "/a b", estimate, is_whole: true, far_bytes: [on, 5], returned }.request()
        };
        let slower = Estimate { lower_ratio: 0.01, ..found };
        assert_eq!(request(Some(slower), 9).unwrap(), "keep /a b 21000 0 32000 7 3", "the test does not agree");
        assert_eq!(request(Some(Estimate { verdict: Verdict::Slower, ..slower }), 9).unwrap(), "keep /a b 21000 10000 32000 7 3");
        let early = Found { job: "/a", estimate: Some(found), is_whole: false, far_bytes: [9, 5], returned: Returns::default() };
        assert!(early.request().unwrap_err().to_string().contains("ended early"));
        assert_eq!(request(Some(found), 9).unwrap(), "keep /a b 21000 -900 32000 7 3");
        assert!(request(None, 9).unwrap_err().to_string().contains("no estimate"));
        assert!(request(Some(found), 5).unwrap_err().to_string().contains("no more far memory"));
    }
}
