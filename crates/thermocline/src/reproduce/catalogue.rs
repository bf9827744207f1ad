//! The figures, and the steps that measure them: `docs/reproduction/figures.toml`.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const TEXT: &str = include_str!("../../../../docs/reproduction/figures.toml");

/// All figures and steps.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Catalogue {
    pub(super) steps: Vec<Step>,
    pub(super) figures: Vec<Figure>,
}

/// A command whose result is JSON.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) name: String,
    /// Arguments of this program, whose standard output is the result.
    pub(super) run: Option<Vec<String>>,
    /// Arguments of `make` in the source tree.
    pub(super) make: Option<Vec<String>>,
    /// The result of `make`, relative to the source tree.
    pub(super) result: Option<String>,
    /// Duration on two cores.
    pub(super) minutes: u32,
    /// Whether it belongs to the steps of one hour.
    pub(super) quick: bool,
}

impl Step {
    /// The command as one would type it.
    pub(super) fn command(&self) -> String {
        let words = |program: &str, words: &[String]| format!("{program} {}", words.join(" "));
        match (&self.run, &self.make) {
            (Some(run), _) => words("thermocline", run),
            (None, Some(make)) => words("make", make),
            (None, None) => String::new(),
        }
    }
}

/// How a figure is written.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Percent,
    Ratio,
    Number,
}

impl Unit {
    pub(super) fn shown(self, value: f64) -> String {
        match self {
            Self::Percent => format!("{:.3} %", value * 100.0).replace(".000 %", " %"),
            Self::Ratio => format!("{value:.3}"),
            Self::Number => format!("{value:.1}"),
        }
    }
}

/// A published figure.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    pub(super) paper: String,
    /// Section and figure.
    pub(super) place: String,
    pub(super) what: String,
    pub(super) published: String,
    pub(super) step: String,
    /// Where it is in the step's result; see [`find`].
    pub(super) value: String,
    /// Where the divisor is, if the figure is a quotient.
    pub(super) over: Option<String>,
    pub(super) unit: Unit,
    /// From here to `most` it counts as reproduced.
    pub(super) least: f64,
    pub(super) most: f64,
    /// What differs from the paper.
    pub(super) note: Option<String>,
}

impl Figure {
    /// The figure in a step's result. `None` if it is not there, or the divisor is zero.
    pub(super) fn measured(&self, result: &Value) -> Option<f64> {
        let value = find(result, &self.value)?;
        let Some(over) = &self.over else { return Some(value) };
        Some(value / find(result, over)?).filter(|quotient| quotient.is_finite())
    }

    /// The range in which it counts as reproduced.
    pub(super) fn range(&self) -> String {
        format!("{} to {}", self.unit.shown(self.least), self.unit.shown(self.most))
    }
}

impl Catalogue {
    /// The catalogue of this program.
    ///
    /// # Errors
    /// A figure names no step, or a step has no command: an error of the program.
    pub(super) fn embedded() -> Result<Self> {
        let catalogue: Self = toml::from_str(TEXT).context("docs/reproduction/figures.toml")?;
        for step in &catalogue.steps {
            let (run, make) = (step.run.is_some(), step.make.is_some() && step.result.is_some());
            if run == make {
                bail!("docs/reproduction/figures.toml: step {} needs either run, or make and result", step.name);
            }
        }
        for figure in &catalogue.figures {
            if !catalogue.steps.iter().any(|step| step.name == figure.step) || figure.least > figure.most {
                bail!("docs/reproduction/figures.toml: figure {:?} has no step {} or no range", figure.what, figure.step);
            }
        }
        Ok(catalogue)
    }

    /// The papers, in order.
    pub(super) fn papers(&self) -> Vec<&str> {
        let mut papers: Vec<&str> = self.figures.iter().map(|figure| figure.paper.as_str()).collect();
        papers.dedup();
        papers
    }

    /// The names of the steps, in order.
    pub(super) fn step_names(&self) -> Vec<&str> {
        self.steps.iter().map(|step| step.name.as_str()).collect()
    }
}

/// The number at a path of keys, numbers of list entries, and `key=text` for the first entry of a list with that key.
fn find(value: &Value, path: &str) -> Option<f64> {
    let mut at = value;
    for part in path.split('/') {
        at = match (at, part.split_once('=')) {
            (Value::Array(entries), Some((key, text))) => {
                entries.iter().find(|entry| entry.get(key).and_then(Value::as_str) == Some(text))?
            }
            (Value::Array(entries), None) => entries.get(part.parse::<usize>().ok()?)?,
            _ => at.get(part)?,
        };
    }
    at.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_is_valid_and_its_quick_steps_take_an_hour() {
        let catalogue = Catalogue::embedded().unwrap();
        let quick: u32 = catalogue.steps.iter().filter(|step| step.quick).map(|step| step.minutes).sum();
        assert!(quick <= 60, "{quick} minutes");
        assert_eq!(catalogue.papers(), ["SDFM", "TMO", "Thermostat", "LPC talk", "Pond"]);
        for step in &catalogue.steps {
            assert!(catalogue.figures.iter().any(|figure| figure.step == step.name), "no figure needs {}", step.name);
        }
    }

    #[test]
    fn values_are_found_by_key_number_and_entry() {
        let result = serde_json::json!({"a": {"b": 2.5}, "list": [{"id": "x", "v": 1}, {"id": "y", "v": 2}], "182%": {"c": 9}});
        let check = |path, expected| assert_eq!(find(&result, path), expected, "{path}");
        check("a/b", Some(2.5));
        check("list/1/v", Some(2.0));
        check("list/id=y/v", Some(2.0));
        check("list/id=z/v", None);
        check("list/7/v", None);
        check("182%/c", Some(9.0));
        check("a", None);
    }
}
