//! Logins over a connection to the primary, and what becomes of those that it has no walsender
//! for.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use lockstep_wire::backend::Report;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::sleep;

use super::authenticate::{Begun, LoggedIn, Short, authenticate, refuse};
use super::doorway::{DoorLimits, Doorway};
use super::listener::LOGIN_GRACE;
use super::pass::Arrival;
use super::places::Purpose;
use super::stop::Stop;
use super::transport::Transport;
use super::upstream_leg::{Primary, connect};
use crate::session::{Client, SlotCommands};
use crate::spare::{Need, TRY_AGAIN, Then, Turn};

/// Who connects to the primary for a client.
pub(super) trait Reach: Send {
    /// None if that fails; the client knows why.
    fn reach(&mut self, client: Client)
    -> impl Future<Output = Option<(Client, Transport)>> + Send;
}

impl<'p> Reach for &(dyn Primary + 'p) {
    async fn reach(&mut self, client: Client) -> Option<(Client, Transport)> {
        match connect(*self).await {
            Ok(transport) => Some((client, transport)),
            Err(reason) => {
                tracing::warn!(%reason, "the primary cannot be reached");
                let what = format!("the relay cannot reach the primary: {reason}");
                refuse(client, Report::fatal("08001", what)).await;
                None
            }
        }
    }
}

/// Logins for which the relay gives up what the primary has too few of: one at a time, as
/// nobody has said a password yet. It has a moment for itself where others wait.
pub(super) struct Refused {
    doorway: Arc<Doorway>,
    /// Turn of the login that is in; the next waits until it has left nothing behind.
    turn: Mutex<Turn>,
}

impl Default for Refused {
    fn default() -> Self {
        let one = DoorLimits {
            all: 1,
            from_one_address: 1,
        };
        Self {
            doorway: Arc::new(Doorway::new(one)),
            turn: Mutex::default(),
        }
    }
}

/// A login whose turn it is; dropped when that is over.
struct Trying<'a> {
    turn: MutexGuard<'a, Turn>,
    let_in: bool,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        self.turn.over(self.let_in, Instant::now());
    }
}

/// Lets a client log in over a connection to the primary. One of replication that the primary
/// has no walsender for gets another try if the relay gives one up.
pub(super) async fn log_in<O: SlotCommands>(
    (commands, refused): (&O, &Refused),
    client: Client,
    mut primary: impl Reach,
    arrival: &Arrival,
    stop: &mut Stop,
) -> Option<Begun> {
    let short = match try_login(client, &mut primary, arrival, stop).await? {
        LoggedIn::Short(short) if arrival.purpose() == Purpose::Replication => short,
        login => return login.or_tell().await,
    };
    let address = arrival.peer.map(|peer| peer.ip());
    let mut visit = refused.doorway.enter_after(LOGIN_GRACE, address).await;
    let mut trying = Trying {
        turn: refused.turn.lock().await,
        let_in: false,
    };
    let need = Need::from(&*trying.turn);
    let begun = tokio::select! {
        begun = try_on(commands, short, &mut primary, arrival, (need, stop)) => begun,
        () = visit.has_to_go() => None,
    };
    trying.let_in = begun.is_some();
    begun
}

async fn try_login(
    client: Client,
    primary: &mut impl Reach,
    arrival: &Arrival,
    stop: &mut Stop,
) -> Option<LoggedIn> {
    let (back, transport) = primary.reach(client).await?;
    Some(authenticate(back, transport, &arrival.packet(), stop).await)
}

/// Tries again until the client is let in or nothing can be given up for it.
async fn try_on<O: SlotCommands>(
    commands: &O,
    mut short: Short,
    primary: &mut impl Reach,
    arrival: &Arrival,
    (mut need, stop): (Need, &mut Stop),
) -> Option<Begun> {
    loop {
        if need.refused(Instant::now()) == Then::Give && !commands.short_of(short.scarce).await {
            short.tell().await;
            return None;
        }
        sleep(TRY_AGAIN).await;
        short = match try_login(short.client, primary, arrival, stop).await? {
            LoggedIn::Short(short) => short,
            login => return login.or_tell().await,
        };
    }
}
