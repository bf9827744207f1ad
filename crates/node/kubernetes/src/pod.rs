//! A pod as the API server describes it: the few fields that matter, each bounded and checked.

use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};

/// The longest text of a pod that is kept, in bytes. Names have 253 at most.
const TEXT_MAX: usize = 256;

/// The part of a pod that is read.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) status: Status,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    #[serde(default)]
    pub(crate) uid: Text,
    #[serde(default)]
    pub(crate) name: Text,
    #[serde(default)]
    pub(crate) namespace: Text,
    #[serde(default)]
    pub(crate) resource_version: Text,
    #[serde(default)]
    pub(crate) annotations: Option<Annotations>,
}

/// Annotations that are read; all others are skipped without being stored.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Annotations {
    #[serde(default, rename = "thermocline.io/class")]
    pub(crate) class: Option<Text>,
    #[serde(default, rename = "kubernetes.io/config.source")]
    pub(crate) source: Option<Text>,
    #[serde(default, rename = "kubernetes.io/config.hash")]
    pub(crate) hash: Option<Text>,
    #[serde(default, rename = "kubernetes.io/config.mirror")]
    pub(crate) mirror: Option<Text>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    #[serde(default)]
    pub(crate) qos_class: Text,
}

/// A pod's QoS class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "Guaranteed" => Some(Self::Guaranteed),
            "Burstable" => Some(Self::Burstable),
            "BestEffort" => Some(Self::BestEffort),
            _ => None,
        }
    }

    /// Its cgroup below `kubepods`.
    pub(crate) fn component(self) -> Option<&'static str> {
        match self {
            Self::Guaranteed => None,
            Self::Burstable => Some("burstable"),
            Self::BestEffort => Some("besteffort"),
        }
    }
}

/// The identity of a pod in cgroups: a UUID of the API server, or the hash of a static pod's file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uid(String);

impl Uid {
    /// A UUID: 8, 4, 4, 4 and 12 hexadecimal digits in lower case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let lengths = text.split('-').map(str::len);
        (lengths.eq([8, 4, 4, 4, 12]) && text.chars().all(|c| c == '-' || is_hex(c))).then(|| Self(text.to_owned()))
    }

    /// The hash of a static pod: 32 hexadecimal digits in lower case.
    pub(crate) fn parse_hash(text: &str) -> Option<Self> {
        (text.len() == 32 && text.chars().all(is_hex)).then(|| Self(text.to_owned()))
    }
}

fn is_hex(c: char) -> bool {
    matches!(c, '0'..='9' | 'a'..='f')
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text of which at most [`TEXT_MAX`] bytes are kept. A longer one equals no valid value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Text(pub(crate) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Cut;
        impl Visitor<'_> for Cut {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text[..text.floor_char_boundary(TEXT_MAX)].to_owned()))
            }
        }
        deserializer.deserialize_str(Cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identities_of_the_kubelet_are_accepted() {
        assert!(Uid::parse("3f1d9c1e-55aa-4b0e-9a4f-0c8a6c1b7d21").is_some());
        for text in
            ["", "*", "3f1d9c1e-55aa-4b0e-9a4f-0c8a6c1b7d2*", "3F1D9C1E-55aa-4b0e-9a4f-0c8a6c1b7d21", "../../../system.slice", "-----"]
        {
            assert_eq!((Uid::parse(text), Uid::parse_hash(text)), (None, None), "{text}");
        }
        assert!(Uid::parse_hash("9b0f7d3a52c1e84466aa0d1f2e3c4b5a").is_some());
        assert!(Uid::parse_hash("9b0f7d3a52c1e84466aa0d1f2e3c4b5").is_none());
    }

    #[test]
    fn long_texts_are_cut_and_others_skipped() {
        let long = "é".repeat(100_000);
        let text =
            format!(r#"{{"metadata":{{"uid":"u","annotations":{{"a":"{long}","thermocline.io/class":"{long}"}}}},"spec":{{"x":[1]}}}}"#);
        let pod: Pod = serde_json::from_str(&text).unwrap();
        let class = pod.metadata.annotations.unwrap().class.unwrap();
        assert_eq!(class.0.len(), TEXT_MAX);
    }
}
