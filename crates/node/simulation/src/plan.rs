//! What one seed means: a machine, a configuration, and faults.

use std::time::Duration;

use fastrand::Rng;

use crate::group::{DEFAULTS, Group, PAGE, Role};
use crate::machine::{Answer, Damage};
use crate::time::Midway;

/// Turns of the loop in one run.
pub const TURNS: u32 = 150;

/// The job that cannot become too small to have a protection of its own: pages of each cgroup.
const PAGES: std::ops::Range<usize> = 150..700;

/// A configured floor of policy `pressure`, in pages.
pub const FLOOR_PAGES: u64 = 64;

/// A fault, or another event, before a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The turn.
    pub turn: u32,
    /// What happens.
    pub kind: Kind,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The agent is killed between two turns, and started again.
    Kill,
    /// The agent is killed in the turn, at a reading of the clock. If `torn`, the last of the settings that it made are not made.
    KillMidway(u32, bool),
    /// The agent stops regularly, and is started again.
    Stop,
    /// The agent does not run for a while.
    Freeze(Duration),
    /// In the turn, at a reading of the clock, the agent does not run for a while.
    FreezeMidway(u32, Duration),
    /// The wall clock steps, in milliseconds.
    WallClock(i64),
    /// A cgroup vanishes, and is made again with the same path, or not.
    Vanish(usize, bool),
    /// The same in the turn, at a reading of the clock.
    VanishMidway(u32, usize, bool),
    /// The kernel answers requests otherwise, for some turns.
    Answer(Answer, u32),
    /// Swap has another size, in pages, for some turns.
    Swap(u64, u32),
    /// The kernel reclaims in spite of `memory.low`, for some turns.
    BreakProtection(u32),
    /// A kernel file is damaged for some turns.
    Damage(String, Damage, u32),
    /// The history cannot be written for some turns: the disk is full.
    StateFull(u32),
    /// The undo list cannot be written for some turns: the disk is full.
    RunFull(u32),
    /// The undo list's new file cannot be opened for some turns.
    RunUnwritable(u32),
    /// An operator writes a setting of a cgroup.
    Operator(usize, usize, u64),
    /// An operator writes a parameter of zswap.
    OperatorZswap(bool),
    /// Scans last for some turns.
    SlowScans(u32),
    /// The configuration is read again, with another class for a cgroup.
    Reload(usize, &'static str),
    /// A bundle takes effect; or none, for version zero.
    Bundle(u64),
    /// Other pages of a job become hot.
    Shift(usize),
    /// A job frees or allocates a share of its pages, in percent.
    Resize(usize, u8, bool),
}

impl Kind {
    /// Its name in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillMidway(_, false) => "kill_midway",
            Self::KillMidway(_, true) => "kill_between_settings",
            Self::Stop => "stop",
            Self::Freeze(_) => "freeze",
            Self::FreezeMidway(..) => "freeze_midway",
            Self::WallClock(_) => "wall_clock",
            Self::Vanish(_, false) => "cgroup_vanishes",
            Self::Vanish(_, true) => "cgroup_recreated",
            Self::VanishMidway(_, _, false) => "cgroup_vanishes_midway",
            Self::VanishMidway(_, _, true) => "cgroup_recreated_midway",
            Self::Answer(Answer::Nothing, _) => "reclaim_takes_nothing",
            Self::Answer(Answer::Twice, _) => "reclaim_takes_twice",
            Self::Answer(Answer::Other, _) => "reclaim_takes_page_cache",
            Self::Answer(..) => "reclaim_fails",
            Self::Swap(0, _) => "swap_off",
            Self::Swap(..) => "swap_full",
            Self::BreakProtection(_) => "protection_broken",
            Self::Damage(_, Damage::Missing, _) => "file_missing",
            Self::Damage(_, Damage::Short, _) => "file_short",
            Self::Damage(_, Damage::Garbage, _) => "file_garbage",
            Self::Damage(_, Damage::Unreadable, _) => "file_unreadable",
            Self::StateFull(_) => "state_disk_full",
            Self::RunFull(_) => "undo_disk_full",
            Self::RunUnwritable(_) => "undo_unwritable",
            Self::Operator(..) => "operator_sets",
            Self::OperatorZswap(_) => "operator_sets_zswap",
            Self::SlowScans(_) => "slow_scan",
            Self::Reload(..) => "reload",
            Self::Bundle(_) => "bundle",
            Self::Shift(_) => "phase",
            Self::Resize(..) => "resize",
        }
    }

    /// All names.
    pub const NAMES: [&'static str; 32] = [
        "kill",
        "kill_midway",
        "kill_between_settings",
        "stop",
        "freeze",
        "freeze_midway",
        "wall_clock",
        "cgroup_vanishes",
        "cgroup_recreated",
        "cgroup_vanishes_midway",
        "cgroup_recreated_midway",
        "reclaim_takes_nothing",
        "reclaim_takes_twice",
        "reclaim_takes_page_cache",
        "reclaim_fails",
        "swap_off",
        "swap_full",
        "protection_broken",
        "file_missing",
        "file_short",
        "file_garbage",
        "file_unreadable",
        "state_disk_full",
        "undo_disk_full",
        "undo_unwritable",
        "operator_sets",
        "operator_sets_zswap",
        "slow_scan",
        "reload",
        "bundle",
        "phase",
        "resize",
    ];

    /// What it is at a reading of the clock, if it happens there.
    #[must_use]
    pub fn midway(&self) -> Option<(u32, Midway)> {
        match *self {
            Self::KillMidway(readings, _) => Some((readings, Midway::Kill)),
            Self::FreezeMidway(readings, length) => Some((readings, Midway::Freeze(length))),
            Self::VanishMidway(readings, group, again) => Some((readings, Midway::Vanish(group, again))),
            _ => None,
        }
    }
}

