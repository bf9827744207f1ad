//! Load generators for servers: one thread, one connection, pipelined; the same seed gives the same requests.

mod codec;
mod connection;
mod engine;
mod http;
mod memcached;
mod redis;
mod report;
mod requests;
pub(crate) mod stored;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::latencies::print_line;

use codec::Codec;
use connection::Connection;
use engine::{Engine, Pace};
use requests::{Fill, Mix, Mixed, Records};

/// Limit of keys: a value's id consists of a 32-bit key and its revision.
const KEYS_MAX: u64 = 1 << 32;
/// Values of 4000 bytes with this factor are just below the longest value that is read.
const FACTOR_MAX: i64 = 256;

/// The server under load.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    server: Server,
}

#[derive(Subcommand)]
enum Server {
    /// A server that speaks the Redis protocol (RESP2)
    Redis(Load),
    /// A server that speaks the memcached text protocol
    Memcached(Load),
    /// A server of static files that speaks HTTP/1.1, and stores files by PUT
    Http(Load),
}

#[derive(clap::Args)]
struct Load {
    #[command(subcommand)]
    action: Action,
    /// Connect to this Unix socket
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Connect to this TCP port of 127.0.0.1
    #[arg(long, global = true, conflicts_with = "socket")]
    port: Option<u16>,
    /// Limit of requests in flight
    #[arg(long, global = true, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    depth: u16,
    /// Seed for keys, values and requests
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// Factor for the sizes of values
    #[arg(long, global = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=FACTOR_MAX))]
    value_factor: u16,
}

#[derive(Subcommand)]
enum Action {
    /// Store every key once, with values of 100 to 4000 bytes, about 1 KiB in the mean
    Fill {
        /// Number of keys
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..KEYS_MAX))]
        keys: u64,
    },
    /// Read and write keys that were filled with the same seed; print one JSON line per second and a summary
    Run(Run),
}

#[derive(clap::Args)]
struct Run {
    /// Number of keys that were filled
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..KEYS_MAX))]
    keys: u64,
    /// Stop after this time
    #[arg(long, value_parser = positive, required_unless_present = "requests")]
    seconds: Option<f64>,
    /// Stop after this many requests
    #[arg(long)]
    requests: Option<u64>,
    /// Send this many requests per second, and measure each from when it was due; default: as many as possible
    #[arg(long, value_parser = positive)]
    rate: Option<f64>,
    /// Make popularity follow Zipf's law with this exponent instead of having hot and warm keys
    #[arg(long, value_parser = exponent, conflicts_with_all = ["hot_fraction", "hot_share", "warm_fraction"])]
    zipf: Option<f64>,
    /// Share of the keys that are hot: the ones filled first
    #[arg(long, default_value_t = 0.1, value_parser = share)]
    hot_fraction: f64,
    /// Share of the requests that go to hot keys
    #[arg(long, default_value_t = 0.99, value_parser = share)]
    hot_share: f64,
    /// Share of the keys, after the hot ones, that receive all other requests; 0: any key receives them
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    warm_fraction: f64,
    /// Additional reads per second of any key
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    cold_touches_per_s: f64,
    /// Share of writes in the requests
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    write_share: f64,
}

fn number(text: &str, fits: impl Fn(f64) -> bool, range: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if fits(number) => Ok(number),
        _ => Err(format!("not a number {range}")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=1.0).contains(&number), "between 0 and 1")
}

fn exponent(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=10.0).contains(&number), "between 0 and 10")
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| (1e-6..=1e9).contains(&number), "between 0.000001 and 1000000000")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=1e9).contains(&number), "between 0 and 1000000000")
}

/// Runs a load and prints its report on standard output, one JSON object per line.
///
/// # Errors
/// The server cannot be reached, closes the connection, or refuses to store a value during a fill.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (codec, load): (&dyn Codec, _) = match &arguments.server {
        Server::Redis(load) => (&redis::Redis, load),
        Server::Memcached(load) => (&memcached::Memcached, load),
        Server::Http(load) => (&http::Http, load),
    };
    let connection = match (&load.socket, load.port) {
        (Some(path), _) => Connection::to_socket(path)?,
        (None, Some(port)) => Connection::to_port(port)?,
        (None, None) => bail!("no server address; give --socket PATH or --port PORT"),
    };
    let factor = usize::from(load.value_factor);
    let unpaced = Pace { depth: load.depth.into(), rate: None, duration: None, requests: None };
    match &load.action {
        Action::Fill { keys } => {
            let records = Records { seed: load.seed, keys: *keys, factor };
            let engine = Engine { connection, codec, records, source: &mut Fill::new(records), pace: unpaced };
            let (summary, first_error) = engine.run(&mut |_| Ok(()))?;
            print_line(&summary)?;
            match first_error {
                Some(error) => bail!("not every key was stored; first error: {error}"),
                None => Ok(()),
            }
        }
        Action::Run(run) => {
            let records = Records { seed: load.seed, keys: run.keys, factor };
            let pace = Pace { rate: run.rate, duration: run.seconds.map(Duration::from_secs_f64), requests: run.requests, ..unpaced };
            let mix = Mix {
                zipf: run.zipf,
                hot_fraction: run.hot_fraction,
                hot_share: run.hot_share,
                warm_fraction: run.warm_fraction,
                cold_touches_per_s: run.cold_touches_per_s,
                write_share: run.write_share,
            };
            let engine = Engine { connection, codec, records, source: &mut Mixed::new(records, mix), pace };
            let (summary, _) = engine.run(&mut print_line)?;
            print_line(&summary)
        }
    }
}
