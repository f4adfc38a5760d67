//! Sessions of database `lockstep`: the primary says who it is, the relay's console
//! answers.

use std::sync::Arc;

use bytes::BytesMut;
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::Frame;
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{PROTOCOL_OPTION, Session, Startup};
use tokio::io::AsyncWriteExt;

use super::authenticate::{Begun, authenticate, refuse};
use super::extended::{Extended, Step};
use super::frames::{FrameReader, ReadError, split};
use super::local::{Asked, Local, answer};
use super::pass::{Arrival, Open, leave};
use super::places::Purpose;
use super::rights::{ConsoleService, Rights};
use super::stop::Stop;
use super::transport::{Reader, Transport, message};
use crate::session::{Client, Facts, SlotCommands};
use crate::slot_sql;

/// The console's database.
pub const DATABASE: &str = "lockstep";

/// Longest message of the primary's answer about rights, in bytes.
const LIMIT: usize = 64 * 1024;

/// What the console needs of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleLogin {
    /// The database in whose stead `lockstep` stands.
    pub database: String,
    /// The role, besides superusers, that may change something.
    pub admin_role: Option<String>,
}

/// A client whose rights the primary has told; it has no connection to the primary any more,
/// and waits for its first `ReadyForQuery`.
pub(super) struct Admitted {
    client: Client,
    facts: Facts,
    rights: Rights,
}

impl Admitted {
    /// What the session is: one that may see nothing has no claim on the console's places.
    pub fn purpose(&self) -> Purpose {
        let Rights {
            superuser,
            monitor,
            admin,
            ..
        } = self.rights;
        match superuser || monitor || admin {
            true => Purpose::Console,
            false => Purpose::Other,
        }
    }

    /// Refuses the session after all.
    pub async fn turn_away(self, report: Report) {
        refuse(self.client, report).await;
    }
}

/// Lets a client log in over a connection to the primary, and asks for its rights. None if it
/// does not come to that; the client knows why.
pub(super) async fn log_in(
    client: Client,
    primary: Transport,
    arrival: &Arrival,
    login: &ConsoleLogin,
    stop: &mut Stop,
) -> Option<Admitted> {
    let packet = start_packet(&arrival.start, login);
    let begun = authenticate(client, primary, &packet, stop).await;
    let begun = begun.or_tell().await?;
    let mut facts = arrival.facts(&begun);
    DATABASE.clone_into(&mut facts.database);
    match ask(begun, login).await {
        (client, Ok(rights)) => Some(Admitted {
            client,
            facts,
            rights,
        }),
        (client, Err(report)) => {
            refuse(client, report).await;
            None
        }
    }
}

/// Serves a console session to its end.
pub(super) async fn serve<O: SlotCommands, C: ConsoleService>(
    (commands, console): (&Arc<O>, &Arc<C>),
    admitted: Admitted,
    stop: Stop,
) {
    let rights = Arc::new(admitted.rights);
    let open = Open::new(commands, admitted.facts);
    open.left_primary();
    let local = Local::extended(admitted.client);
    open.run(stop, async |_, stop| {
        answer_all(console, &rights, local, stop).await
    })
    .await;
}

async fn answer_all<C: ConsoleService>(
    console: &Arc<C>,
    rights: &Arc<Rights>,
    mut local: Local,
    stop: &mut Stop,
) {
    if local.reply(&answer(Vec::new())).await.is_err() {
        return;
    }
    let mut extended = Extended::default();
    while let Some((next, asked)) = local.asked(stop).await {
        local = next;
        let told = match asked {
            Asked::Query(text) => {
                let messages = ask_console(console, rights, text).await;
                local.reply(&answer(messages)).await
            }
            Asked::Synced => {
                extended.sync();
                Ok(())
            }
            Asked::Extended(whole) => match extended.hear(&**console, &whole) {
                Step::Say(messages) => local.reply(&messages).await,
                Step::Fail(report) => local.fail(&message(*report)).await,
                Step::Run(text) => {
                    let answered = ask_console(console, rights, text).await;
                    match extended.ran(&answered) {
                        (messages, true) => local.fail(&messages).await,
                        (messages, false) => local.reply(&messages).await,
                    }
                }
            },
        };
        if told.is_err() {
            return;
        }
    }
}

