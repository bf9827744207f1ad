//! `thermocline status`, `explain` and `hint`: requests to a running agent.

use std::time::{SystemTime, UNIX_EPOCH};

use agent::socket;
use anyhow::{Result, bail};
use clap::Args;
use config::Config;

use super::text;
use crate::options::Format;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The job's cgroup relative to the cgroup root, such as /system.slice/redis.service
    pub(crate) job: String,
    /// Number of last decisions to show, per controller
    #[arg(long, default_value_t = 10)]
    pub(crate) last: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Hint {
    /// The job's cgroup relative to the cgroup root; its policy is background or auto
    pub(crate) job: String,
    /// The hint; `auto` withdraws an earlier one. It applies until the job ends
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(agent::socket::HINT_WORDS))]
    pub(crate) word: String,
}

/// `thermocline status`.
pub(crate) fn status(config: &Config, format: Format) -> Result<()> {
    let view = socket::ask(&config.agent.runtime_dir, "status")?;
    print(format, &view, || text::status(&view))
}

/// `thermocline explain JOB`.
pub(crate) fn explain(config: &Config, format: Format, arguments: &Explain) -> Result<()> {
    let view = socket::ask(&config.agent.runtime_dir, "explain")?;
    let jobs = view["jobs"].as_array().cloned().unwrap_or_default();
    let Some(job) = jobs.iter().find(|job| job["job"] == arguments.job.as_str()) else {
        let known: Vec<_> = jobs.iter().filter_map(|job| job["job"].as_str()).collect();
        bail!("the agent has no job {}; its jobs are: {}", arguments.job, known.join(", "));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_unix_ms = units::millis(now);
    print(format, job, || text::explanation(job, arguments.last, now_unix_ms))
}

/// `thermocline hint JOB HINT`.
pub(crate) fn hint(config: &Config, format: Format, arguments: &Hint) -> Result<()> {
    let Hint { job, word } = arguments;
    let answer = socket::ask(&config.agent.runtime_dir, &format!("hint {job} {word}"))?;
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    print(format, &answer, || format!("{job}: {word}\n"))
}
