//! `thermocline console`: a page about one machine's journal, a fleet's traces, a rollout and a pool, served to a browser; it only
//! reads.
//!
//! `data` reads in a thread of its own, `live` what changes by itself, `server` answers, `assets` holds the page. `page` writes the page
//! with its answers into one file, for `thermocline report`.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use config::Config;
use daemon::http::{self, Plain};
use model::front::Objective;
use serde_json::json;
use units::RatioPpm;

use self::data::{Data, Sources};
use self::server::{Access, LIMITS};
use crate::fleet::rollout::arguments::Repository;
use crate::options::Format;
use crate::output::print;
use crate::pool::status::{self, Reach};
use crate::signals;
use crate::values::{duration, price, ratio};

mod assets;
mod data;
mod fleet;
mod live;
mod machine;
pub(crate) mod page;
mod pool;
mod rollout;
mod server;
mod timeline;
mod what_if;

/// Where the console listens if nothing else is given.
const LISTEN: &str = "127.0.0.1:7480";

/// The shortest token: 16 letters of base64 have 96 bits.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: u64 = 1_024;

#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Journal files of one machine, in any order [default: those in the configured agent.state_dir]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    journal: Vec<PathBuf>,
    #[command(flatten)]
    shown: Shown,
    /// Address and port; beyond loopback, --token-file is needed
    #[arg(long, value_name = "ADDRESS", default_value = LISTEN)]
    listen: SocketAddr,
    /// A file with a token of 16 characters or more, which a browser must give; only its owner may write it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A name by which browsers reach the console, beside its IP address and localhost; repeatable
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Read journals and traces again this often [default: once, at the start]. A rollout is read every minute and a pool every
    /// 10 seconds, or at this interval if it is shorter
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    refresh: Option<Duration>,
}

/// What the page shows beside a machine.
#[derive(Debug, Args)]
pub(crate) struct Shown {
    /// Far-memory traces of a fleet: files, directories or s3://bucket/prefix, recursively
    #[arg(long, value_name = "PATH|URL", num_args = 1..)]
    traces: Vec<String>,
    /// A bundle store whose newest rollout is shown: a directory, or s3://bucket/prefix [default: the configured rollout.store; in a report, none]
    #[arg(long, value_name = "URL")]
    rollout: Option<String>,
    /// The root file of the bundle store [default: the configured rollout.root]
    #[arg(long, value_name = "FILE")]
    rollout_root: Option<PathBuf>,
    /// Log of the rollout's steps [default: the bundle store]
    #[arg(long, value_name = "URL")]
    rollout_log: Option<String>,
    /// URL of a pool's manager, such as https://localhost:7443
    #[arg(long, value_name = "URL")]
    pool: Option<String>,
    /// The identity for the pool's manager, as for `thermocline pool status`
    #[arg(long, value_name = "PATH", default_value = status::IDENTITY)]
    identity: PathBuf,
    /// The objective: promotions per minute as a share of the working set [default: cold_age.promotion_rate]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    objective: Option<RatioPpm>,
    /// Share of the entries that must meet the objective
    #[arg(long, value_name = "RATIO", default_value = "98%", value_parser = ratio)]
    objective_percentile: RatioPpm,
    /// Price of a GiB of DRAM, in any currency
    #[arg(long, value_name = "PRICE", value_parser = price)]
    dram_price_per_gib: Option<f64>,
}

