//! Commit-to-visible latency of each standby, measured as often as samples are taken.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{Shared, lock};
use crate::heartbeat::Heartbeat;
use crate::node::{Node, Role};

/// Pause before another attempt to connect.
const RETRY: Duration = Duration::from_secs(1);

/// Starts a thread for each standby.
pub(super) fn start(shared: &Arc<Shared>) {
    let Some(primary) = shared.of_role(Role::Primary).next() else {
        return;
    };
    for standby in shared.of_role(Role::Standby) {
        let (shared, primary, standby) = (Arc::clone(shared), primary.clone(), standby.clone());
        thread::spawn(move || {
            loop {
                beat(&shared, &primary, &standby);
                lock(&shared.beats).insert(standby.name.clone(), None);
                if !shared.pause(RETRY) {
                    return;
                }
            }
        });
    }
}

/// Measures until a connection is lost or the monitor ends.
fn beat(shared: &Shared, primary: &Node, standby: &Node) {
    let name = &shared.settings.application_name;
    let Ok(mut heart) = Heartbeat::connect(primary, standby, name) else {
        return;
    };
    while shared.pause(shared.settings.every) {
        let Ok(time) = heart.beat() else {
            return;
        };
        let ms = time.map(|time| time.as_secs_f64() * 1000.0);
        lock(&shared.beats).insert(standby.name.clone(), ms);
    }
}
