//! Mitigation (Pond section 4.2) for a pool that is a NUMA node of the host: the guest stays in its process, and its
//! pages are moved while it runs.
//!
//! The guest's modules are memfds, bound to the pool's node by a memory policy that belongs to the memory and not to
//! QEMU, so another process can change it. First the policy is changed: pages touched from then on are local. Then
//! pages on the pool's node are migrated. The slices' locks are released only when no page of the modules is left on
//! the pool's node.
//!
//! # Restart during a move
//! The policy set here has a flag that no other program sets (`MPOL_F_STATIC_NODES`), and persists with the memory.
//! [`settle`] finds a started move by this flag: a completed one is finished, any other is undone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernel::maps::Vma;
use kernel::mempolicy::{self, Mode, Policy};
use kernel::numa::{self, Node};
use kernel::{Roots, maps, move_pages, numa_maps};
use units::{Bytes, RatioPpm};

use super::connection::Connection;
use super::settings::Settings;
use crate::driver::{Error, Machine, Moved};
use crate::drivers::sampling::is_memfd;
use crate::process::Process;

/// Interval between attempts to move pages that were in use.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Share of a node's memory that is left free for its kernel.
const MARGIN: RatioPpm = RatioPpm(20_000);

/// A memory module of a guest.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Module {
    vma: Vma,
    /// Whether its policy was set by a move, and is no longer that of the pool.
    moved: bool,
    /// Resident memory on the pool's node.
    in_pool: Bytes,
    /// Resident memory on other nodes.
    elsewhere: Bytes,
}

/// Operations of the kernel on one guest's memory.
trait Kernel {
    fn nodes(&self) -> Result<Vec<Node>, kernel::Error>;
    fn modules(&self) -> Result<Vec<Module>, kernel::Error>;
    fn set(&self, module: &Module, policy: &Policy) -> Result<(), kernel::Error>;
    /// Moves pages of the process from the pool's node; pages that cannot be moved now are skipped.
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

/// Whether memory with this policy is a module: bound to the pool's node, or moved away from it.
pub(super) fn is_module(policy: &numa_maps::Policy, pool: u32) -> bool {
    policy.is_static || policy.bound == [pool]
}

fn modules(policies: &[numa_maps::Policy], vmas: Vec<Vma>, pool: u32) -> Vec<Module> {
    let module = |vma: Vma| {
        let policy = policies.iter().find(|policy| policy.start == vma.start && is_module(policy, pool))?;
        let in_pool = Bytes(policy.on(pool));
        let all = Bytes(policy.resident.iter().map(|(_, bytes)| bytes).sum());
        Some(Module { vma, moved: policy.is_static, in_pool, elsewhere: all - in_pool })
    };
    vmas.into_iter().filter(|vma| is_memfd(&vma.path)).filter_map(module).collect()
}

/// Moves the guest's memory; on failure the policies are restored, and pages that were moved stay local.
pub(super) fn move_to_local(connection: &Connection, machine: &Machine, process: &Process, timeout: Duration) -> Result<Moved, Error> {
    let begin = Instant::now();
    let failed = |why: String| Error::Move { guest: machine.name.clone(), why };
    if process.generation != 1 {
        return Err(failed("it was moved before".to_owned()));
    }
    let Settings { pool_node, local_nodes, .. } = &connection.settings;
    let kernel = Real { roots: &connection.roots, pid: process.pid, pool: *pool_node };
    let copied = move_modules(&kernel, *pool_node, local_nodes.as_deref(), begin + timeout).map_err(failed)?;
    log::info!("guest {}: moved {} bytes from node {pool_node} in {:.3} s", machine.name, copied.0, begin.elapsed().as_secs_f64());
    release_locks(connection, machine)
        .map_err(|error| failed(format!("its pages are local, but the locks of its slices could not be released: {error}")))?;
    // The guest is not paused; only an access to a page during its migration waits for that page.
    Ok(Moved { process: second_generation(process), pause: Duration::ZERO, total: begin.elapsed(), copied })
}

/// Settles a move that an earlier daemon left unfinished. Locks are released only after the last page, so until then
/// the move can be undone.
pub(super) fn settle(connection: &Connection, machine: &Machine, process: Process) -> Result<Process, Error> {
    let pool = connection.settings.pool_node;
    let kernel = Real { roots: &connection.roots, pid: process.pid, pool };
    let modules = match kernel.modules() {
        // The host detects the exit of the process.
        Err(error) if error.is_gone() => return Ok(process),
        other => other?,
    };
    if process.generation != 1 || !modules.iter().any(|module| module.moved) {
        return Ok(process);
    }
    let complete = modules.iter().all(|module| module.moved && module.in_pool == Bytes::ZERO);
    if complete || locks_held(&connection.roots, machine, &process)? < modules.len() {
        log::info!("guest {}: its pages are local already; releasing the locks of its slices", machine.name);
        release_locks(connection, machine)?;
        return Ok(second_generation(&process));
    }
    log::info!("guest {}: undoing a move that an earlier daemon left unfinished", machine.name);
    for module in &modules {
        kernel.set(module, &pool_policy(pool))?;
    }
    Ok(process)
}

fn second_generation(process: &Process) -> Process {
    Process { generation: 2, ..*process }
}

fn release_locks(connection: &Connection, machine: &Machine) -> Result<(), Error> {
    machine.slices.iter().try_for_each(|slice| connection.release_lock(&machine.name, slice))
}

/// Number of the guest's slice files that its process has open.
fn locks_held(roots: &Roots, machine: &Machine, process: &Process) -> Result<usize, Error> {
    let path = roots.proc.join(process.pid.to_string()).join("fd");
    let failed = |source| Error::File { op: "list", path: path.clone(), source };
    let mut open: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&path).map_err(failed)? {
        // A descriptor may be closed in the meantime.
        open.extend(std::fs::read_link(entry.map_err(failed)?.path()).ok());
    }
    Ok(machine.slices.iter().filter(|slice| open.contains(&slice.path)).count())
}

