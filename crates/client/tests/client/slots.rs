//! Slots, identity, history.

use lockstep_client::{ClientError, Step, WalStatus};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings, Stop};
use lockstep_wire::{Lsn, Timeline};

use super::{assert_line, primary, replication, sql};

/// Whether the server asks for a list of plugins (15.20 and later).
fn has_list(server: &Server) -> bool {
    server
        .query_text("SELECT name FROM pg_settings WHERE name = 'output_plugin_libraries'")
        .unwrap()
        .is_some()
}

#[test]
fn slots_are_made_copied_seen_and_dropped() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut upstream = replication(&server);

    let who = upstream.identify().unwrap();
    assert_eq!(who.timeline, Timeline::FIRST);
    assert_eq!(who.database.as_deref(), Some("postgres"));
    assert!(who.end.is_valid());
    assert_eq!(upstream.timeline_history(who.timeline).unwrap(), []);
    assert_eq!(upstream.identify().unwrap().system, who.system);

    assert_eq!(upstream.slot("a").unwrap(), None);
    let at = upstream.create_slot("a", "pgoutput", false, false).unwrap();
    assert!(at >= who.end);
    let slot = upstream.slot("a").unwrap().unwrap();
    assert_eq!(slot.plugin.as_deref(), Some("pgoutput"));
    assert_eq!(slot.database.as_deref(), Some("postgres"));
    assert_eq!(slot.confirmed, at);
    assert!(slot.restart.is_valid() && slot.restart <= at);
    assert_eq!(slot.wal_status, Some(WalStatus::Reserved));
    assert_eq!((slot.active_pid, slot.invalidation), (None, None));
    assert!(!slot.two_phase && !slot.temporary && !slot.failover && !slot.synced);

    upstream.create_slot("b", "pgoutput", true, false).unwrap();
    assert!(upstream.slot("b").unwrap().unwrap().two_phase);
    // By a connection of the other kind.
    let copied = sql(&server).copy_slot("a", "c", "pgoutput").unwrap();
    assert_eq!(copied, at);
    assert_eq!(upstream.slot("c").unwrap().unwrap().confirmed, at);

    // Slots of these names exist already.
    let error = upstream.create_slot("a", "pgoutput", false, false);
    assert!(error.unwrap_err().refusal().is_some());
    let error = sql(&server).copy_slot("a", "b", "pgoutput");
    assert!(error.unwrap_err().refusal().is_some());
    for name in ["a", "b", "c"] {
        upstream.drop_slot(name).unwrap();
        assert_eq!(upstream.slot(name).unwrap(), None);
        let error = upstream.drop_slot(name).unwrap_err();
        assert!(error.is_missing_slot(), "{error:?}");
        assert_line(
            &error,
            &[&format!("drop slot \"{name}\""), "does not exist"],
        );
    }
    assert!(
        upstream
            .copy_slot("a", "b", "pgoutput")
            .unwrap_err()
            .is_missing_slot()
    );
    let error = upstream.start("a", Lsn::INVALID, &[]).unwrap_err();
    assert!(error.is_missing_slot(), "{error:?}");

    // A slot of physical replication is not ours to use, but can be looked at.
    server
        .execute("SELECT pg_create_physical_replication_slot('p')")
        .unwrap();
    let slot = sql(&server).slot("p").unwrap().unwrap();
    assert_eq!((slot.plugin, slot.database), (None, None));
    assert_eq!((slot.confirmed, slot.restart), (Lsn::INVALID, Lsn::INVALID));
}

#[test]
fn failover_slots_exist_from_17_on() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut upstream = replication(&server);
    let created = upstream.create_slot("f", "pgoutput", false, true);
    match upstream.server_version() {
        170_000.. => {
            created.unwrap();
            assert!(upstream.slot("f").unwrap().unwrap().failover);
            // A copy is none, until it is made one.
            upstream.copy_slot("f", "g", "pgoutput").unwrap();
            assert!(!upstream.slot("g").unwrap().unwrap().failover);
            upstream.make_failover_slot("g").unwrap();
            assert!(upstream.slot("g").unwrap().unwrap().failover);
            let missing = upstream.make_failover_slot("missing").unwrap_err();
            assert_line(&missing, &["make \"missing\" a failover slot"]);
        }
        _ => assert_line(&created.unwrap_err(), &["create slot \"f\"", "failover"]),
    }
}

