//! The simulated machine: cgroups, swap, and the kernel's files about them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use kernel::page_idle::{KPF_LRU, KPF_SWAPBACKED};

use crate::group::{Counters, DEFAULTS, Group, PAGE, Place, SETTINGS};
use crate::kernel_files;

/// Page frames of the machine. Every cgroup, and every one that is made again, has frames of its own.
pub const FRAMES: usize = 5120;

/// The machine, as clock, requests and run share it.
pub type Shared = Arc<Mutex<Machine>>;

/// Locks the machine.
pub fn lock(machine: &Shared) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the kernel answers requests for reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// As asked.
    #[default]
    Exact,
    /// Nothing is reclaimed.
    Nothing,
    /// Twice as much, which the kernel may do.
    Twice,
    /// Page cache, whatever was asked for.
    Other,
    /// The request fails.
    Fails,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It does not exist.
    Missing,
    /// It ends early.
    Short,
    /// It contains other text.
    Garbage,
    /// Reading and writing fail.
    Unreadable,
}

/// A request for reclaim that the agent made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The cgroup.
    pub path: String,
    /// Pages.
    pub pages: u64,
    /// 0: page cache only.
    pub swappiness: u8,
    /// Free swap afterwards, in pages.
    pub swap_free: u64,
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    /// The directory of all files.
    pub root: PathBuf,
    /// All cgroups, those that have vanished included.
    pub groups: Vec<Group>,
    /// Time since boot, in seconds.
    pub now: f64,
    /// Size of the swap device, in pages.
    pub swap_pages: u64,
    /// How requests are answered now.
    pub answer: Answer,
    /// Requests since the last turn.
    pub requests: Vec<Request>,
    /// Whether the kernel reclaims by itself now, in spite of `memory.low`.
    pub breaks_protection: bool,
    kswapd_pages: u64,
    /// Files that are damaged, by name.
    pub damaged: BTreeMap<String, Damage>,
    /// What the operator wrote to the machine's files that the agent sets.
    pub own: BTreeMap<String, String>,
    rng: Rng,
    frames_used: usize,
    published: HashMap<String, String>,
    /// Flags and owners of page frames, as published.
    frames: (Vec<u64>, Vec<u64>),
}

