//! The pool in `lockstep serve`: as JSON, and on the page in a real browser; and an agent inside it.

use std::path::Path;

use lockstep_lab::assert_has;
use lockstep_lab::for_tests::{TestLab, free_port};
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::browser::Browser;
use crate::pool_haproxy::{lockstep, nodes_file};
use crate::pool_support::Agent;
use crate::serve_support::{Serve, until};

#[test]
fn the_pool_is_shown_as_its_agents_tell_it() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let login = lab.folder().join("login");
    std::fs::write(&login, "ann:secret\n").unwrap();
    set_private(&login);
    let with_login = ["--auth-file", login.to_str().unwrap()];
    let agents = [&primary, &standby].map(|node| Agent::start(&primary, node, &with_login));
    let [of_primary, of_standby] = &agents;
    let all = [
        (&primary, "primary", of_primary),
        (&standby, "standby", of_standby),
    ];
    let file = nodes_file(&lab, &all);
    add_third(&file);

    let nodes = ["--nodes", file.to_str().unwrap()];
    let without = Serve::start(&nodes);
    assert_eq!(without.get("/api/pool").json()["asked"], false);
    let login = ["--pool", "--agent-login", login.to_str().unwrap()];
    let serve = Serve::start(&[&nodes[..], &login].concat());
    is_told(&serve);

    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&format!("http://{}/", serve.address));
    is_drawn(&browser, &standby);
    browser.open(&format!("http://{}/", without.address));
    until("the page without a pool is drawn", || {
        let words = browser.text("return document.getElementById('news').textContent");
        (!words.is_empty()).then_some(())
    });
    assert_eq!(
        browser.run("return document.getElementById('pool').hidden"),
        true
    );
}

/// Adds a node that has no agent.
fn add_third(file: &Path) {
    let mut text = std::fs::read_to_string(file).unwrap();
    let nowhere = free_port().unwrap();
    text.push_str(&format!(
        "[[node]]\nname = \"third\"\nrole = \"standby\"\ndoor = \"reports\"\n\
         conninfo = \"host=/nowhere\"\nagent = \"127.0.0.1:{nowhere}\"\n"
    ));
    std::fs::write(file, text).unwrap();
}

