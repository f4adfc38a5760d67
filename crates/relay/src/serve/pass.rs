//! A session from its start packet to its end: passed through to the primary, streamed
//! by the relay, or both in turn.
//!
//! ```text
//!                ┌────────After::Idle, set aside─────┐
//!                v                                   │
//! login ──> passed through ──Decision::Stream──> streaming <──Stream── alone
//!                │                                   └────After::Idle────^
//!                v
//!              ended
//! ```
//!
//! While the relay streams, the session's own connection to the primary is closed, so
//! that a subscriber costs the primary no walsender. A session that has stopped streaming
//! is alone: the relay may still answer its replication commands, `IDENTIFY_SYSTEM` and `SHOW`, anything
//! else gets an error. It stands where the primary said it did when it began to stream.
//!
//! With `keep_connections` the connection is set aside instead ([`super::aside`]), and the session
//! is passed through again once it has stopped streaming. If the primary closes the connection
//! meanwhile, the session is alone.
//!
//! Before the relay does anything about a command it asks the primary, in the session itself,
//! where the session stands ([`super::standing`]): what the client claims decides nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::command::Command;
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{Replication, Session, Startup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::aside::Aside;
use super::authenticate::Begun;
use super::console_session::DATABASE;
use super::local::{Local, answer, query_text};
use super::places::Purpose;
use super::pump::{Ends, Event, Pump};
use super::shown::show;
use super::standing::{self, Learnt};
use super::statements::{Heard, Statements, in_pipeline};
use super::stop::Stop;
use super::transport::{Transport, Writer, after, close_with, message};
use super::upstream_leg::{Primary, connect};
use crate::session::{
    After, Canceled, Client, Decision, Facts, Needs, SlotCommands, Standing, Stream, Terminated,
    canceled, told,
};
use crate::slot_sql::{self, Act};
use crate::spare::Scarce;

/// How long the primary may take to accept that a session leaves it.
const LEAVE_DEADLINE: Duration = Duration::from_secs(1);

/// A session that wants to begin.
pub(super) struct Arrival {
    /// The relay's number of it.
    pub id: u64,
    /// Where the client is.
    pub peer: Option<SocketAddr>,
    pub start: Session,
}

impl Arrival {
    /// What it asks for.
    pub fn purpose(&self) -> Purpose {
        let console = self.start.database() == DATABASE.as_bytes();
        match self.start.replication() {
            Replication::None if console => Purpose::Console,
            Replication::None | Replication::Unknown => Purpose::Other,
            Replication::Physical | Replication::Logical => Purpose::Replication,
        }
    }

    /// True if the client asks for replication. Whether it has got it the primary says.
    fn replicates(&self) -> bool {
        match self.start.replication() {
            Replication::Logical => self.start.database() != DATABASE.as_bytes(),
            Replication::Physical => true,
            Replication::None | Replication::Unknown => false,
        }
    }

    /// The start packet for the primary: what was understood of the client's, and nothing else.
    pub fn packet(&self) -> Vec<u8> {
        let mut packet = Vec::new();
        Startup::Session(self.start.clone()).encode(&mut packet);
        packet
    }

    /// What is known of it once the primary has let it in.
    pub fn facts(&self, begun: &Begun) -> Facts {
        let reported = |name: &str| begun.settings.get(name).cloned().unwrap_or_default();
        Facts {
            id: self.id,
            pid: begun.pid,
            secret: begun.secret.clone(),
            user: reported("session_authorization"),
            database: String::from_utf8_lossy(self.start.database()).into_owned(),
            application_name: reported("application_name"),
            peer: self.peer,
            server_version: reported("server_version"),
            server_encoding: reported("server_encoding"),
        }
    }
}

/// A session that the relay was told of, until it is dropped.
pub(super) struct Open<O: SlotCommands> {
    commands: Arc<O>,
    facts: Facts,
    known: Known,
    terminated: Terminated,
    /// The relay gives something up for it.
    giving: Arc<AtomicBool>,
}

/// What the primary has said about a session.
enum Known {
    /// Nothing yet: the primary was not asked.
    Nothing,
    Standing(Box<Standing>),
    /// A session of replication that cannot stream from the relay.
    Elsewhere,
    /// No session of replication: nothing is the relay's.
    Other,
}

impl<O: SlotCommands> Open<O> {
    pub fn new(commands: &Arc<O>, facts: Facts) -> Self {
        let terminated = commands.opened(&facts);
        Self {
            commands: Arc::clone(commands),
            facts,
            known: Known::Nothing,
            terminated,
            giving: Arc::default(),
        }
    }

    /// Runs the session until it ends, or is ended. `stop` is that of all sessions.
    pub async fn run(mut self, stop: Stop, session: impl AsyncFnOnce(&mut Self, &mut Stop)) {
        let id = self.facts.id;
        let mut stop = stop.of_session(self.terminated.clone());
        let overdue = stop.clone().overdue();
        tokio::select! {
            () = session(&mut self, &mut stop) => {}
            () = overdue => tracing::info!(
                session = id,
                "closed its connections: it did not end when it was told to"
            ),
        }
    }

    fn needs(&self, command: &Command, text: &str) -> Needs {
        self.commands.needs(&self.facts, command, text)
    }

    /// Whether the primary is to be asked first.
    fn must_ask(&self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing => false,
            Needs::Standing => matches!(self.known, Known::Nothing),
            Needs::StandingNow => matches!(self.known, Known::Nothing | Known::Standing(_)),
        }
    }

    /// The session has no connection to the primary any more.
    pub fn left_primary(&self) {
        self.commands.left_primary(&self.facts);
    }

    /// Cancel requests from now on.
    fn canceled(&self) -> Canceled {
        self.commands.hears_cancel(&self.facts)
    }

    /// The primary has refused the session something. It goes on meanwhile.
    fn short_of(&self, scarce: Scarce) {
        if self.giving.swap(true, Ordering::AcqRel) {
            return;
        }
        let (commands, giving) = (Arc::clone(&self.commands), Arc::clone(&self.giving));
        tokio::spawn(async move {
            commands.short_of(scarce).await;
            giving.store(false, Ordering::Release);
        });
    }

    /// The answer to `IDENTIFY_SYSTEM` without the primary.
    fn identify(&self) -> Option<Vec<u8>> {
        match &self.known {
            Known::Standing(standing) => self.commands.identify(standing),
            Known::Nothing | Known::Elsewhere | Known::Other => None,
        }
    }

    /// The answer to a command that needs neither the primary nor a slot.
    fn answer_alone(&self, command: &Command, text: &str) -> Option<Vec<u8>> {
        match command {
            Command::IdentifySystem => self.identify(),
            Command::Show { name } => {
                let shown = match &self.known {
                    Known::Standing(standing) => standing.shown.as_deref(),
                    Known::Nothing | Known::Elsewhere | Known::Other => None,
                };
                Some(show(shown, name))
            }
            Command::Sql if is_empty(text) => {
                let mut out = Vec::new();
                Backend::EmptyQueryResponse.encode(&mut out);
                Some(out)
            }
            _ => None,
        }
    }

    async fn decide(&self, command: &Command, text: &str) -> Decision<O::Stream> {
        let standing = match &self.known {
            Known::Standing(standing) => Some(standing.as_ref()),
            Known::Elsewhere => None,
            Known::Nothing | Known::Other => return Decision::Pass,
        };
        let commands = &self.commands;
        commands.decide(&self.facts, standing, command, text).await
    }
}

