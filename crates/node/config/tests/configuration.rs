//! Configurations as users write them: their values, and the problems that are reported.

#![expect(clippy::panic, reason = "a failed test")]

use std::fs;
use std::time::Duration;

use config::{AtLimit, Class, Config, JobRule, Kind, Policy, Problems, Scale, Tier, Tracker, Value, example_toml, knob, knobs};
use units::{Bytes, Millis, RatioPpm};

const GOOD: &str = r#"
[agent]
scan_period = "1m30s"
cpu_budget = 0.05
journal_files = 0x10
protect_working_set = false
at_limit = "fail_fast"
metrics_listen = "[::1]:9180"

[cold_age]
percentile = "98.5%"

[background]
settle = "2s500ms"

[class.aggressive]
warmup = "0s"

[zswap]
manage = true
compressor = "zstd"
max_pool = "20%"

[[job]]
cgroup = "/system.slice/redis.service"
class = "conservative"
policy = "auto"
tier = "both"
tracker = "page_idle"

[[job]]
cgroup = '/system.slice/*.service'

[[job]]
cgroup = "/proxy"
kind = "application_tax"

[[job]]
container = "*-exporter"
annotation = "example.com/tier=batch*"
class = "off"
"#;

/// The line of a problem, and parts of its message.
type Expected<'a> = (usize, &'a [&'a str]);

/// Checks that `text` is refused with exactly the problems `expected`, in that order.
fn check_refused(text: &str, expected: &[Expected]) {
    let problems = match Config::from_str("test.toml", text) {
        Ok(_) => panic!("taken:\n{text}"),
        Err(Problems(problems)) => problems,
    };
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), expected.len(), "{text}\n{shown:#?}");
    for (problem, (line, parts)) in shown.iter().zip(expected) {
        let mut rest = problem.as_str();
        let place = format!("test.toml, line {line}: ");
        for part in std::iter::once(&place.as_str()).chain(*parts) {
            let Some((_, after)) = rest.split_once(part) else { panic!("{part:?} is missing in {problem:?}") };
            rest = after;
        }
    }
}

#[test]
fn a_configuration_is_read() {
    let config = Config::from_str("test.toml", GOOD).unwrap();
    assert_eq!(config.agent.scan_period, Duration::from_secs(90));
    assert_eq!(config.agent.control_period, Duration::from_secs(60), "untouched");
    assert_eq!(config.agent.cpu_budget, RatioPpm(50_000));
    assert_eq!(config.agent.journal_files, 16);
    assert!(!config.agent.protect_working_set);
    assert_eq!(config.agent.at_limit, AtLimit::FailFast);
    assert_eq!(config.agent.metrics_listen, Some("[::1]:9180".parse().unwrap()));
    assert_eq!(config.agent.offload_rate, Bytes::mib(64));
    assert_eq!(config.zswap.max_pool, RatioPpm(200_000));
    assert_eq!(config.cold_age.params().warmup_ms, Millis(600_000));
    assert_eq!(config.incompressible.params().ratio_max, RatioPpm(730_000));
    let background = config.background.params();
    assert_eq!((background.settle_ms, background.idle_ms, background.pressure_max), (Millis(2_500), Millis::ZERO, RatioPpm(10_000)));
    let rule = JobRule::new;
    let redis = JobRule {
        policy: Some(Policy::Auto),
        tier: Some(Tier::Both),
        tracker: Some(Tracker::PageIdle),
        ..rule("/system.slice/redis.service", Class::Conservative)
    };
    let proxy = JobRule { kind: Kind::ApplicationTax, ..rule("/proxy", Class::Aggressive) };
    let exporter = JobRule {
        container: Some("*-exporter".to_owned()),
        annotation: Some("example.com/tier=batch*".to_owned()),
        ..rule("/**", Class::Off)
    };
    assert_eq!(config.jobs, [redis, rule("/system.slice/*.service", Class::Observe), proxy, exporter]);
}

