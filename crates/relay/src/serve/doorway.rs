//! Connections that have not logged in yet: how many there may be, and who has to go.
//!
//! Anybody may connect and say nothing, so whoever has not logged in must not keep others out.
//! Where there are too many, the one goes that has waited longest of those from the address
//! that has most; a crowd from one address pushes out itself. A login that takes its usual few
//! milliseconds is over long before its turn comes.
//!
//! Logins that have reached the primary take connections from all of its other clients, so there
//! are few of them. A login that is still under way has a second before it has to go; meanwhile
//! newcomers wait.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use crate::lock::lock;

/// Part of an IPv6 address that is one network: whoever has one address has all of them.
const NETWORK: u128 = !0 << 64;

/// Everybody who is not logged in.
pub(super) struct Doorway {
    limits: DoorLimits,
    waiting: Mutex<Waiting>,
    /// Tells that a session has left.
    left: Notify,
}

/// How many may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct DoorLimits {
    pub all: usize,
    pub from_one_address: usize,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    /// Visitors in the order in which they came.
    visitors: BTreeMap<u64, Visitor>,
}

struct Visitor {
    from: Option<IpAddr>,
    since: Instant,
    /// Dropped when it has to go.
    _stays: oneshot::Sender<()>,
}

/// One connection, until it has logged in or is dropped.
pub(super) struct Visit {
    doorway: Arc<Doorway>,
    number: u64,
    told: oneshot::Receiver<()>,
}

impl Doorway {
    pub fn new(limits: DoorLimits) -> Self {
        Self {
            limits,
            waiting: Mutex::default(),
            left: Notify::new(),
        }
    }

    /// A connection has come; None is a Unix socket. Others may have to go.
    pub fn enter(self: &Arc<Self>, from: Option<IpAddr>) -> Visit {
        let from = from.map(network);
        let mut waiting = lock(&self.waiting);
        while let Some(leaver) = waiting.leaver(from, self.limits) {
            waiting.visitors.remove(&leaver);
        }
        self.admit(&mut waiting, from)
    }

    /// Like [`Self::enter`], but who is there has `grace` before it has to go.
    pub async fn enter_after(self: &Arc<Self>, grace: Duration, from: Option<IpAddr>) -> Visit {
        let from = from.map(network);
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            // From here on nobody leaves unnoticed.
            left.as_mut().enable();
            let patience = {
                let mut waiting = lock(&self.waiting);
                let leaver = waiting.leaver(from, self.limits);
                let since = leaver.and_then(|number| waiting.visitors.get(&number)?.since.into());
                match (leaver, since) {
                    (Some(leaver), Some(since)) if since.elapsed() >= grace => {
                        waiting.visitors.remove(&leaver);
                        Duration::ZERO
                    }
                    (Some(_), Some(since)) => grace.saturating_sub(since.elapsed()),
                    _ => return self.admit(&mut waiting, from),
                }
            };
            let _ = timeout(patience, left).await;
        }
    }

    fn admit(self: &Arc<Self>, waiting: &mut Waiting, from: Option<IpAddr>) -> Visit {
        let (stays, told) = oneshot::channel();
        let number = waiting.next;
        waiting.next += 1;
        let visitor = Visitor {
            from,
            since: Instant::now(),
            _stays: stays,
        };
        waiting.visitors.insert(number, visitor);
        Visit {
            doorway: Arc::clone(self),
            number,
            told,
        }
    }
}

impl Visit {
    /// Resolves when the session has to end.
    pub async fn has_to_go(&mut self) {
        let _ = (&mut self.told).await;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        lock(&self.doorway.waiting).visitors.remove(&self.number);
        self.doorway.left.notify_waiters();
    }
}

