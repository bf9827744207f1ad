//! The commands that run the agent's loop, and those that look at what it left.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command as Process, ExitCode};
use std::sync::mpsc::SyncSender;
use std::time::{SystemTime, UNIX_EPOCH};

use agent::actuators::exact;
use agent::journal::{self, Journal};
use agent::node::{Agent, Message, Options};
use agent::{metrics, replay, socket};
use anyhow::{Context, Result, bail};
use config::{Class, Config, Guidance, JobRule, Told};
use kernel::Roots;
use kernel::cgroup::{self, Cgroup, CgroupRoot};
use rollout::follow::{Follow, Follower, Settings};
use serde_json::{Value, json};
use units::Age;

use crate::arguments::{AgentArguments, Explain, Format, Hint, Observe, Replay, Run};
use crate::{print, signals, text};

/// `thermocline agent`.
pub(crate) fn agent(roots: Roots, config: Config, format: Format, arguments: &AgentArguments) -> Result<()> {
    if config.jobs.is_empty() {
        bail!("no [[job]] rule is configured, so there is nothing to watch; see `thermocline config show` for examples");
    }
    let (sender, receiver) = signals::messages()?;
    let options = Options { dry_run: arguments.dry_run, ephemeral: false };
    let (runtime_dir, listen) = (config.agent.runtime_dir.clone(), config.agent.metrics_listen);
    let following = follower(&roots, &config);
    let mut node = Agent::new(roots, config, options)?;
    let _follow = following.map(|(follower, remembered)| follow(&mut node, follower, remembered, sender.clone())).transpose()?;
    socket::serve(&runtime_dir, node.view(), sender)
        .with_context(|| format!("cannot make the control socket in {}", runtime_dir.display()))?;
    if let Some(address) = listen {
        // Another service on the port is no reason to leave memory unwatched.
        match metrics::serve(address, node.view()) {
            Ok(bound) => log::info!("metrics on http://{bound}/metrics"),
            Err(error) => log::error!("no metrics on {address}: {error}; set agent.metrics_listen"),
        }
    }
    node.run(&receiver, arguments.r#for, &mut |_, view| {
        if format == Format::Json {
            let _ = print(format, &view.brief(), String::new);
        }
    })?;
    Ok(())
}

/// Who follows the rollout that is configured, and what an earlier agent remembered of it.
fn follower(roots: &Roots, config: &Config) -> Option<(Follower, rollout::Result<Option<Guidance>>)> {
    let wanted = &config.rollout;
    (!wanted.store.is_empty()).then(|| {
        Follower::new(Settings {
            store: wanted.store.clone(),
            root: wanted.root.clone(),
            poll: wanted.poll,
            state_dir: config.agent.state_dir.clone(),
            machine: agent::record::machine_name(roots, config),
            cluster: config.trace.cluster.clone(),
        })
    })
}

/// Goes by what is remembered, and has a thread see what is new.
fn follow(
    node: &mut Agent,
    follower: Follower,
    remembered: rollout::Result<Option<Guidance>>,
    sender: SyncSender<Message>,
) -> Result<Follow> {
    let (guidance, trouble) = match remembered {
        Ok(guidance) => (guidance, None),
        Err(error) => (None, Some(error.to_string())),
    };
    node.follow(Told { guidance, trouble, ..Told::default() });
    // The loop may have ended already.
    let tell = move |told| drop(sender.send(Message::Follow(Box::new(told))));
    Ok(rollout::follow::start(follower, tell)?)
}

/// `thermocline observe`.
pub(crate) fn observe(roots: Roots, mut config: Config, format: Format, arguments: &Observe) -> Result<()> {
    if !arguments.jobs.is_empty() {
        config.jobs = arguments.jobs.iter().map(|glob| JobRule::new(glob, Class::Observe)).collect();
    }
    if config.jobs.is_empty() {
        bail!("name the cgroups to watch, such as `thermocline observe '/system.slice/*.service'`, or configure [[job]] rules");
    }
    let (_sender, receiver) = signals::messages()?;
    let scan_period = config.agent.scan_period;
    let mut node = Agent::new(roots, config, Options { dry_run: true, ephemeral: true })?;
    let mut last = None;
    let mut ranges = None;
    let mut scans = 0;
    node.run(&receiver, arguments.r#for, &mut |node, view| {
        // Ages change with a scan, not with a decision.
        if let Some(idle) = arguments.cold_ranges.filter(|_| view.costs.scans > scans) {
            scans = view.costs.scans;
            ranges = Some(cold_ranges(node, Age::from_idle_time(idle, scan_period)));
        }
        match format {
            Format::Json => drop(print(format, &view.brief(), String::new)),
            Format::Text => eprint!("\r{} scans, {} jobs ", view.costs.scans, view.jobs.len()),
        }
        last = Some(json!(view.brief()));
    })?;
    if format == Format::Text {
        eprintln!();
        let view = last.context("stopped before the first scan was done")?;
        print(format, &view, || text::status(&view) + &text::ages(&view))?;
    }
    if let Some(ranges) = ranges {
        print(Format::Json, &json!({ "cold_ranges": ranges }), String::new)?;
    }
    Ok(())
}

