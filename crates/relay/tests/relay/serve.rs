//! The listener: what comes before a session, limits, TLS, and stopping. The primary is
//! scripted.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::serve_lab::{Options, Relay, certificate};
use lockstep_relay::serve::{Limits, Listen, Listener, Terms, Tls};
use lockstep_service::secret::FileError;
use lockstep_service::tls::{TlsError, TlsFiles};
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{self, Frame};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{Session, Startup};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The port in the name of the scripted primary's socket.
const PORT: u16 = 4711;

/// A primary that lets everybody in and hears one query after another. It lives as long as
/// the test.
fn scripted(folder: &Path) {
    let listener = UnixListener::bind(folder.join(format!(".s.PGSQL.{PORT}"))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(|| hear(stream.unwrap()));
        }
    });
}

fn hear(mut stream: UnixStream) -> Option<()> {
    let length = number(&mut stream)?;
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).ok()?;
    if matches!(Startup::parse(&body), Ok(Startup::CancelRequest { .. })) {
        return None;
    }
    let mut out = back(&Backend::AuthenticationOk);
    Backend::ReadyForQuery(b'I').encode(&mut out);
    stream.write_all(&out).ok()?;
    loop {
        let (tag, _) = message(&mut stream)?;
        if tag == b'Q' {
            let mut out = back(&Backend::CommandComplete("HEARD"));
            Backend::ReadyForQuery(b'I').encode(&mut out);
            stream.write_all(&out).ok()?;
        }
    }
}

fn number(stream: &mut impl Read) -> Option<usize> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).ok()?;
    Some(u32::from_be_bytes(bytes) as usize)
}

fn message(stream: &mut impl Read) -> Option<(u8, Vec<u8>)> {
    let mut tag = [0];
    stream.read_exact(&mut tag).ok()?;
    let length = number(stream)?;
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).ok()?;
    Some((tag[0], body))
}

fn back(message: &Backend<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

fn packet(startup: &Startup) -> Vec<u8> {
    let mut out = Vec::new();
    startup.encode(&mut out);
    out
}

fn start() -> Vec<u8> {
    packet(&Startup::Session(Session::new(0, &[("user", "me")])))
}

/// What a connection gets, up to its end.
fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The only message there is, an error.
fn only_error(bytes: &[u8]) -> Report {
    let (frame, length) = frame::first(bytes, 10_000).unwrap().unwrap();
    assert_eq!(length, bytes.len());
    error(frame)
}

fn error(frame: Frame<'_>) -> Report {
    match Backend::parse(frame) {
        Ok(Backend::ErrorResponse(report)) => report,
        other => panic!("{other:?}"),
    }
}

/// A session works: it begins, a query is heard, it ends.
fn works(mut stream: impl Read + Write) {
    stream.write_all(&start()).unwrap();
    session_works(&mut stream);
}

fn session_works(stream: &mut (impl Read + Write)) {
    assert_eq!(message(stream).unwrap().0, b'R');
    assert_eq!(message(stream).unwrap().0, b'Z');
    query_works(stream);
}

fn query_works(stream: &mut (impl Read + Write)) {
    let mut query = Vec::new();
    Frontend::Query("SELECT 1").encode(&mut query);
    stream.write_all(&query).unwrap();
    assert_eq!(message(stream).unwrap(), (b'C', b"HEARD\0".to_vec()));
    assert_eq!(message(stream).unwrap().0, b'Z');
}

/// A relay in front of a scripted primary.
fn relay(change: impl FnOnce(&mut Options)) -> (Relay, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    scripted(folder.path());
    let mut options = Options::at(folder.path(), PORT);
    change(&mut options);
    (Relay::start(options), folder)
}

/// What does not come in this time does not come: a test that fails must end.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(relay: &Relay) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", relay.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn what_is_no_start_of_a_session_is_refused_and_hurts_nobody() {
    let (relay, _folder) = relay(|_| {});
    let mut bystander = connect(&relay);
    bystander.write_all(&start()).unwrap();
    session_works(&mut bystander);
    let mut twice = packet(&Startup::SslRequest);
    twice.extend(packet(&Startup::SslRequest));
    let mut many = vec![0, 0, 0, 200, 0, 3, 0, 0];
    many.resize(200, b'x');
    for (sent, sqlstate) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "08P01"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "08P01"),
        (b"\0\0\0\x04", "08P01"),
        (b"\0\0\0\x07abc", "08P01"),
        (b"\x7f\xff\xff\xff", "08P01"),
        (b"\xff\xff\xff\xff", "08P01"),
        (b"\0\0\x27\x15\0\x03\0\0", "08P01"),
        (b"\0\0\0\x08\0\x02\0\0", "0A000"),
        (b"\0\0\0\x08\0\x04\0\0", "0A000"),
        (b"\0\0\0\x08\0\x03\0\0", "08P01"),
        (b"\0\0\0\x0d\0\x03\0\0user\0", "08P01"),
        (&many, "08P01"),
        (b"\0\0\0\x0c\x04\xd2\x16\x2f\0\0\0\0", "08P01"),
    ] {
        let mut stream = connect(&relay);
        stream.write_all(sent).unwrap();
        let report = only_error(&rest(&mut stream));
        assert_eq!((&*report.severity, &*report.sqlstate), ("FATAL", sqlstate));
    }
    let mut stream = connect(&relay);
    stream.write_all(&twice).unwrap();
    let answer = rest(&mut stream);
    assert_eq!(answer[0], b'N');
    assert_eq!(only_error(&answer[1..]).sqlstate, "08P01");
    query_works(&mut bystander);
}

