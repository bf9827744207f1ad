//! Certificates of a first start: an authority of the pool's own, and what it signs for the manager, hosts and operators.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde::Serialize;

/// How long an authority lasts.
const AUTHORITY_DAYS: u32 = 3_650;
/// Clocks of machines differ.
const SLACK: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Why a certificate was not made.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct Error {
    path: PathBuf,
    why: String,
}

/// What is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The names and addresses by which hosts reach the manager.
    pub servers: Vec<String>,
    /// Hosts.
    pub hosts: Vec<String>,
    /// Operators.
    pub operators: Vec<String>,
    /// How long the certificates last; the authority lasts ten years.
    pub days: u32,
}

/// A file pair, and whether it was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Made {
    /// Whose.
    pub name: String,
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// It was there already, and was left alone.
    pub kept: bool,
}

fn failed<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> Error {
    let path = path.to_owned();
    move |error| Error { path: path.clone(), why: error.to_string() }
}

/// Makes what is missing in `directory`: `ca`, `manager`, and a pair for each host and operator, `NAME.pem` and `NAME.key`.
/// What is there is left alone, so that a host can be added later.
///
/// # Errors
/// The file that could not be made, and why.
pub fn make(directory: &Path, wanted: &Wanted) -> Result<Vec<Made>, Error> {
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let mut made = Vec::new();
    let ca = Pair::of(directory, "ca");
    let authority = authority();
    let kept = ca.is_there();
    let key = if kept {
        let text = std::fs::read_to_string(&ca.key).map_err(failed(&ca.key))?;
        KeyPair::from_pem(&text).map_err(failed(&ca.key))?
    } else {
        let key = KeyPair::generate().map_err(failed(&ca.key))?;
        let certificate = authority.self_signed(&key).map_err(failed(&ca.cert))?;
        ca.write(&certificate.pem(), &key)?;
        key
    };
    made.push(ca.made(kept));
    let issuer = Issuer::from_params(&authority, &key);
    let others = wanted.hosts.iter().chain(&wanted.operators);
    let clients = others.map(|name| (name.as_str(), std::slice::from_ref(name), ExtendedKeyUsagePurpose::ClientAuth));
    for (name, names, usage) in std::iter::once(("manager", wanted.servers.as_slice(), ExtendedKeyUsagePurpose::ServerAuth)).chain(clients)
    {
        let pair = Pair::of(directory, name);
        let kept = pair.is_there();
        if !kept {
            let key = KeyPair::generate().map_err(failed(&pair.key))?;
            let params = leaf(name, names, usage, wanted.days).map_err(failed(&pair.cert))?;
            let certificate = params.signed_by(&key, &issuer).map_err(failed(&pair.cert))?;
            pair.write(&certificate.pem(), &key)?;
        }
        made.push(pair.made(kept));
    }
    Ok(made)
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Thermocline pool authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    lasts(&mut params, AUTHORITY_DAYS);
    params
}

fn leaf(name: &str, names: &[String], usage: ExtendedKeyUsagePurpose, days: u32) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    lasts(&mut params, days);
    Ok(params)
}

fn lasts(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - SLACK).into();
    params.not_after = (now + DAY * days).into();
}

struct Pair {
    name: String,
    cert: PathBuf,
    key: PathBuf,
}

impl Pair {
    fn of(directory: &Path, name: &str) -> Self {
        Self { name: name.to_owned(), cert: directory.join(format!("{name}.pem")), key: directory.join(format!("{name}.key")) }
    }

    fn is_there(&self) -> bool {
        self.cert.exists() && self.key.exists()
    }

    fn made(self, kept: bool) -> Made {
        Made { name: self.name, cert: self.cert, key: self.key, kept }
    }

    /// Keys are for their owner's eyes alone, from their first byte on.
    fn write(&self, certificate: &str, key: &KeyPair) -> Result<(), Error> {
        for (path, text, mode) in [(&self.key, key.serialize_pem(), 0o600), (&self.cert, certificate.to_owned(), 0o644)] {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path).map_err(failed(path))?;
            file.write_all(text.as_bytes()).map_err(failed(path))?;
        }
        Ok(())
    }
}