impl<O: SlotCommands> Drop for Open<O> {
    fn drop(&mut self) {
        self.commands.closed(&self.facts);
    }
}

/// Does what a cancel request asks for. A client waits for the end of its connection to know
/// that the request has been heard.
pub(super) async fn cancel<O: SlotCommands>(
    commands: &O,
    transport: Transport,
    request: &Startup,
    primary: &dyn Primary,
) {
    let Startup::CancelRequest { process, secret } = request else {
        return;
    };
    if commands.cancel(*process, secret) {
        forward_cancel(request, primary).await;
    }
    drop(transport);
}

async fn forward_cancel(request: &Startup, primary: &dyn Primary) {
    let mut packet = Vec::new();
    request.encode(&mut packet);
    let forwarded = async {
        let mut leg = connect(primary).await?;
        leg.write_all(&packet).await.map_err(|e| e.to_string())?;
        leg.flush().await.map_err(|e| e.to_string())?;
        // The primary closes the connection once it has heard.
        let _ = timeout(LEAVE_DEADLINE, leg.read(&mut [0])).await;
        Ok::<_, String>(())
    };
    if let Err(reason) = forwarded.await {
        tracing::warn!(%reason, "a cancel request could not be forwarded");
    }
}

/// Serves a session that the primary has let in, to its end.
pub(super) async fn serve<O: SlotCommands>(
    (commands, primary): (&Arc<O>, &dyn Primary),
    begun: Begun,
    arrival: Arrival,
    stop: Stop,
) {
    let replicates = arrival.replicates();
    let open = Open::new(commands, arrival.facts(&begun));
    drop((arrival, begun.settings));
    let mut passed = Passed {
        pump: Pump::new(replicates),
        statements: Statements::default(),
        ends: begun.ends,
    };
    passed.pump.say(answer(Vec::new()));
    open.run(stop, async |open, stop| {
        let mut passed = Some(passed);
        while let Some(session) = passed {
            let Some(streaming) = session.run(open, primary, stop).await else {
                return;
            };
            passed = stream_on(open, streaming, stop).await;
        }
    })
    .await;
}

