//! Three members of a group, each a process of its own, and their files.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use manager::api::GroupStatus;
use manager::client::Client;

use super::crowd;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_secs(20);
pub(crate) const SLICES: u32 = 6;
pub(crate) const SLICE_BYTES: u64 = 128 << 20;

/// The members and their files. The device is in memory, because each of its slices is zeroed often.
pub(crate) struct Group {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) device: tempfile::NamedTempFile,
    pub(crate) ports: Vec<u16>,
    pub(crate) members: Vec<Option<Child>>,
    /// Hosts that only keep their leases.
    pub(crate) crowd: usize,
}

impl Group {
    pub(crate) fn start() -> Self {
        Self::with_crowd(0)
    }

    pub(crate) fn with_crowd(crowd: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let memory = PathBuf::from("/dev/shm");
        let device = if memory.is_dir() { tempfile::NamedTempFile::new_in(memory) } else { tempfile::NamedTempFile::new() }.unwrap();
        device.as_file().set_len(u64::from(SLICES) * SLICE_BYTES).unwrap();
        device.as_file().write_all_at(b"what was there before", 0).unwrap();
        let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let mut group = Self { directory, device, ports, members: vec![None, None, None], crowd };
        drop(listeners);
        for member in 0..3 {
            group.configure(member);
            let made = group.command(member, &["init"]);
            assert!(made.status.success(), "{made:?}");
        }
        (0..3).for_each(|member| group.spawn(member));
        let client = group.client(PATIENCE);
        client.lease("c", "first").unwrap();
        assert!(all_free(&client), "the slices are not zeroed: {}", group.logs());
        group
    }

    pub(crate) fn config(&self, member: usize) -> PathBuf {
        self.directory.path().join(format!("member-{member}.toml"))
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect()
    }

    pub(crate) fn configure(&self, member: usize) {
        let crowd: String = (0..self.crowd).map(|host| format!(", {:?}", crowd::name(host))).collect();
        let text = format!(
            "listen = \"127.0.0.1:{}\"\nledger = \"{member}/ledger.redb\"\npool_dir = \"{member}/pool\"\nslice_size = \"128MiB\"\n\
             emcs = [{{ slices = {SLICES}, device = {:?} }}]\nhosts = [\"a\", \"b\", \"c\"{crowd}]\noperators = [\"op\"]\nlease = \"{}s\"\n\
             [group]\nmembers = {:?}\nmember = {}\n",
            self.ports[member],
            self.device.path(),
            LEASE.as_secs(),
            self.urls(),
            member + 1
        );
        std::fs::write(self.config(member), text).unwrap();
    }

    pub(crate) fn command(&self, member: usize, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.args(["pool", "manager"]).args(arguments).arg("--config").arg(self.config(member)).output().unwrap()
    }

    pub(crate) fn spawn(&mut self, member: usize) {
        let errors = OpenOptions::new().create(true).append(true).open(self.directory.path().join(format!("member-{member}.log"))).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_thermocline"))
            .args(["pool", "manager", "--insecure-loopback", "--config"])
            .arg(self.config(member))
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn();
        self.members[member] = Some(child.unwrap());
    }

    pub(crate) fn signal(&self, member: usize, signal: &str) {
        let id = self.members[member].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends a member as its unit does.
    pub(crate) fn end(&mut self, member: usize) {
        self.signal(member, "-TERM");
        let ended = self.members[member].take().unwrap().wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.logs());
    }

    /// Ends a member and removes its files.
    pub(crate) fn empty(&mut self, member: usize) {
        self.kill(member);
        std::fs::remove_dir_all(self.directory.path().join(member.to_string())).unwrap();
    }

    /// A client of all members.
    pub(crate) fn client(&self, timeout: Duration) -> Client {
        Client::new(&self.urls().join(","), None, timeout).unwrap()
    }

    /// A client of one member.
    pub(crate) fn client_of(&self, member: usize, timeout: Duration) -> Client {
        Client::new(&self.urls()[member], None, timeout).unwrap()
    }

    pub(crate) fn status(&self, member: usize) -> Option<GroupStatus> {
        self.client_of(member, Duration::from_secs(2)).pool().ok()?.group
    }

    /// The leader, when all three members know it and have all entries.
    pub(crate) fn settled(&self) -> usize {
        let begin = Instant::now();
        loop {
            let leaders: Vec<_> = (0..3).filter_map(|member| self.status(member)?.leader).collect();
            if leaders.len() == 3 && leaders.iter().all(|leader| *leader == leaders[0]) {
                let leader = usize::try_from(leaders[0]).unwrap() - 1;
                let lags = self.status(leader).map(|status| status.members.iter().map(|of| of.lag_entries).collect::<Vec<_>>());
                if lags.is_some_and(|lags| lags.iter().all(|lag| lag.is_some_and(|lag| lag <= 2))) {
                    return leader;
                }
            }
            if begin.elapsed() >= PATIENCE {
                panic!("the group has no leader that all follow: {}", self.logs());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self, member: usize) -> String {
        std::fs::read_to_string(self.directory.path().join(format!("member-{member}.log"))).unwrap_or_default()
    }

    pub(crate) fn logs(&self) -> String {
        (0..3).map(|member| format!("\nmember {}:\n{}", member + 1, self.log(member))).collect()
    }

    /// Waits until a member has written this.
    pub(crate) fn wait_for_log(&self, member: usize, text: &str) {
        let begin = Instant::now();
        while !self.log(member).contains(text) {
            assert!(begin.elapsed() < PATIENCE, "{text}: {}", self.logs());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        (0..3).for_each(|member| self.kill(member));
    }
}

/// Waits until all slices are zeroed and have no owner.
pub(crate) fn all_free(client: &Client) -> bool {
    let begin = Instant::now();
    while client.pool().unwrap().slices.free < SLICES {
        if begin.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}
