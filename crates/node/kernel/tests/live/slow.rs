//! Slow memory: accesses counted page by page, huge pages, nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernel::damon::{Counts, Damon, PointSession, Points};
use kernel::madvise::PidFd;
use kernel::move_pages::{self, Located, Reason};
use kernel::thp::{self, HUGE_PAGE, Splitter};
use kernel::{Error, Roots, cxl, numa, perf};
use units::Bytes;

use crate::job::Job;
use crate::{Check, ensure, free_damon};

/// The sampling interval.
const INTERVAL: Duration = Duration::from_millis(500);

/// When the pages of the second group are touched, in sampling intervals since the start; at least two apart.
const TOUCHED_AT: [u32; 3] = [3, 6, 9];

/// Pages in each group.
const GROUP: usize = 8;

/// Three groups of pages are touched always, three times and never; DAMON counts that. Another process is still, a third
/// ends.
pub(crate) fn points(roots: &Roots) -> Check {
    let damon = free_damon(roots)?;
    let mut job = Job::start(roots, "/live-points")?;
    let still = Job::start(roots, "/live-points-still")?;
    let mut ending = Job::start(roots, "/live-points-ending")?;
    let groups = 3 * GROUP;
    // Every other page of the busy process, and adjacent ones of the others.
    let mut busy = vec![0; groups];
    for (index, address) in busy.iter_mut().enumerate() {
        *address = job.range(2 * index, 2 * index + 1).start;
    }
    let adjacent = |job: &Job| (0..groups).map(|page| job.range(page, page + 1).start).collect::<Vec<_>>();
    let points = [
        Points { pid: job.pid(), addresses: busy },
        Points { pid: still.pid(), addresses: adjacent(&still) },
        Points { pid: ending.pid(), addresses: adjacent(&ending)[..2].to_vec() },
    ];
    let session = damon.watch_points(INTERVAL, &points)?;
    let begin = Instant::now();
    let first = watch(&session, &mut job, begin)?;
    println!("live: {} samples in {:?}: {:?}", first.samples, first.taken_at - begin, first.accessed);
    ensure(first.accessed.iter().all(Option::is_some), || "a living process was left out".into())?;
    compare(&first)?;
    // The elapsed time bounds the number of samples.
    let elapsed = (first.taken_at - begin).as_millis() / INTERVAL.as_millis() + 1;
    ensure(u128::from(first.samples) <= elapsed, || format!("{} samples in the time of {elapsed}", first.samples))?;
    ending.child.kill()?;
    ending.child.wait()?;
    let second = session.counts()?;
    println!("live: then {} samples: {:?}", second.samples, second.accessed);
    ensure(second.samples > first.samples && second.accessed[2].is_none(), || "the end of a process went unnoticed".into())?;
    // The agent dies here: nothing of it runs any more that could take the kdamond down.
    std::mem::forget(session);
    let pids: Vec<i32> = points.iter().map(|points| points.pid).collect();
    ensure(matches!(Damon::reap(roots, &pids[..2]), Err(Error::Busy { .. })), || "another's kdamond was reaped".into())?;
    ensure(Damon::reap(roots, &pids)? == 1, || "our kdamond was not reaped".into())?;
    let mut again = Damon::probe(roots)?.watch_points(INTERVAL, &points[..1])?;
    ensure(again.counts()?.samples >= 2, || "no samples".into())?;
    Ok(again.stop()?)
}

/// Touches the job's pages until the session has returned its counts.
fn watch(session: &PointSession, job: &mut Job, begin: Instant) -> Result<Counts, Box<dyn std::error::Error>> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let touching = scope.spawn(|| -> Result<(), String> {
            let mut rounds = TOUCHED_AT.into_iter().peekable();
            while !done.load(Ordering::Relaxed) {
                let due = rounds.next_if(|round| begin.elapsed() >= INTERVAL * *round).is_some();
                let pages = if due { 2 * GROUP } else { GROUP };
                job.touch(0, 2 * pages).map_err(|error| error.to_string())?;
                std::thread::sleep(INTERVAL / 8);
            }
            ensure(rounds.next().is_none(), || "counted before all was touched".into())
        });
        // The pace is what is counted here.
        std::thread::sleep(INTERVAL * (TOUCHED_AT[2] + 2));
        let counts = session.counts();
        done.store(true, Ordering::Relaxed);
        touching.join().map_err(|_| "the touching thread panicked")??;
        Ok(counts?)
    })
}

