//! What help and man pages have beside the arguments: commands by group, examples, exit statuses; and which commands take a
//! configuration.

use std::fmt::Write;

use clap::error::ErrorKind;
use clap::{Arg, Command, CommandFactory, Error};

use crate::arguments::Arguments;
use crate::exits;

/// The commands, by what they are about.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "This machine",
        &[
            "doctor",
            "observe",
            "setup",
            "import",
            "run",
            "agent",
            "kubernetes",
            "network",
            "status",
            "top",
            "explain",
            "hint",
            "trial",
            "report",
            "replay",
        ],
    ),
    ("What if", &["plan", "rates", "model", "arena", "reproduce"]),
    ("Fleet", &["trace", "experiment", "rollout", "console"]),
    ("Pool", &["pool"]),
    ("Configuration and documentation", &["config", "completions", "man"]),
];

/// Commands that no configuration of the agent affects, with all below them.
const WITHOUT_CONFIGURATION: [&[&str]; 8] =
    [&["completions"], &["man"], &["import"], &["arena"], &["reproduce"], &["pool"], &["rollout", "keygen"], &["rollout", "plan"]];

/// An example of each command.
const EXAMPLES: &[&str] = &[
    "thermocline doctor",
    "thermocline observe --for 30m",
    "thermocline setup --write",
    "thermocline import /etc/oomd/oomd.json",
    "thermocline run --class standard -- ./my-server --port 8080",
    "thermocline agent --dry-run --for 1h",
    "thermocline kubernetes --node node-1 --rules /run/thermocline-pods/rules.toml",
    "thermocline network --listen /run/thermocline/network.sock",
    "thermocline status --format json",
    "thermocline top",
    "thermocline explain /system.slice/redis.service",
    "thermocline hint /machine.slice/build.scope background",
    "thermocline trial /system.slice/redis.service --metrics http://localhost:9121/metrics --metric redis_commands_total --rate --better higher",
    "thermocline report",
    "thermocline report --traces /srv/traces --out fleet.html",
    "thermocline report --pool https://localhost:7443 --identity /etc/thermocline/pool/operator",
    "thermocline replay /var/lib/thermocline/journal",
    "thermocline plan --risk 0.1% --job '/web.slice/*'",
    "thermocline rates --job /system.slice/redis.service --all --latency 300ns",
    "thermocline model --trace /srv/traces --what-if promotion_rate=0.5%",
    "thermocline model --trace /srv/traces --estimate",
    "thermocline model --trace /srv/traces --tier ssd=80us,0.1 --tier cxl=5us,0.6",
    "thermocline arena",
    "thermocline arena --workload zipf --law auto --law script",
    "thermocline arena --without-writeback --law auto",
    "thermocline arena --trace sessions.access",
    "thermocline reproduce --list",
    "thermocline reproduce --quick",
    "thermocline trace list /srv/traces",
    "thermocline trace show /srv/traces",
    "thermocline trace validate s3://bucket/prefix",
    "thermocline trace merge /srv/traces --to all.parquet",
    "thermocline trace export /srv/traces",
    "thermocline trace compact /srv/traces --to compacted.parquet",
    "thermocline trace compact compacted.parquet /srv/traces/date=2026-11-27 --to compacted.parquet",
    "thermocline trace anonymise /srv/traces --to shared.parquet",
    "thermocline console",
    "thermocline console --traces /srv/traces --dram-price-per-gib 3.50",
    "thermocline console --rollout /srv/rollout --rollout-root root.json",
    "thermocline console --pool https://localhost:7443 --identity /etc/thermocline/pool/operator",
    "thermocline experiment --trace /srv/traces --a bundle=1 --b bundle=2",
    "thermocline rollout keygen keys",
    "thermocline rollout init --store /srv/rollout --root root.json --keys keys",
    "thermocline rollout publish bundle.toml --store /srv/rollout --keys keys",
    "thermocline rollout assign --rollout r1 --bundle 2 --share 1% --keys keys",
    "thermocline rollout revoke 2 --keys keys",
    "thermocline rollout refresh --keys keys",
    "thermocline rollout rotate --keys keys --new-keys new-keys",
    "thermocline rollout list --store /srv/rollout",
    "thermocline rollout show 2",
    "thermocline rollout verify",
    "thermocline rollout which machine-17 --cluster east",
    "thermocline rollout rehearse",
    "thermocline rollout rehearse bundle.toml --trace /srv/traces --machines 500",
    "thermocline rollout plan plan.toml",
    "thermocline rollout start 2 --plan plan.toml --keys keys",
    "thermocline rollout step --keys keys --trace /srv/traces",
    "thermocline rollout run --every 5m --keys keys",
    "thermocline rollout status",
    "thermocline rollout pin --keys keys --why 'waiting for the weekend'",
    "thermocline rollout stop --keys keys",
    "thermocline rollout resume --keys keys",
    "thermocline rollout rollback --keys keys --why 'latency of the shop'",
    "thermocline pool doctor",
    "thermocline pool accesses 4711",
    "thermocline pool import vmtable.csv.gz --out vms.parquet",
    "thermocline pool import --store s3://pool/lives --out vms.parquet",
    "thermocline pool generate --vms 100000 --out vms.parquet",
    "thermocline pool show vms.parquet",
    "thermocline pool stranding --trace vms.parquet",
    "thermocline pool simulate --trace vms.parquet",
    "thermocline pool characterise -- ./workload",
    "thermocline pool predict --model untouched.onnx --request request.json",
    "thermocline pool lives send --config pool-host.toml",
    "thermocline pool models publish --untouched untouched.onnx --store s3://pool/models --root models-root.json --keys keys",
    "thermocline pool models publish --untouched untouched.onnx --plan plan.toml --store s3://pool/models --root models-root.json --keys keys",
    "thermocline pool models fetch --config pool-host.toml",
    "thermocline pool models judge --store s3://pool/lives --target 4%",
    "thermocline pool models step --lives s3://pool/lives --store s3://pool/models --root models-root.json --keys keys/",
    "thermocline pool manager --config pool-manager.toml",
    "thermocline pool manager init --config pool-manager.toml",
    "thermocline pool manager recover --config pool-manager.toml",
    "thermocline pool manager audit --config pool-manager.toml --verify",
    "thermocline pool manager openapi",
    "thermocline pool scheduler --config pool-scheduler.toml",
    "thermocline pool scheduler place vm-1 --cores 4 --memory 16GiB --pool 4GiB",
    "thermocline pool scheduler place vm-2 --cores 4 --memory 16GiB --group web --limit 2 --hard",
    "thermocline pool scheduler end vm-1",
    "thermocline pool scheduler drain host-1",
    "thermocline pool scheduler restore host-1",
    "thermocline pool scheduler status",
    "thermocline pool scheduler replay scheduler.log --strategy best_fit",
    "thermocline pool scheduler replay scheduler.log --limit 1 --hard",
    "thermocline pool scheduler replay scheduler.log --simulate",
    "thermocline pool certificates --host host-1 --member pool-1 --member pool-2 --member pool-3 certificates",
    "thermocline pool status",
    "thermocline pool emc failed 0",
    "thermocline pool emc repaired 0",
    "thermocline pool fenced host-1",
    "thermocline pool memory serve --host host-1 --device dax0.0 --identity /etc/thermocline/pool/host-1",
    "thermocline pool memory add build 4GiB",
    "thermocline pool memory remove build",
    "thermocline pool memory list",
    "thermocline pool host --config pool-host.toml",
    "thermocline pool vm start guest.toml",
    "thermocline pool vm stop guest-1",
    "thermocline pool vm release guest-1",
    "thermocline pool vm list",
    "thermocline pool vm explain guest-1",
    "thermocline config check thermocline.toml",
    "thermocline config show",
    "thermocline config knobs",
    "thermocline completions bash",
    "thermocline man man1",
];

