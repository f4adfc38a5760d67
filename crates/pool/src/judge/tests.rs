use super::*;

const SYSTEM: u64 = 7;

fn ms(ms: u64) -> Moment {
    Duration::from_millis(ms)
}

fn rules(door: Door) -> Rules {
    Rules {
        door,
        bound: ms(600),
        interval: ms(100),
        rest: ms(100),
        settle: ms(500),
        rise: ms(1000),
    }
}

/// A primary, whose timeline began at 100 if it is not the first.
fn primary(timeline: u32, lsn: u64) -> PrimaryAnswer {
    let before = (1..timeline).map(|timeline| Switch {
        timeline: Timeline::new(timeline).unwrap(),
        at: 100.into(),
    });
    PrimaryAnswer {
        system: SYSTEM.into(),
        instance: Instance(1),
        history: Some(before.collect()),
        flushed: Position {
            timeline: Timeline::new(timeline).unwrap(),
            lsn: lsn.into(),
        },
    }
}

fn standby() -> NodeAnswer {
    NodeAnswer {
        system: SYSTEM.into(),
        instance: Instance(2),
        history: Some(Arc::from([])),
        is_standby: true,
        shown: 100.into(),
        received: Some(100.into()),
        timeline: Some(Timeline::FIRST),
        supply: Supply::Streaming,
        is_paused: false,
        up_for: Duration::ZERO,
        load: None,
    }
}

/// Asks both every 100 ms from one moment to another, and returns the last verdict.
fn ask(judge: &mut Judge, from: u64, to: u64, p: PrimaryAnswer, node: NodeAnswer) -> Verdict {
    let mut at = from;
    while at <= to {
        judge.server_answered(0, ms(at), ms(at), Some(p.clone()));
        judge.node_answered(ms(at), ms(at), node.clone());
        judge.verdict(ms(at));
        at += 100;
    }
    judge.verdict(ms(to))
}

/// A judge whose node is in, at 1 s.
fn settled(door: Door) -> Judge {
    let mut judge = Judge::new(rules(door), 1);
    let verdict = ask(&mut judge, 0, 1000, primary(1, 100), standby());
    assert_eq!(verdict.state, NodeState::In);
    judge
}

#[test]
fn a_newcomer_settles_and_rises() {
    let mut judge = Judge::new(rules(Door::Fresh), 1);
    assert_eq!(judge.verdict(ms(0)).state, NodeState::Out(Reason::NotAsked));
    let verdict = ask(&mut judge, 0, 400, primary(1, 100), standby());
    assert_eq!(verdict.state, NodeState::Late(Reason::Settling));
    let verdict = ask(&mut judge, 500, 500, primary(1, 100), standby());
    assert_eq!((verdict.state, verdict.share), (NodeState::In, 10));
    let verdict = ask(&mut judge, 600, 1000, primary(1, 100), standby());
    assert_eq!(verdict.share, 55);
    assert_eq!((verdict.lag_bytes, verdict.is_known), (Some(0), true));

    // The agent starts anew, the node has served for long.
    let mut judge = Judge::new(rules(Door::Fresh), 1);
    let warm = NodeAnswer {
        up_for: ms(60_000),
        ..standby()
    };
    assert_eq!(ask(&mut judge, 0, 500, primary(1, 100), warm).share, 100);
}

