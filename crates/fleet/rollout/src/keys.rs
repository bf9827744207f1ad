//! The operator's keys: Ed25519, a file each. They sign on the operator's machine and are never sent anywhere.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use serde::Serialize;
use store::FileError;
use tough::key_source::{KeySource, LocalKeySource};
use tough::schema::RoleType;
use tough::schema::key::Key;
use tough::sign::{Sign, parse_keypair};

use crate::error::{Error, Result};

/// How a key's file ends.
const ENDING: &str = "pk8";

/// The most keys of the root.
const ROOT_KEYS_MAX: u8 = 16;

/// The roles whose keys change what is published. The root's own are needed to name and to replace these.
pub(crate) const ONLINE: [RoleType; 3] = [RoleType::Targets, RoleType::Snapshot, RoleType::Timestamp];

/// A key in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyFile {
    /// What it signs.
    pub role: String,
    /// Its id, as in the repository's metadata.
    pub id: String,
    /// Where it is.
    pub path: PathBuf,
}

/// Makes keys for all roles in a directory: so many for the root, and one for each of the others.
///
/// # Errors
/// [`Error::Publish`] for a number of keys that makes no root, and where there are keys already; [`Error::File`].
pub fn generate(directory: &Path, root_keys: u8, dry_run: bool) -> Result<Vec<KeyFile>> {
    if !(1..=ROOT_KEYS_MAX).contains(&root_keys) {
        return Err(Error::publish(format!("{root_keys} keys make no root"), format!("give 1 to {ROOT_KEYS_MAX}")));
    }
    let root = (1..=root_keys).map(|number| (RoleType::Root, format!("root-{number}")));
    let names: Vec<_> = root.chain(ONLINE.map(|role| (role, role.to_string()))).collect();
    let path = |name: &str| directory.join(name).with_extension(ENDING);
    if let Some((_, name)) = names.iter().find(|(_, name)| path(name).exists()) {
        return Err(Error::publish(
            format!("{} is there already", path(name).display()),
            "name an empty directory: keys are never replaced",
        ));
    }
    if dry_run {
        let planned = |(role, name): &(RoleType, String)| KeyFile { role: role.to_string(), id: String::new(), path: path(name) };
        return Ok(names.iter().map(planned).collect());
    }
    std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
    for (_, name) in &names {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let made = made.map_err(|_| Error::publish("no key could be made", "the system's random numbers are out of order"))?;
        let path = path(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(made.as_ref()).and_then(|()| file.sync_all()));
        written.map_err(FileError::at(&path, "write"))?;
    }
    names.iter().map(|(role, name)| Ok(describe(*role, path(name), &public(&path(name))?))).collect()
}

fn describe(role: RoleType, path: PathBuf, key: &Key) -> KeyFile {
    KeyFile { role: role.to_string(), id: id(key), path }
}

/// A key's id in hexadecimal digits.
pub(crate) fn id(key: &Key) -> String {
    key.key_id().map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()).unwrap_or_default()
}

/// The public half of a key's file.
pub(crate) fn public(path: &Path) -> Result<Key> {
    let bytes = std::fs::read(path).map_err(FileError::at(path, "read"))?;
    let pair = parse_keypair(&bytes);
    let pair = pair.map_err(|error| Error::publish(format!("{}: {error}", path.display()), "name a key that `rollout keygen` made"))?;
    Ok(pair.tuf_key())
}

/// The files of a role's keys in a directory, by name.
pub(crate) fn of(directory: &Path, role: RoleType) -> Result<Vec<PathBuf>> {
    let role = role.to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(FileError::at(directory, "list"))? {
        let path = entry.map_err(FileError::at(directory, "list"))?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let of_role = stem == role || stem.strip_prefix(&role).is_some_and(|rest| rest.starts_with('-'));
        if of_role && path.extension().is_some_and(|ending| ending == ENDING) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Keys to sign with.
pub(crate) fn sources(paths: &[PathBuf]) -> Vec<Box<dyn KeySource>> {
    paths.iter().map(|path| Box::new(LocalKeySource { path: path.clone() }) as Box<dyn KeySource>).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_made_once_and_for_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(generate(dir.path(), 2, true).unwrap().len(), 5);
        assert!(of(dir.path(), RoleType::Root).unwrap().is_empty(), "a dry run makes none");
        let made = generate(dir.path(), 2, false).unwrap();
        let roles: Vec<_> = made.iter().map(|key| key.role.as_str()).collect();
        assert_eq!(roles, ["root", "root", "targets", "snapshot", "timestamp"]);
        for key in &made {
            assert_eq!(std::fs::metadata(&key.path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!((id(&public(&key.path).unwrap()), key.id.len()), (key.id.clone(), 64));
        }
        assert_eq!(of(dir.path(), RoleType::Root).unwrap(), [made[0].path.clone(), made[1].path.clone()]);
        assert_eq!(of(dir.path(), RoleType::Snapshot).unwrap(), [made[3].path.clone()]);
        assert!(generate(dir.path(), 2, false).unwrap_err().to_string().contains("never replaced"));
        assert!(generate(dir.path(), 0, true).unwrap_err().to_string().contains("1 to 16"));
        std::fs::write(&made[2].path, "rubbish").unwrap();
        assert!(public(&made[2].path).unwrap_err().to_string().contains("keygen"));
    }
}
