//! The command line of `thermocline pool simulate`.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use simulator::latency::Latency;
use simulator::oracle::Accuracy;
use simulator::pod::Pod;
use simulator::service_level::Rule;
use units::{Bytes, RatioPpm};

use super::money::Prices;
use super::pods;
use crate::values::{duration, latency, ratio, share, size};

#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// The VM trace, as written by `pool import` or `pool generate`
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Sockets that share a pool
    #[arg(long, value_name = "SOCKETS,...", value_delimiter = ',', default_value = "2,4,8,16,32,64",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) pool_sizes: Vec<u32>,
    /// Memory policies: all_local; static=SHARE; pond, with predictions of the accuracy given by --accuracy; oracle, with predictions
    /// without errors; models, with the trained models of --models; recorded, what a scheduler gave each VM; requested, what was
    /// requested for it
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', default_value = "static=15%,pond")]
    pub(crate) memory: Vec<Split>,
    /// Added latency of a pool access: a time such as 64ns (182 % of local latency) or 140ns (222 %); by_pool_size, for
    /// multi-port controllers of that pool size, or of as many ports as a device of --pod; switch_only, for switches
    #[arg(long, value_name = "LATENCY,...", value_delimiter = ',', default_value = "64ns,140ns", value_parser = added)]
    pub(crate) latency: Vec<Latency>,
    /// Accuracy of pond's predictions, as shares of all VMs, and of memory for untouched:
    /// insensitive=25%,false_positives=1%,untouched=25%,overpredictions=4% [default: as published, by latency]
    #[arg(long, value_name = "KEY=RATIO,...", value_parser = accuracy)]
    pub(crate) accuracy: Option<Accuracy>,
    /// Trained models, as written by `thermocline-learn train nights` and `train insensitive`. All policies are then
    /// simulated from the first night on, with the VMs that run at that time
    #[arg(long, value_name = "DIR")]
    pub(crate) models: Option<PathBuf>,
    /// Samples with counters, as written by `generate workloads`: each VM gets those of a sample with its slowdown, because a trace
    /// has no counters and the latency model needs them
    #[arg(long, value_name = "FILE.jsonl", requires = "models")]
    pub(crate) counters: Option<PathBuf>,
    /// So many earlier VMs of a workload, the latest ones, must all be insensitive; one is the rule of earlier versions, with
    /// `--counters-after 0s`
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) counters_agree: u8,
    /// Only VMs that have run for this long count among them
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub(crate) counters_after: Duration,
    /// The performance margin: the highest slowdown of a VM against local memory
    #[arg(long, value_name = "RATIO", default_value = "5%", value_parser = ratio)]
    pub(crate) margin: RatioPpm,
    /// Slowdown of a VM with a part of its touched memory on the pool: that with all of it there, times the part to this power; 1 is
    /// in proportion, and below 1 a small part slows down by more than its share
    #[arg(long, value_name = "EXPONENT", default_value_t = simulator::spill::PUBLISHED.0, value_parser = exponent)]
    pub(crate) spill: f64,
    /// Share of VMs that may be mitigated if they exceed the margin
    #[arg(long, value_name = "RATIO", default_value = "1%", value_parser = share)]
    pub(crate) mitigated: RatioPpm,
    /// Draw missing untouched memory and slowdowns from published distributions
    #[arg(long)]
    pub(crate) assume_published: bool,
    /// Spread arrivals and departures at random over this time, for traces with coarse times: 5m for those of Azure
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) spread: Option<Duration>,
    /// Distribute the trace's VMs over this number of clusters, by customer [default: the trace's own clusters]
    #[arg(long, value_name = "N")]
    pub(crate) clusters: Option<NonZero<u32>>,
    /// Servers of each cluster [default: computed from --peak-fill]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "peak_fill")]
    pub(crate) servers: Option<u32>,
    /// Share of a cluster's cores that its peak uses; a lower share means more servers
    #[arg(long, value_name = "RATIO", default_value = "85%", value_parser = fill)]
    pub(crate) peak_fill: RatioPpm,
    /// Sockets of a server, each a NUMA node
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) sockets: u8,
    /// Cores of a socket
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) socket_cores: u32,
    /// Local memory of a socket without a pool
    #[arg(long, value_name = "SIZE", default_value = "384GiB", value_parser = socket_memory)]
    pub(crate) socket_memory: Bytes,
    /// Placement policy
    #[arg(long, value_name = "POLICY", default_value = "best_fit", value_parser = clap::builder::PossibleValuesParser::new(placement::Strategy::NAMES))]
    pub(crate) placement: String,
    /// External memory controllers (EMCs) of a pool; all of a VM's pool memory is behind one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) emcs: u16,
    /// Sparse pods: a server does not reach all memory of its pool, but `per-server` devices, each of which has `ports` ports for one
    /// server each. A VM has memory of several of its server's devices: of `per-vm` at most [default of per-vm: per-server]
    #[arg(long, value_name = "ports=N,per-server=N,per-vm=N", value_parser = pods::parse, conflicts_with = "emcs")]
    pub(crate) pod: Option<Pod>,
    /// Free buffer of each pool, or of each device of --pod, so that no VM waits for slices that are being released
    #[arg(long, value_name = "SIZE", default_value = "0GiB", value_parser = slices)]
    pub(crate) buffer: u32,
    /// Time that a host takes to release a GiB: minimum and maximum
    #[arg(long, value_name = "DURATION..DURATION", default_value = "10ms..100ms", value_parser = spans)]
    pub(crate) offline: (Duration, Duration),
    /// Time to zero a GiB
    #[arg(long, value_name = "DURATION", default_value = "30ms", value_parser = duration)]
    pub(crate) scrub: Duration,
    /// Mean time between failures of a memory controller [default: none fails]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) emc_fails: Option<Duration>,
    /// Mean time between failures of a host
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) host_fails: Option<Duration>,
    /// Mean time between failures of a pool's manager
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) manager_fails: Option<Duration>,
    /// Duration of a failure
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub(crate) back_after: Duration,
    /// Share of releases of a GiB that fail at first
    #[arg(long, value_name = "RATIO", default_value = "0%", value_parser = share)]
    pub(crate) stuck: RatioPpm,
    /// Repeat all runs with pools of the size found, and report how fast slices had to be released
    #[arg(long)]
    pub(crate) confirm: bool,
    /// Also search the least memory, with equal servers and pools in a cluster, that keeps the service level, without pools and with
    /// them; some hundred runs for each configuration. replayed: VMs go to their servers of the run without pools, and are moved if
    /// they do not fit; rarely_moved: the same, and moved VMs count as refused; scheduled: the placement policy chooses for every VM
    #[arg(long, value_name = "RULE", num_args = 0..=1, require_equals = true, default_missing_value = "replayed",
        value_parser = clap::builder::PossibleValuesParser::new(Rule::NAMES))]
    pub(crate) provision: Option<String>,
    /// Service level of --provision: the share of VMs that may be refused because no server has room for them
    #[arg(long, value_name = "RATIO", default_value = "0.1%", value_parser = share, requires = "provision")]
    pub(crate) service_level: RatioPpm,
    /// Prices, in any currency: of a GiB of DRAM in a server and in a pool, of what connects a server to its pool (ports, cables,
    /// retimers), of a pool's devices and switches without DRAM, and of each controller or device. Prints whether to buy, with a 95 %
    /// interval over clusters
    #[arg(long, value_name = "dram=PRICE,pool_dram=PRICE,server=PRICE,pool=PRICE,device=PRICE", requires = "provision", value_parser = Prices::parse)]
    pub(crate) prices: Option<Prices>,
    /// The seed of all random draws
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of threads [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<NonZero<usize>>,
}