#[test]
fn wishes_for_encryption_that_cannot_be_met_are_answered() {
    let (relay, _folder) = relay(|_| {});
    let mut stream = connect(&relay);
    for wish in [Startup::GssEncRequest, Startup::SslRequest] {
        stream.write_all(&packet(&wish)).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"N");
    }
    works(stream);
}

#[test]
fn a_cancel_request_is_forwarded_and_ends_without_a_word() {
    let (relay, _folder) = relay(|_| {});
    for secret in [vec![1, 2, 3, 4], vec![7; 32], Vec::new()] {
        let mut stream = connect(&relay);
        let request = Startup::CancelRequest { process: 7, secret };
        stream.write_all(&packet(&request)).unwrap();
        assert_eq!(rest(&mut stream), b"");
    }
}

#[test]
fn who_does_not_begin_in_time_is_left() {
    let (relay, _folder) = relay(|options| {
        options.limits.startup = Duration::from_millis(50);
    });
    for begun in [
        &b""[..],
        b"\0\0",
        b"\0\0\0\x10\0\x03",
        &packet(&Startup::GssEncRequest),
    ] {
        let mut stream = connect(&relay);
        stream.write_all(begun).unwrap();
        // It may be left before it has written.
        let answer = rest_or_reset(&mut stream);
        assert!(answer.is_empty() || answer == b"N");
    }
}

#[test]
fn sessions_beyond_the_limit_are_refused() {
    let (relay, _folder) = relay(|options| options.limits.sessions = 2);
    let mut two = [connect(&relay), connect(&relay)];
    for stream in &mut two {
        stream.write_all(&start()).unwrap();
        session_works(stream);
    }
    let mut third = connect(&relay);
    third.write_all(&start()).unwrap();
    // Only who has logged in takes a place, so only then it is known.
    assert_eq!(message(&mut third).unwrap().0, b'R');
    assert_eq!(only_error(&rest(&mut third)).sqlstate, "53300");
    // A cancel request is none.
    let mut cancel = connect(&relay);
    let request = Startup::CancelRequest {
        process: 7,
        secret: vec![1; 4],
    };
    cancel.write_all(&packet(&request)).unwrap();
    assert_eq!(rest(&mut cancel), b"");
    for stream in &mut two {
        query_works(stream);
    }
    // One place becomes free, once the relay has noticed.
    let [first, second] = two;
    drop(first);
    loop {
        let mut again = connect(&relay);
        again.write_all(&start()).unwrap();
        assert_eq!(message(&mut again).unwrap().0, b'R');
        let (tag, _) = message(&mut again).unwrap();
        if tag == b'Z' {
            break;
        }
    }
    drop(second);
}

