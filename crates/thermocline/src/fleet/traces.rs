//! `thermocline trace`: lists, shows, validates, merges, exports, compacts and anonymises traces.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use config::Config;
use globset::{GlobBuilder, GlobMatcher};
use indicatif::ProgressBar;
use serde::Serialize;
use trace::check::{self, Kind};
use trace::{Basis, Entry, FIGURES, FileSummary, Merge, Writer, calendar, schema};
use units::{Bytes, Millis, UnixMillis};

use crate::options::Format;
use crate::output::print;
use crate::progress::progress;
use crate::table::Table;

mod anonymise;
pub(crate) mod inputs;
mod show;

use inputs::{Inputs, Local};

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// List the files with their content
    List(Traces),
    /// Show each job: memory, coverage, promotions, stalls
    Show(TracesOfJobs),
    /// Read everything and report inconsistent entries; exits with 1 if there are any
    Validate(Traces),
    /// Merge files into one sorted file
    Merge(TracesInto),
    /// Print every entry: as comma-separated values, or with --format json as one JSON object per line
    Export(TracesOfJobs),
    /// Write the compacted form, which the model replays fastest; compacted files among the traces are extended by the others' days
    Compact(TracesInto),
    /// Write the traces without names, to be given to others; says what remains of each column
    Anonymise(Anonymise),
}

