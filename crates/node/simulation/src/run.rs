//! One run: the agent on the machine of a plan, with its faults, checked after every turn.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::{Agent, Deadlines, Message, Options, ScanWait, journal, replay, scheduler};
use anyhow::Context;
use config::{Arm, Bundle, Config, Guidance, Poll};
use daemon::Clock;
use fastrand::Rng;
use kernel::Roots;
use tempfile::TempDir;
use twox_hash::XxHash3_64;

use crate::faults::Effects;
use crate::group::{Group, Role};
use crate::machine::{self, Machine, Shared};
use crate::plan::{Fault, Kind, Plan, TURNS};
use crate::promises::{self, Allowed};
use crate::time::{Killed, Time};

/// The result of one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Broken promises, with the turn.
    pub violations: Vec<String>,
    /// A digest of all requests, settings and journal records.
    pub digest: u64,
    /// Turns that the agent ran.
    pub turns: u64,
    /// Starts of the agent.
    pub starts: u64,
    /// Requests for reclaim.
    pub requests: u64,
    /// Decisions that were replayed.
    pub replayed: u64,
    /// Faults that happened, by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

/// A running agent.
struct Running {
    agent: Agent,
    deadlines: Deadlines,
    wake: Duration,
    scans: u64,
}

struct Run<'a> {
    plan: &'a Plan,
    directory: TempDir,
    machine: Shared,
    time: Arc<Time>,
    agent: Option<Running>,
    effects: Effects,
    /// What is to happen at a reading of the clock.
    midway: Option<Kind>,
    rng: Rng,
    turn: u32,
    digest: XxHash3_64,
    outcome: Outcome,
}

/// The shortest time for which an idle agent sleeps here. It wakes every two seconds while a job is protected, to compare two counters:
/// with that the turns of a run would cover half the time.
const IDLE: Duration = Duration::from_secs(5);

/// When the agent's next turn is, if it wants to wake at `wake`. Between steps of its work it wakes within a second.
fn no_sooner(wake: Duration, now: Duration) -> Duration {
    if wake > now + Duration::from_secs(1) { wake.max(now + IDLE) } else { wake }
}

/// Runs a plan.
///
/// # Errors
/// If the simulated machine's files cannot be written.
pub fn run(plan: &Plan) -> anyhow::Result<Outcome> {
    let mut run = Run::new(plan)?;
    while run.turn < TURNS && run.outcome.violations.is_empty() {
        run.turn()?;
        run.turn += 1;
    }
    run.end()?;
    run.outcome.digest = run.digest.finish();
    Ok(run.outcome)
}

