//! Memory hotplug: `/sys/devices/system/memory`
//! (`Documentation/admin-guide/mm/memory-hotplug.rst`).

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use units::Bytes;

use crate::{Malformed, Result, Roots, file, process};

/// The initial state of added memory (`auto_online_blocks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoOnline {
    /// It stays offline until it is set online.
    Offline,
    /// It comes online; the kernel may place unmovable allocations there.
    Online,
    /// It comes online in a kernel zone.
    OnlineKernel,
    /// It comes online in `ZONE_MOVABLE`, so that it can go offline again.
    OnlineMovable,
}

/// The kernel's settings of memory hotplug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Hotplug {
    /// The size of a memory block, the unit of hotplug.
    pub block: Bytes,
    /// The initial state of added memory.
    pub auto_online: AutoOnline,
}

/// Parses `auto_online_blocks`.
///
/// # Errors
/// [`Malformed`] for a state that the documentation does not list.
pub fn parse_auto_online(text: &str) -> Result<AutoOnline, Malformed> {
    match text.trim() {
        "offline" => Ok(AutoOnline::Offline),
        "online" => Ok(AutoOnline::Online),
        "online_kernel" => Ok(AutoOnline::OnlineKernel),
        "online_movable" => Ok(AutoOnline::OnlineMovable),
        other => Err(Malformed::new(1, other, "offline, online, online_kernel or online_movable")),
    }
}

/// Parses `block_size_bytes`, which is in hexadecimal without a prefix.
///
/// # Errors
/// [`Malformed`] if it is not a hexadecimal number, or is 0.
pub fn parse_block_size(text: &str) -> Result<Bytes, Malformed> {
    let size = u64::from_str_radix(text.trim(), 16).ok().filter(|size| *size > 0);
    size.map(Bytes).ok_or_else(|| Malformed::new(1, text.trim(), "a size in bytes, in base 16"))
}

/// Reads the settings of memory hotplug; `None` on a kernel without it.
///
/// # Errors
/// [`crate::Error::Parse`]; [`crate::Error::Io`].
pub fn hotplug(roots: &Roots) -> Result<Option<Hotplug>> {
    let directory = roots.sys.join("devices/system/memory");
    let (block, auto_online) = (directory.join("block_size_bytes"), directory.join("auto_online_blocks"));
    let Some(size) = file::read_optional(&block, file::SMALL)? else { return Ok(None) };
    let Some(policy) = file::read_optional(&auto_online, file::SMALL)? else { return Ok(None) };
    let size = parse_block_size(&size).map_err(|malformed| malformed.at(&block))?;
    let policy = parse_auto_online(&policy).map_err(|malformed| malformed.at(&auto_online))?;
    Ok(Some(Hotplug { block: size, auto_online: policy }))
}

/// Online memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Online {
    /// All online memory.
    pub all: Bytes,
    /// The part in `ZONE_MOVABLE`, which can go offline again.
    pub movable: Bytes,
}

/// The online memory in the range of `size` from `start`, in whole blocks. Blocks unknown to the kernel are not online.
///
/// # Errors
/// [`crate::Error::Gone`] if a block is removed during the reading; [`crate::Error::Io`].
pub fn online(roots: &Roots, hotplug: &Hotplug, start: u64, size: Bytes) -> Result<Online> {
    let block = hotplug.block.0;
    let (first, end) = (start.div_ceil(block), start.saturating_add(size.0) / block);
    let mut online = Online::default();
    for number in first..end {
        let directory = roots.sys.join(format!("devices/system/memory/memory{number}"));
        let says = |name, word: &str| {
            let text = file::read_optional(&directory.join(name), file::SMALL)?;
            // For an online block, the file holds its zone.
            Ok::<_, crate::Error>(text.is_some_and(|text| text.split_ascii_whitespace().next() == Some(word)))
        };
        if says("state", "online")? {
            online.all = Bytes(online.all.0.saturating_add(block));
            if says("valid_zones", "Movable")? {
                online.movable = Bytes(online.movable.0.saturating_add(block));
            }
        }
    }
    Ok(online)
}

/// Whether a memory block is online, which it also is while the kernel takes it offline; `None` if the kernel does not know it.
///
/// # Errors
/// [`crate::Error::Io`]
pub fn is_online(roots: &Roots, number: u64) -> Result<Option<bool>> {
    let state = file::read_optional(&state_file(roots, number), file::SMALL)?;
    Ok(state.map(|state| state.trim() != "offline"))
}

/// Brings a memory block online in `ZONE_MOVABLE`, so that it can go offline again.
///
/// # Errors
/// [`crate::Error::Gone`] if the kernel does not know it; [`crate::Error::Io`] if it refuses.
pub fn bring_online(roots: &Roots, number: u64) -> Result<()> {
    file::write(&state_file(roots, number), "online_movable")
}