#[test]
fn bounds_of_slow_memory_belong_to_a_rule() {
    let text = "[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\npolicy = \"slowdown\"\nfast_min = \"1GiB\"\nfast_share_min = \"20%\"\n\
                slow_max = \"512MiB\"\nslow_weight = 300\n[[job]]\ncgroup = \"/b\"\n";
    let config = Config::from_str("test.toml", text).unwrap();
    let bounds = config.jobs[0].slow_bounds();
    assert_eq!((bounds.fast_min, bounds.fast_share_min, bounds.slow_max), (Bytes::gib(1), RatioPpm(200_000), Some(Bytes::mib(512))));
    assert_eq!((config.jobs[0].slow_weight(), config.jobs[1].slow_weight()), (300, 100));
    assert!(config.jobs[1].slow_bounds().is_none(), "without a key nothing is bounded");
    assert_eq!(Config::from_str("written.toml", &config.to_toml()).unwrap(), config);
    let json = serde_json::to_value(&config.jobs[0]).unwrap();
    assert_eq!((&json["fast_min"], &json["fast_share_min"], &json["slow_weight"]), (&"1GiB".into(), &"20%".into(), &300.into()));
    check_refused(
        "[[job]]\ncgroup = \"/a\"\npolicy = \"auto\"\nslow_max = \"1GiB\"\n",
        &[(4, &["slow_max", "no effect under policy auto", "policy = \"slowdown\""])],
    );
    check_refused("[[job]]\ncgroup = \"/a\"\nfast_share_min = \"120%\"\n", &[(3, &["fast_share_min", "out of range", "0% to 100%"])]);
    check_refused("[[job]]\ncgroup = \"/a\"\nslow_weight = 0\n", &[(3, &["slow_weight", "out of range", "1 to 10000"])]);
}

#[test]
fn classes_change_the_cold_age_knobs() {
    let config = Config::from_str("test.toml", GOOD).unwrap();
    for (class, rate, percentile, warmup) in [
        (Class::Off, 2000, 985_000, 600),
        (Class::Observe, 2000, 985_000, 600),
        (Class::Conservative, 500, 995_000, 1800),
        (Class::Standard, 2000, 985_000, 600),
        (Class::Aggressive, 10_000, 950_000, 0),
    ] {
        let found = config.cold_age_for(class);
        assert_eq!((found.promotion_rate, found.percentile), (RatioPpm(rate), RatioPpm(percentile)), "{class}");
        assert_eq!((found.warmup, found.thresholds), (Duration::from_secs(warmup), 32), "{class}");
    }
}

#[test]
fn every_problem_is_reported_with_its_line_and_remedy() {
    check_refused(
        "[agent]\nscan_perod = \"1s\"\ncontrol_period = 60\ncpu_budget = \"200%\"\njobs_max = \"7\"\n\n[cold_age]\npercentile = 98\n",
        &[
            (2, &["agent.scan_perod = \"1s\"", "unknown key", "perhaps agent.scan_period is meant"]),
            (3, &["agent.control_period = 60", "needs a unit", "\"60s\""]),
            (4, &["\"200%\"", "out of range", "0.1% to 100%", "default 10%"]),
            (5, &["not a number", "jobs_max = 1000"]),
            (8, &["cold_age.percentile = 98", "\"98%\""]),
        ],
    );
}

