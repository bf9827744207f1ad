use std::fs;

use kernel::page_idle::{KPF_COMPOUND_TAIL, KPF_LRU, KPF_SWAPBACKED};
use policy::histogram::AgeCounts;
use tempfile::TempDir;

use super::*;

const SCAN: Duration = Duration::from_secs(120);
const ANON: u64 = KPF_LRU | KPF_SWAPBACKED;

/// A page frame, and its page's true age.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    flags: u64,
    cgroup: u64,
    /// Scans between two accesses; 0 for a page that is never accessed.
    period: u32,
    phase: u32,
    age: u8,
}

/// A machine of which everything is known: its files in a temporary directory.
struct Machine {
    directory: TempDir,
    frames: Vec<Frame>,
    scans: u32,
}

/// A job's pages that are at least so old, and accesses to such pages in a scan, by threshold.
struct Truth {
    pages: u64,
    cold: [u64; 65],
    accessed: [u64; 65],
}

impl Machine {
    fn new(frames: Vec<Frame>) -> Self {
        let machine = Self { directory: tempfile::tempdir().unwrap(), frames, scans: 0 };
        let count = machine.frames.len();
        machine.put("proc/zoneinfo", format!("Node 0, zone Normal\n  spanned {count}\n  present {count}\n  start_pfn: 0\n").as_bytes());
        machine.put("sys/fs/cgroup/cgroup.controllers", b"memory\n");
        machine.put("proc/vmstat", b"thp_split_page 7\n");
        machine.put_words("sys/kernel/mm/page_idle/bitmap", vec![0; count / 64]);
        machine.write();
        machine
    }