#[test]
fn each_thing_that_is_wrong_is_said_at_once() {
    let other = NodeAnswer {
        system: 8.into(),
        ..standby()
    };
    let promoted = NodeAnswer {
        is_standby: false,
        ..standby()
    };
    let beyond = NodeAnswer {
        shown: 101.into(),
        ..standby()
    };
    let parted = NodeAnswer {
        timeline: Timeline::new(2),
        history: Some(Arc::from([Switch {
            timeline: Timeline::FIRST,
            at: 90.into(),
        }])),
        ..standby()
    };
    let full = NodeAnswer {
        load: Some(Load {
            sessions: 97,
            most: 97,
        }),
        ..standby()
    };
    let paused = NodeAnswer {
        is_paused: true,
        ..standby()
    };
    let without = |supply| NodeAnswer {
        supply,
        ..standby()
    };
    for (node, primary_said, state) in [
        (other, primary(1, 100), NodeState::Out(Reason::OtherCluster)),
        (
            promoted.clone(),
            primary(1, 100),
            NodeState::Out(Reason::RivalPrimary),
        ),
        (
            promoted,
            primary(2, 100),
            NodeState::Out(Reason::OldPrimary),
        ),
        (beyond, primary(2, 100), NodeState::Out(Reason::OldTimeline)),
        (
            parted,
            primary(2, 100),
            NodeState::Out(Reason::OtherHistory),
        ),
        (full, primary(1, 100), NodeState::Out(Reason::Full)),
        (paused, primary(1, 100), NodeState::Late(Reason::Paused)),
        (
            without(Supply::Archive),
            primary(1, 100),
            NodeState::Late(Reason::Archive),
        ),
        (
            without(Supply::NoUpstream),
            primary(1, 100),
            NodeState::Late(Reason::NoUpstream),
        ),
        (
            without(Supply::WalRemoved),
            primary(1, 100),
            NodeState::Late(Reason::WalRemoved),
        ),
        (
            without(Supply::NotStreaming),
            primary(1, 100),
            NodeState::Late(Reason::NotStreaming),
        ),
        (
            standby(),
            primary(2, 100),
            NodeState::Late(Reason::TimelineLeft),
        ),
    ] {
        for door in Door::ALL {
            let mut judge = settled(door);
            let verdict = ask(&mut judge, 1100, 1100, primary_said.clone(), node.clone());
            assert_eq!(verdict.state, state, "{door:?}");
        }
    }
}

#[test]
fn a_node_that_never_follows_is_late_where_it_still_could() {
    let untold = PrimaryAnswer {
        history: None,
        ..primary(2, 100)
    };
    for (said, state) in [
        (primary(2, 100), NodeState::Late(Reason::TimelineLeft)),
        (untold, NodeState::Out(Reason::OldTimeline)),
    ] {
        let mut judge = settled(Door::Reports);
        let verdict = ask(&mut judge, 1100, 6_500, said, standby());
        assert_eq!(verdict.state, state);
    }
}

#[test]
fn one_server_takes_writes() {
    let mut judge = settled(Door::Fresh);
    let promoted = |timeline: u32| NodeAnswer {
        is_standby: false,
        timeline: Timeline::new(timeline),
        history: primary(timeline, 0).history,
        ..standby()
    };
    let verdict = ask(&mut judge, 1100, 1100, primary(2, 100), promoted(1));
    assert!(!verdict.takes_writes);
    // The lineage is the primary's: which of both is it?
    let verdict = ask(&mut judge, 1200, 1200, primary(2, 100), promoted(2));
    assert_eq!(verdict.state, NodeState::Out(Reason::RivalPrimary));
    assert!(!verdict.takes_writes);
    // A standby beside both is late, and serves if nobody is in.
    let mut beside = Judge::new(rules(Door::Fresh), 2);
    ask(&mut beside, 0, 100, primary(2, 100), standby());
    let verdict = beside.verdict(ms(100));
    assert_eq!(verdict.state, NodeState::Late(Reason::PrimarySilent));
    let rival = PrimaryAnswer {
        instance: Instance(3),
        ..primary(2, 100)
    };
    beside.server_answered(1, ms(100), ms(100), Some(rival));
    let verdict = beside.verdict(ms(100));
    assert_eq!(verdict.state, NodeState::Late(Reason::TwoPrimaries));
    judge.server_lost(0);
    let verdict = judge.verdict(ms(1200));
    assert_eq!(verdict.state, NodeState::Out(Reason::IsPrimary));
    assert!(verdict.takes_writes);
}

#[test]
fn bytes_of_different_timelines_are_not_compared() {
    let mut judge = settled(Door::Fresh);
    let beyond = NodeAnswer {
        shown: 150.into(),
        ..standby()
    };
    for (said, node, expected) in [
        (primary(1, 130), standby(), Some(30)),
        (primary(2, 130), standby(), Some(30)),
        (primary(2, 130), beyond, None),
    ] {
        let verdict = ask(&mut judge, 1100, 1100, said, node);
        assert_eq!(verdict.lag_bytes, expected);
    }
    let foreign = NodeAnswer {
        system: 8.into(),
        ..standby()
    };
    let verdict = ask(&mut judge, 1200, 1200, primary(2, 130), foreign);
    assert_eq!(verdict.lag_bytes, None);
}

