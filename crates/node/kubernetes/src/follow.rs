//! Follows the pods of a node: lists them, watches them, and writes their rules.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::api::{Api, Error, Event};
use crate::file::RuleFile;
use crate::pod::Pod;
use crate::rules::{Choice, Rules};

/// The most pods of a node that have rules. A kubelet runs 110 by default; the agent checks each cgroup against each rule.
pub const PODS_MAX: usize = 1_000;

/// The first pause after a failure. It doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Follows the pods of one node.
#[derive(Debug)]
pub struct Follower {
    api: Api,
    node: String,
    choice: Choice,
    file: RuleFile,
    pods: BTreeMap<String, Pod>,
    /// Pods beyond [`PODS_MAX`] since the last list.
    left_out: u64,
    rules: Rules,
    /// The version from which the watch continues; `None` if pods must be listed first.
    version: Option<String>,
    failures: u32,
}

impl Follower {
    /// A follower that has not asked yet. The rules of an earlier one stay until the first list.
    ///
    /// # Errors
    /// `node` is no name of a node.
    pub fn new(api: Api, node: &str, choice: Choice, file: RuleFile) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if node.is_empty() || node.len() > 253 || !node.chars().all(allowed) || node.split('.').any(str::is_empty) {
            return Err(format!("{:?} is no name of a node", units::quantity::excerpt(node)));
        }
        let node = node.to_owned();
        let (pods, rules) = (BTreeMap::new(), Rules::default());
        Ok(Self { api, node, choice, file, pods, left_out: 0, rules, version: None, failures: 0 })
    }

    /// Follows until `pause`, which waits for the given time, returns false.
    pub fn run(&mut self, pause: &mut dyn FnMut(Duration) -> bool) {
        loop {
            let began = Instant::now();
            let wait = match self.turn() {
                // A server or proxy that ends each watch at once must not keep a CPU busy.
                Ok(()) => PAUSE.saturating_sub(began.elapsed()),
                Err(Error::Gone) => {
                    log::debug!("{}; listing the pods of this node again", Error::Gone);
                    PAUSE
                }
                Err(error) => self.failed(&error),
            };
            // Many nodes lose the same server at the same time.
            if !pause(wait.mul_f64(1.0 + fastrand::f64() / 2.0)) {
                return;
            }
        }
    }

    /// Lists all pods and writes their rules.
    ///
    /// # Errors
    /// [`Error`]; the rules stay as they were.
    pub fn list(&mut self) -> Result<(), Error> {
        let (mut pods, mut left_out) = (BTreeMap::new(), 0);
        let version = self.api.list(&self.node, |pod| {
            if !keep(&mut pods, pod) {
                left_out += 1;
            }
        })?;
        (self.pods, self.left_out, self.version) = (pods, left_out, Some(version));
        if left_out > 0 {
            log::warn!("this node has more than {PODS_MAX} pods: {left_out} of them have no rule and are left alone");
        }
        self.write();
        Ok(())
    }

    /// How many pods have rules.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    /// Lists the pods if that is necessary, and watches them once.
    fn turn(&mut self) -> Result<(), Error> {
        let version = match &self.version {
            Some(version) => version.clone(),
            None => {
                self.list()?;
                log::info!("following the {} pods of this node", self.pods.len());
                self.version.clone().unwrap_or_default()
            }
        };
        let api = self.api.clone();
        let node = self.node.clone();
        let watched = api.watch(&node, &version, |event| self.take(event));
        if watched.is_ok() {
            self.failures = 0;
        }
        if watched.is_err() || self.left_out > 0 {
            // Whatever was missed is in the next list, and so are pods that there is room for now.
            self.version = None;
        }
        watched
    }

    fn take(&mut self, event: Event) {
        // An event proves that the server works again.
        self.failures = 0;
        match event {
            Event::Bookmark(version) => self.version = Some(version),
            Event::Changed(pod) => {
                self.version = Some(pod.metadata.resource_version.0.clone());
                if !keep(&mut self.pods, pod) {
                    self.left_out += 1;
                }
                self.write();
            }
            Event::Deleted(pod) => {
                self.version = Some(pod.metadata.resource_version.0.clone());
                self.pods.remove(&pod.metadata.uid.0);
                self.write();
            }
        }
    }

    fn write(&mut self) {
        let text = self.rules.text(&self.choice, &self.pods);
        match self.file.write(&text) {
            Ok(true) => log::info!("wrote the rules of {} pods", self.pods.len()),
            Ok(false) => {}
            // The next change of a pod, or the next list, tries again.
            Err(error) => log::error!("{error}; the former rules stay in effect"),
        }
    }

    /// Reports a failure; returns the pause before the next attempt.
    fn failed(&mut self, error: &Error) -> Duration {
        let wait = PAUSE.saturating_mul(1 << self.failures.min(6)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        log::warn!("{error}; the last rules stay in effect, and the next attempt is in {} s", wait.as_secs());
        wait
    }
}

/// Keeps a pod, if the limit allows another one.
fn keep(pods: &mut BTreeMap<String, Pod>, pod: Pod) -> bool {
    let uid = &pod.metadata.uid.0;
    if pods.len() >= PODS_MAX && !pods.contains_key(uid) {
        return false;
    }
    pods.insert(uid.clone(), pod);
    true
}
