//! The protection of the configured jobs in effect.

use agent::discover::Rules;
use config::Config;
use kernel::Roots;
use kernel::cgroup::{self, Cgroup, CgroupRoot, Protected, ProtectionTree};

use super::check::{Check, Status, check};

/// Bounds of the listing, and of the jobs reported one by one.
const CGROUPS_MAX: usize = 100_000;
const REPORTED_MAX: usize = 8;

/// Reports for which jobs `memory.low` or `memory.min` is bounded by an ancestor's: the kernel then protects less than is
/// claimed, or nothing. Empty if no job claims anything.
#[must_use]
pub fn protection(roots: &Roots, config: &Config) -> Vec<Check> {
    let Ok(root) = CgroupRoot::probe(roots) else { return Vec::new() };
    let (Ok(listed), Ok(mut rules)) = (cgroup::list(&root, CGROUPS_MAX), Rules::new(config)) else { return Vec::new() };
    let recursive = cgroup::is_recursive(roots).unwrap_or(false);
    let mut tree = ProtectionTree::new(&root, recursive);
    let jobs = rules.find(roots, &listed).jobs;
    let found: Vec<(String, Protected)> = jobs
        .into_iter()
        .filter_map(|job| Some((tree.of(&Cgroup::open(&root, &job.path).ok()?).ok()?, job.path)))
        .map(|(protected, path)| (path, protected))
        .filter(|(_, protected)| protected.claimed.0 > 0)
        .collect();
    let bounded = |(_, protected): &&(String, Protected)| protected.effective < protected.claimed;
    let short: Vec<_> = found.iter().filter(bounded).collect();
    if short.is_empty() {
        let mount = if recursive { "memory_recursiveprot" } else { "no memory_recursiveprot" };
        let what = format!("{} jobs are protected by all they claim ({mount})", found.len());
        return if found.is_empty() { Vec::new() } else { vec![check("protection", Status::Ok, what, "")] };
    }
    let remedy = "set memory.low (MemoryLow=) of the slices above it, too, or have the agent do it: agent.protect_working_set = true";
    let describe = |(path, protected): &&(String, Protected)| {
        let what = format!("{path}: {} of {} claimed is in effect; its ancestors afford no more", protected.effective, protected.claimed);
        check("protection", Status::Advice, what, remedy)
    };
    let mut checks: Vec<Check> = short.iter().take(REPORTED_MAX).map(describe).collect();
    if short.len() > REPORTED_MAX {
        checks.push(check("protection", Status::Advice, format!("and {} more jobs", short.len() - REPORTED_MAX), remedy));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_ancestors_do_not_afford_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join("sys/fs/cgroup").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("cgroup.controllers", "memory\n");
        for name in ["system.slice", "system.slice/redis.service"] {
            put(&format!("{name}/memory.current"), "4194304\n");
            put(&format!("{name}/memory.low"), "0\n");
            put(&format!("{name}/memory.min"), "0\n");
        }
        let roots = Roots::under(dir.path());
        let config = Config::from_str("test", "[[job]]\ncgroup = \"/system.slice/*.service\"\nclass = \"standard\"\n").unwrap();
        let found = || protection(&roots, &config).into_iter().map(|check| (check.status, check.found)).collect::<Vec<_>>();
        assert_eq!(found(), [], "nothing is claimed");
        put("system.slice/redis.service/memory.low", "2097152\n");
        let what = "/system.slice/redis.service: 0 B of 2.0 MiB claimed is in effect; its ancestors afford no more";
        assert_eq!(found(), [(Status::Advice, what.to_owned())]);
        put("system.slice/memory.low", "2097152\n");
        assert_eq!(found(), [(Status::Ok, "1 jobs are protected by all they claim (no memory_recursiveprot)".to_owned())]);
    }
}
