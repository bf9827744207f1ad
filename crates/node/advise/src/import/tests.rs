use super::*;

/// Imports a text; checks the program, the configuration, and what each lost setting begins with.
fn check(text: &str, program: Program, toml: &str, lost: &[&str]) {
    let imported = import(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((imported.program, imported.toml.as_str()), (program, toml));
    assert_eq!(imported.without_equivalent.len(), lost.len(), "{:?}", imported.without_equivalent);
    for (found, expected) in imported.without_equivalent.iter().zip(lost) {
        assert!(found.starts_with(expected), "{found} does not begin with {expected}");
    }
}

#[test]
fn senpai_in_oomd_becomes_pressure() {
    let text = r#"{"version": "1.0", "rulesets": [
        {"name": "memory", "detectors": [["x", {"name": "continue"}]],
         "actions": [{"name": "senpai", "args": {"cgroup": "workload.slice/*,system.slice/web.service", "interval": "5",
           "mem_pressure_pct": "0.1", "io_pressure_pct": "0.2", "max_probe": "0.01", "limit_min_bytes": "104857600",
           "memory_high_timeout_ms": "20"}}]},
        {"name": "swap", "actions": [{"name": "kill_by_swap_usage", "args": {"cgroup": "system.slice/*"}}]}]}"#;
    let toml = "[pressure]\nfloor = \"104857600B\"\nio_stall_target = \"0.2%\"\nperiod = \"5s\"\nstall_target = \"0.1%\"\nstep_max = \"1%\"\n\n\
                [[job]]\ncgroup = \"/workload.slice/*\"\nclass = \"standard\"\npolicy = \"pressure\"\n\n\
                [[job]]\ncgroup = \"/system.slice/web.service\"\nclass = \"standard\"\npolicy = \"pressure\"\n";
    check(text, Program::Oomd, toml, &["memory_high_timeout_ms = 20: memory is reclaimed", "ruleset \"swap\": it kills"]);
}

#[test]
fn the_script_senpai_becomes_pressure() {
    let text = "python3 senpai.py /sys/fs/cgroup/web.slice --interval 10 --pressure=10000 --max-size 100G\n";
    let toml = "[pressure]\nperiod = \"10s\"\nstall_target = \"0.1%\"\n\n[[job]]\ncgroup = \"/web.slice\"\nclass = \"standard\"\npolicy = \"pressure\"\n";
    check(text, Program::Senpai, toml, &["--max-size 100G: a job has no upper size"]);
}

#[test]
fn schemes_of_damo_become_rules() {
    let text = "kdamonds:\n- contexts:\n  - ops: paddr\n    targets: []\n    schemes:\n    - action: pageout\n      access_pattern:\n        age:\n          min: 2 m\n          max: max\n      quotas:\n        time_ms: 10 ms\n        sz_bytes: 64 MiB\n        reset_interval_ms: 1 s\n      filters:\n      - filter_type: memcg\n        memcg_path: /batch\n        matching: false\n      - filter_type: memcg\n        memcg_path: /critical\n        matching: true\n";
    let toml = "[agent]\ncpu_budget = \"1%\"\noffload_rate = \"64MiB/s\"\n\n[[job]]\ncgroup = \"/critical\"\nclass = \"off\"\n\n[[job]]\ncgroup = \"/batch\"\nclass = \"standard\"\npolicy = \"cold_age\"\n";
    check(text, Program::Damo, toml, &["age of at least 120s: the threshold is chosen"]);
    let list = r#"[{"action": "migrate_cold", "access_pattern": {"age": {"min": "30s"}}, "target_nid": 1}]"#;
    check(list, Program::Damo, "[[job]]\ncgroup = \"/system.slice/*.service\"\nclass = \"standard\"\npolicy = \"slowdown\"\n", &[]);
    assert!(matches!(import(r#"[{"action": "stat"}]"#), Err(ImportError::Nothing { lost }) if lost.len() == 1));
}

#[test]
fn memtierd_becomes_far_memory_or_placement() {
    let text = |place: &str| {
        format!(
            "policy:\n  name: age\n  config: |\n    intervalms: 5000\n    pidwatcher:\n      name: cgroups\n      config: |\n        cgroups:\n        - /sys/fs/cgroup/web.slice\n    {place}\n    tracker:\n      name: idlepage\n      config: |\n        pagesinregion: 256\n    mover:\n      intervalms: 20\n      bandwidth: 200\n"
        )
    };
    let job = |policy: &str| format!("\n[[job]]\ncgroup = \"/web.slice\"\nclass = \"standard\"\npolicy = \"{policy}\"\n");
    let swap = format!("[agent]\noffload_rate = \"200MiB/s\"\ntracker = \"page_idle\"\n{}", job("cold_age"));
    check(&text("swapoutms: 10000"), Program::Memtierd, &swap, &["intervalms", "swapoutms = 10000", "tracker.config", "mover.intervalms"]);
    let slow = format!("[agent]\ntracker = \"page_idle\"\n\n[slow]\nmove_rate = \"200MiB/s\"\nnode = \"2\"\n{}", job("slowdown"));
    check(&text("idlenumas: [2]"), Program::Memtierd, &slow, &["intervalms", "tracker.config", "mover.intervalms"]);
}

#[test]
fn katalyst_becomes_rules_by_annotation() {
    let text = "apiVersion: config.katalyst.kubewharf.io/v1alpha1\nkind: TransparentMemoryOffloadingConfiguration\nspec:\n  config:\n    qosLevelConfig:\n    - qosLevel: reclaimed_cores\n      configDetail:\n        enableTMO: true\n        enableSwap: true\n        interval: 30s\n        policyName: PSI\n        psiPolicy:\n          maxProbe: 0.01\n          psiAvg60Threshold: 0.1\n    - qosLevel: dedicated_cores\n      configDetail:\n        enableTMO: false\n";
    let job = |level: &str, rest: &str| {
        format!("\n[[job]]\ncgroup = \"/kubepods.slice/**\"\nannotation = \"katalyst.kubewharf.io/qos_level={level}\"\n{rest}")
    };
    let toml = format!(
        "[pressure]\nstall_target = \"0.1%\"\nstep_max = \"1%\"\n{}{}",
        job("reclaimed_cores", "class = \"aggressive\"\npolicy = \"pressure\"\n"),
        job("dedicated_cores", "class = \"off\"\n")
    );
    check(text, Program::Katalyst, &toml, &["qosLevel reclaimed_cores: interval", "annotations"]);
    let pod = "kind: Pod\nmetadata:\n  annotations:\n    katalyst.kubewharf.io/qos_level: shared_cores\n    katalyst.kubewharf.io/memory_enhancement: '{}'\n";
    check(
        pod,
        Program::Katalyst,
        job("shared_cores", "class = \"standard\"\n").trim_start(),
        &["katalyst.kubewharf.io/memory_enhancement", "annotations"],
    );
}

#[test]
fn other_files_are_refused_with_a_reason() {
    for (text, words) in [("", "empty"), ("a: [", "neither JSON nor YAML"), ("a: 1", "not recognized"), ("\u{0}", "")] {
        let error = import(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text:?}: {error}");
    }
}