/// Pages that are touched continuously are found accessed by every sample, those touched three times by three, the rest by none.
fn compare(counts: &Counts) -> Check {
    let [Some(busy), Some(still), Some(ending)] = &counts.accessed[..] else { return Err("three processes".into()) };
    let always = &busy[..GROUP];
    // The first sample may precede the first touch.
    ensure(always.iter().all(|count| *count + 1 >= counts.samples && *count <= counts.samples), || format!("touched always: {always:?}"))?;
    let thrice = &busy[GROUP..2 * GROUP];
    // A touch between the sample and the clearing of the bit is not counted.
    ensure(thrice.iter().all(|count| (2..=3).contains(count)), || format!("touched thrice: {thrice:?}"))?;
    let never = busy[2 * GROUP..].iter().chain(still).chain(ending);
    Ok(ensure(never.clone().all(|count| *count == 0), || format!("never touched: {:?}", never.collect::<Vec<_>>()))?)
}

/// What the machine says of its nodes holds together.
pub(crate) fn nodes(roots: &Roots) -> Check {
    let nodes = numa::nodes(roots)?;
    println!("live: {nodes:?}");
    println!("live: {:?} {:?}", numa::tiers(roots)?, numa::balancing(roots)?);
    println!("live: thp {:?}, devices {:?}, {:?}", thp::settings(roots)?, cxl::devices(roots)?, perf::access_sampling(roots)?);
    ensure(nodes.iter().any(|node| !node.cpus.is_empty() && node.total > Bytes::ZERO), || "no node with processors and memory".into())?;
    ensure(nodes.iter().all(|node| node.free <= node.total && node.distance_to(node.id) == Some(10)), || "odd nodes".into())?;
    let tiers = numa::tiers(roots)?;
    let in_tier = |id| tiers.is_empty() || tiers.iter().any(|tier| tier.nodes.contains(&id));
    Ok(ensure(nodes.iter().all(|node| node.total == Bytes::ZERO || in_tier(node.id)), || "a node in no tier".into())?)
}

/// The first bytes of the job's whole huge pages.
fn huge_pages_of(job: &Job) -> Vec<u64> {
    let range = job.range(0, job.pages);
    let first = range.start.next_multiple_of(HUGE_PAGE);
    (0..).map(|index| first + index * HUGE_PAGE).take_while(|start| start + HUGE_PAGE <= range.end).collect()
}

