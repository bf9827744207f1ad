//! Faults of the machine that last for some turns.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use fastrand::Rng;

use crate::group::{PAGE, SETTINGS};
use crate::kernel_files::directory;
use crate::machine::{self, Answer, Shared};
use crate::plan::Kind;

/// Turns after which the agent knows how the kernel answers: two control periods.
const STEADY_TURNS: u32 = 12;

/// Faults under way.
#[derive(Debug, Default)]
pub struct Effects {
    /// Each with the turn at which it ends.
    under_way: Vec<(u32, Kind)>,
    /// The turn from which on the agent knows how the kernel answers.
    steady_from: u32,
    slow_until: Option<u32>,
    /// The swap device's own size.
    swap_pages: Option<u64>,
}

impl Effects {
    /// Whether nothing is under way that may prevent a start.
    #[must_use]
    pub fn harmless(&self) -> bool {
        self.under_way.iter().all(|(_, kind)| matches!(kind, Kind::Answer(..) | Kind::Swap(..) | Kind::BreakProtection(_)))
    }

    /// Whether the agent knows how the kernel answers.
    #[must_use]
    pub fn steady(&self, turn: u32) -> bool {
        turn >= self.steady_from && self.under_way.is_empty()
    }

    /// Whether scans last for some turns.
    #[must_use]
    pub fn slow_scans(&self, turn: u32) -> bool {
        self.slow_until.is_some_and(|until| turn < until)
    }

    /// Lets a fault begin.
    ///
    /// # Errors
    /// If the machine's files cannot be changed.
    pub fn begin(&mut self, turn: u32, kind: &Kind, root: &Path, machine: &Shared, rng: &mut Rng) -> anyhow::Result<()> {
        let mut machine = machine::lock(machine);
        self.steady_from = turn + STEADY_TURNS;
        let now = machine.now;
        let length = match kind {
            Kind::Vanish(group, again) => {
                machine.vanish(*group, *again);
                return Ok(());
            }
            Kind::Operator(group, setting, value) => {
                let value = operators_value(*setting, *value);
                let name = format!("{}/{}", directory(&machine.groups[*group].path), SETTINGS[*setting]);
                // The value that the agent has set already is not written again: nothing would distinguish that from the agent's own write.
                if machine.setting(&name).as_deref() != Some(&value) {
                    machine.set(&name, &value)?;
                }
                return Ok(());
            }
            Kind::OperatorZswap(enabled) => {
                machine.set("sys/module/zswap/parameters/enabled", if *enabled { "Y" } else { "N" })?;
                return Ok(());
            }
            Kind::Shift(group) => {
                if machine.groups[*group].alive {
                    machine.groups[*group].shift(rng);
                }
                return Ok(());
            }
            Kind::Resize(group, percent, grow) => {
                machine.groups[*group].resize(f64::from(*percent) / 100.0, *grow, rng, now);
                machine.publish()?;
                return Ok(());
            }
            Kind::SlowScans(length) => {
                self.slow_until = Some(turn + length);
                return Ok(());
            }
            Kind::Answer(answer, length) => {
                machine.answer = *answer;
                *length
            }
            Kind::Swap(pages, length) => {
                self.swap_pages.get_or_insert(machine.swap_pages);
                machine.swap_pages = *pages;
                *length
            }
            Kind::BreakProtection(length) => {
                machine.breaks_protection = true;
                *length
            }
            Kind::Damage(name, damage, length) => {
                machine.damage(name, *damage)?;
                *length
            }
            Kind::StateFull(length) => block(root, "state/history.new", true).map(|()| *length)?,
            Kind::RunFull(length) => block(root, "run/undo.new", true).map(|()| *length)?,
            Kind::RunUnwritable(length) => block(root, "run/undo.new", false).map(|()| *length)?,
            _ => return Ok(()),
        };
        self.under_way.push((turn + length, kind.clone()));
        Ok(())
    }

    /// Ends the faults whose time is over.
    ///
    /// # Errors
    /// If the machine's files cannot be changed.
    pub fn end(&mut self, turn: u32, root: &Path, machine: &Shared) -> anyhow::Result<()> {
        let (over, under_way): (Vec<_>, Vec<_>) = std::mem::take(&mut self.under_way).into_iter().partition(|(until, _)| *until <= turn);
        self.under_way = under_way;
        if over.is_empty() {
            return Ok(());
        }
        self.steady_from = turn.saturating_add(STEADY_TURNS);
        let mut machine = machine::lock(machine);
        for (_, kind) in over {
            match kind {
                Kind::Answer(..) => machine.answer = Answer::Exact,
                Kind::Swap(..) => machine.swap_pages = self.swap_pages.unwrap_or(machine.swap_pages),
                Kind::BreakProtection(_) => machine.breaks_protection = false,
                Kind::Damage(..) => machine.repair()?,
                Kind::StateFull(_) => unblock(root, "state/history.new")?,
                Kind::RunFull(_) | Kind::RunUnwritable(_) => unblock(root, "run/undo.new")?,
                _ => {}
            }
        }
        machine.publish()?;
        Ok(())
    }
}

/// A value that the agent never sets: protection of more than the machine's memory, a limit beyond all swap.
fn operators_value(setting: usize, value: u64) -> String {
    match setting {
        0 | 4 => ((100_000 + value) * PAGE).to_string(),
        1 | 2 => ((200_000 + value) * PAGE).to_string(),
        _ => (value % 2).to_string(),
    }
}

/// Makes writing a file fail: on a full device, or because it is a directory.
fn block(root: &Path, name: &str, full: bool) -> std::io::Result<()> {
    let path = root.join(name);
    if path.symlink_metadata().is_ok() || !path.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    if full { symlink("/dev/full", path) } else { fs::create_dir(path) }
}

fn unblock(root: &Path, name: &str) -> std::io::Result<()> {
    let path = root.join(name);
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(path),
        Ok(metadata) if metadata.is_symlink() => fs::remove_file(path),
        _ => Ok(()),
    }
}