/// Why a session ends while the relay holds a message of its client.
enum Broken {
    ClientGone,
    PrimaryGone,
    Stopped,
}

/// A session that begins to stream.
struct Streaming<S> {
    client: Client,
    stream: S,
    /// The connection to the primary that it keeps, if it does.
    aside: Option<(Statements, Aside)>,
}

/// A session with a primary behind it.
struct Passed {
    pump: Pump,
    statements: Statements,
    ends: Ends,
}

impl Passed {
    /// Passes messages until the session ends, or until the relay is to stream.
    async fn run<O: SlotCommands>(
        mut self,
        open: &mut Open<O>,
        primary: &dyn Primary,
        stop: &mut Stop,
    ) -> Option<Streaming<O::Stream>> {
        loop {
            let event = tokio::select! {
                event = self.next(open) => event,
                () = stop.told() => {
                    self.stop(open, primary, stop).await;
                    return None;
                }
            };
            let done = match event {
                Event::Query(query) => self.query(open, query, stop).await,
                Event::Statement(message) => match self.statement(open, &message, stop).await {
                    Ok(true) => Ok(None),
                    Ok(false) => {
                        self.pump.pass(message);
                        Ok(None)
                    }
                    Err(broken) => Err(broken),
                },
                Event::ClientGone => Err(Broken::ClientGone),
                // All of it is with the client: now its connection ends as well.
                Event::PrimaryGone | Event::Settled | Event::Answered(_) | Event::Short(_) => {
                    Err(Broken::PrimaryGone)
                }
            };
            match done {
                Ok(None) => {}
                Ok(Some(stream)) => {
                    let (client, aside) = self.make_way(open).await?;
                    return Some(Streaming {
                        client,
                        stream,
                        aside,
                    });
                }
                Err(Broken::ClientGone) => return None,
                Err(Broken::PrimaryGone) => {
                    self.end(&[]).await;
                    return None;
                }
                Err(Broken::Stopped) => {
                    self.end(&message(stop.why())).await;
                    return None;
                }
            }
        }
    }

