//! `lockstep top` in a pseudo-terminal: `script` of util-linux makes it, a shell in it records
//! the terminal's modes before and after.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest that anything may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);

/// `$0` is lockstep, `$1` the folder, the rest top's arguments.
const SHELL: &str = r#"
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
    script: Child,
    keys: ChildStdin,
    shown: Arc<(Mutex<Vec<u8>>, Condvar)>,
    reader: JoinHandle<()>,
    folder: tempfile::TempDir,
    /// What was looked at already.
    seen: usize,
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
            .spawn()
            .expect("script of util-linux runs");
        let shown = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let mut output = script.stdout.take().unwrap();
        let to = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut piece) {
                to.0.lock().unwrap().extend_from_slice(&piece[..length]);
                to.1.notify_all();
            }
        });
        Self {
            keys: script.stdin.take().unwrap(),
            script,
            shown,
            reader,
            folder,
            seen: 0,
        }
    }

    /// Waits until this was drawn, after what was waited for before.
    pub fn wait_for(&mut self, words: &str) {
        let shown = self.shown.0.lock().unwrap();
        let from = self.seen;
        let found = |shown: &Vec<u8>| {
            let mut all = shown[from..].windows(words.len());
            all.position(|piece| piece == words.as_bytes())
        };
        let (shown, waited) = self
            .shown
            .1
            .wait_timeout_while(shown, PATIENCE, |shown| found(shown).is_none())
            .unwrap();
        let at = found(&shown);
        let text = String::from_utf8_lossy(&shown[from..]).into_owned();
        assert!(!waited.timed_out(), "{words:?} was not drawn: {text:?}");
        self.seen += at.unwrap() + words.len();
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

    fn file(&self, name: &str) -> String {
        read(&self.folder.path().join(name))
    }

    /// Waits until it has ended.
    pub fn end(mut self) -> End {
        self.script.wait().unwrap();
        self.reader.join().unwrap();
        let file = |name: &str| read(&self.folder.path().join(name));
        End {
            code: file("code").trim().parse().unwrap(),
            text: String::from_utf8_lossy(&self.shown.0.lock().unwrap()).into_owned(),
            before: file("before"),
            after: file("after"),
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
