//! Sessions between a scripted client and a scripted primary, over pipes.

mod alone;
mod logins;
mod passing;
mod random;
mod slots;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::command::Command;
use lockstep_wire::frame::{self, Frame};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{Session, Startup};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::login::{self, Reach, Refused};
use super::pass::{self, Arrival};
use super::standing;
use super::stop::{self, Stopper};
use super::transport::Transport;
use super::upstream_leg::{Primary, PrimaryAddress};
use crate::session::{
    After, Canceled, Client, Decision, Facts, Needs, SlotCommands, Standing, Stream, Terminated,
};
use crate::slot_sql::Listed;
use crate::spare::Scarce;

/// Bytes that a pipe holds.
const PIPE: usize = 1024;

/// Decides by the command's last word.
#[derive(Default)]
struct Scripted {
    seen: Mutex<Vec<String>>,
    /// Ends the session.
    terminate: watch::Sender<Option<Report>>,
    /// Cancels what is being decided.
    cancel: watch::Sender<()>,
    /// A decision that would never come was given up.
    given_up: Arc<AtomicBool>,
    /// Sessions keep their connection to the primary while they stream.
    keeps: AtomicBool,
    /// Something can be given up for a client.
    gives: AtomicBool,
    /// Slots of the relay.
    listed: Mutex<Vec<Listed>>,
}

impl Scripted {
    fn note(&self, what: impl Into<String>) {
        self.seen.lock().unwrap().push(what.into());
    }

