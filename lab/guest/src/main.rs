//! `labguest`: the one program that the lab puts into its guests.
//!
//! It answers the harness on a control channel, and it is the work that the guests do: a program whose page
//! accesses are known, and loads for real servers.

mod content;
mod control;
mod crowd;
mod inspect;
mod latencies;
mod linux;
mod load;
mod marks;
mod rounding;
mod sessions;
mod workload;
mod zipf;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What runs inside a lab guest.
#[derive(Parser)]
#[command(name = "labguest", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the control channel: one JSON request per line, one JSON reply per line.
    Control(control::Arguments),
    /// Load a real server with requests.
    Load(load::Arguments),
    /// Be a program whose accesses to memory are known.
    Workload(workload::Arguments),
    /// Be a server that keeps memory for each request, and takes fewer when its cgroup runs out of it.
    Sessions(sessions::Arguments),
    /// Be many small jobs, each in a cgroup of its own.
    Crowd(crowd::Arguments),
    /// Tell how much of a workload's memory is idle, and compare that with a tracker's verdict.
    Truth(workload::TruthArguments),
    /// Tell how much of a workload's memory is present, swapped or absent.
    Residency(workload::ResidencyArguments),
    /// Tell how many times each 2 MiB block of a workload was accessed so far.
    Accesses(workload::AccessesArguments),
    /// Tell, again and again, on which NUMA nodes a workload's memory is and how often it was accessed there.
    Nodes(workload::NodesArguments),
    /// Hold marks in memory, or look for them in a node's physical memory.
    Marks(marks::Arguments),
    /// Tell which limits, zswap parameters and DAMON threads are set on this machine.
    Inspect(inspect::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Control(arguments) => control::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Workload(arguments) => workload::run(&arguments),
        Command::Sessions(arguments) => sessions::run(&arguments),
        Command::Crowd(arguments) => crowd::run(&arguments),
        Command::Truth(arguments) => workload::truth(&arguments),
        Command::Residency(arguments) => workload::residency(&arguments),
        Command::Accesses(arguments) => workload::accesses(&arguments),
        Command::Nodes(arguments) => workload::nodes(&arguments),
        Command::Marks(arguments) => marks::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("labguest: {error:#}");
            ExitCode::FAILURE
        }
    }
}
