//! Options that all commands share.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use config::Config;

use crate::values::key_value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs: one JSON value, or one per line for continuous results
    Json,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Configuration {
    /// The configuration file; conf.d/*.toml beside it is read too [default: /etc/thermocline/thermocline.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one knob, overriding the files; repeatable
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) overrides: Vec<(String, String)>,
}

impl Configuration {
    /// Reads and checks the configuration; all problems are reported together.
    pub(crate) fn checked(&self) -> Result<Config, config::Problems> {
        Config::load(self.config.as_deref(), &self.overrides)
    }

    /// The configuration in effect.
    pub(crate) fn load(&self) -> Result<Config> {
        Ok(self.checked()?)
    }
}
