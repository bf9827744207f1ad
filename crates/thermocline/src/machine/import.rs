//! `thermocline import`: proposes a configuration from that of another program.

use std::path::PathBuf;

use advise::import;
use anyhow::{Context, Result};
use clap::Args;

use crate::options::Format;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// A configuration of oomd (its Senpai plugin), damo (kdamonds or schemes), memtierd or Katalyst's memory offloading, or a file with
    /// the command line of senpai.py. The program is recognized
    file: PathBuf,
}

/// `thermocline import`.
pub(crate) fn import(format: Format, arguments: &Import) -> Result<()> {
    let file = &arguments.file;
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let imported = import::import(&text).with_context(|| format!("cannot import {}", file.display()))?;
    print(format, &imported, || {
        let lost: String = imported.without_equivalent.iter().map(|lost| format!("#   {lost}\n")).collect();
        let lost = if lost.is_empty() { String::new() } else { format!("# Without an equivalent:\n{lost}\n") };
        format!("{lost}{}", imported.toml)
    })
}
