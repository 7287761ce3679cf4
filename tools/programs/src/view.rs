//! What programs find of the devices outside verbs: `/sys/class/infiniband` and `/dev/infiniband`, which a kernel driver would make.
//!
//! [`write()`] makes the files in a folder. [`enter`] moves this process into a mount namespace where they stand at their places; nobody
//! else sees them. It needs the right to mount, or unprivileged user namespaces.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;
use spindrift_pmd::route::LocalAddress;

use crate::gid;
use crate::namespace::unshare;
use crate::settings::NicSettings;

/// Where the classes of devices stand, and where their device files do.
const CLASSES: &str = "/sys/class";
const DEVICES: &str = "/dev";
/// The classes that the view adds.
const ADDED: [&str; 2] = ["infiniband", "infiniband_verbs"];
/// What a device file does when it is read or written: nothing. No program does, as verbs are calls of a library.
const NULL: &str = "/dev/null";

/// A view cannot be made, or not be entered.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {error}", path.display())]
pub struct ViewError {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

/// Names what was not possible.
trait At<T> {
    fn at(self, what: &'static str, path: impl AsRef<Path>) -> Result<T, ViewError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, what: &'static str, path: impl AsRef<Path>) -> Result<T, ViewError> {
        self.map_err(|error| ViewError { what, path: path.as_ref().to_owned(), error: error.into() })
    }
}

/// Makes the files of some devices below `folder`, which exists. `addresses` are those of this host.
///
/// # Errors
/// [`ViewError`], for the file system's reasons.
pub fn write(folder: &Path, nics: &[NicSettings], addresses: &[LocalAddress]) -> Result<(), ViewError> {
    let (class, verbs) = (folder.join(ADDED[0]), folder.join(ADDED[1]));
    let devices = folder.join("dev");
    fill(&verbs, &[("abi_version", "6".to_owned())])?;
    // No `rdma_cm`: with it, a librdmacm of a distribution waits for a kernel module for ever.
    fill(&devices, &[])?;
    for (index, nic) in nics.iter().enumerate() {
        let at = class.join(&nic.name);
        let uverbs = format!("uverbs{index}");
        let guid = dotted(&gid::guid(index, &nic.planes).to_be_bytes());
        fill(
            &at,
            &[
                ("node_type", "1: CA".to_owned()),
                ("node_desc", format!("spindrift {}", nic.name)),
                ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
                ("hca_type", "Spindrift".to_owned()),
                ("board_id", "Spindrift".to_owned()),
                ("node_guid", guid.clone()),
                ("sys_image_guid", guid),
            ],
        )?;
        let interface = nic.planes.first().and_then(|plane| interface_of(*plane, addresses));
        let device = interface.as_ref().map(|name| PathBuf::from(format!("{CLASSES}/net/{name}/device")));
        match device.filter(|device| device.exists()) {
            Some(device) => link(&device, &at.join("device"))?,
            None => fill(&at.join("device"), &no_device())?,
        }
        port(&at.join("ports/1"), nic, &interface.unwrap_or_default())?;
        let of_verbs = verbs.join(&uverbs);
        let numbers = format!("231:{}", 192 + index);
        fill(&of_verbs, &[("ibdev", nic.name.clone()), ("abi_version", "1".to_owned()), ("dev", numbers)])?;
        link(Path::new(&format!("../../{}/{}/device", ADDED[0], nic.name)), &of_verbs.join("device"))?;
        fill(&devices, &[(&uverbs, String::new())])?;
    }
    Ok(())
}

/// What a plane without a device of its own has, such as one on a loopback address.
fn no_device() -> [(&'static str, String); 6] {
    let cores = |file: &str| {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/{file}"));
        text.map_or_else(|_| "0".to_owned(), |text| text.trim().to_owned())
    };
    [
        ("vendor", "0x0000".to_owned()),
        ("device", "0x0000".to_owned()),
        // A network controller of another kind.
        ("class", "0x028000".to_owned()),
        ("numa_node", "-1".to_owned()),
        ("local_cpulist", cores("online")),
        ("local_cpus", mask(&cores("online"))),
    ]
}

/// The cores of a list such as `0-3,7` as a mask, 32 bits to a word.
fn mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for core in first..=last.min(first + 8192) {
            if words.len() <= core / 32 {
                words.resize(core / 32 + 1, 0);
            }
            if let Some(word) = words.get_mut(core / 32) {
                *word |= 1 << (core % 32);
            }
        }
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

fn port(at: &Path, nic: &NicSettings, interface: &str) -> Result<(), ViewError> {
    let all = [
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("link_layer", "Ethernet"),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        // IP-based GIDs.
        ("cap_mask", "0x04000000"),
    ];
    fill(at, &all.map(|(name, text)| (name, text.to_owned())))?;
    fill(&at.join("pkeys"), &[("0", "0xffff".to_owned())])?;
    let Some(plane) = nic.planes.first() else { return Ok(()) };
    for index in 0..gid::ENTRIES {
        let Some((bytes, kind)) = gid::entry(*plane, index) else { continue };
        let (name, kind) = (index.to_string(), if kind == gid::ROCE_V2 { "RoCE v2" } else { "IB/RoCE v1" });
        fill(&at.join("gids"), &[(&name, dotted(&bytes))])?;
        fill(&at.join("gid_attrs/types"), &[(&name, kind.to_owned())])?;
        fill(&at.join("gid_attrs/ndevs"), &[(&name, interface.to_owned())])?;
    }
    Ok(())
}

/// Pairs of bytes, with colons between them.
fn dotted<const N: usize>(bytes: &[u8; N]) -> String {
    let (pairs, _) = bytes.as_chunks::<2>();
    pairs.iter().map(|[a, b]| format!("{a:02x}{b:02x}")).collect::<Vec<_>>().join(":")
}

fn interface_of(plane: IpAddr, addresses: &[LocalAddress]) -> Option<String> {
    // All of 127/8 is the loopback interface's.
    let is = |address: &&LocalAddress| address.ip == plane || address.ip.is_loopback() && plane.is_loopback();
    addresses.iter().find(is).map(|address| address.interface.name.clone())
}

/// Makes files of one line each, and the folder that has them.
fn fill(folder: &Path, files: &[(&str, String)]) -> Result<(), ViewError> {
    fs::create_dir_all(folder).at("cannot make the folder", folder)?;
    for (name, text) in files {
        let path = folder.join(name);
        let line = if text.is_empty() { String::new() } else { format!("{text}\n") };
        fs::write(&path, line).at("cannot write", &path)?;
    }
    Ok(())
}

fn link(to: &Path, at: &Path) -> Result<(), ViewError> {
    symlink(to, at).at("cannot make the link", at)
}

/// Moves this process, which has one thread, into namespaces of its own, and puts the files of [`write()`] at their places there.
///
/// # Errors
/// [`ViewError`]: most often, this user may not make namespaces here. The process may be in some of them all the same.
pub fn enter(folder: &Path) -> Result<(), ViewError> {
    if unshare(UnshareFlags::NEWNS).is_err() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
            .at("cannot make a namespace for the view of", folder)?;
        // The user stays who it is.
        for (file, text) in [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("{uid} {uid} 1")),
            ("gid_map", format!("{gid} {gid} 1")),
        ] {
            let path = format!("/proc/self/{file}");
            fs::write(&path, text).at("cannot write", &path)?;
        }
    }
    let flags = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    rustix::mount::mount_change("/", flags).at("cannot separate mounts of", "/")?;
    classes(folder)?;
    devices(folder)
}

