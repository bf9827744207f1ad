//! The tree of commands. Each command's own arguments lie beside its code.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::fleet::experiment::Experiment;
use crate::fleet::model::arguments::Model;
use crate::fleet::rollout::arguments::RolloutCommand;
use crate::fleet::traces::TraceCommand;
use crate::machine::agent::AgentArguments;
use crate::machine::configuration::ConfigCommand;
use crate::machine::observe::Observe;
use crate::machine::plan::Plan;
use crate::machine::rates::Rates;
use crate::machine::replay::Replay;
use crate::machine::run::Run;
use crate::machine::status::{Explain, Hint};
use crate::options::{Configuration, Format};
use crate::pool::arguments::PoolCommand;

/// Far memory for Linux: finds the memory that nobody touches, moves it to cheaper memory, and keeps every job
/// inside its slowdown budget.
#[derive(Debug, Parser)]
#[command(name = "thermocline", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// How to print results
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) configuration: Configuration,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell what this machine can do, and how to enable what it cannot; changes nothing
    Doctor,
    /// Watch jobs and show their page ages and what could be saved; moves nothing
    Observe(Observe),
    /// Run a command as a job in a cgroup of its own, with far memory
    Run(Run),
    /// Run the node agent over the configured jobs
    Agent(AgentArguments),
    /// Show what a running agent sees and does
    Status,
    /// Show why a running agent did what it did to a job
    Explain(Explain),
    /// Tell a running agent that a job went to the background, or came back
    Hint(Hint),
    /// Feed a journal through the policies and compare their decisions with the recorded ones
    Replay(Replay),
    /// Advise a limit for each job, and how much memory the machine could promise, from what the journal holds
    Plan(Plan),
    /// Look at how often memory is accessed, and tell how much of it slow memory could hold; moves nothing
    Rates(Rates),
    /// Look at traces, and make of them what a fleet's evaluation reads
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Say what a fleet would save, and feel, under other parameters, from its traces; changes nothing
    Model(Box<Model>),
    /// Compare two groups of machines by their traces: what differs, how sure that is, and how much would differ by chance;
    /// changes nothing
    Experiment(Experiment),
    /// Publish parameters for a fleet, signed, and say which machines follow them
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Say what sharing memory between machines would save: VM traces, and the DRAM that they strand
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write man pages, one per command, into a directory
    Man {
        /// Where to
        directory: PathBuf,
    },
    #[command(hide = true, name = agent::actuators::lru::CHILD_COMMAND)]
    ReclaimStep { parent: u32, cgroup: String, bytes: u64, swappiness: u8 },
}
