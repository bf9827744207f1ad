//! From pods to job rules.

use std::collections::BTreeMap;

use config::{Class, JobRule};
use units::quantity::excerpt;

use crate::cgroup::CgroupRoot;
use crate::pod::{Pod, Qos, Uid};

/// The annotation of a pod that chooses its class.
pub const ANNOTATION: &str = "thermocline.io/class";

/// Warnings about one pod: its author may change the annotation at any rate.
const WARNINGS_MAX: u32 = 3;

/// What the operator decides for pods.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The class of Burstable and BestEffort pods without an annotation.
    pub default_class: Class,
    /// Whether static pods may be annotated.
    pub static_pods: bool,
    /// The kubelet's cgroup root.
    pub root: CgroupRoot,
}

/// What becomes of one pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The pattern of its cgroup; `None` if it is unknown: no rule names the pod.
    pub(crate) cgroup: Option<String>,
    pub(crate) class: Class,
    pub(crate) warning: Option<String>,
}

impl Choice {
    /// The class of a pod. What is invalid is left alone.
    pub(crate) fn judge(&self, pod: &Pod) -> Verdict {
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        let text = |text: &Option<crate::pod::Text>| text.as_ref().map(|text| text.0.clone());
        let (source, mirror) = (text(&annotations.source), text(&annotations.mirror));
        let is_static = mirror.is_some() || source.is_some_and(|source| source != "api");
        // A pod's author can write both, `mirror` when the pod is created with the name of a node: no mark proves a static pod.
        let uid = match (&mirror, is_static) {
            (Some(mirror), _) if Some(mirror) == text(&annotations.hash).as_ref() => Uid::parse_hash(mirror),
            (_, true) => None,
            (_, false) => Uid::parse(&pod.metadata.uid.0),
        };
        let qos = Qos::parse(&pod.status.qos_class.0);
        let (class, warning) = self.class(text(&annotations.class).as_deref(), is_static, qos);
        let cgroup = uid.zip(qos).map(|(uid, qos)| self.root.pod(qos, &uid));
        let unknown = || "its cgroup is not known: its UID or QoS class is not one that the kubelet uses; it is left alone".to_owned();
        let warning = if cgroup.is_none() && !is_static { Some(unknown()) } else { warning };
        Verdict { cgroup, class, warning }
    }

    fn class(&self, annotation: Option<&str>, is_static: bool, qos: Option<Qos>) -> (Class, Option<String>) {
        let Some(value) = annotation else {
            let excluded = is_static || qos == Some(Qos::Guaranteed);
            return (if excluded { Class::Off } else { self.default_class }, None);
        };
        let Some(class) = Class::from_name(value) else {
            let what = format!("{ANNOTATION} is {:?}; write one of {}; it is left alone", excerpt(value), Class::NAMES.join(", "));
            return (Class::Off, Some(what));
        };
        if is_static && !self.static_pods {
            let what = "it is a static pod, which is left alone; --static-pods permits annotations of these";
            return (Class::Off, (class != Class::Off).then(|| what.to_owned()));
        }
        (class, None)
    }
}

/// The rules of all pods, sorted so that the same pods give the same text. Those of class `off` are first.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// Warnings that were logged, by pod.
    warned: BTreeMap<String, (u32, String)>,
}

impl Rules {
    /// The rules, as they are written.
    pub(crate) fn text(&mut self, choice: &Choice, pods: &BTreeMap<String, Pod>) -> String {
        self.warned.retain(|uid, _| pods.contains_key(uid));
        // A cgroup has one rule: the agent refuses a file with two. Where two pods claim it, one of them poses as the other.
        let mut classes: BTreeMap<String, Class> = BTreeMap::new();
        for (uid, pod) in pods {
            let Verdict { cgroup, class, warning } = choice.judge(pod);
            if let Some(warning) = warning {
                self.warn(uid, pod, warning);
            }
            let Some(cgroup) = cgroup else { continue };
            let chosen = classes.entry(cgroup).or_insert(class);
            if *chosen != class {
                *chosen = Class::Off;
            }
        }
        let (mut off, mut others) = (Vec::new(), Vec::new());
        for (cgroup, class) in classes {
            if class == Class::Off {
                off.extend([JobRule::new(format!("{cgroup}/**"), class), JobRule::new(cgroup, class)]);
            } else {
                // A job for each container: limits and events are those of its cgroup.
                others.push(JobRule::new(format!("{cgroup}/*"), class));
            }
        }
        off.append(&mut others);
        config::rules_to_toml(&off)
    }

