//! `thermocline pool host`: the daemon of one host of a pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use daemon::PidLock;
use kernel::Roots;
use manager::client::Client;
use pool_host::capacity::Remote;
use pool_host::counters::Perf;
use pool_host::host::{self, Models, Store};
use pool_host::settings::Settings;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::options::Format;
use crate::output::print;

/// Timeout of a request to the manager, which usually answers within milliseconds. A guest's start waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Host {
    /// The host's configuration file in TOML; docs/pool-hosts.md has an example
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Read the configuration and the models, report errors, and exit
    #[arg(long)]
    check: bool,
}

/// Adds sampling of the processor's counters to a host, if they and a model for them are available.
fn with_counters(host: host::Host, settings: &Settings) -> host::Host {
    let has_model = settings.predict.as_ref().is_some_and(|models| models.insensitive.is_some());
    let Some(time) = settings.counters.filter(|_| has_model) else { return host };
    match Perf::find(&Roots::host(), "perf") {
        Ok(perf) => host.with_counters(perf, time),
        Err(error) => {
            log::info!("guests are judged by their memory accesses only: {error}");
            host
        }
    }
}

/// Runs the command.
pub(super) fn host(format: Format, arguments: &Host) -> Result<()> {
    let settings = Settings::load(&arguments.config)?;
    let models = settings.predict.as_ref().map(|models| Models::load(&models.untouched, models.insensitive.as_deref()));
    let errors: Vec<String> = models.iter().flat_map(|models| models.predictor().errors()).map(ToString::to_string).collect();
    for error in &errors {
        log::warn!("{error}; guests that need this model get no pool memory");
    }
    settings.driver.check(&Roots::host()).map_err(|error| anyhow!("{}: {error}", arguments.config.display()))?;
    let client = Client::new(&settings.manager.url, settings.manager.identity.as_ref(), REQUEST_TIMEOUT)?;
    if arguments.check {
        let checked = serde_json::json!({ "host": settings.host.name, "manager": client.url(), "faults": errors });
        return print(format, &checked, || {
            format!("{}: host {}, manager {}\n", arguments.config.display(), settings.host.name, client.url())
        });
    }
    for directory in [&settings.runtime, &settings.state] {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let _lock = PidLock::acquire(&settings.runtime, "pool-host.pid")?;
    let instance = format!("process {}", std::process::id());
    let capacity = Remote::new(client, settings.host.name.clone(), instance);
    let driver = settings.driver.clone().driver(&settings.runtime);
    let store = Store::open(&settings.state)?;
    let host = host::Host::new(settings.host.clone(), driver, Box::new(capacity), models, store)?;
    let host = Arc::new(with_counters(host, &settings));
    let (stop, stopped) = sync_channel(1);
    let reloaded = Arc::clone(&host);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let _member = daemon::watchdog::join("signals", Duration::MAX);
        for signal in signals.forever() {
            if signal == SIGHUP {
                reloaded.refresh_models();
            } else if stop.send(()).is_err() {
                break;
            }
        }
    })?;
    pool_host::socket::serve(&settings.runtime, Arc::clone(&host)).context("cannot create the control socket")?;
    if let Some(address) = settings.metrics {
        let bound = pool_host::metrics::serve(address, Arc::clone(&host)).with_context(|| format!("cannot serve metrics at {address}"))?;
        log::info!("metrics are at http://{bound}/metrics");
    }
    daemon::notify_ready();
    log::info!("host {} is running; its guests keep running when it stops", settings.host.name);
    host::run(&host, &stopped);
    log::info!("host {} stops; its guests keep running", settings.host.name);
    Ok(())
}
