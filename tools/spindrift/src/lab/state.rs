//! State of a lab: a folder that exists from before the first namespace until after the last, and its namespaces.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::ip::Ip;
use super::name_flag;
use super::plan::namespace_prefix;
use crate::toml_file::TomlFile;

/// Gone after a reboot, as namespaces are.
const FOLDER: &str = "/run/spindrift/lab";
const TOPOLOGY: &str = "topology.toml";

/// A lab that may be there or not.
pub(super) struct Lab {
    name: String,
    folder: PathBuf,
}

impl Lab {
    pub(super) fn open(name: &str) -> Self {
        Self { name: name.to_owned(), folder: PathBuf::from(FOLDER).join(name) }
    }

    /// A file of what is known of it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The file with the topology, which is there as long as the lab.
    pub(super) fn topology_path(&self) -> PathBuf {
        self.file(TOPOLOGY)
    }

    /// Takes the name, and keeps the topology under it.
    pub(super) fn create(name: &str, topology: &str) -> Result<Self> {
        let lab = Self::open(name);
        let folder = lab.folder.display().to_string();
        fs::create_dir_all(FOLDER).with_context(|| format!("cannot make the folder {FOLDER}"))?;
        match fs::create_dir(&lab.folder) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let flag = name_flag(name);
                bail!(
                    "there is a lab \"{name}\" already; remove it with `spindrift lab down{flag}`, or give another --name"
                );
            }
            Err(error) => return Err(error).with_context(|| format!("cannot make the folder {folder}")),
        }
        let written = fs::write(lab.topology_path(), topology);
        if let Err(error) = written {
            lab.forget()?;
            return Err(error).with_context(|| format!("cannot write to {folder}"));
        }
        Ok(lab)
    }

    /// The topology that it was built from; `None` if there is no such lab.
    pub(super) fn topology(&self) -> Result<Option<TomlFile>> {
        let path = self.topology_path();
        if !path.exists() {
            return Ok(None);
        }
        TomlFile::read(&path, "topology of the lab").map(Some)
    }

    /// Ends what runs in its namespaces, and removes them and the folder. Returns how many namespaces there were.
    pub(super) fn remove(&self, ip: &Ip) -> Result<usize> {
        let prefix = namespace_prefix(&self.name);
        let namespaces: Vec<_> =
            ip.namespaces()?.into_iter().filter(|namespace| namespace.starts_with(&prefix)).collect();
        ip.end_processes(&namespaces)?;
        let mut lines = String::new();
        for namespace in &namespaces {
            lines += &format!("netns delete {namespace}\n");
        }
        ip.batch(None, &lines)?;
        self.forget()?;
        Ok(namespaces.len())
    }

    fn forget(&self) -> Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.folder.display()))
            }
            _ => Ok(()),
        }
    }
}
