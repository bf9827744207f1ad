//! Starting: probing, locking, and restoring what a dead agent left.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, Policy};
use daemon::{Clock, PidLock};
use kernel::cgroup::CgroupRoot;
use kernel::zswap::Zswap;
use kernel::{Roots, damon, process};
use policy::thresholds::Thresholds;
use trackers::ages::Kind;
use trackers::ages::choose::Offer;
use units::RatioPpm;

use super::scanner::{Ended, Scanner};
use super::stages::Stages;
use super::state::ZswapCompressor;
use super::{Agent, Discovery, Durable, Guard, Identity, Scheduled, report};
use crate::context::claims::Claims;
use crate::context::log::Log;
use crate::context::pace::{ByteRate, CpuBudget, IdleTime};
use crate::context::trackers_in_use::TrackersInUse;
use crate::context::{Context, KernelHandles, Pacing};
use crate::controllers;
use crate::controllers::slots::Jobs;
use crate::costs::Costs;
use crate::discover::Rules;
use crate::following::Following;
use crate::history::History;
use crate::instructions::Instructions;
use crate::journal::{Journal, Record};
use crate::machine::Machine;
use crate::options::Options;
use crate::protection::hard;
use crate::record::Recorder;
use crate::savings::Ledger;
use crate::slow_node;
use crate::tiers::Tiers;
use crate::trials::Trials;
use crate::undo::{Restored, UndoLog};
use crate::view::Published;