/// Commands that are no part of this program.
const IN_PYTHON: &str = "\
In Python, from the wheel of the same release:
  thermocline-tune    Find parameters on a fleet's traces
  thermocline-learn   Train the models that predict for a pool

";

/// The tree of commands with all of its texts.
pub(crate) fn command() -> Command {
    let root = Arguments::command();
    let template = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{IN_PYTHON}Options:\n{{options}}", groups(&root));
    let hidden: Vec<Arg> =
        root.get_arguments().filter(|argument| ["config", "overrides"].contains(&argument.get_id().as_str())).cloned().collect();
    complete(root, &[], &hidden).help_template(template)
}

/// Refuses a configuration where it has no meaning.
pub(crate) fn check_configuration(arguments: &Arguments, words: &[String]) -> Result<(), Error> {
    let given = arguments.configuration.config.is_some() || !arguments.configuration.overrides.is_empty();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Daemons of a pool have a configuration of their own, under the same name.
    let of_daemon = ["manager", "scheduler", "host", "models", "lives"].iter().any(|daemon| words.starts_with(&["pool", daemon]));
    if !given || !is_without_configuration(&words) || of_daemon {
        return Ok(());
    }
    let what = format!(
        "--config and --set name the agent's configuration, which `thermocline {}` does not use; leave them out\n",
        words.join(" ")
    );
    Err(Error::raw(ErrorKind::ArgumentConflict, what))
}