/// Connections that say nothing, or never end their login, keep nobody out.
#[test]
fn a_flood_of_connections_pushes_out_itself() {
    let (relay, _folder) = relay(|options| options.limits.sessions = 10);
    let mut before = connect(&relay);
    before.write_all(&start()).unwrap();
    session_works(&mut before);
    let mut flood: Vec<_> = (0..400).map(|_| connect(&relay)).collect();
    for _ in 0..20 {
        works(connect(&relay));
        flood.push(connect(&relay));
    }
    // The oldest are gone, others are still there.
    assert_eq!(rest_or_reset(&mut flood[0]), b"");
    let last = flood.last_mut().unwrap();
    last.write_all(&start()).unwrap();
    session_works(last);
    query_works(&mut before);
}

#[test]
fn a_primary_that_cannot_be_reached_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let relay = Relay::start(Options::at(folder.path(), PORT));
    let mut stream = connect(&relay);
    stream.write_all(&start()).unwrap();
    let report = only_error(&rest(&mut stream));
    assert_eq!((&*report.severity, &*report.sqlstate), ("FATAL", "08001"));
    let what = format!(
        "the relay cannot reach the primary: connecting to \"{}\" port {PORT}: ",
        folder.path().display()
    );
    assert!(report.message.starts_with(&what), "{}", report.message);
}

#[test]
fn sockets_are_named_as_libpq_names_them() {
    let sockets = tempfile::tempdir().unwrap();
    let path = sockets.path().join(".s.PGSQL.6432");
    // What a killed relay leaves.
    drop(UnixListener::bind(&path).unwrap());
    let (mut relay, _folder) = relay(|options| {
        options.listen = Listen::new(&sockets.path().display().to_string(), 6432);
        // Not on a socket.
        options.tls_required = true;
    });
    works(UnixStream::connect(&path).unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let place = Listen::new(&sockets.path().display().to_string(), 6432);
    let refused = runtime.block_on(Listener::bind(&[place])).err().unwrap();
    assert_eq!(refused.source.kind(), ErrorKind::AddrInUse);
    relay.stop();
    assert!(!path.exists());
}

#[test]
fn stopping_is_told_and_waits_for_sessions_only_so_long() {
    let (mut relay, _folder) = relay(|options| {
        options.limits.stop = Duration::from_secs(2);
    });
    let mut idle = connect(&relay);
    idle.write_all(&start()).unwrap();
    session_works(&mut idle);
    let mut nobody = connect(&relay);
    nobody.write_all(b"\0\0").unwrap();
    relay.stop();
    let told = only_error(&rest(&mut idle));
    assert_eq!((&*told.severity, &*told.sqlstate), ("FATAL", "57P01"));
    assert_eq!(rest_or_reset(&mut nobody), b"");
    assert!(TcpStream::connect(("127.0.0.1", relay.port)).is_err());
}

/// A connection that is dropped with bytes unread is reset.
fn rest_or_reset(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{error}"),
    }
}

/// A client of TLS that trusts what is in the file.
fn trusting(certificate: &Path, alpn: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(certificate).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    if alpn {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    TlsConnector::from(Arc::new(config))
}

/// Connects with TLS, with or without asking first, and hands the first message over.
fn first_message(
    relay: &Relay,
    connector: &TlsConnector,
    ask: bool,
) -> std::io::Result<(u8, Vec<u8>)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", relay.port)).await?;
        if ask {
            stream.write_all(&packet(&Startup::SslRequest)).await?;
            assert_eq!(stream.read_u8().await?, b'S');
        }
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await?;
        stream.write_all(&start()).await?;
        stream.flush().await?;
        let tag = stream.read_u8().await?;
        let length = stream.read_u32().await? as usize;
        let mut body = vec![0; length - 4];
        stream.read_exact(&mut body).await?;
        Ok((tag, body))
    })
}

fn files(folder: &Path) -> TlsFiles {
    TlsFiles {
        certificate: folder.join("server.crt"),
        key: folder.join("server.key"),
    }
}

