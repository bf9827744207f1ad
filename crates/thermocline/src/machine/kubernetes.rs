//! `thermocline kubernetes`: the pods of this node as job rules of the agent, its promised memory as a resource, and its metrics. It
//! needs no privilege, and is meant to run beside the agent with none.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::agent::Message;
use ::agent::journal::Journal;
use ::kubernetes::{Api, CgroupRoot, Choice, Credentials, Follower, RESOURCE, RuleFile, publish, withdraw};
use advise::plan::{self, Options, PlanError};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use config::{Class, Config};
use kernel::{Roots, meminfo};
use serde_json::json;
use units::{Bytes, RatioPpm};

use super::plan::risk;
use crate::options::Format;
use crate::output::print;
use crate::signals;
use crate::values::duration;

#[derive(Debug, Args)]
pub(crate) struct Kubernetes {
    /// The name of this node
    #[arg(long, value_name = "NAME")]
    pub(crate) node: String,
    /// The file that rules are written to; the agent reads it with --job-rules
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: PathBuf,
    /// The class of Burstable and BestEffort pods without the annotation thermocline.io/class
    #[arg(long, value_name = "CLASS", default_value = "observe", value_parser = PossibleValuesParser::new(Class::NAMES))]
    pub(crate) default_class: String,
    /// Permit annotations of static pods, which are left alone otherwise
    #[arg(long)]
    pub(crate) static_pods: bool,
    /// The kubelet's --cgroup-root
    #[arg(long, value_name = "CGROUP", default_value = "/", value_parser = CgroupRoot::parse)]
    pub(crate) cgroup_root: CgroupRoot,
    /// Publish what jobs saved, as the journal says, as the node's resource thermocline.io/promised-memory, each PERIOD
    #[arg(long, value_name = "PERIOD", value_parser = duration)]
    pub(crate) promise: Option<Duration>,
    /// Share of control periods in which less may have been saved
    #[arg(long, value_name = "RATIO", default_value = "1%", value_parser = risk)]
    pub(crate) risk: RatioPpm,
    /// Pass the agent's metrics on at this address, in plain HTTP
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// The API server [default: that of the pod's environment]
    #[arg(long, value_name = "URL")]
    pub(crate) api: Option<String>,
    /// The directory with token and ca.crt [default: that of the pod's service account]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) credentials: Option<PathBuf>,
    /// List the pods and write their rules once, and exit
    #[arg(long, conflicts_with_all = ["promise", "metrics_listen"])]
    pub(crate) once: bool,
}

/// Follows the pods of this node until SIGTERM.
pub(crate) fn kubernetes(roots: &Roots, config: &Config, format: Format, arguments: Kubernetes) -> Result<()> {
    let api = api(&arguments)?;
    let default_class = Class::from_name(&arguments.default_class).unwrap_or(Class::Observe);
    let choice = Choice { default_class, static_pods: arguments.static_pods, root: arguments.cgroup_root.clone() };
    let file = RuleFile::new(&arguments.rules);
    let mut follower = Follower::new(api.clone(), &arguments.node, choice, file).map_err(|what| anyhow!(what))?;
    if arguments.once {
        follower.list()?;
        let (pods, path) = (follower.pods(), arguments.rules.display().to_string());
        return print(format, &json!({ "pods": pods, "rules": path }), || format!("wrote the rules of {pods} pods to {path}\n"));
    }
    let (sender, receiver) = signals::messages()?;
    if let Some(address) = arguments.metrics_listen {
        log::info!("metrics of the agent on http://{}/metrics", pass_metrics_on(config, address)?);
    }
    let thread = std::thread::Builder::new().name("pods".to_owned()).spawn(move || {
        // If this thread ends, the process does: a restart is better than rules of the past.
        let _end = SendStop(sender);
        follower.run(&mut |wait| {
            std::thread::sleep(wait);
            true
        });
    })?;
    daemon::notify_ready();
    match arguments.promise {
        // An error means that no sender is left.
        None => drop(receiver.recv()),
        Some(period) => promise(roots, config, &api, &arguments, period, &receiver),
    }
    ended(&thread)
}

