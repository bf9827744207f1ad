//! The commands that an expander supports: the Command Effects Log (CXL 3.1, section 8.2.9.5.2.1), read through the mailbox by
//! the `CXL_MEM_SEND_COMMAND` ioctl of `/dev/cxl/memN` (`include/uapi/linux/cxl_mem.h`). Reading it has no side effects.
//!
//! Linux lists only the commands that it uses; the log holds all of them.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use crate::{Error, Malformed, Result, Roots};

/// Get Dynamic Capacity Configuration: the device adds and removes memory at run time (CXL 3.1, section 8.2.9.9.9.1).
pub const DYNAMIC_CAPACITY: u16 = 0x4800;
/// Get Multi-Headed Info: several hosts share the device (section 7.6.7.5.1).
pub const MULTI_HEADED: u16 = 0x5500;

/// `_IOWR(0xCE, 2, struct cxl_send_command)`.
const SEND_COMMAND: u32 = 3 << 30 | 48 << 16 | 0xCE << 8 | 2;
const GET_SUPPORTED_LOGS: u32 = 3;
const GET_LOG: u32 = 8;

/// The UUID of the log, 0da9c0b5-bf41-4b78-8f79-96b1623b3f17.
const EFFECTS_LOG: [u8; 16] = [0x0d, 0xa9, 0xc0, 0xb5, 0xbf, 0x41, 0x4b, 0x78, 0x8f, 0x79, 0x96, 0xb1, 0x62, 0x3b, 0x3f, 0x17];

/// Bytes of a log per request: the smallest mailbox that the specification permits.
const PIECE: u32 = 256;
/// The largest log: a four-byte entry for each of 65,536 commands.
const LOG_MAX: u32 = 4 << 16;

#[repr(C)]
#[derive(Debug, Default)]
struct Payload {
    size: u32,
    reserved: u32,
    address: u64,
}

#[repr(C)]
#[derive(Debug, Default)]
struct SendCommand {
    id: u32,
    flags: u32,
    reserved: u32,
    returned: u32,
    given: Payload,
    wanted: Payload,
}

/// The opcodes of the commands that the expander `name` supports.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Io`], also without permission; [`Error::Unsupported`] if the device rejects the command;
/// [`Error::Parse`].
pub fn commands(roots: &Roots, name: &str) -> Result<Vec<u16>> {
    let mailbox = Mailbox::open(roots, name)?;
    let logs = mailbox.send(GET_SUPPORTED_LOGS, &[])?;
    let at = |malformed: Malformed| malformed.at(&mailbox.path);
    let size = parse_logs(&logs).map_err(at)?;
    let mut log = Vec::new();
    while log.len() < size as usize {
        let done = u32::try_from(log.len()).unwrap_or(size);
        let part = PIECE.min(size - done);
        let input = [&EFFECTS_LOG[..], &done.to_le_bytes(), &part.to_le_bytes()].concat();
        let answer = mailbox.send(GET_LOG, &input)?;
        if answer.is_empty() {
            return Err(at(Malformed::new(0, "an end", "a whole Command Effects Log")));
        }
        log.extend(answer);
    }
    parse_effects(&log).map_err(at)
}

/// Parses the size of the Command Effects Log from the output of Get Supported Logs: a 16-bit count, 6 reserved bytes, and for
/// each log its UUID and its 32-bit size.
///
/// # Errors
/// [`Malformed`] if the output is shorter than its count, or does not list the log.
pub fn parse_logs(bytes: &[u8]) -> Result<u32, Malformed> {
    const EXPECTED: &str = "a list of logs with the Command Effects Log in it";
    let short = || Malformed::new(0, &format!("{} bytes", bytes.len()), EXPECTED);
    let (head, entries) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
    let count = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let entries = entries.chunks_exact(20).take(count);
    if entries.len() < count {
        return Err(short());
    }
    let mut sizes = entries.filter_map(|entry| entry.strip_prefix(&EFFECTS_LOG)?.first_chunk().copied().map(u32::from_le_bytes));
    sizes.next().filter(|size| *size <= LOG_MAX).ok_or_else(short)
}

