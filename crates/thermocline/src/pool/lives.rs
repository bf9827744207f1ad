//! `thermocline pool lives`: the guests of a pool host that have ended, in a store where models are trained on those of all hosts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use ::rollout::sha256_of;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use manager::connection::segment;
use pool_host::host::lives::{LINE_MAX, files};
use pool_host::settings::Settings;
use serde::Serialize;
use store::{LocalCopy, Store};
use units::Bytes;

use crate::options::Format;
use crate::output::print;

/// The extension of the objects.
const EXTENSION: &str = "jsonl";
/// As many digits of the first line's hash as make accidental equality impossible among the files of one host.
const DIGITS: usize = 16;

#[derive(Debug, Subcommand)]
pub(crate) enum Lives {
    /// Send the records of guests that have ended on this host to the store of its configuration. Run it from a timer
    Send(Send),
}

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// The host's configuration file, with the store in lives_store
    #[arg(long, value_name = "FILE", default_value = "/etc/thermocline/pool-host.toml")]
    config: PathBuf,
    /// Show what would be done; send nothing
    #[arg(long)]
    dry_run: bool,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Sent {
    host: String,
    store: String,
    files: Vec<SentFile>,
    dry_run: bool,
}

/// What was done with one file.
#[derive(Debug, Serialize)]
struct SentFile {
    file: PathBuf,
    /// Its path in the store.
    object: String,
    bytes: Bytes,
    change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Sent,
    Unchanged,
}

/// Runs a command about the lives of guests.
pub(super) fn lives(format: Format, command: &Lives) -> Result<()> {
    match command {
        Lives::Send(arguments) => send(format, arguments),
    }
}

fn send(format: Format, arguments: &Send) -> Result<()> {
    let file = &arguments.config;
    let settings = Settings::load(file)?;
    let Some(url) = settings.lives_store else {
        bail!("{} does not set lives_store: name a directory or s3://bucket/prefix for the records of guests", file.display());
    };
    let host = settings.host.name;
    // A store of the host's own part, so that its list is not that of all hosts.
    let own = Store::open(&format!("{}/{}", url.trim_end_matches('/'), segment(&host)))?;
    let there: BTreeMap<String, Bytes> = own.list(EXTENSION)?.into_iter().map(|object| (object.path, object.size)).collect();
    let mut sent = Vec::new();
    for file in files(&settings.state) {
        let Some((name, bytes)) = name_and_size(&file)? else { continue };
        // The file is only appended to: one of the same size is the same.
        let change = if there.get(&name) == Some(&bytes) { Change::Unchanged } else { Change::Sent };
        if change == Change::Sent && !arguments.dry_run {
            own.put(&name, &file)?;
        }
        sent.push(SentFile { file, object: format!("{}/{name}", segment(&host)), bytes, change });
    }
    let sent = Sent { host, store: url, files: sent, dry_run: arguments.dry_run };
    print(format, &sent, || text(&sent))
}

/// The name of a file in the store, and its size; `None` if it does not exist or has no line.
///
/// The name is a hash of its first line: the same for as long as the file grows and after it was put aside, and another one for the
/// file after it.
fn name_and_size(file: &Path) -> Result<Option<(String, Bytes)>> {
    let failed = || format!("cannot read {}", file.display());
    let opened = match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(failed)?,
    };
    let bytes = opened.metadata().with_context(failed)?.len();
    let mut line = Vec::new();
    BufReader::new(opened).take(LINE_MAX).read_until(b'\n', &mut line).with_context(failed)?;
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    let digest = sha256_of(&line);
    Ok(Some((format!("{}.{EXTENSION}", digest.get(..DIGITS).unwrap_or(&digest)), Bytes(bytes))))
}

fn text(sent: &Sent) -> String {
    let Sent { host, store, files, dry_run } = sent;
    if files.is_empty() {
        return format!("no guest of {host} has ended yet; nothing to send to {store}\n");
    }
    let mut text = String::new();
    for SentFile { file, object, bytes, change } in files {
        let done = match change {
            Change::Sent if *dry_run => "would be sent",
            Change::Sent => "sent",
            Change::Unchanged => "is there",
        };
        let _ = writeln!(text, "{} ({bytes}) {done}: {object} in {store}", file.display());
    }
    text
}

/// The files of all hosts in a store.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// The files, which exist as long as this does.
    pub(super) files: Vec<LocalCopy>,
    /// Objects that are no records of guests, with the reason. One host cannot stop the import of all others.
    pub(super) skipped: Vec<String>,
}

/// Gets the files that hosts have sent.
///
/// # Errors
/// If the store cannot be read, or has no object of the kind.
pub(super) fn collect(url: &str) -> Result<Collected> {
    let store = Store::open(url)?;
    let objects = store.list(EXTENSION)?;
    if objects.is_empty() {
        bail!("{url} has no file *.{EXTENSION}: `thermocline pool lives send` on a pool host sends them there (lives_store)");
    }
    let mut collected = Collected::default();
    for object in objects {
        let copy = store.fetch(&object.path)?;
        match vmtrace::import::is_of_guests(copy.path()) {
            Ok(true) => collected.files.push(copy),
            Ok(false) => collected.skipped.push(format!("{}: it does not begin with the record of a guest", object.path)),
            Err(error) => collected.skipped.push(format!("{}: {error}", object.path)),
        }
    }
    Ok(collected)
}