/// Huge pages are made, split, and made again.
pub(crate) fn huge_pages(roots: &Roots) -> Check {
    let mut job = Job::start(roots, "/live-huge")?;
    job.touch(0, job.pages)?;
    let process = PidFd::open(job.pid())?;
    ensure(process.can_collapse()?, || "this kernel knows no MADV_COLLAPSE".into())?;
    let whole = huge_pages_of(&job);
    let all = Bytes(whole.len() as u64 * HUGE_PAGE);
    let range = job.range(0, job.pages);
    let collapsed = process.advise_collapse(std::slice::from_ref(&range))?;
    let huge = thp::anon_huge(roots, job.pid())?;
    ensure(collapsed == all && huge >= all, || format!("{collapsed} of {all} collapsed, {huge} are"))?;
    let splitter = Splitter::open(roots)?;
    splitter.split(job.pid(), &(whole[0]..whole[0] + HUGE_PAGE))?;
    let less = thp::anon_huge(roots, job.pid())?;
    ensure(less == huge.saturating_sub(Bytes(HUGE_PAGE)), || format!("{less} huge of {huge} after one was split"))?;
    splitter.split(job.pid(), &range)?;
    let none = thp::anon_huge(roots, job.pid())?;
    ensure(none < Bytes(2 * HUGE_PAGE), || format!("{none} huge after all were split"))?;
    let again = process.advise_collapse(std::slice::from_ref(&range))?;
    ensure(again == all, || format!("{again} of {all} collapsed again"))?;
    let hole = process.advise_collapse(std::slice::from_ref(&(HUGE_PAGE..2 * HUGE_PAGE)))?;
    ensure(hole == Bytes::ZERO, || format!("{hole} collapsed where nothing is mapped"))?;
    let pid = job.pid();
    drop(job);
    let gone = splitter.split(pid, &range);
    ensure(gone.as_ref().is_err_and(Error::is_gone), || format!("a process that has ended: {gone:?}"))?;
    let gone = process.advise_collapse(std::slice::from_ref(&range));
    Ok(ensure(gone.as_ref().is_err_and(Error::is_gone), || format!("a process that has ended: {gone:?}"))?)
}

/// Huge pages are demoted to the slow node and promoted whole, by one address each.
pub(crate) fn move_pages(roots: &Roots) -> Check {
    let nodes = numa::nodes(roots)?;
    let mut job = Job::start(roots, "/live-move")?;
    job.touch(0, job.pages)?;
    let absent = move_pages::to_node(job.pid(), &[job.start], 77);
    ensure(absent.as_ref().is_err_and(Error::is_unsupported), || format!("to a node that is not there: {absent:?}"))?;
    let Some(slow) = numa::slow_nodes(&nodes).first().copied().cloned() else {
        println!("live: no slow node: {} nodes", nodes.len());
        return Ok(());
    };
    let home = numa::fast_node(&nodes, &slow).ok_or("no home node")?.id;
    let whole = huge_pages_of(&job);
    PidFd::open(job.pid())?.advise_collapse(&[job.range(0, job.pages)])?;
    let huge = thp::anon_huge(roots, job.pid())?;
    for node in [slow.id, home, slow.id] {
        let begin = Instant::now();
        let moved = move_pages::to_node(job.pid(), &whole, node)?;
        println!("live: {} huge pages to node {node} in {:?}", whole.len(), begin.elapsed());
        ensure(moved.iter().all(|page| *page == Located::Node(node)), || format!("to node {node}: {moved:?}"))?;
        let inner: Vec<u64> = whole.iter().map(|start| start + HUGE_PAGE / 2).collect();
        let located = move_pages::locate(job.pid(), &inner)?;
        ensure(located.iter().all(|page| *page == Located::Node(node)), || format!("on node {node}: {located:?}"))?;
        let still = thp::anon_huge(roots, job.pid())?;
        ensure(still == huge, || format!("{still} of {huge} huge after a move"))?;
    }
    let free = numa::nodes(roots)?.iter().find(|node| node.id == slow.id).map_or(Bytes::ZERO, |node| node.free);
    ensure(free < slow.free, || format!("{free} free on the slow node, {} before", slow.free))?;
    let left = move_pages::all(job.pid(), slow.id, home)?;
    let located = move_pages::locate(job.pid(), &whole)?;
    ensure(located.iter().all(|page| *page == Located::Node(home)), || format!("{left} left: {located:?}"))?;
    let nowhere = move_pages::to_node(job.pid(), &[HUGE_PAGE], slow.id)?;
    ensure(matches!(nowhere[..], [Located::Failed(Reason::Unmapped | Reason::Absent)]), || format!("{nowhere:?}"))?;
    job.child.kill()?;
    job.child.wait()?;
    let gone = move_pages::to_node(job.pid(), &whole, slow.id);
    Ok(ensure(gone.as_ref().is_err_and(Error::is_gone), || format!("a process that has ended: {gone:?}"))?)
}
