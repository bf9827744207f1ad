//! `labguest`: the one program that the lab puts into its guests.
//!
//! It answers the harness on a control channel, and it is the work that the guests do: a program whose page
//! accesses are known, and loads for real servers.

mod content;
mod control;
mod linux;
mod load;
mod rounding;

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
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Control(arguments) => control::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
    }
}
