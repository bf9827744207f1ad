//! Options that a guest's description may add to QEMU's command line.
//!
//! The list is an allow-list: memory, NUMA nodes, processors, the monitor, migration and the process itself belong to
//! the host, and QEMU has many ways to set each of them. An option is compared as QEMU does: `--x` is `-x`, and a name
//! is never abbreviated.

use settings::Invalid;

/// An option that may be added.
struct Allowed {
    name: &'static str,
    value: Value,
}

/// Values that an option takes.
enum Value {
    /// The option takes none.
    None,
    /// Any.
    Any,
    /// Any that does not begin with one of these texts.
    Without(&'static [&'static str]),
    /// A type from this list, then its properties after a comma. The text in front is the key that would name another
    /// type.
    Typed { key: &'static str, types: &'static [&'static str] },
}

const fn any(name: &'static str) -> Allowed {
    Allowed { name, value: Value::Any }
}

const ALLOWED: [Allowed; 30] = [
    // Boot.
    any("-kernel"),
    any("-initrd"),
    any("-append"),
    any("-bios"),
    any("-boot"),
    any("-fw_cfg"),
    any("-smbios"),
    any("-uuid"),
    any("-rtc"),
    Allowed { name: "-no-reboot", value: Value::None },
    // Disks and shared folders.
    any("-drive"),
    any("-blockdev"),
    any("-cdrom"),
    any("-hda"),
    any("-fsdev"),
    // Networks.
    any("-netdev"),
    any("-nic"),
    // Consoles. `mon:` connects the monitor.
    any("-chardev"),
    Allowed { name: "-serial", value: Value::Without(&["mon:"]) },
    Allowed { name: "-display", value: Value::Typed { key: "type=", types: &["none", "egl-headless", "vnc", "vnc=*", "dbus"] } },
    any("-vnc"),
    any("-vga"),
    any("-k"),
    any("-audiodev"),
    Allowed { name: "-usb", value: Value::None },
    any("-tpmdev"),
    any("-watchdog-action"),
    any("-action"),
    Allowed { name: "-device", value: Value::Typed { key: "driver=", types: &DEVICES } },
    Allowed { name: "-object", value: Value::Typed { key: "qom-type=", types: &OBJECTS } },
];

/// Devices, with `*` for any ending. Memory devices (`pc-dimm`, `nvdimm`, `virtio-mem-pci`, `virtio-pmem-pci`,
/// `cxl-type3`, `ivshmem-*`) and the balloon belong to the host.
const DEVICES: [&str; 57] = [
    "virtio-9p-pci",
    "virtio-blk-*",
    "virtio-crypto-*",
    "virtio-gpu-*",
    "virtio-input-host-*",
    "virtio-iommu-*",
    "virtio-keyboard-*",
    "virtio-mouse-*",
    "virtio-net-*",
    "virtio-rng-*",
    "virtio-scsi-*",
    "virtio-serial*",
    "virtio-tablet-*",
    "virtio-vga*",
    "virtserialport",
    "virtconsole",
    "vhost-scsi-*",
    "vhost-user-*",
    "vhost-vsock-*",
    "vfio-pci",
    "scsi-*",
    "ide-cd",
    "ide-hd",
    "ich9-ahci",
    "nvme",
    "nvme-ns",
    "nvme-subsys",
    "pvscsi",
    "megasas",
    "e1000*",
    "rtl8139",
    "vmxnet3",
    "pcie-root-port",
    "pcie-pci-bridge",
    "pci-bridge",
    "pxb-pcie",
    "qemu-xhci",
    "nec-usb-xhci",
    "ich9-usb-*",
    "usb-*",
    "isa-serial",
    "pci-serial*",
    "VGA",
    "bochs-display",
    "cirrus-vga",
    "secondary-vga",
    "qxl*",
    "ramfb",
    "ich9-intel-hda",
    "intel-hda",
    "hda-*",
    "tpm-crb",
    "tpm-tis",
    "i6300esb",
    "pvpanic*",
    "vmcoreinfo",
    "vmgenid",
];

/// Objects. Memory backends belong to the host.
const OBJECTS: [&str; 13] = [
    "iothread",
    "throttle-group",
    "secret",
    "secret_keyring",
    "tls-creds-anon",
    "tls-creds-psk",
    "tls-creds-x509",
    "rng-builtin",
    "rng-egd",
    "rng-random",
    "cryptodev-backend-builtin",
    "cryptodev-vhost-user",
    "can-bus",
];

/// Checks the options that a guest's description adds.
///
/// # Errors
/// The first option that may not be added, and what to do instead.
pub(super) fn check(arguments: &[String]) -> Result<(), Invalid> {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            return Err(Invalid::new(format!("argument {word:?}: QEMU takes a word without an option as a disk"), "use -drive"));
        }
        // QEMU accepts two dashes for one.
        let name = word.strip_prefix('-').filter(|rest| rest.starts_with('-')).unwrap_or(word);
        let Some(allowed) = ALLOWED.iter().find(|allowed| allowed.name == name) else {
            let refused = "is not allowed in a guest's description: memory, processors, monitor and process belong to the host";
            let allowed = ALLOWED.map(|allowed| allowed.name).join(" ");
            return Err(Invalid::new(format!("argument {word:?} {refused}"), format!("allowed are {allowed}")));
        };
        if matches!(allowed.value, Value::None) {
            continue;
        }
        let value = words.next().ok_or_else(|| Invalid::new(format!("argument {word:?} needs a value"), "write the value after it"))?;
        let refused = |why: Invalid| Invalid::new(format!("argument {word:?} {value:?}: {}", why.message), why.remedy);
        allowed.value.check(value).map_err(refused)?;
    }
    Ok(())
}

