//! Starting the EAL.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use spindrift_pmd::fork::Home;

use crate::sys;
use crate::{DpdkError, EalConfig};

/// Lines of the log that an error shows.
const SHOWN: usize = 8;
/// Memory without huge pages, in MiB. Pages that are not used cost nothing.
const PLAIN_MIB: u32 = 512;
/// Where the kernel tells of huge pages, by size.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// What has become of the EAL of this process.
enum State {
    New,
    Running(EalConfig, Home),
    Failed(String),
}

static STATE: Mutex<State> = Mutex::new(State::New);

/// The EAL of this process, which runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    pub(crate) pci: bool,
    pub(crate) huge_pages: bool,
}

impl Eal {
    /// Starts the EAL, or finds it running with the same settings.
    ///
    /// The calling thread keeps its affinity. What DPDK logs is kept for the messages of errors; the EAL itself may write a line
    /// to standard error when it does not start.
    ///
    /// # Errors
    /// See [`DpdkError`].
    pub fn start(config: &EalConfig) -> Result<Self, DpdkError> {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Running(running, home) if !home.is_elsewhere() && running == config => {}
            State::Running(running, home) => {
                let whose = if home.is_elsewhere() { "it is the parent process's: " } else { "" };
                let running = format!("{whose}{}", text(&arguments(running)));
                return Err(DpdkError::EalStarted { running });
            }
            State::Failed(why) => return Err(DpdkError::EalFailed(why.clone())),
            State::New => {
                check_memory(config, Path::new(HUGE_PAGES))?;
                match start(config) {
                    Ok(()) => {
                        // Without shared files it is empty, and it would stay. One that is not empty cannot be removed.
                        drop(fs::remove_dir(sys::runtime_folder()));
                        *state = State::Running(config.clone(), Home::here());
                    }
                    Err(error) => {
                        *state = State::Failed(error.to_string());
                        return Err(error);
                    }
                }
            }
        }
        Ok(Self { pci: config.pci, huge_pages: config.huge_pages })
    }

    /// The version of DPDK, such as `DPDK 22.11.11`.
    pub fn version() -> String {
        sys::version()
    }
}

/// Whether there are free huge pages for as much memory as is taken without them.
pub(crate) fn enough_huge_pages() -> bool {
    free_mib(Path::new(HUGE_PAGES)) >= PLAIN_MIB.into()
}

