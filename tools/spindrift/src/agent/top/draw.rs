//! Draws the [`App`].

use std::ffi::OsStr;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Wrap};
use spindrift_agentd::snapshot::{Link, Snapshot};

use super::app::{App, Health, Overlay, View, name};
use super::processes::Process;
use crate::agent::show;

/// The least terminal that holds a table.
const LEAST: (u16, u16) = (50, 9);
const KEYS: &str = " q quit  ? help  1-4 Tab view  s sort  r reverse  / filter  Enter explain  p pause";
const HELP: [&str; 22] = [
    "1 2 3 4, Tab   links, findings, what is denied, processes",
    "Up Down, k j   select a row; PageUp, PageDown, Home, End too",
    "Enter          explain the link, or the component",
    "s              sort links by the next column",
    "r              reverse the order",
    "/              filter by a part of the name; Enter keeps it, Escape ends it",
    "p, Space       pause, and go on",
    "?, h           this help",
    "q, Ctrl-C      quit",
    "",
    "Marks of links:",
    "  X  down: no probe comes back",
    "  !  loses 1 % or more in 10 s, or is at fault",
    "  d  denied by the policy of this host",
    "  ~  loses less",
    "  ?  not known yet",
    "",
    "Loss is that of the link itself, less that of the path below it. Round trips",
    "are those of probes in the last 10 to 20 s. Flaps: how often it went down.",
    "",
    "Rates of processes are those since the last reply. Bad evs are entropy",
    "values that are assumed bad.",
];

/// Whether there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Some,
    None,
}

impl Colours {
    /// By the variable `NO_COLOR`: if it is set and not empty, there are none.
    pub(super) fn of(no_color: Option<&OsStr>) -> Self {
        if no_color.is_some_and(|value| !value.is_empty()) { Self::None } else { Self::Some }
    }

    fn style(self, color: Color) -> Style {
        match self {
            Self::Some => Style::new().fg(color),
            Self::None => Style::new(),
        }
    }

    fn of_health(self, health: Health) -> Style {
        match health {
            Health::Down => self.style(Color::Red),
            Health::Lossy => self.style(Color::Yellow),
            Health::Trace => self.style(Color::Cyan),
            Health::Denied => self.style(Color::Magenta),
            Health::Unknown => self.style(Color::DarkGray),
            Health::Fine => Style::new(),
        }
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, colours: Colours) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let least = format!("The terminal is too small: {}x{} at least.", LEAST.0, LEAST.1);
        let text = Text::from(vec![Line::from(summary(app)), Line::from(least)]);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
        return;
    }
    let [title, state, tabs, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Line::styled(headline(app), bold()), title);
    frame.render_widget(state_line(app, colours), state);
    frame.render_widget(tab_line(app), tabs);
    match &app.overlay {
        Overlay::Help => lines(frame, body, HELP.iter().map(|line| (*line).to_owned()).collect(), 0),
        Overlay::Explain { component, from } => lines(frame, body, app.explanation(component), *from),
        Overlay::None => table(frame, body, app, colours),
    }
    let text = match (&app.typed, &app.overlay) {
        (Some(typed), _) => format!(" filter: {typed}_   Enter keeps it, Escape ends it"),
        (None, Overlay::None) => KEYS.to_owned(),
        (None, _) => " Escape back  Up Down scroll".to_owned(),
    };
    frame.render_widget(Line::from(text), keys);
}

fn lines(frame: &mut Frame<'_>, area: Rect, lines: Vec<String>, from: usize) {
    let text: Vec<_> = lines.into_iter().skip(from).map(Line::from).collect();
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
}

/// Faults and links in a few words.
fn summary(app: &App) -> String {
    let Some(known) = &app.known else { return "nothing is known yet".to_owned() };
    let of = |health| known.links.iter().filter(|link| app.health(link) == health).count();
    let (down, lossy) = (of(Health::Down), of(Health::Lossy));
    let findings = match known.findings.len() {
        0 => "no component is at fault".to_owned(),
        1 => "1 finding".to_owned(),
        findings => format!("{findings} findings"),
    };
    let denied = match app.denied().len() {
        0 => String::new(),
        denied => format!(", {denied} denied"),
    };
    format!("{findings}; of {} links {down} down, {lossy} lossy{denied}", known.links.len())
}