/// The console's messages, without `ReadyForQuery`.
async fn ask_console<C: ConsoleService>(
    console: &Arc<C>,
    rights: &Arc<Rights>,
    text: String,
) -> Vec<u8> {
    let mut messages = Vec::new();
    if text
        .trim_matches(|c: char| c == ';' || c.is_ascii_whitespace())
        .is_empty()
    {
        Backend::EmptyQueryResponse.encode(&mut messages);
        return messages;
    }
    let (console, rights) = (Arc::clone(console), Arc::clone(rights));
    // It may wait for a disk or a lock.
    let answered = tokio::task::spawn_blocking(move || console.answer(&rights, &text)).await;
    match answered {
        Ok(messages) => messages,
        Err(error) => {
            tracing::error!(%error, "the console failed");
            let report = Report::error("XX000", "the console failed: see the relay's log");
            Backend::ErrorResponse(report).encode(&mut messages);
            messages
        }
    }
}

/// The start of the session in which the primary is asked. Settings that could change what
/// is asked stay out, those in `options` too; what the console says is UTF-8.
fn start_packet(start: &Session, login: &ConsoleLogin) -> Vec<u8> {
    let mut parameters: Vec<_> = start
        .parameters
        .iter()
        .filter(|(name, _)| {
            let option = name.starts_with(PROTOCOL_OPTION.as_bytes());
            option || matches!(name.as_slice(), b"user" | b"application_name")
        })
        .cloned()
        .collect();
    for (name, value) in [("database", &*login.database), ("client_encoding", "UTF8")] {
        parameters.push((name.into(), value.into()));
    }
    let mut packet = Vec::new();
    Startup::Session(Session {
        minor: start.minor,
        parameters,
    })
    .encode(&mut packet);
    packet
}

/// Every name is qualified: a role may choose its search path.
fn question(admin_role: Option<&str>) -> String {
    let admin = match admin_role {
        Some(role) => format!(
            "coalesce((SELECT pg_catalog.pg_has_role(r.oid, a.oid, 'MEMBER') FROM pg_catalog.pg_roles a \
             WHERE a.rolname OPERATOR(pg_catalog.=) {}::pg_catalog.name), false)",
            slot_sql::literal(role)
        ),
        None => "false".to_owned(),
    };
    format!(
        "SELECT r.rolsuper, pg_catalog.pg_has_role(r.oid, 'pg_monitor', 'USAGE'), {admin}, r.rolname \
         FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) current_user"
    )
}

/// Asks the primary for the role's rights, and leaves it.
async fn ask(begun: Begun, login: &ConsoleLogin) -> (Client, Result<Rights, Report>) {
    let mut ends = begun.ends;
    let client = Client {
        reader: ends.client_reader,
        writer: ends.client_writer,
    };
    let mut query = Vec::new();
    Frontend::Query(&question(login.admin_role.as_deref())).encode(&mut query);
    let mut frames = FrameReader::new(ends.primary_reader);
    let asked = async {
        ends.primary_writer.write_all(&query).await?;
        ends.primary_writer.flush().await?;
        read_rights(&mut frames).await
    };
    let rights = match asked.await {
        Ok(rights) => rights,
        Err(error) => Err(Report::fatal(
            "08006",
            format!("the primary could not be asked for the role's rights: {error}"),
        )),
    };
    leave(&mut ends.primary_writer).await;
    (client, rights)
}

async fn read_rights(
    frames: &mut FrameReader<Reader>,
) -> Result<Result<Rights, Report>, ReadError> {
    let mut answers = 0_u64;
    let mut answer = None;
    let mut refused = None;
    while let Some(message) = frames.message(LIMIT).await? {
        let message: BytesMut = message;
        let (tag, body) = split(&message);
        match Backend::parse(Frame { tag, body }) {
            Ok(Backend::DataRow(values)) => {
                let value = |at: usize| values.get(at).copied().flatten();
                let truth = |at: usize| value(at) == Some(b"t");
                answers += 1;
                answer = Some(Rights {
                    user: String::from_utf8_lossy(value(3).unwrap_or_default()).into_owned(),
                    superuser: truth(0),
                    monitor: truth(1),
                    admin: truth(2),
                });
            }
            Ok(Backend::ErrorResponse(report)) => refused = Some(report),
            Ok(Backend::ReadyForQuery(_)) => break,
            _ => {}
        }
    }
    Ok(match (answer, refused) {
        (Some(answer), None) if answers == 1 => Ok(answer),
        (_, Some(report)) => Err(Report {
            severity: "FATAL".to_owned(),
            ..report
        }),
        (_, None) => Err(Report::fatal(
            "08006",
            "the primary does not say one thing about the role",
        )),
    })
}