impl Simulate {
    /// The added latency of a pool of so many sockets. That of a controller depends on its ports: one for each socket of a pool that all
    /// its servers reach (Pond section 4.1), and those of a device in a sparse pod.
    pub(crate) fn added_ns(&self, latency: Latency, pool_sockets: u32) -> u32 {
        latency.added_ns(self.pod.map_or(pool_sockets, |pod| u32::from(pod.ports)))
    }
}

/// A memory policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    AllLocal,
    Static(RatioPpm),
    Pond,
    Oracle,
    Models,
    Recorded,
    Requested,
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "all_local" => Ok(Self::AllLocal),
            None if text == "pond" => Ok(Self::Pond),
            None if text == "oracle" => Ok(Self::Oracle),
            None if text == "models" => Ok(Self::Models),
            None if text == "recorded" => Ok(Self::Recorded),
            None if text == "requested" => Ok(Self::Requested),
            Some(("static", part)) => Ok(Self::Static(share(part)?)),
            _ => Err("write all_local, pond, oracle, models, recorded, requested, or static=SHARE such as static=15%".to_owned()),
        }
    }
}

fn added(text: &str) -> Result<Latency, String> {
    match text {
        "by_pool_size" => Ok(Latency::ByPoolSize),
        "switch_only" => Ok(Latency::SwitchOnly),
        _ => {
            let added = latency(text).map_err(|words| format!("{words}; or by_pool_size, or switch_only"))?;
            u32::try_from(added.as_nanos()).map(Latency::AddedNs).map_err(|_| "give less than a second".to_owned())
        }
    }
}

