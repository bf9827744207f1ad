//! The command line of `thermocline pool simulate`.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use simulator::latency::Latency;
use simulator::oracle::Accuracy;
use units::{Bytes, RatioPpm};

use crate::values::{duration, latency, ratio, share, size};

#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// The VM trace, as `pool import` and `pool generate` make it
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Sockets that share a pool
    #[arg(long, value_name = "SOCKETS,...", value_delimiter = ',', default_value = "2,4,8,16,32,64",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) pool_sizes: Vec<u32>,
    /// How memory is split: all_local, static=SHARE, pond, by predictions that are as good as --accuracy says, or models, which
    /// is Pond by the trained models of --models
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', default_value = "static=15%,pond")]
    pub(crate) memory: Vec<Split>,
    /// What pool memory adds to an access: such as 64ns (182 % of local latency) and 140ns (222 %), by_pool_size, or
    /// switch_only, which say what a pool of that size adds with controllers of many ports, or behind switches alone
    #[arg(long, value_name = "LATENCY,...", value_delimiter = ',', default_value = "64ns,140ns", value_parser = added)]
    pub(crate) latency: Vec<Latency>,
    /// How good pond's predictions are, as shares of all VMs, and of memory for untouched:
    /// insensitive=25%,false_positives=1%,untouched=25%,overpredictions=4% [default: as published, by latency]
    #[arg(long, value_name = "KEY=RATIO,...", value_parser = accuracy)]
    pub(crate) accuracy: Option<Accuracy>,
    /// Trained models, as `python -m thermocline.learn train nights` and `train insensitive` write them. All policies are then
    /// simulated from the first night on, with the VMs that run by then
    #[arg(long, value_name = "DIR")]
    pub(crate) models: Option<PathBuf>,
    /// Give each VM the counters of the sample that slow memory slows as much, as `generate workloads` writes them: a trace has
    /// none, and without them the models cannot tell who is insensitive
    #[arg(long, value_name = "FILE.jsonl", requires = "models")]
    pub(crate) counters: Option<PathBuf>,
    /// How much slower than with local memory a VM may be
    #[arg(long, value_name = "RATIO", default_value = "5%", value_parser = ratio)]
    pub(crate) margin: RatioPpm,
    /// VMs that may be moved to local memory where they exceed the margin
    #[arg(long, value_name = "RATIO", default_value = "1%", value_parser = share)]
    pub(crate) mitigated: RatioPpm,
    /// Give each VM, by lot, what the trace does not tell of it: untouched memory and slowdowns as published for others
    #[arg(long)]
    pub(crate) assume_published: bool,
    /// Spread arrivals and departures by lot over so long, for traces whose times are that coarse: 5m for those of Azure
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) spread: Option<Duration>,
    /// Deal the trace's VMs to so many clusters, by customer [default: the trace's own clusters]
    #[arg(long, value_name = "N")]
    pub(crate) clusters: Option<NonZero<u32>>,
    /// Servers of each cluster [default: as many as --peak-fill asks for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "peak_fill")]
    pub(crate) servers: Option<u32>,
    /// How much of a cluster's cores its peak fills: the fewer, the more servers
    #[arg(long, value_name = "RATIO", default_value = "85%", value_parser = fill)]
    pub(crate) peak_fill: RatioPpm,
    /// Sockets of a server, each a NUMA node
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) sockets: u8,
    /// Cores of a socket
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) socket_cores: u32,
    /// Local memory of a socket, where there is no pool
    #[arg(long, value_name = "SIZE", default_value = "384GiB", value_parser = socket_memory)]
    pub(crate) socket_memory: Bytes,
    /// Which server a VM goes to
    #[arg(long, value_name = "POLICY", default_value = "best_fit", value_parser = clap::builder::PossibleValuesParser::new(placement::Strategy::NAMES))]
    pub(crate) placement: String,
    /// Memory controllers of a pool; a VM's pool memory is all behind one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) emcs: u16,
    /// Memory of each pool that is promised to nobody, so that no VM waits for what is being released
    #[arg(long, value_name = "SIZE", default_value = "0GiB", value_parser = slices)]
    pub(crate) buffer: u32,
    /// How long a host takes to release a GiB: at least and at most
    #[arg(long, value_name = "DURATION..DURATION", default_value = "10ms..100ms", value_parser = spans)]
    pub(crate) offline: (Duration, Duration),
    /// How long it takes to zero a GiB
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
    /// How long what has failed is away
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub(crate) back_after: Duration,
    /// Releases of a GiB that a host cannot do at first
    #[arg(long, value_name = "RATIO", default_value = "0%", value_parser = share)]
    pub(crate) stuck: RatioPpm,
    /// Run everything again with pools just as large as was found, and tell how fast slices had to be released
    #[arg(long)]
    pub(crate) confirm: bool,
    /// Find, too, how little could be bought, all servers and all pools of a cluster alike, so that 999 of 1,000 VMs find room
    /// on some server; some fifty runs for each configuration
    #[arg(long)]
    pub(crate) provision: bool,
    /// The seed of everything that is drawn
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads [default: all cores]
    #[arg(long)]
    pub(crate) threads: Option<NonZero<usize>>,
}

/// A memory policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    AllLocal,
    Static(RatioPpm),
    Pond,
    Models,
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "all_local" => Ok(Self::AllLocal),
            None if text == "pond" => Ok(Self::Pond),
            None if text == "models" => Ok(Self::Models),
            Some(("static", part)) => Ok(Self::Static(share(part)?)),
            _ => Err("write all_local, pond, models, or static=SHARE such as static=15%".to_owned()),
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
    if bytes.0 % pool::SLICE_BYTES != 0 || bytes > Bytes(1 << 50) {
        return Err("pools are made of whole GiB; give such as 8GiB".to_owned());
    }
    u32::try_from(bytes.0 / pool::SLICE_BYTES).map_err(|error| error.to_string())
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
        assert_eq!((split("models"), split("models=1%")), (Some(Split::Models), None));
        assert_eq!((split("static=101%"), split("static"), split("dynamic")), (None, None, None));
        assert_eq!((added("64ns"), added("by_pool_size")), (Ok(Latency::AddedNs(64)), Ok(Latency::ByPoolSize)));
        assert!(added("182%").is_err());
        assert_eq!(accuracy("untouched=20%").map(|accuracy| accuracy.untouched), Ok(0.2));
        assert!(accuracy("insensitive=1%,false_positives=2%").is_err() && accuracy("luck=2%").is_err());
        assert_eq!((slices("8GiB"), slices("0GiB")), (Ok(8), Ok(0)));
        assert!(slices("1500MiB").is_err() && spans("2s..1s").is_err());
    }
}
