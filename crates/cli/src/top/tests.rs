//! Compares screens with the texts in `snapshots/`, and keys with a table. `UPDATE_SNAPSHOTS=1`
//! records the texts anew.

use std::path::Path;
use std::sync::Arc;

use lockstep_lag::diagnosis::checks::{Answer, CheckReport};
use lockstep_lag::link::BehindPrimary;
use lockstep_lag::monitor::MonitorState;
use lockstep_lag::point::Bound;
use lockstep_lag::point::LinkKind;
use lockstep_lag::replica::{Doing, ReplicaReport};
use lockstep_lag::rules::{Cause, Severity};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::keys::Action;
use super::model::{Model, Page};
use super::plain;
use super::rows::{SortBy, Status, headline, rows, sort};
use super::view::{Theme, draw};

mod fixture;

use fixture::{asked, calm, crowd, history, relayed, trouble};

/// Compares a text with the recorded one.
fn snapshot(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots");
    let path = folder.join(format!("{name}.txt"));
    lockstep_lab::for_tests::assert_recorded(&path, text);
}

/// A model with two minutes of history.
fn model(state: MonitorState) -> Model {
    let mut model = Model::new(Arc::new(MonitorState {
        number: 0,
        ..state.clone()
    }));
    let history = history(&state);
    model.update(Arc::new(state), history);
    model
}

fn buffer(model: &mut Model, columns: u16, lines: u16, colours: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal
        .draw(|frame| draw(frame, model, Theme::new(colours)))
        .unwrap();
    terminal.backend().buffer().clone()
}

