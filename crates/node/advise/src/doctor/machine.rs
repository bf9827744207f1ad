//! How the machine was booted, and where this program runs: cgroup hierarchies, lockdown, namespaces, pressure stall information.

use kernel::capability::{self, Capability, Lockdown};
use kernel::cgroup::CgroupRoot;
use kernel::{Roots, file, psi, taskstats};

use super::check::{Boot, Check, Rank, Status, check, from_error, from_result};

/// Inode numbers of the first namespaces (`include/linux/proc_ns.h`): a process in another one is in a container.
const FIRST_NAMESPACES: [(&str, &str); 2] = [("pid", "pid:[4026531836]"), ("cgroup", "cgroup:[4026531835]")];

/// Parameters of the kernel's command line.
fn parameters(roots: &Roots) -> Vec<String> {
    let text = file::read(&roots.proc.join("cmdline"), file::LARGE).unwrap_or_default();
    text.split_ascii_whitespace().map(ToOwned::to_owned).collect()
}

/// A boot with a parameter, and without what is there of the same name.
fn boot_with(roots: &Roots, parameter: &str) -> Boot {
    let name = parameter.split('=').next().unwrap_or(parameter);
    let same = |given: &String| given.split('=').next() == Some(name) && given != parameter;
    Boot { add: vec![parameter.to_owned()], remove: parameters(roots).into_iter().filter(same).collect() }
}

/// Without delay accounting the agent cannot count what its jobs wait for in zswap.
pub(super) fn delays(roots: &Roots) -> Check {
    const NAME: &str = "task_delayacct";
    match taskstats::enabled(roots) {
        Ok(Some(true)) => check(NAME, Status::Ok, "the kernel counts what tasks wait for", ""),
        Ok(Some(false)) => {
            let remedy = "for what a job loses to far memory, before the jobs start (the agent's unit needs CAP_NET_ADMIN and AF_NETLINK in a drop-in):";
            let found = check(NAME, Status::Advice, "the kernel does not count what tasks wait for", remedy);
            found.with_commands(["sysctl kernel.task_delayacct=1"])
        }
        Ok(None) => check(NAME, Status::Advice, "the kernel has no delay accounting", "use a kernel with CONFIG_TASK_DELAY_ACCT"),
        Err(error) => from_error(NAME, &error),
    }
}

pub(super) fn privileges(roots: &Roots) -> Check {
    const NEEDED: [Capability; 3] = [Capability::SysAdmin, Capability::SysPtrace, Capability::SysNice];
    let found = match capability::credentials(roots) {
        Ok(own) => {
            let missing: Vec<_> = NEEDED.into_iter().filter(|&needed| !own.has(needed)).map(Capability::name).collect();
            if missing.is_empty() {
                return check("privileges", Status::Ok, "all required capabilities", "");
            }
            check("privileges", Status::Missing, format!("missing {}", missing.join(", ")), "run as root")
        }
        Err(error) => from_error("privileges", &error),
    };
    found.ranked(Rank::Blocks).with_commands(["sudo thermocline doctor"])
}

/// The cgroup v2 hierarchy, or which other hierarchies there are.
pub(super) fn cgroups(roots: &Roots) -> Check {
    let error = match CgroupRoot::probe(roots) {
        Ok(root) => return check("cgroup2", Status::Ok, format!("{} with {}", root.path().display(), root.controllers().join(" ")), ""),
        Err(error) => error,
    };
    // systemd mounts the hierarchies; without it, the kernel must not give the controllers to cgroup v1.
    let systemd = roots.root.join("run/systemd/system").is_dir();
    let mut boot = boot_with(roots, if systemd { "systemd.unified_cgroup_hierarchy=1" } else { "cgroup_no_v1=all" });
    let others = ["systemd.legacy_systemd_cgroup_controller", "cgroup_disable=memory"];
    boot.remove.extend(parameters(roots).into_iter().filter(|given| others.iter().any(|other| given.starts_with(other))));
    from_error("cgroup2", &error).ranked(Rank::Blocks).with_boot(boot)
}

/// Whether this program sees the machine, or a container only.
pub(super) fn container(roots: &Roots) -> Option<Check> {
    let own = |(kind, first): &(&'static str, &str)| {
        let link = std::fs::read_link(roots.proc.join("self/ns").join(kind)).ok()?;
        (link.to_string_lossy() != *first).then_some(*kind)
    };
    let namespaces: Vec<_> = FIRST_NAMESPACES.iter().filter_map(own).collect();
    // The root cgroup of the machine has no type; that of a container does.
    let below = roots.cgroup.join("cgroup.type").exists();
    if namespaces.is_empty() && !below {
        return None;
    }
    let remedy = "run it on the machine, or give the container the machine's processes and cgroups: --privileged --pid=host \
                  --cgroupns=host (Docker, Podman), hostPID: true and privileged: true (Kubernetes)";
    let found = match &namespaces[..] {
        [] => "in a container: only its own cgroup is visible".to_owned(),
        kinds => format!("in a container: its own namespaces of {}", kinds.join(" and ")),
    };
    // A private cgroup namespace with the machine's hierarchy mounted shows all cgroups.
    if namespaces == ["cgroup"] && !below {
        return Some(check("container", Status::Ok, "in a container that sees the machine's processes and cgroups", ""));
    }
    Some(check("container", Status::Missing, found, remedy).ranked(Rank::Blocks))
}

