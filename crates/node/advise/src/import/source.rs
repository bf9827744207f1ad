//! The source as a tree of values, whichever of JSON and YAML it is written in.

use yaml_rust2::{Yaml, YamlLoader};

/// Why a file is not imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// Neither JSON nor YAML.
    #[error(
        "neither JSON nor YAML: {0}; name a configuration of oomd, damo, memtierd or Katalyst, or a file with the command line of senpai.py"
    )]
    Syntax(String),
    /// No program that is known.
    #[error(
        "not recognized: it has neither `rulesets` (oomd), `kdamonds` or schemes (damo), `policy` (memtierd), nor memory-offloading \
         settings or annotations of Katalyst"
    )]
    Unknown,
    /// Nothing that offloads memory.
    #[error("it offloads no memory, so that there is nothing to import{}", list(.lost))]
    Nothing {
        /// What has no equivalent.
        lost: Vec<String>,
    },
    /// A value has no place in our configuration.
    #[error("a value of the file is out of our range: {0}")]
    Invalid(String),
}

fn list(lost: &[String]) -> String {
    lost.iter().map(|lost| format!("\n  {lost}")).collect()
}

/// The longest text that is read.
const BYTES_MAX: usize = 4 << 20;

/// A value.
#[derive(Clone, Debug)]
pub(super) struct Node(Yaml);

impl Node {
    pub(super) fn parse(text: &str) -> Result<Self, ImportError> {
        if text.len() > BYTES_MAX {
            return Err(ImportError::Syntax(format!("more than {BYTES_MAX} bytes")));
        }
        let mut documents = YamlLoader::load_from_str(text).map_err(|error| ImportError::Syntax(error.to_string()))?;
        match documents.len() {
            1 => Ok(Self(documents.remove(0))),
            0 => Err(ImportError::Syntax("it is empty".to_owned())),
            count => Err(ImportError::Syntax(format!("{count} documents in one file; give one at a time"))),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let value = self.0.as_hash()?.get(&Yaml::String(key.to_owned()))?;
        (!value.is_null()).then(|| Self(value.clone()))
    }

    /// The value at a path of keys.
    pub(super) fn at(&self, keys: &[&str]) -> Option<Self> {
        keys.iter().try_fold(self.clone(), |node, key| node.get(key))
    }

    pub(super) fn items(&self) -> Vec<Self> {
        self.0.as_vec().map(|items| items.iter().cloned().map(Self).collect()).unwrap_or_default()
    }

    /// The keys and values of a table, in order.
    pub(super) fn pairs(&self) -> Vec<(String, Self)> {
        let pairs = self.0.as_hash().into_iter().flatten();
        pairs.filter_map(|(key, value)| Some((Self(key.clone()).text()?, Self(value.clone())))).collect()
    }

    /// A word or number as it is written.
    pub(super) fn text(&self) -> Option<String> {
        match &self.0 {
            Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
            Yaml::Integer(number) => Some(number.to_string()),
            Yaml::Boolean(switch) => Some(switch.to_string()),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        self.text()?.trim().replace(',', "").parse().ok().filter(|number: &f64| number.is_finite())
    }

    pub(super) fn is_true(&self) -> bool {
        self.text().is_some_and(|text| ["true", "yes", "1"].contains(&text.to_lowercase().as_str()))
    }
}

/// A share as a knob has it. The source's number is in percent.
pub(super) fn percent(number: f64) -> String {
    format!("{number}%")
}

/// A time in whole milliseconds as a knob has it.
pub(super) fn milliseconds(ms: f64) -> String {
    if ms % 1_000.0 == 0.0 { format!("{}s", ms / 1_000.0) } else { format!("{}ms", ms.round()) }
}