impl Value {
    fn check(&self, value: &str) -> Result<(), Invalid> {
        match self {
            Self::None | Self::Any => Ok(()),
            Self::Without(prefixes) => match prefixes.iter().find(|prefix| value.starts_with(**prefix)) {
                Some(prefix) => Err(Invalid::new(format!("{prefix} connects the monitor, which belongs to the host"), "leave it out")),
                None => Ok(()),
            },
            Self::Typed { key, types } => typed(value, key, types),
        }
    }
}

/// Checks `TYPE,property=value,...`. The last type that is named counts in QEMU, and its JSON form is not read here:
/// both other ways to name a type are refused.
fn typed(value: &str, key: &str, types: &[&str]) -> Result<(), Invalid> {
    if value.trim_start().starts_with('{') {
        return Err(Invalid::new("JSON is not accepted here", "write TYPE,property=value"));
    }
    // Two commas are one comma of a value.
    let plain = value.replace(",,", " ");
    let mut parts = plain.split(',');
    let kind = parts.next().unwrap_or_default();
    if kind.starts_with(key) || parts.any(|part| part.trim_start().starts_with(key)) {
        return Err(Invalid::new(format!("{key} is not accepted"), "write the type first"));
    }
    let fits = |pattern: &str| pattern.strip_suffix('*').map_or(kind == pattern, |beginning| kind.starts_with(beginning));
    if types.iter().any(|pattern| fits(pattern)) {
        return Ok(());
    }
    Err(Invalid::new(format!("{kind:?} is not allowed in a guest's description"), format!("allowed are {}", types.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(words: &[&str], why: Option<&str>) {
        let checked = check(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        match (&checked, why) {
            (Ok(()), None) => {}
            (Err(found), Some(why)) if found.to_string().contains(why) => {}
            _ => panic!("{words:?}: {checked:?}, expected {why:?}"),
        }
    }

    #[test]
    fn disks_networks_kernels_and_consoles_are_allowed() {
        let allowed = |words: &[&str]| refused(words, None);
        allowed(&[]);
        allowed(&["-drive", "file=redis-1.qcow2,if=virtio"]);
        allowed(&["-no-reboot", "-kernel", "bzImage", "-initrd", "initrd", "-append", "console=ttyS0 -m --daemonize"]);
        allowed(&["-chardev", "file,id=console,path=/a,append=on", "-serial", "chardev:console"]);
        allowed(&["-device", "virtio-serial-pci", "-device", "virtio-rng-pci", "-device", "virtserialport,chardev=lab,name=lab"]);
        allowed(&["-drive", "if=none,id=root,format=raw,file=/r", "-device", "virtio-blk-pci,drive=root,serial=root"]);
        allowed(&["-netdev", "tap,id=net", "--device", "virtio-net-pci,netdev=net,mac=52:54:00:00:00:01"]);
        allowed(&["-object", "rng-random,id=rng,filename=/dev/urandom", "-display", "vnc=:1"]);
        // A comma in a value.
        allowed(&["-device", "virtio-blk-pci,serial=a,,driver=b"]);
    }

    #[test]
    fn options_of_the_host_are_refused_in_every_spelling() {
        for name in [
            "m",
            "M",
            "numa",
            "incoming",
            "S",
            "daemonize",
            "pidfile",
            "qmp",
            "smp",
            "name",
            "machine",
            "accel",
            "cpu",
            "monitor",
            "mon",
            "mem-path",
            "mem-prealloc",
            "overcommit",
            "set",
            "global",
            "readconfig",
            "loadvm",
            "nographic",
            "gdb",
            "s",
            "chroot",
            "runas",
            "D",
            "enable-kvm",
            "only-migratable",
            "preconfig",
            "L",
        ] {
            for dashes in ["-", "--", "---"] {
                refused(&[&format!("{dashes}{name}"), "1"], Some("not allowed"));
            }
        }
        refused(&["-driv", "file=a"], Some("not allowed"));
        refused(&["-drive=file=a"], Some("not allowed"));
        refused(&["-"], Some("not allowed"));
        refused(&["disk.img"], Some("use -drive"));
        refused(&[""], Some("use -drive"));
        refused(&["-kernel"], Some("needs a value"));
    }

    #[test]
    fn values_that_open_memory_or_monitor_are_refused() {
        refused(&["-object", "memory-backend-ram,id=local,size=1G"], Some("memory-backend-ram"));
        refused(&["-object", "iothread,id=a,qom-type=memory-backend-ram"], Some("qom-type="));
        refused(&["-object", "{\"qom-type\": \"memory-backend-ram\"}"], Some("JSON"));
        for device in ["pc-dimm,memdev=a", "virtio-mem-pci", "virtio-balloon-pci", "nvdimm", "ivshmem-plain", "cxl-type3", "loader,file=a"]
        {
            refused(&["-device", device], Some("not allowed"));
        }
        refused(&["-device", "driver=pc-dimm"], Some("driver="));
        refused(&["-device", "virtio-rng-pci,driver=pc-dimm"], Some("driver="));
        refused(&["-device", " {\"driver\": \"pc-dimm\"}"], Some("JSON"));
        refused(&["-serial", "mon:stdio"], Some("monitor"));
        refused(&["-display", "gtk"], Some("\"gtk\""));
    }
}