fn is_told(serve: &Serve) {
    let told = until("all is told", || {
        let told = serve.get("/api/pool").json();
        let answer = |index: usize| &told["nodes"][index]["answer"];
        let all = answer(0)["takes_writes"] == true && answer(1)["state"] == "in";
        all.then_some(told)
    });
    let second = &told["nodes"][1]["answer"];
    assert_eq!(second["door"], "fresh", "{told}");
    assert!(second["sessions"].is_number(), "{told}");
    assert!(second["staleness_ms"].is_number(), "{told}");
    let third = &told["nodes"][2];
    assert_eq!(
        (&third["answer"], &told["trouble"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(third["door"], "reports");
}

fn is_drawn(browser: &Browser, standby: &Server) {
    let card = |name: &str| {
        browser.text(&format!(
            "const card = [...document.querySelectorAll('#pool-list > li')]
                 .find((card) => card.querySelector('h3').textContent === '{name}');
             return card ? card.textContent : ''"
        ))
    };
    let has = |name: &str, parts: &[&str]| {
        let mut last = String::new();
        until(&format!("{name}: {parts:?}"), || {
            let words = card(name);
            if words != last {
                println!("{name}: {words}");
                last.clone_from(&words);
            }
            parts.iter().all(|part| words.contains(part)).then_some(())
        });
    };
    has("primary", &["primary, fresh", "takes the writes"]);
    has(
        "standby",
        &[
            "replica, fresh",
            "✓ takes sessions",
            "staleness",
            "warm",
            "connections",
        ],
    );
    has("third", &["its agent cannot be asked", "reports"]);
    standby.run("SELECT pg_wal_replay_pause()");
    has("standby", &["△ is late: replay is paused"]);
    let words = browser.text("return document.getElementById('pool-words').textContent");
    assert!(words.starts_with("0 of 3 nodes take readers"), "{words}");
    standby.run("SELECT pg_wal_replay_resume()");
    has("standby", &["✓ takes sessions"]);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

fn set_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// An agent inside `serve` answers as one does that is a process of its own.
#[test]
fn an_agent_runs_inside_serve() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let of_primary = Agent::start(&primary, &primary, &[]);
    let [http, agent_check] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port().unwrap()));
    let node = |server: &Server, role: &str, [agent, check]: [&str; 2]| {
        let conninfo = server.conninfo(SUPERUSER);
        format!(
            "[[node]]\nname = \"{role}1\"\nrole = \"{role}\"\nconninfo = \"{conninfo}\"\n\
             agent = \"{agent}\"\nagent_check = \"{check}\"\n"
        )
    };
    let of_primary_at = [of_primary.serve.address.as_str(), &of_primary.agent_check];
    let text = node(&primary, "primary", of_primary_at)
        + &node(&standby, "standby", [&http, &agent_check]);
    let file = lab.write_file("nodes.toml", &text).unwrap();
    let login = lab.folder().join("login");
    std::fs::write(&login, "ann:word\n").unwrap();
    set_private(&login);
    let nodes = ["serve", "--nodes", file.to_str().unwrap()];
    refused(&nodes, &of_primary.serve.address);

    let mut serve = Serve::start(
        &[
            &nodes[1..],
            &["--pool", "--auth-file", login.to_str().unwrap()],
            &["--agent", "standby1", "--agent-listen", &http],
            &["--agent-check", &agent_check, "--rise", "1s"],
            &["--bound", "2s", "--settle", "2s"],
        ]
        .concat(),
    );
    let places = until("it says so", || serve.logged("the agent answers on"));
    assert_has!(places, &http);
    let login = "Authorization: Basic YW5uOndvcmQ=";
    let own = serve.address.clone();
    assert_eq!(serve.get("/api/pool").status, 401);
    let shows = |serve: &Serve, state: &str| {
        until(&format!("the page's pool is {state}"), || {
            let told = serve.ask("GET /api/pool", &[login]).json();
            (told["nodes"][1]["answer"]["state"] == state).then_some(())
        });
    };
    shows(&serve, "in");
    // From here on the agent is asked, in the same process.
    serve.address = http;
    let mut agent = Agent { serve, agent_check };
    let said = agent.await_state("in", None);
    assert_eq!(
        (&said["role"], &said["door"]),
        (&"replica".into(), &"fresh".into())
    );
    assert_eq!(agent.serve.get("/pool/fresh").status, 200);
    assert_has!(agent.haproxy_hears("fresh"), "up ");
    assert_eq!(agent.serve.get("/status").status, 401);
    let all = agent.serve.ask("GET /status", &[login]).json();
    assert!(all["node"]["shown"].is_string(), "{all}");

    agent.serve.signal(Signal::SIGUSR1);
    agent.await_state("draining", Some("drained"));
    agent.serve.address = own;
    shows(&agent.serve, "draining");
    agent.serve.signal(Signal::SIGUSR2);
    shows(&agent.serve, "in");
    agent.serve.signal(Signal::SIGTERM);
    assert!(agent.serve.ended().success());
}

/// What `serve --agent` refuses: it ends with this code and these words.
fn refused(nodes: &[&str], taken: &str) {
    let listen = ["--listen", "127.0.0.1:0", "--agent-check", "127.0.0.1:0"];
    for (more, code, words) in [
        (
            &["--agent", "nobody"][..],
            2,
            "no node of the nodes file is called nobody",
        ),
        (&["--bound", "1s"], 2, "--agent"),
        (
            &["--agent", "standby1", "--bound", "1ms"],
            2,
            "give --bound of",
        ),
        (
            &["--agent", "standby1", "--agent-listen", taken],
            1,
            "with --agent-listen",
        ),
    ] {
        let mut args = [nodes, more].concat();
        if more.contains(&"--agent") {
            args.extend(listen);
        }
        let output = lockstep(&args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{more:?}: {said}");
        assert!(said.contains(words), "{more:?}: {said}");
    }
}