/// The screen as text.
fn screen(model: &mut Model, columns: u16, lines: u16) -> String {
    let buffer = buffer(model, columns, lines, true);
    let mut text = String::new();
    for y in 0..lines {
        let cells = (0..columns).map(|x| buffer[(x, y)].symbol());
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (40, 10)];

#[test]
fn a_lag_of_which_only_a_bound_is_known_says_so() {
    for (bound, sign) in [(Bound::LEAST, '≥'), (Bound::MOST, '≤')] {
        let mut state = trouble();
        let behind = state.links.iter_mut().find(|link| link.behind).unwrap();
        (behind.lag_ms, behind.bound) = (999.0, bound);
        let name = behind.replica.clone();
        let screen = screen(&mut model(state.clone()), 80, 24);
        for text in [screen, plain::lines(&state)] {
            let has_sign = |line: &&str| line.contains(&format!("{sign}999 ms "));
            let marked: Vec<&str> = text.lines().filter(has_sign).collect();
            assert_eq!(marked.len(), 1, "{text}");
            assert!(marked[0].contains(&name), "{text}");
        }
        let mut model = model(state);
        model.act(Action::Open);
        let rows = model.rows.len();
        let mut details = (0..rows).map(|_| {
            model.act(Action::Next);
            self::screen(&mut model, 80, 24)
        });
        let says = details.any(|text| text.contains("--subscriber"));
        assert_eq!(says, bound == Bound::MOST);
    }
}

#[test]
fn a_cascade_that_keeps_up_shows_how_old_its_data_is() {
    let mut state = calm();
    let link = &mut state.links[1];
    link.upstream = "standby1".to_owned();
    link.behind_primary = Some(BehindPrimary {
        behind: true,
        lag_ms: 82_000.0,
        lag_is_least: true,
        lag_most_ms: None,
        lag_bytes: 1e6,
    });
    let mut model = model(state);
    let text = screen(&mut model, 120, 24);
    let words = "its data is ≥82 s old: keeps up with standby1";
    assert!(text.contains(words), "{text}");
    model.act(Action::Open);
    let mut details = String::new();
    for action in [Action::Previous, Action::Next] {
        for _ in 0..model.rows.len() {
            model.act(action);
            details.push_str(&screen(&mut model, 120, 40));
        }
    }
    assert!(details.contains("≥82 s behind the primary"), "{details}");
}

#[test]
fn tables() {
    for (name, state) in [
        ("calm", calm()),
        ("trouble", trouble()),
        ("asked", asked()),
        ("crowd", crowd()),
        ("relayed", relayed()),
    ] {
        for (columns, lines) in SIZES {
            let text = screen(&mut model(state.clone()), columns, lines);
            snapshot(&format!("table-{name}-{columns}x{lines}"), &text);
        }
        let text = screen(&mut model(state.clone()), 200, 50);
        snapshot(&format!("table-{name}-200x50"), &text);
    }
}

/// No width takes the cause away, and each figure keeps its column.
#[test]
fn every_width_shows_lag_and_cause() {
    for columns in (40..=300).step_by(1) {
        let text = screen(&mut model(trouble()), columns, 24);
        let lines: Vec<&str> = text.lines().collect();
        let head = lines.iter().find(|line| line.contains("NAME")).unwrap();
        for needed in ["LAG", "CAUSE"] {
            assert!(head.contains(needed), "{columns}: {head}");
        }
        assert_eq!(head.contains("REPLAY"), columns >= 160, "{columns}: {head}");
        let row = lines
            .iter()
            .find(|line| line.contains("!standby1"))
            .unwrap();
        assert!(
            row.contains("12 s") && row.contains("replay"),
            "{columns}: {row}"
        );
    }
}

#[test]
fn details() {
    for key in ["standby1", "standby2", "first", "primary"] {
        for (columns, lines) in SIZES {
            let mut model = model(trouble());
            open(&mut model, key);
            let text = screen(&mut model, columns, lines);
            snapshot(&format!("detail-{key}-{columns}x{lines}"), &text);
        }
    }
}

#[test]
fn details_of_a_relay() {
    let mut model = model(relayed());
    open(&mut model, "relay (shop)");
    snapshot("detail-relay-80x60", &screen(&mut model, 80, 60));
}

#[test]
fn details_of_the_extension() {
    let mut model = model(trouble());
    open(&mut model, "standby1");
    snapshot("detail-standby1-80x60", &screen(&mut model, 80, 60));
}

fn open(model: &mut Model, key: &str) {
    model.act(Action::First);
    while model.row().unwrap().key != key {
        let before = model.index();
        model.act(Action::Down);
        assert_ne!(model.index(), before, "there is no row {key}");
    }
    model.act(Action::Open);
    assert_eq!(model.page, Page::Detail);
}

#[test]
fn a_replica_of_lockstep_is_called_so() {
    let mut state = calm();
    let mut links = state.links.iter_mut();
    let link = links.find(|link| link.kind == LinkKind::Logical).unwrap();
    link.lockstep_replica = Some(ReplicaReport {
        doing: Some(Doing::CatchingUp),
        ..ReplicaReport::unasked("app")
    });
    let name = link.replica.clone();
    let lines = plain::lines(&state);
    let row = lines.lines().find(|line| line.contains(&name)).unwrap();
    assert!(row.contains(" replica "), "{lines}");
    let mut model = model(state);
    open(&mut model, &name);
    let screen = screen(&mut model, 80, 24);
    assert!(
        screen.contains("lockstep replica app, catching up"),
        "{screen}"
    );
}

#[test]
fn a_cluster_is_named_and_its_place_among_several() {
    let mut state = calm();
    let first = |model: &mut Model| {
        let text = screen(model, 80, 24);
        text.lines().next().unwrap().to_owned()
    };
    let unnamed = first(&mut model(state.clone()));
    state.cluster = Some("shop".to_owned());
    let mut model = model(state);
    assert!(!unnamed.contains("shop"), "{unnamed}");
    assert!(
        first(&mut model).starts_with("shop: "),
        "{}",
        first(&mut model)
    );
    model.place = (1, 3);
    assert!(
        first(&mut model).starts_with("shop (2 of 3, Tab): "),
        "{}",
        first(&mut model)
    );
    let line = super::plain::lines(&model.state)
        .lines()
        .next()
        .unwrap()
        .to_owned();
    assert!(line.contains(" shop "), "{line}");
}

#[test]
fn help_and_smaller_screens() {
    for (columns, lines) in SIZES {
        let mut model = model(trouble());
        model.act(Action::Help);
        snapshot(
            &format!("help-{columns}x{lines}"),
            &screen(&mut model, columns, lines),
        );
    }
    let text = screen(&mut model(trouble()), 39, 24) + &screen(&mut model(trouble()), 30, 4);
    snapshot("too-small", &text);
    // No size of the screen makes it panic.
    for (columns, lines) in [(1, 1), (1, 50), (200, 1), (40, 9), (41, 11), (300, 100)] {
        for actions in [&[][..], &[Action::Open], &[Action::Help]] {
            let mut model = model(crowd());
            actions.iter().for_each(|action| model.act(*action));
            screen(&mut model, columns, lines);
        }
    }
}

#[test]
fn lines_for_pipes() {
    snapshot(
        "plain",
        &(plain::lines(&trouble()) + &plain::lines(&calm())),
    );
}

#[test]
fn without_colours_nothing_has_one() {
    for (colours, expected) in [(true, true), (false, false)] {
        for actions in [&[][..], &[Action::Open], &[Action::Help]] {
            let mut model = model(trouble());
            actions.iter().for_each(|action| model.act(*action));
            let buffer = buffer(&mut model, 80, 24, colours);
            let coloured =
                |cell: &ratatui::buffer::Cell| cell.fg != Color::Reset || cell.bg != Color::Reset;
            assert_eq!(buffer.content().iter().any(coloured), expected);
        }
    }
}

#[test]
fn rows_have_an_order() {
    let long = "a_slot_with_a_very_long_name_of_some_team";
    for (by, reverse, expected) in [
        (
            SortBy::Lag,
            false,
            ["standby2", "standby3", long, "standby1", "first", "second"],
        ),
        (
            SortBy::Lag,
            true,
            ["second", "first", "standby1", long, "standby2", "standby3"],
        ),
        (
            SortBy::Name,
            false,
            [long, "first", "second", "standby1", "standby2", "standby3"],
        ),
        (
            SortBy::Name,
            true,
            ["standby3", "standby2", "standby1", "second", "first", long],
        ),
        (
            SortBy::Bytes,
            false,
            [long, "standby1", "first", "second", "standby2", "standby3"],
        ),
        (
            SortBy::Cause,
            false,
            ["standby3", "standby2", long, "standby1", "first", "second"],
        ),
    ] {
        let mut found = rows(&trouble());
        sort(&mut found, by, reverse);
        let names: Vec<&str> = found.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(
            (names[0], &names[1..]),
            ("primary", &expected[..]),
            "{by:?} {reverse}"
        );
    }
    let mut found = rows(&crowd());
    sort(&mut found, SortBy::Name, false);
    let numbers = found[1..].iter().map(|row| {
        row.name
            .trim_start_matches("standby")
            .parse::<u32>()
            .unwrap()
    });
    assert!(numbers.eq(1..=40));
}

#[test]
fn small_lags_do_not_change_places() {
    let mut state = calm();
    let names = |state: &MonitorState| {
        let mut rows = rows(state);
        sort(&mut rows, SortBy::Lag, false);
        rows.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    let before = names(&state);
    state.links[0].lag_ms = 90.0;
    state.links[2].lag_ms = 120.0;
    assert_eq!(names(&state), before);
}

#[test]
fn each_finding_is_on_a_row() {
    let mut state = trouble();
    let at = |state: &MonitorState, name: &str| {
        let rows = rows(state);
        let row = rows.iter().find(|row| row.name == name).unwrap();
        (row.status, row.cause.clone())
    };
    assert_eq!(at(&state, "first").0, Status::Lag);
    assert_eq!(at(&state, "standby2").0, Status::Lost);
    assert_eq!(at(&state, "second").0, Status::Warning);
    // A finding about an unused slot is shown on the node that has the slot.
    let primary = at(&state, "primary");
    assert_eq!(
        primary,
        (
            Status::Warning,
            "a slot keeps WAL and nobody uses it".to_owned()
        )
    );
    // One about a used slot is shown on its replica; one about all slots on each logical replica.
    let mut slot = fixture::finding(
        "slot second_slot on primary",
        Cause::RetainedWalNearLimit,
        Severity::Lag,
        "near",
    );
    slot.names.insert("upstream", "primary".to_owned());
    state.diagnosis.findings = vec![slot];
    assert_eq!(at(&state, "second"), (Status::Lag, "near".to_owned()));
    assert_eq!(at(&state, "primary").0, Status::Fine);
    let all = fixture::finding(
        "all slots of primary",
        Cause::SlowDecoding,
        Severity::Lag,
        "slow",
    );
    state.diagnosis.findings = vec![all];
    for (name, expected) in [
        ("first", "slow"),
        ("second", "slow"),
        ("standby1", "behind, for no reason that is known yet"),
    ] {
        assert_eq!(at(&state, name).1, expected);
    }
    // One about an unknown node is not lost.
    state.diagnosis.findings = vec![fixture::finding(
        "elsewhere",
        Cause::SlowNetwork,
        Severity::Lag,
        "odd",
    )];
    assert_eq!(at(&state, "primary"), (Status::Lag, "odd".to_owned()));
}

/// One that nobody has named has stopped: its slot was used a moment ago, and no position says that it lags.
#[test]
fn a_replica_of_which_a_check_is_not_known_is_not_called_ok() {
    for (at, check, expected) in [
        ("slot standby1_slot on primary", "slot", true),
        ("standby1", "keeps_up", true),
        ("standby1", "published", false),
        ("first", "keeps_up", false),
    ] {
        let mut state = trouble();
        state.diagnosis.findings.clear();
        let link = state.links.iter_mut().find(|it| it.replica == "standby1");
        link.unwrap().behind = false;
        let words = "its consumer was connected, and is not now";
        let report = CheckReport {
            check,
            at: at.to_owned(),
            answer: Answer::NotKnown,
            words: words.to_owned(),
            proves: "",
        };
        state.diagnosis.checks = vec![report];
        let rows = rows(&state);
        let row = rows.iter().find(|row| row.name == "standby1").unwrap();
        let said = row.status == Status::Warning && row.cause == words;
        assert_eq!(
            said, expected,
            "{at} {check}: {:?} {}",
            row.status, row.cause
        );
    }
}

#[test]
fn who_does_not_answer_for_long_is_not_believed() {
    for (every_s, age_ms, status) in [
        (1.0, 4_900.0, Status::Lag),
        (1.0, 5_000.0, Status::Lost),
        (10.0, 29_000.0, Status::Lag),
        (10.0, 30_000.0, Status::Lost),
    ] {
        let mut state = trouble();
        state.every_s = every_s;
        state.nodes[1].sample_age_ms = Some(age_ms);
        let rows = rows(&state);
        let row = rows.iter().find(|row| row.name == "standby1").unwrap();
        assert_eq!(row.status, status, "{every_s} {age_ms}");
        assert_eq!(
            row.cause.starts_with("no answer for"),
            status == Status::Lost
        );
    }
}

#[test]
fn subscribers_with_several_subscriptions_have_a_row_each() {
    let mut state = calm();
    let mut second = state.links[2].clone();
    state.links[2].replica = "subscriber (a)".to_owned();
    second.replica = "subscriber (b)".to_owned();
    state.links.push(second);
    let keys: Vec<String> = rows(&state).into_iter().map(|row| row.key).collect();
    let expected = [
        "primary",
        "standby1",
        "standby2",
        "subscriber (a)",
        "subscriber (b)",
        "primary/warehouse_export",
    ];
    assert_eq!(keys, expected);
}

#[test]
fn the_headline_says_what_is_worst() {
    let mut lost_only = calm();
    lost_only.nodes[1] = fixture::lost("standby1", lockstep_lag::Role::Standby, "unreachable");
    lost_only.links.remove(0);
    lost_only.diagnosis.healthy = false;
    let mut hidden = calm();
    hidden.diagnosis.healthy = false;
    hidden.diagnosis.unknown = vec!["primary does not show x".to_owned()];
    for (state, status, words) in [
        (
            hidden,
            Status::Warning,
            "not known whether all replicas keep up",
        ),
        (calm(), Status::Fine, "healthy: all 4 replicas keep up"),
        (asked(), Status::Asked, "asking 4 nodes…"),
        (
            trouble(),
            Status::Lag,
            "3 of 6 replicas lag · 2 nodes unusable · 2 warnings",
        ),
        (lost_only, Status::Lost, "1 node unusable"),
    ] {
        let found = headline(&rows(&state), &state.diagnosis);
        assert_eq!(found, (status, words.to_owned()));
    }
}

/// The model after these keys.
fn after(state: MonitorState, actions: &[Action]) -> Model {
    let mut model = model(state);
    for action in actions {
        model.act(*action);
        screen(&mut model, 80, 24);
    }
    model
}

#[test]
fn keys_select_and_open() {
    use Action::{Back, Down, First, Last, Next, Open, PageDown, PageUp, Previous, Up};
    // Without a selection the worst row is current. Moves stop at the ends.
    for (actions, key, page) in [
        (&[][..], "standby2", Page::Table),
        (&[Down], "standby3", Page::Table),
        (&[Up, Up, Up], "primary", Page::Table),
        (&[Last, Down], "second", Page::Table),
        (&[First, PageDown], "second", Page::Table),
        (&[Last, PageUp], "primary", Page::Table),
        (&[Open], "standby2", Page::Detail),
        (
            &[Open, Next, Next],
            "primary/a_slot_with_a_very_long_name_of_some_team",
            Page::Detail,
        ),
        (&[First, Open, Previous], "primary", Page::Detail),
        (&[Open, Back], "standby2", Page::Table),
        (&[Last, Back], "standby2", Page::Table),
        (&[Last, Action::Sort(SortBy::Name)], "second", Page::Table),
        (&[Last, Action::Reverse], "second", Page::Table),
        (&[Action::Help, Down, Down, Back], "standby2", Page::Table),
        (&[Action::Help, Open], "standby2", Page::Table),
    ] {
        let model = after(trouble(), actions);
        let found = (model.row().unwrap().key.as_str(), &model.page);
        assert_eq!(found, (key, &page), "{actions:?}");
        assert!(!model.quit);
    }
    assert!(after(trouble(), &[Open, Action::Quit]).quit);
    assert!(after(asked(), &[Action::Help, Action::Quit]).quit);
    assert_eq!(after(calm(), &[Action::Span; 3]).minutes(), 60);
    assert_eq!(after(calm(), &[Action::Span; 4]).minutes(), 2);
}

#[test]
fn the_table_and_the_detail_scroll_no_further_than_their_ends() {
    use Action::{Down, Last, Open, PageDown, PageUp, Up};
    let mut end = after(crowd(), &[Last]);
    assert!(end.offset > 0 && end.index() == 40);
    assert!(screen(&mut end, 80, 24).contains("\n> standby40 "));
    let back = after(crowd(), &[Last, PageUp, PageUp, PageUp]);
    assert_eq!((back.offset, back.index()), (0, 0));
    let mut detail = after(trouble(), &[Down, Down, Down, Open]);
    assert_eq!(detail.row().unwrap().key, "standby1");
    (0..100).for_each(|_| detail.act(Down));
    let bottom = screen(&mut detail, 80, 24);
    assert!(bottom.contains("demoted by"), "{bottom}");
    assert!(
        bottom.lines().nth(22).is_some_and(|line| !line.is_empty()),
        "{bottom}"
    );
    detail.act(Up);
    assert_ne!(screen(&mut detail, 80, 24), bottom);
    detail.act(PageDown);
    assert_eq!(screen(&mut detail, 80, 24), bottom);
    // On a larger screen everything fits again.
    assert!(screen(&mut detail, 80, 60).contains("standby1 · physical from primary"));
}

#[test]
fn the_selection_stays_with_its_node() {
    let mut model = after(calm(), &[Action::First, Action::Down, Action::Open]);
    assert_eq!(model.row().unwrap().key, "standby1");
    let next = |model: &mut Model, mut state: MonitorState| {
        state.number = model.state.number + 1;
        model.update(Arc::new(state), Vec::new());
    };
    // Other nodes lag and the selected one is lost: its row moves, and keeps selection and history.
    let mut state = calm();
    state.links.remove(0);
    state.links[1].behind = true;
    state.nodes[1] = fixture::lost("standby1", lockstep_lag::Role::Standby, "unreachable: gone");
    next(&mut model, state.clone());
    let row = model.row().unwrap();
    assert_eq!(
        (row.key.as_str(), row.status, &model.page),
        ("standby1", Status::Lost, &Page::Detail)
    );
    assert_eq!(model.series(row).count(), 120);
    // When the row is gone, its details are closed.
    state.nodes.remove(1);
    next(&mut model, state);
    assert_eq!(model.page, Page::Table);
}

#[test]
fn a_pause_holds_the_picture() {
    let mut model = after(calm(), &[Action::Pause]);
    let held = screen(&mut model, 80, 24);
    assert!(held.contains("PAUSED at 20:05:12 UTC"));
    model.update(Arc::new(trouble()), Vec::new());
    assert_eq!(screen(&mut model, 80, 24), held);
    model.act(Action::Pause);
    model.update(Arc::new(trouble()), Vec::new());
    assert!(screen(&mut model, 80, 24).contains("3 of 6 replicas lag"));
}
