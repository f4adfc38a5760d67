//! docs/moving.md, as a newcomer follows it: all commands of the page, one after the other.

use std::fs;
use std::process::Command;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;

use super::house::root;
use crate::replica::{conninfo, on, server, text, value};

/// What an application has, with what a move may forget: a role, settings, a sequence that has moved on, a
/// view of a view.
const APPLICATION: &str = "
CREATE ROLE shop; ALTER DATABASE app SET work_mem = '5MB'; GRANT CREATE ON DATABASE app TO shop;
CREATE TABLE item (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL);
ALTER TABLE item OWNER TO shop;
CREATE TABLE sale (id bigserial PRIMARY KEY, item bigint REFERENCES item, at timestamptz DEFAULT now());
CREATE SEQUENCE unused START 5;
CREATE MATERIALIZED VIEW sold AS SELECT item, count(*) AS sales FROM sale GROUP BY item;
CREATE MATERIALIZED VIEW best AS SELECT max(sales) AS sales FROM sold;
INSERT INTO item (name) SELECT 'item ' || i FROM generate_series(1, 100) i;
INSERT INTO sale (item) SELECT 1 + i % 100 FROM generate_series(1, 1000) i;
REFRESH MATERIALIZED VIEW sold; REFRESH MATERIALIZED VIEW best";

/// The page's commands. Those of step 1 name the reader's servers, which are these here. Those for which
/// clients wait have more time, since this machine may be busy.
fn commands(page: &str, source: &Server, target: &Server) -> String {
    let lines = page.lines().filter_map(|line| line.strip_prefix("    "));
    let named = lines.map(|line| {
        let line = (line.replace(" user=postgres", ""))
            .replace("host=old ", &format!("{} ", conninfo(source)))
            .replace("host=new ", &format!("{} ", conninfo(target)));
        let is_waited_for = ["switchover", "rollback"]
            .iter()
            .any(|command| line.starts_with(&format!("lockstep replica {command} ")));
        match is_waited_for {
            true => format!("{line} --max-pause 60s --timeout 300s"),
            false => line,
        }
    });
    named.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_newcomer_who_follows_the_chapter_arrives() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    on(&source, APPLICATION);
    target.run("DROP DATABASE app");
    let page = fs::read_to_string(root().join("docs/moving.md")).unwrap();
    let script = commands(&page, &source, &target);
    // Somebody sells while the replica follows, and counts twice afterwards.
    let sells = "lockstep replica status app_copy";
    let sale = "psql -Xq -d \"$SOURCE\" -c \"INSERT INTO sale (item) SELECT 1 FROM generate_series(1, 50)\"";
    assert!(script.contains(sells), "{script}");
    let script = script.replacen(sells, &format!("{sale}\n{sells}"), 1);
    // A command that fails must not leave the process behind that applies: it would keep this test waiting.
    let script = format!("trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n{script}");
    let programs = env!("CARGO_BIN_EXE_lockstep");
    let programs = std::path::Path::new(programs).parent().unwrap();
    let path = [programs, lab.package().bin()]
        .map(|folder| folder.display().to_string())
        .join(":");
    let ran = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()))
        .output()
        .unwrap();
    let said = format!("{}\n{}", text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("source and target are equal"), "{said}");

    for (query, wanted) in [
        ("SELECT count(*) FROM sale", "1050"),
        ("SELECT sales FROM best", "60"),
        ("SELECT nextval('sale_id_seq')", "1051"),
        ("SELECT nextval('unused')", "5"),
        ("SHOW work_mem", "5MB"),
        ("SHOW default_transaction_read_only", "off"),
        (
            "SELECT has_database_privilege('shop', 'app', 'CREATE')",
            "t",
        ),
        (
            "SELECT tableowner FROM pg_tables WHERE tablename = 'item'",
            "shop",
        ),
        ("SELECT count(*) FROM pg_replication_origin", "0"),
    ] {
        assert_eq!(value(&target, query), wanted, "{query}");
    }
    // The old server is there, and takes no writes.
    assert_eq!(value(&source, "SHOW default_transaction_read_only"), "on");
    assert_eq!(value(&source, "SELECT count(*) FROM sale"), "1050");
    let left = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!([value(&source, left), value(&target, left)], ["0", "0"]);
}
