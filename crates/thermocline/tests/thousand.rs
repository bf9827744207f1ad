//! A thousand agents, each with the loop, the journal, the trace and the rollout's follower of production, on machines with
//! synthetic kernel files: which machines follow a rollout in each stage, and the load on the store.
//!
//! `make test-fleet`. A poll each 20 s stands for one each 5 min, fifteen times as often.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test that measures")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent::view::View;
use agent::{Agent, Message, Options};
use config::{Arm, Bundle, Config, Poll};
use kernel::Roots;
use rollout::assignment::{Assignment, SCHEMA};
use rollout::follow::{Follow, Follower, Settings};
use rollout::keys;
use rollout::repository::{Change, Operator, Validity};
use store::Store;
use trace::Trace;
use units::RatioPpm;

const AGENTS: usize = 1_000;
const POLL: Duration = Duration::from_secs(20);
/// What a poll stands for.
const POLLS_PER_HOUR: f64 = 12.0;
const CONTROL_PPM: RatioPpm = RatioPpm(50_000);
const CANARY_PPM: RatioPpm = RatioPpm(10_000);
const FRAMES: usize = 64;
/// `KPF_LRU` and `KPF_SWAPBACKED` of `include/uapi/linux/kernel-page-flags.h`.
const LRU_ANONYMOUS: u64 = 1 << 5 | 1 << 14;

/// The kernel files that an agent cannot do without, with one job.
fn machine(root: &Path) {
    let put = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let words = |name: &str, word: u64, count: usize| {
        put(name, "");
        fs::write(root.join(name), word.to_ne_bytes().repeat(count)).unwrap();
    };
    put("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n");
    put("proc/zoneinfo", &format!("Node 0, zone Normal\n  spanned {FRAMES}\n  present {FRAMES}\n  start_pfn: 0\n"));
    put("proc/sys/kernel/random/boot_id", "0b7c2b0e-5d5e-4f86-9f1c-2f2a3f6f9a11\n");
    put("proc/sys/kernel/osrelease", "6.12.0-fake\n");
    put("proc/uptime", "1000.00 1900.00\n");
    put("proc/self/statm", "100 50 10 1 0 40 0\n");
    put("proc/meminfo", "MemTotal: 1024 kB\nMemFree: 512 kB\nMemAvailable: 512 kB\nSwapTotal: 1024 kB\nSwapFree: 1024 kB\n");
    put("proc/swaps", "Filename Type Size Used Priority\n/dev/vdb partition 1024 0 -2\n");
    for (file, text) in [
        ("memory.current", "262144"),
        ("memory.low", "0"),
        ("memory.max", "max"),
        ("memory.swap.current", "0"),
        ("memory.swap.max", "max"),
        ("memory.stat", "anon 262144"),
        ("memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0"),
        ("cgroup.procs", ""),
    ] {
        put(&format!("sys/fs/cgroup/job/{file}"), &format!("{text}\n"));
    }
    words("proc/kpageflags", LRU_ANONYMOUS, FRAMES);
    words("proc/kpagecgroup", std::os::unix::fs::MetadataExt::ino(&fs::metadata(root.join("sys/fs/cgroup/job")).unwrap()), FRAMES);
    words("sys/kernel/mm/page_idle/bitmap", u64::MAX, FRAMES / 64);
}

/// An agent and the thread that it runs in.
struct Running {
    sender: SyncSender<Message>,
    view: Arc<Mutex<Option<View>>>,
    thread: JoinHandle<()>,
    _follow: Follow,
}