    fn put(&self, name: &str, content: &[u8]) {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn put_words(&self, name: &str, words: Vec<u64>) {
        self.put(name, &words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<_>>());
    }

    /// Writes what the frames hold, and how much each job of `/job-ID` has.
    fn write(&self) {
        self.put_words("proc/kpageflags", self.frames.iter().map(|frame| frame.flags).collect());
        self.put_words("proc/kpagecgroup", self.frames.iter().map(|frame| frame.cgroup).collect());
        let mut memory: HashMap<u64, [u64; 2]> = HashMap::new();
        for frame in self.frames.iter().filter(|frame| frame.cgroup != 0) {
            memory.entry(frame.cgroup).or_default()[usize::from(frame.flags & KPF_SWAPBACKED == 0 && frame.flags & KPF_LRU != 0)] += 4096;
        }
        for (job, [anon, file]) in memory {
            self.put(&format!("sys/fs/cgroup/job-{job}/memory.stat"), format!("anon {anon}\nfile {file}\nshmem 0\n").as_bytes());
        }
    }

    fn open(&self, points_max: u64, seed: u64) -> SampledFrames {
        let limits = Limits { scan_period: SCAN, points_max, job_points_max: 2048 };
        SampledFrames::open(&Roots::under(self.directory.path()), limits, seed).unwrap()
    }

    fn bits(&self) -> Vec<u64> {
        let bytes = fs::read(self.directory.path().join("sys/kernel/mm/page_idle/bitmap")).unwrap();
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    fn is_idle(&self, frame: usize) -> bool {
        self.bits()[frame / 64] >> (frame % 64) & 1 == 1
    }

    /// A scan period passes. Returns the accesses at each age, by job.
    fn pass(&mut self) -> HashMap<u64, AgeCounts> {
        let mut bits = self.bits();
        let mut accesses: HashMap<u64, AgeCounts> = HashMap::new();
        self.scans += 1;
        let mut head = 0;
        for at in 0..self.frames.len() {
            let frame = &mut self.frames[at];
            head = if frame.flags & KPF_COMPOUND_TAIL == 0 { at } else { head };
            let accessed = frame.period > 0 && (self.scans + frame.phase).is_multiple_of(frame.period);
            if accessed || frame.cgroup == 0 {
                bits[head / 64] &= !(1 << (head % 64));
            }
            if accessed && frame.flags & KPF_SWAPBACKED != 0 {
                accesses.entry(frame.cgroup).or_default().add(Age(frame.age), Pages(1));
            }
            frame.age = if accessed { 0 } else { frame.age.saturating_add(1) };
        }
        self.put_words("sys/kernel/mm/page_idle/bitmap", bits);
        accesses
    }

    fn truth(&self, job: u64, accesses: &AgeCounts) -> Truth {
        let mut ages = AgeCounts::default();
        for frame in self.frames.iter().filter(|frame| frame.cgroup == job && frame.flags & KPF_SWAPBACKED != 0) {
            ages.add(Age(frame.age), Pages(1));
        }
        let by = |counts: &AgeCounts| std::array::from_fn(|age| counts.at_least(Age(u8::try_from(age).unwrap())).0);
        Truth { pages: ages.total().0, cold: by(&ages), accessed: by(accesses) }
    }
}

/// A job: its frames have its number as that of their cgroup.
fn target(tracker: &SampledFrames, job: u64) -> Target {
    let path = format!("/job-{job}");
    let id = Cgroup::open(&tracker.cgroups, &path).unwrap().id();
    Target { id, path, cgroups: vec![job], pids: Vec::new(), threshold: None, may_split: false, may_split_busy: false }
}

fn scan(tracker: &mut SampledFrames, now: u32, jobs: &[u64]) -> Vec<Scan> {
    let targets: Vec<_> = jobs.iter().map(|&job| target(tracker, job)).collect();
    tracker.scan(SCAN * now, &targets).unwrap().into_iter().map(Result::unwrap).collect()
}

/// Runs of frames of one job each, huge pages and small ones, free frames and page cache between them: two fifths are hot, a fifth
/// each is accessed every 7 scans, every 40, and never.
fn mixed(jobs: &[(u64, u64)], count: usize) -> Vec<Frame> {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let all: u64 = jobs.iter().map(|(_, weight)| weight).sum();
    let mut frames = Vec::new();
    while frames.len() < count {
        let mut ticket = random(all);
        let (job, _) = jobs.iter().find(|(_, weight)| ticket.checked_sub(*weight).inspect(|left| ticket = *left).is_none()).unwrap();
        let period = [1, 1, 7, 40, 0][usize::try_from(random(5)).unwrap()];
        let phase = u32::try_from(random(40)).unwrap();
        let (length, huge) = if random(3) == 0 { (512, true) } else { (1 + random(64), false) };
        let length = if huge { length + (512 - frames.len() as u64 % 512) % 512 } else { length };
        for _ in 0..length {
            let first = frames.len() % 512 == 0;
            let own = if huge { 0 } else { u32::try_from(random(40)).unwrap() };
            let (flags, cgroup) = match random(10) {
                _ if huge => (ANON | if first { 0 } else { KPF_COMPOUND_TAIL }, *job),
                0 => (0, 0),
                1 => (KPF_LRU, *job),
                _ => (ANON, *job),
            };
            frames.push(Frame { flags, cgroup, period, phase: phase + own, age: 0 });
        }
    }
    frames.truncate(count);
    // What comes before the first head of a huge page's run is small.
    let mut within = false;
    for (at, frame) in frames.iter_mut().enumerate() {
        within = if frame.flags & KPF_COMPOUND_TAIL == 0 { at % 512 == 0 } else { within };
        frame.flags &= if within { u64::MAX } else { !KPF_COMPOUND_TAIL };
    }
    frames
}

/// Cells of a histogram, and how many of them are within the bound.
#[derive(Debug, Default)]
struct Cells {
    all: u32,
    within: u32,
    /// Sums of errors in standard errors.
    errors: f64,
}

impl Cells {
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    fn compare(&mut self, estimate: u64, truth: u64, pages: u64, points: u64) {
        let (of, points) = (pages as f64, points as f64);
        let (share, estimate) = (truth as f64 / of, estimate as f64 / of);
        let error = (share * (1.0 - share) / points).sqrt();
        self.all += 1;
        // With the correction for a count.
        self.within += u32::from((estimate - share).abs() <= 1.96 * error + 0.5 / points);
        self.errors += if error > 0.0 { (estimate - share) / error } else { 0.0 };
    }
}

#[test]
fn both_histograms_are_unbiased_and_within_their_bounds_at_every_age() {
    let jobs = [1, 2, 3];
    let frames = mixed(&[(1, 60), (2, 30), (3, 2)], 1 << 15);
    let (mut cold, mut accessed): ([Cells; 3], [Cells; 3]) = Default::default();
    for seed in 0..8 {
        let mut machine = Machine::new(frames.clone());
        let mut tracker = machine.open(768, seed);
        scan(&mut tracker, 0, &jobs);
        for now in 1..=72 {
            let accesses = machine.pass();
            let scans = scan(&mut tracker, now, &jobs);
            for (index, (&job, scan)) in jobs.iter().zip(&scans).enumerate().filter(|_| now > 64) {
                let truth = machine.truth(job, accesses.get(&job).unwrap_or(&AgeCounts::default()));
                let points = scan.sample.as_ref().unwrap().points.0;
                assert_eq!((scan.resident.total().0, scan.resolved_to >= Age(64), points > 30), (truth.pages, true, true), "{points}");
                for age in 1..=64u8 {
                    let (of, at) = (truth.pages, usize::from(age));
                    cold[index].compare(scan.resident.at_least(Age(age)).0, truth.cold[at], of, points);
                    accessed[index].compare(scan.accesses.at_least(Age(age)).0, truth.accessed[at], of, points);
                }
            }
        }
    }
    for cells in cold.iter().chain(&accessed) {
        assert!(cells.within * 100 >= cells.all * 95, "{cells:?}");
        // Neighbouring ages of a seed have the same error: eight independent ones, of which the mean is within 3 / sqrt(8).
        assert!((cells.errors / f64::from(cells.all)).abs() < 1.06, "{cells:?}");
    }
}

fn anon(cgroup: u64, count: usize) -> Vec<Frame> {
    vec![Frame { flags: ANON, cgroup, ..Frame::default() }; count]
}

#[test]
fn a_frame_of_another_job_starts_over() {
    let mut machine = Machine::new([anon(1, 4096), anon(2, 4096)].concat());
    let mut tracker = machine.open(2048, 1);
    scan(&mut tracker, 0, &[1, 2]);
    for now in 1..=9 {
        machine.pass();
        scan(&mut tracker, now, &[1, 2]);
    }
    // Half of the first job's frames are freed; the other job has new pages in them, which are accessed.
    for frame in &mut machine.frames[..2048] {
        *frame = Frame { flags: ANON, cgroup: 2, period: 1, ..Frame::default() };
    }
    machine.write();
    machine.pass();
    let scans = scan(&mut tracker, 10, &[1, 2]);
    assert_eq!((scans[0].resident.at_least(Age(10)), scans[0].resident.total()), (Pages(2048), Pages(2048)));
    assert_eq!((scans[1].resident.at_least(Age(10)), scans[1].resident.total()), (Pages(4096), Pages(6144)));
    assert_eq!(scans.iter().map(|scan| scan.accesses.total().0).sum::<u64>(), 0, "no access at the age of another job's page");
    assert_eq!(scans[1].resolved_to, Age(10), "the new pages are known to be new");
    // The second job ends: its frames are no longer watched.
    scan(&mut tracker, 11, &[1]);
    assert!(tracker.job_of.keys().all(|frame| (2048..4096).contains(frame)) && !tracker.job_of.is_empty());
}

#[test]
fn frames_that_are_freed_leave_and_those_that_are_offloaded_do_not_count_as_accessed() {
    let mut machine = Machine::new(anon(1, 8192));
    let mut tracker = machine.open(2048, 1);
    scan(&mut tracker, 0, &[1]);
    for now in 1..=4 {
        machine.pass();
        scan(&mut tracker, now, &[1]);
    }
    let point = *tracker.job_of.keys().next().unwrap();
    let entry = pagemap::Entry(1 << 63 | point);
    assert_eq!(tracker.age(0, 0, entry), Some(Age(4)));
    // The agent offloads a quarter; the frames are used again before the next scan.
    for (cgroup, offloaded) in [(0, true), (1, false)] {
        for frame in &mut machine.frames[..2048] {
            *frame = Frame { flags: if offloaded { 0 } else { ANON }, cgroup, period: 1, ..Frame::default() };
        }
        machine.write();
        machine.pass();
        if offloaded {
            tracker.swapped_out(target(&tracker, 1).id, Pages(2048));
        }
    }
    let scan_after = scan(&mut tracker, 5, &[1]).remove(0);
    assert_eq!(scan_after.accesses.total(), Pages(0));
    assert_eq!((scan_after.resident.at(Age(0)), scan_after.resident.at(Age(5))), (Pages(2048), Pages(6144)));
}

#[test]
fn a_small_job_is_found_by_the_sweep() {
    // 1 in 64 of the machine.
    let mut machine = Machine::new([anon(1, 32256), anon(2, 512)].concat());
    let mut tracker = machine.open(256, 1);
    tracker.sweep = 4096;
    let points = |scans: &[Scan]| scans[1].sample.as_ref().unwrap().points.0;
    let first = scan(&mut tracker, 0, &[1, 2]);
    assert_eq!(tracker.level, 8, "the machine's level is the large job's");
    assert!((1..=4).contains(&points(&first)), "at the machine's level: {}", points(&first));
    for now in 1..=7 {
        machine.pass();
        scan(&mut tracker, now, &[1, 2]);
    }
    machine.pass();
    let found = scan(&mut tracker, 8, &[1, 2]);
    assert_eq!(points(&found), 128, "at its own level");
    assert_eq!((found[1].resident.total(), found[1].resolved_to), (Pages(512), Age(1)), "most were found at the last scan but one");
    assert_eq!(found[1].accesses.total(), Pages(0));
    assert!(found[0].resolved_to == Age(8) && found[0].sample.as_ref().unwrap().points.0 > 100);
}

#[test]
fn a_sampled_part_of_a_huge_page_has_its_bit() {
    let mut frames = anon(1, 4096);
    for (at, frame) in frames.iter_mut().enumerate().filter(|(at, _)| at % 512 != 0) {
        frame.flags |= KPF_COMPOUND_TAIL;
        // Only one small page of the fourth huge page is accessed.
        frame.period = u32::from(at == 3 * 512 + 77);
    }
    let mut machine = Machine::new(frames);
    let mut tracker = machine.open(1024, 1);
    scan(&mut tracker, 0, &[1]);
    machine.pass();
    let ages = scan(&mut tracker, 1, &[1]).remove(0).resident;
    assert_eq!((ages.at(Age(0)), ages.at(Age(1))), (Pages(512), Pages(3584)));
    assert!(machine.is_idle(3 * 512) && !machine.is_idle(3 * 512 + 77));
    // It is split: now its parts have ages of their own.
    machine.put("proc/vmstat", b"thp_split_page 8\n");
    machine.frames.iter_mut().for_each(|frame| frame.flags &= !KPF_COMPOUND_TAIL);
    machine.write();
    machine.put_words("sys/kernel/mm/page_idle/bitmap", vec![u64::MAX; 64]);
    machine.pass();
    let ages = scan(&mut tracker, 2, &[1]).remove(0).resident;
    assert_eq!(ages.at(Age(2)), Pages(3584));
    assert_eq!(ages.at(Age(1)), Pages(512), "{ages:?}");
    // An access to one of them is seen at later scans as well.
    let part = *tracker.job_of.keys().find(|&frame| (1..512).contains(frame)).unwrap();
    machine.frames[usize::try_from(part).unwrap()].period = 1;
    machine.pass();
    let ages = scan(&mut tracker, 3, &[1]).remove(0).resident;
    assert_eq!((ages.at(Age(0)), ages.at(Age(3))), (Pages(4), Pages(3580)), "{ages:?}");
}

#[test]
fn every_job_has_points_and_the_machine_s_level_follows() {
    let limits = Limits { scan_period: SCAN, points_max: 16_384, job_points_max: 2048 };
    for (jobs, want) in [(0, (16_384, 2048)), (1, (16_384, 2048)), (16, (16_384, 1024)), (1000, (48_000, 48))] {
        assert_eq!(limits.points(jobs), want, "{jobs}");
    }
    // A job of 64 MiB on a machine of 1 TiB, with 1,000 others.
    assert_eq!(blocks::level_for((64 << 20) / 4096, 48, None), 9);
    // The finest level that such a machine may have, and that of its jobs of average size.
    assert_eq!((blocks::level_for(1 << 28, 2 * 48_000, None), blocks::level_for((1 << 28) / 1000, 48, None)), (12, 13));
}
