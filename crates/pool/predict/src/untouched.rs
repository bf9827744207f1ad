//! The untouched-memory model: from what is known of a VM to the share of its memory that it will not touch (Pond, figure 14).

use std::ops::RangeInclusive;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::forest::{Forest, Kind};
use crate::history::History;
use crate::metadata::{self, UntouchedSays};
use crate::onnx::{self, Model};
use crate::request::Request;

const GIB: f64 = (1u64 << 30) as f64;
const DAY: i64 = 86_400;
const CATEGORIES: [&str; 3] = ["vm_type", "guest_os", "location"];

/// A model that is ready to be asked.
#[derive(Clone, Debug)]
pub struct Untouched {
    says: UntouchedSays,
    forest: Forest,
}

/// Why a model says nothing of a VM. It then gets the safe answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsaid {
    /// No customer, or too few of its VMs have ended in the past week.
    NoHistory,
    /// A type, system or region that training has not seen, or too seldom.
    UnseenCategory,
    /// A feature lies outside of what training has seen, or is no number.
    Drifted,
    /// The model was trained too long ago, or after the VM was asked for.
    StaleModel,
}

impl Untouched {
    /// Reads a model.
    ///
    /// # Errors
    /// [`Error`]: the file cannot be read, or is no such model; it says where.
    pub fn load(path: &Path) -> Result<Self> {
        Self::parse(&onnx::read(path)?, path)
    }

    /// A model out of the bytes of a file, whose name errors tell.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Newer`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let fail = |what: String| Error::damaged(path, what);
        let model = Model::parse(bytes).map_err(fail)?;
        let says: UntouchedSays = metadata::read(&model, "untouched", path)?;
        check(&says).map_err(fail)?;
        let forest = Forest::read(&model, Kind::Regressor, says.features.len()).map_err(fail)?;
        Ok(Self { says, forest })
    }

    /// The arrivals, in seconds, for which it is believed: from the end of its training until it is stale.
    #[must_use]
    pub fn valid(&self) -> RangeInclusive<i64> {
        self.says.trained_until..=self.says.trained_until.saturating_add(self.says.valid_seconds)
    }

    /// An empty history of the shape that this model was trained with.
    #[must_use]
    pub fn history(&self) -> History {
        History::new(self.says.history.window_seconds, self.says.history.entries_max)
    }

    /// The share of its memory that a VM will not touch, 0 to 1, or why nothing is said. `recent` are the untouched shares of the
    /// customer's VMs that have ended in the past week, in any order.
    ///
    /// # Errors
    /// [`Unsaid`].
    pub fn predict(&self, request: &Request, recent: impl IntoIterator<Item = f32>) -> Result<f64, Unsaid> {
        if !self.valid().contains(&request.arrival) {
            return Err(Unsaid::StaleModel);
        }
        let inputs = self.features(request, recent)?;
        let seen = |(input, feature): (&f32, &metadata::Feature)| (feature.low..=feature.high).contains(input);
        if !inputs.iter().zip(&self.says.features).all(seen) {
            return Err(Unsaid::Drifted);
        }
        Ok(self.forest.walk(&inputs).clamp(0.0, 1.0))
    }

    /// Features in the order that `check` has made sure of.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "the model compares 32-bit floats")]
    fn features(&self, request: &Request, recent: impl IntoIterator<Item = f32>) -> Result<Vec<f32>, Unsaid> {
        let window = &self.says.history;
        let mut recent: Vec<f32> = recent.into_iter().take(window.entries_max).collect();
        if recent.len() < window.entries_min {
            return Err(Unsaid::NoHistory);
        }
        recent.sort_unstable_by(f32::total_cmp);
        let mut inputs = Vec::with_capacity(self.says.features.len());
        inputs.extend(window.percentiles.iter().map(|percent| recent[(recent.len() - 1) * percent / 100]));
        inputs.push(recent.len() as f32);
        let categories = [&request.vm_type, &request.guest_os, &request.location];
        for (name, category) in CATEGORIES.iter().zip(categories) {
            let mean = self.says.categories.get(*name).and_then(|means| means.get(category.as_deref().unwrap_or_default()));
            inputs.push(*mean.ok_or(Unsaid::UnseenCategory)?);
        }
        let gib = request.memory_bytes as f64 / GIB;
        inputs.extend([
            request.cores as f32,
            gib as f32,
            (gib / f64::from(request.cores)) as f32,
            (request.arrival.rem_euclid(DAY) / 3600) as f32,
            request.arrival.div_euclid(DAY).rem_euclid(7) as f32,
        ]);
        Ok(inputs)
    }
}

/// What is wrong with what a model says of itself: a feature that this program does not make, or an impossible number.
fn check(says: &UntouchedSays) -> Result<(), String> {
    let window = &says.history;
    if !(1..=window.entries_max).contains(&window.entries_min) || window.entries_max > 1 << 16 || window.window_seconds <= 0 {
        return Err(format!(
            "its history takes {} to {} VMs of {} s; 1 to 65536 of more than 0 s are served",
            window.entries_min, window.entries_max, window.window_seconds
        ));
    }
    if let Some(percent) = window.percentiles.iter().find(|&&percent| percent > 100) {
        return Err(format!("its history takes the percentile {percent}; 0 to 100 are served"));
    }
    if says.valid_seconds < 0 {
        return Err(format!("valid_seconds is {}; it is at least 0", says.valid_seconds));
    }
    metadata::check(&says.features)?;
    let made = window.percentiles.iter().map(|percent| format!("history_p{percent}"));
    let made = made.chain(["history_count".to_owned()]).chain(CATEGORIES.map(|name| format!("{name}_mean")));
    let made: Vec<String> = made.chain(["cores", "memory_gib", "gib_per_core", "hour", "weekday"].map(str::to_owned)).collect();
    let named: Vec<&str> = says.features.iter().map(|feature| feature.name.as_str()).collect();
    if made != named {
        let odd = made.iter().zip(&named).find(|(made, named)| made != *named);
        return Err(match odd {
            Some((made, named)) => format!("its feature {named:?} stands where this program makes {made:?}"),
            None => format!("it has {} features; this program makes {}", named.len(), made.len()),
        });
    }
    Ok(())
}