/// What one seed means.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The cgroups, not made yet, and how many pages each has.
    pub groups: Vec<(Group, usize)>,
    /// Size of the swap device, in pages.
    pub swap_pages: u64,
    /// The configuration without its directories and rules.
    pub knobs: String,
    /// Whether the agent may only observe.
    pub dry_run: bool,
    /// Whether `--restore` ends the run, and not a regular stop.
    pub ends_by_restore: bool,
    /// What happens, in the order of turns.
    pub faults: Vec<Fault>,
}

/// The cgroups: path, role.
const TREE: [(&str, Role); 7] = [
    ("/work.slice", Role::Ancestor),
    ("/work.slice/a", Role::Job),
    ("/work.slice/b", Role::Job),
    ("/job", Role::Job),
    ("/spared", Role::Spared),
    ("/other", Role::Stranger),
    ("/work.slice/other", Role::Stranger),
];

impl Plan {
    /// Draws the plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let groups = TREE.iter().map(|&(path, role)| draw_group(path, role, &mut rng)).collect();
        let knobs = draw_knobs(&mut rng);
        let swap_pages = [600, 2_000, 4_000][rng.usize(..3)];
        let (dry_run, ends_by_restore) = (rng.u8(..) < 12, rng.bool());
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let count = rng.usize(..9);
        let mut faults: Vec<Fault> = (0..count).map(|_| Fault { turn: rng.u32(2..TURNS), kind: draw_fault(&mut rng) }).collect();
        faults.sort_by_key(|fault| fault.turn);
        Self { seed, groups, swap_pages, knobs, dry_run, ends_by_restore, faults }
    }

    /// The rules of the configuration, from the groups' classes.
    #[must_use]
    pub fn rules<'a>(groups: impl Iterator<Item = &'a Group>) -> String {
        let named = groups.filter(|group| matches!(group.role, Role::Job | Role::Spared));
        named
            .map(|group| format!("[[job]]\ncgroup = \"{}\"\nclass = \"{}\"\npolicy = \"{}\"\n", group.path, group.class, group.policy))
            .collect()
    }
}

fn draw_group(path: &str, role: Role, rng: &mut Rng) -> (Group, usize) {
    let class = match role {
        Role::Spared => ["off", "observe"][rng.usize(..2)],
        _ => ["conservative", "standard", "aggressive"][rng.usize(..3)],
    };
    let count = if role == Role::Ancestor { 0 } else { rng.usize(PAGES) };
    let mut own = DEFAULTS.map(ToOwned::to_owned);
    if rng.u8(..) < 60 {
        own[0] = (rng.u64(1..60) * PAGE).to_string();
    }
    if rng.u8(..) < 30 && role != Role::Ancestor {
        own[1] = (rng.u64(1..200) * PAGE).to_string();
    }
    if rng.u8(..) < 40 {
        own[4] = (rng.u64(1..100) * PAGE).to_string();
    }
    let group = Group {
        path: path.to_owned(),
        role,
        policy: ["cold_age", "pressure", "auto"][rng.usize(..3)],
        class,
        alive: false,
        id: 0,
        frame: 0,
        pages: Vec::new(),
        own,
        counters: crate::group::Counters::default(),
        peaks: [0; 3],
        idle_before: 0,
        idle_most: 0,
        cold: 0,
        asked: 0,
    };
    (group, count)
}