#[test]
fn a_node_that_never_answers_is_silent() {
    let mut judge = Judge::new(rules(Door::Fresh), 1);
    judge.node_lost(ms(10));
    let verdict = judge.verdict(ms(10));
    assert_eq!(verdict.state, NodeState::Out(Reason::NodeSilent));
}

#[test]
fn only_door_fresh_is_held_to_the_bound() {
    for (door, state) in [
        (Door::Fresh, NodeState::Late(Reason::Stale)),
        (Door::Reports, NodeState::In),
    ] {
        let mut judge = settled(door);
        let verdict = ask(&mut judge, 1100, 1700, primary(1, 500), standby());
        assert_eq!(verdict.state, state);
        assert_eq!(verdict.lag_bytes, Some(400));
    }
}

#[test]
fn silence_of_either_is_noticed() {
    let mut judge = settled(Door::Fresh);
    judge.node_answered(ms(1600), ms(1600), standby());
    let verdict = judge.verdict(ms(1600));
    assert_eq!(verdict.state, NodeState::In);
    judge.node_answered(ms(1700), ms(1700), standby());
    let verdict = judge.verdict(ms(1700));
    assert_eq!(verdict.state, NodeState::Late(Reason::PrimarySilent));
    assert_eq!(
        (verdict.is_known, verdict.staleness),
        (false, Some(ms(700)))
    );
    let verdict = judge.verdict(ms(2800));
    assert_eq!(verdict.state, NodeState::Out(Reason::NodeSilent));
    assert_eq!((verdict.is_standby, verdict.lag_bytes), (None, None));
}

#[test]
fn operators_and_new_sessions_count() {
    let mut judge = settled(Door::Fresh);
    for (greeting, reason) in [
        (Greeting::Silent, Reason::NoSession),
        (Greeting::Closed, Reason::Closing),
    ] {
        judge.greeted(greeting);
        assert_eq!(judge.verdict(ms(1000)).state, NodeState::Out(reason));
    }
    judge.greeted(Greeting::Open);
    judge.drain(true);
    assert_eq!(judge.verdict(ms(1000)).state, NodeState::Draining);
    judge.drain(false);
    assert_eq!(
        judge.verdict(ms(1000)).state,
        NodeState::Late(Reason::Settling)
    );
}

#[test]
fn a_clock_that_goes_back_leaves_nothing_known() {
    let mut judge = settled(Door::Fresh);
    let verdict = judge.verdict(ms(10));
    assert_eq!(verdict.state, NodeState::Out(Reason::NotAsked));
    assert_eq!(verdict.staleness, None);
    // Answers to questions of the time before say nothing.
    judge.server_answered(0, ms(900), ms(20), Some(primary(1, 100)));
    judge.node_answered(ms(900), ms(20), standby());
    assert_eq!(judge.verdict(ms(30)).staleness, None);
}

#[test]
fn the_primary_is_asked_less_often_while_the_node_keeps_up() {
    let with_rest = Rules {
        rest: ms(150),
        ..rules(Door::Fresh)
    };
    let mut judge = Judge::new(with_rest, 1);
    ask(&mut judge, 0, 300, primary(1, 100), standby());
    // The node is not in yet.
    assert_eq!(judge.interval(), ms(100));
    let verdict = ask(&mut judge, 400, 1000, primary(1, 100), standby());
    assert_eq!((verdict.state, judge.interval()), (NodeState::In, ms(150)));
    // It may still show this answer in time.
    judge.server_answered(0, ms(1100), ms(1100), Some(primary(1, 200)));
    judge.node_answered(ms(1140), ms(1140), standby());
    assert_eq!(judge.interval(), ms(150));
    judge.node_answered(ms(1160), ms(1160), standby());
    assert_eq!(judge.interval(), ms(100));
    // An answer that is shown late does not change that, the next one does.
    let current = NodeAnswer {
        shown: 200.into(),
        ..standby()
    };
    judge.node_answered(ms(1180), ms(1180), current.clone());
    assert_eq!(judge.interval(), ms(100));
    judge.server_answered(0, ms(1200), ms(1200), Some(primary(1, 200)));
    judge.node_answered(ms(1210), ms(1210), current);
    assert_eq!(judge.interval(), ms(150));
    judge.node_lost(ms(1220));
    assert_eq!(judge.interval(), ms(100));
}
