//! Starting up: probing, locking, and putting back what a dead agent left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use config::Config;
use daemon::PidLock;
use kernel::cgroup::CgroupRoot;
use kernel::zswap::Zswap;
use kernel::{Roots, damon, process};
use policy::thresholds::Thresholds;
use units::RatioPpm;

use super::{Agent, Clock, Costs, Error, Options, agent_record};
use crate::discover::Rules;
use crate::following::Following;
use crate::history::History;
use crate::journal::{Journal, Record};
use crate::machine::Machine;
use crate::pace::{ByteRate, CpuBudget};
use crate::record::Recorder;
use crate::tiers::Tiers;
use crate::undo::{Restored, UndoLog};
use crate::view::Published;
use trackers::ages::choose::Offer;
use trackers::walk::Walker;

impl Agent {
    /// Probes the machine, takes the lock, and puts back what an earlier agent left. Observes nothing yet.
    ///
    /// # Errors
    /// What the agent cannot do without: cgroup v2, a tracker, its directories, and no second agent.
    pub fn new(roots: Roots, config: Config, options: Options) -> Result<Self, Error> {
        let rules = Rules::new(&config)?;
        let thresholds = Thresholds::log_spaced(usize::try_from(config.cold_age.thresholds).unwrap_or(0))?;
        let cgroups = CgroupRoot::probe(&roots)?;
        let offer = Offer::probe(&roots);
        let (lock, mut undo) = alone(&config)?;
        let left_behind = put_back(&roots, &cgroups, &mut undo);
        // What a dead agent left may have been what made DAMON busy.
        let offer = if left_behind.is_empty() { offer } else { Offer::probe(&roots) };
        if offer.choose(config.agent.tracker).is_none() {
            return Err(offer.unavailable(config.agent.tracker).map_or(Error::NoTracker, describe));
        }

        let boot_id = process::boot_id(&roots)?;
        let clock = Clock { base: process::uptime(&roots)?, started: Instant::now() };
        let cpu = process::own_cpu_time().unwrap_or_default();
        let (journal, history) = if options.ephemeral { (None, None) } else { open_state(&config, &boot_id, &thresholds)? };
        let recorder = if options.ephemeral { None } else { Recorder::start(&roots, &config, &thresholds, &boot_id)? };
        let (recorder, lost) = recorder.unzip();
        let kernel_release = kernel::file::read(&roots.proc.join("sys/kernel/osrelease"), kernel::file::SMALL)?.trim().to_owned();
        let following = Following::new(&config, (!options.ephemeral).then_some(config.agent.state_dir.as_path()));
        let mut agent = Self {
            following,
            rate: ByteRate::new(config.agent.offload_rate, clock.now()),
            budget: CpuBudget::new(config.agent.cpu_budget, config.agent.control_period, clock.now(), cpu),
            lru: kernel::lru_gen::LruGen::probe(&roots).ok(),
            slow: super::slow::Placement::default(),
            tiers: Tiers::new(&roots, &config, history.as_ref().and_then(History::writes), clock.now()),
            machine: Machine::default(),
            walker: Walker::default(),
            trackers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            refused: BTreeSet::new(),
            pending: Vec::new(),
            view: Published::default(),
            costs: Costs::default(),
            budget_spent: false,
            turn: 0,
            ending: None,
            _lock: lock,
            roots,
            config,
            options,
            clock,
            thresholds,
            rules,
            cgroups,
            offer,
            affordances: BTreeMap::new(),
            undo,
            history,
            journal,
            recorder,
            boot_id,
            kernel_release,
        };
        agent.pending.push(Record::Agent(agent_record(&agent.thresholds, &agent.config, &agent.boot_id, &agent.kernel_release, 0)));
        for what in left_behind.into_iter().chain(lost.into_iter().flatten()) {
            agent.event(None, what);
        }
        agent.enable_zswap();
        agent.read_machine();
        if let Some(why) = agent.machine.no_far_memory.filter(|_| !agent.options.dry_run) {
            agent.event(None, format!("nothing is offloaded: {why}"));
        }
        Ok(agent)
    }

    /// Turns zswap on where the operator asked for it. It is put back as it was on exit.
    fn enable_zswap(&mut self) {
        if !self.config.zswap.manage || self.options.dry_run {
            return;
        }
        let mut wanted = Vec::new();
        if !self.config.zswap.compressor.is_empty() {
            wanted.push(("compressor", self.config.zswap.compressor.clone()));
        }
        if self.config.zswap.max_pool > RatioPpm(0) {
            wanted.push(("max_pool_percent", (self.config.zswap.max_pool.0 / 10_000).to_string()));
        }
        if self.config.zswap.shrinker {
            wanted.push(("shrinker_enabled", "Y".to_owned()));
        }
        wanted.push(("enabled", "Y".to_owned()));
        if let Err(error) = Zswap::probe(&self.roots) {
            return self.event(None, format!("zswap.manage: {error}"));
        }
        let directory = self.roots.sys.join("module/zswap/parameters");
        for (name, value) in wanted {
            match self.undo.set(&directory.join(name), &value) {
                Ok(()) => self.event(None, format!("zswap {name} set to {value} while the agent runs")),
                Err(error) => self.event(None, format!("zswap {name} cannot be set to {value}: {error}")),
            }
        }
    }
}

/// Puts back what a dead agent left, and nothing else; returns what was done, in words.
///
/// # Errors
/// When an agent is running, or the runtime directory cannot be used.
pub fn restore(roots: &Roots, config: &Config) -> Result<Vec<String>, Error> {
    let (_lock, mut undo) = alone(config)?;
    Ok(put_back(roots, &CgroupRoot::probe(roots)?, &mut undo))
}

/// Makes sure that no agent runs while the lock is held, and opens the undo list, to write down what is set meanwhile. What a
/// dead agent left stays on it.
///
/// # Errors
/// As [`restore`].
pub fn alone(config: &Config) -> Result<(PidLock, UndoLog), Error> {
    Ok((lock(config)?, open_undo(config)?))
}

fn put_back(roots: &Roots, cgroups: &CgroupRoot, undo: &mut UndoLog) -> Vec<String> {
    let mut done = crate::slow::bring_home(cgroups, undo, None);
    let targets = undo.kdamond_targets().to_vec();
    if !targets.is_empty() {
        match damon::Damon::reap(roots, &targets) {
            Ok(count) => {
                done.push(format!("took down {count} kdamonds that an earlier agent left"));
                if let Err(error) = undo.set_kdamond_targets(&[]) {
                    done.push(format!("undo list: {error}"));
                }
            }
            // Others have taken DAMON since, or a kdamond is slow to end: what is ours is tried again at the next start.
            Err(error) => done.push(format!("left kdamonds alone: {error}")),
        }
    }
    for (path, outcome) in undo.restore_all() {
        done.push(match outcome {
            Restored::Done => format!("put {} back as it was before an earlier agent", path.display()),
            Restored::Gone => format!("{} is gone with its cgroup", path.display()),
            Restored::ChangedByOthers { value } => format!("left {} at {value}, which someone else has set", path.display()),
            Restored::Failed { error } => format!("cannot put {} back: {error}", path.display()),
        });
    }
    done
}

fn lock(config: &Config) -> Result<PidLock, Error> {
    Ok(PidLock::acquire(&config.agent.runtime_dir, "agent.pid")?)
}

fn open_undo(config: &Config) -> Result<UndoLog, Error> {
    let file = config.agent.runtime_dir.join("undo.json");
    UndoLog::open(file.clone()).map_err(|source| file_error(&file, source))
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
