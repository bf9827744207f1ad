use super::*;

const FAR: Far = Far { swap: true, compressed: true, has_zswap: true };
const ZSWAP_OFF: Far = Far { compressed: false, ..FAR };

fn observed(jobs: &[(&str, u64, Option<u64>)]) -> Observation {
    let job = |&(job, memory, saving): &(&str, u64, Option<u64>)| ObservedJob {
        job: job.to_owned(),
        memory_bytes: Bytes::mib(memory),
        could_save_bytes: saving.map(Bytes::mib),
        could_save_at_most_bytes: None,
    };
    Observation { jobs: jobs.iter().map(job).collect() }
}

fn proposed(text: &str, jobs: &[(&str, u64, Option<u64>)], far: Far) -> Proposal {
    let config = Config::from_str("test", text).unwrap();
    propose(&Roots::under(std::path::Path::new("/nowhere")), text, &config, &observed(jobs), far).unwrap()
}

/// The class of a job under a proposal.
fn class_of(proposal: &Proposal, job: &str) -> Option<Class> {
    let config = Config::from_str("test", &proposal.text).unwrap();
    let roots = Roots::under(std::path::Path::new("/nowhere"));
    let found = Rules::new(&config).unwrap().find(&roots, &[job.to_owned()]);
    found.jobs.first().map(|found| found.treatment.class)
}

const REDIS: &str = "/system.slice/redis.service";
const SERIAL: &str = "/system.slice/system-serial\\x2dgetty.slice/serial-getty@ttyS0.service";
const OBSERVING: &str = "# All services.\n\n# The general rule.\n[[job]]\ncgroup = \"/system.slice/*.service\"\nclass = \"observe\"\n";

#[test]
fn jobs_that_could_save_get_rules_and_nothing_else_changes() {
    let proposal = proposed(OBSERVING, &[(REDIS, 100, Some(40)), ("/system.slice/cron.service", 3, Some(1))], FAR);
    let expected = "# All services.\n\n# Observed: could save 40.0 MiB of 100.0 MiB.\n[[job]]\ncgroup = \"/system.slice/redis.service\"\n\
                    class = \"standard\"\n\n# The general rule.\n[[job]]\ncgroup = \"/system.slice/*.service\"\nclass = \"observe\"\n";
    assert_eq!(proposal.text, expected);
    assert_eq!(
        (class_of(&proposal, REDIS), class_of(&proposal, "/system.slice/cron.service")),
        (Some(Class::Standard), Some(Class::Observe))
    );
    assert!(
        matches!(&proposal.remarks[..], [remark] if remark.contains("cron") && remark.contains("too little")),
        "{:?}",
        proposal.remarks
    );
    let again = proposed(&proposal.text, &[(REDIS, 100, Some(40))], FAR);
    assert_eq!((again.text, again.rules), (proposal.text, Vec::new()), "a second proposal changes nothing");
}

#[test]
fn a_bound_is_enough_for_a_rule_and_named_as_one() {
    let bounded = ObservedJob {
        job: REDIS.to_owned(),
        memory_bytes: Bytes::mib(100),
        could_save_bytes: None,
        could_save_at_most_bytes: Some(Bytes::mib(60)),
    };
    let roots = Roots::under(std::path::Path::new("/nowhere"));
    let config = Config::from_str("test", "").unwrap();
    let proposal = propose(&roots, "", &config, &Observation { jobs: vec![bounded] }, FAR).unwrap();
    assert!(proposal.text.contains("could save at most 60.0 MiB of 100.0 MiB"), "{}", proposal.text);
}

#[test]
fn an_empty_file_gets_rules_and_zswap() {
    let proposal = proposed("", &[(REDIS, 100, Some(40))], ZSWAP_OFF);
    assert!(proposal.manages_zswap && Config::from_str("test", &proposal.text).unwrap().zswap.manage, "{}", proposal.text);
    assert!(!proposal.text.starts_with('\n') && class_of(&proposal, REDIS) == Some(Class::Standard), "{}", proposal.text);
    assert!(!proposed("", &[(REDIS, 100, Some(0))], ZSWAP_OFF).manages_zswap, "nothing is to be offloaded");
    let refused = proposed("[zswap]\nmanage = false\n", &[(REDIS, 100, Some(40))], ZSWAP_OFF);
    assert!(!refused.manages_zswap && refused.remarks.iter().any(|remark| remark.contains("zswap.manage = false")), "{refused:?}");
    let extended = proposed("[zswap]\nmax_pool = \"20%\"\n", &[(REDIS, 100, Some(40))], ZSWAP_OFF);
    assert!(Config::from_str("test", &extended.text).unwrap().zswap.manage, "{}", extended.text);
    let none = proposed("", &[(REDIS, 100, Some(40))], Far::default());
    assert!(!none.manages_zswap && none.remarks.iter().any(|remark| remark.contains("no swap")), "{none:?}");
}

#[test]
fn what_the_operator_decided_stays() {
    for class in ["off", "conservative"] {
        let text = format!("[[job]]\ncgroup = \"{REDIS}\"\nclass = \"{class}\"\n");
        let proposal = proposed(&text, &[(REDIS, 100, Some(40))], FAR);
        assert_eq!((proposal.text, proposal.rules), (text, Vec::new()));
        assert!(proposal.remarks[0].contains(&format!("class {class}")), "{:?}", proposal.remarks);
    }
}

#[test]
fn rules_outlive_the_names_of_containers_and_machines() {
    let container = |pod: &str, id: u32| format!("/kubepods.slice/{pod}.slice/cri-containerd-{id}.scope");
    let (one, two) = (
        container("kubepods-burstable.slice/kubepods-burstable-pod1", 1),
        container("kubepods-besteffort.slice/kubepods-besteffort-pod2", 2),
    );
    let guaranteed = container("kubepods-pod3", 3);
    let vm = "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope";
    let saw = [
        (one.as_str(), 100, Some(20)),
        (&two, 100, Some(10)),
        (&guaranteed, 100, Some(90)),
        (vm, 1000, Some(300)),
        (SERIAL, 100, Some(50)),
    ];
    let proposal = proposed("", &saw, FAR);
    let classes =
        [&one, &two, &guaranteed, "/machine.slice/machine-qemu\\x2d7\\x2dother.scope", SERIAL].map(|job| class_of(&proposal, job));
    let expected = [Some(Class::Standard), Some(Class::Standard), None, Some(Class::Conservative), Some(Class::Standard)];
    assert_eq!(classes, expected, "{}", proposal.text);
    assert_eq!(proposal.rules.len(), 3);
    assert!(proposal.remarks.iter().any(|remark| remark.contains("Guaranteed")));
    let unknown = proposed("", &[(REDIS, 100, None)], FAR);
    assert!(unknown.rules.is_empty() && unknown.remarks[0].contains("not known yet"));
}
