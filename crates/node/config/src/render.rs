//! The table of knobs as text: a configuration file, and the reference manual.

use std::fmt::Write;

use crate::choice::Kind;
use crate::job::JOB_KNOBS;
use crate::knob::{Knob, Unit, toml_string};
use crate::table::{Config, KNOBS, TABLES};

/// Where comments of a file are wrapped, in characters.
const COMMENT_WIDTH: usize = 100;

const EXAMPLE_HEAD: &str = "\
# The configuration of Thermocline: /etc/thermocline/thermocline.toml.
#
# Every line below that sets a key is commented out and shows the default. Files in conf.d/ beside this one that end
# in .toml are read after it, by name; what comes later wins. Check with: thermocline config check
";

const EXAMPLE_JOBS: &str = "
# Which cgroups are jobs, and how each is treated. The first rule that matches a cgroup holds, and those of files in
# conf.d/ come before those of this one. A rule without a class only observes.
#[[job]]
#cgroup = \"/system.slice/*.service\"
#class = \"standard\"
";

const MANUAL_HEAD: &str = "\
# Configuration

<!-- Generated from the table of knobs: UPDATE_DOCS=1 cargo test -p thermocline-config -->

Thermocline reads `/etc/thermocline/thermocline.toml`, then the files `conf.d/*.toml` beside it, by name, then what the
command line sets. What comes later wins. Every key has a default, and so none of these files has to exist.

    thermocline config check

reports everything that is wrong, together, with the file, the line and what to write instead. An unknown key is an
error, not a remark: a setting that was misspelt does not pass for one that holds.

## How values are written

| unit | like this | |
|---|---|---|
| duration | `\"120s\"`, `\"1m30s\"`, `\"500ms\"` | `d`, `h`, `m`, `s`, `ms`, `us`, `ns`, largest first |
| size | `\"64MiB\"` | `B`, `KiB`, `MiB`, `GiB`, `TiB`, `PiB`, each 1024 times the one before |
| size per second | `\"64MiB/s\"` | |
| ratio, ratio per minute, percentile | `\"0.2%\"` or `0.002` | in steps of 0.0001%; a number without `%` is a fraction of one |
| whole percent | `\"20%\"` | |
| number, true or false | `1000`, `true` | without quotes |
| choice, path, word, address, patterns | `\"auto\"` | with quotes |

A duration or size without its unit is refused: nobody should have to guess whether `120` is seconds or scans.
";

const MANUAL_JOBS: &str = "
## `[[job]]`

Which cgroups are jobs, and how each is treated. The first rule that matches a cgroup holds. Rules of later files are
tried before those of earlier ones, so that a file in `conf.d/` can make an exception.

    [[job]]
    cgroup = \"/system.slice/redis.service\"
    class = \"conservative\"

    [[job]]
    cgroup = \"/system.slice/*.service\"
    class = \"standard\"

    [[job]]
    container = \"istio-proxy\"
    kind = \"application_tax\"

";

const MANUAL_END: &str = "
## Sources

- Lagar-Cavilla et al., \"Software-Defined Far Memory in Warehouse-Scale Computers\", ASPLOS 2019.
- Weiner et al., \"TMO: Transparent Memory Offloading in Datacenters\", ASPLOS 2022.
- Baghdasaryan, Butt and Zhao, \"Finding more DRAM\", Linux Plumbers Conference 2019.
";

impl Config {
    /// The whole configuration as a file, with what each key means. It reads back as the same configuration.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = tables(self, "");
        for rule in &self.jobs {
            let _ = write!(text, "\n[[job]]\ncgroup = {}\nclass = \"{}\"\n", toml_string(&rule.cgroup), rule.class);
            for (name, pattern) in [("container", &rule.container), ("annotation", &rule.annotation)] {
                if let Some(pattern) = pattern {
                    let _ = writeln!(text, "{name} = {}", toml_string(pattern));
                }
            }
            if let Some(policy) = rule.policy {
                let _ = writeln!(text, "policy = \"{policy}\"");
            }
            if let Some(tier) = rule.tier {
                let _ = writeln!(text, "tier = \"{tier}\"");
            }
            if rule.kind != Kind::Application {
                let _ = writeln!(text, "kind = \"{}\"", rule.kind);
            }
            if let Some(tracker) = rule.tracker {
                let _ = writeln!(text, "tracker = \"{tracker}\"");
            }
        }
        text
    }
}

/// The file `deploy/thermocline.toml`: every knob with its default, commented out.
#[must_use]
pub fn example_toml() -> String {
    format!("{EXAMPLE_HEAD}\n{}{EXAMPLE_JOBS}", tables(&Config::default(), "#"))
}

/// Every table with its knobs as `config` sets them; `mark` goes before each line that sets something.
fn tables(config: &Config, mark: &str) -> String {
    let mut text = String::new();
    for (table, about) in TABLES {
        if !text.is_empty() {
            text.push('\n');
        }
        comment(&mut text, about.trim());
        let _ = writeln!(text, "[{table}]");
        for knob in KNOBS.iter().filter(|knob| knob.table() == *table) {
            let Some(value) = config.get(knob.key) else { continue };
            text.push('\n');
            comment(&mut text, knob.meaning);
            comment(&mut text, &format!("{}, default {}", allowed(knob), default(knob)));
            let _ = writeln!(text, "{mark}{} = {}", knob.name(), knob.to_toml(&value));
        }
    }
    text
}

/// `line` as a comment, wrapped at words.
fn comment(text: &mut String, line: &str) {
    let mut width = 0;
    for word in line.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COMMENT_WIDTH {
            text.push('\n');
            width = 0;
        }
        if width == 0 {
            text.push('#');
            width = 1;
        }
        text.push(' ');
        text.push_str(word);
        width += 1 + length;
    }
    text.push('\n');
}

/// The file `docs/configuration.md`.
#[must_use]
pub fn manual() -> String {
    let mut text = MANUAL_HEAD.to_owned();
    for (table, about) in TABLES {
        let _ = write!(text, "\n## `[{table}]`\n\n{}\n\n", about.trim());
        rows(&mut text, KNOBS.iter().filter(|knob| knob.table() == *table));
    }
    text.push_str(MANUAL_JOBS);
    rows(&mut text, JOB_KNOBS.iter());
    text.push_str(MANUAL_END);
    text
}

fn rows<'a>(text: &mut String, knobs: impl Iterator<Item = &'a Knob>) {
    text.push_str("| key | default | values | meaning |\n|---|---|---|---|\n");
    for knob in knobs {
        let default = match default(knob) {
            "none" => "".to_owned(),
            default => format!("`{default}`"),
        };
        let _ = writeln!(text, "| `{}` | {default} | {} | {} |", knob.name(), allowed(knob), knob.meaning);
    }
}

fn default(knob: &Knob) -> &'static str {
    if knob.default.is_empty() { "none" } else { knob.default }
}

/// What a knob may be set to.
fn allowed(knob: &Knob) -> String {
    match (knob.unit, knob.range) {
        (Unit::Choice(names), _) => names.join(", "),
        (unit, Some((low, high))) => format!("{} from {low} to {high}", unit.name()),
        (unit, None) => unit.name().to_owned(),
    }
}
