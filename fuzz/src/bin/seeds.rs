//! Writes the seeds of all targets, each into a folder of its target, and prints the targets' names.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> std::io::Result<ExitCode> {
    let Some(into) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: thermocline-fuzz-seeds DIRECTORY");
        return Ok(ExitCode::from(2));
    };
    for target in fuzz::TARGETS {
        let folder = into.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (at, seed) in fuzz::seeds(target.name).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{at}")), seed)?;
        }
        println!("{}", target.name);
    }
    Ok(ExitCode::SUCCESS)
}