    /// Deals with a query of an idle session of replication; a stream if the relay is to stream.
    async fn query<O: SlotCommands>(
        &mut self,
        open: &mut Open<O>,
        query: Vec<u8>,
        stop: &mut Stop,
    ) -> Result<Option<O::Stream>, Broken> {
        if slot_sql::mentions(&query) && self.statement(open, &query, stop).await? {
            return Ok(None);
        }
        match self.decide(open, &query, stop).await? {
            Decision::Pass => self.pump.pass(query),
            Decision::Reply(messages) => self.pump.answer(messages),
            Decision::Stream(stream) => return Ok(Some(stream)),
        }
        Ok(None)
    }

    /// Deals with a message that may concern slots. False if it goes on as it is.
    async fn statement<O: SlotCommands>(
        &mut self,
        open: &Open<O>,
        message: &[u8],
        stop: &mut Stop,
    ) -> Result<bool, Broken> {
        let heard = self.statements.hear(message, &open.commands.listed());
        self.pump.watch(!self.statements.is_empty());
        match heard {
            None => return Ok(false),
            Some(Heard::Instead(instead)) => self.pump.pass(instead),
            Some(Heard::Refuse(report)) => self.pump.refuse(message, *report),
            Some(Heard::Again(messages, message)) => {
                // In a pipeline it lists the slots as they were when it was prepared last.
                if self.pump.may_ask() {
                    self.question(open, (messages, 1), stop).await?;
                }
                self.pump.pass(message);
            }
            Some(Heard::Act(act, message)) => self.act(open, &act, message, stop).await?,
            Some(Heard::Needs(act, message)) => {
                let allowed = match self.pump.may_ask() {
                    true => {
                        let question = (standing::slots_question(), 1);
                        standing::may_use_slots(&self.question(open, question, stop).await?)
                    }
                    false => Err(in_pipeline()),
                };
                match (act, allowed) {
                    (None, allowed) => {
                        self.statements.allow(allowed.map_err(Box::new));
                        self.pump.pass(message);
                    }
                    (Some(act), Ok(())) => self.act(open, &act, message, stop).await?,
                    (Some(_), Err(report)) => self.pump.refuse(&message, report),
                }
            }
        }
        Ok(true)
    }

    /// Does something to a slot; then the primary gets the message.
    async fn act<O: SlotCommands>(
        &mut self,
        open: &Open<O>,
        act: &Act,
        message: Vec<u8>,
        stop: &mut Stop,
    ) -> Result<(), Broken> {
        let mut cancel = open.canceled();
        let done = tokio::select! {
            biased;
            done = open.commands.act(&open.facts, act) => done,
            () = told(&mut cancel) => Err(canceled()),
            // Nothing else can come while the message is held.
            _ = self.next(open) => return Err(Broken::ClientGone),
            () = stop.told() => return Err(Broken::Stopped),
        };
        match done {
            Ok(()) => self.pump.pass(message),
            Err(report) => self.pump.refuse(&message, report),
        }
        Ok(())
    }

    /// What the pump says next but that the primary is short of something.
    async fn next<O: SlotCommands>(&mut self, open: &Open<O>) -> Event {
        loop {
            match self.pump.next(&mut self.ends).await {
                Event::Short(scarce) => open.short_of(scarce),
                event => return event,
            }
        }
    }

    /// What the primary answers to messages of the relay, with the number of their answers.
    async fn question<O: SlotCommands>(
        &mut self,
        open: &Open<O>,
        (messages, answers): (Vec<u8>, usize),
        stop: &mut Stop,
    ) -> Result<Vec<u8>, Broken> {
        self.pump.ask(messages, answers);
        let event = tokio::select! {
            event = self.next(open) => event,
            () = stop.told() => return Err(Broken::Stopped),
        };
        match event {
            Event::Answered(said) => Ok(said),
            Event::PrimaryGone => Err(Broken::PrimaryGone),
            _ => Err(Broken::ClientGone),
        }
    }

