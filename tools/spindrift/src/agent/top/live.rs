//! The terminal, the keys, and the agent.

use std::io::{self, Stdout, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{env, panic, thread};

use anyhow::{Context as _, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGTSTP;
use signal_hook::{flag, low_level};

use super::TopArgs;
use super::app::{App, Key, News};
use super::draw::{self, Colours};
use crate::agent::client::{From, fetch, fetch_json};
use crate::stop::{INTERRUPTED_STATUS, Interrupted, Stop};

/// How soon a signal, or what the agent has said, is seen.
const TURN: Duration = Duration::from_millis(100);

type Drawn = Terminal<CrosstermBackend<Stdout>>;

/// The terminal as it is drawn on. Dropping it restores what was there.
struct Screen(Drawn);

/// A terminal of the present size, on which all is drawn anew. That of a fixed size never asks the terminal where its cursor is, which a slow
/// one would answer too late.
fn drawn() -> io::Result<Drawn> {
    let (width, height) = size()?;
    execute!(io::stdout(), Clear(ClearType::All))?;
    let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
    Terminal::with_options(CrosstermBackend::new(io::stdout()), TerminalOptions { viewport })
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// What cannot be restored is left as it is: nobody is there to be told.
fn leave() {
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = io::stdout().flush();
    let _ = disable_raw_mode();
}

impl Screen {
    fn new() -> Result<Self> {
        // Before the message, which would be lost with what is drawn.
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave();
            usual(info);
        }));
        let entered = enter().and_then(|()| drawn());
        if entered.is_err() {
            leave();
        }
        entered.map(Self).context("the terminal cannot be drawn on")
    }

    /// The terminal has another size, or shows something else.
    fn renew(&mut self) -> Result<()> {
        self.0 = drawn().context("the terminal cannot be drawn on")?;
        Ok(())
    }

    /// Stops as other programs do, and draws again when it goes on.
    fn suspend(&mut self) -> Result<()> {
        leave();
        low_level::emulate_default_handler(SIGTSTP).context("cannot stop")?;
        enter().context("the terminal cannot be drawn on")?;
        self.renew()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Ends the process once its terminal is gone, in a thread of its own: `crossterm` reads from such a terminal without end.
fn watch() -> Result<()> {
    let watch = || {
        loop {
            let stdin = io::stdin();
            // What is asked for is nothing: a terminal that is gone is told of anyway.
            let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
            let gone = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0);
            if gone {
                low_level::exit(INTERRUPTED_STATUS.into());
            }
            thread::sleep(TURN);
        }
    };
    thread::Builder::new().name("terminal".to_owned()).spawn(watch).context("cannot start a thread")?;
    Ok(())
}

/// Asks the agent again and again, in a thread of its own that ends with the process.
fn ask(from: From, interval: Duration) -> Result<Receiver<News>> {
    let (news, heard) = channel();
    let ask = move || {
        loop {
            let status = fetch(&from).map(Box::new).map_err(|error| format!("{error:#}"));
            let is_there = status.is_ok();
            if news.send(News::Status(status)).is_err() {
                return;
            }
            // An agent of an earlier version does not have them.
            if is_there
                && let Ok(seen) = fetch_json(&from, "/api/v1/processes", "a list of processes")
                && news.send(News::Processes(seen)).is_err()
            {
                return;
            }
            thread::sleep(interval);
        }
    };
    thread::Builder::new().name("agent".to_owned()).spawn(ask).context("cannot start a thread")?;
    Ok(heard)
}

/// What a key means; `None` if nothing.
fn key(event: KeyEvent) -> Option<Key> {
    Some(match event.code {
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}

/// Handles what the terminal says. An error ends the command.
fn handle(event: &Event, app: &mut App, page: usize, suspended: &AtomicBool) -> Result<()> {
    let Event::Key(event) = event else { return Ok(()) };
    if event.kind == KeyEventKind::Release {
        return Ok(());
    }
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    match event.code {
        KeyCode::Char('c') if control => return Err(Interrupted.into()),
        KeyCode::Char('z') if control => suspended.store(true, Ordering::Relaxed),
        _ if control => {}
        _ => {
            if let Some(key) = key(*event) {
                app.press(key, page);
            }
        }
    }
    Ok(())
}

pub(super) fn run(args: &TopArgs) -> Result<()> {
    let stop = Stop::on_ctrl_c()?;
    let suspended = Arc::new(AtomicBool::new(false));
    flag::register(SIGTSTP, Arc::clone(&suspended)).context("cannot watch for signals")?;
    let colours = Colours::of(env::var_os("NO_COLOR").as_deref());
    let mut app = App::new(args.from.agent.to_string());
    let heard = ask(args.from.clone(), args.interval)?;
    watch()?;
    let mut screen = Screen::new()?;
    let began = Instant::now();
    let mut shown = None;
    while !app.quit {
        stop.check()?;
        if suspended.swap(false, Ordering::Relaxed) {
            screen.suspend()?;
            shown = None;
        }
        let mut changed = false;
        for news in heard.try_iter() {
            app.update(news);
            changed = true;
        }
        app.tick(began.elapsed());
        // Ages are whole seconds.
        let second = Some(began.elapsed().as_secs());
        if changed || shown != second {
            screen.0.draw(|frame| draw::draw(frame, &app, colours)).context("the terminal")?;
            shown = second;
        }
        if event::poll(TURN).context("the terminal")? {
            let event = event::read().context("the terminal")?;
            if matches!(event, Event::Resize(..)) {
                screen.renew()?;
            }
            let page = usize::from(size().context("the terminal")?.1 / 2);
            handle(&event, &mut app, page, &suspended)?;
            shown = None;
        }
    }
    Ok(())
}