#[test]
fn each_kind_of_mistake_has_a_message() {
    let cases: &[(&str, &[Expected])] = &[
        ("scan_period = \"1s\"", &[(1, &["scan_period", "perhaps agent.scan_period"])]),
        ("agent = 5", &[(1, &["agent = 5", "a table", "[agent]"])]),
        ("[agent.scan_period]\nx = 1", &[(1, &["not a duration", "scan_period = \"120s\""])]),
        ("[agent]\nscan_period = 2024-01-01", &[(2, &["2024-01-01", "not a duration"])]),
        ("[agent]\nscan_period = [\"1s\"]", &[(2, &["[...]", "not a duration"])]),
        ("[agent]\nscan_period = \"1ms\"", &[(2, &["out of range", "100ms to 1h"])]),
        ("[agent]\nprotect_working_set = \"true\"", &[(2, &["not a true or false", "= true"])]),
        ("[agent]\nprotect_working_set = 1", &[(2, &["protect_working_set = true"])]),
        ("[agent]\njobs_max = -1", &[(2, &["-1", "not a whole number", "1000"])]),
        ("[agent]\njobs_max = 99999999999999999999999", &[(2, &["not a whole number"])]),
        ("[agent]\njobs_max = 0", &[(2, &["1 to 10000"])]),
        ("[agent]\ntracker = \"kstaled\"", &[(2, &["not a choice", "auto, page_idle, sampled_frames, sampled, lru_gen, damon"])]),
        ("[agent]\ntracker = true", &[(2, &["not a choice", "tracker = \"auto\""])]),
        ("[agent]\nstate_dir = \"var\"", &[(2, &["not an absolute path"])]),
        ("[agent]\nstate_dir = \"/var/../etc\"", &[(2, &["without .."])]),
        ("[agent]\nmetrics_listen = \"0.0.0.0:9180\"", &[(2, &["other machines", "127.0.0.1"])]),
        ("[agent]\nmetrics_listen = \"localhost\"", &[(2, &["not an address", "\"127.0.0.1:9180\""])]),
        ("[zswap]\nmax_pool = \"0.5%\"", &[(2, &["whole number of percent"])]),
        ("[zswap]\ncompressor = \"../x\"", &[(2, &["not a word"])]),
        ("[zswap]\ncompressor = 4", &[(2, &["not a word", "compressor = \"auto\""])]),
        ("[class.standard]\nwarmup = \"1s\"", &[(2, &["[cold_age]"])]),
        ("[class.observe]\nwarmup = \"1s\"", &[(2, &["no parameters"])]),
        ("[class.agressive]\nwarmup = \"1s\"", &[(2, &["class.aggressive.warmup"])]),
        ("[class.aggressive]\nthresholds = 3", &[(2, &["unknown key", "promotion_rate, percentile, warmup"])]),
        (
            "[foo]",
            &[(
                1,
                &["foo = {...}", "unknown key", "agent, cold_age, pressure, background, tier, swap, writeback, slow, class.conservative"],
            )],
        ),
        ("[foo.bar]\na = 1\nb.c = 2", &[(2, &["foo.bar.a"]), (3, &["foo.bar.b.c"])]),
        ("\"agent.scan_period\" = \"nonsense\"", &[(1, &["agent.scan_period", "not a duration"])]),
        ("[job]\ncgroup = \"/a\"", &[(1, &["[[job]]"])]),
        ("job = [1]", &[(1, &["[[job]]"])]),
        ("[[job]]\nclass = \"standard\"", &[(1, &["job.cgroup", "missing", "cgroup = "])]),
        ("[[job]]\ncgroup = \"a\"\nclas = \"off\"", &[(2, &["start it with /"]), (3, &["job.clas", "perhaps job.class"])]),
        ("[[job]]\ncgroup = \"/a\"\nclass = \"best\"", &[(3, &["off, observe, conservative, standard, aggressive"])]),
        ("[[job]]\ncgroup = \"/a\"\n[[job]]\ncgroup = \"/a\"", &[(4, &["never reached", "line 1"])]),
        ("[agent]\nscan_period = \"\\u001b[31m\"", &[(2, &["\"\\u{1b}[31m\"", "not a duration"])]),
    ];
    for (text, expected) in cases {
        check_refused(text, expected);
    }
}

#[test]
fn syntax_errors_are_reported_with_their_lines() {
    check_refused("[agent\nscan_period = \"1s\"", &[(1, &["not TOML"])]);
    check_refused("[agent]\nscan_period = 120s\n\n[cold_age]\npercentile = \"98%\n", &[(2, &["not TOML"]), (5, &["not TOML"])]);
    check_refused("[agent]\njobs_max = 1\njobs_max = 2", &[(3, &["not TOML", "duplicate"])]);
}

