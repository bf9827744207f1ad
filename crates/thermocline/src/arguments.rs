//! The tree of commands. Each command's own arguments lie beside its code.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::console::Console;
use crate::fleet::experiment::Experiment;
use crate::fleet::model::arguments::Model;
use crate::fleet::rollout::arguments::RolloutCommand;
use crate::fleet::traces::TraceCommand;
use crate::machine::agent::AgentArguments;
use crate::machine::arena::Arena;
use crate::machine::configuration::ConfigCommand;
use crate::machine::import::Import;
use crate::machine::kubernetes::Kubernetes;
use crate::machine::network::Network;
use crate::machine::observe::Observe;
use crate::machine::plan::Plan;
use crate::machine::rates::Rates;
use crate::machine::replay::Replay;
use crate::machine::report::ReportArguments;
use crate::machine::run::Run;
use crate::machine::setup::Setup;
use crate::machine::status::{Explain, Hint};
use crate::machine::top::Top;
use crate::machine::trial::Trial;
use crate::options::{Configuration, Format};
use crate::pool::arguments::PoolCommand;
use crate::reproduce::Reproduce;

/// Far memory for Linux: finds memory that jobs do not use, moves it to cheaper memory, and keeps every job within its slowdown budget.
#[derive(Debug, Parser)]
#[command(name = "thermocline", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Format of results
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) configuration: Configuration,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check what this machine supports and how to enable what is missing; changes nothing
    Doctor,
    /// Show the page ages of jobs and what could be saved; moves nothing
    Observe(Observe),
    /// Propose a configuration for what was observed, as a difference from the present one; writes with --write only
    Setup(Setup),
    /// Propose a configuration from that of oomd, senpai, damo, memtierd or Katalyst, and name what has no equivalent
    Import(Import),
    /// Run a command as a job in a cgroup of its own, with far memory
    Run(Run),
    /// Run the node agent over the configured jobs
    Agent(AgentArguments),
    /// Write the rules of a Kubernetes node's pods for the agent, as their annotations choose, and publish the node's promised memory
    Kubernetes(Kubernetes),
    /// Have the agent's connections, without privileges: its metrics, and stores of traces and bundles
    Network(Network),
    /// Show the state of a running agent and its jobs
    Status,
    /// Watch a running agent's jobs on a screen that updates itself
    Top(Top),
    /// Show a running agent's last decisions for a job, with their reasons
    Explain(Explain),
    /// Send a running agent a hint: a job is in the background or in the foreground
    Hint(Hint),
    /// Measure by what an application reports whether far memory slows it down: on and off in random order
    Trial(Box<Trial>),
    /// Replay a journal through the policies and compare the decisions with the recorded ones
    Replay(Replay),
    /// Advise a memory limit for each job and how much memory the machine can promise, from the journal
    Plan(Plan),
    /// Write a page of what the agent saved and whether its jobs' objectives were kept, from the journal; or of a fleet, a rollout or a pool
    Report(ReportArguments),
    /// Measure how often memory is accessed and how much of it slow memory could hold; moves nothing
    Rates(Rates),
    /// Compare control laws of far memory on access traces, at equal time lost; the same scores at every run
    Arena(Arena),
    /// List, show, validate, merge, export and compact traces
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Replay traces under other parameters: what a fleet would save, and at which promotion rate; changes nothing
    Model(Box<Model>),
    /// Serve a page for browsers: savings from journals and traces, what other parameters would save, a rollout, and a pool
    Console(Console),
    /// Compare two groups of machines by their traces: differences with confidence intervals, beside the noise; changes nothing
    Experiment(Experiment),
    /// Publish signed parameter bundles and roll them out to machines in stages
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Memory that machines share: VM traces, savings of a pool, the pool manager and its hosts
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Measure figures of the papers that this program follows, and say which are reproduced
    Reproduce(Reproduce),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages, one per command, into a directory
    Man {
        /// The directory; created if missing
        directory: PathBuf,
    },
    #[command(hide = true, name = agent::actuators::reclaimer::CHILD_COMMAND)]
    ReclaimChild { parent: u32 },
}
