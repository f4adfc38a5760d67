//! A relay's serving side in this process, in front of a private server.
//!
//! Each test program uses a part of it.
#![allow(dead_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests;
use lockstep_lab::package::Package;
use lockstep_lab::server::{Server, Settings};
use lockstep_relay::serve::{
    ConsoleLogin, ConsoleService, Limits, Listen, Listener, PrimaryAddress, Rights, Service,
    Stopper, Terms, Tls, stop,
};
use lockstep_relay::session::{
    After, Canceled, Client, Decision, Facts, Needs, SlotCommands, Standing, Stream, Terminated,
};
use lockstep_wire::backend::{Backend, Column, Report, TEXT};
use lockstep_wire::command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A primary with room for replication.
pub fn primary(lab: &Lab, more: &[(&str, &str)]) -> Server {
    let settings: Settings = [
        ("shared_buffers", "16MB"),
        ("max_connections", "20"),
        ("wal_level", "logical"),
    ]
    .iter()
    .chain(more)
    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
    .collect();
    lab.primary("primary", None, &settings).unwrap()
}

/// Puts rules before all others of `pg_hba.conf`.
pub fn rules(server: &Server, rules: &str) {
    let path = server.data().join("pg_hba.conf");
    let before = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{rules}\n{before}")).unwrap();
    server.reload().unwrap();
}

/// Answers one query and streams one slot; everything else is the primary's.
#[derive(Default)]
pub struct Mock {
    /// What happened, in words.
    pub seen: Mutex<Vec<String>>,
}

impl Mock {
    fn note(&self, what: String) {
        self.seen.lock().unwrap().push(what);
    }
}

/// Sends a few messages, then ends the copy with the client.
pub struct MockStream;

impl SlotCommands for Mock {
    type Stream = MockStream;

    fn needs(&self, facts: &Facts, command: &command::Command, text: &str) -> Needs {
        self.note(format!("{}: {text}", facts.database));
        match command {
            command::Command::Sql | command::Command::IdentifySystem => Needs::Nothing,
            _ => Needs::Standing,
        }
    }

    async fn decide(
        &self,
        facts: &Facts,
        standing: Option<&Standing>,
        _: &command::Command,
        text: &str,
    ) -> Decision<MockStream> {
        // A session of physical replication is in no database.
        if let Some(standing) = standing {
            assert_eq!(standing.database, facts.database);
        }
        match text.trim_end_matches(';') {
            "DROP_REPLICATION_SLOT ours" => {
                let mut out = Vec::new();
                Backend::CommandComplete("DROP_REPLICATION_SLOT").encode(&mut out);
                Backend::ReadyForQuery(b'I').encode(&mut out);
                Decision::Reply(out)
            }
            "READ_REPLICATION_SLOT ours" => Decision::Reply(row("slot_type", "ours")),
            text if text.contains("\"ours\"") => Decision::Stream(MockStream),
            _ => Decision::Pass,
        }
    }

    fn opened(&self, facts: &Facts) -> Terminated {
        self.note(format!("opened {} {}", facts.user, facts.database));
        watch::channel(None).1
    }

    fn hears_cancel(&self, _: &Facts) -> Canceled {
        watch::channel(()).1
    }

    fn cancel(&self, _: u32, _: &[u8]) -> bool {
        true
    }

    fn closed(&self, facts: &Facts) {
        self.note(format!("closed {} {}", facts.user, facts.database));
    }
}

fn row(name: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    Backend::RowDescription(vec![Column { name, kind: TEXT }]).encode(&mut out);
    Backend::DataRow(vec![Some(value.as_bytes())]).encode(&mut out);
    Backend::CommandComplete("SELECT 1").encode(&mut out);
    Backend::ReadyForQuery(b'I').encode(&mut out);
    out
}

impl Stream for MockStream {
    async fn run(self, mut client: Client) -> std::io::Result<(Client, After)> {
        let mut out = Vec::new();
        Backend::CopyBothResponse.encode(&mut out);
        for piece in ["one", "two", "three"] {
            let mut data = vec![b'w'];
            data.extend([0; 24]);
            data.extend(piece.as_bytes());
            Backend::CopyData(&data).encode(&mut out);
        }
        client.writer.write_all(&out).await?;
        client.writer.flush().await?;
        loop {
            let tag = client.reader.read_u8().await?;
            let length = client.reader.read_u32().await?;
            let mut body = vec![0; length as usize - 4];
            client.reader.read_exact(&mut body).await?;
            match tag {
                b'c' => break,
                b'X' => return Ok((client, After::Closed)),
                _ => {}
            }
        }
        let mut out = Vec::new();
        Backend::CopyDone.encode(&mut out);
        Backend::CommandComplete("COPY 0").encode(&mut out);
        Backend::CommandComplete("START_REPLICATION").encode(&mut out);
        Backend::ReadyForQuery(b'I').encode(&mut out);
        client.writer.write_all(&out).await?;
        client.writer.flush().await?;
        Ok((client, After::Idle))
    }
}

/// Says the query and the rights back.
pub struct Echo;

