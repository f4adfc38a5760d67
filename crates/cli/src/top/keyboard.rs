//! Reads keys from the terminal.
//!
//! ratatui's own event reader (crossterm) is not used, because keys get lost in it. It waits with
//! an edge-triggered epoll and takes one event from each wait, so a key that arrives together
//! with a change of size stays in the terminal unseen until the next key. It also blocks inside
//! an incomplete escape sequence, where no signal is looked at. Here `poll` says whether bytes
//! are there, for as long as they are there, and each time one `read` takes what has come.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use termina::event::KeyEvent;
use termina::{Event, Parser};

/// Most bytes read at a time. More of them wait for the next read.
const MOST_BYTES: usize = 1024;

/// The result of one wait.
#[derive(Debug, PartialEq, Eq)]
pub enum KeysFound {
    /// Keys in the order in which they were pressed. Empty if the time has passed, if a signal
    /// came, or in the middle of an escape sequence.
    Keys(Vec<KeyEvent>),
    /// The terminal is gone, and no key will come any more.
    HungUp,
}

/// The source of keys: standard input, or `/dev/tty` if standard input is no terminal.
pub struct Keyboard {
    terminal: File,
    parser: Parser,
}

impl Keyboard {
    pub fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        let terminal = match stdin.is_terminal() {
            true => stdin.as_fd().try_clone_to_owned()?,
            false => File::open("/dev/tty")?.into(),
        };
        Ok(Self::on(terminal))
    }

    fn on(terminal: OwnedFd) -> Self {
        Self {
            terminal: terminal.into(),
            parser: Parser::default(),
        }
    }

    /// Waits for keys, at most for `time`.
    pub fn wait(&mut self, time: Duration) -> io::Result<KeysFound> {
        let mut polled = [PollFd::new(self.terminal.as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        match poll(&mut polled, time) {
            Ok(0) => {
                // The rest of an escape sequence follows at once or never. Alt with ] looks like
                // the beginning of one, and must not swallow keys that are pressed later.
                self.parser = Parser::default();
                return Ok(KeysFound::Keys(Vec::new()));
            }
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(KeysFound::Keys(Vec::new())),
            Err(errno) => return Err(errno.into()),
        }
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        let [polled] = polled;
        if polled.revents().is_some_and(|found| found.intersects(gone)) {
            return Ok(KeysFound::HungUp);
        }
        self.take()
    }

    /// Reads the bytes that are there, once.
    fn take(&mut self) -> io::Result<KeysFound> {
        let mut bytes = [0; MOST_BYTES];
        match self.terminal.read(&mut bytes) {
            Ok(0) => Ok(KeysFound::HungUp),
            Ok(length) => {
                let bytes = bytes.get(..length).unwrap_or_default();
                self.parser.parse(bytes, length == MOST_BYTES);
                let events = std::iter::from_fn(|| self.parser.pop());
                Ok(KeysFound::Keys(events.filter_map(key).collect()))
            }
            Err(error) => match error.kind() {
                ErrorKind::Interrupted | ErrorKind::WouldBlock => Ok(KeysFound::Keys(Vec::new())),
                // The terminal went away between poll and read.
                _ if error.raw_os_error() == Some(Errno::EIO as i32) => Ok(KeysFound::HungUp),
                _ => Err(error),
            },
        }
    }
}

fn key(event: Event) -> Option<KeyEvent> {
    match event {
        Event::Key(key) => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use termina::event::KeyCode;

    use super::*;

    /// Long enough for any machine. No test below waits that long.
    const PATIENCE: Duration = Duration::from_secs(120);

    fn codes(keyboard: &mut Keyboard, time: Duration) -> Vec<KeyCode> {
        match keyboard.wait(time).unwrap() {
            KeysFound::Keys(keys) => keys.into_iter().map(|key| key.code).collect(),
            KeysFound::HungUp => panic!("the other end is there"),
        }
    }

    #[test]
    fn keys_come_in_order_and_whole() {
        let (mut fingers, terminal) = UnixStream::pair().unwrap();
        let mut keyboard = Keyboard::on(terminal.into());
        assert_eq!(codes(&mut keyboard, Duration::ZERO), []);
        fingers.write_all(b"j\x1b[Bq").unwrap();
        let expected = [KeyCode::Char('j'), KeyCode::Down, KeyCode::Char('q')];
        assert_eq!(codes(&mut keyboard, PATIENCE), expected);
        // A sequence in two pieces, as it may arrive over a network.
        fingers.write_all(b"\x1b[").unwrap();
        assert_eq!(codes(&mut keyboard, PATIENCE), []);
        fingers.write_all(b"6~").unwrap();
        assert_eq!(codes(&mut keyboard, PATIENCE), [KeyCode::PageDown]);
    }

    #[test]
    fn a_sequence_without_an_end_swallows_nothing_later() {
        let (mut fingers, terminal) = UnixStream::pair().unwrap();
        let mut keyboard = Keyboard::on(terminal.into());
        for begun in [&b"\x1b["[..], b"\x1bO", b"\x1b]", b"\x1bP", b"\xc3"] {
            fingers.write_all(begun).unwrap();
            assert_eq!(codes(&mut keyboard, PATIENCE), [], "{begun:?}");
            assert_eq!(codes(&mut keyboard, Duration::ZERO), [], "{begun:?}");
            fingers.write_all(b"q").unwrap();
            let found = codes(&mut keyboard, PATIENCE);
            assert_eq!(found, [KeyCode::Char('q')], "{begun:?}");
        }
    }

    #[test]
    fn a_terminal_that_is_gone_is_told() {
        let (fingers, terminal) = UnixStream::pair().unwrap();
        let mut keyboard = Keyboard::on(terminal.into());
        drop(fingers);
        assert_eq!(keyboard.wait(PATIENCE).unwrap(), KeysFound::HungUp);
    }
}
