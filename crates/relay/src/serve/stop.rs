//! How everything that serves is told to stop.

use tokio::sync::watch;

/// Tells every [`Stop`]; dropping it tells them as well.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Is told once that it should stop.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

pub fn channel() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Tells all who wait.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Done once it has been told. May be dropped and asked again.
    pub async fn told(&mut self) {
        // An error is that the stopper is gone.
        let _ = self.0.wait_for(|&stop| stop).await;
    }

    /// Whether `stop` was called.
    pub fn is_told(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}