/// Starts what `thermocline agent` starts.
fn start(number: usize, at: &Path, store: &Path, root_of_trust: &Path) -> Running {
    let home = at.join(format!("m{number}"));
    machine(&home);
    let (state, run, bundles, traces) = (home.join("state"), home.join("run"), store.join("rollout"), store.join("traces"));
    let text = format!(
        "[agent]\nstate_dir = {state:?}\nruntime_dir = {run:?}\nscan_period = \"20s\"\ncontrol_period = \"20s\"\nmetrics_listen = \"off\"\n\
         [rollout]\nstore = {bundles:?}\nroot = {root_of_trust:?}\npoll = \"{}s\"\n\
         [trace]\nstore = {traces:?}\ncluster = \"c\"\nmachine = \"m{number}\"\nentry_period = \"40s\"\nfile_period = \"80s\"\n\
         [[job]]\ncgroup = \"/job\"\nclass = \"observe\"\n",
        POLL.as_secs()
    );
    let config = Config::from_str("test", &text).unwrap();
    let (follower, remembered) = Follower::new(Settings {
        store: config.rollout.store.clone(),
        network: None,
        root: config.rollout.root.clone(),
        poll: config.rollout.poll,
        state_dir: config.agent.state_dir.clone(),
        machine: config.trace.machine.clone(),
        cluster: config.trace.cluster.clone(),
    });
    let (sender, receiver) = sync_channel(4);
    let deliver = sender.clone();
    let follow = rollout::follow::start(follower, move |poll: Poll| drop(deliver.send(Message::Follow(Box::new(poll))))).unwrap();
    let view = Arc::new(Mutex::new(None));
    let shown = Arc::clone(&view);
    let thread = thread::spawn(move || {
        let mut agent = Agent::new(Roots::under(&home), config, Options::default()).unwrap();
        agent.follow(Poll { guidance: remembered.unwrap(), ..Poll::default() });
        agent.run(&receiver, None, &mut |_, view| *shown.lock().unwrap() = Some(view.clone())).unwrap();
    });
    Running { sender, view, thread, _follow: follow }
}

/// Number of agents by arm and followed version.
type Following = BTreeMap<(Option<Arm>, u64), usize>;

/// Who follows what; and what the store was asked by all, and how often it was polled.
fn survey(agents: &[Running]) -> (Following, u64, u64) {
    let (mut following, mut requests, mut polls) = (Following::new(), 0, 0);
    for agent in agents {
        let view = agent.view.lock().unwrap();
        let Some(rollout) = view.as_ref().and_then(|view| view.rollout.as_ref()) else { continue };
        assert_eq!(rollout.trouble, None);
        *following.entry((rollout.arm, rollout.bundle_version)).or_insert(0) += 1;
        requests += rollout.requests;
        polls += rollout.polls;
    }
    (following, requests, polls)
}

/// Waits until all agents follow the assignment of this stage.
fn until(agents: &[Running], what: &str, so: impl Fn(&Following) -> bool) {
    let begins = Instant::now();
    loop {
        let (following, ..) = survey(agents);
        if so(&following) {
            eprintln!("{what}: after {:.0?} {following:?}", begins.elapsed());
            return;
        }
        assert!(begins.elapsed() < 12 * POLL, "{what}: {following:?}");
        thread::sleep(Duration::from_secs(1));
    }
}

struct Publisher(Operator);

impl Publisher {
    fn new(store: &Path, root: &Path, keys: &Path) -> Self {
        keys::generate(keys, 1, false).unwrap();
        let operator = Operator::open(store.join("rollout").to_str().unwrap(), root, keys, Validity::default()).unwrap();
        operator.init(1, false).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for version in [1, 2] {
            let (created, expires) = (config::bundle::rfc3339(now), config::bundle::rfc3339(now + 86_400));
            let text = format!(
                "schema = 1\nversion = {version}\nid = \"b{version}\"\ncreated = {created}\nexpires = {expires}\n[knobs.cold_age]\npercentile = \"9{version}%\"\n"
            );
            operator.change(Change::Publish(&Bundle::parse("test", &text).unwrap()), false).unwrap();
        }
        Self(operator)
    }

