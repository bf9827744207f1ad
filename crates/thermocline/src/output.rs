//! How results and errors are printed.

use anyhow::{Result, bail};

use crate::options::Format;

/// An error and its causes, without causes that the text before them already contains.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    text
}

/// Prints one result in the requested format.
pub(crate) fn print<T: serde::Serialize>(format: Format, value: &T, text: impl FnOnce() -> String) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let written = match format {
        Format::Text => out.write_all(text().as_bytes()),
        Format::Json => {
            let mut line = serde_json::to_vec(value)?;
            line.push(b'\n');
            out.write_all(&line)
        }
    };
    match written.and_then(|()| out.flush()) {
        // The reader closed the pipe, for example `head`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => bail!("cannot print: {error}"),
        Ok(()) => Ok(()),
    }
}
