//! Where the state of a device is kept: a file for each device of a host, which outlives the controller that has written it and is read by
//! all processes that use the device.
//!
//! A device is its first address in its network namespace. The file is replaced as a whole, under a lock, so a reader never sees half of
//! a change.

use core::ffi::c_int;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::state::{DeviceState, Refusal, Result, refuse};

/// Bytes of a file, at most: several times those of a device with all that it may have.
const MAX_BYTES: u64 = 16 << 20;
/// `CAP_NET_ADMIN`, as a bit of the capabilities of a process.
const NET_ADMIN: u64 = 1 << 12;

/// The number, the time and the length of a file.
pub(crate) type Version = (u64, i64, i64, u64);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    name: String,
    /// Changes need `CAP_NET_ADMIN`. The permissions of a folder of the user's own choice decide by themselves.
    needs_admin: bool,
}

/// Which network namespace a socket is in: its cookie, which no other one ever has, or the number of its file.
pub(crate) fn network_namespace(socket: RawFd) -> u64 {
    const SO_NETNS_COOKIE: c_int = 71;
    let (mut cookie, mut len) = (0_u64, size_of::<u64>() as libc::socklen_t);
    let to = (&raw mut cookie).cast();
    // SAFETY: a number and its length, of this function.
    if unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, to, &raw mut len) } == 0 {
        return cookie;
    }
    fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino())
}

/// Whether this process may administer networks.
fn is_admin() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits & NET_ADMIN != 0)
}

/// A system error as a refusal.
fn failed<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Refusal + 'a {
    move |error| {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => libc::EPERM,
            _ => libc::EIO,
        };
        Refusal { code, why: format!("{} cannot be {what}: {error}", path.display()) }
    }
}

impl Store {
    /// The usual folder.
    pub(crate) const USUAL: &'static str = "/run/spindrift-devices";

