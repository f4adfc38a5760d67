//! The terminal: set up when the screen begins, and restored however it ends: by `q`, an error, a
//! panic of any thread, SIGTERM, SIGHUP or SIGINT. After SIGKILL alone it is not restored; the
//! command `reset` then does that.

use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use lockstep_lag::monitor::{Monitor, MonitorState};
use ratatui::DefaultTerminal;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::keyboard::{Keyboard, KeysFound};
use super::keys::{Action, action};
use super::model::Model;
use super::view::{Theme, draw};
use super::{Samples, ended};

/// How long to wait for a key before checking for samples and signals.
const TURN: Duration = Duration::from_millis(50);

/// A thread has panicked, so the screen may no longer be updated.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// True if standard output is a terminal to draw on.
pub fn is_there() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

/// Shows the screen until the user quits (returns None) or there are `most` samples (returns the
/// last ones).
pub fn run(
    monitors: &[Monitor],
    most: Option<u64>,
) -> anyhow::Result<Option<Vec<Arc<MonitorState>>>> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGWINCH, SIGCONT])
        .context("cannot listen to signals")?;
    let mut screen = Screen::take()?;
    let ended = follow(&mut screen, monitors, most, &mut signals);
    drop(screen);
    match ended? {
        Ended::Quit => Ok(None),
        Ended::Enough(states) => Ok(Some(states)),
        Ended::Signal(signal) => {
            // End by the signal's default action, so that the exit status names the signal.
            emulate_default_handler(signal)?;
            Ok(None)
        }
    }
}

/// Why the screen ended.
enum Ended {
    Quit,
    Enough(Vec<Arc<MonitorState>>),
    Signal(i32),
}

/// A cluster, and what is shown of it.
struct Pane<'a> {
    monitor: &'a Monitor,
    model: Model,
    samples: Samples,
    /// Number of the newest state.
    seen: u64,
}

impl<'a> Pane<'a> {
    fn new(monitor: &'a Monitor, most: Option<u64>) -> Self {
        Self {
            monitor,
            model: Model::new(monitor.state()),
            samples: Samples::new(most),
            seen: 0,
        }
    }

    /// Takes the newest state; false if there is no new one.
    fn update(&mut self) -> bool {
        let state = self.monitor.state();
        if state.number <= self.seen {
            return false;
        }
        self.seen = state.number;
        self.samples.take(&state);
        let history = self.monitor.history(self.model.newest_ms());
        self.model.update(state, history);
        true
    }
}

fn follow(
    screen: &mut Screen,
    monitors: &[Monitor],
    most: Option<u64>,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let theme = Theme::from_environment();
    let mut keyboard = Keyboard::open().context(LOST)?;
    let panes = monitors.iter().map(|monitor| Pane::new(monitor, most));
    let mut panes: Vec<Pane<'_>> = panes.collect();
    // The cluster that is shown.
    let mut shown = 0;
    let mut changed = true;
    loop {
        if PANICKED.load(Ordering::SeqCst) {
            bail!("a thread that watches nodes died, which is a bug");
        }
        let mut drawn = Ok(());
        for signal in signals.pending() {
            match signal {
                SIGWINCH => {}
                SIGCONT => drawn = screen.take_again(),
                _ => return Ok(Ended::Signal(signal)),
            }
            changed = true;
        }
        for pane in &mut panes {
            changed |= pane.update();
        }
        if let Some(last) = ended(panes.iter().map(|pane| &pane.samples)) {
            return Ok(Ended::Enough(last));
        }
        let number = panes.len();
        let Some(Pane { model, .. }) = panes.get_mut(shown) else {
            return Ok(Ended::Quit);
        };
        model.place = (shown, number);
        if changed && drawn.is_ok() {
            drawn = screen.draw(model, theme);
        }
        // Drawing fails on a terminal that is gone. Then end as after SIGHUP, not with that
        // error.
        let KeysFound::Keys(keys) = keyboard.wait(TURN).context(LOST)? else {
            return Ok(Ended::Signal(SIGHUP));
        };
        drawn.context(LOST)?;
        changed = !keys.is_empty();
        for action in keys.into_iter().filter_map(action) {
            match action {
                Action::Cluster => shown = (shown + 1) % number,
                action => model.act(action),
            }
        }
        if model.quit {
            return Ok(Ended::Quit);
        }
    }
}

const LOST: &str = "the terminal cannot be used any more";

/// The terminal while this program uses it. The inner value is never dropped: if the terminal is
/// gone, its drop prints to standard error, which is gone too, and that panics.
struct Screen(ManuallyDrop<DefaultTerminal>);

impl Screen {
    /// Sets up the terminal. From here on a panic restores it before printing its message, by a
    /// hook of [`ratatui::try_init`].
    fn take() -> anyhow::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.store(true, Ordering::SeqCst);
            before(panic);
        }));
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(ManuallyDrop::new(terminal))),
            Err(error) => {
                let _ = ratatui::try_restore();
                Err(error)
                    .context("cannot draw on this terminal; --output json or | cat needs none")
            }
        }
    }

    fn draw(&mut self, model: &mut Model, theme: Theme) -> io::Result<()> {
        self.0.draw(|frame| draw(frame, model, theme)).map(drop)
    }

    /// Sets up the terminal again after SIGCONT: meanwhile the shell has drawn on it and set its
    /// own modes.
    fn take_again(&mut self) -> io::Result<()> {
        // Without this the next call assumes that the terminal is still in raw mode.
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        self.0.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        // A panic has restored the terminal already. Doing that again would move the cursor above
        // the panic's message.
        if !PANICKED.load(Ordering::SeqCst) {
            let _ = ratatui::try_restore();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Makes the test below panic.
    const PANIC: &str = "LOCKSTEP_TEST_PANIC";

    /// The next test runs this one in a terminal.
    #[test]
    fn panics_if_asked() {
        if std::env::var_os(PANIC).is_some() {
            let _screen = Screen::take().unwrap();
            panic!("on purpose");
        }
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        let folder = tempfile::tempdir().unwrap();
        let name = "top::screen::tests::panics_if_asked";
        let this = std::env::current_exe().unwrap();
        let shell = format!(
            "cd '{}'; stty -a > before; '{}' --exact {name} --nocapture; stty -a > after",
            folder.path().display(),
            this.display()
        );
        let output = Command::new("timeout")
            .args([
                "120",
                "script",
                "--quiet",
                "--flush",
                "--command",
                &shell,
                "/dev/null",
            ])
            .env(PANIC, "1")
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output()
            .expect("timeout and script run");
        let modes = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(modes("before"), modes("after"));
        let text = String::from_utf8_lossy(&output.stdout);
        let last = |piece: &str| text.rfind(piece);
        assert!(last("\u{1b}[?1049h").is_some(), "{text}");
        // The panic's message comes after the screen was left, so it stays visible.
        assert!(last("on purpose") > last("\u{1b}[?1049l"), "{text}");
    }
}
