//! The tables of commands and options in `docs/cli.md`, which are made from the definitions of the command line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::Cli;

/// Set this variable to have the tables of the page rewritten.
const BLESS: &str = "SPINDRIFT_BLESS";
/// A block of the page: `<!-- options: write-bw, write-lat -->`, the table, and `<!-- end -->`. It has the options that all of these
/// commands share and that no block before it has.
const OPTIONS: &str = "<!-- options: ";
/// A block with one row for each option of each of these commands.
const BY_COMMAND: &str = "<!-- options by command: ";
/// A block with a row for each command, or each subcommand of the command it names.
const COMMANDS: &str = "<!-- commands";
const END: &str = "<!-- end -->";
/// The longest cell of a table. Longer text is a list or a paragraph after the table.
const CELL_MAX: usize = 200;

fn page_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md")
}

/// The command line without the drivers of unit tests.
fn command_line() -> Command {
    let mut cli = Cli::command();
    cli.build();
    cli
}

/// The commands that do something, each as its words. The pump of the unit tests' driver is left out.
fn leaves(command: &Command, words: &str, found: &mut Vec<String>) {
    let subcommands = command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set());
    let mut is_leaf = true;
    for sub in subcommands {
        is_leaf = false;
        leaves(sub, format!("{words} {}", sub.get_name()).trim_start(), found);
    }
    if is_leaf && words != "pump memory" {
        found.push(words.to_owned());
    }
}

fn find<'a>(cli: &'a Command, words: &str) -> &'a Command {
    words.split(' ').fold(cli, |command, word| {
        command.find_subcommand(word).unwrap_or_else(|| panic!("docs/cli.md: there is no command `{words}`"))
    })
}

fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version"))
}

/// `-s`, `--size SIZE`.
fn name_cell(arg: &Arg) -> String {
    let possible = arg.get_possible_values();
    let names: Vec<_> = possible.iter().map(|value| value.get_name().to_owned()).collect();
    let named = arg.get_value_names().unwrap_or_default().join(" ");
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let value = match (takes_value, names.is_empty() || named == "KIND") {
        (false, _) => String::new(),
        (true, true) => named,
        (true, false) => names.join(r"\|"),
    };
    let long = arg.get_long().map(|long| format!("--{long} {value}"));
    let Some(long) = long else {
        return match arg.get_short() {
            Some(short) => format!("`{}`", format!("-{short} {value}").trim_end()),
            None => format!("`{value}`"),
        };
    };
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    let aliases: String = aliases.iter().flat_map(|alias| [", `--", alias, "`"]).collect();
    format!("{short}`{}`{aliases}", long.trim_end())
}

/// The help text without its default, and the default.
fn meaning(arg: &Arg) -> (String, String) {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', r"\|");
    let values: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    match help.split_once(" [default: ") {
        Some((text, default)) => {
            let default =
                default.strip_suffix(']').unwrap_or_else(|| panic!("ends with its default: {help}"));
            (text.to_owned(), default.to_owned())
        }
        None if takes_value => (help, values.join(",")),
        None => (help, String::new()),
    }
}

fn row(arg: &Arg, before: &str) -> String {
    let (meaning, default) = meaning(arg);
    assert!(!meaning.is_empty(), "{} has no help text", arg.get_id());
    format!("{before}| {} | {meaning} | {default} |\n", name_cell(arg)).replace("|  |", "| |")
}

/// What makes two arguments of different commands the same row.
fn same(arg: &Arg) -> (String, (String, String)) {
    (name_cell(arg), meaning(arg))
}

/// The options that these commands share and that were not listed before for any of them.
fn shared(cli: &Command, commands: &[&str], listed: &mut BTreeSet<(String, String)>) -> String {
    let mut table = "| Option | Meaning | Default |\n|---|---|---|\n".to_owned();
    let [first, others @ ..] = commands else { return table };
    for arg in arguments(find(cli, first)) {
        let everywhere =
            others.iter().all(|other| arguments(find(cli, other)).any(|found| same(found) == same(arg)));
        let id = arg.get_id().to_string();
        if everywhere && !listed.contains(&((*first).to_owned(), id.clone())) {
            listed.extend(commands.iter().map(|command| ((*command).to_owned(), id.clone())));
            table += &row(arg, "");
        }
    }
    table
}