    pub(crate) fn new(folder: Option<&Path>, namespace: u64, device: IpAddr) -> Self {
        let needs_admin = folder.is_none();
        let folder = folder.unwrap_or_else(|| Path::new(Self::USUAL)).to_owned();
        Self { folder, name: format!("{namespace}-{device}"), needs_admin }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.name))
    }

    /// What tells one version of the file from another; `None`: there is no file.
    pub(crate) fn version(&self) -> Option<Version> {
        let file = fs::metadata(self.path()).ok()?;
        Some((file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
    }

    /// The state now; that of a new device if none was written.
    pub(crate) fn read(&self) -> Result<DeviceState> {
        let path = self.path();
        let bytes = match fs::metadata(&path) {
            Ok(file) if file.len() > MAX_BYTES => {
                return refuse(libc::EIO, format!("{} is too long; remove it", path.display()));
            }
            _ => fs::read(&path),
        };
        match bytes {
            Ok(bytes) => DeviceState::parse(&bytes).map_err(|error| Refusal {
                code: libc::EIO,
                why: format!("{} is damaged ({error}); remove it to start over", path.display()),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DeviceState::default()),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Changes the state, one change at a time. What `act` has changed is kept even if it fails.
    pub(crate) fn change(&self, act: impl FnOnce(&mut DeviceState) -> Result<()>) -> Result<()> {
        if self.needs_admin && !is_admin() {
            return refuse(
                libc::EPERM,
                "this process lacks CAP_NET_ADMIN, which a controller of devices must have",
            );
        }
        fs::create_dir_all(&self.folder).map_err(failed("made", &self.folder))?;
        let lock_path = self.folder.join(format!("{}.lock", self.name));
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(failed("opened", &lock_path))?;
        lock.lock().map_err(failed("locked", &lock_path))?;
        let mut state = self.read()?;
        let before = state.clone();
        let done = act(&mut state);
        if state != before {
            self.write(&state)?;
        }
        done
    }

    fn write(&self, state: &DeviceState) -> Result<()> {
        let path = self.path();
        let bytes = serde_json::to_vec(state)
            .map_err(|error| Refusal { code: libc::EIO, why: format!("{}: {error}", path.display()) })?;
        let next = path.with_extension("next");
        let write = || {
            let mut file = File::create(&next)?;
            file.write_all(&bytes)?;
            // The clock of files may stand still between two changes, and their numbers are used again.
            if let Ok(before) = fs::metadata(&path).and_then(|file| file.modified()) {
                let written = file.metadata()?.modified()?;
                file.set_modified(written.max(before + Duration::from_nanos(1)))?;
            }
            fs::rename(&next, &path)
        };
        write().map_err(failed("written", &path))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::fd::AsRawFd as _;

    fn store(name: &str) -> Store {
        let folder = std::env::temp_dir().join(format!("spindrift-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Store::new(Some(&folder), 7, IpAddr::from([10, 0, 0, 1]))
    }

    fn disable(port: u8) -> impl FnOnce(&mut DeviceState) -> Result<()> {
        move |state| {
            state.set_enabled(port, false);
            Ok(())
        }
    }

    #[test]
    fn changes_are_seen_by_all_and_kept() {
        let store = store("kept");
        assert_eq!(store.read(), Ok(DeviceState::default()));
        assert!(!store.folder.exists(), "reading leaves nothing behind");
        assert_eq!(store.version(), None);
        store.change(disable(2)).unwrap();
        let first = store.version();
        assert!(first.is_some() && first == store.version());
        store.change(disable(32)).unwrap();
        assert_ne!(store.version(), first);
        // However fast they follow each other, and though the file system uses the numbers of files again.
        let versions: std::collections::BTreeSet<_> = (0..64)
            .map(|change| {
                let act = |state: &mut DeviceState| {
                    state.set_enabled(3, change % 2 == 0);
                    Ok(())
                };
                store.change(act).unwrap();
                let (_, seconds, nanoseconds, _) = store.version().unwrap();
                (seconds, nanoseconds)
            })
            .collect();
        assert_eq!(versions.len(), 64);
        let other = Store::new(Some(&store.folder), 7, IpAddr::from([10, 0, 0, 1]));
        let state = other.read().unwrap();
        assert_eq!([1, 2, 31, 32].map(|port| state.is_enabled(port)), [true, false, true, false]);
        // Another device, and the same address elsewhere.
        for (namespace, last) in [(7, 2), (8, 1)] {
            let other = Store::new(Some(&store.folder), namespace, IpAddr::from([10, 0, 0, last]));
            assert_eq!(other.read(), Ok(DeviceState::default()));
        }
        fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn a_refused_change_keeps_what_came_before_and_writes_nothing_without_one() {
        let store = store("refused");
        let refusal = store.change(|state| {
            state.set_enabled(1, false);
            refuse(libc::ENOENT, "the second")
        });
        assert_eq!(refusal.unwrap_err().code, libc::ENOENT);
        assert!(!store.read().unwrap().is_enabled(1));
        fs::remove_file(store.path()).unwrap();
        store.change(|_| refuse(libc::EINVAL, "the first")).unwrap_err();
        assert!(!store.path().exists());
        fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_named() {
        let store = store("damaged");
        store.change(disable(1)).unwrap();
        for text in
            ["", "{", "[]", r#"{"disabled":1,"formats":{},"ev":{},"cc":{},"more":1}"#, r#"{"disabled":-1}"#]
        {
            fs::write(store.path(), text).unwrap();
            let refusal = store.read().unwrap_err();
            assert_eq!(refusal.code, libc::EIO);
            assert!(refusal.why.contains("7-10.0.0.1.json is damaged"), "{}", refusal.why);
            assert_eq!(store.change(disable(2)).unwrap_err().code, libc::EIO);
        }
        File::create(store.path()).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(store.read().unwrap_err().why.contains("too long"));
        fs::remove_dir_all(&store.folder).unwrap();
    }

    /// Many at once: none is lost.
    #[test]
    fn changes_of_several_processes_take_turns() {
        let store = store("turns");
        std::thread::scope(|scope| {
            for port in 1..=8 {
                let store = &store;
                scope.spawn(move || store.change(disable(port)).unwrap());
            }
        });
        assert_eq!(store.read().unwrap().disabled, 0xff);
        fs::remove_dir_all(&store.folder).unwrap();
    }

    #[test]
    fn a_namespace_has_one_number() {
        let sockets = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let [a, b] = sockets.map(|socket| network_namespace(socket.as_raw_fd()));
        assert_eq!(a, b);
        assert_ne!(a, 0);
    }
}
