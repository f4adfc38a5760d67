//! `lockstep top` in a pseudo-terminal: `script` of util-linux makes it, a shell in it records
//! the terminal's modes before and after. What is drawn is kept as a grid of characters: only
//! what changes is sent, so words need not come in one piece.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::io::ioctl_fionread;
use rustix::termios::{Action, tcflow};

/// Longest that anything may take, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Pause between looks at what cannot be waited for.
const PAUSE: Duration = Duration::from_millis(20);

/// `$0` is lockstep, `$1` the folder, the rest top's arguments. The shell outlives its terminal,
/// to say how top ended.
const SHELL: &str = r#"
trap : HUP
cd "$1"; shift
stty rows 24 cols 80
tty > tty
stty -a > before
sh -c 'echo $$ > pid; exec "$0" top "$@"' "$0" "$@"
echo $? > code
stty -a > after
"#;

/// A screen that is shown.
pub struct Terminal {
    /// None once it is waited for.
    script: Option<Script>,
    keys: ChildStdin,
    shown: Arc<(Mutex<Shown>, Condvar)>,
    reader: JoinHandle<()>,
    folder: tempfile::TempDir,
}

/// What came out of the terminal, and the picture that it makes.
#[derive(Default)]
struct Shown {
    bytes: Vec<u8>,
    /// Bytes that are in the picture.
    drawn: usize,
    /// Characters on the screen, by line, then column.
    grid: Vec<Vec<char>>,
    line: usize,
    column: usize,
}

impl Shown {
    fn take(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        while let Some(length) = self.draw_one() {
            self.drawn += length;
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn lines(&self) -> Vec<String> {
        self.grid.iter().map(|line| line.iter().collect()).collect()
    }

    /// One character or sequence; its length, or None if it is not complete yet.
    fn draw_one(&mut self) -> Option<usize> {
        let rest = &self.bytes[self.drawn..];
        match *rest.first()? {
            0x1b if *rest.get(1)? == b'[' => {
                let end = rest.iter().skip(2).position(u8::is_ascii_alphabetic)? + 2;
                let numbers = String::from_utf8_lossy(&rest[2..end]).into_owned();
                let command = rest[end];
                self.command(command, &numbers);
                Some(end + 1)
            }
            0x1b => Some(2),
            0..0x20 => Some(1),
            first => {
                let length = match first {
                    0xf0.. => 4,
                    0xe0.. => 3,
                    0xc0.. => 2,
                    _ => 1,
                };
                let c = std::str::from_utf8(rest.get(..length)?)
                    .unwrap()
                    .chars()
                    .next()?;
                self.put(c);
                Some(length)
            }
        }
    }

    fn command(&mut self, command: u8, numbers: &str) {
        let mut numbers = numbers.split(';').map(|number| number.parse().unwrap_or(1));
        let mut next = || numbers.next().unwrap_or(1_usize).max(1) - 1;
        match command {
            b'H' => (self.line, self.column) = (next(), next()),
            b'J' => self.grid.clear(),
            _ => {}
        }
    }

    fn put(&mut self, c: char) {
        let (line, column) = (self.line, self.column);
        if self.grid.len() <= line {
            self.grid.resize(line + 1, Vec::new());
        }
        if self.grid[line].len() <= column {
            self.grid[line].resize(column + 1, ' ');
        }
        self.grid[line][column] = c;
        self.column += 1;
    }
}

/// Ended with the test, whatever becomes of it: without `script` the terminal is gone, which
/// ends what runs in it.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What was left.
pub struct End {
    /// Exit code of top, as a shell has it.
    pub code: i32,
    /// All that was written.
    pub text: String,
    before: String,
    after: String,
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Terminal {
    /// Starts top; its files are in a new folder in `folder`.
    pub fn start(folder: &Path, args: &[String]) -> Self {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let words = ["sh", "-c", SHELL, env!("CARGO_BIN_EXE_lockstep")].map(str::to_owned);
        let here = folder.path().to_str().unwrap().to_owned();
        let words = words.iter().chain([&here]).chain(args);
        let command: Vec<String> = words.map(|word| quoted(word)).collect();
        let mut script = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command"])
            .arg(command.join(" "))
            .arg("/dev/null")
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("script of util-linux runs");
        let shown = Arc::new((Mutex::new(Shown::default()), Condvar::new()));
        let mut output = script.stdout.take().unwrap();
        let to = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut piece) {
                let Ok(mut shown) = to.0.lock() else {
                    return;
                };
                shown.take(&piece[..length]);
                to.1.notify_all();
            }
        });
        Self {
            keys: script.stdin.take().unwrap(),
            script: Some(Script(script)),
            shown,
            reader,
            folder,
        }
    }

