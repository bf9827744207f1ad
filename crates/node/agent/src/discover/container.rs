//! Names and annotations of containers, from the configuration that their runtime wrote.
//!
//! | runtime | cgroup | file | name of the container |
//! |---|---|---|---|
//! | containerd | `cri-containerd-ID.scope` | `/run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json` | `io.kubernetes.cri.container-name` |
//! | CRI-O | `crio-ID.scope` | `/run/containers/storage/overlay-containers/ID/userdata/config.json` | `io.kubernetes.container.name` |
//!
//! Both files follow the OCI runtime specification (`config.md`, "Annotations"). They are written before the container starts and
//! do not change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use kernel::{Roots, file};
use serde::Deserialize;

/// The longest configuration of a container that is read.
const CONFIG_MAX: u64 = 4 << 20;

/// The longest id of a container.
const ID_MAX: usize = 64;

/// Containers whose annotations are kept.
const KNOWN_MAX: usize = 10_000;

/// A runtime: how it names cgroups, where it keeps a container's configuration, and the annotation with the name.
struct Runtime {
    prefix: &'static str,
    directory: &'static str,
    file: &'static str,
    name: &'static str,
}

const RUNTIMES: [Runtime; 2] = [
    Runtime {
        prefix: "cri-containerd-",
        directory: "run/containerd/io.containerd.runtime.v2.task/k8s.io",
        file: "config.json",
        name: "io.kubernetes.cri.container-name",
    },
    Runtime {
        prefix: "crio-",
        directory: "run/containers/storage/overlay-containers",
        file: "userdata/config.json",
        name: "io.kubernetes.container.name",
    },
];

/// One container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name in its pod; `None` for a pod's own sandbox.
    pub name: Option<String>,
    /// Its annotations that rules use.
    pub annotations: BTreeMap<String, String>,
}

/// The containers of the machine, each read once.
#[derive(Debug, Default)]
pub struct Containers {
    /// The keys of annotations that rules use.
    keys: BTreeSet<String>,
    /// By cgroup. A path always names the same container, because runtimes do not reuse ids. `None` if its configuration could
    /// not be read; the next scan tries again.
    known: HashMap<String, Option<Container>>,
}

/// The part of a container's configuration that is read.
#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Containers {
    /// Containers of which annotations with these keys are kept.
    #[must_use]
    pub fn new(keys: BTreeSet<String>) -> Self {
        Self { keys, known: HashMap::new() }
    }

    /// The container of a cgroup; `None` if it has none. An error of reading is added to `errors`, once.
    pub fn of(&mut self, roots: &Roots, cgroup: &str, errors: &mut Vec<(String, String)>) -> Option<&Container> {
        let (runtime, id) = runtime_and_id(cgroup)?;
        let before = self.known.get(cgroup).map(Option::is_some);
        if before != Some(true) && (before.is_some() || self.known.len() < KNOWN_MAX) {
            let path = roots.root.join(runtime.directory).join(id).join(runtime.file);
            let read = self.read(runtime, &path);
            if let Err(what) = &read
                && before.is_none()
            {
                errors.push((cgroup.to_owned(), format!("rules by container or annotation cannot match it: {what}")));
            }
            self.known.insert(cgroup.to_owned(), read.ok());
        }
        self.known.get(cgroup)?.as_ref()
    }

    /// Drops the containers whose cgroups are not among these.
    pub fn keep(&mut self, cgroups: &[String]) {
        if self.known.is_empty() {
            return;
        }
        let listed: BTreeSet<&str> = cgroups.iter().map(String::as_str).collect();
        self.known.retain(|cgroup, _| listed.contains(cgroup.as_str()));
    }

    fn read(&self, runtime: &Runtime, path: &Path) -> Result<Container, String> {
        let text = file::read(path, CONFIG_MAX).map_err(|error| error.to_string())?;
        let configuration: Configuration = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut annotations = configuration.annotations;
        let name = annotations.remove(runtime.name);
        annotations.retain(|key, _| self.keys.contains(key));
        Ok(Container { name, annotations })
    }
}

/// The runtime and the id of a cgroup's container.
fn runtime_and_id(cgroup: &str) -> Option<(&'static Runtime, &str)> {
    let name = cgroup.rsplit('/').next()?.strip_suffix(".scope")?;
    let (runtime, id) = RUNTIMES.iter().find_map(|runtime| Some((runtime, name.strip_prefix(runtime.prefix)?)))?;
    // The id becomes part of a path. This check also excludes CRI-O's `crio-conmon-ID.scope`, the container's monitor.
    let fits = (1..=ID_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    fits.then_some((runtime, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn the_cgroup_of_a_container_is_recognized() {
        let check = |cgroup: &str, expected: Option<(&str, &str)>| {
            assert_eq!(runtime_and_id(cgroup).map(|(runtime, id)| (runtime.prefix, id)), expected, "{cgroup}");
        };
        check("/kubepods.slice/kubepods-pod1.slice/cri-containerd-0aF9.scope", Some(("cri-containerd-", "0aF9")));
        check("/kubepods.slice/crio-12.scope", Some(("crio-", "12")));
        check("/kubepods.slice/crio-12.scope/container", None);
        check("/kubepods.slice/crio-conmon-12.scope", None);
        check("/crio-.scope", None);
        check("/crio-...scope", None);
        check(&format!("/crio-{}.scope", "a".repeat(65)), None);
        check("/system.slice/docker-12.scope", None);
        check("/", None);
    }

    #[test]
    fn annotations_are_read_once_and_an_error_is_reported_once() {
        const CGROUP: &str = "/pods/cri-containerd-ab.scope";
        const FILE: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io/ab/config.json";
        let machine = Machine::new();
        let mut containers = Containers::new(BTreeSet::from(["example.com/tier".to_owned()]));
        let mut check = |text: Option<&str>, expected: Option<(Option<&str>, usize)>, reported: &[&str]| {
            if let Some(text) = text {
                machine.put(FILE, text);
            }
            let mut errors = Vec::new();
            let found = containers.of(&machine.roots, CGROUP, &mut errors);
            assert_eq!(found.map(|container| (container.name.as_deref(), container.annotations.len())), expected, "{text:?}");
            assert_eq!(errors.len(), reported.len(), "{errors:?}");
            assert!(errors.iter().zip(reported).all(|((cgroup, what), text)| cgroup == CGROUP && what.contains(text)), "{errors:?}");
        };
        check(None, None, &["config.json"]);
        check(Some("{\"annotations\": 7}"), None, &[]);
        let good = r#"{"ociVersion": "1.0.2", "annotations": {"example.com/tier": "batch", "more": "x", "io.kubernetes.cri.container-name": "proxy"}}"#;
        check(Some(good), Some((Some("proxy"), 1)), &[]);
        check(Some("{"), Some((Some("proxy"), 1)), &[]);
        containers.keep(&[CGROUP.to_owned()]);
        assert_eq!(containers.known.len(), 1);
        containers.keep(&["/pods".to_owned()]);
        let mut again = Vec::new();
        assert_eq!(containers.of(&machine.roots, CGROUP, &mut again), None, "the file is broken now");
        assert!(again[0].1.contains("line 1"), "{again:?}");
        machine.put("run/containers/storage/overlay-containers/cd/userdata/config.json", "{}");
        assert_eq!(containers.of(&machine.roots, "/crio-cd.scope", &mut again), Some(&Container::default()), "a sandbox has no name");
    }
}