fn accuracy(text: &str) -> Result<Accuracy, String> {
    let mut accuracy = Accuracy::AT_182;
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or("write it as KEY=RATIO, such as untouched=25%")?;
        let value = f64::from(share(value)?.0) / 1e6;
        *match key {
            "insensitive" => &mut accuracy.insensitive,
            "false_positives" => &mut accuracy.false_positives,
            "untouched" => &mut accuracy.untouched,
            "overpredictions" => &mut accuracy.overpredictions,
            _ => return Err(format!("{key:?} is not known; there are insensitive, false_positives, untouched and overpredictions")),
        } = value;
    }
    if accuracy.false_positives > accuracy.insensitive {
        return Err("more VMs cannot be called insensitive wrongly than are called so; give false_positives below insensitive".to_owned());
    }
    Ok(accuracy)
}

fn exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse().ok().filter(|exponent| (0.05..=1.0).contains(exponent));
    exponent.ok_or_else(|| "give 0.05 to 1, such as 0.7".to_owned())
}

fn fill(text: &str) -> Result<RatioPpm, String> {
    let ratio = ratio(text)?;
    if ratio < RatioPpm(10_000) || ratio > RatioPpm::ONE {
        return Err("give 1% to 100%".to_owned());
    }
    Ok(ratio)
}

fn socket_memory(text: &str) -> Result<Bytes, String> {
    let bytes = size(text)?;
    if bytes < Bytes(1 << 30) || bytes > Bytes(1 << 48) {
        return Err("give 1GiB to 256TiB, such as 384GiB".to_owned());
    }
    Ok(bytes)
}

fn slices(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    if bytes.0 % pool::SLICE.0 != 0 || bytes > Bytes(1 << 50) {
        return Err("pools are made of whole GiB; give such as 8GiB".to_owned());
    }
    u32::try_from(bytes.0 / pool::SLICE.0).map_err(|error| error.to_string())
}

fn spans(text: &str) -> Result<(Duration, Duration), String> {
    let (least, most) = text.split_once("..").ok_or("write it as DURATION..DURATION, such as 10ms..100ms")?;
    let (least, most) = (duration(least)?, duration(most)?);
    if most < least || most > Duration::from_secs(3_600) {
        return Err("give the shorter time first, and at most 1h".to_owned());
    }
    Ok((least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_and_latencies_are_read_or_refused() {
        let split = |text: &str| text.parse::<Split>().ok();
        assert_eq!(split("static=15%"), Some(Split::Static(RatioPpm(150_000))));
        assert_eq!((split("pond"), split("all_local")), (Some(Split::Pond), Some(Split::AllLocal)));
        assert_eq!(split("oracle"), Some(Split::Oracle));
        assert_eq!((split("recorded"), split("requested")), (Some(Split::Recorded), Some(Split::Requested)));
        assert_eq!((split("models"), split("models=1%")), (Some(Split::Models), None));
        assert_eq!((split("static=101%"), split("static"), split("dynamic")), (None, None, None));
        assert_eq!((added("64ns"), added("by_pool_size")), (Ok(Latency::AddedNs(64)), Ok(Latency::ByPoolSize)));
        assert!(added("182%").is_err());
        assert_eq!(accuracy("untouched=20%").map(|accuracy| accuracy.untouched), Ok(0.2));
        assert!(accuracy("insensitive=1%,false_positives=2%").is_err() && accuracy("luck=2%").is_err());
        assert_eq!((slices("8GiB"), slices("0GiB")), (Ok(8), Ok(0)));
        assert_eq!((exponent("0.7"), exponent("1")), (Ok(0.7), Ok(1.0)));
        assert!(exponent("0").is_err() && exponent("1.5").is_err() && exponent("NaN").is_err());
        assert!(slices("1500MiB").is_err() && spans("2s..1s").is_err());
    }
}