/// Kernel lockdown closes debugfs and tracefs, which the most exact trackers need.
pub(super) fn lockdown(roots: &Roots) -> Option<Check> {
    let (level, what) = match capability::lockdown(roots) {
        Ok(None) => return None,
        Ok(Some(Lockdown::None)) => return Some(check("lockdown", Status::Ok, "none", "")),
        Ok(Some(Lockdown::Integrity)) => ("integrity", "debugfs is read-only"),
        Ok(Some(Lockdown::Confidentiality)) => ("confidentiality", "debugfs and tracefs are closed"),
        Err(error) => return Some(from_error("lockdown", &error)),
    };
    let given: Vec<_> = parameters(roots).into_iter().filter(|given| given.starts_with("lockdown=")).collect();
    let found = format!("the kernel is locked down ({level}): {what}, and the tracker is less exact");
    if given.is_empty() {
        let remedy = "Secure Boot or the distribution's kernel locks it down; a kernel with idle page tracking needs no debugfs";
        return Some(check("lockdown", Status::Advice, found, remedy).ranked(Rank::Costs));
    }
    let boot = Boot { add: Vec::new(), remove: given };
    Some(check("lockdown", Status::Advice, found, "boot without the parameter").ranked(Rank::Costs).with_boot(boot))
}

pub(super) fn pressure(roots: &Roots) -> Check {
    let found = from_result("psi", &psi::memory(roots), "pressure stall information");
    if found.status == Status::Ok {
        return found;
    }
    found.ranked(Rank::Costs).with_boot(boot_with(roots, "psi=1"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn the_hierarchies_are_distinguished() {
        let found = |files: &[(&str, &str)]| {
            let (_keep, roots) = tree(files);
            cgroups(&roots)
        };
        let controllers = ("sys/fs/cgroup/unified/cgroup.controllers", "\n");
        let (v1, systemd) = (("sys/fs/cgroup/memory/tasks", "1\n"), ("run/systemd/system/x", ""));
        let line = ("proc/cmdline", "quiet systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=0 ro\n");
        let hybrid = found(&[controllers, v1, systemd, line]);
        assert!(hybrid.rank == Rank::Blocks && hybrid.found.contains("hybrid") && hybrid.found.contains("cgroup/unified"), "{hybrid:?}");
        let boot = hybrid.boot.unwrap();
        assert_eq!(boot.add, ["systemd.unified_cgroup_hierarchy=1"]);
        assert_eq!(boot.remove, ["systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=0"]);
        let legacy = found(&[v1]);
        assert!(legacy.found.contains("cgroup v1 only") && legacy.boot.unwrap().add == ["cgroup_no_v1=all"]);
        assert_eq!(found(&[("sys/fs/cgroup/cgroup.controllers", "memory\n")]).status, Status::Ok);
    }

    #[test]
    fn lockdown_by_a_parameter_has_a_remedy() {
        let found = |level: &str, line: &str| {
            let (_keep, roots) = tree(&[("sys/kernel/security/lockdown", level), ("proc/cmdline", line)]);
            lockdown(&roots).unwrap()
        };
        assert_eq!(found("[none] integrity confidentiality\n", "").status, Status::Ok);
        let locked = found("none [integrity] confidentiality\n", "quiet lockdown=integrity\n");
        assert_eq!((locked.rank, locked.boot.unwrap().remove), (Rank::Costs, vec!["lockdown=integrity".to_owned()]));
        assert!(found("none integrity [confidentiality]\n", "quiet\n").remedy.contains("Secure Boot"));
    }

    #[test]
    fn a_container_is_recognized_by_its_namespaces() {
        let (keep, roots) = tree(&[("proc/self/ns/x", "")]);
        assert!(container(&roots).is_none());
        let link = |kind: &str, target: &str| std::os::unix::fs::symlink(target, keep.path().join("proc/self/ns").join(kind)).unwrap();
        link("cgroup", "cgroup:[4026532500]");
        assert_eq!(container(&roots).unwrap().status, Status::Ok);
        link("pid", "pid:[4026532501]");
        let found = container(&roots).unwrap();
        assert!(found.rank == Rank::Blocks && found.found.contains("pid and cgroup"), "{found:?}");
    }
}
