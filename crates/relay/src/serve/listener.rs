//! Where the relay listens, and its connections from first to last.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_wire::backend::Report;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::authenticate::{Begun, turn_away};
use super::console_session::{self, Admitted, ConsoleLogin};
use super::doorway::{DoorLimits, Doorway, Visit};
use super::front::{Arrived, Encryption, arrive};
use super::login::{self, Reach, Refused};
use super::pass::{self, Arrival};
use super::places::{Places, Purpose};
use super::rights::ConsoleService;
use super::stop::Stop;
use super::tls::Tls;
use super::transport::{Transport, close_with, message};
use super::upstream_leg::Primary;
use crate::session::{Client, SlotCommands};

/// Most sessions, unless told otherwise.
pub const SESSIONS: usize = 1000;

/// Connections that are not logged in: so many, or as many as sessions if that is more. Those
/// that cancel a query and those that are being refused are among them.
const AT_THE_DOOR: usize = 100;

/// Logins that may be under way at the primary, each with a connection of it, and how many of
/// them may be those of one address.
const LOGINS: DoorLimits = DoorLimits {
    all: 32,
    from_one_address: 16,
};

/// How long a login has for itself where others wait.
pub(super) const LOGIN_GRACE: Duration = Duration::from_secs(1);

/// How long a client may take to begin, unless told otherwise.
pub const STARTUP_DEADLINE: Duration = Duration::from_secs(10);

/// How long the whole login may take, unless told otherwise: as `authentication_timeout` has it.
pub const LOGIN_DEADLINE: Duration = Duration::from_secs(60);

/// How long sessions may take to end, unless told otherwise.
pub const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait when no connection can be accepted, as when files run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A connection that says nothing is asked whether it is there after this time.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
/// Interval at which a connection that stays silent is asked again.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
/// Number of questions without an answer after which a connection counts as gone.
const KEEPALIVE_TRIES: u32 = 6;

/// A place to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP; with port 0 the system chooses one.
    Tcp { host: String, port: u16 },
    /// A Unix socket, named by the folder and the port as libpq does.
    Socket { folder: PathBuf, port: u16 },
}

impl Listen {
    /// What `listen` of the configuration means: a path is a socket's folder.
    pub fn new(host: &str, port: u16) -> Self {
        match host.starts_with('/') {
            true => Self::Socket {
                folder: host.into(),
                port,
            },
            false => Self::Tcp {
                host: host.to_owned(),
                port,
            },
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "\"{host}\" port {port}"),
            Self::Socket { folder, port } => write!(f, "{} port {port}", folder.display()),
        }
    }
}

/// Where it is not possible to listen, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {place}: {source}")]
pub struct ListenError {
    pub place: Listen,
    pub source: io::Error,
}

/// What serves sessions.
pub struct Service<O: SlotCommands, C: ConsoleService> {
    /// Decides what becomes of replication commands.
    pub commands: Arc<O>,
    /// Answers in database `lockstep`.
    pub console: Arc<C>,
    /// What a session that begins has to keep to.
    pub terms: watch::Receiver<Arc<Terms>>,
    pub primary: Box<dyn Primary>,
    /// Most sessions, and the times that they may take.
    pub limits: Limits,
}

/// What the operator may change while the relay runs. A session keeps to what was in force
/// when it connected.
#[derive(Debug, Clone)]
pub struct Terms {
    /// How console sessions log in.
    pub console_login: ConsoleLogin,
    /// TLS towards clients; None is none.
    pub tls: Option<Arc<Tls>>,
    /// Sessions over TCP must use it.
    pub tls_required: bool,
}

/// How many connections there may be, and how long they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most sessions at a time.
    pub sessions: usize,
    /// How long a client may take to say what it wants, encryption included.
    pub startup: Duration,
    /// How long it may take until the client is logged in.
    pub login: Duration,
    /// How long sessions may take to end once they have been told to.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: SESSIONS,
            startup: STARTUP_DEADLINE,
            login: LOGIN_DEADLINE,
            stop: STOP_PATIENCE,
        }
    }
}

