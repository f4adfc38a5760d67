//! What a role's own settings and memberships do to what doctor can see.

use crate::doctor_support::{brief, doctor, once_right};
use crate::relay_support::until;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{Server, Settings};
use serde_json::Value;

const ROLE: &str = "watcher";

fn examine(primary: &Server, standby: &Server) -> (i32, Value) {
    let [primary, standby] = [primary, standby].map(|server| server.conninfo(ROLE));
    let nodes = ["--primary", &primary, "--standby", &standby];
    let said = doctor(&[&nodes[..], &["--seconds", "2", "--output", "json"]].concat());
    let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    (said.code, json)
}

#[test]
fn a_member_that_inherits_nothing_is_told_what_helps() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    primary.run(&format!(
        "CREATE ROLE {ROLE} LOGIN NOINHERIT IN ROLE pg_monitor; \
         ALTER ROLE {ROLE} SET default_transaction_isolation = serializable; \
         ALTER ROLE {ROLE} SET idle_session_timeout = '50ms'; \
         ALTER ROLE {ROLE} SET search_path = public"
    ));
    let standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    // A session that gets no processor for 50 ms when it begins is ended before it can say that it may be
    // idle.
    let is_kept = |(code, json): &(i32, Value)| {
        let nodes = json["nodes"].as_array().unwrap();
        let troubles = |node: &Value| node["troubles"].as_array().map_or(0, Vec::len);
        *code == 7 && nodes.iter().all(|node| troubles(node) == 1)
    };
    let (code, json) = once_right(|| examine(&primary, &standby), is_kept);
    assert_eq!(code, 7, "{}", brief(&json));
    for node in json["nodes"].as_array().unwrap() {
        assert_eq!(node["usable"], true, "{node}");
        let troubles = node["troubles"].as_array().unwrap();
        assert_eq!(troubles.len(), 1, "{node}");
        let reason = troubles[0]["reason"].as_str().unwrap();
        let (why, remedy) = reason.split_once("; ").unwrap();
        assert_eq!(
            why,
            "the role is a member of pg_monitor and does not inherit its rights"
        );
        primary.run(remedy);
    }
    let healthy = until("the standby has the right, too", || {
        let (code, json) = examine(&primary, &standby);
        (code == 0).then_some(json)
    });
    assert_eq!(healthy["healthy"], true, "{}", brief(&healthy));
}
