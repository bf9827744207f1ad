//! `thermocline pool`: memory that machines share. Traces of VMs, stranded memory, predictions, and the services of a pool.

use std::process::ExitCode;

use anyhow::Result;

mod accesses;
pub(crate) mod arguments;
mod characterise;
mod doctor;
mod generate;
mod host;
mod import;
mod judge;
mod lives;
mod manager;
mod memory;
mod models;
mod predict;
mod rollout;
mod scheduler;
mod show;
mod simulate;
pub(crate) mod status;
mod stranding;
mod vm;

use crate::options::Format;
use arguments::PoolCommand;

/// Runs a command about pools.
pub(crate) fn run(format: Format, command: &PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::Doctor => return doctor::doctor(format),
        PoolCommand::Accesses(arguments) => return accesses::accesses(format, arguments),
        PoolCommand::Scheduler(arguments) => return scheduler::scheduler(format, arguments),
        PoolCommand::Models(command) => return models::models(format, command),
        PoolCommand::Import(arguments) => return import::import(format, arguments),
        PoolCommand::Generate(arguments) => generate::generate(format, arguments)?,
        PoolCommand::Show(arguments) => show::show(&arguments.trace, format)?,
        PoolCommand::Stranding(arguments) => stranding::stranding(format, arguments)?,
        PoolCommand::Simulate(arguments) => simulate::simulate(format, arguments)?,
        PoolCommand::Characterise(arguments) => characterise::characterise(format, arguments)?,
        PoolCommand::Predict(arguments) => predict::predict(format, arguments)?,
        PoolCommand::Manager(arguments) => manager::manager(format, arguments)?,
        PoolCommand::Certificates(arguments) => manager::certificates(format, arguments)?,
        PoolCommand::Status(arguments) => status::status(format, arguments)?,
        PoolCommand::Emc(command) => status::emc(format, command)?,
        PoolCommand::Fenced(arguments) => status::fenced(format, arguments)?,
        PoolCommand::Memory(arguments) => memory::memory(format, arguments)?,
        PoolCommand::Lives(command) => lives::lives(format, command)?,
        PoolCommand::Host(arguments) => host::host(format, arguments)?,
        PoolCommand::Vm(arguments) => vm::vm(format, arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