    fn warn(&mut self, uid: &str, pod: &Pod, warning: String) {
        let (count, last) = self.warned.entry(uid.to_owned()).or_default();
        if *count < WARNINGS_MAX && *last != warning {
            log::warn!("pod {}/{}: {warning}", excerpt(&pod.metadata.namespace.0), excerpt(&pod.metadata.name.0));
            *count += 1;
            *last = warning;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "3f1d9c1e-55aa-4b0e-9a4f-0c8a6c1b7d21";
    const HASH: &str = "9b0f7d3a52c1e84466aa0d1f2e3c4b5a";

    fn pod(uid: &str, qos: &str, annotations: &[(&str, &str)]) -> Pod {
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        let value = serde_json::json!({
            "metadata": { "uid": uid, "name": "web-0", "namespace": "shop", "annotations": annotations },
            "status": { "qosClass": qos, "phase": "Running" },
        });
        serde_json::from_value(value).unwrap()
    }

    fn check(static_pods: bool, qos: &str, annotations: &[(&str, &str)], class: Class, warning: Option<&str>) -> Verdict {
        let choice = Choice { default_class: Class::Observe, static_pods, root: CgroupRoot::default() };
        let found = choice.judge(&pod(UID, qos, annotations));
        assert_eq!(found.class, class, "{annotations:?}");
        match (&found.warning, warning) {
            (None, None) => {}
            (Some(found), Some(piece)) => assert!(found.contains(piece), "{found}"),
            (found, _) => panic!("{annotations:?}: {found:?}"),
        }
        found
    }

    #[test]
    fn an_annotation_chooses_the_class_and_a_bad_one_leaves_the_pod_alone() {
        check(false, "Burstable", &[], Class::Observe, None);
        check(false, "BestEffort", &[(ANNOTATION, "aggressive")], Class::Aggressive, None);
        check(false, "Burstable", &[(ANNOTATION, "off")], Class::Off, None);
        for value in ["Standard", "", "standard ", "\"]\n[[job]]\ncgroup=\"/**\"", &"standard".repeat(100)] {
            let found = check(false, "Burstable", &[(ANNOTATION, value)], Class::Off, Some("conservative, standard, aggressive"));
            assert!(found.warning.is_some_and(|warning| warning.len() < 300 && !warning.contains('\n')));
        }
    }

    #[test]
    fn guaranteed_pods_are_left_alone_unless_annotated() {
        check(false, "Guaranteed", &[], Class::Off, None);
        check(false, "Guaranteed", &[(ANNOTATION, "conservative")], Class::Conservative, None);
    }

    #[test]
    fn static_pods_are_left_alone_unless_annotated_and_permitted() {
        let of = |class| {
            [
                ("kubernetes.io/config.source", "file"),
                ("kubernetes.io/config.hash", HASH),
                ("kubernetes.io/config.mirror", HASH),
                (ANNOTATION, class),
            ]
        };
        let cgroup =
            format!("/{{kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice,kubepods/burstable/pod{HASH}}}");
        let found = check(true, "Burstable", &of("standard")[..3], Class::Off, None);
        assert_eq!(found.cgroup.as_ref(), Some(&cgroup), "the hash, not the UID of the mirror");
        check(false, "Burstable", &of("standard"), Class::Off, Some("static pod"));
        assert_eq!(check(true, "Burstable", &of("standard"), Class::Standard, None).cgroup, Some(cgroup));
    }

    #[test]
    fn a_pod_that_poses_as_a_static_one_names_no_cgroup() {
        let posing = [("kubernetes.io/config.source", "file"), ("kubernetes.io/config.hash", HASH), (ANNOTATION, "aggressive")];
        assert_eq!(check(true, "Burstable", &posing, Class::Aggressive, None).cgroup, None);
        assert_eq!(check(true, "Burstable", &[("kubernetes.io/config.mirror", "*"), posing[2]], Class::Aggressive, None).cgroup, None);
    }

    #[test]
    fn two_pods_that_claim_one_cgroup_have_one_rule_and_are_left_alone_if_they_disagree() {
        let mirror = [("kubernetes.io/config.hash", HASH), ("kubernetes.io/config.mirror", HASH)];
        let of = |class| [mirror.as_slice(), &[(ANNOTATION, class)]].concat();
        let choice = Choice { default_class: Class::Observe, static_pods: true, root: CgroupRoot::default() };
        for (own, posing, class) in [
            (of("standard"), of("standard"), Class::Standard),
            (of("standard"), of("aggressive"), Class::Off),
            (mirror.to_vec(), of("aggressive"), Class::Off),
        ] {
            let pods = [("a".to_owned(), pod("a", "Burstable", &own)), ("b".to_owned(), pod("b", "Burstable", &posing))].into();
            let text = Rules::default().text(&choice, &pods);
            let rules = config::Config::rules_from_str("rules", &text).unwrap();
            assert!(rules.iter().all(|rule| rule.class == class) && !rules.is_empty(), "{text}");
        }
    }

    #[test]
    fn an_unknown_cgroup_has_no_rule() {
        let choice = Choice { default_class: Class::Standard, static_pods: true, root: CgroupRoot::default() };
        for (uid, qos) in [("*", "Burstable"), (UID, ""), (UID, "Best"), ("a/../../b", "Guaranteed")] {
            let found = choice.judge(&pod(uid, qos, &[(ANNOTATION, "standard")]));
            assert!(found.cgroup.is_none() && found.warning.is_some(), "{found:?}");
        }
    }

    #[test]
    fn warnings_about_a_pod_are_bounded() {
        let choice = Choice { default_class: Class::Observe, static_pods: false, root: CgroupRoot::default() };
        let mut rules = Rules::default();
        for value in 0..100 {
            let pods = [(UID.to_owned(), pod(UID, "Burstable", &[(ANNOTATION, &value.to_string())]))].into();
            let _ = rules.text(&choice, &pods);
        }
        assert_eq!(rules.warned[UID].0, WARNINGS_MAX);
        let _ = rules.text(&choice, &BTreeMap::new());
        assert!(rules.warned.is_empty());
    }
}
