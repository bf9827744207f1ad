//! The generated files of the agent's configuration: reference page and example.

use crate::config::SCHEMA;

const EXAMPLE_HEAD: &str = "\
# The configuration of Thermocline: /etc/thermocline/thermocline.toml.
#
# Every line below that sets a key is commented out and shows the default. Files in conf.d/ beside this one that end
# in .toml are read after it, sorted by name; later values win. Check with: thermocline config check
";

const MANUAL_HEAD: &str = "\
# Configuration

<!-- Generated from the table of knobs: UPDATE_DOCS=1 cargo test -p thermocline-config -->

Thermocline reads `/etc/thermocline/thermocline.toml`, then the files `conf.d/*.toml` beside it, sorted by name, then the options of
the command line. Later values win. Every key has a default, so none of these files has to exist.

    thermocline config check

reports all problems together, each with its file, line and remedy. An unknown key is an error, so that a misspelt setting is not
ignored.
";

const MANUAL_END: &str = "
[Papers](papers.md) is the key to the citations.
";

/// Returns the file `deploy/thermocline.toml`: every knob with its default, as comments.
#[must_use]
pub fn example_toml() -> String {
    settings::example(&SCHEMA, EXAMPLE_HEAD)
}

/// Returns the page `docs/configuration.md`.
#[must_use]
pub fn manual() -> String {
    settings::reference(&SCHEMA, MANUAL_HEAD, MANUAL_END)
}