    /// Asks the primary where the session stands; the primary's error if it refuses.
    async fn ask<O: SlotCommands>(
        &mut self,
        open: &mut Open<O>,
        stop: &mut Stop,
    ) -> Result<Option<Vec<u8>>, Broken> {
        let questions = (standing::questions(), standing::ANSWERS);
        let said = self.question(open, questions, stop).await?;
        open.known = match standing::learn(&said) {
            Learnt::Standing(standing) => Known::Standing(standing),
            Learnt::Elsewhere => Known::Elsewhere,
            Learnt::Other => Known::Other,
            Learnt::Refused(error) => return Ok(Some(error)),
        };
        Ok(None)
    }

    /// What becomes of a query.
    async fn decide<O: SlotCommands>(
        &mut self,
        open: &mut Open<O>,
        query: &[u8],
        stop: &mut Stop,
    ) -> Result<Decision<O::Stream>, Broken> {
        // What the relay does not understand the primary may.
        let Ok(text) = query_text(query) else {
            return Ok(Decision::Pass);
        };
        let Ok(command) = Command::parse(text) else {
            return Ok(Decision::Pass);
        };
        let needs = open.needs(&command, text);
        if needs == Needs::Nothing {
            return Ok(Decision::Pass);
        }
        if open.must_ask(needs) {
            if let Some(error) = self.ask(open, stop).await? {
                return Ok(Decision::Reply(answer(error)));
            }
        }
        let mut cancel = open.canceled();
        tokio::select! {
            biased;
            decision = open.decide(&command, text) => Ok(decision),
            () = told(&mut cancel) => Ok(Decision::Reply(answer(message(canceled())))),
            // Nothing else can come while the query is held.
            _ = self.next(open) => Err(Broken::ClientGone),
            () = stop.told() => Err(Broken::Stopped),
        }
    }

    /// Before a stream: sets the connection to the primary aside or closes it. None if the client has left.
    async fn make_way<O: SlotCommands>(
        mut self,
        open: &Open<O>,
    ) -> Option<(Client, Option<(Statements, Aside)>)> {
        self.pump.settle();
        let keeps = match self.pump.next(&mut self.ends).await {
            Event::Settled => open.commands.keeps_connections() && self.pump.may_be_set_aside(),
            // A primary that has gone is not needed any more.
            Event::PrimaryGone => false,
            _ => return None,
        };
        let left = self.pump.left().into();
        let client = Client {
            reader: after(left, self.ends.client_reader),
            writer: self.ends.client_writer,
        };
        let mut primary = self.ends.primary_writer;
        if keeps {
            let aside = Aside::new(self.ends.primary_reader, primary);
            return Some((client, Some((self.statements, aside))));
        }
        if self.pump.may_end_politely() {
            leave(&mut primary).await;
        }
        open.left_primary();
        Some((client, None))
    }

    /// Goes on after a stream with the connection that was set aside.
    fn resume(client: Client, statements: Statements, aside: Aside) -> Self {
        let (primary_reader, primary_writer) = aside.back();
        let mut pump = Pump::new(true);
        pump.watch(!statements.is_empty());
        Self {
            pump,
            statements,
            ends: Ends {
                client_reader: client.reader,
                client_writer: client.writer,
                primary_reader,
                primary_writer,
            },
        }
    }

    /// Ends the session as it is told to. A server that works for a client notices only later
    /// that it has gone, so what one session alone leaves behind is canceled.
    async fn stop<O: SlotCommands>(self, open: &Open<O>, primary: &dyn Primary, stop: &Stop) {
        let cancel = Startup::CancelRequest {
            process: open.facts.pid,
            secret: open.facts.secret.0.clone(),
        };
        if self.pump.is_busy() && !stop.is_told() {
            forward_cancel(&cancel, primary).await;
        }
        self.end(&message(stop.why())).await;
    }

    /// Lets the primary's message end, then sends `last` and closes both connections.
    async fn end(mut self, last: &[u8]) {
        self.pump.settle();
        let last = match self.pump.next(&mut self.ends).await {
            Event::Settled if self.pump.at_boundary() => last,
            Event::ClientGone => return,
            _ => &[],
        };
        if self.pump.may_end_politely() {
            leave(&mut self.ends.primary_writer).await;
        }
        let client = Client {
            reader: self.ends.client_reader,
            writer: self.ends.client_writer,
        };
        close_with(client, last).await;
    }
}

