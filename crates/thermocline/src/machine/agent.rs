//! `thermocline agent`: the node agent over the configured jobs.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use agent::{Agent, Message, Options};
use agent::{metrics, socket};
use anyhow::{Context, Result};
use clap::Args;
use config::{Config, Guidance, Poll};
use kernel::Roots;
use rollout::follow::{Follow, Follower, Settings};

use super::job_rules::{self, Source};
use crate::options::{Configuration, Format};
use crate::output::print;
use crate::signals;
use crate::values::duration;

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Decide and record; move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Stop after this time [default: at SIGTERM]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) r#for: Option<std::time::Duration>,
    /// Job rules that another program writes, tried before those of the configuration, and read again when they change
    #[arg(long, value_name = "FILE")]
    pub(crate) job_rules: Option<PathBuf>,
    /// Restore what a killed agent changed, and exit
    #[arg(long, conflicts_with_all = ["dry_run", "for", "job_rules"])]
    pub(crate) restore: bool,
}

/// Runs the agent, or restores what an agent that was killed left behind.
pub(crate) fn run(roots: Roots, configuration: Configuration, format: Format, arguments: &AgentArguments) -> Result<()> {
    let config = configuration.load()?;
    if arguments.restore {
        let done = ::agent::scheduler::restore(&roots, &config)?;
        return print(format, &done, || if done.is_empty() { "nothing to restore\n".to_owned() } else { done.join("\n") + "\n" });
    }
    let source = Source::new(configuration, arguments.job_rules.clone());
    serve(roots, source, config, format, arguments)
}

fn serve(roots: Roots, source: Source, config: Config, format: Format, arguments: &AgentArguments) -> Result<()> {
    // Before any thread starts.
    match kernel::cgroup_namespace::enter_first(&roots) {
        Ok(true) => log::info!("entered the machine's cgroup namespace"),
        Ok(false) => {}
        Err(error) => log::warn!("processes of jobs may not be recognized, because cgroup paths are relative to this container: {error}"),
    }
    let (config, rules) = source.start(config)?;
    let again = source.clone();
    let (sender, receiver) = signals::messages_of(move || again.reload())?;
    source.follow(rules, sender.clone(), job_rules::PERIOD)?;
    let options = Options { dry_run: arguments.dry_run, ..Options::default() };
    let (runtime_dir, listen, network) = (config.agent.runtime_dir.clone(), config.agent.metrics_listen, config.agent.network.clone());
    let following = follower(&roots, &config);
    let mut node = Agent::new(roots, config, options)?;
    let _follow = following.map(|(follower, remembered)| follow(&mut node, follower, remembered, sender.clone())).transpose()?;
    socket::serve(&runtime_dir, node.view(), sender)
        .with_context(|| format!("cannot make the control socket in {}", runtime_dir.display()))?;
    if let Some(address) = listen {
        let served = match &network {
            Some(socket) => metrics::offer(socket, address, node.view()),
            None => metrics::serve(address, node.view()).map(|bound| log::info!("metrics on http://{bound}/metrics")),
        };
        // The agent works without metrics, for example if another service uses the port.
        if let Err(error) = served {
            log::error!("no metrics on {address}: {error}; set agent.metrics_listen");
        }
    }
    daemon::notify_ready();
    node.run(&receiver, arguments.r#for, &mut |_, view| {
        if format == Format::Json {
            let _ = print(format, &view.brief(), String::new);
        }
    })?;
    Ok(())
}

/// The follower of the configured rollout, and the guidance that an earlier agent stored.
fn follower(roots: &Roots, config: &Config) -> Option<(Follower, rollout::Result<Option<Guidance>>)> {
    let rollout = &config.rollout;
    (!rollout.store.is_empty()).then(|| {
        Follower::new(Settings {
            store: rollout.store.clone(),
            network: config.agent.network.clone(),
            root: rollout.root.clone(),
            poll: rollout.poll,
            state_dir: config.agent.state_dir.clone(),
            machine: agent::record::machine_name(roots, config),
            cluster: config.trace.cluster.clone(),
        })
    })
}

/// Applies the stored guidance and starts the thread that polls for new guidance.
fn follow(
    node: &mut Agent,
    follower: Follower,
    remembered: rollout::Result<Option<Guidance>>,
    sender: SyncSender<Message>,
) -> Result<Follow> {
    let (guidance, error) = match remembered {
        Ok(guidance) => (guidance, None),
        Err(error) => (None, Some(error.to_string())),
    };
    node.follow(Poll { guidance, error, ..Poll::default() });
    let member = OnceCell::new();
    let deliver = move |poll| {
        // The following thread is a member from its first poll on. Its polls have timeouts of their own.
        member.get_or_init(|| daemon::watchdog::join("rollout", Duration::MAX));
        // Sending fails after the loop has ended.
        drop(sender.send(Message::Follow(Box::new(poll))));
    };
    Ok(rollout::follow::start(follower, deliver)?)
}