#[test]
fn plugins_that_cannot_be_loaded_are_told_apart() {
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab);
    if has_list(&server) {
        let mut upstream = replication(&server);
        let error = upstream.create_slot("a", "nothing_there", false, false);
        let error = error.unwrap_err();
        assert!(error.is_library_not_allowed(), "{error:?}");
        assert!(!error.is_missing_library());
        upstream.create_slot("a", "pgoutput", false, false).unwrap();
        let error = upstream.copy_slot("a", "b", "nothing_there").unwrap_err();
        assert!(error.is_library_not_allowed(), "{error:?}");
        server
            .set([("output_plugin_libraries", "pgoutput, nothing_there")])
            .unwrap();
        server.restart().unwrap();
    }
    let mut upstream = replication(&server);
    let error = upstream.create_slot("b", "nothing_there", false, false);
    let error = error.unwrap_err();
    assert!(error.is_missing_library(), "{error:?}");
    assert!(!error.is_library_not_allowed());
    assert_line(&error, &["slot \"b\"", "plugin \"nothing_there\""]);
    // Nothing is left of it, and the connection goes on.
    assert_eq!(upstream.slot("b").unwrap(), None);
}

#[test]
fn names_are_names() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    server.execute("CREATE TABLE t ()").unwrap();
    let mut upstream = replication(&server);
    for name in [
        "a\"b",
        "a'b",
        "a\\'b",
        "x\" LOGICAL \"pgoutput\"; DROP TABLE t; --",
        "x', 'y'); DROP TABLE t; --",
        "A",
        "é",
    ] {
        // The server's own rule for slots: [a-z0-9_]. Some minor releases take no doubled
        // quote in a replication command, which is then a syntax error.
        let refused = |error: &ClientError, step, sqlstate| {
            let refusal = error.refusal().unwrap();
            assert_eq!(refusal.step, step);
            let syntax_error = name.contains('"') && refusal.sqlstate == "42601";
            assert!(refusal.sqlstate == sqlstate || syntax_error, "{error:?}");
        };
        let error = upstream.create_slot(name, "pgoutput", false, false);
        refused(&error.unwrap_err(), Step::CreateSlot, "42602");
        assert_eq!(upstream.slot(name).unwrap(), None);
        let error = upstream.drop_slot(name).unwrap_err();
        refused(&error, Step::DropSlot, "42704");
        let error = upstream.copy_slot(name, "b", "pgoutput").unwrap_err();
        assert!(error.is_missing_slot(), "{error:?}");
    }
    for name in ["", "a\0b", &"x".repeat(64)] {
        for error in [
            upstream
                .create_slot(name, "pgoutput", false, false)
                .map(drop),
            upstream.create_slot("a", name, false, false).map(drop),
            upstream.drop_slot(name),
            upstream.copy_slot("a", name, "pgoutput").map(drop),
        ] {
            let error = error.unwrap_err();
            assert!(matches!(error, ClientError::Name { .. }), "{error:?}");
        }
    }
    assert_eq!(upstream.slot(&"x".repeat(64)).unwrap(), None);
    let longest = "x".repeat(63);
    upstream
        .create_slot(&longest, "pgoutput", false, false)
        .unwrap();
    upstream.drop_slot(&longest).unwrap();
    assert_eq!(
        super::value(&mut upstream, "SELECT count(*) FROM public.t"),
        "0"
    );
}

#[test]
fn a_promoted_standby_tells_its_history() {
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab);
    let system = replication(&server).identify().unwrap().system;
    let mut standby = lab.standby(&server, "standby", &Settings::new()).unwrap();
    standby.catch_up(&server).unwrap();
    server.stop(Stop::Fast).unwrap();
    standby.promote().unwrap();
    let mut upstream = replication(&standby);
    let who = upstream.identify().unwrap();
    assert_eq!((who.system, who.timeline.get()), (system, 2));
    let history = upstream.timeline_history(who.timeline).unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].timeline, Timeline::FIRST);
    assert!(history[0].at.is_valid() && history[0].at <= who.end);
    let error = upstream.timeline_history(Timeline::new(7).unwrap());
    assert_line(&error.unwrap_err(), &["history of timeline 7"]);
}