struct SendStop(std::sync::mpsc::SyncSender<Message>);

impl Drop for SendStop {
    fn drop(&mut self) {
        // Fails only if the process ends anyway.
        drop(self.0.send(Message::Stop));
    }
}

fn ended(thread: &JoinHandle<()>) -> Result<()> {
    if thread.is_finished() {
        bail!("the thread that follows pods ended");
    }
    Ok(())
}

fn api(arguments: &Kubernetes) -> Result<Api> {
    let credentials = arguments.credentials.clone().map_or_else(Credentials::default, |directory| Credentials { directory });
    if let Some(url) = &arguments.api {
        return Api::new(url, credentials).map_err(|what| anyhow!(what));
    }
    let variable = |name: &str| std::env::var(name).ok();
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"));
    match Api::from_environment(host.as_deref(), port.as_deref(), credentials) {
        Some(api) => api.map_err(|what| anyhow!(what)),
        None => bail!("this is no pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; name the server with --api URL"),
    }
}

/// Publishes the promise each period until the end, and withdraws it then.
fn promise(roots: &Roots, config: &Config, api: &Api, arguments: &Kubernetes, period: Duration, receiver: &Receiver<Message>) {
    let mut last = None;
    loop {
        let promised = promised(roots, config, arguments.risk).unwrap_or_else(|error| {
            log::warn!("no memory can be promised: {error:#}");
            Bytes::ZERO
        });
        match publish(api, &arguments.node, promised) {
            Ok(()) if last != Some(promised) => {
                log::info!("{RESOURCE} of this node: {promised}");
                last = Some(promised);
            }
            Ok(()) => {}
            Err(error) => log::warn!("{RESOURCE} of this node is not up to date: {error}"),
        }
        if receiver.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    if let Err(error) = withdraw(api, &arguments.node) {
        log::error!("{RESOURCE} stays on this node: {error}; remove it with kubectl, see docs/kubernetes.md");
    }
}

/// Whether the journal was written lately. The agent appends to it each control period; what it saved is lost soon after it has ended.
fn is_current(config: &Config) -> bool {
    let written = std::fs::metadata(Journal::path(&config.agent.state_dir)).and_then(|metadata| metadata.modified());
    let limit = (config.agent.control_period * 5).max(Duration::from_mins(10));
    // A time ahead of the clock is current.
    written.is_ok_and(|written| written.elapsed().map_or(true, |age| age <= limit))
}

/// Memory that the node's jobs saved at the same time; zero if the agent does not run.
fn promised(roots: &Roots, config: &Config, risk: RatioPpm) -> Result<Bytes> {
    if !is_current(config) {
        return Ok(Bytes::ZERO);
    }
    let dram = meminfo::read(roots)?.total;
    let options = Options { risk, job: None, dram: Some(dram), tier_costs: vec![] };
    match plan::of_directory(&config.agent.state_dir, &options) {
        Ok(plan) => Ok(plan.spare_promise_bytes()),
        // A new node.
        Err(PlanError::NoJournal(_) | PlanError::NoPeriods) => Ok(Bytes::ZERO),
        Err(error) => Err(error.into()),
    }
}

/// Serves the agent's metrics, which are on loopback alone, at another address.
fn pass_metrics_on(config: &Config, address: SocketAddr) -> Result<SocketAddr> {
    let Some(agent) = config.agent.metrics_listen else { bail!("agent.metrics_listen is off, so there are no metrics to pass on") };
    let serve = |address| {
        let url = format!("http://{agent}/metrics");
        let render = move || {
            let body = rollout::prometheus::body(&url).map_err(|error| log::debug!("{error}"));
            body.ok().and_then(|body| String::from_utf8(body).ok()).ok_or(fmt::Error)
        };
        daemon::metrics::serve(address, render)
    };
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
    // A machine without IPv6 has no [::].
    let bound = serve(address).or_else(|error| if address.ip().is_unspecified() { serve(any) } else { Err(error) });
    bound.with_context(|| format!("cannot serve metrics at {address}"))
}