/// Takes a memory block offline, for as long as this may take. The kernel moves what is in it elsewhere, and tries
/// again without end where a page cannot be moved, until the writer has a signal (`offline_pages()` in `mm/memory_hotplug.c`): so
/// another process writes, which is killed at the end of the time.
///
/// # Errors
/// Why it is still online.
pub fn take_offline(roots: &Roots, number: u64, timeout: Duration) -> io::Result<()> {
    let path = state_file(roots, number);
    let mut writer = Command::new("/bin/sh")
        .args(["-c", "echo offline > \"$1\"", "sh"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let stderr = writer.stderr.take();
    let status = process::wait_within(writer, timeout)?;
    if is_online(roots, number).map_err(io::Error::other)? != Some(true) {
        return Ok(());
    }
    let mut why = String::new();
    if let Some(mut stderr) = stderr.filter(|_| status.is_some()) {
        stderr.read_to_string(&mut why)?;
    }
    let why = if why.is_empty() { format!("not within {} s", timeout.as_secs()) } else { why.trim().to_owned() };
    Err(io::Error::other(format!("memory block {number} does not go offline: {why}")))
}

fn state_file(roots: &Roots, number: u64) -> PathBuf {
    roots.sys.join(format!("devices/system/memory/memory{number}/state"))
}

/// Whether the kernel may keep its own data about hot-plugged memory in that memory (`memory_hotplug.memmap_on_memory`).
///
/// # Errors
/// [`crate::Error::Io`]
pub fn memmap_on_memory(roots: &Roots) -> Result<bool> {
    let text = file::read_optional(&roots.sys.join("module/memory_hotplug/parameters/memmap_on_memory"), file::SMALL)?;
    Ok(text.is_some_and(|text| text.trim() != "N"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const BLOCK: (&str, &str) = ("sys/devices/system/memory/block_size_bytes", "8000000\n");
    const POLICY: &str = "sys/devices/system/memory/auto_online_blocks";

    #[test]
    fn states_are_parsed() {
        let check = |text: &str, want| {
            let (_keep, roots) = tree(&[BLOCK, (POLICY, text)]);
            assert_eq!(hotplug(&roots).unwrap(), Some(Hotplug { block: Bytes::mib(128), auto_online: want }));
        };
        check("offline\n", AutoOnline::Offline);
        check("online\n", AutoOnline::Online);
        check("online_kernel\n", AutoOnline::OnlineKernel);
        check("online_movable\n", AutoOnline::OnlineMovable);
        let (_keep, roots) = tree(&[BLOCK]);
        assert_eq!(hotplug(&roots).unwrap(), None);
        cut_everywhere("online_movable", parse_auto_online);
        cut_everywhere("8000000", parse_block_size);
        assert!(parse_block_size("0").is_err());
        hotplug(&Roots::host()).unwrap();
    }

    #[test]
    fn a_block_goes_online_and_offline() {
        const STATE: &str = "sys/devices/system/memory/memory7/state";
        let (keep, roots) = tree(&[(STATE, "offline\n"), ("sys/module/memory_hotplug/parameters/memmap_on_memory", "N\n")]);
        assert_eq!((is_online(&roots, 7).unwrap(), is_online(&roots, 8).unwrap()), (Some(false), None));
        bring_online(&roots, 7).unwrap();
        assert_eq!((crate::testing::get(keep.path(), STATE).as_str(), is_online(&roots, 7).unwrap()), ("online_movable", Some(true)));
        take_offline(&roots, 7, Duration::from_secs(60)).unwrap();
        assert_eq!(is_online(&roots, 7).unwrap(), Some(false));
        take_offline(&roots, 8, Duration::from_secs(60)).unwrap();
        assert!(!memmap_on_memory(&roots).unwrap());
        crate::testing::put(keep.path(), "sys/module/memory_hotplug/parameters/memmap_on_memory", "force\n");
        assert!(memmap_on_memory(&roots).unwrap());
    }

    #[test]
    fn blocks_within_a_range_are_counted() {
        let of = |number: u32, name, text| (format!("sys/devices/system/memory/memory{number}/{name}"), text);
        let state = |number, text| of(number, "state", text);
        let zone = |number, text| of(number, "valid_zones", text);
        let states = [state(47, "online\n"), state(48, "online\n"), state(49, "offline\n"), state(50, "online\n"), state(52, "online\n")];
        // For an offline block, the file holds the possible zones.
        let zones = [zone(47, "Normal\n"), zone(48, "Movable\n"), zone(49, "Movable Normal\n"), zone(50, "Normal\n")];
        let files = [&states[..], &zones].concat();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_keep, roots) = tree(&files);
        let plug = Hotplug { block: Bytes::mib(128), auto_online: AutoOnline::Offline };
        let check = |start_mib: u64, size_mib, all, movable| {
            let want = Online { all: Bytes::mib(all), movable: Bytes::mib(movable) };
            assert_eq!(online(&roots, &plug, start_mib << 20, Bytes::mib(size_mib)).unwrap(), want, "{start_mib} {size_mib}");
        };
        check(48 * 128, 4 * 128, 256, 128);
        check(47 * 128, 2 * 128, 256, 128);
        // A range that begins or ends within a block does not include it.
        check(47 * 128 + 1, 2 * 128, 128, 128);
        check(48 * 128, 127, 0, 0);
        check(60 * 128, 4 * 128, 0, 0);
    }
}
