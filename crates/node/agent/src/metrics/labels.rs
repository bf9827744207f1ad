//! Labels of the metrics.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::gauge::Gauge;

use crate::view::JobView;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct JobLabels {
    // Not `job`: Prometheus has a label of that name for the scraped target, and would rename this one.
    pub(super) cgroup: String,
    pub(super) class: String,
    pub(super) kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct FlowLabels {
    pub(super) cgroup: String,
    pub(super) tier: String,
    pub(super) direction: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct LossLabels {
    pub(super) cgroup: String,
    pub(super) part: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct TierQuantile {
    pub(super) tier: String,
    pub(super) quantile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct JobQuantile {
    pub(super) cgroup: String,
    pub(super) quantile: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct ReasonLabels {
    pub(super) reason: String,
}

/// A gauge of a ratio or of seconds.
pub(super) type RatioGauge = Gauge<f64, AtomicU64>;

/// Those of a job.
pub(super) fn labels(job: &JobView) -> JobLabels {
    JobLabels { cgroup: job.job.clone(), class: job.class.to_owned(), kind: job.kind.to_owned() }
}
