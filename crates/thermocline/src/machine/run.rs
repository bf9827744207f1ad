//! `thermocline run`: one command in a cgroup of its own, with far memory.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command as Process, ExitCode};
use std::sync::mpsc::SyncSender;

use agent::{Agent, Message, Options};
use anyhow::{Context, Result};
use clap::Args;
use config::{Class, Config, JobRule};
use kernel::Roots;
use kernel::cgroup::{self, Cgroup, CgroupRoot};
use serde_json::json;

use super::text;
use crate::options::Format;
use crate::output::print;
use crate::signals;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The class of the command
    #[arg(long, default_value = "standard", value_parser = clap::builder::PossibleValuesParser::new(config::Class::NAMES))]
    pub(crate) class: String,
    /// Decide and show; move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// `thermocline run -- CMD`.
pub(crate) fn run(roots: Roots, mut config: Config, format: Format, arguments: &Run) -> Result<ExitCode> {
    let class = Class::from_name(&arguments.class).unwrap_or(Class::Standard);
    let (sender, receiver) = signals::messages()?;
    let root = CgroupRoot::probe(&roots)?;
    let name = format!("/thermocline.run-{}", std::process::id());
    config.jobs = vec![JobRule::new(&name, class)];
    let options = Options { dry_run: arguments.dry_run, ephemeral: true, ..Options::default() };
    // The agent starts first: without a tracker the command is not started.
    let mut node = Agent::new(roots, config, options)?;
    let job = cgroup::create(&root, &name).with_context(|| format!("cannot create the cgroup {name}"))?;
    let outcome = run_in(&job, &arguments.command, &mut node, format, sender, &receiver);
    if let Err(error) = job.remove() {
        log::warn!("{error}");
    }
    outcome
}

fn run_in(
    job: &Cgroup,
    command: &[std::ffi::OsString],
    node: &mut Agent,
    format: Format,
    sender: SyncSender<Message>,
    receiver: &std::sync::mpsc::Receiver<Message>,
) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("no command given")?;
    // The shell enters the cgroup before it executes the command, so that all of its pages are charged there.
    let mut child = Process::new("/bin/sh")
        .args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#])
        .arg(job.path())
        .arg(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let pid = child.id();
    let waiter = std::thread::spawn(move || {
        let status = child.wait();
        // Sending fails after the loop has ended.
        let _ = sender.send(Message::Stop);
        status
    });
    let mut last = None;
    let ran = node.run(receiver, None, &mut |_, view| last = Some(json!(view.brief())));
    if !waiter.is_finished() {
        // A signal stopped the agent: terminate the command too.
        let _ = Process::new("kill").arg(pid.to_string()).status();
    }
    let status = waiter.join().map_err(|_| anyhow::anyhow!("the thread that waits for the command panicked"))??;
    ran?;
    if let Some(view) = last {
        match format {
            Format::Json => print(format, &view, String::new)?,
            Format::Text => eprint!("{}", text::status(&view)),
        }
    }
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