/// Why the agent cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something that the agent requires.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// The runtime directory cannot be used, or another agent runs.
    #[error(transparent)]
    Daemon(#[from] daemon::Error),
    /// A file of the agent cannot be used.
    #[error("cannot use {path}: {source}; check the directory's owner and free space")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A `[[job]]` pattern is invalid.
    #[error("job pattern {0}")]
    Pattern(#[from] globset::Error),
    /// The configured thresholds are invalid.
    #[error("cold_age.thresholds: {0}")]
    Thresholds(#[from] policy::thresholds::ThresholdsError),
    /// The trace cannot be written.
    #[error("trace: {0}")]
    Trace(#[from] trace::Error),
    /// The scanning thread cannot be started.
    #[error("cannot start the scanning thread: {0}; check the limit of tasks (TasksMax=, pids.max)")]
    Thread(std::io::Error),
    /// The scanning thread panicked.
    #[error(transparent)]
    Scanner(#[from] Ended),
    /// The kernel offers no tracker.
    #[error("this kernel offers no way to measure page ages; run `thermocline doctor` for what to enable")]
    NoTracker,
}

impl Agent {
    /// Probes the machine, takes the lock, and restores what an earlier agent left. Observes nothing yet. Time is the machine's.
    ///
    /// # Errors
    /// If a requirement is missing: cgroup v2, a tracker, the agent's directories, or if another agent runs.
    pub fn new(roots: Roots, config: Config, options: Options) -> Result<Self, Error> {
        let clock = Clock::system(process::uptime(&roots)?);
        Self::with_clock(roots, config, options, clock)
    }

    /// The same with another clock, whose monotonic time is time since boot.
    ///
    /// # Errors
    /// As [`Agent::new`].
    pub fn with_clock(roots: Roots, config: Config, options: Options, clock: Clock) -> Result<Self, Error> {
        let rules = Rules::new(&config)?;
        let thresholds = Thresholds::log_spaced(usize::try_from(config.cold_age.thresholds).unwrap_or(0))?;
        let cgroups = CgroupRoot::probe(&roots)?;
        let (lock, mut undo) = lock(&roots, &config)?;
        let mut left_behind = restore_left(&roots, &cgroups, &mut undo);
        if config.agent.manage_damon_stat && !options.dry_run {
            left_behind.extend(stop_damon_stat(&roots, &mut undo));
        }
        // Probed only now: a dead agent's kdamonds, or damon_stat, may have made DAMON busy.
        let offer = offered(&roots, &rules, &config)?;
        let boot_id = process::boot_id(&roots)?;
        let kernel_release = kernel::file::read(&roots.proc.join("sys/kernel/osrelease"), kernel::file::SMALL)?.trim().to_owned();
        let (journal, history) = if options.ephemeral { (None, None) } else { open_state(&config, &boot_id, &thresholds)? };
        let recorder = match options.ephemeral {
            true => None,
            false => Recorder::start(&roots, &config, &thresholds, &boot_id, clock.unix_ms())?,
        };
        let (recorder, lost) = recorder.unzip();
        let following = Following::new(&config, (!options.ephemeral).then_some(config.agent.state_dir.as_path()));
        let mut agent = Self {
            context: Context {
                trials: Trials::load((!options.ephemeral).then_some(config.agent.state_dir.as_path())),
                tiers: Tiers::new(&roots, &config, history.as_ref().and_then(History::writes), &clock),
                pacing: pacing(&config, &clock),
                kernel: KernelHandles::new(roots, cgroups),
                clock,
                config,
                options,
                thresholds,
                trackers: TrackersInUse::new(offer),
                machine: Machine::default(),
                undo,
                claims: Claims::default(),
                log: Log::new(journal),
                guardrail: None,
                publish_due: false,
            },
            jobs: Jobs::new(),
            policies: controllers::policies().into_iter().map(Scheduled::new).collect(),
            discovery: Discovery { rules, refused: BTreeSet::new() },
            scanner: Scanner::start().map_err(Error::Thread)?,
            scanning: None,
            scanned_at: Duration::ZERO,
            compressor: ZswapCompressor::default(),
            following,
            durable: Durable { history, recorder },
            identity: Identity { boot_id, kernel_release },
            guard: Guard::default(),
            protection: hard::Watch::default(),
            instructions: Instructions::default(),
            stages: Stages::default(),
            turn: 0,
            costs: Costs::default(),
            deciding_cpu: Duration::ZERO,
            ledger: Ledger::default(),
            view: Published::default(),
            _lock: lock,
        };
        agent.begin(left_behind.into_iter().chain(lost.into_iter().flatten()));
        Ok(agent)
    }

    /// Records the start, and what was restored.
    fn begin(&mut self, events: impl Iterator<Item = String>) {
        let now = self.context.now();
        let record = report::agent_record(&self.context, &self.identity, 0, now.unix_ms);
        self.context.log.push(Record::Agent(record));
        for what in events {
            self.context.event(None, what);
        }
        self.enable_zswap();
        self.context.read_machine(now);
        if let Some(why) = self.context.machine.no_far_memory.filter(|_| !self.context.options.dry_run) {
            self.context.event(None, format!("nothing is offloaded: {why}"));
        }
    }

    /// Enables zswap if the operator configured that. It is restored on exit.
    fn enable_zswap(&mut self) {
        let context = &mut self.context;
        if !context.config.zswap.manage || context.options.dry_run {
            return;
        }
        let mut settings = Vec::new();
        if !matches!(context.config.zswap.compressor.as_str(), "" | "auto") {
            settings.push(("compressor", context.config.zswap.compressor.clone()));
        }
        if context.config.zswap.max_pool > RatioPpm(0) {
            settings.push(("max_pool_percent", (context.config.zswap.max_pool.0 / 10_000).to_string()));
        }
        if context.config.zswap.shrinker {
            settings.push(("shrinker_enabled", "Y".to_owned()));
        }
        settings.push(("enabled", "Y".to_owned()));
        if let Err(error) = Zswap::probe(&context.kernel.roots) {
            return context.event(None, format!("zswap.manage: {error}"));
        }
        let directory = context.kernel.roots.sys.join("module/zswap/parameters");
        for (name, value) in settings {
            match context.undo.set(&directory.join(name), &value) {
                Ok(()) => context.event(None, format!("zswap {name} set to {value} while the agent runs")),
                Err(error) => context.event(None, format!("zswap {name} cannot be set to {value}: {error}")),
            }
        }
    }
}

/// The trackers that the kernel offers; an error if the configured one is not among them.
fn offered(roots: &Roots, rules: &Rules, config: &Config) -> Result<Offer, Error> {
    let mut offer = Offer::probe(roots);
    if rules.name(Policy::Slowdown) {
        // Access rates are sampled by DAMON too, and the machine has one DAMON.
        offer.exclude(Kind::Sampled);
    }
    if offer.choose(config.agent.tracker).is_none() {
        return Err(offer.unavailable(config.agent.tracker).map_or(Error::NoTracker, describe));
    }
    Ok(offer)
}

/// Restores what a dead agent left, and does nothing else. Returns what was done, in words.
///
/// # Errors
/// If an agent is running, or the runtime directory cannot be used.
pub fn restore(roots: &Roots, config: &Config) -> Result<Vec<String>, Error> {
    let (_lock, mut undo) = lock(roots, config)?;
    Ok(restore_left(roots, &CgroupRoot::probe(roots)?, &mut undo))
}

/// Takes the lock, which guarantees that no agent runs while it is held, and opens the undo list. What a dead agent left stays on
/// the list.
///
/// # Errors
/// As [`restore`].
pub fn lock(roots: &Roots, config: &Config) -> Result<(PidLock, UndoLog), Error> {
    let dir = &config.agent.runtime_dir;
    let lock = PidLock::acquire(dir, "agent.pid")?;
    let undo = UndoLog::open(dir.join("undo.json"), roots)?;
    Ok((lock, undo))
}

fn pacing(config: &Config, clock: &Clock) -> Pacing {
    let (now, cpu) = (clock.now(), process::own_cpu_time().unwrap_or_default());
    Pacing {
        rate: ByteRate::new(config.agent.offload_rate, now),
        budget: CpuBudget::new(config.agent.cpu_budget, config.agent.control_period, now, cpu),
        budget_spent: false,
        sampling: IdleTime::new(now),
        rates_kernel_cpu: Duration::ZERO,
    }
}

/// Switches `damon_stat` off until the agent ends. Returns what was done, in words.
fn stop_damon_stat(roots: &Roots, undo: &mut UndoLog) -> Option<String> {
    let file = roots.sys.join("module/damon_stat/parameters/enabled");
    let enabled = std::fs::read_to_string(&file).ok()?;
    if enabled.trim() != "Y" {
        return None;
    }
    Some(match undo.set(&file, "N") {
        Ok(()) => "damon_stat is off while the agent runs: agent.manage_damon_stat is true".to_owned(),
        Err(error) => format!("agent.manage_damon_stat: {}: {error}", file.display()),
    })
}

fn restore_left(roots: &Roots, cgroups: &CgroupRoot, undo: &mut UndoLog) -> Vec<String> {
    let mut done = slow_node::promote_placed(cgroups, undo, None);
    let targets = undo.kdamond_targets().to_vec();
    if !targets.is_empty() {
        match damon::reap_trace(roots).and_then(|_| damon::Damon::reap(roots, &targets)) {
            Ok(count) => {
                done.push(format!("stopped {count} kdamonds that an earlier agent left"));
                if let Err(error) = undo.set_kdamond_targets(&[]) {
                    done.push(format!("undo list: {error}"));
                }
            }
            // Another process uses DAMON now, or a kdamond is slow to stop: the next start tries again.
            Err(error) => done.push(format!("left kdamonds alone: {error}")),
        }
    }
    for (path, outcome) in undo.restore_all() {
        done.push(match outcome {
            Restored::Done => format!("restored {}, which an earlier agent had set", path.display()),
            Restored::Gone => format!("{} is gone with its cgroup", path.display()),
            Restored::ChangedByOthers { value } => format!("left {} at {value}, which another process has set", path.display()),
            Restored::Failed { error } => format!("cannot restore {}: {error}", path.display()),
        });
    }
    done
}

type State = (Option<Journal>, Option<History>);

fn open_state(config: &Config, boot_id: &str, thresholds: &Thresholds) -> Result<State, Error> {
    let dir = &config.agent.state_dir;
    let failed = |source| file_error(dir, source);
    let journal = Journal::open(dir, config.agent.journal_size, config.agent.journal_files).map_err(failed)?;
    let history = History::load(dir, boot_id, config.agent.scan_period, &Vec::from(*thresholds)).map_err(failed)?;
    Ok((Some(journal), Some(history)))
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.to_owned(), source }
}

fn describe(error: &kernel::Error) -> Error {
    let what = error.to_string();
    Error::Kernel(kernel::Error::Unsupported { what, remedy: "or set agent.tracker to \"auto\"".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damon_stat_is_stopped_and_restored() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::under(directory.path());
        let file = roots.sys.join("module/damon_stat/parameters/enabled");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut undo = UndoLog::open(directory.path().join("undo.json"), &roots).unwrap();
        assert_eq!(stop_damon_stat(&roots, &mut undo), None, "this kernel does not have it");
        std::fs::write(&file, "N\n").unwrap();
        assert_eq!(stop_damon_stat(&roots, &mut undo), None, "it is off");
        std::fs::write(&file, "Y\n").unwrap();
        assert!(stop_damon_stat(&roots, &mut undo).unwrap().contains("agent.manage_damon_stat"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "N");
        assert!(undo.restore_all().iter().all(|(_, outcome)| *outcome == Restored::Done));
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "Y");
    }
}