#[test]
fn no_text_causes_a_panic() {
    for text in [GOOD.to_owned(), example_toml(), Config::default().to_toml()] {
        let text = text.as_bytes();
        for end in 0..text.len() {
            let _ = Config::from_str("cut.toml", &String::from_utf8_lossy(&text[..end]));
        }
    }
    // Each byte of a small file is replaced by bytes that are significant to one of the parsers.
    let text = GOOD.as_bytes();
    for at in 0..text.len() {
        for byte in *b"\0\n\"'\\[]{}.=%#-9e_/\xff" {
            let mut changed = text.to_vec();
            changed[at] = byte;
            if let Err(problems) = Config::from_str("changed.toml", &String::from_utf8_lossy(&changed)) {
                assert!(!problems.0.is_empty() && !problems.to_string().is_empty());
            }
        }
    }
    let deep = "a.".repeat(100_000) + "b = 1";
    assert!(Config::from_str("deep.toml", &deep).is_err());
    assert!(Config::from_str("nested.toml", &format!("a = {}", "[".repeat(100_000))).is_err());
}

#[test]
fn the_effective_configuration_reads_back() {
    let job = "\n[[job]]\ncgroup = '/a\"b\\\\x'\nclass = \"off\"\n";
    for text in ["", GOOD, &format!("{GOOD}{job}")] {
        let config = Config::from_str("test.toml", text).unwrap();
        let printed = config.to_toml();
        assert_eq!(Config::from_str("printed.toml", &printed), Ok(config), "{printed}");
    }
    assert!(Config::default().to_toml().contains("\nscan_period = \"120s\"\n"), "defaults are written as the table has them");
}

#[test]
fn the_example_shows_the_defaults() {
    let example = example_toml();
    assert_eq!(Config::from_str("example.toml", &example), Ok(Config::default()));
    // A line that sets a key starts with # and a letter, a comment with # and a space.
    let active: String =
        example.lines().map(|line| if line.starts_with("# ") { "" } else { line.trim_start_matches('#') }.to_owned() + "\n").collect();
    let config = Config::from_str("active.toml", &active).unwrap();
    assert_eq!(config.jobs.len(), 3);
    assert_eq!(Config { jobs: Vec::new(), ..config }, Config::default());
}

#[test]
fn every_knob_accepts_its_range_and_nothing_beyond() {
    for knob in knobs() {
        assert_eq!(Config::default().get(knob.key), Some(knob.parse(knob.default).unwrap()), "{}", knob.key);
        let Some((low, high)) = knob.range else { continue };
        for text in [low, high] {
            let value = knob.parse(text).unwrap();
            let set = [(knob.key.to_owned(), text.to_owned())];
            let config = Config::load(Some(std::path::Path::new("/dev/null")), &set).unwrap();
            assert_eq!(config.get(knob.key), Some(value), "{}", knob.key);
        }
        let number = |text: &str| knob.parse(text).unwrap().as_number().unwrap();
        if let Some(search) = knob.search {
            assert!(number(search.low) < number(search.high), "{}", knob.key);
            let default = number(knob.default);
            // A default at the lower bound of 0 is "off", which is searched in addition to the range.
            let within = number(search.low) <= default && default <= number(search.high) || default == 0.0 && knob.default == low;
            assert!(within, "{}: the default is not in the search range", knob.key);
            assert!(search.scale != Scale::Log || number(search.low) > 0.0, "{}: a logarithmic scale starts above 0", knob.key);
            assert!(search.scale != Scale::Tail || number(search.high) < 1.0, "{}: a tail scale ends below 100 %", knob.key);
        }
        let beyond = match knob.parse(high).unwrap() {
            Value::Duration(value) => Value::Duration(value + Duration::from_millis(1)),
            Value::Bytes(value) => Value::Bytes(value + Bytes(1)),
            Value::BytesPerSecond(value) => Value::BytesPerSecond(value + Bytes(1)),
            Value::Ratio(RatioPpm(ppm)) => Value::Ratio(RatioPpm(ppm + 10_000)),
            Value::Count(value) => Value::Count(value + 1),
            other => panic!("{}: {other:?} has no range", knob.key),
        };
        let refused = knob.parse(&beyond.to_string()).unwrap_err();
        assert_eq!(refused.message, "out of range", "{}: {beyond}", knob.key);
    }
    assert_eq!(Config::default().get("agent.nothing"), None);
    assert_eq!(knob("agent"), None);
}