/// What single pages the trackers hold for at least `age` old, per process. Jobs whose tracker does not know single
/// pages are left out.
fn cold_ranges(node: &Agent, age: Age) -> Vec<Value> {
    let mut found = Vec::new();
    for job in node.jobs().values() {
        let Some(scan) = &job.scan else { continue };
        let Some(ages) = node.tracker(job.tracker.0).and_then(agent::trackers::Tracker::page_ages) else { continue };
        let Ok(processes) = exact::cold_ranges(node.roots(), ages, &job.pids, age) else { continue };
        for (pid, ranges) in processes {
            let cold: Vec<_> = ranges.iter().map(|range| [range.start, range.end]).collect();
            let taken_at = ages.taken_at(pid).unwrap_or(scan.taken_at);
            let taken_at_ns = u64::try_from(taken_at.as_nanos()).unwrap_or(u64::MAX);
            found.push(json!({ "job": job.path(), "pid": pid, "taken_at_ns": taken_at_ns, "cold": cold }));
        }
    }
    found
}

/// `thermocline run -- CMD`.
pub(crate) fn run(roots: Roots, mut config: Config, format: Format, arguments: &Run) -> Result<ExitCode> {
    let class = Class::from_name(&arguments.class).unwrap_or(Class::Standard);
    let (sender, receiver) = signals::messages()?;
    let root = CgroupRoot::probe(&roots)?;
    let name = format!("/thermocline.run-{}", std::process::id());
    config.jobs = vec![JobRule::new(&name, class)];
    let options = Options { dry_run: arguments.dry_run, ephemeral: true };
    // The agent first: without a tracker there is no point in starting the command.
    let mut node = Agent::new(roots, config, options)?;
    let job = cgroup::create(&root, &name).with_context(|| format!("cannot make the cgroup {name}"))?;
    let outcome = run_in(&job, &arguments.command, &mut node, format, sender, &receiver);
    if let Err(error) = job.remove() {
        log::warn!("{error}");
    }
    outcome
}

fn run_in(
    job: &Cgroup,
    command: &[std::ffi::OsString],
    node: &mut Agent,
    format: Format,
    sender: SyncSender<Message>,
    receiver: &std::sync::mpsc::Receiver<Message>,
) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("no command given")?;
    // The shell enters the cgroup and becomes the command, so that not a single page is charged elsewhere.
    let mut child = Process::new("/bin/sh")
        .args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#])
        .arg(job.path())
        .arg(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let pid = child.id();
    let waiter = std::thread::spawn(move || {
        let status = child.wait();
        // The loop may have ended already.
        let _ = sender.send(Message::Stop);
        status
    });
    let mut last = None;
    let ran = node.run(receiver, None, &mut |_, view| last = Some(json!(view.brief())));
    if !waiter.is_finished() {
        // We were told to stop: the command is ours to end.
        let _ = Process::new("kill").arg(pid.to_string()).status();
    }
    let status = waiter.join().map_err(|_| anyhow::anyhow!("the thread that waits for the command panicked"))??;
    ran?;
    if let Some(view) = last {
        match format {
            Format::Json => print(format, &view, String::new)?,
            Format::Text => eprint!("{}", text::status(&view)),
        }
    }
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// `thermocline explain JOB`.
pub(crate) fn explain(config: &Config, format: Format, arguments: &Explain) -> Result<()> {
    let view = socket::ask(&config.agent.runtime_dir, "explain")?;
    let jobs = view["jobs"].as_array().cloned().unwrap_or_default();
    let Some(job) = jobs.iter().find(|job| job["job"] == arguments.job.as_str()) else {
        let known: Vec<_> = jobs.iter().filter_map(|job| job["job"].as_str()).collect();
        bail!("the agent watches no job {}; it watches: {}", arguments.job, known.join(", "));
    };
    let period = view["scan_period_seconds"].as_f64().unwrap_or(0.0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    print(format, job, || text::explanation(job, period, arguments.last, now_unix_ms))
}

/// `thermocline hint JOB WORD`.
pub(crate) fn hint(config: &Config, format: Format, arguments: &Hint) -> Result<()> {
    let Hint { job, word } = arguments;
    let answer = socket::ask(&config.agent.runtime_dir, &format!("hint {job} {word}"))?;
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    print(format, &answer, || format!("{job}: {word}\n"))
}

/// `thermocline config check`.
pub(crate) fn check(format: Format, checked: Result<Config, config::Problems>) -> Result<ExitCode> {
    let problems = match (checked, format) {
        (Ok(_), _) => Vec::new(),
        (Err(problems), Format::Json) => problems.0,
        (Err(problems), Format::Text) => return Err(problems.into()),
    };
    let ok = problems.is_empty();
    print(format, &json!({ "ok": ok, "problems": problems }), || "the configuration is sound\n".to_owned())?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `thermocline replay`.
pub(crate) fn replay(config: &Config, format: Format, arguments: &Replay) -> Result<ExitCode> {
    let path = arguments.journal.clone().unwrap_or_else(|| Journal::path(&config.agent.state_dir));
    let result = replay::replay(&journal::read(&path)?);
    print(format, &result, || {
        let differing = result.differing.len();
        format!("{} decisions replayed, {differing} differ, {} without a starting state\n", result.periods, result.skipped)
    })?;
    Ok(if result.differing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
