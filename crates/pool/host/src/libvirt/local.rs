//! The one-time repair (Pond, section 4.2) where the pool is a node of the host: the guest stays in its process, and its pages
//! move under it while it runs.
//!
//! Its modules are memfds, bound to the pool's node by a policy that belongs to the memory and not to QEMU. So it can be changed from
//! here: pages that are touched from then on are local. Then what lies on the pool's node is migrated, and only when nothing of the
//! modules is there any more are the slices' locks let go of.
//!
//! # Who dies in between
//! The policy that is set here has a flag that nobody else sets (`MPOL_F_STATIC_NODES`), and lives as long as the memory.
//! [`settle`] knows by it that a move was begun: one that has come to its end is finished, any other is undone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernel::maps::Vma;
use kernel::mempolicy::{self, Mode, Policy};
use kernel::numa::{self, Node};
use kernel::{Roots, maps, move_pages, numa_maps};

use super::{Libvirt, Settings};
use crate::driver::{Error, Machine, Moved, Process, is_memfd};

/// Between two attempts at pages that were in use.
const AGAIN_EVERY: Duration = Duration::from_millis(100);
/// Millionths of a node's memory that its kernel wants free.
const MARGIN_PPM: u64 = 20_000;

/// A module of a guest's memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Module {
    vma: Vma,
    /// Whether its policy is one of ours, and no longer that of the pool.
    moved: bool,
    pool_bytes: u64,
    other_bytes: u64,
}

/// What is asked of the kernel about one guest.
trait Kernel {
    fn nodes(&self) -> Result<Vec<Node>, kernel::Error>;
    fn modules(&self) -> Result<Vec<Module>, kernel::Error>;
    fn set(&self, module: &Module, policy: &Policy) -> Result<(), kernel::Error>;
    /// Moves what it can of what the process has on the pool's node.
    fn migrate(&self, to: u32) -> Result<(), kernel::Error>;
}

struct Real<'a> {
    roots: &'a Roots,
    pid: i32,
    pool: u32,
}

impl Kernel for Real<'_> {
    fn nodes(&self) -> Result<Vec<Node>, kernel::Error> {
        numa::nodes(self.roots)
    }

    fn modules(&self) -> Result<Vec<Module>, kernel::Error> {
        let policies = numa_maps::read(self.roots, self.pid)?.unwrap_or_default();
        Ok(modules(&policies, maps::read(self.roots, self.pid)?, self.pool))
    }

    fn set(&self, module: &Module, policy: &Policy) -> Result<(), kernel::Error> {
        mempolicy::set_shared(self.roots, self.pid, &module.vma, policy)
    }

    fn migrate(&self, to: u32) -> Result<(), kernel::Error> {
        move_pages::all(self.pid, self.pool, to).map(drop)
    }
}

/// Whether memory that has such a policy is of the pool, or was.
pub(super) fn is_module(policy: &numa_maps::Policy, pool: u32) -> bool {
    policy.is_static || policy.bound == [pool]
}

fn modules(policies: &[numa_maps::Policy], vmas: Vec<Vma>, pool: u32) -> Vec<Module> {
    let module = |vma: Vma| {
        let policy = policies.iter().find(|policy| policy.start == vma.start && is_module(policy, pool))?;
        let pool_bytes = policy.on(pool);
        let all: u64 = policy.resident.iter().map(|(_, bytes)| bytes).sum();
        Some(Module { vma, moved: policy.is_static, pool_bytes, other_bytes: all - pool_bytes })
    };
    vmas.into_iter().filter(|vma| is_memfd(&vma.path)).filter_map(module).collect()
}

pub(super) fn to_local(libvirt: &Libvirt, machine: &Machine, process: &Process, within: Duration) -> Result<Moved, Error> {
    let begun = Instant::now();
    let failed = |why: String| Error::Move { guest: machine.name.clone(), why };
    if process.generation != 1 {
        return Err(failed("it was moved before".to_owned()));
    }
    let Settings { pool_node, local_nodes, .. } = &libvirt.settings;
    let kernel = Real { roots: &libvirt.roots, pid: process.pid, pool: *pool_node };
    let copied_bytes = bring(&kernel, *pool_node, local_nodes.as_deref(), begun + within).map_err(failed)?;
    let seconds = begun.elapsed().as_secs_f64();
    log::info!("guest {}: {copied_bytes} bytes of node {pool_node} are local after {seconds:.3} s", machine.name);
    let_go(libvirt, machine).map_err(|error| failed(format!("its pages are local, but its slices stay locked: {error}")))?;
    // Nobody stops it; who accesses a page just as it moves waits for that page.
    Ok(Moved { process: moved(process), pause_seconds: 0.0, total_seconds: begun.elapsed().as_secs_f64(), copied_bytes })
}

/// Ends a move that somebody has left. Locks are let go of only after the last page, so that until then it can be undone.
pub(super) fn settle(libvirt: &Libvirt, machine: &Machine, process: Process) -> Result<Process, Error> {
    let pool = libvirt.settings.pool_node;
    let kernel = Real { roots: &libvirt.roots, pid: process.pid, pool };
    let modules = match kernel.modules() {
        // Its end is noticed elsewhere.
        Err(error) if error.is_gone() => return Ok(process),
        other => other?,
    };
    if process.generation != 1 || !modules.iter().any(|module| module.moved) {
        return Ok(process);
    }
    let whole = modules.iter().all(|module| module.moved && module.pool_bytes == 0);
    if whole || locks_held(&libvirt.roots, machine, &process)? < modules.len() {
        log::info!("guest {}: its pages were local already; its slices are let go of", machine.name);
        let_go(libvirt, machine)?;
        return Ok(moved(&process));
    }
    log::info!("guest {}: somebody has left it in the midst of a move, which is undone", machine.name);
    for module in &modules {
        kernel.set(module, &of_pool(pool))?;
    }
    Ok(process)
}