#[derive(Debug, Args)]
pub(crate) struct Traces {
    /// Files, directories or s3://bucket/prefix [default: the configured trace.store]
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TracesOfJobs {
    #[command(flatten)]
    pub(crate) traces: Traces,
    /// Only jobs whose cgroup matches
    #[arg(long, value_name = "PATTERN")]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TracesInto {
    #[command(flatten)]
    pub(crate) traces: Traces,
    /// The file to write: a path, or s3://bucket/path
    #[arg(long, value_name = "FILE")]
    pub(crate) to: String,
}

#[derive(Debug, Args)]
pub(crate) struct Anonymise {
    #[command(flatten)]
    pub(crate) traces: Traces,
    /// The file to write: a path, or s3://bucket/path
    #[arg(long, value_name = "FILE")]
    pub(crate) to: String,
    /// The jobs that a class must have to keep its name
    #[arg(long, value_name = "JOBS", default_value_t = 5)]
    pub(crate) jobs_min: usize,
}

/// Runs a command over traces.
pub(crate) fn run(config: &Config, format: Format, command: &TraceCommand) -> Result<ExitCode> {
    match command {
        TraceCommand::List(traces) => list(&find(config, traces)?, format)?,
        TraceCommand::Validate(traces) => return validate(&find(config, traces)?, format),
        TraceCommand::Show(arguments) => {
            let inputs = find(config, &arguments.traces)?;
            show::show(&mut Stream::open(&inputs, arguments.job.as_deref())?, format)?;
        }
        TraceCommand::Export(arguments) => {
            let inputs = find(config, &arguments.traces)?;
            export(&mut Stream::open(&inputs, arguments.job.as_deref())?, format)?;
        }
        TraceCommand::Merge(arguments) => {
            into(config, format, arguments, |path, basis, stream| {
                let mut writer = Writer::create(path, basis)?;
                while let Some(entry) = stream.next()? {
                    writer.push(&entry)?;
                }
                Ok(writer.finish()?)
            })?;
        }
        TraceCommand::Anonymise(arguments) => anonymise::anonymise(&find(config, &arguments.traces)?, arguments, format)?,
        TraceCommand::Compact(arguments) => compact(&find(config, &arguments.traces)?, &arguments.to, format)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn find(config: &Config, traces: &Traces) -> Result<Inputs> {
    match traces.urls.as_slice() {
        [] if config.trace.store.is_empty() => bail!("name files, directories or stores of traces; none is configured as trace.store"),
        [] => Inputs::find(std::slice::from_ref(&config.trace.store)),
        urls => Inputs::find(urls),
    }
}

/// The entries of all files, sorted, of the requested jobs.
struct Stream {
    merge: Merge,
    basis: Basis,
    job: Option<GlobMatcher>,
    progress: ProgressBar,
    /// Keeps the copies until they are read.
    _files: Vec<Local>,
}

impl Stream {
    fn open(inputs: &Inputs, job: Option<&str>) -> Result<Self> {
        let pattern = |job| GlobBuilder::new(job).literal_separator(true).build();
        let job = job.map(pattern).transpose().context("--job")?.map(|glob| glob.compile_matcher());
        let files = inputs.files.iter().map(|input| inputs.local(input)).collect::<Result<Vec<_>>>()?;
        let merge = Merge::of(files.iter().map(|file| file.path().to_owned()))?;
        let basis = merge.basis().context("no trace")?;
        Ok(Self { merge, basis, job, progress: progress("entries", 0), _files: files })
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        for entry in self.merge.by_ref() {
            let entry = entry?;
            self.progress.inc(1);
            if self.job.as_ref().is_none_or(|job| job.is_match(&entry.id.job)) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// A file as `list` shows it.
#[derive(Debug, Serialize)]
struct Listed {
    file: String,
    kind: &'static str,
    bytes: u64,
    entries: Option<u64>,
    #[serde(flatten)]
    partitions: BTreeMap<String, String>,
    #[serde(flatten)]
    basis: Option<ListedBasis>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct ListedBasis {
    version: Option<u32>,
    thresholds_scans: Vec<u8>,
    scan_period_ms: Millis,
    page_bytes: Bytes,
}

impl ListedBasis {
    fn of(basis: &Basis, version: Option<u32>) -> Self {
        let Basis { thresholds, scan_period_ms, page_bytes } = *basis;
        Self { version, thresholds_scans: thresholds.into(), scan_period_ms, page_bytes }
    }
}

fn list(inputs: &Inputs, format: Format) -> Result<()> {
    let progress = progress("files", inputs.files.len() as u64);
    let mut listed = Vec::new();
    for input in &inputs.files {
        let opened = inputs.local(input).and_then(|local| Ok(check::open(local.path())?));
        // `key=value` of each directory below the store.
        let partitions = input.below.split('/').filter_map(|part| part.split_once('='));
        let mut file = Listed {
            file: input.name.clone(),
            kind: "",
            bytes: input.bytes,
            entries: None,
            partitions: partitions.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            basis: None,
            error: None,
        };
        match opened {
            Ok(Kind::Trace(trace)) => {
                (file.kind, file.entries) = ("trace", Some(trace.entries()));
                file.basis = Some(ListedBasis::of(trace.basis(), Some(trace.version())));
            }
            Ok(Kind::Compacted(compacted)) => {
                (file.kind, file.entries) = ("compacted", Some(compacted.entries()?));
                file.basis = Some(ListedBasis::of(compacted.basis(), None));
            }
            Err(error) => (file.kind, file.error) = ("unreadable", Some(error.to_string())),
        }
        listed.push(file);
        progress.inc(1);
    }
    drop(progress);
    print(format, &listed, || {
        let mut table = Table::new(&["<kind", "size", "entries", "<file"]);
        for file in &listed {
            let entries = file.entries.map_or_else(|| "-".to_owned(), |entries| entries.to_string());
            table.row(&[&file.kind, &Bytes(file.bytes), &entries, &file.file]);
            if let Some(error) = &file.error {
                table.remark(&format!("  {error}\n"));
            }
        }
        table.to_string()
    })?;
    let unreadable = listed.iter().filter(|file| file.error.is_some()).count();
    if unreadable > 0 {
        bail!("{unreadable} of {} files cannot be read", listed.len());
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Validated {
    file: String,
    entries: u64,
    jobs: u64,
    problems_total: u64,
    problems: Vec<String>,
}

fn validate(inputs: &Inputs, format: Format) -> Result<ExitCode> {
    let progress = progress("files", inputs.files.len() as u64);
    let mut validated = Vec::new();
    for input in &inputs.files {
        let local = inputs.local(input)?;
        let report = check::check(local.path());
        let report =
            report.unwrap_or_else(|error| check::Report { problems: vec![error.to_string()], problems_total: 1, ..Default::default() });
        let check::Report { entries, jobs, problems, problems_total } = report;
        validated.push(Validated { file: input.name.clone(), entries, jobs, problems_total, problems });
        progress.inc(1);
    }
    drop(progress);
    let wrong = validated.iter().filter(|file| file.problems_total > 0).count();
    print(format, &validated, || {
        let mut text = String::new();
        for file in validated.iter().filter(|file| file.problems_total > 0) {
            let _ = writeln!(text, "{}: {} problems", file.file, file.problems_total);
            for problem in &file.problems {
                let _ = writeln!(text, "  {problem}");
            }
        }
        let entries: u64 = validated.iter().map(|file| file.entries).sum();
        let _ = writeln!(text, "{} files, {entries} entries; {wrong} files with problems", validated.len());
        text
    })?;
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes one file from many, by `make`.
fn into(
    config: &Config,
    format: Format,
    arguments: &TracesInto,
    make: impl FnOnce(&std::path::Path, Basis, &mut Stream) -> Result<FileSummary>,
) -> Result<()> {
    let inputs = find(config, &arguments.traces)?;
    let mut stream = Stream::open(&inputs, None)?;
    let basis = stream.basis;
    let made = inputs::put(&arguments.to, |path| make(path, basis, &mut stream))?;
    let dropped = stream.merge.dropped();
    drop(stream);
    print_made(format, &arguments.to, made, dropped)
}

/// Writes the compacted form, on all cores. What is compacted already is joined with it.
fn compact(inputs: &Inputs, to: &str, format: Format) -> Result<()> {
    let locals = inputs.all_local()?;
    // The files of a machine are in its directory; files that name no machine may have the same jobs.
    let machine =
        |below: &str| below.split('/').filter(|part| part.starts_with("cluster=") || part.starts_with("machine=")).collect::<String>();
    let (mut machines, mut compacted): (BTreeMap<String, Vec<PathBuf>>, Vec<PathBuf>) = Default::default();
    for (input, local) in inputs.files.iter().zip(&locals) {
        let path = local.path().to_owned();
        match check::open(&path)? {
            Kind::Trace(_) => machines.entry(machine(&input.below)).or_default().push(path),
            Kind::Compacted(_) => compacted.push(path),
        }
    }
    let machines: Vec<_> = machines.into_values().collect();
    let threads = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let progress = progress("entries", 0);
    let mut each = |entries| progress.set_position(entries);
    let made = inputs::put(to, |path| {
        Ok(match compacted.as_slice() {
            [] => trace::compact::compact(&machines, path, threads, &mut each)?,
            compacted => trace::compact::extend(compacted, &machines, path, threads, &mut each)?,
        })
    })?;
    drop(progress);
    print_made(format, to, made.file, made.dropped)
}

fn print_made(format: Format, to: &str, FileSummary { entries, jobs, size }: FileSummary, dropped: u64) -> Result<()> {
    let made = serde_json::json!({ "file": to, "entries": entries, "jobs": jobs, "bytes": size.0, "dropped_entries": dropped });
    print(format, &made, || {
        let twice = if dropped > 0 { format!("; {dropped} more came twice") } else { String::new() };
        format!("{to}: {entries} entries of {jobs} jobs, {size}{twice}\n")
    })
}

/// Prints all entries. A column is named as in the file.
fn export(stream: &mut Stream, format: Format) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let written = write_entries(stream, format, &mut out).and_then(|()| Ok(out.flush()?));
    match written {
        // The reader closed the pipe, for example `head`.
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) => Ok(()),
        other => other,
    }
}

fn write_entries(stream: &mut Stream, format: Format, out: &mut impl std::io::Write) -> Result<()> {
    if format == Format::Text {
        let words = ["cluster", "machine", "job", "job_key", "class", "policy", "tracker", "decision"].map(ToOwned::to_owned);
        let buckets = stream.basis.buckets();
        let histograms = (0..buckets).map(schema::cold_column).chain((0..buckets).map(schema::promotions_column));
        let names: Vec<_> = words.into_iter().chain(FIGURES.iter().map(|figure| figure.name.to_owned())).chain(histograms).collect();
        writeln!(out, "{}", names.join(","))?;
    }
    while let Some(entry) = stream.next()? {
        if format == Format::Json {
            serde_json::to_writer(&mut *out, &entry).map_err(std::io::Error::from)?;
            writeln!(out)?;
            continue;
        }
        let Entry { id, labels, figures, cold_pages, promotions_pages } = &entry;
        let words = [&id.cluster, &id.machine, &id.job].map(|word| quoted(word));
        let labels = [&labels.class, &labels.policy, &labels.tracker, &labels.decision].map(|word| quoted(word));
        write!(out, "{},{},{}", words.join(","), id.job_key, labels.join(","))?;
        for number in figures.to_array().iter().chain(cold_pages).chain(promotions_pages) {
            write!(out, ",{number}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A field of a comma-separated line (RFC 4180).
fn quoted(word: &str) -> String {
    if word.contains([',', '"', '\n', '\r']) { format!("\"{}\"", word.replace('"', "\"\"")) } else { word.to_owned() }
}

/// A time for people.
fn when(at: UnixMillis) -> String {
    calendar::time(at)
}
