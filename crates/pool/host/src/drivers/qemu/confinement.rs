//! Confinement of QEMU: a user of its own for each process, no capabilities, no new privileges, QEMU's seccomp filter,
//! and a cgroup with limits. A guest that escapes from QEMU then has the files and sockets that the host opened for it,
//! and no others that other users may not access.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

use kernel::Roots;
use rustix::fs::{Gid, Uid, XattrFlags};
use rustix::thread::CapabilitySet;

use super::settings::Settings;

/// QEMU's own filter of system calls.
pub(super) const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
/// The access control list of a file (`linux/posix_acl_xattr.h`): its attribute, version, and kinds of entries.
const ACL: &str = "system.posix_acl_access";
const ACL_VERSION: u32 = 2;
const ACL_OWNER: u16 = 0x01;
const ACL_USER: u16 = 0x02;
const ACL_GROUP: u16 = 0x04;
const ACL_MASK: u16 = 0x10;
const ACL_OTHERS: u16 = 0x20;
const READ_WRITE: u16 = 6;
/// Largest capability number that a kernel may have.
const CAPABILITIES_MAX: u32 = 63;

/// User ids of guests. A free one is one that no process on this machine has: that holds across daemons and restarts.
#[derive(Debug)]
pub(super) struct Users {
    first: u32,
    count: u32,
    starting: Mutex<Starting>,
}

#[derive(Debug, Default)]
struct Starting {
    /// Users of processes that are being started.
    reserved: BTreeSet<u32>,
    /// Users are taken in turn, so that what a guest left behind is not the next guest's.
    offset: u32,
}

/// A user that no other process gets while this value exists.
#[derive(Debug)]
pub(super) struct User<'a> {
    users: &'a Users,
    id: u32,
}

impl Users {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { first: settings.first_user, count: settings.users, starting: Mutex::default() }
    }

    /// A user that no process has.
    ///
    /// # Errors
    /// Every user has a process, or the processes cannot be listed.
    pub(super) fn reserve(&self, roots: &Roots) -> Result<User<'_>, String> {
        let mut starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let used = users_with_processes(roots)?;
        for step in 0..self.count {
            let offset = (starting.offset + step) % self.count;
            let id = self.first + offset;
            if !used.contains(&id) && starting.reserved.insert(id) {
                starting.offset = (offset + 1) % self.count;
                return Ok(User { users: self, id });
            }
        }
        Err(format!("all {} users from {} have processes; raise qemu.users", self.count, self.first))
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.users.starting.lock().unwrap_or_else(PoisonError::into_inner).reserved.remove(&self.id);
    }
}

/// Real, effective, saved and file system users of every process.
fn users_with_processes(roots: &Roots) -> Result<BTreeSet<u32>, String> {
    let failed = |error| format!("cannot list {}: {error}", roots.proc.display());
    let mut users = BTreeSet::new();
    for entry in std::fs::read_dir(&roots.proc).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // The process may have exited.
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        users.extend(ids.split_ascii_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    Ok(users)
}

/// Gives the user access to a slice's file, until the slice is scrubbed: that makes a new file. Its owner, the manager,
/// keeps its access, and no capability is needed for it.
pub(super) fn give(file: &File, user: &User<'_>) -> std::io::Result<()> {
    let group = u16::try_from(file.metadata()?.mode() >> 3 & 7).unwrap_or_default();
    Ok(rustix::fs::fsetxattr(file, ACL, &access_list(user.id, group), XattrFlags::empty())?)
}

/// Reading and writing for the file's owner and `user`, `group` for its group, nothing for others.
fn access_list(user: u32, group: u16) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries = [
        (ACL_OWNER, READ_WRITE, NO_ID),
        (ACL_USER, READ_WRITE, user),
        (ACL_GROUP, group, NO_ID),
        (ACL_MASK, READ_WRITE, NO_ID),
        (ACL_OTHERS, 0, NO_ID),
    ];
    let mut list = ACL_VERSION.to_le_bytes().to_vec();
    for (kind, access, id) in entries {
        list.extend(kind.to_le_bytes());
        list.extend(access.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Groups of the devices that every guest needs: `device_group`, and that of `/dev/kvm` unless all users may open it.
pub(super) fn groups(settings: &Settings, kvm: &Path) -> Vec<Gid> {
    let mut groups: Vec<u32> = settings.device_group.into_iter().collect();
    if settings.accelerator.starts_with("kvm")
        && let Ok(device) = std::fs::metadata(kvm)
        && device.mode() & 0o006 != 0o006
        && device.gid() != 0
    {
        groups.push(device.gid());
    }
    groups.into_iter().map(Gid::from_raw).collect()
}

/// Starts a program as `user`, without capabilities and without a way to gain privileges.
///
/// Credentials belong to a thread in Linux, and a child inherits those of the thread that starts it: so they are
/// dropped in a thread that ends with the call, before the program is executed.
pub(super) fn spawn(command: &mut Command, user: &User<'_>, groups: &[Gid]) -> std::io::Result<Child> {
    let id = user.id;
    std::thread::scope(|scope| {
        let child = scope.spawn(|| {
            drop_privileges(id, groups)?;
            command.spawn()
        });
        child.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread that starts the guest has failed")))
    })
}

fn drop_privileges(id: u32, groups: &[Gid]) -> std::io::Result<()> {
    for number in 0..=CAPABILITIES_MAX {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // The kernel's last capability is the last that can be dropped.
        if rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false) {
            rustix::thread::remove_capability_from_bounding_set(capability)?;
        }
    }
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_thread_groups(groups)?;
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_res_gid(group, group, group)?;
    // The kernel clears all other capabilities of a thread that stops being root.
    Ok(rustix::thread::set_thread_res_uid(user, user, user)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(first_user: u32, users: u32) -> Users {
        Users::new(&Settings { first_user, users, ..Settings::example() })
    }

    fn processes(ids: &[u32]) -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        for (pid, id) in ids.iter().enumerate() {
            let process = directory.path().join(pid.to_string());
            std::fs::create_dir(&process).unwrap();
            std::fs::write(process.join("status"), format!("Name:\tqemu\nUid:\t0\t{id}\t0\t0\n")).unwrap();
        }
        let roots = Roots { proc: directory.path().to_owned(), ..Roots::host() };
        (directory, roots)
    }

    #[test]
    fn no_two_processes_have_the_same_user() {
        let (_directory, roots) = processes(&[501]);
        let users = users(500, 3);
        let first = users.reserve(&roots).unwrap();
        let second = users.reserve(&roots).unwrap();
        assert_eq!((first.id, second.id), (500, 502));
        assert!(users.reserve(&roots).unwrap_err().contains("all 3 users from 500 have processes"));
        drop(first);
        assert_eq!(users.reserve(&roots).unwrap().id, 500);
    }

    #[test]
    fn a_user_is_reused_last() {
        let (_directory, roots) = processes(&[]);
        let users = users(500, 3);
        let found: Vec<u32> = (0..4).map(|_| users.reserve(&roots).unwrap().id).collect();
        assert_eq!(found, [500, 501, 502, 500]);
    }
}
