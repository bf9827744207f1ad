use super::*;
use units::Millis;

fn bundle(version: u64) -> Bundle {
    let text = format!(
        "schema = 1\nversion = {version}\nid = \"b{version}\"\ncreated = 1970-01-01T00:00:00Z\nexpires = 1970-01-12T00:00:00Z\n\
         [knobs.cold_age]\npercentile = \"{}%\"\n",
        90 + version
    );
    Bundle::parse("test", &text).unwrap()
}

const EXPIRY: u64 = 11 * 86_400;
const SIGNED_UNTIL: u64 = 20 * 86_400;

fn guidance(version: Option<u64>, previous: Option<u64>) -> Guidance {
    let (bundle, previous) = (version.map(bundle), previous.map(bundle));
    Guidance { rollout: "r".into(), stage: "canary".into(), arm: Arm::Bundle, bundle, previous, signed_until_unix_s: Some(SIGNED_UNTIL) }
}

fn poll(version: Option<u64>, previous: Option<u64>) -> Poll {
    Poll { guidance: Some(guidance(version, previous)), ..Poll::default() }
}

/// Decides, and returns the percentile in effect if it changes.
fn percentile(following: &mut Following, now: u64) -> Option<String> {
    following.decide(now).0.map(|config| config.cold_age.percentile.to_string())
}

#[test]
fn rejected_and_expired_bundles_are_not_used() {
    let left = |version: u64| Left { version, by: "stall".into(), why: "it hurt".into(), unix_s: 1 };
    let check = |given: (Option<u64>, Option<u64>), gone: &[u64], now: u64, want: Option<u64>, why: &[&str]| {
        let guidance = guidance(given.0, given.1);
        let gone: Vec<_> = gone.iter().copied().map(left).collect();
        let (found, instead) = choose(Some(&guidance), &gone, now);
        assert_eq!(found.map(|bundle| bundle.version), want, "{given:?} {gone:?} {now}");
        let text = instead.unwrap_or_default();
        assert!(why.iter().all(|piece| text.contains(piece)) && why.is_empty() == text.is_empty(), "{text}");
    };
    check((Some(2), Some(1)), &[], 5, Some(2), &[]);
    check((Some(2), Some(1)), &[2], 5, Some(1), &["bundle 2 was rejected: it hurt"]);
    check((Some(2), Some(1)), &[1, 2], 5, None, &["bundle 1 was rejected"]);
    check((Some(2), None), &[2], 5, None, &["bundle 2 was rejected"]);
    check((None, None), &[], 5, None, &[]);
    check((Some(2), Some(1)), &[], EXPIRY, None, &["bundle 2 expired at 1970-01-12T00:00:00Z", "configuration file"]);
    check((Some(2), Some(1)), &[2], EXPIRY, None, &["expired at"]);
    assert_eq!(choose(None, &[], 5), (None, None));
}

#[test]
fn a_bundle_is_not_used_after_its_signatures_expired() {
    let mut following = Following::new(&Config::default(), None);
    let mut guidance = guidance(Some(2), Some(1));
    // The bundle itself is valid for longer.
    guidance.signed_until_unix_s = Some(EXPIRY - 10);
    following.take(Poll { guidance: Some(guidance.clone()), ..Poll::default() });
    assert_eq!(percentile(&mut following, EXPIRY - 11), Some("92%".into()));
    following.take(Poll { error: Some("away".into()), ..Poll::default() });
    let (config, reports) = following.decide(EXPIRY - 10);
    assert_eq!((config, following.version()), (Some(Config::default()), 0));
    assert!(reports.iter().any(|report| report.contains("the signatures of bundle 2 expired at 1970-01-11T23:59:50Z")), "{reports:?}");
    // New signatures arrive.
    guidance.signed_until_unix_s = Some(SIGNED_UNTIL);
    following.take(Poll { guidance: Some(guidance), ..Poll::default() });
    assert_eq!(percentile(&mut following, EXPIRY - 9), Some("92%".into()));
}

