//! Several servers that take writes, and standbys that nobody points to the new primary: what agents say.

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::Role;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};

use crate::pool_support::Agent;
use crate::serve_support::until;

fn agent_of(node: &Server, servers: &[&Server]) -> Agent {
    Agent::start_among(servers, &node.conninfo(SUPERUSER), &[])
}

/// Waits until an agent sends writers to its node, or does not.
fn await_writes(agent: &Agent, takes_writes: bool) {
    until(&format!("takes_writes is {takes_writes}"), || {
        (agent.state()["takes_writes"] == takes_writes).then_some(())
    });
}

fn write(server: &Server) {
    let sql = "CREATE TABLE IF NOT EXISTS t (x int); INSERT INTO t VALUES (1)";
    server.run(sql);
}

#[test]
fn an_old_primary_that_comes_back_gets_no_writers() {
    let lab = TestLab::stock().start().unwrap();
    let mut old = lab.primary("old", None, &Settings::new()).unwrap();
    let mut new = lab.standby(&old, "new", &Settings::new()).unwrap();
    let mut left = lab.standby(&old, "left", &Settings::new()).unwrap();
    new.catch_up(&old).unwrap();
    left.catch_up(&old).unwrap();
    let of_left = agent_of(&left, &[&old, &new]);
    of_left.await_state("in", None);

    // Both standbys have all WAL, so that the one that is left behind could still follow.
    old.stop(Stop::Fast).unwrap();
    new.promote().unwrap();
    write(&new);
    of_left.await_state("late", Some("timeline_left"));
    until("it is late for longer than a standby usually takes", || {
        let said = of_left.state();
        assert_eq!(said["state"], "late", "{said}");
        (said["staleness_ms"].as_f64()? > 8_000.0).then_some(())
    });
    assert!(of_left.haproxy_hears("late-fresh").starts_with("up "));

    // Agents that start now believe no server before they have asked all.
    old.start().unwrap();
    let both = [&old, &new];
    let (of_old, of_new) = (agent_of(&old, &both), agent_of(&new, &both));
    await_writes(&of_new, true);
    of_old.await_state("out", Some("old_primary"));
    assert_eq!(of_old.serve.get("/primary").status, 503);
    assert!(of_old.haproxy_hears("writes").starts_with("down # "));
    assert_eq!(of_new.haproxy_hears("writes"), "up 100%");

    let upstream = new.conninfo(SUPERUSER);
    left.run("ALTER SYSTEM RESET primary_slot_name");
    left.run(&format!(
        "ALTER SYSTEM SET primary_conninfo = '{}'",
        upstream.replace('\'', "''")
    ));
    left.reload().unwrap();
    of_left.await_state("in", None);
}

#[test]
fn primaries_that_cannot_be_told_apart_get_no_writers() {
    let lab = TestLab::stock().start().unwrap();
    let mut first = lab.primary("first", None, &Settings::new()).unwrap();
    let mut one = lab.standby(&first, "one", &Settings::new()).unwrap();
    let mut other = lab.standby(&first, "other", &Settings::new()).unwrap();
    other.catch_up(&first).unwrap();
    other.stop(Stop::Fast).unwrap();
    write(&first);
    one.catch_up(&first).unwrap();
    first.stop(Stop::Immediate).unwrap();
    one.promote().unwrap();
    other.start().unwrap();
    other.promote().unwrap();
    // Both are on timeline 2, and each lacks what the other has.
    let beside = lab.standby(&other, "beside", &Settings::new()).unwrap();
    let both = [&one, &other];
    let (of_one, of_other) = (agent_of(&one, &both), agent_of(&other, &both));
    of_one.await_state("out", Some("rival_primary"));
    of_other.await_state("out", Some("rival_primary"));
    for agent in [&of_one, &of_other] {
        assert_eq!(agent.serve.get("/primary").status, 503);
        assert!(agent.haproxy_hears("writes").starts_with("down # "));
    }
    let of_beside = agent_of(&beside, &both);
    of_beside.await_state("late", Some("two_primaries"));
    let stranger = agent_of(&beside, &[&one]);
    let said = stranger.await_state("out", Some("other_history"));
    assert!(said["lag_bytes"].is_null(), "{said}");

    other.stop(Stop::Immediate).unwrap();
    await_writes(&of_one, true);
    of_one.await_state("out", Some("is_primary"));
}

#[test]
fn a_server_without_a_free_connection_is_full() {
    let lab = TestLab::stock().start().unwrap();
    let settings = Settings::from([("max_connections".to_owned(), "12".to_owned())]);
    let primary = lab.primary("primary", None, &settings).unwrap();
    let mut standby = lab.standby(&primary, "standby", &settings).unwrap();
    standby.catch_up(&primary).unwrap();
    standby.run("SELECT 1");
    primary.run("CREATE ROLE reader LOGIN");
    standby.catch_up(&primary).unwrap();
    let agent = Agent::start(&primary, &standby, &[]);
    agent.await_state("in", None);
    let conninfo = Conninfo::parse(&standby.conninfo("reader")).unwrap();
    let connect = || Connection::connect(&conninfo, Purpose::Sql, "test");
    let mut sessions = Vec::new();
    while let Ok(session) = connect() {
        sessions.push(session);
    }
    agent.await_state("out", Some("full"));
    assert_eq!(agent.serve.get("/pool/fresh").status, 404);
    assert!(agent.haproxy_hears("fresh").starts_with("up 0% # "));
    sessions.clear();
    agent.await_state("in", None);
    connect().unwrap();
}

#[test]
fn a_node_that_refuses_the_agent_is_silent() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let node = primary.conninfo("nobody_at_all");
    let agent = Agent::start_among(&[&primary], &node, &[]);
    agent.await_state("out", Some("node_silent"));
    let logged = until("it is logged", || {
        agent.serve.logged("cannot ask the node: ")
    });
    assert!(logged.contains("nobody_at_all"), "{logged}");
}

/// The node streams, but its agent cannot ask the primary: it knows no staleness, and the pool is not empty.
#[test]
fn an_agent_that_cannot_reach_the_primary_says_so() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let nowhere = lab.server(Role::Primary, "nowhere", None).unwrap();
    let agent = agent_of(&standby, &[&nowhere]);
    let said = agent.await_state("late", Some("primary_silent"));
    assert_eq!(said["staleness_known"], false, "{said}");
    assert!(said["staleness_ms"].is_null(), "{said}");
    assert_eq!(agent.serve.get("/pool/fresh").status, 404);
    assert_eq!(agent.haproxy_hears("late-fresh"), "up 1%");
    let logged = until("it is logged", || agent.serve.logged("cannot ask "));
    assert!(logged.contains(&nowhere.port().to_string()), "{logged}");
}