impl Machine {
    /// A machine without cgroups.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn new(root: PathBuf, swap_pages: u64, rng: Rng) -> io::Result<Self> {
        let own = [("enabled", "Y"), ("compressor", "lzo"), ("max_pool_percent", "20"), ("shrinker_enabled", "N")];
        let mut machine = Self {
            root,
            groups: Vec::new(),
            now: 1_000.0,
            swap_pages,
            answer: Answer::Exact,
            requests: Vec::new(),
            breaks_protection: false,
            kswapd_pages: 0,
            damaged: BTreeMap::new(),
            own: own.map(|(name, value)| (format!("sys/module/zswap/parameters/{name}"), value.to_owned())).into(),
            rng,
            frames_used: 0,
            published: HashMap::new(),
            frames: (Vec::new(), Vec::new()),
        };
        for (name, text) in kernel_files::fixed(FRAMES).into_iter().chain(machine.own.clone()) {
            machine.put(&name, &text)?;
        }
        fs::create_dir_all(machine.root.join("sys/kernel/mm/page_idle"))?;
        fs::write(machine.root.join(BITMAP), vec![0; FRAMES / 8])?;
        Ok(machine)
    }

    /// Writes a file, with the directories above it.
    fn put(&mut self, name: &str, text: &str) -> io::Result<()> {
        let (path, text) = (self.root.join(name), format!("{text}\n"));
        match fs::write(&path, &text) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                fs::write(path, text)
            }
            written => written,
        }
    }

    /// Makes the cgroup, with `count` pages.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn make(&mut self, at: usize, count: usize) -> io::Result<()> {
        let now = self.now;
        let count = count.min(FRAMES - self.frames_used);
        let group = &mut self.groups[at];
        (group.alive, group.frame, group.counters) = (true, self.frames_used, Counters::default());
        (group.peaks, group.idle_before, group.idle_most, group.cold, group.asked) = ([0; 3], 0, 0, 0, 0);
        group.populate(count, &mut self.rng, now);
        group.peaks[0] = group.resident();
        self.frames_used += count;
        let (directory, own) = (kernel_files::directory(&group.path), group.own.clone());
        let path = self.root.join(&directory);
        fs::create_dir_all(&path)?;
        group.id = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path)?);
        for (file, value) in SETTINGS.iter().zip(own) {
            self.put(&format!("{directory}/{file}"), &value)?;
        }
        Ok(())
    }

    /// Removes a cgroup, and makes it again with the same path if `again` and there are page frames left.
    pub fn vanish(&mut self, at: usize, again: bool) {
        let group = &mut self.groups[at];
        if !group.alive {
            return;
        }
        let count = group.pages.len();
        let directory = kernel_files::directory(&group.path);
        group.alive = false;
        group.pages.clear();
        group.own = DEFAULTS.map(ToOwned::to_owned);
        self.published.retain(|name, _| !name.starts_with(&directory));
        self.damaged.retain(|name, _| !name.starts_with(&directory));
        let removed = fs::remove_dir_all(self.root.join(&directory));
        assert!(removed.is_ok(), "cannot remove {directory}: {removed:?}");
        if again && self.frames_used + count <= FRAMES {
            let made = self.make(at, count).and_then(|()| self.publish());
            assert!(made.is_ok(), "cannot make {directory}: {made:?}");
        }
    }

    /// Lets the jobs run until `now`, and writes the kernel's files.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub fn advance(&mut self, now: f64) -> io::Result<()> {
        self.absorb()?;
        self.now = now;
        for group in self.groups.iter_mut().filter(|group| group.alive) {
            group.access(now, &mut self.rng);
            group.idle_before = group.idle();
            group.idle_most = group.idle_most.max(group.idle_before);
            group.peaks = [group.resident(), group.peaks[0], group.peaks[1]];
            // Each page is reclaimed in between and comes back with the next access; only the counters show it.
            if self.breaks_protection {
                group.counters.low += 1;
                group.counters.refault_anon += group.resident();
            }
        }
        self.kswapd_pages += u64::from(self.breaks_protection);
        self.publish()
    }

    /// Reads which pages the agent has marked idle.
    fn absorb(&mut self) -> io::Result<()> {
        let bits = fs::read(self.root.join(BITMAP))?;
        for group in &mut self.groups {
            for (at, page) in group.pages.iter_mut().enumerate() {
                let frame = group.frame + at;
                page.idle = page.place == Place::Resident && bits.get(frame / 8).is_some_and(|byte| byte >> (frame % 8) & 1 == 1);
            }
        }
        Ok(())
    }

    /// Writes the kernel's files that have changed and are not damaged.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn publish(&mut self) -> io::Result<()> {
        for (name, text) in kernel_files::changing(&self.groups, self.swap_pages, self.kswapd_pages, self.now) {
            if self.damaged.contains_key(&name) || self.published.get(&name) == Some(&text) {
                continue;
            }
            self.put(&name, &text)?;
            self.published.insert(name, text);
        }
        self.publish_frames()
    }

    fn publish_frames(&mut self) -> io::Result<()> {
        let (mut flags, mut owners, mut bits) = (vec![0u64; FRAMES], vec![0u64; FRAMES], vec![0u8; FRAMES / 8]);
        for group in self.groups.iter().filter(|group| group.alive) {
            for (at, page) in group.pages.iter().enumerate().filter(|(_, page)| page.place == Place::Resident) {
                let frame = group.frame + at;
                flags[frame] = KPF_LRU | if page.anon { KPF_SWAPBACKED } else { 0 };
                owners[frame] = group.id;
                bits[frame / 8] |= u8::from(page.idle) << (frame % 8);
            }
        }
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        if self.frames != (flags.clone(), owners.clone()) && !self.damaged.contains_key(FLAGS) {
            fs::write(self.root.join(FLAGS), bytes(&flags))?;
            fs::write(self.root.join(OWNERS), bytes(&owners))?;
            self.frames = (flags, owners);
        }
        fs::write(self.root.join(BITMAP), bits)
    }

    /// Damages a file.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn damage(&mut self, name: &str, damage: Damage) -> io::Result<()> {
        let path = self.root.join(name);
        if !path.is_file() || self.damaged.contains_key(name) {
            return Ok(());
        }
        match damage {
            Damage::Missing => fs::remove_file(&path)?,
            Damage::Short => {
                let bytes = fs::read(&path)?;
                fs::write(&path, &bytes[..self.rng.usize(..bytes.len().max(1))])?;
            }
            Damage::Garbage => {
                let bytes: Vec<u8> = (0..self.rng.usize(1..80)).map(|_| self.rng.u8(..)).collect();
                fs::write(&path, bytes)?;
            }
            Damage::Unreadable => {
                fs::rename(&path, path.with_extension("aside"))?;
                fs::create_dir(&path)?;
            }
        }
        self.damaged.insert(name.to_owned(), damage);
        Ok(())
    }

    /// Repairs all files.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn repair(&mut self) -> io::Result<()> {
        for (name, damage) in std::mem::take(&mut self.damaged) {
            let path = self.root.join(&name);
            if damage == Damage::Unreadable {
                fs::remove_dir(&path)?;
                fs::rename(path.with_extension("aside"), &path)?;
            }
            self.published.remove(&name);
        }
        self.frames = (Vec::new(), Vec::new());
        self.publish()
    }

    /// What a file that the agent sets contains; `None` while it is damaged.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<String> {
        if self.damaged.contains_key(name) {
            return None;
        }
        fs::read_to_string(self.root.join(name)).ok().map(|text| text.trim().to_owned())
    }

    /// All files that the agent sets, by name, except those that are damaged.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<String, String> {
        let of_groups = self.groups.iter().filter(|group| group.alive);
        let names = of_groups.flat_map(|group| SETTINGS.map(|file| format!("{}/{file}", kernel_files::directory(&group.path))));
        names.chain(self.own.keys().cloned()).filter_map(|name| Some((name.clone(), self.setting(&name)?))).collect()
    }

    /// Sets a file as an operator does. A damaged one is left.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set(&mut self, name: &str, value: &str) -> io::Result<()> {
        if self.damaged.contains_key(name) || !self.root.join(name).exists() {
            return Ok(());
        }
        let (directory, file) = name.rsplit_once('/').unwrap_or_default();
        let group = self.groups.iter_mut().find(|group| kernel_files::directory(&group.path) == directory);
        match (SETTINGS.iter().position(|setting| *setting == file), group) {
            (Some(setting), Some(group)) => value.clone_into(&mut group.own[setting]),
            _ => drop(self.own.insert(name.to_owned(), value.to_owned())),
        }
        self.put(name, value)
    }

    /// Free swap, in pages.
    #[must_use]
    pub fn swap_free(&self) -> u64 {
        self.swap_pages.saturating_sub(self.groups.iter().map(Group::swapped).sum())
    }

    /// Carries out a request for reclaim, if the cgroup is still the one with this id.
    ///
    /// # Errors
    /// If the kernel fails it.
    pub fn reclaim(&mut self, path: &str, id: u64, bytes: u64, swappiness: u8) -> io::Result<()> {
        let pages = bytes / PAGE;
        if self.groups.iter().any(|group| group.path == path && group.id != id) {
            return Ok(());
        }
        let outcome = match self.answer {
            Answer::Fails => Err(io::Error::from_raw_os_error(5)),
            Answer::Nothing => Ok(()),
            Answer::Exact => self.take(path, pages, swappiness),
            Answer::Twice => self.take(path, pages * 2, swappiness),
            Answer::Other => self.take(path, pages, 0),
        };
        self.requests.push(Request { path: path.to_owned(), pages, swappiness, swap_free: self.swap_free() });
        outcome
    }

    /// Takes the pages that were not accessed for longest, above `memory.min`.
    fn take(&mut self, path: &str, pages: u64, swappiness: u8) -> io::Result<()> {
        self.absorb()?;
        let Some(at) = self.groups.iter().position(|group| group.path == path && group.alive) else { return Ok(()) };
        let limits = self.swap_limits(at);
        let mut swap_room = limits.room.min(self.swap_free());
        let group = &mut self.groups[at];
        let mut left = pages.min(group.resident().saturating_sub(group.own_min()));
        let mut order: Vec<usize> = (0..group.pages.len()).filter(|&page| group.pages[page].place == Place::Resident).collect();
        // Anonymous memory first, if it is preferred; page cache where it cannot be swapped.
        let key = |page: &usize| (swappiness == 200 && !group.pages[*page].anon, group.pages[*page].last.to_bits(), *page);
        order.sort_unstable_by_key(key);
        for page in order {
            if left == 0 {
                break;
            }
            let page = &mut group.pages[page];
            let place = match limits.place {
                _ if !page.anon => Place::Evicted,
                Some(place) if swappiness > 0 && swap_room > 0 => place,
                _ => continue,
            };
            match place {
                Place::Compressed => group.counters.zswpout += 1,
                Place::Device => group.counters.pswpout += 1,
                _ => {}
            }
            swap_room -= u64::from(page.anon);
            left -= 1;
            (page.place, page.idle) = (place, false);
        }
        self.publish()
    }

    /// Where swapped pages of a cgroup go, and how many may.
    fn swap_limits(&self, at: usize) -> SwapLimits {
        let group = &self.groups[at];
        let setting =
            |file: usize| self.setting(&format!("{}/{}", kernel_files::directory(&group.path), SETTINGS[file])).unwrap_or_default();
        let zswap = self.setting("sys/module/zswap/parameters/enabled").is_some_and(|value| matches!(value.as_str(), "Y" | "1"));
        let place = match (zswap && setting(2) != "0", setting(3) != "0") {
            (true, _) => Some(Place::Compressed),
            (false, true) => Some(Place::Device),
            (false, false) => None,
        };
        let most = setting(1).parse::<u64>().map_or(u64::MAX, |bytes| bytes / PAGE);
        SwapLimits { place, room: most.saturating_sub(group.swapped()) }
    }
}

struct SwapLimits {
    place: Option<Place>,
    room: u64,
}

/// The bitmap of idle pages.
pub const BITMAP: &str = "sys/kernel/mm/page_idle/bitmap";
/// The flags of page frames.
pub const FLAGS: &str = "proc/kpageflags";
/// The owners of page frames.
pub const OWNERS: &str = "proc/kpagecgroup";
