//! How everything that serves is told to stop.

use std::time::Duration;

use lockstep_wire::backend::Report;
use tokio::sync::watch;

use crate::session::Terminated;

/// How long a session may take to end once it was told to.
const GRACE: Duration = Duration::from_secs(5);

/// Tells every [`Stop`]; dropping it tells them as well.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Tells a session once that it should stop: with all others, or as a session that must end.
#[derive(Debug, Clone)]
pub struct Stop {
    all: watch::Receiver<bool>,
    session: Option<Terminated>,
}

pub fn channel() -> (Stopper, Stop) {
    let (sender, all) = watch::channel(false);
    (Stopper(sender), Stop { all, session: None })
}

impl Stopper {
    /// Tells all who wait.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// This stop for a session, which may also be told alone.
    pub fn of_session(self, session: Terminated) -> Self {
        Self {
            session: Some(session),
            ..self
        }
    }

    /// Resolves once the session has been told to end. The future may be dropped and asked again.
    pub async fn told(&mut self) {
        tokio::select! {
            // An error is that the stopper is gone.
            _ = self.all.wait_for(|&stop| stop) => {}
            () = terminated(&mut self.session) => {}
        }
    }

    /// Resolves a while after the session alone was told to end: it has not ended by itself, as
    /// when its client takes nothing.
    pub async fn overdue(mut self) {
        terminated(&mut self.session).await;
        tokio::time::sleep(GRACE).await;
    }

    /// What the client is told.
    pub fn why(&self) -> Report {
        let session = self.session.as_ref();
        let why = session.and_then(|session| session.borrow().clone());
        why.unwrap_or_else(|| {
            Report::fatal(
                "57P01",
                "terminating connection because the relay is stopping",
            )
        })
    }

    /// Whether `stop` was called.
    pub fn is_told(&self) -> bool {
        *self.all.borrow() || self.all.has_changed().is_err()
    }
}

async fn terminated(session: &mut Option<Terminated>) {
    if let Some(session) = session {
        if session.wait_for(Option::is_some).await.is_ok() {
            return;
        }
    }
    std::future::pending().await
}