    fn assign(&self, stage: &str, share_ppm: RatioPpm) {
        let (rollout, stage) = ("r".to_owned(), stage.to_owned());
        let (bundle, previous, clusters) = (Some(2), Some(1), Vec::new());
        let assignment =
            Assignment { schema: SCHEMA, rollout, bundle, previous, stage, share_ppm, control_ppm: CONTROL_PPM, clusters, pinned: false };
        self.0.change(Change::Assign(&assignment), false).unwrap();
    }
}

/// Files in the store of traces, and the machines whose entries are of a version.
fn traced(store: &Path) -> (usize, BTreeMap<u64, BTreeSet<String>>) {
    let store = Store::open(store.to_str().unwrap()).unwrap();
    let objects = store.list(trace::EXTENSION).unwrap();
    let mut machines: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for object in &objects {
        let trace = Trace::open(store.fetch(&object.path).unwrap().path()).unwrap();
        for entry in trace.rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()) {
            machines.entry(entry.figures.bundle_version).or_default().insert(object.path.clone());
        }
    }
    let name = |path: &String| path.split('/').find(|part| part.starts_with("machine=")).unwrap_or_default().to_owned();
    let machines = machines.into_iter().map(|(version, paths)| (version, paths.iter().map(name).collect())).collect();
    (objects.len(), machines)
}

#[test]
#[ignore = "some minutes of both processors: make test-fleet"]
fn a_thousand_agents_follow_a_rollout() {
    let directory = tempfile::tempdir().unwrap();
    let at: PathBuf = directory.path().to_owned();
    let (store, root) = (at.join("store"), at.join("root.json"));
    let publisher = Publisher::new(&store, &root, &at.join("keys"));
    publisher.assign("canary", CANARY_PPM);
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| {
            // As a fleet's starts are spread.
            thread::sleep(POLL / u32::try_from(AGENTS).unwrap());
            start(number, &at, &store, &root)
        })
        .collect();
    let all_know =
        |following: &Following| following.iter().filter(|((arm, _), _)| arm.is_some()).map(|(_, agents)| agents).sum::<usize>() == AGENTS;
    until(&agents, "canary", all_know);
    // From here on no agent starts and nothing changes: the cost of a poll.
    let (_, requests, polls) = survey(&agents);
    thread::sleep(3 * POLL);
    let (canary, more_requests, more_polls) = survey(&agents);
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let per_hour = (more_requests - requests) as f64 / (more_polls - polls) as f64 * POLLS_PER_HOUR;
    publisher.assign("fleet", RatioPpm::ONE);
    let controls = canary.iter().filter(|((arm, _), _)| *arm == Some(Arm::Control)).map(|(_, agents)| agents).sum::<usize>();
    let on_two = |following: &Following| following.get(&(Some(Arm::Bundle), 2)).copied().unwrap_or(0);
    until(&agents, "fleet", |following| on_two(following) == AGENTS - controls);
    thread::sleep(2 * POLL);
    let (fleet, ..) = survey(&agents);
    for agent in &agents {
        agent.sender.send(Message::Stop).unwrap();
    }
    for agent in agents {
        agent.thread.join().unwrap();
    }
    let (files, machines) = traced(&store.join("traces"));
    let traced_two = machines.get(&2).map_or(0, BTreeSet::len);
    eprintln!(
        "requests per agent and hour of twelve polls without change: {per_hour:.1}; canary {canary:?}; fleet {fleet:?}; \
         {files} trace files, {traced_two} machines' entries under bundle 2"
    );
    assert!((POLLS_PER_HOUR - 0.5..=POLLS_PER_HOUR + 0.5).contains(&per_hour), "{per_hour}");
    // Five standard deviations of a binomial around 1 % and 5 %.
    assert!((1..=26).contains(&on_two(&canary)) && (15..=85).contains(&controls), "{canary:?}");
    assert_eq!((on_two(&fleet), traced_two), (AGENTS - controls, AGENTS - controls));
}
