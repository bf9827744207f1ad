//! Certificates for a first start: an authority for the pool, and certificates for the manager, hosts and operators.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::DnsName;
use serde::Serialize;

/// Validity of the authority.
const AUTHORITY_DAYS: u32 = 3_650;
/// Certificates are valid from this long ago, because clocks of machines differ.
const SLACK: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// An error of a certificate or key file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct Error {
    path: PathBuf,
    why: String,
}

/// Certificates to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names and addresses by which hosts reach the manager.
    pub servers: Vec<String>,
    /// Names of hosts.
    pub hosts: Vec<String>,
    /// Names of operators.
    pub operators: Vec<String>,
    /// Names of the members of a group of managers, as in their URLs.
    pub members: Vec<String>,
    /// Validity of the certificates in days; the authority is valid for ten years.
    pub days: u32,
}

/// Files of a certificate, and whether they existed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// Name of the owner.
    pub name: String,
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whether the files existed and were not changed.
    pub kept: bool,
}

fn failed<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> Error {
    let path = path.to_owned();
    move |error| Error { path: path.clone(), why: error.to_string() }
}

/// Names of files that belong to no host and no operator.
const RESERVED: [&str; 2] = ["ca", "manager"];

/// Checks the names of hosts and operators: each becomes the name of a file and of a certificate, and one certificate must not
/// carry both roles.
fn check(plan: &Plan) -> Result<(), String> {
    for name in plan.hosts.iter().chain(&plan.operators) {
        if RESERVED.contains(&name.to_lowercase().as_str()) {
            return Err(format!("{name:?} is the name of files of the pool itself; choose another name for the host or operator"));
        }
        if name.contains('*') || DnsName::try_from(name.as_str()).is_err() {
            return Err(format!("a host or operator cannot have the name {name:?}; use letters, digits, dots and dashes, such as host-a"));
        }
    }
    let clients = || plan.hosts.iter().chain(&plan.operators);
    for name in &plan.members {
        if RESERVED.contains(&name.to_lowercase().as_str()) || name.contains('*') || DnsName::try_from(name.as_str()).is_err() {
            return Err(format!("a member of a group cannot have the name {name:?}; use that in its URL, such as pool-1"));
        }
        if clients().any(|client| client.eq_ignore_ascii_case(name)) {
            return Err(format!("{name:?} is a member and a host or operator, who could act as a member: choose two names"));
        }
    }
    match plan.hosts.iter().find(|host| plan.operators.iter().any(|operator| operator.eq_ignore_ascii_case(host))) {
        Some(both) => Err(format!("{both:?} is a host and an operator; its host could act as an operator: choose two names")),
        None => Ok(()),
    }
}

/// Creates missing files in `directory`: for `ca`, `manager`, and each host, operator and member of a group, `NAME.pem` and `NAME.key`.
/// Existing files are not changed, so that hosts can be added later.
///
/// # Errors
/// A name that cannot be used, or the file that could not be created, and the cause. Nothing is created if a name is refused.
pub fn create(directory: &Path, plan: &Plan) -> Result<Vec<Files>, Error> {
    check(plan).map_err(failed(directory))?;
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let mut created = Vec::new();
    let ca = Pair::of(directory, "ca");
    let authority = authority();
    let kept = ca.exists();
    let key = if kept {
        let text = std::fs::read_to_string(&ca.key).map_err(failed(&ca.key))?;
        KeyPair::from_pem(&text).map_err(failed(&ca.key))?
    } else {
        let key = KeyPair::generate().map_err(failed(&ca.key))?;
        let certificate = authority.self_signed(&key).map_err(failed(&ca.cert))?;
        ca.write(&certificate.pem(), &key)?;
        key
    };
    created.push(ca.files(kept));
    let issuer = Issuer::from_params(&authority, &key);
    let others = plan.hosts.iter().chain(&plan.operators);
    let clients = others.map(|name| (name.as_str(), std::slice::from_ref(name), vec![ExtendedKeyUsagePurpose::ClientAuth]));
    // A member is a client of the others. The manager's certificate is that of a server alone, and cannot act as a member.
    let both = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let members = plan.members.iter().map(|name| (name.as_str(), std::slice::from_ref(name), both.clone()));
    let manager = std::iter::once(("manager", plan.servers.as_slice(), vec![ExtendedKeyUsagePurpose::ServerAuth]));
    for (name, names, usage) in manager.chain(members).chain(clients) {
        let pair = Pair::of(directory, name);
        let kept = pair.exists();
        if !kept {
            let key = KeyPair::generate().map_err(failed(&pair.key))?;
            let params = leaf(name, names, usage, plan.days).map_err(failed(&pair.cert))?;
            let certificate = params.signed_by(&key, &issuer).map_err(failed(&pair.cert))?;
            pair.write(&certificate.pem(), &key)?;
        }
        created.push(pair.files(kept));
    }
    Ok(created)
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Thermocline pool authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, AUTHORITY_DAYS);
    params
}

fn leaf(name: &str, names: &[String], usages: Vec<ExtendedKeyUsagePurpose>, days: u32) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages;
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, days);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, days: u32) {
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

    fn exists(&self) -> bool {
        self.cert.exists() && self.key.exists()
    }

    fn files(self, kept: bool) -> Files {
        Files { name: self.name, cert: self.cert, key: self.key, kept }
    }

    /// Writes both files. The key is readable only by its owner, from its creation.
    fn write(&self, certificate: &str, key: &KeyPair) -> Result<(), Error> {
        for (path, text, mode) in [(&self.key, key.serialize_pem(), 0o600), (&self.cert, certificate.to_owned(), 0o644)] {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path).map_err(failed(path))?;
            file.write_all(text.as_bytes()).map_err(failed(path))?;
        }
        Ok(())
    }
}
