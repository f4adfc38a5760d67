//! Whether the source is silent, as far as a session says.

use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_apply::crew::Pace;
use lockstep_apply::merge::Limits;
use lockstep_apply::session::{Action, Begin, Next, Session};
use lockstep_wire::Lsn;

use super::source::{Writer, relations};
use super::target::Catalog;

/// The writers take long for what they have, so the session reads nothing more. Then the source's silence is
/// the session's own doing.
#[test]
fn a_source_that_nobody_listens_to_is_not_silent() {
    let begun = Instant::now();
    let begin = Begin {
        limits: Limits {
            part: 1 << 20,
            changes: 1,
            bytes: 1 << 20,
            transactions: u64::MAX,
            of_one: u64::MAX,
        },
        memory: 1 << 24,
        writers: 1.into(),
        pace: Pace::default(),
        stands: Lsn::INVALID,
        careful: Lsn::INVALID,
        is_spooled: false,
        cycles: None,
    };
    let mut session = Session::new(begin, begun);
    let mut catalog = Catalog::default();
    let mut random = Rng::with_seed(1);
    let mut source = Writer::new(&mut random, None);
    for _ in 0..50 {
        source.transaction();
    }
    let transactions = source.history.into_iter();
    let mut messages = relations()
        .into_iter()
        .chain(transactions.flat_map(|one| one.messages));
    loop {
        match session.next(begun) {
            Next::Read => session
                .take(messages.next().unwrap(), &mut catalog, begun)
                .unwrap(),
            Next::Wait(_) => break,
            _ => {}
        }
    }
    let much_later = begun + Duration::from_secs(60);
    assert!(matches!(session.next(much_later), Next::Wait(_)));
    while session.action().is_some() {}
    session.tell(false, much_later);
    let shown = std::iter::from_fn(|| session.action()).find_map(|action| match action {
        Action::Show(figures) => figures.heard,
        _ => None,
    });
    assert_eq!(shown.unwrap().last, Some(much_later));
}