fn headline(app: &App) -> String {
    let Some(known) = &app.known else { return format!(" agent at {}", app.agent) };
    let up = std::time::Duration::from_secs((known.time - known.started).max(0.0) as u64);
    let agents = match &known.store {
        None => String::new(),
        Some(store) if store.error.is_some() => "   ALONE: no store".to_owned(),
        Some(store) => format!("   {} agents", store.agents),
    };
    let paused = if app.paused { "   PAUSED" } else { "" };
    format!(
        " {}{paused}   up {}   {}{agents}",
        known.host,
        humantime::format_duration(up),
        show::probes(known)
    )
}

fn state_line(app: &App, colours: Colours) -> Line<'static> {
    let warning = colours.style(Color::Red).add_modifier(Modifier::REVERSED);
    match &app.error {
        Some(error) if app.known.is_some() => {
            let age = app.age().as_secs();
            Line::styled(format!(" ! AGENT GONE, this is {age} s old; trying again: {error} "), warning)
        }
        Some(error) => Line::styled(format!(" ! trying again: {error} "), warning),
        None => Line::from(format!(" {}", summary(app))),
    }
}

fn tab_line(app: &App) -> Line<'static> {
    let mut spans = Vec::new();
    for (view, key, title) in View::ALL {
        let text = format!("{key} {title} {}", app.count(view));
        let (text, style) = if view == app.view {
            (format!("[{text}]"), Style::new().add_modifier(Modifier::REVERSED))
        } else {
            (format!(" {text} "), Style::new())
        };
        spans.push(Span::styled(text, style));
    }
    let order = if app.reversed { ", reversed" } else { "" };
    if app.view == View::Links {
        spans.push(Span::raw(format!("   by {}{order}", app.sort.name())));
    }
    if !app.filter.is_empty() {
        spans.push(Span::raw(format!("   filter: {}", app.filter)));
    }
    Line::from(spans)
}

/// A row of a table: its text and its style.
type Row = (String, Style);

fn table(frame: &mut Frame<'_>, area: Rect, app: &App, colours: Colours) {
    let (header, rows, nothing) = match app.view {
        View::Links => {
            let (header, rows) = link_rows(app, colours, area.width.into());
            (header, rows, "no link of the agent has such a name")
        }
        View::Processes => {
            let (header, rows) = process_rows(app, colours);
            (header, rows, "no process of this host has a control socket that the agent sees")
        }
        View::Findings => return paragraphs(frame, area, app, findings(app), "No component is at fault."),
        View::Denied => return paragraphs(frame, area, app, denied(app), "Nothing is denied."),
    };
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(Line::styled(header, bold()), head);
    if rows.is_empty() && app.known.is_some() {
        frame.render_widget(Line::from(format!(" {nothing}")), body);
        return;
    }
    let (row, height) = (app.row(), usize::from(body.height));
    let from = (row + 1).saturating_sub(height);
    let line = |(at, (text, style)): (usize, Row)| {
        let style = if at == row { style.add_modifier(Modifier::REVERSED) } else { style };
        Line::styled(text, style)
    };
    let text: Vec<_> = rows.into_iter().enumerate().map(line).skip(from).take(height).collect();
    frame.render_widget(Paragraph::new(text), body);
}

/// Texts of several lines, from the selected one on.
fn paragraphs(frame: &mut Frame<'_>, area: Rect, app: &App, texts: Vec<String>, nothing: &str) {
    if texts.is_empty() {
        let text = if app.known.is_some() { format!(" {nothing}") } else { String::new() };
        frame.render_widget(Line::from(text), area);
        return;
    }
    let row = app.row();
    let mark = |(at, text): (usize, String)| format!("{} {text}", if at == row { '>' } else { ' ' });
    let all: Vec<_> =
        texts.into_iter().enumerate().map(mark).flat_map(|text| [text, String::new()]).collect();
    lines(frame, area, all, row * 2);
}

fn findings(app: &App) -> Vec<String> {
    let of = |known: &Snapshot| {
        let findings = known.findings.iter();
        findings.map(|finding| format!("since {}: {}", show::time(finding.since), finding.text)).collect()
    };
    app.known.as_ref().map(of).unwrap_or_default()
}

/// Each entry of the deny list; what processes follow it comes with the first.
fn denied(app: &App) -> Vec<String> {
    let Some(deny) = app.known.as_ref().and_then(|known| known.deny.as_ref()) else { return Vec::new() };
    let mut lines = show::denied_lines(deny).into_iter();
    let first = lines.next().unwrap_or_default();
    let mut texts: Vec<_> = lines.map(|line| line.trim().to_owned()).collect();
    if let Some(text) = texts.first_mut() {
        *text = format!("{first} {text}");
    }
    texts
}

