//! The pool manager under load: slices assigned and returned, each made durable before the reply.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use manager::api::{AssignRequest, Code, ErrorResponse, Slice};
use manager::client::Client;
use manager::ledger::{Request, Response};
use manager::service::{self, Manager};
use manager::settings::Settings;
use pool::{EmcId, Generation, SliceId, Slices};
use serde::Serialize;

/// Concurrent hosts.
const HOSTS: usize = 16;
/// Duration of each measurement.
const SPAN: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The manager's throughput. An operation is an assignment or a return of a slice; the report that a slice is offline
/// is sent too, but not counted.
#[derive(Debug, Serialize)]
pub(crate) struct LedgerReport {
    ledger: Ledger,
}

#[derive(Debug, Serialize)]
struct Ledger {
    hosts: usize,
    /// Synced writes of 4 KiB to the same disk, one after the other.
    disk_syncs_per_second: f64,
    /// Requests passed to the writer within the process.
    within: Figures,
    /// Requests by HTTP over loopback, without TLS, from threads of the same process.
    by_http: Figures,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    operations_per_second: f64,
    p50_milliseconds: f64,
    p99_milliseconds: f64,
}

/// Transport of requests to the manager.
trait Way: Sync {
    fn lease(&self, host: &str) -> Result<u64>;
    /// Returns `None` if no slice is free yet.
    fn assign(&self, host: &str, epoch: u64, name: &str) -> Result<Option<Slice>>;
    fn give_back(&self, host: &str, epoch: u64, name: &str) -> Result<()>;
    fn offlined(&self, host: &str, epoch: u64, slice: &Slice) -> Result<()>;
}

impl Way for Client {
    fn lease(&self, host: &str) -> Result<u64> {
        Ok(Client::lease(self, host, "bench")?.epoch)
    }

    fn assign(&self, host: &str, epoch: u64, name: &str) -> Result<Option<Slice>> {
        let ask = AssignRequest { epoch, request: format!("give {name}"), vm: name.to_owned(), slices: pool::Slices(1) };
        match Client::assign(self, host, &ask) {
            Ok(given) => Ok(given.slices.into_iter().next()),
            Err(error) if error.code() == Some(Code::Short) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn give_back(&self, host: &str, epoch: u64, name: &str) -> Result<()> {
        Client::give_back(self, host, epoch, &format!("take {name}"), name)?;
        Ok(())
    }

    fn offlined(&self, host: &str, epoch: u64, slice: &Slice) -> Result<()> {
        Ok(Client::offlined(self, host, epoch, slice)?)
    }
}

/// Direct calls without HTTP.
struct Within<'a>(&'a Manager);

impl Within<'_> {
    fn outcome(&self, request: Request) -> Result<Result<Response, ErrorResponse>> {
        Ok(self.0.handle().context("the manager has stopped")?.call(request))
    }

    fn call(&self, request: Request) -> Result<Response> {
        self.outcome(request)?.map_err(|refused| anyhow::anyhow!(refused.message))
    }
}

impl Way for Within<'_> {
    fn lease(&self, host: &str) -> Result<u64> {
        match self.call(Request::Lease { host: host.to_owned(), instance: "bench".to_owned() })? {
            Response::Lease(lease) => Ok(lease.epoch),
            other => bail!("unexpected reply to a lease request: {other:?}"),
        }
    }

    fn assign(&self, host: &str, epoch: u64, name: &str) -> Result<Option<Slice>> {
        let (host, request, vm) = (host.to_owned(), format!("give {name}"), name.to_owned());
        match self.outcome(Request::Assign { host, epoch, request, vm, slices: Slices(1) })? {
            Ok(Response::Assignment(given)) => Ok(given.slices.into_iter().next()),
            Ok(other) => bail!("unexpected reply to an assignment: {other:?}"),
            Err(refused) if refused.error == Code::Short => Ok(None),
            Err(refused) => bail!(refused.message),
        }
    }

    fn give_back(&self, host: &str, epoch: u64, name: &str) -> Result<()> {
        self.call(Request::Return { host: host.to_owned(), epoch, request: format!("take {name}"), vm: name.to_owned() }).map(drop)
    }

    fn offlined(&self, host: &str, epoch: u64, slice: &Slice) -> Result<()> {
        let place = SliceId { emc: EmcId(slice.emc), index: slice.index };
        self.call(Request::Offlined { host: host.to_owned(), epoch, slice: place, generation: Generation(slice.generation) }).map(drop)
    }
}

fn host(number: usize) -> String {
    format!("host-{number}")
}

/// Runs one host; returns the duration of each operation.
fn cycle(way: &dyn Way, number: usize, end: Instant) -> Result<Vec<Duration>> {
    let host = host(number);
    let epoch = way.lease(&host)?;
    let mut took = Vec::new();
    for round in 0u64.. {
        if Instant::now() >= end {
            break;
        }
        let name = format!("vm-{round}");
        let began = Instant::now();
        let Some(slice) = way.assign(&host, epoch, &name)? else { continue };
        took.push(began.elapsed());
        let began = Instant::now();
        way.give_back(&host, epoch, &name)?;
        took.push(began.elapsed());
        way.offlined(&host, epoch, &slice)?;
    }
    Ok(took)
}

fn drive(way: &dyn Way) -> Result<Figures> {
    let began = Instant::now();
    let end = began + SPAN;
    let took: Result<Vec<Vec<Duration>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..HOSTS).map(|number| scope.spawn(move || cycle(way, number, end))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a host's thread panicked"))?).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut took: Vec<Duration> = took?.into_iter().flatten().collect();
    took.sort_unstable();
    let at = |percent: usize| took.get(took.len() * percent / 100).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3);
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    let operations_per_second = took.len() as f64 / seconds;
    Ok(Figures { operations_per_second, p50_milliseconds: at(50), p99_milliseconds: at(99) })
}

/// Returns the disk's synced writes per second when idle.
fn syncs(directory: &Path) -> Result<f64> {
    let file = File::create(directory.join("syncs"))?;
    let (began, mut count) = (Instant::now(), 0u32);
    while began.elapsed() < Duration::from_secs(2) {
        file.write_all_at(&[7; 4096], u64::from(count % 256) * 4096)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// Measures a manager whose ledger is in `directory`.
///
/// # Errors
/// The manager does not start, or refuses a valid request.
pub(crate) fn bench(directory: &Path) -> Result<LedgerReport> {
    std::fs::create_dir_all(directory)?;
    let directory = tempfile::tempdir_in(directory)?;
    let slices = tempfile::tempdir()?;
    let hosts: Vec<String> = (0..HOSTS).map(host).collect();
    let text = format!(
        "listen = \"127.0.0.1:0\"\nledger = \"ledger.redb\"\npool_dir = {:?}\nslice_size = \"128MiB\"\n\
         emcs = [{{ slices = 128 }}, {{ slices = 128 }}]\nhosts = {hosts:?}\nlease = \"1m\"\n",
        slices.path()
    );
    let settings = Settings::parse(&directory.path().join("pool.toml"), &text)?;
    service::init(&settings, true)?;
    let manager = service::start(&settings, true)?;
    eprintln!("measuring {HOSTS} hosts that request and return slices");
    let disk_syncs_per_second = syncs(directory.path())?;
    let within = drive(&Within(&manager))?;
    let client = Client::new(&format!("http://{}", manager.address), None, TIMEOUT)?;
    let by_http = drive(&client)?;
    manager.stop();
    Ok(LedgerReport { ledger: Ledger { hosts: HOSTS, disk_syncs_per_second, within, by_http } })
}
