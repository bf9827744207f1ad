//! Cgroups of pods, as the kubelet names them (`pkg/kubelet/cm/cgroup_manager_linux.go`, `pod_container_manager_linux.go`).
//!
//! | driver | a Burstable pod |
//! |---|---|
//! | systemd | `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice`, with `_` for `-` in the UID |
//! | cgroupfs | `/kubepods/burstable/podUID` |
//!
//! Guaranteed pods lie directly below `kubepods`. The API server does not report the driver, so a pattern has both.

use crate::pod::{Qos, Uid};

/// The longest `--cgroup-root` that is accepted.
const ROOT_MAX: usize = 256;

/// The kubelet's `--cgroup-root`, in components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupRoot(Vec<String>);

impl CgroupRoot {
    /// Parses a path such as `/kubelet`; `/` and an empty text are the root.
    ///
    /// # Errors
    /// A sentence about what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let components: Vec<String> = text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if text.len() > ROOT_MAX || components.iter().any(|part| part.starts_with('.') || !part.chars().all(allowed)) {
            return Err(format!("{text:?} is no cgroup; write a path of letters, digits, '_', '-' and '.', such as /kubelet"));
        }
        Ok(Self(components))
    }

    /// The pattern of a pod's cgroup under both drivers. It has no character that matches more than itself, but for the braces.
    pub(crate) fn pod(&self, qos: Qos, uid: &Uid) -> String {
        let pod = format!("pod{uid}");
        let mut components: Vec<&str> = self.0.iter().map(String::as_str).collect();
        components.push("kubepods");
        components.extend(qos.component());
        components.push(&pod);
        format!("/{{{},{}}}", systemd(&components), components.join("/"))
    }
}

/// A slice, inside the slices that its name implies.
fn systemd(components: &[&str]) -> String {
    let mut name = String::new();
    let mut path = Vec::new();
    for component in components {
        if !name.is_empty() {
            name.push('-');
        }
        name += &component.replace('-', "_");
        path.push(format!("{name}.slice"));
    }
    path.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_cgroup_that_the_kubelet_gives_it() {
        const UID: &str = "3f1d9c1e-55aa-4b0e-9a4f-0c8a6c1b7d21";
        let check = |root: &str, qos, systemd: &str, cgroupfs: &str| {
            let found = CgroupRoot::parse(root).unwrap().pod(qos, &Uid::parse(UID).unwrap());
            assert_eq!(found, format!("/{{{systemd},{cgroupfs}}}"));
        };
        check(
            "",
            Qos::Burstable,
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod3f1d9c1e_55aa_4b0e_9a4f_0c8a6c1b7d21.slice",
            "kubepods/burstable/pod3f1d9c1e-55aa-4b0e-9a4f-0c8a6c1b7d21",
        );
        check(
            "/",
            Qos::Guaranteed,
            "kubepods.slice/kubepods-pod3f1d9c1e_55aa_4b0e_9a4f_0c8a6c1b7d21.slice",
            "kubepods/pod3f1d9c1e-55aa-4b0e-9a4f-0c8a6c1b7d21",
        );
        check(
            "/kubelet",
            Qos::BestEffort,
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
             kubelet-kubepods-besteffort-pod3f1d9c1e_55aa_4b0e_9a4f_0c8a6c1b7d21.slice",
            "kubelet/kubepods/besteffort/pod3f1d9c1e-55aa-4b0e-9a4f-0c8a6c1b7d21",
        );
    }

    #[test]
    fn a_cgroup_root_holds_no_pattern() {
        for text in ["/a*", "/{a,b}", "/a/../b", "/a b", "/ä", &"/a".repeat(200)] {
            assert!(CgroupRoot::parse(text).is_err(), "{text}");
        }
    }
}
