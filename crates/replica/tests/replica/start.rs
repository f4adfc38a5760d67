//! How a process that applies begins: how many sessions it makes before its stream begins, and what it asks.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_apply::Control;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::follow::follow;

use crate::apply_lab::{Ends, LONG};
use crate::{conninfo, copied, following};

/// Length of the time in a log's line.
const TIME: usize = "2026-11-28 09:14:22.971".len();

/// Statements of each session that began before a time, by its process. What is looked at again and again
/// meanwhile counts once: how often depends on the machine.
fn sessions<'l>(log: &'l str, time: &str) -> BTreeMap<u32, BTreeSet<&'l str>> {
    let mut sessions = BTreeMap::<u32, BTreeSet<&str>>::new();
    for line in log.lines().filter(|line| *line < time) {
        let Some((before, what)) = line.split_once(" LOG:  ") else {
            continue;
        };
        let pid = before.split(['[', ']']).nth(1);
        let Some(pid) = pid.and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        if what.contains("connection authorized") {
            sessions.insert(pid, BTreeSet::new());
        } else if let Some(statements) = sessions.get_mut(&pid) {
            statements.insert(what);
        }
    }
    sessions
}

fn logs_all(server: &mut Server) -> u64 {
    let settings = [
        ("log_connections", "on"),
        ("log_statement", "all"),
        ("log_replication_commands", "on"),
    ];
    server.set(settings).unwrap();
    server.reload().unwrap();
    server.log_length()
}

/// All of this is done before the first change arrives, mostly one after the other.
#[test]
fn a_process_that_begins_makes_few_sessions_and_asks_little() {
    let (_lab, mut source, mut target) = copied("CREATE TABLE t (id int PRIMARY KEY)");
    let seen = [logs_all(&mut source), logs_all(&mut target)];
    let control = Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let (following, given) = (following(&conninfo(&target)), control.clone());
        scope.spawn(move || follow(&following, &given));
        let end = source.flush_lsn().unwrap();
        let reached = control.wait_for(LONG, |stats| stats.applied >= end);
        assert!(reached, "{:?}", control.stats());
        let of_source = source.log_since(seen[0]).unwrap();
        let begun = of_source
            .lines()
            .find(|it| it.contains("START_REPLICATION"));
        let begun = &begun.unwrap()[..TIME];
        let of_source = sessions(&of_source, begun);
        assert_eq!(of_source.len(), 1, "{of_source:?}");
        // The state, a writer, and what asks about tables. What looks at both sides comes later.
        let of_target = target.log_since(seen[1]).unwrap();
        let of_target = sessions(&of_target, begun);
        assert_eq!(of_target.len(), 3, "{of_target:?}");
        // 15 of these are asked in one session while another takes the replica.
        let all = of_source.values().chain(of_target.values());
        let asked: usize = all.map(BTreeSet::len).sum();
        assert!(asked <= 48, "{of_source:?} {of_target:?}");
    });
}
