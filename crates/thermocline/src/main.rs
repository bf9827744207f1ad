//! The `thermocline` binary: arguments, wiring and output. Each command's arguments lie beside its code, in a folder per product.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::FromArgMatches;
use kernel::Roots;

mod arguments;
mod console;
mod exits;
mod fleet;
mod help;
mod machine;
mod options;
mod output;
mod pool;
mod progress;
mod reproduce;
mod signals;
mod table;
mod values;

use arguments::{Arguments, Command};
use fleet::{experiment, model, rollout, traces};
use machine::{
    agent as node_agent, arena, configuration, doctor, import, kubernetes, network, observe, plan, rates, replay, report, run, setup,
    status, top, trial,
};

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().filter_or("THERMOCLINE_LOG", "info")).format_target(false).init();
    let arguments = parse().unwrap_or_else(|error| error.exit());
    let runs_a_command = matches!(arguments.command, Command::Run(_));
    match dispatch(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("thermocline: {}", output::describe(&error));
            if runs_a_command { exits::not_the_command() } else { ExitCode::FAILURE }
        }
    }
}

fn parse() -> Result<Arguments, clap::Error> {
    let matches = help::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches)?;
    help::check_configuration(&arguments, &help::words(&matches))?;
    Ok(arguments)
}

fn dispatch(arguments: Arguments) -> Result<ExitCode> {
    let roots = Roots::host();
    let format = arguments.format;
    let configuration = &arguments.configuration;
    match arguments.command {
        Command::Doctor => return doctor::doctor(&roots, configuration.load(), format),
        Command::Observe(observe) => observe::observe(roots, configuration.load()?, format, &observe)?,
        Command::Setup(arguments) => setup::setup(&roots, configuration, format, &arguments)?,
        Command::Import(arguments) => import::import(format, &arguments)?,
        Command::Run(run) => return run::run(roots, configuration.load()?, format, &run),
        Command::Agent(agent) => node_agent::run(roots, configuration.clone(), format, &agent)?,
        Command::Kubernetes(arguments) => kubernetes::kubernetes(&roots, &configuration.load()?, format, arguments)?,
        Command::Network(arguments) => network::network(&arguments)?,
        Command::Status => status::status(&configuration.load()?, format)?,
        Command::Top(top) => top::top(&configuration.load()?, &top)?,
        Command::Explain(explain) => status::explain(&configuration.load()?, format, &explain)?,
        Command::Hint(hint) => status::hint(&configuration.load()?, format, &hint)?,
        Command::Trial(arguments) => trial::trial(&roots, &configuration.load()?, format, &arguments)?,
        Command::Replay(replay) => return replay::replay(&configuration.load()?, format, &replay),
        Command::Plan(plan) => plan::plan(&roots, &configuration.load()?, format, &plan)?,
        Command::Report(arguments) => report::report(&configuration.load()?, format, &arguments)?,
        Command::Rates(rates) => return rates::rates(&roots, &configuration.load()?, format, &rates),
        Command::Arena(arguments) => arena::arena(format, &arguments)?,
        Command::Trace(trace) => return traces::run(&configuration.load()?, format, &trace),
        Command::Model(model) => model::model(&configuration.load()?, format, &model)?,
        Command::Console(arguments) => console::console(configuration.load()?, format, &arguments)?,
        Command::Experiment(experiment) => experiment::experiment(&configuration.load()?, format, &experiment)?,
        Command::Rollout(command) => return rollout::run(&configuration.load()?, format, &command),
        Command::Reproduce(arguments) => return reproduce::reproduce(format, &arguments),
        Command::Pool(command) => return pool::run(format, &command),
        Command::Config(command) => return configuration::run(configuration, format, &command),
        Command::Completions { shell } => {
            // Into memory first: the generator panics where it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut help::command(), "thermocline", &mut script);
            output::print(options::Format::Text, &(), || String::from_utf8_lossy(&script).into_owned())?;
        }
        Command::Man { directory } => man_pages(&directory)?,
        Command::ReclaimChild { parent } => agent::actuators::reclaimer::child(&roots, parent)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a man page for each command into a directory.
fn man_pages(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(help::command(), directory).with_context(|| format!("cannot write man pages to {}", directory.display()))
}