#[test]
fn later_files_and_overrides_win() {
    let directory = tempfile::tempdir().unwrap();
    let main = directory.path().join("main.toml");
    let drop_ins = directory.path().join("conf.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::write(&main, "[agent]\njobs_max = 1\njournal_files = 1\n[[job]]\ncgroup = \"/**\"\n").unwrap();
    fs::write(drop_ins.join("20-b.toml"), "agent.jobs_max = 3\n[[job]]\ncgroup = \"/b\"\n").unwrap();
    fs::write(drop_ins.join("10-a.toml"), "agent.jobs_max = 2\nagent.damon_processes_max = 2\n[[job]]\ncgroup = \"/a\"\n").unwrap();
    fs::write(drop_ins.join("30-c.toml.bak"), "nonsense").unwrap();
    fs::write(drop_ins.join(".hidden.toml"), "nonsense").unwrap();
    let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());

    let config = Config::load(Some(&main), &[set("agent.scan_period", "10s"), set("zswap.manage", "true")]).unwrap();
    assert_eq!((config.agent.jobs_max, config.agent.journal_files, config.agent.damon_processes_max), (3, 1, 2));
    assert_eq!((config.agent.scan_period, config.zswap.manage), (Duration::from_secs(10), true));
    let rules: Vec<&str> = config.jobs.iter().map(|rule| rule.cgroup.as_str()).collect();
    assert_eq!(rules, ["/b", "/a", "/**"]);

    fs::write(drop_ins.join("20-b.toml"), b"\xff").unwrap();
    fs::write(drop_ins.join("40-d.toml"), "agent.jobs_max = 0\n").unwrap();
    let overrides = [set("agent.scan_period", "10"), set("job.cgroup", "/x"), set("agnet.jobs_max", "1")];
    let problems = Config::load(Some(&main), &overrides).unwrap_err().to_string();
    for part in [
        "20-b.toml: cannot be read: not UTF-8",
        "40-d.toml, line 1: ",
        "command line: agent.scan_period = 10: ",
        "[[job]]",
        "perhaps agent.jobs_max",
    ] {
        assert!(problems.contains(part), "{part:?} is missing in:\n{problems}");
    }
    assert_eq!(problems.lines().count(), 5, "{problems}");
}

#[test]
fn a_named_file_must_be_readable() {
    let directory = tempfile::tempdir().unwrap();
    let large = directory.path().join("large.toml");
    fs::write(&large, "#".repeat((1 << 20) + 1)).unwrap();
    for (path, hint) in
        [(directory.path().join("missing.toml"), "exists"), (large, "larger than"), (directory.path().to_owned(), "cannot be read")]
    {
        let problems = Config::load(Some(&path), &[]).unwrap_err().to_string();
        assert!(problems.contains(hint) && problems.contains(path.to_str().unwrap()), "{problems}");
    }
}

#[test]
fn json_has_the_keys_and_values_of_the_files() {
    let config = Config::from_str("test.toml", GOOD).unwrap();
    let json = serde_json::to_value(&config).unwrap();
    assert_eq!(json["agent.scan_period"], "1m30s");
    assert_eq!(json["agent.journal_files"], 16);
    assert_eq!(json["zswap.manage"], true);
    assert_eq!(json["job"][0]["tracker"], "page_idle");
    assert_eq!(json.as_object().unwrap().len(), knobs().count() + 1);
}

#[test]
fn a_store_is_a_directory_or_a_bucket() {
    for store in ["", "/srv/traces", "s3://bucket", "s3://bucket/fleet/a"] {
        let config = Config::from_str("test.toml", &format!("[trace]\nstore = {store:?}\n")).unwrap();
        assert_eq!(config.trace.store, store);
    }
    for (store, part) in [("srv/traces", "absolute"), ("s3://", "not a store"), ("gopher://x", "s3://bucket/prefix"), ("/srv/../x", "..")] {
        check_refused(&format!("[trace]\nstore = {store:?}\n"), &[(2, &["trace.store", part])]);
    }
}
