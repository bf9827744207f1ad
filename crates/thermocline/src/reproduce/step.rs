//! Runs one step, and reads its result.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::catalogue::Step;

/// A step that has a result.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) result: Value,
    /// What else is to be known: it failed a bound of its own.
    pub(super) remark: Option<String>,
}

/// Runs a step, with its output in a log. Its error says why there is no result.
///
/// With `reuse`, a result that is there is taken.
pub(super) fn run(step: &Step, tree: &Path, out: &Path, reuse: bool) -> Result<Done, String> {
    let result = place(step, tree, out);
    if reuse && result.exists() {
        return read(&result, true);
    }
    let log = out.join(format!("{}.log", step.name));
    // A result from before is not this step's, and is kept unless there is a new one.
    let before = result.with_extension("before");
    let had_one = std::fs::rename(&result, &before).is_ok();
    let executed = execute(step, tree, &result, &log);
    if let (Ok(succeeded), true) = (&executed, result.exists()) {
        return read(&result, *succeeded);
    }
    if had_one {
        std::fs::rename(&before, &result).map_err(|error| format!("cannot restore {}: {error}", result.display()))?;
    }
    Err(executed.err().unwrap_or_else(|| format!("it wrote no result; its output is in {}", log.display())))
}

/// Where a step's result is.
fn place(step: &Step, tree: &Path, out: &Path) -> PathBuf {
    step.result.as_ref().map_or_else(|| out.join(format!("{}.json", step.name)), |result| tree.join(result))
}

/// Runs the command. Returns whether it succeeded.
fn execute(step: &Step, tree: &Path, result: &Path, log: &Path) -> Result<bool, String> {
    let create = |path: &Path| File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()));
    let errors = create(log)?;
    let mut command = if let Some(run) = &step.run {
        let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(run).args(["--format", "json"]).stdout(create(result)?);
        command
    } else {
        if !tree.join("lab/thermolab").is_dir() {
            return Err(format!("{} is not the source tree; name it by --tree", tree.display()));
        }
        let mut command = Command::new("make");
        command.current_dir(tree).args(step.make.iter().flatten());
        command.stdout(errors.try_clone().map_err(|error| format!("cannot write {}: {error}", log.display()))?);
        command
    };
    let status = command.stdin(Stdio::null()).stderr(errors).status().map_err(|error| format!("cannot run {}: {error}", step.command()))?;
    if step.run.is_some() && !status.success() {
        let _ = std::fs::remove_file(result);
        return Err(format!("it ended with {status}; its output is in {}", log.display()));
    }
    Ok(status.success())
}

fn read(path: &Path, succeeded: bool) -> Result<Done, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let result: Value = serde_json::from_str(&text).map_err(|error| format!("{} is damaged: {error}", path.display()))?;
    let failed = !succeeded || result.get("passed").and_then(Value::as_bool) == Some(false);
    let reasons = result.get("reasons").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let reason = reasons.map(|reason| reason.lines().next().unwrap_or_default()).next().unwrap_or("see its log");
    Ok(Done { remark: failed.then(|| format!("the step failed a bound of its own: {reason}")), result })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(make: &[&str]) -> Step {
        let make = Some(make.iter().map(|&word| word.to_owned()).collect());
        Step { name: "a".to_owned(), run: None, make, result: Some("result.json".to_owned()), minutes: 1, quick: true }
    }

    #[test]
    fn a_result_is_the_steps_own() {
        let (tree, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = |target: &str, reuse| super::run(&step(&[target]), tree.path(), out.path(), reuse);
        assert!(run("all", false).unwrap_err().contains("is not the source tree"));
        std::fs::create_dir_all(tree.path().join("lab/thermolab")).unwrap();
        let makefile = "good:\n\t@echo '{\"v\": 1}' >result.json\nbad:\n\t@echo '{\"passed\": false, \"reasons\": [\"v is 2\"]}' >result.json; false\n\
                        none:\n\t@true\n";
        std::fs::write(tree.path().join("Makefile"), makefile).unwrap();
        assert!(run("none", false).unwrap_err().contains("wrote no result"));
        let good = run("good", false).unwrap();
        assert_eq!((good.result["v"].as_i64(), good.remark), (Some(1), None));
        // The result of the step before is not that of one which writes none, unless that is asked for.
        assert!(run("none", false).unwrap_err().contains("wrote no result"));
        assert_eq!(run("none", true).unwrap().result["v"], 1);
        assert!(run("bad", false).unwrap().remark.unwrap().contains("v is 2"));
    }
}