    /// Waits until this is on the screen, in one line.
    pub fn wait_for(&self, words: &str) {
        let shown = self.shown.0.lock().unwrap();
        let is_missing = |shown: &mut Shown| !shown.lines().iter().any(|line| line.contains(words));
        let (shown, waited) = self
            .shown
            .1
            .wait_timeout_while(shown, PATIENCE, is_missing)
            .unwrap();
        drop(shown);
        let picture = self.picture();
        if std::env::var_os("LOCKSTEP_SHOW").is_some() {
            println!("{picture}");
        }
        assert!(
            !waited.timed_out(),
            "waited for {words:?}; on the screen:\n{picture}"
        );
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        let done = Command::new("stty")
            .args(["-F", self.file("tty").trim()])
            .args(["rows", &rows.to_string(), "cols", &columns.to_string()])
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// Sends a signal to top.
    pub fn signal(&self, signal: Signal) {
        let pid = self.file("pid").trim().parse().unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// From here on top waits as soon as it draws, until [`Self::let_out`].
    pub fn hold(&self) {
        tcflow(self.device(), Action::OOff).unwrap();
    }

    /// Waits until top waits, since what it draws is held.
    pub fn wait_until_held(&self) {
        let path = format!("/proc/{}/syscall", self.file("pid").trim());
        self.wait_until("top to write to its terminal", || {
            let found = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            // The number of the call, then its arguments. Only a write has standard output as
            // the first.
            match found.split_whitespace().nth(1) {
                Some("0x1") => Ok(()),
                _ => Err(format!("it is in system call {}", found.trim())),
            }
        });
    }

    /// What top draws comes out again.
    pub fn let_out(&self) {
        tcflow(self.device(), Action::OOn).unwrap();
    }

    /// Waits until the terminal has this number of bytes that were typed and not read by top.
    pub fn wait_for_unread(&self, bytes: u64) {
        let device = self.device();
        self.wait_until(&format!("{bytes} bytes unread"), || {
            match ioctl_fionread(&device).unwrap() {
                unread if unread == bytes => Ok(()),
                unread => Err(format!("{unread} bytes unread")),
            }
        });
    }

    /// Does with the terminal what a shell does while top is stopped.
    pub fn set_line_by_line(&self) {
        let done = Command::new("stty")
            .args(["-F", self.file("tty").trim(), "sane"])
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// Takes the terminal away, as a connection that breaks does; top's exit code.
    pub fn take_away(mut self) -> i32 {
        drop(self.script.take());
        let code = self.folder.path().join("code");
        let mut said = String::new();
        self.wait_until("top to end without a terminal", || {
            said = fs::read_to_string(&code).unwrap_or_default();
            match said.ends_with('\n') {
                true => Ok(()),
                false => Err("it goes on".to_owned()),
            }
        });
        said.trim().parse().unwrap()
    }

    /// Waits until it has ended.
    pub fn end(mut self) -> End {
        let mut script = self.script.take().unwrap();
        self.wait_until("top to end", || match script.0.try_wait().unwrap() {
            Some(_) => Ok(()),
            None => Err("it goes on".to_owned()),
        });
        self.wait_until("all that top wrote", || match self.reader.is_finished() {
            true => Ok(()),
            false => Err("the terminal is open".to_owned()),
        });
        let text = self.shown.0.lock().unwrap().text();
        End {
            code: self.file("code").trim().parse().unwrap(),
            text,
            before: self.file("before"),
            after: self.file("after"),
        }
    }

    /// Waits for what can only be looked at.
    fn wait_until(&self, what: &str, mut look: impl FnMut() -> Result<(), String>) {
        let began = Instant::now();
        while let Err(found) = look() {
            let picture = self.picture();
            assert!(
                began.elapsed() < PATIENCE,
                "waited for {what}, but {found}; on the screen:\n{picture}"
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn picture(&self) -> String {
        self.shown.0.lock().unwrap().lines().join("\n")
    }

    /// The terminal that top has.
    fn device(&self) -> File {
        let mut options = File::options();
        // It must not become the terminal of the test.
        options.read(true).custom_flags(OFlag::O_NOCTTY.bits());
        let path = self.file("tty");
        let file = options.open(path.trim());
        file.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn file(&self, name: &str) -> String {
        read(&self.folder.path().join(name))
    }
}

impl Drop for Terminal {
    /// A top that hangs need not notice that its terminal is gone.
    fn drop(&mut self) {
        let path = |name| self.folder.path().join(name);
        let pid = fs::read_to_string(path("pid")).unwrap_or_default();
        if let (Ok(pid), false) = (pid.trim().parse(), path("code").exists()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

fn read(path: &PathBuf) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl End {
    /// Modes, the screen that was there before, and a cursor.
    pub fn assert_restored(&self) {
        // The size may have been changed meanwhile.
        let modes = |text: &str| text.lines().skip(1).collect::<Vec<_>>().join("\n");
        assert_eq!(modes(&self.before), modes(&self.after));
        let last = |sequence: &str| self.text.rfind(sequence);
        assert!(last("\u{1b}[?1049h").is_some());
        assert!(last("\u{1b}[?1049l") > last("\u{1b}[?1049h"));
        assert!(last("\u{1b}[?25h") > last("\u{1b}[?25l"));
    }
}
