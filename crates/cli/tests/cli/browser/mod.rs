//! A headless browser that tests drive: Chromium, through chromedriver's WebDriver protocol.
//!
//! WebDriver is JSON over HTTP on the loopback. The few commands that are needed here take less
//! code than a client library brings dependencies, so this speaks it itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// A browser with one window. Everything that it writes is in a folder of its own; both are
/// gone when this is dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _folder: TempDir,
}

impl Browser {
    /// Starts one; None, and says so, where there is no chromedriver.
    pub fn start() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        // Ends with the thread that asks for it, also when the test is killed.
        let spawned = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "chromedriver", "--port=0"])
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut driver = spawned.unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = loop {
            let Some(Ok(line)) = lines.next() else {
                let _ = driver.wait();
                assert!(
                    std::env::var_os("CI").is_none(),
                    "there is no chromedriver; scripts/setup test installs it"
                );
                println!("SKIP: there is no chromedriver (Debian's chromium-driver)");
                return None;
            };
            let word = line.rsplit(' ').next().unwrap_or_default();
            if line.contains("started successfully") {
                break word.trim_end_matches('.').parse().unwrap();
            }
        };
        // It would end if nobody read what it says.
        std::thread::spawn(move || lines.count());
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
            _folder: folder,
        };
        let made = browser.command("POST", "/session", &browser.wishes());
        browser.session = made["sessionId"].as_str().unwrap().to_owned();
        Some(browser)
    }

    fn wishes(&self) -> Value {
        let data = self._folder.path().join("data");
        let data = format!("--user-data-dir={}", data.display());
        json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-quic", "--no-first-run", "--disable-background-networking",
                "--disable-component-update", "--disable-sync", "--disable-default-apps",
                "--disable-crash-reporter", "--no-proxy-server",
                // Ends when chromedriver does, however that ends.
                "--remote-debugging-pipe", "--window-size=1280,900", data,
            ]},
        }}})
    }

    /// Sends a command and returns its value.
    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = match method {
            "GET" | "DELETE" => String::new(),
            _ => body.to_string(),
        };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut text = vec![0; length];
        reader.read_exact(&mut text).unwrap();
        let answer: Value = serde_json::from_slice(&text).unwrap();
        let value = answer["value"].clone();
        assert!(
            value.get("error").is_none_or(Value::is_null),
            "{path}: {value}"
        );
        value
    }

    fn of_session(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        self.command(method, &path, body)
    }

    /// Opens a page.
    pub fn open(&self, address: &str) {
        self.of_session("POST", "/url", &json!({ "url": address }));
    }

    /// The body of a function that runs in the page.
    pub fn run(&self, script: &str) -> Value {
        let body = json!({ "script": script, "args": [] });
        self.of_session("POST", "/execute/sync", &body)
    }

    /// What a script returns, as text.
    pub fn text(&self, script: &str) -> String {
        self.run(script).as_str().unwrap_or_default().to_owned()
    }

    /// Presses and releases a key; see the table of WebDriver.
    pub fn press(&self, key: char, shift: bool) {
        const SHIFT: char = '\u{e008}';
        let mut actions = vec![
            json!({"type": "keyDown", "value": key}),
            json!({"type": "keyUp", "value": key}),
        ];
        if shift {
            actions.insert(0, json!({"type": "keyDown", "value": SHIFT}));
            actions.push(json!({"type": "keyUp", "value": SHIFT}));
        }
        let body = json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]});
        self.of_session("POST", "/actions", &body);
    }

    /// A command of Chromium's own protocol.
    pub fn chromium(&self, command: &str, params: Value) -> Value {
        let body = json!({ "cmd": command, "params": params });
        self.of_session("POST", "/goog/cdp/execute", &body)
    }

    /// A window of this size, as that of a phone.
    pub fn resize(&self, width: u32, height: u32, mobile: bool) {
        self.chromium(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}),
        );
    }

    /// What the page can ask about what people prefer, such as `prefers-color-scheme`.
    pub fn prefer(&self, name: &str, value: &str) {
        let features = json!([{"name": name, "value": value}]);
        self.chromium(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// The whole page as a picture.
    pub fn picture(&self, path: &Path) {
        self.chromium("Emulation.setScrollbarsHidden", json!({ "hidden": true }));
        let params = json!({"format": "png", "captureBeyondViewport": true});
        let picture = self.chromium("Page.captureScreenshot", params);
        let mut decoder = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(path).unwrap())
            .spawn()
            .unwrap();
        let data = picture["data"].as_str().unwrap();
        let mut input = decoder.stdin.take().unwrap();
        input.write_all(data.as_bytes()).unwrap();
        drop(input);
        assert!(decoder.wait().unwrap().success());
    }

    /// What the browser has complained of since it was asked last.
    pub fn complaints(&self) -> Vec<String> {
        let said = self.of_session("POST", "/se/log", &json!({"type": "browser"}));
        let said = said.as_array().cloned().unwrap_or_default();
        said.iter().map(Value::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.of_session("DELETE", "", &Value::Null);
        }
        let group = Pid::from_raw(self.driver.id().try_into().unwrap());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.driver.wait();
    }
}
