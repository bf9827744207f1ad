//! A configuration for what another program did: its settings in ours, and the names of those that have no equivalent. Pure.
//!
//! | program | what is read | becomes |
//! |---|---|---|
//! | oomd, Senpai plugin | the actions `senpai` of its JSON rulesets | rules of policy `pressure`, `[pressure]` |
//! | senpai.py | its command line | a rule of policy `pressure`, `[pressure]` |
//! | damo | kdamonds, or a list of schemes, in JSON or YAML | rules of policy `cold_age`, or `slowdown` for migration |
//! | memtierd | its YAML with the configuration of its policy in text | rules by what its mover does |
//! | Katalyst | `TransparentMemoryOffloadingConfiguration`, and annotations of pods | rules for classes of pods, `[pressure]` |
//!
//! Every setting of the source is either used or listed: a reader of the result sees what is lost.

mod damo;
mod katalyst;
mod memtierd;
mod senpai;
mod source;

use std::collections::BTreeMap;

use config::Config;
use serde::Serialize;
use settings::toml_string;

pub use source::ImportError;
use source::Node;

/// The program that a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// oomd, with its Senpai plugin.
    Oomd,
    /// The script senpai.py.
    Senpai,
    /// damo.
    Damo,
    /// memtierd.
    Memtierd,
    /// Katalyst.
    Katalyst,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// What the file was recognized as.
    pub program: Program,
    /// The configuration.
    pub toml: String,
    /// Settings without an equivalent, and why or what to use instead.
    pub without_equivalent: Vec<String>,
}

/// What a module collects.
#[derive(Debug, Default)]
struct Collected {
    /// Knobs, with the value as a user writes it.
    knobs: BTreeMap<&'static str, String>,
    rules: Vec<Rule>,
    lost: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Rule {
    cgroup: String,
    annotation: Option<String>,
    class: &'static str,
    policy: &'static str,
}

impl Collected {
    fn lost(&mut self, setting: impl std::fmt::Display, why: &str) {
        self.lost.push(format!("{setting}: {why}"));
    }

    fn rule(&mut self, cgroup: &str, class: &'static str, policy: &'static str) {
        let rule = Rule { cgroup: pattern(cgroup), annotation: None, class, policy };
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    /// Sets a knob; two different values for the whole machine cannot both be kept.
    fn set(&mut self, knob: &'static str, value: String) {
        match self.knobs.get(knob) {
            Some(set) if *set != value => {
                let what = format!("{knob} = {value}");
                self.lost(what, "the source sets it differently for several cgroups; here it is one value, and the first is kept");
            }
            _ => drop(self.knobs.insert(knob, value)),
        }
    }

    fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut table = "";
        for (knob, value) in &self.knobs {
            let Some((of, name)) = knob.rsplit_once('.') else { continue };
            if of != table {
                text += &format!("{}[{of}]\n", if table.is_empty() { "" } else { "\n" });
                table = of;
            }
            // Switches and numbers have no quotes.
            let bare = ["true", "false"].contains(&value.as_str());
            text += &format!("{name} = {}\n", if bare { value.clone() } else { toml_string(value) });
        }
        for rule in &self.rules {
            text += &format!("{}[[job]]\n", if text.is_empty() { "" } else { "\n" });
            let annotation = rule.annotation.as_ref().map(|annotation| ("annotation", annotation.as_str()));
            let keys = [Some(("cgroup", rule.cgroup.as_str())).filter(|(_, cgroup)| !cgroup.is_empty()), annotation];
            for (key, value) in keys.into_iter().flatten().chain([("class", rule.class), ("policy", rule.policy)]) {
                if !value.is_empty() {
                    text += &format!("{key} = {}\n", toml_string(value));
                }
            }
        }
        text
    }
}

/// Imports a text: a file of one of the programs, or the command line of senpai.py.
///
/// # Errors
/// If it is not recognized, or describes nothing that offloads memory.
pub fn import(text: &str) -> Result<Imported, ImportError> {
    let (program, collected) = if text.trim_start().lines().next().is_some_and(senpai::is_command_line) {
        (Program::Senpai, senpai::command_line(text))
    } else {
        let document = Node::parse(text)?;
        recognize(&document).ok_or(ImportError::Unknown)?
    };
    if collected.rules.is_empty() {
        return Err(ImportError::Nothing { lost: collected.lost });
    }
    let toml = collected.to_toml();
    Config::from_str("the imported configuration", &toml).map_err(|problems| ImportError::Invalid(problems.to_string()))?;
    Ok(Imported { program, toml, without_equivalent: collected.lost })
}

/// The program by the keys of its file, with what is in it.
fn recognize(document: &Node) -> Option<(Program, Collected)> {
    if document.get("rulesets").is_some() {
        return Some((Program::Oomd, senpai::oomd(document)));
    }
    let is_katalyst = |node: &Node| {
        node.get("kind").and_then(|kind| kind.text()).as_deref() == Some("TransparentMemoryOffloadingConfiguration")
            || !katalyst::annotations(node).is_empty()
    };
    if is_katalyst(document) {
        return Some((Program::Katalyst, katalyst::import(document)));
    }
    if document.get("kdamonds").is_some()
        || document.items().iter().any(|item| item.get("action").is_some() || item.get("contexts").is_some())
    {
        return Some((Program::Damo, damo::import(document)));
    }
    document.get("policy").map(|policy| (Program::Memtierd, memtierd::import(document, &policy)))
}

/// A cgroup of the source as a pattern: with a leading slash, below the cgroup root.
fn pattern(cgroup: &str) -> String {
    let path = cgroup.trim().strip_prefix("/sys/fs/cgroup").unwrap_or(cgroup.trim());
    format!("/{}", path.trim_matches('/'))
}

#[cfg(test)]
mod tests;
