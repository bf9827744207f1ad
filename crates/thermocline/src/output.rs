//! How results and errors are printed.

use anyhow::{Result, bail};

use crate::options::Format;

/// An error and its causes, but for those that are part of the words before them.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let mut words = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !words.contains(&cause) {
            words += ": ";
            words += &cause;
        }
    }
    words
}

/// Prints one result in the wanted format.
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
        // Whoever read us has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => bail!("cannot print: {error}"),
        Ok(()) => Ok(()),
    }
}