/// Parses the opcodes of a Command Effects Log: entries of a 16-bit opcode and 16-bit effects.
///
/// # Errors
/// [`Malformed`] if an entry is incomplete.
pub fn parse_effects(bytes: &[u8]) -> Result<Vec<u16>, Malformed> {
    let entries = bytes.chunks_exact(4);
    if !entries.remainder().is_empty() {
        return Err(Malformed::new(0, &format!("{} bytes", bytes.len()), "entries of four bytes"));
    }
    Ok(entries.map(|entry| u16::from_le_bytes([entry[0], entry[1]])).collect())
}

struct Mailbox {
    file: File,
    path: PathBuf,
}

impl Mailbox {
    fn open(roots: &Roots, name: &str) -> Result<Self> {
        let path = roots.dev.join("cxl").join(name);
        let file = File::open(&path).map_err(|source| Error::from_io(&path, "open", source))?;
        Ok(Self { file, path })
    }

    fn send(&self, id: u32, input: &[u8]) -> Result<Vec<u8>> {
        let mut answer = vec![0_u8; PIECE as usize];
        let size = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut command = SendCommand {
            id,
            given: Payload { size: size(input), address: input.as_ptr().addr() as u64, ..Payload::default() },
            wanted: Payload { size: size(&answer), address: answer.as_mut_ptr().addr() as u64, ..Payload::default() },
            ..SendCommand::default()
        };
        // SAFETY: `command` has the layout and size that the request number encodes; the two payloads are borrowed slices of the
        // stated sizes that outlive the call, which writes only to the second.
        let status = unsafe { libc::ioctl(self.file.as_raw_fd(), SEND_COMMAND as libc::Ioctl, std::ptr::from_mut(&mut command)) };
        if status < 0 {
            return Err(Error::from_io(&self.path, "ioctl CXL_MEM_SEND_COMMAND on", io::Error::last_os_error()));
        }
        if command.returned != 0 {
            let what = format!("{} answers command {id} with status {}", self.path.display(), command.returned);
            return Err(Error::unsupported(what, "check the firmware of the device"));
        }
        answer.truncate(command.wanted.size as usize);
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tree;

    /// The output of a device with two logs.
    fn logs(effects_size: u32) -> Vec<u8> {
        [&[2, 0][..], &[0; 6], &[9; 16], &[7, 0, 0, 0], &EFFECTS_LOG, &effects_size.to_le_bytes()].concat()
    }

    #[test]
    fn the_log_is_found_among_others_and_parsed() {
        assert_eq!(parse_logs(&logs(12)).unwrap(), 12);
        let log = [0x00, 0x40, 0, 0, 0x00, 0x48, 0x10, 0, 0x00, 0x55, 0, 0];
        assert_eq!(parse_effects(&log).unwrap(), [0x4000, DYNAMIC_CAPACITY, MULTI_HEADED]);
        assert_eq!(parse_effects(&[]).unwrap(), []);
    }

    #[test]
    fn truncated_or_oversized_logs_are_rejected() {
        let whole = logs(12);
        for length in 0..whole.len() {
            assert!(parse_logs(&whole[..length]).is_err(), "{length}");
        }
        assert!(parse_logs(&logs(LOG_MAX + 1)).is_err());
        assert!(parse_logs(&[1, 0, 0, 0, 0, 0, 0, 0].into_iter().chain([9; 20]).collect::<Vec<_>>()).is_err());
        for length in [1, 2, 3, 5] {
            assert!(parse_effects(&vec![0; length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_device_is_an_error() {
        assert_eq!(size_of::<SendCommand>(), 48);
        let (_keep, roots) = tree(&[("dev/cxl/mem0", "")]);
        let error = commands(&roots, "mem0").unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOTTY), "{error}");
        assert!(commands(&roots, "mem1").unwrap_err().is_gone());
    }
}