impl Waiting {
    /// Who has to go before one from this address may come.
    fn leaver(&self, newcomer: Option<IpAddr>, limits: DoorLimits) -> Option<u64> {
        let mut crowds: HashMap<_, usize> = HashMap::from([(newcomer, 1)]);
        for visitor in self.visitors.values() {
            *crowds.entry(visitor.from).or_default() += 1;
        }
        let size = |from| crowds.get(&from).copied().unwrap_or_default();
        let least = if size(newcomer) > limits.from_one_address {
            size(newcomer)
        } else if self.visitors.len() >= limits.all {
            crowds.values().copied().max().unwrap_or_default()
        } else {
            return None;
        };
        let over = size(newcomer) > limits.from_one_address;
        let goes = |visitor: &Visitor| match over {
            true => visitor.from == newcomer,
            false => size(visitor.from) >= least,
        };
        let mut leavers = self.visitors.iter().filter(|(_, visitor)| goes(visitor));
        let first = leavers.next().or_else(|| self.visitors.iter().next());
        first.map(|(number, _)| *number)
    }
}

/// What counts as one address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doorway(all: usize, from_one_address: usize) -> Arc<Doorway> {
        Arc::new(Doorway::new(DoorLimits {
            all,
            from_one_address,
        }))
    }

    fn v4(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    /// Numbers of those who are there.
    fn there(doorway: &Doorway) -> Vec<u64> {
        lock(&doorway.waiting).visitors.keys().copied().collect()
    }

    #[test]
    fn a_crowd_pushes_out_itself() {
        let doorway = doorway(5, 5);
        let _other = doorway.enter(v4(1));
        let _local = doorway.enter(None);
        let crowd: Vec<_> = (0..20).map(|_| doorway.enter(v4(2))).collect();
        assert_eq!(there(&doorway), [0, 1, 19, 20, 21]);
        // A newcomer from elsewhere comes in as well.
        let _newcomer = doorway.enter(v4(3));
        assert_eq!(there(&doorway), [0, 1, 20, 21, 22]);
        drop(crowd);
        assert_eq!(there(&doorway), [0, 1, 22]);
    }

    #[test]
    fn one_address_has_a_part_of_the_places() {
        let doorway = doorway(10, 2);
        let _all: Vec<_> = (0..8).map(|number| doorway.enter(v4(number % 2))).collect();
        assert_eq!(there(&doorway), [4, 5, 6, 7]);
    }

    #[test]
    fn among_equals_the_oldest_goes() {
        let doorway = doorway(3, 3);
        let _all: Vec<_> = (0..5).map(|number| doorway.enter(v4(number))).collect();
        assert_eq!(there(&doorway), [2, 3, 4]);
    }

    #[tokio::test]
    async fn who_is_there_has_its_time() {
        const SHORT: Duration = Duration::from_millis(20);
        const LONG: Duration = Duration::from_secs(3600);
        let doorway = doorway(4, 2);
        let mut first = doorway.enter_after(LONG, v4(1)).await;
        let second = doorway.enter_after(LONG, v4(1)).await;
        // From elsewhere there is room.
        let _other = doorway.enter_after(LONG, v4(2)).await;
        let third = doorway.enter_after(SHORT, v4(1)).await;
        first.has_to_go().await;
        assert_eq!(there(&doorway), [1, 2, 3]);
        // Who leaves makes room at once.
        let fourth = tokio::spawn({
            let doorway = Arc::clone(&doorway);
            async move { doorway.enter_after(LONG, v4(1)).await }
        });
        tokio::task::yield_now().await;
        assert!(!fourth.is_finished());
        drop(second);
        let fourth = fourth.await.unwrap();
        assert_eq!(there(&doorway), [2, 3, 4]);
        drop((first, third, fourth));
    }

    #[tokio::test]
    async fn who_has_to_go_is_told() {
        let doorway = doorway(1, 1);
        let mut first = doorway.enter(v4(1));
        let second = doorway.enter(v4(1));
        first.has_to_go().await;
        drop(first);
        assert_eq!(there(&doorway), [1]);
        drop(second);
        assert_eq!(there(&doorway), [0; 0]);
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let one = |text: &str| network(text.parse().unwrap());
        assert_eq!(one("2001:db8:1:2:3::4"), one("2001:db8:1:2:ffff::"));
        assert_ne!(one("2001:db8:1:2::"), one("2001:db8:1:3::"));
        assert_eq!(one("::ffff:10.0.0.1"), one("10.0.0.1"));
        assert_ne!(one("10.0.0.1"), one("10.0.0.2"));
    }
}
