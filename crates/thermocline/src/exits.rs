//! Exit statuses. Each has one meaning, whichever command exits with it.

use std::process::ExitCode;

/// The command worked, and its answer is no.
pub(crate) fn negative() -> ExitCode {
    ExitCode::from(3)
}

/// `thermocline run` failed itself, so that its status cannot be that of its command, as with `env(1)`.
pub(crate) fn not_the_command() -> ExitCode {
    ExitCode::from(125)
}

/// What the statuses of a command mean, for its help and its man page.
pub(crate) fn described(words: &[&str]) -> String {
    let negative = match words {
        ["doctor"] => "3  the machine cannot offload memory in its present state",
        ["pool", "accesses"] => "3  the accesses of the process cannot be seen\n  130  interrupted",
        ["pool", "doctor"] => "3  the machine has no memory for a pool",
        ["pool", "models", "judge"] => "3  the newest model fails, or has too few guests",
        ["pool", "models", "publish"] => "3  the bundle is published, and its rollout by --plan does not begin",
        ["rollout", "rehearse"] => "3  the bundle did not reach the whole fleet",
        ["reproduce"] => "3  a figure was not reproduced",
        ["replay"] => "3  decisions differ from the recorded ones, or there are none",
        ["run"] => {
            return "Exit status: that of the command, or\n  2    wrong arguments\n  125  thermocline failed\n  126  the command cannot be executed\n  \
                    127  the command was not found\n  128+N  signal N killed the command"
                .to_owned();
        }
        ["rates"] => "130  interrupted",
        _ => "",
    };
    let statuses = ["0  done", "1  failed", "2  wrong arguments", negative].into_iter().filter(|line| !line.is_empty());
    format!("Exit status:\n  {}", statuses.collect::<Vec<_>>().join("\n  "))
}
