//! The library that programs take for libibverbs, and the programs that it cannot reach.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::usage::usage;

/// Its file, as cargo names it.
const FILE: &str = "libspindrift_ibverbs.so";
/// Where it is looked for, from the folder of this command.
const PLACES: [&str; 4] = [".", "deps", "../lib/spindrift", "../lib"];
/// `EI_MAG0` and so on of an ELF file, and the type of its program header that names the loader.
const ELF: &[u8] = b"\x7fELF";
const PT_INTERP: u32 = 3;

/// The library, by its absolute path.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return fs::canonicalize(given)
            .map_err(|error| usage(format!("--library {}: {error}", given.display())));
    }
    let command = env::current_exe()?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let found =
        PLACES.iter().map(|place| folder.join(place).join(FILE)).find_map(|path| fs::canonicalize(path).ok());
    found.ok_or_else(|| {
        usage(format!(
            "{FILE} is not in {} or near it; build it with `cargo build --release -p spindrift-capi`, or name it with --library",
            folder.display()
        ))
    })
}

/// A program, and why the library does not reach it, if so.
pub(super) fn describe(program: &OsStr, path: Option<OsString>) -> String {
    let Some(file) = locate(program, path) else {
        return format!("{} is not there, or not executable", program.display());
    };
    let name = file.display();
    let Ok(metadata) = fs::metadata(&file) else { return name.to_string() };
    if metadata.permissions().mode() & 0o6000 != 0 {
        return format!("{name}; it changes its user or group, so the loader ignores LD_PRELOAD");
    }
    match fs::read(&file) {
        Ok(bytes) if bytes.starts_with(ELF) && !has_loader(&bytes) => {
            format!("{name}; it is linked statically, so no library can be put under it")
        }
        Ok(bytes) if bytes.starts_with(b"#!") => format!("{name}, a script"),
        _ => name.to_string(),
    }
}

/// As `execvp(3)` finds it.
fn locate(program: &OsStr, path: Option<OsString>) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(is_executable);
    }
    env::split_paths(&path?).map(|folder| folder.join(program)).find(is_executable)
}

/// Whether an ELF file of 64 bits asks for a loader, as one that is linked dynamically does.
fn has_loader(bytes: &[u8]) -> bool {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let headers = || {
        let (table, size, count) = (word(32)? as usize, usize::from(half(54)?), usize::from(half(56)?));
        Some((0..count).any(|header| word(table + header * size) == Some(PT_INTERP)))
    };
    headers().unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_cannot_be_reached_are_told() {
        let of = |program: &str| describe(OsStr::new(program), Some("/usr/bin:/bin".into()));
        assert_eq!(of("sh"), "/usr/bin/sh");
        assert_eq!(of("no-such-program"), "no-such-program is not there, or not executable");
        assert_eq!(of("/etc/passwd"), "/etc/passwd is not there, or not executable");
        let mut file = [0_u8; 120];
        file[..4].copy_from_slice(ELF);
        (file[32], file[54], file[56]) = (64, 56, 1);
        assert!(!has_loader(&file));
        file[64] = 3;
        assert!(has_loader(&file) && has_loader(ELF));
    }
}
