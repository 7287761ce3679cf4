//! `spindrift run`: runs a program that uses RDMA verbs over Spindrift, as it is. `docs/programs.md` is its guide.

mod folder;
mod library;
mod settings;
mod summary;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;
use std::{env, io, thread};

use anyhow::{Context as _, Result};
use clap::Args;
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use spindrift_control::ControlDir;
use spindrift_programs::{OperatorFolder, Settings, report, view};

use self::folder::RunFolder;
use self::settings::{Found, Sources};
use crate::metrics::MetricsArgs;
use crate::output::{eprint_line, print_line};
use crate::usage::usage;

/// How often the program is looked after.
const LOOK: Duration = Duration::from_millis(10);
/// Exit statuses of shells: the program cannot be run, or does not exist.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs a program that uses RDMA verbs, as it is, over Spindrift instead of an RDMA NIC
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    sources: Sources,
    /// The library that programs take for libibverbs [default: `libspindrift_ibverbs.so` near this command]
    #[arg(long = "library", value_name = "FILE")]
    verbs: Option<PathBuf>,
    /// Leave /sys and /dev as they are. Without the devices' files there, UCX finds no device
    #[arg(long)]
    no_view: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Also write the summary to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print no summary
    #[arg(short, long)]
    quiet: bool,
    /// Print what would happen, and run nothing
    #[arg(long)]
    explain: bool,
    /// The program and its arguments, after `--`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What `spindrift run` becomes before it becomes the program: the process that enters the view.
#[derive(Args, Debug)]
pub(crate) struct EnterArgs {
    /// The folder with the view; without it there is none
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Enters the view and ends
    #[arg(long)]
    check: bool,
    /// Variables of the program
    #[arg(long)]
    set: Vec<OsString>,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the program and prints the summary. The exit status is the program's.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let settings = args.sources.settings()?;
    let library = library::find(args.verbs.as_deref())?;
    let Some(program) = args.command.first() else {
        if args.explain {
            return explain(args, &settings, &library, None);
        }
        return Err(usage("there is no program; write it after `--`: spindrift run -- ib_write_bw"));
    };
    if args.explain {
        return explain(args, &settings, &library, Some(program));
    }
    let folder = RunFolder::make(&library, &settings.resolved.nics)?;
    let mut variables = folder.variables();
    variables.extend(settings.variables);
    let (view, command) = ((!args.no_view).then(|| folder.path()), &args.command);
    let reports = folder.reports();
    // Of all processes of the run, whichever of them opens a device, and when.
    let metrics = args
        .metrics
        .serve_of(control_dir(&settings.resolved), move |pid| report::ProcessReport::exists(&reports, pid))?;
    // Signals are taken before there is anything to pass them on to.
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    let mut child = enter(view, &variables, command).spawn().context("cannot start a process")?;
    let status = wait(&mut child, &mut signals).context("cannot wait for the program")?;
    drop(signals);
    drop(metrics);
    let reports = report::ProcessReport::read_all(&folder.reports());
    let reports = reports.context("cannot read what the processes have reported")?;
    if !args.quiet {
        for line in summary::lines(&reports) {
            eprint_line(format_args!("spindrift run: {line}"));
        }
    }
    if let Some(path) = &args.json {
        summary::write(path, &reports, status.code())?;
    }
    Ok(exit_code(status))
}

/// Where the processes of a run have their control sockets.
fn control_dir(settings: &Settings) -> Option<ControlDir> {
    match &settings.control_dir {
        OperatorFolder::None => None,
        OperatorFolder::Usual => Some(crate::ctl::folder(None)),
        OperatorFolder::At(path) => Some(ControlDir::at(path)),
    }
}

/// This command again, in a process of its own, which becomes the program. Without a program it only enters the view.
fn enter(view: Option<&Path>, variables: &[(String, OsString)], program: &[OsString]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("enter-view");
    if program.is_empty() {
        command.arg("--check");
    }
    if let Some(view) = view {
        command.arg("--folder").arg(view);
    }
    for (name, value) in variables {
        let mut set = OsString::from(format!("{name}="));
        set.push(value);
        // It is one argument, as it may begin with a hyphen.
        let mut option = OsString::from("--set=");
        option.push(set);
        command.arg(option);
    }
    command.arg("--").args(program);
    command
}

/// The process of [`enter`].
pub(crate) fn enter_view(args: &EnterArgs) -> ExitCode {
    if let Some(folder) = &args.folder {
        match view::enter(folder) {
            Ok(()) => {}
            Err(error) if args.check => {
                eprint_line(format_args!("{error}"));
                return ExitCode::FAILURE;
            }
            Err(error) => eprint_line(format_args!(
                "spindrift run: programs that look into /sys or /dev for the device, as UCX does, do not find it: {error}"
            )),
        }
    }
    if args.check {
        return ExitCode::SUCCESS;
    }
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::FAILURE };
    let mut command = Command::new(program);
    command.args(arguments);
    for set in &args.set {
        let text = set.as_encoded_bytes();
        if let Some(at) = text.iter().position(|byte| *byte == b'=') {
            let (name, value) = (split(set, 0, at), split(set, at + 1, text.len()));
            command.env(name, value);
        }
    }
    let error = command.exec();
    eprint_line(format_args!("spindrift run: cannot run {}: {error}", program.display()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

/// A part of a text, by bytes.
fn split(text: &OsStr, from: usize, to: usize) -> &OsStr {
    use std::os::unix::ffi::OsStrExt as _;

    OsStr::from_bytes(text.as_bytes().get(from..to).unwrap_or_default())
}

/// Waits for the program, and passes signals on to it. Those of a terminal reach it anyway.
fn wait(child: &mut Child, signals: &mut Signals) -> io::Result<ExitStatus> {
    let from_terminal = tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground == getpgrp());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for signal in signals.pending() {
            let typed = signal == SIGINT || signal == SIGQUIT;
            if typed && from_terminal {
                continue;
            }
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
                // The program may have ended meanwhile.
                let _ = kill_process(pid, signal);
            }
        }
        thread::sleep(LOOK);
    }
}

/// As shells report it: 128 and the number of the signal that has ended the program.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn explain(args: &RunArgs, found: &Found, library: &Path, program: Option<&OsString>) -> Result<ExitCode> {
    let folder = RunFolder::make(library, &found.resolved.nics)?;
    for line in settings::explain(found) {
        print_line(&line);
    }
    print_line(&format!(
        "library        {} as libibverbs.so.1, librdmacm.so.1 and lib_mrc.so",
        library.display()
    ));
    for (name, value) in folder.variables() {
        print_line(&format!("variable       {name}={}", value.display()));
    }
    let view = if args.no_view {
        "none, as you wish".to_owned()
    } else {
        let mut check = enter(Some(folder.path()), &[], &[]);
        let output = check.stdin(Stdio::null()).output().context("cannot start a process")?;
        if output.status.success() {
            "in a mount namespace of its own".to_owned()
        } else {
            format!("none: {}", String::from_utf8_lossy(&output.stderr).trim())
        }
    };
    print_line(&format!("/sys, /dev     {view}"));
    if let Some(program) = program {
        print_line(&format!("program        {}", library::describe(program, env::var_os("PATH"))));
    }
    Ok(ExitCode::SUCCESS)
}
