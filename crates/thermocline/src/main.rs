//! The one binary: arguments, wiring, output. The only crate that knows all others.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser};
use config::Config;
use kernel::Roots;

mod arguments;
mod commands;
mod doctor;
mod emulate;
mod experiment;
mod knobs;
mod model;
mod notify;
mod plan;
mod pool;
mod progress;
mod rates;
mod rollout;
mod signals;
mod text;
mod traces;

use arguments::{Arguments, Command, ConfigCommand, Format};

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().filter_or("THERMOCLINE_LOG", "info")).format_target(false).init();
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("thermocline: {}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, but for those that are part of the words before them.
fn in_words(error: &anyhow::Error) -> String {
    let mut words = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !words.contains(&cause) {
            words += ": ";
            words += &cause;
        }
    }
    words
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let roots = Roots::host();
    let format = arguments.format;
    let load = || -> Result<Config> { Ok(Config::load(arguments.configuration.config.as_deref(), &arguments.configuration.overrides)?) };
    match arguments.command {
        Command::Doctor => return doctor::doctor(&roots, load(), format),
        Command::Observe(observe) => commands::observe(roots, load()?, format, &observe)?,
        Command::Run(run) => return commands::run(roots, load()?, format, &run),
        Command::Agent(agent) if agent.restore => {
            let done = agent::node::restore(&roots, &load()?)?;
            print(format, &done, || if done.is_empty() { "nothing was left behind\n".to_owned() } else { done.join("\n") + "\n" })?;
        }
        Command::Agent(agent) => commands::agent(roots, load()?, format, &agent)?,
        Command::Status => {
            let view = agent::socket::ask(&load()?.agent.runtime_dir, "status")?;
            print(format, &view, || text::status(&view))?;
        }
        Command::Explain(explain) => commands::explain(&load()?, format, &explain)?,
        Command::Hint(hint) => commands::hint(&load()?, format, &hint)?,
        Command::Replay(replay) => return commands::replay(&load()?, format, &replay),
        Command::Plan(arguments) => plan::plan(&roots, &load()?, format, &arguments)?,
        Command::Rates(arguments) => return rates::rates(&roots, &load()?, format, &arguments),
        Command::Emulate(arguments) => return emulate::emulate(format, &arguments),
        Command::Chase { pages, threads } => ::emulate::chase::run(pages, threads)?,
        Command::Trace(trace) => return traces::run(&load()?, format, &trace),
        Command::Model(arguments) => model::model(&load()?, format, &arguments)?,
        Command::Experiment(arguments) => experiment::experiment(&load()?, format, &arguments)?,
        Command::Rollout(command) => return rollout::run(&load()?, format, &command),
        Command::Pool(command) => return pool::run(format, &command),
        Command::Config(ConfigCommand::Check) => {
            let checked = Config::load(arguments.configuration.config.as_deref(), &arguments.configuration.overrides);
            return commands::check(format, checked);
        }
        Command::Config(ConfigCommand::Show) => {
            let config = load()?;
            print(format, &config, || config.to_toml())?;
        }
        Command::Config(ConfigCommand::Knobs) => knobs::knobs(&load()?, format)?,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "thermocline", &mut std::io::stdout());
        }
        Command::Man { directory } => {
            std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
            clap_mangen::generate_to(Arguments::command(), &directory)
                .with_context(|| format!("cannot write man pages to {}", directory.display()))?;
        }
        Command::ReclaimStep { parent, cgroup, bytes, swappiness } => {
            agent::actuators::lru::reclaim_child(&roots, parent, &cgroup, units::Bytes(bytes), swappiness)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one result in the wanted format.
fn print<T: serde::Serialize>(format: Format, value: &T, text: impl FnOnce() -> String) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let written = match format {
        Format::Text => out.write_all(text().as_bytes()),
        Format::Json => {
            let mut line = serde_json::to_vec(value)?;
            line.push(b'\n');
            out.write_all(&line)
        }
    };
    match written.and_then(|()| out.flush()) {
        // Whoever read us has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => bail!("cannot print: {error}"),
        Ok(()) => Ok(()),
    }
}