fn draw_knobs(rng: &mut Rng) -> String {
    let flag = |rng: &mut Rng| rng.bool();
    format!(
        "scan_period = \"30s\"\ncontrol_period = \"15s\"\ntracker = \"page_idle\"\nactuator = \"memory_reclaim\"\ncpu_budget = \"100%\"\n\
         journal_size = \"1MiB\"\nprotect_working_set = {}\nat_limit = \"{}\"\ntier = \"{}\"\n\
         [cold_age]\nwarmup = \"{}s\"\npartial = {}\npage_cache = {}\npromotion_rate = \"{}%\"\n\
         [class.conservative]\nwarmup = \"0s\"\n[class.aggressive]\nwarmup = \"0s\"\n\
         [pressure]\nratio = \"{}%\"\nstep_max = \"10%\"\nfloor = \"{}KiB\"\nwarmup = \"{}s\"\nstall_target = \"{}%\"\n\
         [rollout]\nstore = \"/bundles\"\n[zswap]\nmanage = {}\nmax_pool = \"{}%\"\ncompressor = \"{}\"\n",
        rng.u8(..) < 200,
        ["auto", "offload", "fail_fast"][rng.usize(..3)],
        ["auto", "zswap", "swap", "both"][rng.usize(..4)],
        [0, 0, 120][rng.usize(..3)],
        flag(rng),
        flag(rng),
        [1, 10, 100][rng.usize(..3)],
        [1, 5, 10][rng.usize(..3)],
        FLOOR_PAGES * PAGE / 1024,
        [0, 60][rng.usize(..2)],
        [1, 10][rng.usize(..2)],
        flag(rng),
        [0, 30][rng.usize(..2)],
        ["", "zstd"][rng.usize(..2)],
    )
}

/// Files that may be damaged: of a cgroup, by its name, or of the machine.
const FILES: [&str; 12] = [
    "memory.current",
    "memory.stat",
    "memory.swap.current",
    "memory.pressure",
    "io.pressure",
    "memory.events",
    "memory.high",
    "cgroup.procs",
    "/proc/meminfo",
    "/proc/vmstat",
    "/proc/swaps",
    "/proc/kpageflags",
];

fn draw_damage(rng: &mut Rng) -> Kind {
    let group = TREE[rng.usize(..TREE.len())].0;
    // A cgroup's settings neither go missing nor contain garbage, but a read or a write may fail.
    if rng.u8(..) < 60 {
        let file = crate::group::SETTINGS[rng.usize(..5)];
        return Kind::Damage(format!("sys/fs/cgroup{group}/{file}"), Damage::Unreadable, rng.u32(1..20));
    }
    let damage = [Damage::Missing, Damage::Short, Damage::Garbage, Damage::Unreadable][rng.usize(..4)];
    let name = match FILES[rng.usize(..FILES.len())].strip_prefix('/') {
        Some(machine) => machine.to_owned(),
        None => format!("sys/fs/cgroup{group}/{}", FILES[rng.usize(..8)]),
    };
    // The tracker keeps the page frames' files open.
    let damage = if name.ends_with("kpageflags") { Damage::Short } else { damage };
    Kind::Damage(name, damage, rng.u32(1..20))
}

fn draw_fault(rng: &mut Rng) -> Kind {
    let group = rng.usize(..TREE.len());
    // The ancestor stays: its children's directories are below it.
    let leaf = rng.usize(1..TREE.len());
    let (readings, turns) = (rng.u32(..60), rng.u32(1..30));
    let length = Duration::from_millis(rng.u64(1_000..600_000));
    match rng.u8(..27) {
        0 => Kind::Kill,
        1 => Kind::KillMidway(readings, false),
        2 | 3 => Kind::KillMidway(readings, true),
        4 => Kind::Stop,
        5 => Kind::Freeze(length),
        6 => Kind::FreezeMidway(readings, length),
        7 => Kind::WallClock(rng.i64(-90_000_000..90_000_000)),
        8 | 9 => Kind::Vanish(leaf, rng.u8(..4) > 0),
        10 | 11 => Kind::VanishMidway(readings, leaf, rng.u8(..4) > 0),
        12 => Kind::Answer([Answer::Nothing, Answer::Twice, Answer::Other, Answer::Fails][rng.usize(..4)], turns),
        13 => Kind::Swap([0, 0, 150, 300][rng.usize(..4)], turns),
        14..=16 => draw_damage(rng),
        17 => Kind::StateFull(turns),
        18 => [Kind::RunFull(turns), Kind::RunUnwritable(turns)][rng.usize(..2)].clone(),
        19 => Kind::Operator(group, rng.usize(..5), rng.u64(1..1_000)),
        20 => Kind::OperatorZswap(rng.bool()),
        21 => Kind::SlowScans(turns),
        22 => Kind::Reload(leaf, ["off", "observe", "conservative", "standard", "aggressive"][rng.usize(..5)]),
        23 => Kind::Bundle(rng.u64(..3)),
        24 | 25 => Kind::BreakProtection(turns),
        _ if rng.bool() => Kind::Shift(leaf),
        _ => Kind::Resize(leaf, rng.u8(10..95), rng.bool()),
    }
}
