//! A `lockstep serve` that runs, and requests to it by hand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;

pub use crate::relay_support::until;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server of ours; killed when dropped.
pub struct Serve {
    child: Child,
    /// `127.0.0.1:…`.
    pub address: String,
    said: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn parse(text: &str) -> Self {
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("{text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines();
        let mut pairs = lines.filter_map(|line| line.split_once(": "));
        pairs
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }
}

impl Serve {
    /// Starts one on a free port, and waits until it listens.
    pub fn start(args: &[&str]) -> Self {
        Self::start_as(&["serve"], args)
    }

    /// Starts a command that serves HTTP.
    pub fn start_as(command_words: &[&str], args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.args(command_words).args(args);
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let hears = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                hears.lock().unwrap().push(line);
            }
        });
        let mut serve = Self {
            child,
            address: String::new(),
            said,
        };
        serve.address = until("it serves", || {
            let line = serve.logged("serving on")?;
            let (_, rest) = line.split_once("://")?;
            Some(rest.split('/').next()?.to_owned())
        });
        serve
    }

    /// The first line of the log with these words.
    pub fn logged(&self, words: &str) -> Option<String> {
        let said = self.said.lock().unwrap();
        said.iter().find(|line| line.contains(words)).cloned()
    }

    pub fn signal(&self, signal: Signal) {
        signal::kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        until("it ends", || self.child.try_wait().unwrap())
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes, and reads until the other end closes.
    pub fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect();
        // It may answer and close before it has all.
        let _ = stream.write_all(request.as_bytes());
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// A request with more headers.
    pub fn ask(&self, line: &str, headers: &[&str]) -> Answer {
        let mut request = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            request.push_str("Host: localhost\r\n");
        }
        for header in headers {
            request.push_str(&format!("{header}\r\n"));
        }
        Answer::parse(&self.exchange(&format!("{request}\r\n")))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path}"), &[])
    }

    pub fn state(&self) -> Value {
        self.get("/api/state").json()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