/// `thermocline console`: serves until it is interrupted.
pub(crate) fn console(config: Config, format: Format, arguments: &Console) -> Result<()> {
    arguments.shown.check(&arguments.journal)?;
    let token = arguments.token_file.as_deref().map(read_token).transpose()?;
    if token.is_none() && !arguments.listen.ip().is_loopback() {
        bail!("{} can be reached from other machines; give --token-file, or listen on 127.0.0.1 and use a proxy", arguments.listen);
    }
    let (_sender, stopped) = signals::messages()?;
    let listener = TcpListener::bind(arguments.listen)
        .with_context(|| format!("cannot listen on {}; another program may: give --listen with another port", arguments.listen))?;
    let data = Arc::new(Data::default());
    let access = Access { token, hosts: arguments.host.iter().map(|host| host.to_ascii_lowercase()).collect() };
    let service = server::Console { data: Arc::clone(&data), access };
    let server = http::serve("console", listener, Plain, service, LIMITS).context("cannot start the HTTP server")?;
    let url = format!("http://{}/", server.address());
    print(format, &json!({ "url": url }), || format!("the console is at {url}; stop it with Ctrl-C\n"))?;
    daemon::notify_ready();
    let configured = Some(config.rollout.store.clone()).filter(|store| !store.is_empty());
    let sources = Arc::new(arguments.shown.sources(config, &arguments.journal, configured));
    let refresh = arguments.refresh;
    live::start(&data, &sources, refresh)?;
    let read = move || {
        loop {
            data.read(&sources);
            let Some(refresh) = refresh else { return };
            std::thread::sleep(refresh);
        }
    };
    // It is not waited for: reading a fleet may take minutes, and nothing is left behind.
    std::thread::Builder::new().name("reader".to_owned()).spawn(read).context("cannot start a thread")?;
    // The only message is the one to stop.
    stopped.recv().context("cannot receive the signal to stop")?;
    server.stop();
    Ok(())
}

impl Shown {
    /// Whether nothing is named.
    pub(crate) fn is_nothing(&self) -> bool {
        self.traces.is_empty() && self.rollout.is_none() && self.pool.is_none()
    }

    /// An option that has no effect as long as nothing is named.
    pub(crate) fn without_effect(&self) -> Option<&'static str> {
        let given = [
            ("--rollout-root", self.rollout_root.is_some()),
            ("--rollout-log", self.rollout_log.is_some()),
            ("--objective", self.objective.is_some()),
            ("--dram-price-per-gib", self.dram_price_per_gib.is_some()),
        ];
        given.into_iter().find(|&(_, given)| given && self.is_nothing()).map(|(option, _)| option)
    }

    /// What the arguments and the configuration name. `store` is the bundle store if the arguments name none.
    fn sources(&self, config: Config, journals: &[PathBuf], store: Option<String>) -> Sources {
        let rate_max = self.objective.unwrap_or(config.cold_age.promotion_rate);
        let repository = |store| Repository { store: Some(store), root: self.rollout_root.clone() };
        let store = self.rollout.clone().or(store);
        Sources {
            journals: journals.to_vec(),
            traces: self.traces.clone(),
            objective: Objective { percentile: self.objective_percentile, rate_max },
            price_per_gib: self.dram_price_per_gib,
            rollout: store.map(|store| rollout::Source { repository: repository(store), log: self.rollout_log.clone() }),
            pool: self.pool.as_ref().map(|url| Reach::at(url, self.identity.clone())),
            config,
        }
    }

    /// A file that does not exist is a mistake in the arguments: it is reported before anything is read.
    fn check(&self, journals: &[PathBuf]) -> Result<()> {
        for journal in journals {
            std::fs::File::open(journal).with_context(|| format!("cannot open the journal {}", journal.display()))?;
        }
        for trace in self.traces.iter().filter(|trace| !trace.contains("://")) {
            std::fs::metadata(trace).with_context(|| format!("cannot open the traces {trace}"))?;
        }
        for store in [&self.rollout, &self.rollout_log].into_iter().flatten().filter(|store| !store.contains("://")) {
            std::fs::metadata(store).with_context(|| format!("cannot open the bundle store {store}"))?;
        }
        if let Some(url) = &self.pool {
            Reach::at(url, self.identity.clone()).client().context("cannot use --pool and --identity")?;
        }
        Ok(())
    }
}

/// Reads the token. A file that others can write is refused: they could choose the token.
fn read_token(path: &Path) -> Result<String> {
    let bytes =
        daemon::trusted::read(path, TOKEN_BYTES_MAX)?.with_context(|| format!("cannot open {}: there is no such file", path.display()))?;
    let token = String::from_utf8(bytes).ok().map(|token| token.trim().to_owned());
    let token = token.filter(|token| token.bytes().all(|letter| letter.is_ascii_graphic()) && token.len() >= TOKEN_BYTES_MIN);
    token.with_context(|| {
        format!(
            "{} holds no token of {TOKEN_BYTES_MIN} or more printable characters; make one with `openssl rand -base64 24`",
            path.display()
        )
    })
}