/// Says goodbye to the primary.
pub(super) async fn leave(primary: &mut Writer) {
    let mut bytes = Vec::new();
    Frontend::Terminate.encode(&mut bytes);
    let left = async {
        primary.write_all(&bytes).await?;
        primary.shutdown().await
    };
    // It finds out by itself otherwise.
    let _ = timeout(LEAVE_DEADLINE, left).await;
}

/// Streams, and then serves what the client asks for until it leaves. A session that is to be passed
/// through again comes back.
async fn stream_on<O: SlotCommands>(
    open: &Open<O>,
    streaming: Streaming<O::Stream>,
    stop: &mut Stop,
) -> Option<Passed> {
    let Streaming {
        mut client,
        mut stream,
        mut aside,
    } = streaming;
    loop {
        let ended = {
            let mut running = std::pin::pin!(stream.run(client));
            loop {
                let Some((_, primary)) = &mut aside else {
                    break running.await;
                };
                tokio::select! {
                    ended = &mut running => break ended,
                    () = primary.gone() => {
                        aside = None;
                        open.left_primary();
                    }
                }
            }
        };
        client = match (ended, aside.take()) {
            (Ok((client, After::Idle)), Some((statements, aside))) => {
                return Some(Passed::resume(client, statements, aside));
            }
            (Ok((client, After::Idle)), None) => client,
            (ended, aside) => {
                if let Some((_, aside)) = aside {
                    leave(&mut aside.back().1).await;
                }
                match ended {
                    Ok((client, _)) => close_with(client, &[]).await,
                    Err(error) => {
                        tracing::debug!(%error, session = open.facts.id, "streaming ended");
                    }
                }
                return None;
            }
        };
        (client, stream) = alone(open, client, stop).await?;
    }
}

/// Serves a session without a primary until the relay is to stream again.
async fn alone<O: SlotCommands>(
    open: &Open<O>,
    client: Client,
    stop: &mut Stop,
) -> Option<(Client, O::Stream)> {
    let mut local = Local::new(client);
    loop {
        let (next, text) = local.query(stop).await?;
        local = next;
        let command = match Command::parse(&text) {
            Ok(command) => command,
            Err(error) => {
                let report = Report::error("42601", error.to_string());
                local.refuse(report).await.ok()?;
                continue;
            }
        };
        if let Some(messages) = open.answer_alone(&command, &text) {
            local.reply(&answer(messages)).await.ok()?;
            continue;
        }
        if open.needs(&command, &text) == Needs::Nothing {
            local.refuse(alone_report()).await.ok()?;
            continue;
        }
        let mut cancel = open.canceled();
        let decision = tokio::select! {
            biased;
            decision = open.decide(&command, &text) => decision,
            () = told(&mut cancel) => Decision::Reply(answer(message(canceled()))),
            () = local.left() => return None,
            () = stop.told() => {
                close_with(local.into_client(), &message(stop.why())).await;
                return None;
            }
        };
        match decision {
            Decision::Pass => local.refuse(alone_report()).await.ok()?,
            Decision::Reply(messages) => local.reply(&messages).await.ok()?,
            Decision::Stream(stream) => return Some((local.into_client(), stream)),
        }
    }
}

/// Nothing but spaces and comments, as drivers send it to see whether a session lives.
fn is_empty(text: &str) -> bool {
    let line = |line: &str| {
        line.split("--")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    text.lines()
        .map(line)
        .all(|line| line.chars().all(|it| it == ';' || it.is_whitespace()))
}

fn alone_report() -> Report {
    Report::error(
        "55000",
        "the session's connection to the primary was closed when streaming began",
    )
    .hint("Reconnect, or set keep_connections in the relay's configuration.")
}
