//! The processes of a cluster: a scheduler and its standby, and one manager for each pool.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use manager::client::Client as Manager;
use scheduler::client::Client as Scheduler;
use tempfile::TempDir;

use super::Size;
use super::simulated::{NODE_CORES, NODE_MIB, NODES, STRATEGY, pool_slices};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(120);
/// Slices of a manager beyond those that VMs may have, so that slices in release delay none.
const SPARE: u32 = 128;

/// A process of the product, which ends with this value.
pub(crate) struct Process {
    arguments: Vec<String>,
    child: Child,
}

impl Process {
    fn start(kind: &str, config: &Path, more: &[&str]) -> Self {
        let words = ["pool", kind, "--insecure-loopback", "--config", config.to_str().unwrap()];
        let arguments: Vec<String> = words.iter().chain(more).map(|&word| word.to_owned()).collect();
        let child = spawn(&arguments);
        Self { arguments, child }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.arguments);
    }
}

fn spawn(arguments: &[String]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Cluster {
    /// The one that serves first, and its standby.
    pub(crate) schedulers: [Process; 2],
    pub(crate) client: Scheduler,
    pub(crate) managers: Vec<(Process, Manager)>,
    pub(crate) log: PathBuf,
    pub(crate) directory: TempDir,
}

/// The name of a host by its number in the simulation.
pub(crate) fn host(number: u32) -> String {
    format!("host-{number:04}")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until `done`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begin.elapsed()
}

impl Cluster {
    /// Starts all processes, and waits until the scheduler knows what each pool can assign.
    pub(crate) fn start(size: &Size) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let hosts: Vec<String> = (0..size.hosts).map(host).collect();
        let mut pools = String::new();
        let mut managers = Vec::new();
        for (pool, hosts) in (0..).zip(hosts.chunks(size.per_pool as usize)) {
            let root = directory.path().join(format!("pool-{pool}"));
            std::fs::create_dir(&root).unwrap();
            let (port, slices) = (free_port(), pool_slices(u32::try_from(hosts.len()).unwrap()));
            let config = root.join("manager.toml");
            let text = format!(
                "listen = \"127.0.0.1:{port}\"\nledger = \"ledger.redb\"\npool_dir = \"slices\"\nemcs = [{{ slices = {} }}]\nlease = \"1h\"\n\
                 hosts = {hosts:?}\noperators = [\"operator\"]\n",
                slices + SPARE
            );
            std::fs::write(&config, text).unwrap();
            init(&config);
            let url = format!("http://127.0.0.1:{port}");
            pools += &format!("[[pools]]\nname = \"pool-{pool}\"\nslices = {slices}\nmanager = \"{url}\"\nhosts = {hosts:?}\n");
            managers.push((Process::start("manager", &config, &[]), Manager::new(&url, None, REQUEST_TIMEOUT).unwrap()));
        }
        for (_, manager) in &managers {
            until("a manager answers", || manager.pool().is_ok());
        }
        let (log, ports) = (directory.path().join("scheduler.log"), [free_port(), free_port()]);
        let configs = ports.map(|port| {
            let config = directory.path().join(format!("scheduler-{port}.toml"));
            let text = format!(
                "listen = \"127.0.0.1:{port}\"\nlog = \"scheduler.log\"\nstrategy = \"{STRATEGY}\"\nnodes = {NODES}\n\
                 node_cores = {NODE_CORES}\nnode_memory = \"{NODE_MIB}MiB\"\n{pools}"
            );
            std::fs::write(&config, text).unwrap();
            config
        });
        let client = Scheduler::new(&ports.map(|port| format!("http://127.0.0.1:{port}")), None, REQUEST_TIMEOUT).unwrap();
        let first = Process::start("scheduler", &configs[0], &["--standby"]);
        until("every manager was read", || client.status().is_ok_and(|status| status.pools.iter().all(|pool| pool.answers)));
        let schedulers = [first, Process::start("scheduler", &configs[1], &["--standby"])];
        Self { schedulers, client, managers, log, directory }
    }
}

/// Makes a pool whose slices are files with holes.
fn init(config: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    let output = command.args(["pool", "manager", "init", "--overcommit", "--config", config.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
