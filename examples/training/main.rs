//! A synchronous training job: each rank computes a gradient, all add theirs up over a ring, and all take the same step.
//!
//! ```text
//! training [--mode one|seamless|shift] [--second ADDR,..] [--steps N] [--checkpoint FILE --every N] [--port PORT]
//!          --nic ADDR,.. RANK HOST HOST ..
//! ```
//!
//! `RANK` is this rank's number, from 0. The `HOST`s are an address of each rank, in order, for the set-up over TCP. `--nic` has the
//! addresses of this rank's NIC, by plane, and `--second` those of its second NIC, which takes over when the first one dies:
//! `docs/fallback.md` compares the modes. With `--checkpoint`, weights are written every N steps, and a job that is started again goes on
//! there. Rank 0 prints a line for each step: the time in seconds since 1970, the step, and the loss.
//!
//! `benches/training.py` runs it in a lab of network namespaces while NICs die.
#![allow(
    unreachable_pub,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "an application"
)]

mod model;
mod node;
mod ring;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Model;
use node::{Mode, Nics};
use ring::Ring;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Limit for each step of the set-up.
const TIMEOUT: Duration = Duration::from_secs(30);
/// TCP port of the set-up.
const PORT: u16 = 18_600;

struct Settings {
    mode: Mode,
    nics: Nics,
    steps: u64,
    checkpoint: Option<PathBuf>,
    every: u64,
    port: u16,
    rank: usize,
    hosts: Vec<String>,
}

fn main() -> Outcome<()> {
    let settings = settings(std::env::args().skip(1))?;
    let Settings { mode, nics, steps, checkpoint, every, port, rank, hosts } = &settings;
    let mut model = Model::new();
    let mut ring = Ring::connect(*mode, nics, (*rank, hosts), *port, Model::len() + 1)?;
    // The newest checkpoint that all ranks have.
    let newest = checkpoint.as_deref().map_or(0, |file| newest(file, *rank));
    let start = ring.least(newest)?;
    if let (Some(file), 1..) = (checkpoint, start) {
        model.load(&read(&name(file, *rank, start))?);
    }
    let mut gradient = vec![0.0; Model::len() + 1];
    for step in start..*steps {
        let (slopes, loss) = gradient.split_at_mut(Model::len());
        loss[0] = model.gradient(*rank, step, slopes);
        ring.all_reduce(&mut gradient)?;
        let (slopes, loss) = gradient.split_at(Model::len());
        model.update(slopes, hosts.len());
        if *rank == 0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
            println!("{now:.4} {} {:.6}", step + 1, loss[0] / hosts.len() as f32);
        }
        if let Some(file) = checkpoint
            && (step + 1).is_multiple_of(*every)
        {
            write(&name(file, *rank, step + 1), model.weights())?;
            let old = name(file, *rank, (step + 1).saturating_sub(2 * every));
            let _ = fs::remove_file(old);
        }
    }
    ring.end()?;
    println!("weights {:016x}", model.hash());
    Ok(())
}

fn settings(mut arguments: impl Iterator<Item = String>) -> Outcome<Settings> {
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let nics = Nics { first: Vec::new(), second: Vec::new() };
    let (mut mode, mut words) = (None, Vec::new());
    let mut settings = Settings {
        mode: Mode::One,
        nics,
        steps: 100,
        checkpoint: None,
        every: 100,
        port: PORT,
        rank: 0,
        hosts: Vec::new(),
    };
    while let Some(word) = arguments.next() {
        let Some(option) = word.strip_prefix("--") else {
            words.push(word);
            continue;
        };
        let value = arguments.next().ok_or_else(|| format!("--{option}: a value is missing"))?;
        let wrong = |why: &dyn std::fmt::Display| format!("--{option} {value}: {why}");
        match option {
            "mode" => {
                mode = Some(match &*value {
                    "one" => Mode::One,
                    "seamless" => Mode::Seamless,
                    "shift" => Mode::Shift,
                    _ => return Err(wrong(&"give one, seamless or shift").into()),
                });
            }
            "nic" => settings.nics.first = list(&value),
            "second" => settings.nics.second = list(&value),
            "steps" => settings.steps = value.parse().map_err(|error| wrong(&error))?,
            "every" => settings.every = value.parse().map_err(|error| wrong(&error))?,
            "port" => settings.port = value.parse().map_err(|error| wrong(&error))?,
            "checkpoint" => settings.checkpoint = Some(value.into()),
            _ => return Err(format!("there is no option --{option}").into()),
        }
    }
    let mut words = words.into_iter();
    let rank = words.next().ok_or("give the rank, and a host for each rank")?;
    settings.rank = rank.parse().map_err(|error| format!("rank {rank}: {error}"))?;
    settings.hosts = words.collect();
    let has_second = !settings.nics.second.is_empty();
    settings.mode = mode.unwrap_or(if has_second { Mode::Seamless } else { Mode::One });
    if settings.hosts.len() < 2 || settings.rank >= settings.hosts.len() {
        return Err(format!(
            "rank {} of {} hosts: give two hosts or more, and one of their numbers from 0",
            settings.rank,
            settings.hosts.len()
        )
        .into());
    }
    if settings.nics.first.is_empty() {
        return Err("--nic: give the addresses of this rank's NIC".into());
    }
    if settings.mode != Mode::One && !has_second {
        return Err("--second: this mode needs the addresses of a second NIC".into());
    }
    if settings.every == 0 {
        return Err("--every 0: give 1 or more".into());
    }
    Ok(settings)
}

/// The file of a checkpoint.
fn name(file: &Path, rank: usize, step: u64) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{rank}.{step}"));
    name.into()
}

/// The step of a rank's newest checkpoint; 0 if there is none.
fn newest(file: &Path, rank: usize) -> u64 {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = format!("{}.{rank}.", file.file_name().unwrap_or_default().display());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let steps = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok());
    steps.max().unwrap_or(0)
}

fn write(path: &Path, weights: &[f32]) -> Outcome<()> {
    let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    // A checkpoint is whole, or not there.
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes)?;
    Ok(fs::rename(partial, path)?)
}

fn read(path: &Path) -> Outcome<Vec<f32>> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let weights: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if weights.len() != Model::len() {
        return Err(format!("{}: this is no checkpoint of this model", path.display()).into());
    }
    Ok(weights)
}