/// Columns after the name: their titles, their widths, and how soon they are left out for want of room.
const COLUMNS: [(&str, usize, u8); 7] = [
    ("state", 7, 0),
    ("loss 1s", 8, 2),
    ("10s", 8, 0),
    ("5min", 8, 1),
    ("rtt p50", 10, 4),
    ("p99", 10, 3),
    ("flaps", 6, 1),
];

fn cells(link: &Link) -> [String; COLUMNS.len()] {
    let rtt =
        |ns: u64| if link.rtt.samples == 0 { "-".to_owned() } else { format!("{:.1} us", ns as f64 / 1e3) };
    [
        link.state.clone(),
        show::percent(&link.loss_1s),
        show::percent(&link.loss_10s),
        show::percent(&link.loss_5min),
        rtt(link.rtt.p50_ns),
        rtt(link.rtt.p99_ns),
        link.flaps.to_string(),
    ]
}

/// The columns that there is room for beside a name of this length.
fn columns(name: usize, width: usize) -> impl Fn(usize) -> bool {
    let room = |level: u8| {
        let kept = COLUMNS.iter().filter(|(_, _, soon)| *soon <= level);
        2 + name + kept.map(|(_, width, _)| width + 1).sum::<usize>() <= width
    };
    let level = (0..=4).rev().find(|level| room(*level)).unwrap_or_default();
    move |column| COLUMNS.get(column).is_some_and(|(_, _, soon)| *soon <= level)
}

fn link_rows(app: &App, colours: Colours, width: usize) -> (String, Vec<Row>) {
    let links = app.links();
    let longest = links.iter().map(|link| name(link).chars().count()).max().unwrap_or_default().max(4);
    let is_kept = columns(longest, width);
    let line = |mark: char, name: &str, cells: [String; COLUMNS.len()]| {
        let mut text = format!("{mark} {name:<longest$}");
        for (at, (cell, (_, width, _))) in cells.into_iter().zip(COLUMNS).enumerate() {
            if is_kept(at) && at == 0 {
                text += &format!(" {cell:<width$}");
            } else if is_kept(at) {
                text += &format!(" {cell:>width$}");
            }
        }
        text
    };
    let row = |link: &&Link| {
        let health = app.health(link);
        (line(health.mark(), &name(link), cells(link)), colours.of_health(health))
    };
    let header = line(' ', "link", COLUMNS.map(|(title, ..)| title.to_owned()));
    (header, links.iter().map(row).collect())
}

/// A rate in bits per second.
fn rate(bps: Option<f64>) -> String {
    match bps {
        None => "-".to_owned(),
        Some(bps) if bps >= 1e9 => format!("{:.2} Gb/s", bps / 1e9),
        Some(bps) if bps >= 1e6 => format!("{:.2} Mb/s", bps / 1e6),
        Some(bps) => format!("{:.2} kb/s", bps / 1e3),
    }
}

fn process_rows(app: &App, colours: Colours) -> (String, Vec<Row>) {
    let line = |cells: [String; 11]| {
        let [mark, pid, program, qps, sent, placed, repeated, timeouts, rtt, planes, more] = cells;
        format!(
            "{mark} {pid:>7} {program:<18.18} {qps:>5} {sent:>11} {placed:>11} {repeated:>7} {timeouts:>8} {rtt:>10} {planes:>6} {more}"
        )
    };
    let titles = [
        "",
        "process",
        "program",
        "qps",
        "sent",
        "placed",
        "retx",
        "timeouts",
        "rtt p50",
        "planes",
        "bad evs, denied",
    ];
    let row = |process: &Process| {
        let (up, planes) = process.planes;
        let is_bad = process.failed > 0 || up < planes;
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let text = line([
            if is_bad { "!" } else { " " }.to_owned(),
            process.pid.to_string(),
            process.program.clone(),
            process.connected.to_string(),
            rate(process.sent_bps),
            rate(process.placed_bps),
            process.retransmitted.map_or_else(|| "-".to_owned(), percent),
            process.timeouts.to_string(),
            process.rtt_p50_ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1} us", ns as f64 / 1e3)),
            format!("{up}/{planes}"),
            format!("{}, {}", process.bad_evs, process.deny_rules),
        ]);
        (text, if is_bad { colours.style(Color::Yellow) } else { Style::new() })
    };
    let rows = app.shown_processes().into_iter().map(row);
    let unseen = app.unseen().into_iter().map(|reason| (format!("! {reason}"), colours.style(Color::Yellow)));
    (line(titles.map(str::to_owned)), rows.chain(unseen).collect())
}
