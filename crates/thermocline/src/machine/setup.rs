//! `thermocline setup`: proposes a configuration for what was observed, as a difference from the present one.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use advise::setup::{Far, Observation, Proposal, propose};
use agent::socket;
use anyhow::{Context, Result, bail};
use clap::Args;
use config::{Config, MAIN_FILE};
use kernel::Roots;
use serde_json::json;
use similar::TextDiff;
use trace::calendar;
use units::UnixMillis;

use super::kept::Kept;
use crate::options::{Configuration, Format};
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct Setup {
    /// Write the proposed file; the present one is kept beside it
    #[arg(long)]
    pub(crate) write: bool,
}

/// `thermocline setup`.
pub(crate) fn setup(roots: &Roots, configuration: &Configuration, format: Format, arguments: &Setup) -> Result<()> {
    let config = configuration.load()?;
    let path = configuration.config.clone().unwrap_or_else(|| PathBuf::from(MAIN_FILE));
    let present = read(&path)?;
    let observed = observation(&config)?;
    let text = present.as_deref().unwrap_or_default();
    let proposal = propose(roots, text, &config, &observed, Far::read(roots))
        .with_context(|| format!("cannot add rules to {}; write them by hand", path.display()))?;
    let changes = proposal.text != text;
    let undo = if arguments.write && changes { Some(write(&path, present.is_some(), &proposal.text)?) } else { None };
    let shown = json!({ "file": path, "proposal": proposal, "changes": changes, "written": undo.is_some(), "undo": undo });
    print(format, &shown, || words(&path, text, &proposal, undo.as_deref()))
}

/// The text of the file; `None` if there is none.
fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// What a running agent observes, or what `observe` kept.
fn observation(config: &Config) -> Result<Observation> {
    if let Ok(view) = socket::ask(&config.agent.runtime_dir, "status") {
        return serde_json::from_value(view).context("the running agent is of another version; restart it");
    }
    match Kept::below(&config.agent.state_dir).observation()? {
        Some(observed) => Ok(observed),
        None => bail!("nothing was observed on this machine yet; run `thermocline observe --for 30m` first"),
    }
}

/// Writes the file, and keeps the present one. Returns the command that undoes it.
fn write(path: &Path, exists: bool, text: &str) -> Result<String> {
    let failed = || format!("cannot write {}", path.display());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).with_context(failed)?;
    let mut undo = format!("rm {}", path.display());
    let mut mode = 0o644;
    if exists {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let backup = format!("{}.{}", path.display(), calendar::time(UnixMillis(units::millis(now))).replace([' ', ':'], "-"));
        fs::copy(path, &backup).with_context(|| format!("cannot keep the present file as {backup}"))?;
        mode = fs::metadata(path).with_context(failed)?.permissions().mode();
        undo = format!("mv {backup} {}", path.display());
    }
    let mut file = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode)).with_context(failed)?;
    file.as_file().sync_all().with_context(failed)?;
    file.persist(path).map_err(|error| error.error).with_context(failed)?;
    Ok(undo)
}

fn words(path: &Path, text: &str, proposal: &Proposal, undo: Option<&str>) -> String {
    let name = path.display().to_string();
    let mut shown = proposal.remarks.iter().map(|remark| format!("# {remark}\n")).collect::<String>();
    if proposal.text == text {
        return shown + "nothing to change\n";
    }
    shown += &TextDiff::from_lines(text, &proposal.text).unified_diff().header(&name, &format!("{name} (proposed)")).to_string();
    match undo {
        None => shown + "nothing was written; `thermocline setup --write` writes it\n",
        Some(undo) => {
            shown
                + &format!(
                    "written; undo: {undo}\nthen: systemctl reload-or-restart thermocline-agent, and `thermocline status` after 15 minutes\n"
                )
        }
    }
}