fn by_command(cli: &Command, commands: &[&str], listed: &mut BTreeSet<(String, String)>) -> String {
    let mut table = "| Command | Option | Meaning | Default |\n|---|---|---|---|\n".to_owned();
    for command in commands {
        for arg in arguments(find(cli, command)) {
            if listed.insert(((*command).to_owned(), arg.get_id().to_string())) {
                table += &row(arg, &format!("| `{command}` "));
            }
        }
    }
    table
}

fn of_commands(cli: &Command, parent: &str) -> String {
    let mut table = "| Command | What it does |\n|---|---|\n".to_owned();
    let command = if parent.is_empty() { cli } else { find(cli, parent) };
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let (name, about) = (sub.get_name(), sub.get_about().map(ToString::to_string).unwrap_or_default());
        let name = match name {
            _ if !parent.is_empty() => format!("`{name}`"),
            "write-bw" | "write-lat" => format!("[`{name}`](#write-bw-and-write-lat)"),
            name if crate::remote::is_benchmark(name) => format!("[`{name}`](#other-operations)"),
            name => format!("[`{name}`](#{name})"),
        };
        let _ = writeln!(table, "| {name} | {about} |");
    }
    table
}

/// The page with its tables made anew.
fn renewed(page: &str) -> String {
    let cli = command_line();
    let mut listed = BTreeSet::new();
    let mut fresh = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        fresh += line;
        fresh.push('\n');
        let list = |start: &str| line.strip_prefix(start).and_then(|rest| rest.strip_suffix(" -->"));
        let names = |text: &'static str| list(text).map(|text| text.split(", ").collect::<Vec<_>>());
        let table = if let Some(commands) = names(OPTIONS) {
            shared(&cli, &commands, &mut listed)
        } else if let Some(commands) = names(BY_COMMAND) {
            by_command(&cli, &commands, &mut listed)
        } else if let Some(parent) = list(COMMANDS) {
            of_commands(&cli, parent.trim_start_matches(": "))
        } else {
            continue;
        };
        fresh += &table;
        let end = lines.by_ref().find(|line| *line == END).unwrap_or_else(|| panic!("{line} has no {END}"));
        fresh += end;
        fresh.push('\n');
    }
    let mut missing = Vec::new();
    let mut commands = Vec::new();
    leaves(&cli, "", &mut commands);
    for command in &commands {
        let of_command = arguments(find(&cli, command)).map(|arg| arg.get_id().to_string());
        let unlisted = of_command.filter(|id| !listed.contains(&(command.clone(), id.clone())));
        missing.extend(unlisted.map(|id| format!("{command} {id}")));
    }
    assert!(missing.is_empty(), "docs/cli.md: no block `{OPTIONS}.. -->` has these options: {missing:?}");
    fresh
}

#[test]
fn the_tables_of_options_are_those_of_the_command_line() {
    let path = page_path();
    let page = fs::read_to_string(&path).unwrap();
    let fresh = renewed(&page);
    if page == fresh {
        return;
    }
    if std::env::var_os(BLESS).is_some() {
        fs::write(&path, fresh).unwrap();
        return;
    }
    panic!(
        "docs/cli.md does not match the command line; run this test with {BLESS}=1, which writes:\n{}",
        difference(&page, &fresh)
    );
}

/// The lines between the first and the last difference of two texts.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let before = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let least = old.len().min(new.len()) - before;
    let after =
        old.iter().rev().zip(new.iter().rev()).take(least).take_while(|(old, new)| old == new).count();
    let part = |sign: char, lines: &[&str]| {
        let lines = lines.iter().take(lines.len() - after).skip(before);
        lines.fold(String::new(), |text, line| format!("{text}{sign} {line}\n"))
    };
    part('-', &old) + &part('+', &new)
}

#[test]
fn a_difference_has_the_lines_that_change() {
    assert_eq!(difference("a\nb\nc\nd", "a\nc\nb\nd"), "- b\n- c\n+ c\n+ b\n");
    assert_eq!(difference("a\na", "a"), "- a\n");
    assert_eq!(difference("a\nb", "a\nx\nb"), "+ x\n");
}

/// A long text in a cell makes a table unreadable.
#[test]
fn no_cell_of_a_table_is_long() {
    let page = fs::read_to_string(page_path()).unwrap();
    for (number, line) in page.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        for cell in line.replace(r"\|", "/").split('|') {
            let length = cell.trim().chars().count();
            assert!(length <= CELL_MAX, "docs/cli.md, line {}: a cell of {length} characters", number + 1);
        }
    }
}
