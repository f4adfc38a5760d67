//! What a client sends before its session begins: wishes for encryption, a cancel
//! request, or the start of a session. Nothing beyond it is read.

use lockstep_wire::backend::Report;
use lockstep_wire::startup::{self, Session, Startup};
use lockstep_wire::{Result as WireResult, WireError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::tls::Tls;
use super::transport::Transport;

/// The first byte of a TLS handshake, which no packet of ours begins with.
const HANDSHAKE: u8 = 0x16;

/// How a connection may be encrypted.
#[derive(Clone, Copy)]
pub(super) struct Encryption<'a> {
    pub tls: Option<&'a Tls>,
    /// Sessions must be encrypted.
    pub required: bool,
}

/// What a client wants.
pub(super) enum Arrived {
    Session {
        transport: Transport,
        start: Session,
    },
    /// A cancel request.
    Cancel {
        transport: Transport,
        packet: Startup,
    },
    /// The client cannot be served, and why.
    Refused { transport: Transport, why: Report },
    /// The client has left.
    Gone,
}

/// Reads until it is known what the client wants.
pub(super) async fn arrive(mut transport: Transport, encryption: Encryption<'_>) -> Arrived {
    // Sockets of this machine need no encryption, and libpq speaks none on them.
    let local = matches!(transport, Transport::Unix(_));
    let mut asked = Asked::default();
    loop {
        let mut header = [0; startup::HEADER];
        if transport.read_exact(&mut header).await.is_err() {
            return Arrived::Gone;
        }
        let [first, ..] = header;
        if first == HANDSHAKE && !local && !asked.anything() {
            if let Some(tls) = encryption.tls {
                asked.tls = true;
                match begin_at_once(transport, tls, &header).await {
                    Ok(encrypted) => transport = encrypted,
                    Err(arrived) => return arrived,
                }
                continue;
            }
        }
        let packet = match read_packet(&mut transport, header).await {
            Ok(Ok(packet)) => packet,
            Ok(Err(error)) => return refused(transport, &error),
            Err(_) => return Arrived::Gone,
        };
        let body = packet.get(startup::HEADER..).unwrap_or_default();
        match Startup::parse(body) {
            Ok(Startup::SslRequest) if asked.may_ask_tls() => {
                let Some(encrypted) = answer_tls(transport, encryption.tls, local).await else {
                    return Arrived::Gone;
                };
                transport = encrypted;
            }
            Ok(Startup::GssEncRequest) if asked.may_ask_gss() => {
                if say(&mut transport, b'N').await.is_err() {
                    return Arrived::Gone;
                }
            }
            Ok(packet @ Startup::CancelRequest { .. }) => {
                return Arrived::Cancel { transport, packet };
            }
            Ok(Startup::Session(start)) => {
                if encryption.required && !local && !transport.is_tls() {
                    return Arrived::Refused {
                        transport,
                        why: tls_required(),
                    };
                }
                return Arrived::Session { transport, start };
            }
            Ok(Startup::SslRequest | Startup::GssEncRequest) => {
                return Arrived::Refused {
                    transport,
                    why: Report::fatal("08P01", "encryption was already negotiated"),
                };
            }
            Err(error) => return refused(transport, &error),
        }
    }
}

/// What the client has asked for: each at most once, as a server has it.
#[derive(Default)]
struct Asked {
    tls: bool,
    gss: bool,
}

impl Asked {
    fn anything(&self) -> bool {
        self.tls || self.gss
    }

    fn may_ask_tls(&mut self) -> bool {
        !std::mem::replace(&mut self.tls, true)
    }

    fn may_ask_gss(&mut self) -> bool {
        !std::mem::replace(&mut self.gss, true)
    }
}

async fn say(transport: &mut Transport, answer: u8) -> std::io::Result<()> {
    transport.write_u8(answer).await?;
    transport.flush().await
}

/// The connection after a request for TLS; None if it has failed.
async fn answer_tls(mut transport: Transport, tls: Option<&Tls>, local: bool) -> Option<Transport> {
    let Some(tls) = tls.filter(|_| !local && !transport.is_tls()) else {
        say(&mut transport, b'N').await.ok()?;
        return Some(transport);
    };
    say(&mut transport, b'S').await.ok()?;
    match tls.accept(&[], transport).await {
        Ok((transport, _)) => Some(transport),
        Err(error) => {
            tracing::debug!(%error, "a client's TLS handshake failed");
            None
        }
    }
}

/// TLS without a request, which is only meant for us if ALPN names our protocol.
async fn begin_at_once(transport: Transport, tls: &Tls, read: &[u8]) -> Result<Transport, Arrived> {
    match tls.accept(read, transport).await {
        Ok((transport, true)) => Ok(transport),
        Ok((transport, false)) => Err(Arrived::Refused {
            transport,
            why: Report::fatal(
                "08P01",
                "TLS that begins at once must name its protocol (ALPN)",
            ),
        }),
        Err(error) => {
            tracing::debug!(%error, "a client's TLS handshake failed");
            Err(Arrived::Gone)
        }
    }
}

/// The whole packet; the outer error is the connection's.
async fn read_packet(
    transport: &mut Transport,
    header: [u8; startup::HEADER],
) -> std::io::Result<WireResult<Vec<u8>>> {
    let length = match startup::length(header) {
        Ok(length) => length,
        Err(error) => return Ok(Err(error)),
    };
    let mut packet = Vec::with_capacity(startup::HEADER + length);
    packet.extend(header);
    packet.resize(startup::HEADER + length, 0);
    transport
        .read_exact(packet.get_mut(startup::HEADER..).unwrap_or_default())
        .await?;
    Ok(Ok(packet))
}

fn refused(transport: Transport, error: &WireError) -> Arrived {
    let why = match error {
        WireError::Malformed("an unknown protocol version") => Report::fatal(
            "0A000",
            "unsupported frontend protocol: only version 3 is spoken",
        ),
        WireError::Malformed(startup::TWICE) => Report::fatal(
            "08P01",
            format!("invalid startup packet: it has {}", startup::TWICE),
        )
        .hint("A server takes the last value. Name each parameter once."),
        error => Report::fatal("08P01", format!("invalid startup packet: {error}")),
    };
    Arrived::Refused { transport, why }
}

fn tls_required() -> Report {
    Report::fatal(
        "28000",
        "the relay only takes connections that are encrypted",
    )
    .hint("Connect with sslmode=require or stronger.")
}