/// Bound places. Dropping it closes them.
pub struct Listener {
    bound: Vec<Bound>,
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes a socket's file.
struct SocketFile(PathBuf, u16);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Binds all places. A name that has several addresses is several places.
    pub async fn bind(places: &[Listen]) -> Result<Self, ListenError> {
        let mut bound = Vec::new();
        for place in places {
            let failed = |source| ListenError {
                place: place.clone(),
                source,
            };
            match place {
                Listen::Tcp { host, port } => {
                    let addresses = tokio::net::lookup_host((host.as_str(), *port)).await;
                    for address in addresses.map_err(failed)? {
                        let listener = TcpListener::bind(address).await.map_err(failed)?;
                        bound.push(Bound::Tcp(listener));
                    }
                }
                Listen::Socket { folder, port } => {
                    bound.push(bind_socket(folder, *port).map_err(failed)?);
                }
            }
        }
        Ok(Self { bound })
    }

    /// Where it listens, with ports that the system has chosen.
    pub fn places(&self) -> Vec<Listen> {
        self.bound.iter().filter_map(Bound::place).collect()
    }

    /// Accepts connections and serves them until told to stop, then waits for sessions
    /// to end, but not longer than [`Limits::stop`].
    pub async fn run<O: SlotCommands, C: ConsoleService>(
        self,
        service: Arc<Service<O, C>>,
        stop: Stop,
    ) {
        let mut accepting = JoinSet::new();
        let at_the_door = service.limits.sessions.max(AT_THE_DOOR);
        let shared = Arc::new(Serving {
            places: Places::new(service.limits.sessions),
            doorway: Arc::new(Doorway::new(DoorLimits {
                all: at_the_door,
                from_one_address: at_the_door / 2,
            })),
            logins: Arc::new(Doorway::new(LOGINS)),
            refused: Refused::default(),
            next: AtomicU64::new(1),
            service,
        });
        for bound in self.bound {
            accepting.spawn(accept_all(bound, Arc::clone(&shared), stop.clone()));
        }
        while accepting.join_next().await.is_some() {}
    }
}

fn bind_socket(folder: &Path, port: u16) -> io::Result<Bound> {
    let path = folder.join(format!(".s.PGSQL.{port}"));
    // A file that nobody listens on is what a killed relay has left.
    let left_over = std::os::unix::net::UnixStream::connect(&path)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if left_over {
        fs::remove_file(&path)?;
    }
    let listener = UnixListener::bind(&path)?;
    let file = SocketFile(path, port);
    // As a server's socket: the folder decides who may connect.
    fs::set_permissions(&file.0, Permissions::from_mode(0o777))?;
    Ok(Bound::Unix(listener, file))
}

impl Bound {
    fn place(&self) -> Option<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| Listen::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            }),
            Self::Unix(_, file) => Some(Listen::Socket {
                folder: file.0.parent()?.to_owned(),
                port: file.1,
            }),
        }
    }

    async fn accept(&self) -> io::Result<(Transport, Option<SocketAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // It fails where the client has gone already, which is found out later.
                let _ = keep_alive(&stream);
                Ok((Transport::Tcp(stream), Some(peer)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Transport::Unix(stream), None))
            }
        }
    }
}

/// Sends at once, and notices a peer that is gone without a word. A peer that is there
/// but takes nothing may do so for as long as it likes: a subscriber may wait for a lock.
pub(super) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// What connections share.
struct Serving<O: SlotCommands, C: ConsoleService> {
    service: Arc<Service<O, C>>,
    places: Places,
    doorway: Arc<Doorway>,
    /// Clients at the door who have a connection to the primary.
    logins: Arc<Doorway>,
    /// Clients at the door that the primary has too few walsenders for.
    refused: Refused,
    next: AtomicU64,
}

async fn accept_all<O: SlotCommands, C: ConsoleService>(
    bound: Bound,
    shared: Arc<Serving<O, C>>,
    mut stop: Stop,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = bound.accept() => accepted,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            () = stop.told() => break,
        };
        let (transport, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let (theirs, stop) = (Arc::clone(&shared), stop.clone());
        let visit = shared.doorway.enter(peer.map(|peer| peer.ip()));
        connections.spawn(async move { theirs.connection(transport, peer, visit, stop).await });
    }
    drop(bound);
    let ended = timeout(shared.service.limits.stop, async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    });
    if ended.await.is_err() {
        tracing::warn!(left = connections.len(), "sessions did not end in time");
    }
    connections.shutdown().await;
}