#[test]
fn tls_begins_when_asked_for_or_at_once() {
    let ours = tempfile::tempdir().unwrap();
    let Some((certificate_file, _)) = certificate(ours.path(), false) else {
        return;
    };
    let tls = Arc::new(Tls::load(files(ours.path())).unwrap());
    let (relay, _folder) = relay(move |options| {
        options.tls = Some(tls);
        options.tls_required = true;
    });
    let connector = trusting(&certificate_file, true);
    assert_eq!(first_message(&relay, &connector, true).unwrap().0, b'R');
    assert_eq!(first_message(&relay, &connector, false).unwrap().0, b'R');
    // Without its name it may be asked for, but not begin at once.
    let unnamed = trusting(&certificate_file, false);
    assert_eq!(first_message(&relay, &unnamed, true).unwrap().0, b'R');
    let (tag, body) = first_message(&relay, &unnamed, false).unwrap();
    assert_eq!(error(Frame { tag, body: &body }).sqlstate, "08P01");

    let mut plain = connect(&relay);
    plain.write_all(&start()).unwrap();
    let report = only_error(&rest(&mut plain));
    assert_eq!((&*report.severity, &*report.sqlstate), ("FATAL", "28000"));
    assert!(report.hint.unwrap().contains("sslmode=require"));

    // What came in plain behind the request is not taken for what came through TLS.
    let mut stuffed = connect(&relay);
    let mut bytes = packet(&Startup::SslRequest);
    bytes.extend(start());
    stuffed.write_all(&bytes).unwrap();
    let answer = rest_or_reset(&mut stuffed);
    assert!(
        !answer.windows(5).any(|five| five == b"R\0\0\0\x08"),
        "{answer:?}"
    );

    // Another certificate, once it is to be used.
    certificate(ours.path(), false).unwrap();
    assert_eq!(first_message(&relay, &connector, true).unwrap().0, b'R');
    let again = Arc::new(Tls::load(files(ours.path())).unwrap());
    relay.terms.send_modify(|terms| {
        let changed = Terms {
            tls: Some(again),
            ..Terms::clone(terms)
        };
        *terms = Arc::new(changed);
    });
    assert!(first_message(&relay, &connector, true).is_err());
    let connector = trusting(&certificate_file, true);
    assert_eq!(first_message(&relay, &connector, true).unwrap().0, b'R');
    fs::write(&certificate_file, "nothing").unwrap();
    let refused = Tls::load(files(ours.path()));
    assert!(matches!(refused, Err(TlsError::Content { .. })));
}

#[test]
fn keys_that_others_could_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some((certificate_file, key)) = certificate(folder.path(), false) else {
        return;
    };
    let root = nix::unistd::geteuid().is_root();
    for (mode, fine) in [
        (0o600, true),
        (0o400, true),
        (0o640, root),
        (0o440, root),
        (0o644, false),
        (0o660, false),
        (0o604, false),
        (0o610, false),
    ] {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let loaded = Tls::load(files(folder.path()));
        match fine {
            true => assert!(loaded.is_ok(), "{mode:o}"),
            false => assert!(
                matches!(loaded.err().unwrap(), TlsError::File(FileError::Permissions { mode: m, .. }) if m == mode)
            ),
        }
    }
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let load = |files| Tls::load(files).err().unwrap();
    // Another's key, no key, no file.
    let other = tempfile::tempdir().unwrap();
    let (_, other_key) = certificate(other.path(), false).unwrap();
    for (key, wanted) in [
        (other_key, "private key"),
        (folder.path().join("missing"), "cannot read private key"),
    ] {
        let said = load(TlsFiles {
            certificate: certificate_file.clone(),
            key,
        })
        .to_string();
        assert!(said.contains(wanted), "{said}");
    }
    assert!(matches!(
        load(TlsFiles {
            certificate: key.clone(),
            key
        }),
        TlsError::Content {
            what: "certificate",
            ..
        }
    ));
}

/// The relay's own limits stay what they are said to be.
#[test]
fn limits_have_the_documented_values() {
    let limits = Limits::default();
    assert_eq!(limits.sessions, 1000);
    assert_eq!(limits.startup, Duration::from_secs(10));
    assert_eq!(limits.stop, Duration::from_secs(10));
}