/// A directory in memory, if the machine has one: nothing that a run writes is to be kept.
fn scratch() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> anyhow::Result<Self> {
        let directory = scratch()?;
        let mut machine = Machine::new(directory.path().to_owned(), plan.swap_pages, Rng::with_seed(plan.seed ^ 0xacce55))?;
        machine.groups = plan.groups.iter().map(|(group, _)| group.clone()).collect();
        for (at, (_, count)) in plan.groups.iter().enumerate() {
            machine.make(at, *count)?;
        }
        machine.publish()?;
        let machine = Arc::new(std::sync::Mutex::new(machine));
        let time = Time::new(Duration::from_secs(1_000), 1_800_000_000_000, Arc::clone(&machine));
        let rng = Rng::with_seed(plan.seed ^ 0x7041);
        Ok(Self {
            plan,
            directory,
            machine,
            time,
            agent: None,
            effects: Effects::default(),
            midway: None,
            rng,
            turn: 0,
            digest: XxHash3_64::with_seed(0),
            outcome: Outcome::default(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn violation(&mut self, what: String) {
        self.outcome.violations.push(format!("turn {}: {what}", self.turn));
    }

    fn config(&self) -> anyhow::Result<Config> {
        let rules = Plan::rules(machine::lock(&self.machine).groups.iter());
        let (state, run) = (self.path("state"), self.path("run"));
        let text = format!("[agent]\nstate_dir = {state:?}\nruntime_dir = {run:?}\n{}{rules}", self.plan.knobs);
        Config::from_str("simulated", &text).context("the configuration of the plan")
    }

    /// One turn: faults, time, the agent, checks.
    fn turn(&mut self) -> anyhow::Result<()> {
        self.effects.end(self.turn, self.directory.path(), &self.machine)?;
        let due: Vec<Fault> = self.plan.faults.iter().filter(|fault| fault.turn == self.turn).cloned().collect();
        for fault in &due {
            self.apply(&fault.kind)?;
        }
        let wake = self.agent.as_ref().map_or(self.time.peek() + Duration::from_secs(1), |running| running.wake);
        self.time.advance_to(no_sooner(wake, self.time.peek()));
        machine::lock(&self.machine).advance(self.time.peek().as_secs_f64())?;
        let torn = matches!(self.midway, Some(Kind::KillMidway(_, true)));
        let before = torn.then(|| machine::lock(&self.machine).settings());
        let started = self.agent.is_none();
        let unwound = catch_unwind(AssertUnwindSafe(|| if started { self.start() } else { self.run_agent() }));
        if let Some(kind) = self.midway.take_if(|_| !self.time.is_armed()) {
            *self.outcome.faults.entry(kind.name()).or_default() += 1;
        }
        match unwound {
            Ok(outcome) => outcome?,
            Err(payload) => {
                self.agent = None;
                if payload.is::<Killed>() {
                    before.map_or(Ok(()), |before| self.tear(&before))?;
                } else {
                    let what =
                        payload.downcast_ref::<String>().cloned().or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
                    self.violation(format!("the agent panicked: {}", what.unwrap_or_default()));
                }
            }
        }
        self.check();
        Ok(())
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let config = self.config()?;
        let options = Options { dry_run: self.plan.dry_run, ..Options::default() };
        let clock = Clock::of(Arc::clone(&self.time) as Arc<dyn daemon::TimeSource>);
        match Agent::with_clock(Roots::under(self.directory.path()), config, options, clock) {
            Ok(mut agent) => {
                let machine = Arc::clone(&self.machine);
                agent.ask_reclaim_by(Box::new(move |request| {
                    machine::lock(&machine).reclaim(request.cgroup, request.id, request.amount.0, request.swappiness)
                }));
                let deadlines = agent.begin_turns(None);
                self.outcome.starts += 1;
                self.agent = Some(Running { agent, deadlines, wake: self.time.peek(), scans: 0 });
            }
            Err(error) if self.effects.harmless() && machine::lock(&self.machine).damaged.is_empty() => {
                self.violation(format!("the agent does not start: {error}"));
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn run_agent(&mut self) -> anyhow::Result<()> {
        let wait = if self.effects.slow_scans(self.turn) && !self.turn.is_multiple_of(3) { ScanWait::Later } else { ScanWait::End };
        let Some(running) = &mut self.agent else { return Ok(()) };
        self.outcome.turns += 1;
        match running.agent.turn(&mut running.deadlines, wait, &mut |_, _| ()) {
            Ok(wake) => running.wake = wake,
            Err(error) => {
                self.agent = None;
                self.violation(format!("the agent's loop ended: {error}"));
            }
        }
        Ok(())
    }

    /// Checks the promises after a turn.
    fn check(&mut self) {
        let mut machine = machine::lock(&self.machine);
        // Whether an agent scanned before it was killed in this turn is unknown.
        let unknown = self.agent.is_none();
        let mut scanned = unknown;
        if let Some(running) = &mut self.agent {
            let scans = running.agent.view().get().costs.scans;
            scanned = scans != std::mem::replace(&mut running.scans, scans);
        }
        let allowed = Allowed {
            acts: !self.plan.dry_run,
            steady: self.effects.steady(self.turn),
            scanned,
            slow_scans: unknown || self.effects.slow_scans(self.turn) || self.effects.slow_scans(self.turn.saturating_sub(10)),
        };
        let mut broken = promises::requests(&mut machine, allowed);
        let settings = machine.settings();
        if self.agent.is_some() {
            broken.extend(promises::settings(&machine, &settings, self.plan.dry_run));
        }
        for request in std::mem::take(&mut machine.requests) {
            self.outcome.requests += 1;
            self.digest.write(format!("{request:?}").as_bytes());
        }
        drop(machine);
        broken.extend(promises::size([&self.path("state"), &self.path("run")]));
        self.digest.write(format!("{:?} {settings:?}", self.time.peek()).as_bytes());
        broken.into_iter().for_each(|what| self.violation(what));
    }

    /// As if the agent had been killed before it made the last of its settings: they are on the stored undo list.
    fn tear(&mut self, before: &BTreeMap<String, String>) -> anyhow::Result<()> {
        let Ok(stored) = std::fs::read(self.path("run/undo.json")) else { return Ok(()) };
        let stored: serde_json::Value = serde_json::from_slice(&stored).context("the undo list is damaged")?;
        let now = machine::lock(&self.machine).settings();
        let changed: Vec<_> = before.iter().filter(|(name, old)| now.get(*name).is_some_and(|now| now != *old)).collect();
        let from = self.rng.usize(..=changed.len());
        for (name, old) in &changed[from..] {
            let entry = &stored["settings"][self.path(name).to_string_lossy().as_ref()];
            let known = entry["original"] == old.as_str()
                || entry["ours"].as_array().is_some_and(|ours| ours.iter().any(|ours| ours == old.as_str()));
            if known {
                std::fs::write(self.path(name), format!("{old}\n"))?;
            }
        }
        Ok(())
    }

    /// Lets a fault happen, or prepares what happens midway in a turn.
    fn apply(&mut self, kind: &Kind) -> anyhow::Result<()> {
        if let Some((readings, what)) = kind.midway() {
            // One at a time: the later one replaces what has not happened.
            self.time.arm(readings, what);
            self.midway = Some(kind.clone());
            return Ok(());
        }
        *self.outcome.faults.entry(kind.name()).or_default() += 1;
        match kind {
            Kind::Kill => self.agent = None,
            Kind::Stop => self.stop(),
            Kind::Freeze(length) => self.time.advance_to(self.time.peek() + *length),
            Kind::WallClock(by_ms) => self.time.step_wall(*by_ms),
            Kind::Reload(group, class) => self.reload(*group, class)?,
            Kind::Bundle(version) => self.follow(*version)?,
            other => self.effects.begin(self.turn, other, self.directory.path(), &self.machine, &mut self.rng)?,
        }
        Ok(())
    }

    /// A regular stop restores everything that is not damaged.
    fn stop(&mut self) {
        let Some(mut running) = self.agent.take() else { return };
        if let Err(error) = running.agent.end_turns() {
            self.violation(format!("the agent did not stop: {error}"));
        }
        self.check_restored();
    }

    fn check_restored(&mut self) {
        let machine = machine::lock(&self.machine);
        let broken = promises::settings(&machine, &machine.settings(), true);
        drop(machine);
        broken.into_iter().for_each(|what| self.violation(what));
    }

    fn reload(&mut self, at: usize, class: &'static str) -> anyhow::Result<()> {
        {
            let mut machine = machine::lock(&self.machine);
            let group: &mut Group = &mut machine.groups[at];
            if !matches!(group.role, Role::Job | Role::Spared) {
                return Ok(());
            }
            (group.class, group.role) = (class, if matches!(class, "off" | "observe") { Role::Spared } else { Role::Job });
        }
        let config = self.config()?;
        if let Some(running) = &mut self.agent {
            running.agent.receive(Message::Reload(Box::new(Ok(config))));
        }
        Ok(())
    }

    fn follow(&mut self, version: u64) -> anyhow::Result<()> {
        let Some(running) = &mut self.agent else { return Ok(()) };
        let bundle = |version: u64| {
            let header = "created = 2026-01-01T00:00:00Z\nexpires = 2226-01-01T00:00:00Z";
            let knobs = format!("[knobs.cold_age]\npromotion_rate = \"{}%\"\n[knobs.pressure]\nratio = \"1%\"", version * 20);
            Bundle::parse("simulated", &format!("schema = 1\nversion = {version}\nid = \"b{version}\"\n{header}\n{knobs}\n"))
        };
        let bundle = if version == 0 { None } else { Some(bundle(version).context("the bundle of the plan")?) };
        let guidance =
            Guidance { rollout: "r".into(), stage: "canary".into(), arm: Arm::Bundle, bundle, previous: None, signed_until_unix_s: None };
        running.agent.receive(Message::Follow(Box::new(Poll { guidance: Some(guidance), ..Poll::default() })));
        Ok(())
    }

    /// Repairs the machine, ends the agent, and checks that everything is restored, and that the journal replays.
    fn end(&mut self) -> anyhow::Result<()> {
        self.time.disarm();
        self.effects.end(u32::MAX, self.directory.path(), &self.machine)?;
        if self.plan.ends_by_restore {
            self.agent = None;
        }
        self.stop();
        let restored = scheduler::restore(&Roots::under(self.directory.path()), &self.config()?);
        if let Err(error) = restored {
            self.violation(format!("nothing can be restored: {error}"));
        }
        self.check_restored();
        if self.path("run/undo.json").exists() {
            self.violation("the undo list is not empty".to_owned());
        }
        self.replay()
    }

    fn replay(&mut self) -> anyhow::Result<()> {
        let newest = journal::Journal::path(&self.path("state"));
        for number in (0..4).rev() {
            let file = if number == 0 { newest.clone() } else { newest.with_extension(number.to_string()) };
            if !file.exists() {
                continue;
            }
            let records = match journal::read(&file) {
                Ok(records) => records,
                Err(error) => {
                    self.violation(format!("the journal cannot be read: {error}"));
                    continue;
                }
            };
            let replayed = replay::replay(&records);
            self.outcome.replayed += replayed.periods as u64;
            if replayed.skipped > 0 || !replayed.differing.is_empty() {
                let Some(first) = replayed.differing.first() else {
                    self.violation(format!("the journal does not start {} decisions", replayed.skipped));
                    continue;
                };
                self.violation(format!("{} decisions replay otherwise, decision {first} first", replayed.differing.len()));
            }
            for record in &records {
                let mut value = serde_json::to_value(record)?;
                without_ids(&mut value);
                self.digest.write(value.to_string().as_bytes());
            }
        }
        Ok(())
    }
}

/// Removes the kernel's ids of cgroups, which the file system of the run chooses, and names of its directory.
fn without_ids(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.retain(|key, _| key != "id" && key != "what");
            map.values_mut().for_each(without_ids);
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(without_ids),
        _ => {}
    }
}