fn moved(process: &Process) -> Process {
    Process { generation: 2, ..*process }
}

fn let_go(libvirt: &Libvirt, machine: &Machine) -> Result<(), Error> {
    machine.slices.iter().try_for_each(|slice| libvirt.let_go(&machine.name, slice))
}

/// How many of a guest's slices its process has open.
fn locks_held(roots: &Roots, machine: &Machine, process: &Process) -> Result<usize, Error> {
    let path = roots.proc.join(process.pid.to_string()).join("fd");
    let failed = |source| Error::Io { op: "list", path: path.clone(), source };
    let mut open: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&path).map_err(failed)? {
        // One that is closed just now.
        open.extend(std::fs::read_link(entry.map_err(failed)?.path()).ok());
    }
    Ok(machine.slices.iter().filter(|slice| open.contains(&slice.path)).count())
}

/// As libvirt has QEMU set it.
fn of_pool(pool: u32) -> Policy {
    Policy { mode: Mode::Bind, nodes: vec![pool], is_static: false }
}

/// Brings all modules to local memory; how many bytes lay in the pool.
///
/// # Errors
/// Why not. The modules have the policies again that they had.
fn bring(kernel: &impl Kernel, pool: u32, local: Option<&str>, deadline: Instant) -> Result<u64, String> {
    let told = |error: kernel::Error| error.to_string();
    let modules = kernel.modules().map_err(told)?;
    if modules.is_empty() {
        return Err(format!("none of its memory is bound to node {pool}"));
    }
    let (policy, homes) = homes(&kernel.nodes().map_err(told)?, pool, local)?;
    must_fit(&modules, &homes)?;
    let mut brought = Ok(());
    for module in &modules {
        brought = brought.and_then(|()| kernel.set(module, &policy).map_err(told));
    }
    if let Err(mut why) = brought.and_then(|()| migrate(kernel, pool, &homes, deadline)) {
        // What an earlier attempt has moved and could not finish is not the pool's any more.
        for module in modules.iter().filter(|module| !module.moved) {
            if let Err(worse) = kernel.set(module, &of_pool(pool)) {
                why = format!("{why}; and then: {worse}");
            }
        }
        return Err(why);
    }
    Ok(modules.iter().map(|module| module.pool_bytes).sum())
}

/// Migrates to each home in turn until nothing is left on the pool's node.
fn migrate(kernel: &impl Kernel, pool: u32, homes: &[Home], deadline: Instant) -> Result<(), String> {
    let told = |error: kernel::Error| error.to_string();
    loop {
        let (mut left, mut full) = (0, Vec::new());
        for home in homes {
            let begun = Instant::now();
            match kernel.migrate(home.node) {
                Err(error) if error.errno() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => full.push(home.node),
                other => other.map_err(told)?,
            }
            left = kernel.modules().map_err(told)?.iter().map(|module| module.pool_bytes).sum::<u64>();
            log::debug!("{left} bytes are left on node {pool} after {:?} of moving to node {}", begun.elapsed(), home.node);
            if left == 0 {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            let why = match &full[..] {
                [] => "something holds them, such as a device that is passed through".to_owned(),
                full => format!("nodes {full:?} are full"),
            };
            return Err(format!("{left} bytes could not be moved from node {pool} in time: {why}"));
        }
        std::thread::sleep(AGAIN_EVERY);
    }
}

/// A node that pages may move to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Home {
    node: u32,
    /// What of its memory can be had.
    room_bytes: u64,
}

/// Where local memory is, the roomiest first, and the policy for memory that is to come from there.
fn homes(nodes: &[Node], pool: u32, local: Option<&str>) -> Result<(Policy, Vec<Home>), String> {
    let named = local.map(numa::parse_list).transpose().map_err(|malformed| format!("libvirt.local_nodes: {malformed:?}"))?;
    let is_home = |node: &Node| match &named {
        Some(named) => named.contains(&node.id),
        None => !node.cpus.is_empty(),
    };
    let mut homes: Vec<_> = nodes
        .iter()
        .filter(|node| node.id != pool && node.total.0 > 0 && is_home(node))
        .map(|node| {
            let margin = node.total.0 / 1_000_000 * MARGIN_PPM;
            // The kernel can drop pages of files; half of them it may rather keep.
            Home { node: node.id, room_bytes: (node.free.0 + node.files.0 / 2).saturating_sub(margin) }
        })
        .collect();
    if homes.is_empty() {
        return Err(
            "this host has no local memory: no node but the pool's has both memory and processors; say libvirt.local_nodes".to_owned()
        );
    }
    homes.sort_by_key(|home| std::cmp::Reverse(home.room_bytes));
    // As strict as the rest of the guest's memory. Where nothing was said about that, a lack of memory must end no guest.
    let mode = if named.is_some() { Mode::Bind } else { Mode::PreferMany };
    let mut ids: Vec<_> = homes.iter().map(|home| home.node).collect();
    ids.sort_unstable();
    Ok((Policy { mode, nodes: ids, is_static: true }, homes))
}

/// All of the modules must find room, also what of them the guest has not touched yet.
fn must_fit(modules: &[Module], homes: &[Home]) -> Result<(), String> {
    let wanted: u64 = modules.iter().map(|module| module.vma.len().saturating_sub(module.other_bytes)).sum();
    let room: u64 = homes.iter().map(|home| home.room_bytes).sum();
    if wanted <= room {
        return Ok(());
    }
    let nodes: Vec<_> = homes.iter().map(|home| home.node).collect();
    Err(format!("its modules need {wanted} bytes of local memory, and nodes {nodes:?} have room for {room}"))
}

#[cfg(test)]
mod tests;
