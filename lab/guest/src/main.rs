//! `labguest`: the program that the lab puts into its guests.
//!
//! It serves the harness on a control channel, and provides the guests' workloads: programs whose memory accesses are
//! known, and load generators for servers.

mod attack;
mod content;
mod control;
mod crowd;
mod end_thread;
mod inspect;
mod latencies;
mod linux;
mod load;
mod mappers;
mod marks;
mod remote;
mod rounding;
mod sessions;
mod verify;
mod waits;
mod workload;
mod zipf;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The program that runs inside lab guests.
#[derive(Parser)]
#[command(name = "labguest", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the control channel: one JSON request per line, one JSON reply per line
    Control(control::Arguments),
    /// Send requests to a server
    Load(load::Arguments),
    /// Run a program whose memory accesses are known
    Workload(workload::Arguments),
    /// Run a server that keeps memory for each request, and accepts fewer when its cgroup runs out of memory
    Sessions(sessions::Arguments),
    /// Run many small jobs, each in a cgroup of its own
    Crowd(crowd::Arguments),
    /// Report how much of a workload's memory is idle, and compare that with a tracker's verdict
    Truth(workload::TruthArguments),
    /// Report how much of a workload's memory is present, swapped or absent
    Residency(workload::ResidencyArguments),
    /// Report how many times each 2 MiB block of a workload was accessed so far
    Accesses(workload::AccessesArguments),
    /// Report periodically on which NUMA nodes a workload's memory is and how often it was accessed there
    Nodes(workload::NodesArguments),
    /// Map a file that other processes map as well, and access a part of it
    Mappers(mappers::Arguments),
    /// Read or write memory of another process through the kernel, without mapping it
    Remote(remote::Arguments),
    /// Report where a server keeps what a load filled it with, how popular that is, and what of it is on a slow node
    Stored(load::stored::Arguments),
    /// Check again and again that memory is as it was written
    Verify(verify::Arguments),
    /// Time how long the kernel makes a process with idle memory wait
    Waits(waits::Arguments),
    /// Hold marks in memory, or search for them in a node's physical memory
    Marks(marks::Arguments),
    /// As a user without privileges, attack the agent's listener and files
    Attack(attack::Arguments),
    /// End one thread of another process, which goes on without it
    EndThread(end_thread::Arguments),
    /// Report the limits, zswap parameters and DAMON threads that are set on this machine
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
        Command::Mappers(arguments) => mappers::run(&arguments),
        Command::Remote(arguments) => remote::run(&arguments),
        Command::Stored(arguments) => load::stored::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Waits(arguments) => waits::run(&arguments),
        Command::Marks(arguments) => marks::run(&arguments),
        Command::Attack(arguments) => attack::run(&arguments),
        Command::EndThread(arguments) => end_thread::run(&arguments),
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