fn bind(from: &Path, to: &Path) -> Result<(), ViewError> {
    rustix::mount::mount_bind_recursive(from, to).at("cannot bind a mount to", to)
}

fn make_tmpfs(at: &Path) -> Result<(), ViewError> {
    rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::NOSUID, Some(c"mode=755"))
        .at("cannot mount a tmpfs on", at)
}

/// Puts a folder's entries into another folder: links as they are, all else by binding.
fn bind_entries(from: &Path, to: &Path, without: &[&str]) -> Result<(), ViewError> {
    for entry in fs::read_dir(from).at("cannot list", from)? {
        let entry = entry.at("cannot list", from)?;
        let (name, path) = (entry.file_name(), entry.path());
        if without.iter().any(|other| name == **other) {
            continue;
        }
        let at = to.join(&name);
        let kind = entry.file_type().at("cannot look at", &path)?;
        if kind.is_symlink() {
            link(&fs::read_link(&path).at("cannot read the link", &path)?, &at)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&at).at("cannot make the folder", &at)?;
        } else {
            fs::write(&at, "").at("cannot write", &at)?;
        }
        // What vanishes meanwhile, or may not be bound, is missing in the view.
        let _ = bind(&path, &at);
    }
    Ok(())
}

/// Replaces a folder that the kernel makes by one with the same entries and more.
fn extend(place: &Path, stage: &Path, added: &[(&str, PathBuf)]) -> Result<(), ViewError> {
    fs::create_dir_all(stage).at("cannot make the folder", stage)?;
    make_tmpfs(stage)?;
    let names: Vec<&str> = added.iter().map(|(name, _)| *name).collect();
    bind_entries(place, stage, &names)?;
    for (name, from) in added {
        let at = stage.join(name);
        fs::create_dir(&at).at("cannot make the folder", &at)?;
        bind(from, &at)?;
    }
    rustix::mount::mount_move(stage, place).at("cannot mount", place)
}

fn classes(folder: &Path) -> Result<(), ViewError> {
    let added = ADDED.map(|name| (name, folder.join(name)));
    extend(Path::new(CLASSES), &folder.join("stage-sys"), &added)
}

fn devices(folder: &Path) -> Result<(), ViewError> {
    let own = folder.join("dev");
    for entry in fs::read_dir(&own).at("cannot list", &own)? {
        let path = entry.at("cannot list", &own)?.path();
        // A device file, and one that everybody may open.
        bind(Path::new(NULL), &path)?;
    }
    extend(Path::new(DEVICES), &folder.join("stage-dev"), &[("infiniband", own)])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn masks_have_a_bit_for_each_core() {
        assert_eq!(mask("0-3,7"), "0000008f");
        assert_eq!(mask("32,63-64"), "00000001,80000001,00000000");
        assert_eq!(mask("0"), "00000001");
    }

    #[test]
    fn a_device_has_what_programs_read() {
        let folder = std::env::temp_dir().join(format!("spindrift-view-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let planes = vec!["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()];
        let nics = ["one", "two"].map(|name| NicSettings::new(name, planes.clone()));
        write(&folder, &nics, &[]).unwrap();
        for (path, text) in [
            ("infiniband/one/node_type", "1: CA\n"),
            ("infiniband/two/ports/1/state", "4: ACTIVE\n"),
            ("infiniband/two/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:7f00:0001\n"),
            ("infiniband/two/ports/1/gid_attrs/types/3", "RoCE v2\n"),
            ("infiniband/two/ports/1/gid_attrs/types/2", "IB/RoCE v1\n"),
            ("infiniband_verbs/uverbs1/ibdev", "two\n"),
            ("infiniband_verbs/uverbs1/device/numa_node", "-1\n"),
            ("dev/uverbs0", ""),
        ] {
            assert_eq!(fs::read_to_string(folder.join(path)).unwrap(), text, "{path}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