impl ConsoleService for Echo {
    fn answer(&self, rights: &Rights, query: &str) -> Vec<u8> {
        assert!(!query.contains("panic"), "as asked");
        let text = format!(
            "{} {} {} {}: {query}",
            rights.user, rights.superuser, rights.monitor, rights.admin
        );
        let mut out = Vec::new();
        Backend::RowDescription(vec![Column {
            name: "said",
            kind: TEXT,
        }])
        .encode(&mut out);
        Backend::DataRow(vec![Some(text.as_bytes())]).encode(&mut out);
        Backend::CommandComplete("SELECT 1").encode(&mut out);
        out
    }

    fn columns(&self, _: &str) -> Result<Vec<Column<'static>>, Report> {
        Ok(vec![Column {
            name: "said",
            kind: TEXT,
        }])
    }
}

/// How a relay differs from the usual one.
pub struct Options {
    pub tls: Option<Arc<Tls>>,
    pub tls_required: bool,
    pub limits: Limits,
    pub listen: Listen,
    pub address: PrimaryAddress,
}

impl Options {
    /// Speaks to the server through its socket.
    pub fn of(server: &Server) -> Self {
        Self::at(server.sockets(), server.port())
    }

    /// Speaks to whatever has a socket in this folder.
    pub fn at(folder: &Path, port: u16) -> Self {
        Self {
            tls: None,
            tls_required: false,
            limits: Limits::default(),
            listen: Listen::new("127.0.0.1", 0),
            address: PrimaryAddress {
                host: folder.display().to_string(),
                hostaddr: None,
                port,
                tls: None,
            },
        }
    }
}

/// A relay. Dropping it stops it.
pub struct Relay {
    runtime: Option<Runtime>,
    stopper: Option<Stopper>,
    running: Option<JoinHandle<()>>,
    pub mock: Arc<Mock>,
    pub terms: watch::Sender<Arc<Terms>>,
    pub port: u16,
}

impl Relay {
    pub fn start(options: Options) -> Self {
        let runtime = Runtime::new().unwrap();
        let mock = Arc::new(Mock::default());
        let address = options.address;
        let terms = watch::Sender::new(Arc::new(Terms {
            console_login: ConsoleLogin {
                database: "postgres".to_owned(),
                admin_role: Some("keeper".to_owned()),
            },
            tls: options.tls,
            tls_required: options.tls_required,
        }));
        let service = Arc::new(Service {
            commands: Arc::clone(&mock),
            console: Arc::new(Echo),
            terms: terms.subscribe(),
            primary: Box::new(move || Ok(address.clone())),
            limits: options.limits,
        });
        let listener = runtime.block_on(Listener::bind(&[options.listen])).unwrap();
        let port = match listener.places().first() {
            Some(Listen::Tcp { port, .. } | Listen::Socket { port, .. }) => *port,
            None => panic!("it listens nowhere"),
        };
        let (stopper, stop) = stop::channel();
        let running = runtime.spawn(listener.run(service, stop));
        Self {
            runtime: Some(runtime),
            stopper: Some(stopper),
            running: Some(running),
            mock,
            terms,
            port,
        }
    }

    pub fn stop(&mut self) {
        if let Some(stopper) = self.stopper.take() {
            stopper.stop();
        }
        if let (Some(runtime), Some(running)) = (&self.runtime, self.running.take()) {
            runtime.block_on(running).unwrap();
        }
    }

    /// conninfo with `more` behind.
    pub fn conninfo(&self, user: &str, more: &str) -> String {
        format!(
            "host=127.0.0.1 port={} user={user} dbname=postgres {more}",
            self.port
        )
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How long a program may take, in seconds: a test that fails must end.
const PATIENCE: &str = "120";

/// A client program of the package, without anything inherited.
pub fn program(name: &str) -> Command {
    let path: PathBuf = Package::find(for_tests::major().unwrap())
        .unwrap()
        .program(name);
    // A shell that starts tests in the background has SIGINT ignored, and newer releases of
    // timeout then keep it from the program.
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal", "/usr/bin/timeout", PATIENCE]);
    command.arg(path);
    command.env_clear();
    command.env("PATH", "/usr/bin:/bin");
    command.env("LC_ALL", "C.UTF-8");
    command.env("HOME", "/nonexistent");
    command.stdin(Stdio::null());
    command
}

/// psql with one command after another; unaligned rows without headers.
pub fn psql(conninfo: &str, commands: &[&str]) -> Command {
    let mut psql = program("psql");
    psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", conninfo]);
    for command in commands {
        psql.args(["-c", command]);
    }
    psql
}

/// Runs it with `input`.
pub fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // It may have failed before it wanted anything.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    })
}

/// What it prints; it must succeed.
pub fn printed(command: Command) -> String {
    let output = run(command, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

/// What it complains about; it must fail.
pub fn complaint(command: Command) -> String {
    let output = run(command, &[]);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A certificate for 127.0.0.1, signed by itself, and its key, both new; None if there is
/// no openssl.
pub fn certificate(folder: &Path, authority: bool) -> Option<(PathBuf, PathBuf)> {
    let (certificate, key) = (folder.join("server.crt"), folder.join("server.key"));
    let constraints = match authority {
        true => "basicConstraints=critical,CA:TRUE",
        false => "basicConstraints=critical,CA:FALSE",
    };
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext"])
        .arg("subjectAltName=DNS:localhost,IP:127.0.0.1")
        .args(["-addext", constraints])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    match made {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            Some((certificate, key))
        }
        Err(_) => {
            eprintln!("SKIP: there is no openssl");
            None
        }
    }
}
