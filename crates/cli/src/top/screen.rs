//! The terminal: taken when the screen begins, and given back as it was at every end: `q`, an
//! error, a panic of any thread, SIGTERM, SIGHUP, SIGINT. SIGKILL alone cannot be helped;
//! `reset` then does.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use lockstep_lag::monitor::{Monitor, State};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::Samples;
use super::keys::action;
use super::model::Model;
use super::view::{Theme, draw};

/// How long to wait for a key before looking for samples and signals.
const TURN: Duration = Duration::from_millis(50);

/// A thread has panicked; what the screen shows may no longer become new.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// There is a terminal to draw on.
pub fn is_there() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_dumb
}

/// Shows everything until somebody quits (None) or there are enough samples (the last).
pub fn run(monitor: &Monitor, most: Option<u64>) -> anyhow::Result<Option<Arc<State>>> {
    let mut signals =
        Signals::new([SIGTERM, SIGHUP, SIGINT]).context("cannot listen to signals")?;
    let mut screen = Screen::take()?;
    let ended = follow(&mut screen, monitor, most, &mut signals);
    drop(screen);
    match ended? {
        Ended::Quit => Ok(None),
        Ended::Enough(state) => Ok(Some(state)),
        Ended::Signal(signal) => {
            // Whoever sent it sees that it did what it does to others.
            emulate_default_handler(signal)?;
            Ok(None)
        }
    }
}

/// Why the screen ended.
enum Ended {
    Quit,
    Enough(Arc<State>),
    Signal(i32),
}

fn follow(
    screen: &mut Screen,
    monitor: &Monitor,
    most: Option<u64>,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let theme = Theme::from_environment();
    let keys = keys_come_from().context(LOST)?;
    let mut model = Model::new(monitor.state());
    let mut samples = Samples::new(most);
    let mut seen = 0;
    let mut changed = true;
    loop {
        if PANICKED.load(Ordering::SeqCst) {
            bail!("a thread that watches nodes died, which is a bug");
        }
        if let Some(signal) = signals.pending().next() {
            return Ok(Ended::Signal(signal));
        }
        let state = monitor.state();
        if state.number > seen {
            seen = state.number;
            let counts = samples.take(&state);
            model.update(Arc::clone(&state), monitor.history(model.newest_ms()));
            changed = true;
            if let Some(last) = samples.end(&state).filter(|_| counts) {
                return Ok(Ended::Enough(last));
            }
        }
        if changed {
            screen
                .0
                .draw(|frame| draw(frame, &mut model, theme))
                .context(LOST)?;
        }
        if has_hung_up(&keys, TURN).context(LOST)? {
            return Ok(Ended::Signal(SIGHUP));
        }
        changed = false;
        while event::poll(Duration::ZERO).context(LOST)? {
            changed = true;
            if let Event::Key(key) = event::read().context(LOST)? {
                action(key).into_iter().for_each(|action| model.act(action));
            }
        }
        if model.quit {
            return Ok(Ended::Quit);
        }
    }
}

const LOST: &str = "the terminal cannot be used any more";

/// Where keys are read, which is the terminal itself where standard input is none.
fn keys_come_from() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    match stdin.is_terminal() {
        true => stdin.as_fd().try_clone_to_owned(),
        false => File::open("/dev/tty").map(OwnedFd::from),
    }
}

/// Waits for a key, or so long; true if the terminal is gone. Whoever reads keys from one that
/// is gone never returns, so this is asked first.
fn has_hung_up(keys: &OwnedFd, time: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::new(keys.as_fd(), PollFlags::POLLIN)];
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
    match poll(&mut polled, time) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    let [polled] = polled;
    Ok(polled.revents().is_some_and(|found| found.intersects(gone)))
}

/// The terminal while it is ours.
struct Screen(DefaultTerminal);

impl Screen {
    /// Takes the terminal. From here on a panic gives it back before it says anything:
    /// [`ratatui::try_init`] sees to that.
    fn take() -> anyhow::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.store(true, Ordering::SeqCst);
            before(panic);
        }));
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                let _ = ratatui::try_restore();
                Err(error)
                    .context("cannot draw on this terminal; --output json or | cat needs none")
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        // After a panic it is restored already, and once more would put the cursor back above
        // what the panic has said.
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

    /// Run by the next one, in a terminal.
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
        let output = Command::new("script")
            .args(["--quiet", "--flush", "--command", &shell, "/dev/null"])
            .env(PANIC, "1")
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output()
            .expect("script of util-linux runs");
        let modes = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(modes("before"), modes("after"));
        let text = String::from_utf8_lossy(&output.stdout);
        let last = |piece: &str| text.rfind(piece);
        assert!(last("\u{1b}[?1049h").is_some(), "{text}");
        // What it says is not wiped away with the screen.
        assert!(last("on purpose") > last("\u{1b}[?1049l"), "{text}");
    }
}