/// A session that panics must not go unnoticed, and must not hurt others.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a session failed");
    }
}

fn too_many(most: usize) -> Report {
    Report::fatal(
        "53300",
        format!("sorry, too many clients already: the relay serves at most {most} sessions"),
    )
}

/// A client that the primary has let in.
enum Entered {
    Console(Admitted),
    Passed(Arrival, Begun),
}

async fn log_in<O: SlotCommands, C: ConsoleService>(
    (service, refused): (&Service<O, C>, &Refused),
    client: Client,
    arrival: Arrival,
    terms: &Terms,
    stop: &mut Stop,
) -> Option<Entered> {
    if arrival.purpose() == Purpose::Console {
        let login = &terms.console_login;
        let (client, primary) = (&*service.primary).reach(client).await?;
        let admitted = console_session::log_in(client, primary, &arrival, login, stop).await;
        return admitted.map(Entered::Console);
    }
    let ours = (&*service.commands, refused);
    let begun = login::log_in(ours, client, &*service.primary, &arrival, stop).await?;
    Some(Entered::Passed(arrival, begun))
}

impl Entered {
    fn purpose(&self) -> Purpose {
        match self {
            Self::Console(admitted) => admitted.purpose(),
            Self::Passed(arrival, _) => arrival.purpose(),
        }
    }

    async fn turn_away(self, report: Report) {
        match self {
            Self::Console(admitted) => admitted.turn_away(report).await,
            Self::Passed(_, begun) => turn_away(begun, report).await,
        }
    }
}

impl<O: SlotCommands, C: ConsoleService> Serving<O, C> {
    /// One connection from first to last.
    async fn connection(
        &self,
        transport: Transport,
        peer: Option<SocketAddr>,
        mut visit: Visit,
        stop: Stop,
    ) {
        let service = &self.service;
        let terms = Arc::clone(&service.terms.borrow());
        let mut told = stop.clone();
        let entering = timeout(
            service.limits.login,
            self.enter(transport, peer, &terms, &mut told),
        );
        let entered = tokio::select! {
            entered = entering => entered,
            // Without a word, as in the end of either time.
            () = visit.has_to_go() => return,
        };
        let Ok(Some(entered)) = entered else {
            return;
        };
        let Some(_place) = self.places.take(entered.purpose()) else {
            let report = too_many(service.limits.sessions);
            return entered.turn_away(report).await;
        };
        drop(visit);
        match entered {
            Entered::Console(admitted) => {
                let ours = (&service.commands, &service.console);
                console_session::serve(ours, admitted, stop).await;
            }
            Entered::Passed(arrival, begun) => {
                let ours = (&service.commands, &*service.primary);
                pass::serve(ours, begun, arrival, stop).await;
            }
        }
    }

    /// From the first byte to the end of the login. None if the client has not been let in, or
    /// wanted no session; it knows why.
    async fn enter(
        &self,
        transport: Transport,
        peer: Option<SocketAddr>,
        terms: &Terms,
        stop: &mut Stop,
    ) -> Option<Entered> {
        let service = &self.service;
        let encryption = Encryption {
            tls: terms.tls.as_deref(),
            required: terms.tls_required,
        };
        let arrived = tokio::select! {
            arrived = timeout(service.limits.startup, arrive(transport, encryption)) => arrived,
            () = stop.told() => return None,
        };
        let address = peer.map(|peer| peer.ip());
        let mut login = self.logins.enter_after(LOGIN_GRACE, address).await;
        let (transport, start) = match arrived {
            // Half a packet, or nothing: closed without a word, as a server does.
            Err(_) | Ok(Arrived::Gone) => return None,
            Ok(Arrived::Refused { transport, why }) => {
                close_with(transport.client(), &message(why)).await;
                return None;
            }
            Ok(Arrived::Cancel { transport, packet }) => {
                let commands = &*service.commands;
                pass::cancel(commands, transport, &packet, &*service.primary).await;
                return None;
            }
            Ok(Arrived::Session { transport, start }) => (transport, start),
        };
        let arrival = Arrival {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            peer,
            start,
        };
        let ours = (&**service, &self.refused);
        tokio::select! {
            entered = log_in(ours, transport.client(), arrival, terms, stop) => entered,
            () = login.has_to_go() => None,
        }
    }
}