/// Free memory in huge pages, in MiB.
fn free_mib(folder: &Path) -> u64 {
    let kib = |size: fs::DirEntry| {
        let name = size.file_name().to_string_lossy().into_owned();
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free: u64 = fs::read_to_string(size.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some(kib * free)
    };
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(kib).sum::<u64>() >> 10
}

/// Huge pages are looked at before the EAL is started, which cannot be done twice.
fn check_memory(config: &EalConfig, folder: &Path) -> Result<(), DpdkError> {
    if !config.huge_pages {
        return Ok(());
    }
    let free_mib = free_mib(folder);
    if free_mib == 0 {
        return Err(DpdkError::NoHugePages);
    }
    match config.memory_mib {
        Some(mib) if u64::from(mib) > free_mib => Err(DpdkError::Memory {
            what: format!("{mib} MiB asked for, and {free_mib} MiB of huge pages are free"),
            log: Vec::new(),
        }),
        _ => Ok(()),
    }
}

/// The EAL's arguments.
fn arguments(config: &EalConfig) -> Vec<String> {
    let mut args = vec!["spindrift".to_owned(), "--no-telemetry".to_owned()];
    if config.pci {
        // A list of devices that may be taken makes the EAL take no others by itself. There is no such device; the ports take theirs.
        args.extend(["-a".to_owned(), "ffff:ff:1f.7".to_owned()]);
    } else {
        args.push("--no-pci".to_owned());
    }
    if !config.huge_pages {
        args.push("--no-huge".to_owned());
    }
    if config.in_memory {
        // Memory without huge pages has no files.
        args.push(if config.huge_pages { "--in-memory" } else { "--no-shconf" }.to_owned());
    }
    let memory = config.memory_mib.or((!config.huge_pages).then_some(PLAIN_MIB));
    args.extend(memory.into_iter().flat_map(|mib| ["-m".to_owned(), mib.to_string()]));
    args.push(format!("--file-prefix={}", config.file_prefix));
    let lcores = config.lcores.clone().unwrap_or_else(|| {
        let all = allowed(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        format!("0@{all}")
    });
    args.extend(["--lcores".to_owned(), lcores]);
    args.extend(config.extra_args.iter().cloned());
    args
}

/// What kind of process the arguments ask for.
fn process_type(args: &[String]) -> Option<&str> {
    let next = |at: usize| args.get(at + 1).map_or("", String::as_str);
    args.iter().enumerate().rev().find_map(|(at, arg)| match arg.strip_prefix("--proc-type")? {
        "" => Some(next(at)),
        with_value => with_value.strip_prefix('='),
    })
}

/// The processors that this process may run on, as the EAL takes them.
fn allowed(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.map_or_else(|| "0".to_owned(), |list| format!("({})", list.trim()))
}

fn text(args: &[String]) -> String {
    args.get(1..).unwrap_or_default().join(" ")
}

fn start(config: &EalConfig) -> Result<(), DpdkError> {
    let args = arguments(config);
    if let Some(help) = config.extra_args.iter().find(|arg| matches!(arg.as_str(), "-h" | "--help" | "-v")) {
        let reason = format!("the argument {help} ends the process");
        return Err(DpdkError::Eal { reason, log: Vec::new() });
    }
    if let Some(kind) = process_type(&config.extra_args).filter(|&kind| kind != "primary") {
        return Err(DpdkError::ProcessType(kind.to_owned()));
    }
    let bad = |_| DpdkError::Eal { reason: "an argument contains a zero byte".to_owned(), log: Vec::new() };
    let strings = args.iter().map(|arg| CString::new(arg.as_str())).collect::<Result<Vec<_>, _>>();
    let strings = strings.map_err(bad)?;
    sys::take_log();
    // The EAL gives its first thread the affinity of an lcore; this one has nothing else to do.
    let first = thread::scope(|scope| scope.spawn(|| sys::init(&strings)).join());
    let reason = match first {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "its first thread panicked".to_owned(),
    };
    let log = last(sys::log_lines(0));
    let says = |what: &str| log.iter().any(|line| line.contains(what));
    if says("Not enough memory available") {
        return Err(DpdkError::Memory { what: text(&args), log });
    }
    if config.huge_pages && (says("hugepages reported") || says("hugepage information")) {
        return Err(DpdkError::NoHugePages);
    }
    Err(DpdkError::Eal { reason: format!("{reason} ({})", text(&args)), log })
}

/// The last lines of a log.
pub(crate) fn last(mut log: Vec<String>) -> Vec<String> {
    log.drain(..log.len().saturating_sub(SHOWN));
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_the_settings() {
        let virtual_only =
            EalConfig { huge_pages: false, lcores: Some("0@1".to_owned()), ..EalConfig::default() };
        let expected =
            "--no-telemetry --no-pci --no-huge --no-shconf -m 512 --file-prefix=spindrift --lcores 0@1";
        assert_eq!(text(&arguments(&virtual_only)), expected);
        let nic = EalConfig {
            pci: true,
            in_memory: false,
            memory_mib: Some(64),
            file_prefix: "x".to_owned(),
            lcores: Some("0@1".to_owned()),
            extra_args: vec!["--iova-mode=va".to_owned()],
            ..EalConfig::default()
        };
        let expected = "--no-telemetry -a ffff:ff:1f.7 -m 64 --file-prefix=x --lcores 0@1 --iova-mode=va";
        assert_eq!(text(&arguments(&nic)), expected);
    }

    #[test]
    fn the_type_of_the_process_is_read() {
        let of = |args: &str| {
            let args: Vec<_> = args.split_whitespace().map(str::to_owned).collect();
            process_type(&args).map(str::to_owned)
        };
        assert_eq!(of("-m 64 --proc-type=secondary").as_deref(), Some("secondary"));
        assert_eq!(of("--proc-type auto -m 64").as_deref(), Some("auto"));
        // The EAL takes the last one.
        assert_eq!(of("--proc-type=auto --proc-type=primary").as_deref(), Some("primary"));
        assert_eq!(of("--proc-type").as_deref(), Some(""));
        assert_eq!((of("-m 64 --proc-types=x"), of("")), (None, None));
    }

    #[test]
    fn any_allowed_processor_will_do() {
        assert_eq!(allowed("Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1,4\n"), "(0-1,4)");
        assert_eq!(allowed(""), "0");
    }

    #[test]
    fn huge_pages_are_counted_first() {
        let folder = std::env::temp_dir().join(format!("spindrift-dpdk-{}", std::process::id()));
        let write = |size: &str, free: &str| {
            fs::create_dir_all(folder.join(size)).unwrap();
            fs::write(folder.join(size).join("free_hugepages"), free).unwrap();
        };
        let check = |memory_mib| {
            check_memory(&EalConfig { memory_mib, ..EalConfig::default() }, &folder)
                .map_err(|e| e.to_string())
        };
        assert!(check(None).unwrap_err().contains("nr_hugepages"));
        write("hugepages-2048kB", "0\n");
        assert!(check(None).unwrap_err().contains("no free huge pages"));
        write("hugepages-2048kB", "32\n");
        write("hugepages-1048576kB", "1\n");
        write("other", "9\n");
        assert_eq!((check(None), check(Some(1088))), (Ok(()), Ok(())));
        let error = check(Some(1089)).unwrap_err();
        assert!(error.contains("1089 MiB") && error.contains("1088 MiB"), "{error}");
        let plain = EalConfig { huge_pages: false, ..EalConfig::default() };
        fs::remove_dir_all(&folder).unwrap();
        assert!(check_memory(&plain, &folder).is_ok());
    }
}