    /// The relay has a slot of this name.
    fn kept(&self, name: &str) {
        self.listed.lock().unwrap().push(Listed {
            name: name.to_owned(),
            ..Listed::default()
        });
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl SlotCommands for Scripted {
    type Stream = Echo;

    fn needs(&self, _: &Facts, command: &Command, text: &str) -> Needs {
        self.note(text);
        match command {
            Command::DropReplicationSlot { .. } => Needs::Standing,
            Command::ReadReplicationSlot { .. } => Needs::StandingNow,
            _ => Needs::Nothing,
        }
    }

    async fn decide(
        &self,
        _: &Facts,
        standing: Option<&Standing>,
        _: &Command,
        text: &str,
    ) -> Decision<Echo> {
        assert!(standing.is_none_or(|standing| standing.database == "db"));
        if text.ends_with("never") {
            let _given_up = GivenUp(Arc::clone(&self.given_up));
            std::future::pending::<()>().await;
        }
        if text.ends_with("reply") {
            return Decision::Reply(done("REPLIED"));
        }
        match text.ends_with("stream") {
            true => Decision::Stream(Echo),
            false => Decision::Pass,
        }
    }

    fn listed(&self) -> Vec<Listed> {
        self.listed.lock().unwrap().clone()
    }

    async fn short_of(&self, scarce: Scarce) -> bool {
        self.note(format!("short of {scarce:?}"));
        self.gives.swap(false, Ordering::Relaxed)
    }

    fn opened(&self, facts: &Facts) -> Terminated {
        self.note(format!("opened {}", facts.pid));
        self.terminate.subscribe()
    }

    fn keeps_connections(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    fn left_primary(&self, facts: &Facts) {
        self.note(format!("{} left the primary", facts.pid));
    }

    fn hears_cancel(&self, _: &Facts) -> Canceled {
        self.cancel.subscribe()
    }

    fn cancel(&self, _: u32, _: &[u8]) -> bool {
        true
    }

    fn closed(&self, facts: &Facts) {
        self.note(format!("closed {}", facts.pid));
    }
}

/// A primary that is not reached for anything but logins.
struct Nowhere;

impl Primary for Nowhere {
    fn primary(&self) -> Result<PrimaryAddress, String> {
        Err("it is nowhere".to_owned())
    }
}

impl Reach for mpsc::UnboundedReceiver<DuplexStream> {
    async fn reach(&mut self, client: Client) -> Option<(Client, Transport)> {
        let primary = self.recv().await?;
        Some((client, Transport::Other(Box::new(primary))))
    }
}

/// Sends copies back until the client ends; `bye` ends the session.
struct Echo;

impl Stream for Echo {
    async fn run(self, mut client: Client) -> std::io::Result<(Client, After)> {
        client
            .writer
            .write_all(&back(Backend::CopyBothResponse))
            .await?;
        loop {
            client.writer.flush().await?;
            let tag = client.reader.read_u8().await?;
            let length = client.reader.read_u32().await? as usize;
            let mut body = vec![0; length - 4];
            client.reader.read_exact(&mut body).await?;
            match (tag, &body[..]) {
                (b'd', b"bye") => return Ok((client, After::Closed)),
                (b'd', body) => {
                    client
                        .writer
                        .write_all(&back(Backend::CopyData(body)))
                        .await?
                }
                _ => break,
            }
        }
        let mut out = back(Backend::CopyDone);
        out.extend(done("START_REPLICATION"));
        client.writer.write_all(&out).await?;
        client.writer.flush().await?;
        Ok((client, After::Idle))
    }
}

/// A message of the server.
fn back(message: Backend<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

/// The end of a command.
fn done(tag: &str) -> Vec<u8> {
    let mut out = back(Backend::CommandComplete(tag));
    Backend::ReadyForQuery(b'I').encode(&mut out);
    out
}

/// A message of the client.
fn front(message: Frontend<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

fn query(text: &str) -> Vec<u8> {
    front(Frontend::Query(text))
}

/// A message that only has a tag and a body.
fn other(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, tag, |out| out.extend_from_slice(body));
    out
}

fn notice(text: &str) -> Vec<u8> {
    back(Backend::NoticeResponse(Report::error("00000", text)))
}

fn start(parameters: &[(&str, &str)]) -> (Session, Vec<u8>) {
    let session = Session::new(0, parameters);
    let mut packet = Vec::new();
    Startup::Session(session.clone()).encode(&mut packet);
    (session, packet)
}

/// What the primary says when it lets somebody in.
fn welcome() -> Vec<u8> {
    let mut out = back(Backend::AuthenticationOk);
    Backend::ParameterStatus {
        name: "server_version",
        value: "15.20",
    }
    .encode(&mut out);
    Backend::BackendKeyData {
        process: 7,
        secret: &[1, 2, 3, 4],
    }
    .encode(&mut out);
    Backend::ReadyForQuery(b'I').encode(&mut out);
    out
}

/// What the primary answers about a session with this database.
fn standing(database: Option<&str>) -> Vec<u8> {
    let identity = [Some("7"), Some("1"), Some("0/1"), database];
    let mut out = Vec::new();
    for row in [
        &identity[..],
        &[Some("UTF8")],
        &[Some("ISO, MDY")],
        &[Some("postgres")],
        &[Some("1")],
        &[Some("UTC")],
        &[Some("hex")],
        &[Some("off")],
        &[Some("C")],
        &[Some("[\"pg_catalog\"]")],
        &[Some("16384")],
        &[Some("10")],
        &[Some(
            "{\"TimeZone\":\"UTC\",\"search_path\":\"app, public\"}",
        )],
    ] {
        let values = row.iter().map(|value| value.map(str::as_bytes)).collect();
        Backend::DataRow(values).encode(&mut out);
        out.extend(done("SHOW"));
    }
    out
}

const LOGICAL: &[(&str, &str)] = &[
    ("user", "me"),
    ("database", "db"),
    ("replication", "database"),
];
const USUAL: &[(&str, &str)] = &[("user", "me"), ("database", "db")];

/// A session under way.
struct Scene {
    client: DuplexStream,
    primary: DuplexStream,
    /// Where the relay reaches the primary next.
    primaries: mpsc::UnboundedSender<DuplexStream>,
    commands: Arc<Scripted>,
    stopper: Stopper,
    session: JoinHandle<()>,
    /// Bytes written at a time.
    piece: usize,
}

impl Scene {
    /// The start packet has been sent and nothing else has happened.
    async fn begin(parameters: &[(&str, &str)]) -> Self {
        let (client, client_end) = duplex(PIPE);
        let (mut primary, primary_end) = duplex(PIPE);
        let (primaries, reached) = mpsc::unbounded_channel();
        primaries.send(primary_end).unwrap();
        let commands = Arc::new(Scripted::default());
        let (stopper, stop) = stop::channel();
        let (start, packet) = start(parameters);
        let length = packet.len();
        let arrival = Arrival {
            id: 1,
            peer: None,
            start,
        };
        let theirs = Arc::clone(&commands);
        let session = tokio::spawn(async move {
            let client = Transport::Other(Box::new(client_end)).client();
            let mut told = stop.clone();
            let ours = (&*theirs, &Refused::default());
            let login = login::log_in(ours, client, reached, &arrival, &mut told).await;
            if let Some(begun) = login {
                pass::serve((&theirs, &Nowhere), begun, arrival, stop).await;
            }
        });
        assert_eq!(read(&mut primary, length).await, packet);
        Self {
            client,
            primary,
            primaries,
            commands,
            stopper,
            session,
            piece: PIPE,
        }
    }

    /// A session that the primary has let in.
    async fn ready(parameters: &[(&str, &str)]) -> Self {
        let mut scene = Self::begin(parameters).await;
        scene.primary_says(&welcome()).await;
        scene
    }

    /// The relay asks the primary about the session, and the client notices nothing.
    async fn is_asked(&mut self) {
        self.is_asked_and(&standing(Some("db"))).await;
    }

    /// The relay asks the primary, which says this.
    async fn is_asked_and(&mut self, said: &[u8]) {
        let questions = standing::questions();
        assert_eq!(read(&mut self.primary, questions.len()).await, questions);
        write(&mut self.primary, said, self.piece).await;
    }

    /// The client sends this and the primary gets it.
    async fn passes_up(&mut self, bytes: &[u8]) {
        write(&mut self.client, bytes, self.piece).await;
        assert_eq!(read(&mut self.primary, bytes.len()).await, bytes);
    }

    /// The primary sends this and the client gets it.
    async fn primary_says(&mut self, bytes: &[u8]) {
        write(&mut self.primary, bytes, self.piece).await;
        self.client_gets(bytes).await;
    }

    /// The client sends this.
    async fn client_says(&mut self, bytes: &[u8]) {
        write(&mut self.client, bytes, self.piece).await;
    }

    /// The client gets exactly this next.
    async fn client_gets(&mut self, bytes: &[u8]) {
        assert_eq!(read(&mut self.client, bytes.len()).await, bytes);
    }

    /// The client gets an error with this severity and state.
    async fn client_gets_error(&mut self, severity: &str, sqlstate: &str) -> Report {
        let (tag, body) = message(&mut self.client).await;
        let parsed = Backend::parse(Frame { tag, body: &body });
        let Ok(Backend::ErrorResponse(report)) = parsed else {
            panic!("{parsed:?}");
        };
        assert_eq!((&*report.severity, &*report.sqlstate), (severity, sqlstate));
        report
    }

    /// Both connections end with nothing more said, and the session as well.
    async fn ends(mut self) -> Arc<Scripted> {
        assert_eq!(rest(&mut self.client).await, b"");
        drop(self.client);
        assert_eq!(rest(&mut self.primary).await, b"");
        drop(self.primary);
        ended(self.session).await;
        self.commands
    }

    /// Lets everything happen that can.
    async fn settle(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

/// Writes in pieces, each of which is seen by itself.
async fn write(stream: &mut DuplexStream, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        comes(stream.write_all(piece)).await;
        tokio::task::yield_now().await;
    }
}

/// What does not come in this time does not come: a test that fails must end.
const PATIENCE: Duration = Duration::from_secs(60);

async fn comes<T>(what: impl Future<Output = std::io::Result<T>>) -> T {
    timeout(PATIENCE, what)
        .await
        .expect("nothing came")
        .unwrap()
}

/// The session is over.
async fn ended(session: JoinHandle<()>) {
    timeout(PATIENCE, session)
        .await
        .expect("it goes on")
        .unwrap();
}

async fn read(stream: &mut DuplexStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    comes(stream.read_exact(&mut bytes)).await;
    bytes
}

async fn rest(stream: &mut DuplexStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    comes(stream.read_to_end(&mut bytes)).await;
    bytes
}

async fn message(stream: &mut DuplexStream) -> (u8, Vec<u8>) {
    let tag = comes(stream.read_u8()).await;
    let length = comes(stream.read_u32()).await as usize;
    (tag, read(stream, length - 4).await)
}
