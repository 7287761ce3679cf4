//! Instructions counted: a benchmark runs itself under `valgrind --tool=callgrind`.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout, reason = "shared by benchmarks")]

use std::process::{Command, ExitCode};

/// A scenario: its name, the functions whose instructions are collected, what one unit of its work is, and how much of it to do.
pub struct Scenario {
    pub name: &'static str,
    pub collect: &'static [&'static str],
    pub what: &'static str,
    /// Two amounts; the difference is what is counted, so that start-up is not.
    pub amounts: [u64; 2],
}

/// Instructions and units of one run under callgrind.
fn count(program: &str, scenario: &Scenario, amount: u64) -> Result<(u64, u64), String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(scenario.collect.iter().map(|name| format!("--toggle-collect={program}::{name}*")))
        .arg(this)
        .args(["--scenario", scenario.name, &amount.to_string()])
        .output()
        .map_err(|error| {
            format!("valgrind could not be run: install it (apt-get install valgrind) and try again: {error}")
        })?;
    let log = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    let collected = log.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    collected.zip(told.trim().parse().ok()).ok_or_else(|| format!("{}: {log}", scenario.name))
}

/// The benchmark `program`: a table of instructions for each unit of each scenario. `run` does an amount of a scenario's work, and
/// returns how many units were collected.
pub fn main(program: &str, scenarios: &[Scenario], run: fn(&str, u64) -> u64) -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, scenario, amount] = &args[..]
        && flag == "--scenario"
        && let Ok(amount) = amount.parse()
    {
        println!("{}", run(scenario, amount));
        return ExitCode::SUCCESS;
    }
    println!("{:<10} {:>12}  what one is", "scenario", "instructions");
    for scenario in scenarios {
        let [few, many] = scenario.amounts.map(|amount| count(program, scenario, amount));
        match (few, many) {
            (Ok((few, few_units)), Ok((many, many_units))) => {
                let each = (many - few) as f64 / (many_units - few_units) as f64;
                println!("{:<10} {each:>12.1}  {}", scenario.name, scenario.what);
            }
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
