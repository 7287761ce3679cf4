//! The folder of a run: the library under the names that programs look for, the view of the system, the reports of the processes.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use spindrift_pmd::route::local_addresses;
use spindrift_programs::report::FOLDER;
use spindrift_programs::{NicSettings, view};

/// The names that programs link or load.
const NAMES: [&str; 7] = [
    "libibverbs.so",
    "libibverbs.so.1",
    "librdmacm.so",
    "librdmacm.so.1",
    // MRC's own interface, as OCP's example, NVIDIA's DOCA and Microsoft's shim for verbs call it.
    "lib_mrc.so",
    "libnv_mrc.so",
    "libmrc.so",
];

/// See the [module documentation](self). It is removed at the end.
pub(super) struct RunFolder(PathBuf);

impl RunFolder {
    pub(super) fn make(library: &Path, nics: &[NicSettings]) -> Result<Self> {
        let path = env::temp_dir().join(format!("spindrift-run-{}", std::process::id()));
        let what = || format!("cannot make the folder {}", path.display());
        // One that a killed run with the same number has left.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).with_context(what)?;
        let folder = Self(path.clone());
        fs::create_dir(folder.lib()).with_context(what)?;
        fs::create_dir(folder.reports()).with_context(what)?;
        for name in NAMES {
            symlink(library, folder.lib().join(name)).with_context(what)?;
        }
        view::write(&folder.0, nics, &local_addresses().unwrap_or_default())?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn lib(&self) -> PathBuf {
        self.0.join("lib")
    }

    pub(super) fn reports(&self) -> PathBuf {
        self.0.join("reports")
    }

    /// What leads programs to the library, whichever way they look for it.
    pub(super) fn variables(&self) -> Vec<(String, OsString)> {
        let before = |name: &str, first: PathBuf, separator: &str| {
            let mut value = first.into_os_string();
            if let Some(others) = env::var_os(name).filter(|others| !others.is_empty()) {
                value.push(separator);
                value.push(others);
            }
            (name.to_owned(), value)
        };
        let library = self.lib().join("libibverbs.so.1");
        vec![
            // Those that link it, and those that load it by its name.
            before("LD_LIBRARY_PATH", self.lib(), ":"),
            // Those that bring a copy of their own, under another name.
            before("LD_PRELOAD", library.clone(), ":"),
            // NCCL loads the file without a version first.
            ("NCCL_IBVERBS_LIB".to_owned(), library.into_os_string()),
            (FOLDER.to_owned(), self.reports().into_os_string()),
        ]
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
