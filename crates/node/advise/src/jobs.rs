//! The jobs of a machine without configuration: services, containers and virtual machines, recognized by the names that their managers
//! give to cgroups.
//!
//! The names are those of systemd, Docker, containerd, CRI-O, Podman, nerdctl, LXC, libvirt and Proxmox, with the systemd driver and with
//! the cgroupfs driver. A container runtime's helper process (`conmon`) has a cgroup of its own and is no job.

use config::{Class, JobRule};
use globset::GlobBuilder;

/// What a job is to its manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// A virtual machine.
    VirtualMachine,
    /// A container.
    Container,
    /// A service of systemd.
    Service,
}

impl Sort {
    /// Its name in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::VirtualMachine => "virtual machine",
            Self::Container => "container",
            Self::Service => "service",
        }
    }
}

/// Cgroups that are no jobs: the agent itself, helpers of container runtimes, and sessions of users, whose services end with them.
const LEFT_OUT: [&str; 5] = [
    "/**/thermocline*.service",
    "/**/libpod-conmon-*.scope",
    "/**/crio-conmon-*.scope",
    "/user.slice/**/user@*.service",
    "/user.slice/**/*.service",
];

/// Patterns of cgroups that are jobs. An earlier one decides, so that a container in a service's slice is a container.
const PATTERNS: [(&str, Sort); 17] = [
    ("/machine.slice/machine-qemu*.scope", Sort::VirtualMachine),
    ("/machine/qemu-*.libvirt-qemu", Sort::VirtualMachine),
    ("/qemu.slice/*.scope", Sort::VirtualMachine),
    ("/**/cri-containerd-*.scope", Sort::Container),
    ("/**/crio-*.scope", Sort::Container),
    ("/**/docker-*.scope", Sort::Container),
    ("/**/libpod-*.scope", Sort::Container),
    ("/**/nerdctl-*.scope", Sort::Container),
    ("/docker/*", Sort::Container),
    ("/libpod_parent/libpod-*", Sort::Container),
    ("/kubepods/**/pod*/*", Sort::Container),
    ("/machine.slice/machine-lxc*.scope", Sort::Container),
    ("/machine.slice/systemd-nspawn@*.service", Sort::Container),
    ("/lxc/*", Sort::Container),
    ("/lxc.payload.*", Sort::Container),
    ("/system.slice/**/*.service", Sort::Service),
    ("/*.slice/**/*.service", Sort::Service),
];

/// Rules that observe every service, container and virtual machine.
#[must_use]
pub fn rules() -> Vec<JobRule> {
    let left_out = LEFT_OUT.iter().map(|pattern| JobRule::new(*pattern, Class::Off));
    left_out.chain(PATTERNS.iter().map(|(pattern, _)| JobRule::new(*pattern, Class::Observe))).collect()
}

/// The pattern that a cgroup matches, and what such a job is; `None` if it is not recognized.
#[must_use]
pub fn recognize(path: &str) -> Option<(&'static str, Sort)> {
    let matches = |pattern: &str| {
        let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
        glob.is_ok_and(|glob| glob.compile_matcher().is_match(path))
    };
    if LEFT_OUT.iter().any(|pattern| matches(pattern)) {
        return None;
    }
    PATTERNS.iter().find(|(pattern, _)| matches(pattern)).copied()
}

#[cfg(test)]
mod tests {
    use agent::discover::Rules;
    use config::Config;
    use kernel::Roots;

    use super::*;

    const ID: &str = "8f1f0a5c1d6b4c7e9a3b2d4f6e8c0a1b3d5f7e9c1b3a5d7f9e1c3b5a7d9f1e3c";

    /// The jobs among cgroups as their managers name them, and those that are none.
    #[test]
    fn jobs_are_found_by_the_names_of_their_managers() {
        let container = |prefix: &str| format!("{prefix}{ID}.scope");
        let jobs = [
            ("/system.slice/redis-server.service".to_owned(), Sort::Service),
            ("/system.slice/system-postgresql.slice/postgresql@17-main.service".to_owned(), Sort::Service),
            ("/web.slice/nginx.service".to_owned(), Sort::Service),
            (container("/system.slice/docker-"), Sort::Container),
            (format!("/docker/{ID}"), Sort::Container),
            (container("/machine.slice/libpod-"), Sort::Container),
            (container("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-"), Sort::Container),
            (container("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-"), Sort::Container),
            (container("/kubepods.slice/kubepods-pod2.slice/crio-"), Sort::Container),
            (format!("/kubepods/besteffort/pod3/{ID}"), Sort::Container),
            ("/lxc.payload.web".to_owned(), Sort::Container),
            ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope".to_owned(), Sort::VirtualMachine),
            ("/machine/qemu-1-vm.libvirt-qemu".to_owned(), Sort::VirtualMachine),
            ("/qemu.slice/100.scope".to_owned(), Sort::VirtualMachine),
        ];
        let others = [
            "/init.scope".to_owned(),
            "/system.slice".to_owned(),
            "/thermocline.slice/thermocline-agent.service".to_owned(),
            container("/machine.slice/libpod-conmon-"),
            container("/kubepods.slice/kubepods-pod2.slice/crio-conmon-"),
            "/user.slice/user-1000.slice/session-2.scope".to_owned(),
            "/user.slice/user-1000.slice/user@1000.service".to_owned(),
            "/user.slice/user-1000.slice/user@1000.service/app.slice/gpg-agent.service".to_owned(),
        ];
        for (path, sort) in &jobs {
            assert_eq!(recognize(path).map(|(_, sort)| sort), Some(*sort), "{path}");
        }
        let mut cgroups: Vec<String> = jobs.iter().map(|(path, _)| path.clone()).collect();
        let expected: Vec<String> = cgroups.clone();
        for path in others {
            assert_eq!(recognize(&path), None, "{path}");
            cgroups.push(path);
        }
        let config = Config { jobs: rules(), ..Config::default() };
        let found = Rules::new(&config).unwrap().find(&Roots::host(), &cgroups);
        assert_eq!(found.jobs.iter().map(|found| found.path.clone()).collect::<Vec<_>>(), expected);
        assert_eq!(found.troubles, []);
    }
}