fn is_without_configuration(words: &[&str]) -> bool {
    WITHOUT_CONFIGURATION.iter().any(|prefix| words.starts_with(prefix))
}

/// The words of the command that was given.
pub(crate) fn words(matches: &clap::ArgMatches) -> Vec<String> {
    let mut words = Vec::new();
    let mut at = matches;
    while let Some((name, below)) = at.subcommand() {
        words.push(name.to_owned());
        at = below;
    }
    words
}

/// Adds to a command and all below it what each has. `configuration` are the options that some commands hide.
fn complete(mut command: Command, words: &[&str], configuration: &[Arg]) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).filter(|name| name != "help").collect();
    for name in names {
        let words: Vec<&str> = words.iter().copied().chain([name.as_str()]).collect();
        command = command.mut_subcommand(&name, |below| complete(below, &words, configuration));
    }
    if words.is_empty() {
        return command;
    }
    if WITHOUT_CONFIGURATION.contains(&words) {
        // A command's own option of this name replaces that of all commands, in its help and in those below it.
        command = command.args(configuration.iter().map(|argument| argument.clone().hide(true)));
    }
    let start = format!("thermocline {}", words.join(" "));
    let own = |example: &&&str| example.strip_prefix(start.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let example = EXAMPLES.iter().filter(own).map(|example| format!("\n  {example}")).collect::<String>();
    let heading = if example.matches('\n').count() > 1 { "Examples" } else { "Example" };
    command.after_help(format!("{heading}:{example}\n\n{}", exits::described(words)))
}

/// The list of commands, by group.
fn groups(root: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for name in names {
            let about = root.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "{}", wrapped(name, &about));
        }
        text.push('\n');
    }
    text
}

/// A line of the list, continued where it would be wider than 100 columns.
fn wrapped(name: &str, about: &str) -> String {
    const INDENT: usize = 15;
    const WIDTH: usize = 100;
    let mut text = format!("  {name:<width$}", width = INDENT - 2);
    let mut column = INDENT;
    for (at, word) in about.split(' ').enumerate() {
        if column + word.len() + 1 > WIDTH {
            let _ = write!(text, "\n{:INDENT$}", "");
            column = INDENT;
        } else if at > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += word.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// All commands without commands below them, as their words.
    fn leaves(command: &Command, words: &[String], found: &mut Vec<Vec<String>>) {
        let below: Vec<&Command> = command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set()).collect();
        if below.is_empty() {
            found.push(words.to_vec());
        }
        for below in below {
            leaves(below, &[words, &[below.get_name().to_owned()]].concat(), found);
        }
    }

    #[test]
    fn every_command_has_an_example_that_is_accepted() {
        let mut found = Vec::new();
        leaves(&Arguments::command(), &[], &mut found);
        for words in found {
            let start = format!("thermocline {}", words.join(" "));
            assert!(EXAMPLES.iter().any(|example| example.starts_with(&start)), "{start} has no example");
        }
        for example in EXAMPLES {
            // Quotes as a shell reads them.
            let words = example.split('\'').enumerate().flat_map(|(at, part)| match at % 2 {
                0 => part.split_ascii_whitespace().collect(),
                _ => vec![part],
            });
            let matches = command().try_get_matches_from(words);
            assert!(matches.is_ok(), "{example}: {}", matches.unwrap_err());
        }
    }

    #[test]
    fn every_command_is_in_one_group() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let root = Arguments::command();
        let all: BTreeSet<&str> = root.get_subcommands().filter(|below| !below.is_hide_set()).map(Command::get_name).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(grouped.len(), all.len());
        let help = command().render_help().to_string();
        assert!(help.lines().all(|line| line.len() <= 100) && help.contains("What if:\n  plan"), "{help}");
        assert!(help.contains("  thermocline-tune ") && help.contains("  thermocline-learn "), "{help}");
    }

    #[test]
    fn a_configuration_is_refused_where_it_has_no_meaning() {
        use clap::FromArgMatches;
        let check = |line: &str| {
            let matches = command().try_get_matches_from(line.split(' ')).unwrap();
            check_configuration(&Arguments::from_arg_matches(&matches).unwrap(), &words(&matches)).map_err(|error| error.to_string())
        };
        assert!(check("thermocline --config x pool doctor").unwrap_err().contains("pool doctor"));
        assert!(check("thermocline completions bash --set a=b").unwrap_err().contains("completions"));
        for line in ["thermocline pool doctor", "thermocline --config x status", "thermocline pool host --config x"] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
        let help = |name: &str| {
            let mut command = command();
            command.build();
            command.find_subcommand_mut(name).unwrap().render_long_help().to_string()
        };
        assert!(help("status").contains("--config") && !help("completions").contains("--config"), "{}", help("completions"));
    }
}