#[test]
fn a_bundle_is_used_until_it_expires() {
    let mut following = Following::new(&Config::default(), None);
    assert_eq!(percentile(&mut following, 5), None);
    following.take(poll(Some(2), Some(1)));
    assert_eq!((percentile(&mut following, 6), following.version()), (Some("92%".into()), 2));
    assert_eq!(percentile(&mut following, 7), None, "nothing new");
    following.take(Poll { error: Some("away".into()), ..Poll::default() });
    assert_eq!(percentile(&mut following, EXPIRY - 1), None, "an unavailable store changes nothing");
    let (config, reports) = following.decide(EXPIRY);
    assert_eq!(config.unwrap(), Config::default());
    assert!(reports.iter().any(|report| report.contains("expired at")), "{reports:?}");
    let view = following.view();
    assert_eq!((view.bundle_version, view.assigned_version, view.trouble.as_deref()), (0, 2, Some("away")));
    assert_eq!(following.decide(EXPIRY + 1).1, [""; 0], "reported once");
}

#[test]
fn a_rejected_bundle_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let mut following = Following::new(&Config::default(), Some(dir.path()));
    following.take(poll(Some(2), Some(1)));
    following.decide(5);
    let sample =
        watch::Sample { promotions_ppm: Some((9_000, 2_000)), far: true, stall_us: 0, elapsed_ms: Millis(60_000), stall_target_ppm: 1_000 };
    (0..60).for_each(|_| following.watch().unwrap().note("/a", &sample, Config::default().rollout.promotion_max));
    let (config, reports) = following.decide(6);
    assert_eq!(config.unwrap().cold_age.percentile.to_string(), "91%");
    assert!(reports[0].contains("rejects bundle 2: 60 of the last 60 periods"), "{reports:?}");
    assert_eq!((following.version(), following.view().reverts["promotions"]), (1, 1));
    // The guardrail starts over with the previous bundle.
    assert_eq!(percentile(&mut following, 7), None);
    // A restart with the same assignment does not use it again; a later version is used.
    let mut following = Following::new(&Config::default(), Some(dir.path()));
    following.take(poll(Some(2), Some(1)));
    assert_eq!(percentile(&mut following, 8), Some("91%".into()));
    assert!(following.view().instead.unwrap().contains("bundle 2 was rejected"));
    following.take(poll(Some(3), Some(1)));
    assert_eq!(percentile(&mut following, 9), Some("93%".into()));
    assert_eq!(following.view().left.len(), 1);
}

#[test]
fn a_bundle_with_which_the_agent_crashes_is_rejected() {
    // Starts at these times, with whether each ends in a stop. Returns the versions in effect.
    let lives = |starts: &[(u64, bool)]| {
        let dir = tempfile::tempdir().unwrap();
        let mut versions = Vec::new();
        for &(at, stopped) in starts {
            let mut following = Following::new(&Config::default(), Some(dir.path()));
            following.take(poll(Some(2), Some(1)));
            following.decide(at);
            versions.push(following.version());
            if stopped {
                following.stop();
            }
        }
        versions
    };
    assert_eq!(lives(&[(100, false), (200, false), (300, false), (400, false)]), [2, 2, 1, 1]);
    assert_eq!(lives(&[(100, false), (200, true), (300, false), (400, false)]), [2, 2, 2, 2]);
    assert_eq!(lives(&[(100, false), (701, false), (1_302, false)]), [2, 2, 2], "too far apart");
    // A life that lasts makes up for the starts before it.
    let dir = tempfile::tempdir().unwrap();
    for (at, then) in [(100, 101), (200, 900), (910, 911), (920, 921)] {
        let mut following = Following::new(&Config::default(), Some(dir.path()));
        following.take(poll(Some(2), None));
        following.decide(at);
        following.decide(then);
        assert_eq!(following.version(), 2, "{at}");
    }
    // Both versions kill it: what remains is the configuration file.
    let dir = tempfile::tempdir().unwrap();
    let mut versions = Vec::new();
    for at in 100..106 {
        let mut following = Following::new(&Config::default(), Some(dir.path()));
        following.take(poll(Some(2), Some(1)));
        following.decide(at);
        versions.push(following.version());
    }
    assert_eq!(versions, [2, 2, 1, 1, 1, 0]);
}

#[test]
fn damaged_notes_are_reported_and_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rollout/left.json");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    for text in ["", "{", "[]", "{\"left\":[{}]}"] {
        std::fs::write(&file, text).unwrap();
        let mut following = Following::new(&Config::default(), Some(dir.path()));
        let (config, reports) = following.decide(5);
        assert!(config.is_none() && reports.iter().any(|report| report.contains("it is unknown which")), "{text:?}: {reports:?}");
    }
}
