//! Tests of the handles on a real kernel, with a process of known memory.
//!
//! They create cgroups, page out memory and start kdamonds, and therefore run only with `KERNEL_LIVE=1`: in a lab guest, as root,
//! with cgroup v2, debugfs and an active swap device. An interface that the kernel lacks is skipped and reported; everything else
//! must pass. Arguments select checks; without arguments all run.

mod job;
mod latency;
mod pages;
mod slow;

use std::env;
use std::error::Error as StdError;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kernel::block::BlockDevice;
use kernel::cgroup::{self, Cgroup, CgroupRoot, Limit, ReclaimOutcome, Swappiness};
use kernel::damon::{Damon, Monitor};
use kernel::lru_gen::{Gen, LruGen, Node, Outcome};
use kernel::madvise::PidFd;
use kernel::page_idle::{IdleBitmap, KPF_ANON, KPF_LRU, KPageCgroup, KPageFlags, PFNS_PER_WORD};
use kernel::pagemap::{Categories, Entry, Pagemap, Query};
use kernel::zswap::Zswap;
use kernel::{Error, Roots, capability, maps, meminfo, process, psi, swap, vmstat, zoneinfo};
use units::Bytes;

use crate::job::{Job, MIB};

type Check = Result<(), Box<dyn StdError>>;
type Body = fn(&Roots) -> Check;

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some("workload") {
        return job::workload();
    }
    if env::var("KERNEL_LIVE").as_deref() != Ok("1") {
        println!("live: skipped, since it changes the machine; set KERNEL_LIVE=1 in a lab guest");
        return ExitCode::SUCCESS;
    }
    let checks: [(&str, Body); 17] = [
        ("machine", machine),
        ("features", features),
        ("block", block),
        ("cgroup", cgroup_files),
        ("freeze", freeze),
        ("cgroup_kill", cgroup_kill),
        ("pagemap", pagemap),
        ("pageout", pageout),
        ("page_idle", page_idle),
        ("lru_gen", lru_gen),
        ("damon", damon),
        ("points", slow::points),
        ("pages", pages::pages),
        ("nodes", slow::nodes),
        ("huge_pages", slow::huge_pages),
        ("move_pages", slow::move_pages),
        ("latency", latency::latency),
    ];
    let mut failed = 0;
    let named: Vec<String> = env::args().skip(1).collect();
    for (name, check) in checks.into_iter().filter(|(name, _)| named.is_empty() || named.iter().any(|named| named == name)) {
        match check(&Roots::host()) {
            Ok(()) => println!("live: {name}: ok"),
            Err(error) if error.downcast_ref::<Error>().is_some_and(Error::is_unsupported) => {
                println!("live: {name}: skipped: {error}");
            }
            Err(error) => {
                println!("live: {name}: FAILED: {error}");
                failed += 1;
            }
        }
    }
    println!("live: {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Polls until the condition holds.
fn wait_for(what: &str, mut is_so: impl FnMut() -> kernel::Result<bool>) -> Check {
    let begin = Instant::now();
    while !is_so()? {
        ensure(begin.elapsed() < Duration::from_secs(30), || format!("waited 30 s for {what}"))?;
        std::thread::yield_now();
    }
    Ok(())
}

fn machine(roots: &Roots) -> Check {
    let memory = meminfo::read(roots)?;
    ensure(memory.total > memory.free && memory.swap_total > Bytes::ZERO, || format!("{memory:?}"))?;
    let swaps = swap::read(roots)?;
    ensure(!swaps.is_empty(), || "no swap area".into())?;
    let stat = vmstat::read(roots)?;
    ensure(stat.pgfault.is_some() && stat.zswpout.is_some(), || format!("{stat:?}"))?;
    ensure(stat.allocstall.is_some(), || format!("{stat:?}"))?;
    psi::memory(roots)?;
    psi::io(roots)?;
    let ranges = zoneinfo::pfn_ranges(roots)?;
    let frames: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    ensure(frames * kernel::page_size().bytes() >= memory.total.0, || format!("{ranges:?} {memory:?}"))?;
    let who = capability::credentials(roots)?;
    ensure(who.is_root() && who.has(capability::Capability::SysAdmin), || format!("{who:?}"))?;
    println!("live: {} {swaps:?} lockdown {:?}", process::kernel_release(roots)?, capability::lockdown(roots)?);
    Ok(())
}

/// Every kernel of the lab offers everything.
fn features(roots: &Roots) -> Check {
    let _job = Job::start(roots, "/live-features")?;
    for feature in capability::features(roots) {
        feature.offered.map_err(|error| format!("{}: {error}", feature.name))?;
    }
    Ok(())
}

/// Memory is swapped out to the device without zswap and swapped in; the device's counters show the latency.
fn block(roots: &Roots) -> Check {
    let area = swap::read(roots)?.into_iter().next().ok_or("no swap area")?;
    let device = BlockDevice::under_swap(roots, &area)?;
    ensure(device.size()? >= area.size && !device.is_compressed_ram()?, || format!("{device:?} holds {area:?}"))?;
    let file = swap::SwapArea { name: "/etc/passwd".into(), kind: swap::SwapKind::File, ..area.clone() };
    let below = BlockDevice::under_swap(roots, &file)?;
    ensure(below.name() != device.name() && below.stat()?.reads > 0, || format!("{file:?} on {below:?}"))?;
    let zswap = Zswap::probe(roots)?;
    let enabled = zswap.get("enabled")?.ok_or("no parameter enabled")?;
    zswap.set("enabled", "N")?;
    let mut job = Job::start(roots, "/live-block")?;
    let page = kernel::page_size().bytes();
    let before = device.stat()?;
    PidFd::open(job.pid())?.advise_pageout(&[job.range(0, job.pages)])?;
    // Pages written to a device are freed by a reclaim after the write.
    wait_for("pages to leave the swap cache", || {
        job.cgroup.reclaim(Bytes::mib(MIB as u64), None)?;
        Ok(job.cgroup.stat()?.swapcached == Some(Bytes::ZERO))
    })?;
    let out = device.stat()?;
    job.touch(0, job.pages / 4)?;
    let back = device.stat()?;
    zswap.set("enabled", &enabled)?;
    let read_us = back.mean_read_us_since(&out);
    println!("live: {} rotational {:?}: {before:?} {out:?} {back:?}, a read took {read_us:?} us", device.name(), device.is_rotational()?);
    let (wrote, read) = (out.write_bytes - before.write_bytes, back.read_bytes - out.read_bytes);
    ensure(wrote.0 >= job.pages as u64 * page * 9 / 10, || format!("{wrote} written"))?;
    ensure(read.0 >= job.pages as u64 / 4 * page * 9 / 10, || format!("{read} read"))?;
    Ok(ensure(read_us.is_some(), || "no read was timed".into())?)
}

fn cgroup_files(roots: &Roots) -> Check {
    let job = Job::start(roots, "/live-files")?;
    let cgroup = &job.cgroup;
    let (current, stat) = (cgroup.current()?, cgroup.stat()?);
    ensure(current >= Bytes::mib(MIB as u64), || format!("memory.current {current}"))?;
    ensure(stat.anon >= Some(Bytes::mib(MIB as u64)) && stat.pgfault > Some(0), || format!("{stat:?}"))?;
    ensure(cgroup.procs(10)? == [job.pid()] && cgroup.populated()?, || "the process is not in its cgroup".into())?;
    ensure(cgroup.max()? == Limit::Max && cgroup.high()? == Limit::Max, || "unexpected limits".into())?;
    cgroup.set_low(Limit::Bytes(Bytes::mib(4)))?;
    ensure(cgroup.low()? == Limit::Bytes(Bytes::mib(4)), || "memory.low did not stay".into())?;
    cgroup.set_swap_max(Limit::Bytes(Bytes::mib(64)))?;
    ensure(cgroup.swap_max()? == Some(Limit::Bytes(Bytes::mib(64))), || "memory.swap.max did not stay".into())?;
    cgroup.set_swap_max(Limit::Max)?;
    ensure(cgroup.min()? == Limit::Bytes(Bytes::ZERO), || "memory.min is not 0".into())?;
    ensure(cgroup.zswap_max()? == Some(Limit::Max), || "memory.zswap.max is not max".into())?;
    ensure(cgroup.zswap_writeback()? == Some(true), || "memory.zswap.writeback is not 1".into())?;
    ensure(cgroup.cpu_usage_us()? > Some(0), || "no CPU time".into())?;
    cgroup.events()?;
    for psi in [Cgroup::pressure, Cgroup::io_pressure] {
        psi(cgroup)?;
        kernel::file::write(&cgroup.path().join("cgroup.pressure"), "0")?;
        let off = psi(cgroup);
        ensure(off.as_ref().is_err_and(Error::is_unsupported), || format!("pressure switched off: {off:?}"))?;
        kernel::file::write(&cgroup.path().join("cgroup.pressure"), "1")?;
    }
    for swappiness in [Swappiness::Value(0), Swappiness::Value(200), Swappiness::Max, Swappiness::Value(201)] {
        let before = pgscan(cgroup)?;
        let takes = cgroup.reclaim_takes(swappiness)?;
        ensure(pgscan(cgroup)? == before, || "asking what memory.reclaim takes made the kernel reclaim".into())?;
        println!("live: memory.reclaim takes swappiness={swappiness}: {takes}");
        match cgroup.reclaim(Bytes::mib(1), Some(swappiness)) {
            Err(error) if error.is_unsupported() => ensure(!takes, || format!("said to be taken: {error}"))?,
            other => ensure(takes, || format!("swappiness={swappiness} was not to be taken: {other:?}"))?,
        }
    }
    let outcome = cgroup.reclaim(Bytes(u64::MAX >> 1), None)?;
    ensure(outcome == ReclaimOutcome::Partial, || format!("reclaiming everything was {outcome:?}"))?;
    let root = CgroupRoot::probe(roots)?;
    ensure(cgroup::list(&root, 10_000)?.contains(&"/live-files".into()), || "not listed".into())?;
    let top = Cgroup::open(&root, "/")?.current();
    ensure(top.as_ref().is_err_and(Error::is_unsupported), || format!("root memory.current {top:?}"))?;
    Ok(())
}

/// Pages of the cgroup that reclaim has scanned.
fn pgscan(cgroup: &Cgroup) -> Result<Option<u64>, Box<dyn StdError>> {
    let stat = kernel::file::read(&cgroup.path().join("memory.stat"), kernel::file::SMALL)?;
    Ok(stat.lines().find_map(|line| line.strip_prefix("pgscan ")).map(str::parse).transpose()?)
}

fn freeze(roots: &Roots) -> Check {
    let mut job = Job::start(roots, "/live-freeze")?;
    let switch = job.cgroup.path().join("cgroup.freeze");
    ensure(job.cgroup.freeze()? == Some(false) && !job.cgroup.frozen()?, || "frozen from the start".into())?;
    kernel::file::write(&switch, "1")?;
    wait_for("the cgroup to freeze", || job.cgroup.frozen())?;
    let used = job.cgroup.cpu_usage_us()?;
    ensure(job.cgroup.freeze()? == Some(true) && job.cgroup.cpu_usage_us()? == used, || "a frozen process runs".into())?;
    kernel::file::write(&switch, "0")?;
    job.touch(0, job.pages)?;
    Ok(ensure(job.cgroup.cpu_usage_us()? > used, || "a thawed process does not run".into())?)
}

fn cgroup_kill(roots: &Roots) -> Check {
    let mut job = Job::start(roots, "/live-kill")?;
    ensure(matches!(job.cgroup.remove(), Err(Error::Busy { .. })), || "a populated cgroup was removed".into())?;
    let process = PidFd::open(job.pid())?;
    job.cgroup.kill()?;
    let status = job.child.wait()?;
    ensure(!status.success() && !process.is_alive(), || format!("ended with {status}"))?;
    let old = job.cgroup.clone();
    old.remove()?;
    ensure(old.current().is_err_and(|error| error.is_gone()), || "a removed cgroup still reads".into())?;
    let new = cgroup::create(&CgroupRoot::probe(roots)?, "/live-kill")?;
    ensure(new.id() != old.id(), || "an id was given twice".into())?;
    ensure(old.kill().is_err_and(|error| error.is_gone()), || "the recreated cgroup was mistaken for the removed one".into())?;
    ensure(process::stat(roots, job.pid()).is_err_and(|error| error.is_gone()), || "the process still has a stat".into())?;
    Ok(new.remove()?)
}

fn pagemap(roots: &Roots) -> Check {
    let mut job = Job::start(roots, "/live-pagemap")?;
    job.touch(0, job.pages)?;
    let entries = job.entries(roots)?;
    ensure(entries.len() == job.pages && entries.iter().all(|entry| entry.present()), || "pages are missing".into())?;
    let vmas = maps::read(roots, job.pid())?;
    ensure(vmas.iter().any(|vma| vma.range().contains(&job.start)), || "no mapping holds the memory".into())?;
    let (flags, owners) = (KPageFlags::open(roots)?, KPageCgroup::open(roots)?);
    for entry in entries.iter().step_by(97) {
        let pfn = entry.pfn().ok_or("no page frame number")?;
        let (mut flag, mut owner) = ([0], [0]);
        ensure(flags.read_chunk(pfn, &mut flag)? == 1 && flag[0] & KPF_ANON != 0, || format!("flags {:#x}", flag[0]))?;
        ensure(owners.read_chunk(pfn, &mut owner)? == 1 && owner[0] == job.cgroup.id(), || format!("owner {owner:?}"))?;
    }
    let query = Query { all: Categories::PRESENT, report: Categories::PRESENT, ..Query::default() };
    let end = job.start + job.pages as u64 * kernel::page_size().bytes();
    let (ranges, reached) = Pagemap::open(roots, job.pid())?.scan(job.start..end, query, 100)?;
    let covered: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    Ok(ensure(reached == end && covered == end - job.start, || format!("{ranges:x?} of {:x}..{end:x}", job.start))?)
}

fn pageout(roots: &Roots) -> Check {
    let zswap = Zswap::probe(roots)?;
    let before = zswap.parameters()?.enabled.ok_or("no parameter enabled")?;
    zswap.set("enabled", "Y")?;
    let error = zswap.set("compressor", "no_such_algorithm");
    ensure(error.as_ref().is_err_and(Error::is_unsupported), || format!("an unknown compressor: {error:?}"))?;
    let job = Job::start(roots, "/live-pageout")?;
    let page = kernel::page_size().bytes();
    let (half, process) = (job.range(0, job.pages / 2), PidFd::open(job.pid())?);
    let advised = process.advise_cold(std::slice::from_ref(&half))?;
    ensure(advised.0 == half.end - half.start, || format!("{advised} advised as cold"))?;
    let out = job.entries(roots)?.iter().filter(|entry| entry.swapped()).count();
    ensure(out == 0, || format!("COLD paged {out} pages out"))?;
    let advised = process.advise_pageout(std::slice::from_ref(&half))?;
    ensure(advised.0 == half.end - half.start, || format!("{advised} advised"))?;
    let gone = job.entries(roots)?.iter().take(job.pages / 2).filter(|entry| entry.swapped()).count();
    ensure(gone * 100 >= job.pages / 2 * 95, || format!("{gone} of {} pages went out", job.pages / 2))?;
    let (stat, counters, memory) = (job.cgroup.stat()?, zswap.counters()?, meminfo::read(roots)?);
    let zswapped = stat.zswapped.ok_or("no zswapped")?;
    ensure(zswapped.0 >= gone as u64 * page * 9 / 10, || format!("{stat:?}"))?;
    ensure(job.cgroup.zswap_current()? == stat.zswap, || "memory.zswap.current differs from memory.stat".into())?;
    let stored = counters.and_then(|counters| counters.stored_pages);
    println!("live: {gone} pages out, zswapped {zswapped}, zswap {:?}, stored_pages {stored:?}, pool {:?}", stat.zswap, memory.zswap);
    ensure(stored.is_none_or(|stored| stored.0 * page >= zswapped.0), || format!("stored {stored:?}"))?;
    let mut copy = [0; 64];
    let copied = process::read_memory(roots, job.pid(), job.start, &mut copy)?;
    ensure(copied == copy.len() && copy.iter().any(|byte| *byte != 0), || format!("copied {copied} bytes"))?;
    let back = job.entries(roots)?[0];
    ensure(!back.swapped(), || "reading did not bring the page back".into())?;
    let swapcached = stat.swapcached.ok_or("no swapcached")?;
    process.advise_willneed(&[job.range(1, 1 + job.pages / 4)])?;
    let ahead = job.cgroup.stat()?.swapcached.ok_or("no swapcached")? - swapcached;
    ensure(ahead.0 >= job.pages as u64 / 4 * page * 9 / 10, || format!("WILLNEED brought {ahead} into the swap cache"))?;
    Ok(zswap.set("enabled", if before { "Y" } else { "N" })?)
}

fn page_idle(roots: &Roots) -> Check {
    let idle = IdleBitmap::open(roots)?;
    let flags = KPageFlags::open(roots)?;
    let mut job = Job::start(roots, "/live-idle")?;
    job.touch(0, job.pages)?;
    let frames: Vec<u64> = job.entries(roots)?.iter().filter_map(|entry| entry.pfn()).collect();
    ensure(frames.len() == job.pages, || format!("{} frames", frames.len()))?;
    let bit = |pfn: u64| (pfn - pfn % PFNS_PER_WORD, 1_u64 << (pfn % PFNS_PER_WORD));
    for range in zoneinfo::pfn_ranges(roots)? {
        let first = bit(range.start).0;
        let words = vec![u64::MAX; usize::try_from((range.end - first).div_ceil(PFNS_PER_WORD))?];
        let written = idle.write_chunk(first, &words)?;
        // A last word that memory fills only in part is marked, but not counted by the kernel.
        ensure(written + 1 >= words.len(), || format!("{written} of {} words from {first}", words.len()))?;
    }
    job.touch(0, job.pages / 4)?;
    let is_idle = |pfn: &u64| -> kernel::Result<bool> {
        let (first, mask) = bit(*pfn);
        let mut word = [0];
        idle.read_chunk(first, &mut word)?;
        Ok(word[0] & mask != 0)
    };
    let count = |frames: &[u64]| frames.iter().map(is_idle).collect::<kernel::Result<Vec<_>>>();
    let touched = count(&frames[..job.pages / 4])?.iter().filter(|idle| **idle).count();
    let resting = count(&frames[job.pages / 4..])?.iter().filter(|idle| **idle).count();
    let rest = job.pages - job.pages / 4;
    println!("live: idle: {touched} of {} touched, {resting} of {rest} others", job.pages / 4);
    ensure(touched == 0 && resting * 1000 >= rest * 995, || "the bitmap does not show the touched pages".into())?;
    let mut flag = [0];
    flags.read_chunk(frames[0], &mut flag)?;
    Ok(ensure(flag[0] & KPF_LRU != 0, || format!("flags {:#x}", flag[0]))?)
}

fn lru_gen(roots: &Roots) -> Check {
    let lru_gen = LruGen::probe(roots)?;
    let mut job = Job::start(roots, "/live-lru")?;
    let out = |entries: &[Entry]| entries.iter().filter(|entry| entry.swapped()).count();
    // Touched pages come into the youngest generations, the others fall behind and are evicted. The kernel's walk misses
    // some pages at times; eviction finds them accessed, makes them young, and they fall behind again.
    let mut rounds = 0;
    loop {
        job.touch(0, job.pages / 4)?;
        let memcg = job.generations(&lru_gen)?;
        for node in &memcg.nodes {
            let youngest = node.max_seq().ok_or("no generation")?;
            lru_gen.age(memcg.id, node.nid, youngest)?;
            let outcome = lru_gen.age(memcg.id, node.nid, youngest + 10)?;
            ensure(outcome == Outcome::Refused, || "ageing a generation to come was not refused".into())?;
        }
        rounds += 1;
        // All pages were accessed before they were first aged.
        if rounds == 1 {
            continue;
        }
        let memcg = job.generations(&lru_gen)?;
        for node in &memcg.nodes {
            let pages = evictable(node).map(|generation| generation.anon_pages).sum();
            let youngest = evictable(node).map(|generation| generation.seq).max().ok_or("no generation to evict")?;
            lru_gen.evict(memcg.id, node.nid, youngest, 200, pages)?;
        }
        let entries = job.entries(roots)?;
        let (hot, cold) = entries.split_at(job.pages / 4);
        println!("live: evicted {} of {} hot, {} of {} cold of {memcg:?}", out(hot), hot.len(), out(cold), cold.len());
        ensure(out(hot) == 0, || "eviction took pages that were just touched".into())?;
        if out(cold) * 10 >= cold.len() * 9 {
            break;
        }
        ensure(rounds < 10, || "eviction left pages that were not touched".into())?;
    }
    let unknown = lru_gen.age(u64::from(u16::MAX), 0, 1)?;
    Ok(ensure(unknown == Outcome::Refused, || "ageing an unknown cgroup was not refused".into())?)
}

/// The generations that the kernel evicts on command: all but the youngest two (`MIN_NR_GENS`).
fn evictable(node: &Node) -> impl Iterator<Item = &Gen> {
    let youngest = node.max_seq().unwrap_or(0);
    node.gens.iter().filter(move |generation| generation.seq + 2 <= youngest)
}

/// DAMON, taken from the module that uses it by default on some kernels.
pub(crate) fn free_damon(roots: &Roots) -> kernel::Result<Damon> {
    match Damon::probe(roots) {
        Err(Error::Busy { what, .. }) if what.contains("damon_stat") => {
            println!("live: {what}; switched off for this check");
            kernel::file::write(&roots.sys.join("module/damon_stat/parameters/enabled"), "N")?;
            Damon::probe(roots)
        }
        other => other,
    }
}

fn damon(roots: &Roots) -> Check {
    let damon = free_damon(roots)?;
    let mut job = Job::start(roots, "/live-damon")?;
    let mut ending = Job::start(roots, "/live-damon-ending")?;
    let monitor = |pid| Monitor { pid, interval: Duration::from_millis(200), regions_min: 100, regions_max: 1000 };
    let session = damon.start(&[monitor(job.pid()), monitor(ending.pid())])?;
    ensure(session.kdamond_pids().len() == 2, || format!("kdamonds {:?}", session.kdamond_pids()))?;
    ensure(matches!(Damon::probe(roots), Err(Error::Busy { .. })), || "a busy DAMON passes for free".into())?;
    ending.child.kill()?;
    ending.child.wait()?;
    let mut touched = 0;
    for _ in 0..20 {
        job.touch(0, job.pages)?;
        let (regions, _) = session.snapshot(0)?;
        ensure(regions.is_sorted_by_key(|region| region.start), || "regions are not sorted".into())?;
        let ours = regions.iter().filter(|region| region.start < job.start + (16 << 20) && region.end > job.start);
        touched = ours.filter(|region| region.age <= 1).count().max(touched);
    }
    ensure(touched > 0, || "no region was ever seen accessed".into())?;
    let gone = session.snapshot(1);
    ensure(gone.as_ref().is_err_and(Error::is_gone), || format!("a dead process: {gone:?}"))?;
    let pids = [job.pid(), ending.pid()];
    // The agent dies here: nothing of it runs any more that could take the kdamonds down.
    std::mem::forget(session);
    ensure(matches!(Damon::reap(roots, &pids[..1]), Err(Error::Busy { .. })), || "another's kdamonds were reaped".into())?;
    ensure(Damon::reap(roots, &pids)? == 2, || "our kdamonds were not reaped".into())?;
    let mut again = Damon::probe(roots)?.start(&[monitor(job.pid())])?;
    again.stop()?;
    Damon::probe(roots)?;
    Ok(())
}