/// The policy that QEMU sets for a module by libvirt's order.
fn pool_policy(pool: u32) -> Policy {
    Policy { mode: Mode::Bind, nodes: vec![pool], is_static: false }
}

/// Moves all modules to local memory. Returns the bytes that were in the pool.
///
/// # Errors
/// The cause. The policies of the modules are restored.
fn move_modules(kernel: &impl Kernel, pool: u32, local: Option<&str>, deadline: Instant) -> Result<Bytes, String> {
    let message = |error: kernel::Error| error.to_string();
    let modules = kernel.modules().map_err(message)?;
    if modules.is_empty() {
        return Err(format!("none of its memory is bound to node {pool}"));
    }
    let (policy, targets) = targets(&kernel.nodes().map_err(message)?, pool, local)?;
    check_capacity(&modules, &targets)?;
    let mut set = Ok(());
    for module in &modules {
        set = set.and_then(|()| kernel.set(module, &policy).map_err(message));
    }
    if let Err(mut why) = set.and_then(|()| migrate(kernel, pool, &targets, deadline)) {
        // Modules that an earlier attempt moved and whose locks it could not release are no longer the pool's.
        for module in modules.iter().filter(|module| !module.moved) {
            if let Err(error) = kernel.set(module, &pool_policy(pool)) {
                why = format!("{why}; its policy could not be restored: {error}");
            }
        }
        return Err(why);
    }
    Ok(modules.iter().map(|module| module.in_pool).sum())
}

/// Migrates pages to each target in turn until none is left on the pool's node.
fn migrate(kernel: &impl Kernel, pool: u32, targets: &[Target], deadline: Instant) -> Result<(), String> {
    let message = |error: kernel::Error| error.to_string();
    loop {
        let (mut left, mut full) = (Bytes::ZERO, Vec::new());
        for target in targets {
            let begin = Instant::now();
            match kernel.migrate(target.node) {
                Err(error) if error.errno() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => full.push(target.node),
                other => other.map_err(message)?,
            }
            left = kernel.modules().map_err(message)?.iter().map(|module| module.in_pool).sum();
            log::debug!("{} bytes are left on node {pool} after {:?} of migration to node {}", left.0, begin.elapsed(), target.node);
            if left == Bytes::ZERO {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            let why = match &full[..] {
                [] => "the pages are pinned, for example by a device that is passed through".to_owned(),
                full => format!("nodes {full:?} are full"),
            };
            return Err(format!("{} bytes could not be moved from node {pool} in time: {why}", left.0));
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// The nodes that `bytes` of the pool may move to, the one with most available memory first.
///
/// # Errors
/// There is no local memory, or not enough.
pub(super) fn nodes_for(nodes: &[Node], pool: u32, local: Option<&str>, bytes: Bytes) -> Result<Vec<u32>, String> {
    let (_, targets) = targets(nodes, pool, local)?;
    let available: Bytes = targets.iter().map(|target| target.available).sum();
    let ids: Vec<_> = targets.iter().map(|target| target.node).collect();
    if bytes > available {
        return Err(format!("its hot part has {} bytes, and nodes {ids:?} have {} bytes available", bytes.0, available.0));
    }
    Ok(ids)
}

/// A node that pages may move to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    node: u32,
    /// Memory that is available on the node.
    available: Bytes,
}

/// The nodes of local memory, the one with most available memory first, and the policy for memory on them.
fn targets(nodes: &[Node], pool: u32, local: Option<&str>) -> Result<(Policy, Vec<Target>), String> {
    let named = local.map(numa::parse_list).transpose().map_err(|malformed| format!("libvirt.local_nodes: {malformed:?}"))?;
    let is_local = |node: &Node| match &named {
        Some(named) => named.contains(&node.id),
        None => !node.cpus.is_empty(),
    };
    let mut targets: Vec<_> = nodes
        .iter()
        .filter(|node| node.id != pool && node.total > Bytes::ZERO && is_local(node))
        .map(|node| {
            let margin = node.total.0 / 1_000_000 * u64::from(MARGIN.0);
            // The kernel can reclaim page cache; it may prefer to keep half of it.
            Target { node: node.id, available: Bytes((node.free.0 + node.files.0 / 2).saturating_sub(margin)) }
        })
        .collect();
    if targets.is_empty() {
        return Err(
            "this host has no local memory: no node except the pool's has both memory and processors; set libvirt.local_nodes".to_owned()
        );
    }
    targets.sort_by_key(|target| std::cmp::Reverse(target.available));
    // As strict as the guest's other memory. Without configured nodes, a shortage of memory must not kill a guest.
    let mode = if named.is_some() { Mode::Bind } else { Mode::PreferMany };
    let mut ids: Vec<_> = targets.iter().map(|target| target.node).collect();
    ids.sort_unstable();
    Ok((Policy { mode, nodes: ids, is_static: true }, targets))
}

/// Checks that the targets can hold all modules, including pages that the guest has not touched yet.
fn check_capacity(modules: &[Module], targets: &[Target]) -> Result<(), String> {
    let required: Bytes = modules.iter().map(|module| Bytes(module.vma.len()).saturating_sub(module.elsewhere)).sum();
    let available: Bytes = targets.iter().map(|target| target.available).sum();
    if required <= available {
        return Ok(());
    }
    let nodes: Vec<_> = targets.iter().map(|target| target.node).collect();
    Err(format!("its modules need {} bytes of local memory, and nodes {nodes:?} have {} bytes available", required.0, available.0))
}

#[cfg(test)]
mod tests;
