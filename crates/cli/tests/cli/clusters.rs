//! Several clusters in one nodes file, of which Patroni names the members of one: a small HTTP server stands
//! in for Patroni.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::browser::Browser;
use crate::doctor_support::{Said, doctor, first_cause, once_right};
use crate::pool_haproxy::certificate;
use crate::serve_page::pictures;
use crate::serve_support::{Serve, until};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{TestLab, free_port};
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER, Server, Settings, Stop, settings_of};
use serde_json::{Value, json};
use tempfile::TempDir;

/// `user:password` in base64.
const LOGIN: &str = "Authorization: Basic dXNlcjpwYXNzd29yZA==";

/// What answers `GET /cluster`, to those with the login.
struct Patroni {
    port: u16,
    /// Status and body.
    answer: Arc<Mutex<(u16, String)>>,
}

impl Patroni {
    fn start(body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(Mutex::new((200, body.to_owned())));
        let now = Arc::clone(&answer);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let lines = lines.map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let (status, body) = match head.iter().any(|line| line == LOGIN) {
                    true => now.lock().unwrap().clone(),
                    false => (401, "no auth header received".to_owned()),
                };
                assert_eq!(head[0], "GET /cluster HTTP/1.0");
                let _ = write!(stream, "HTTP/1.0 {status} x\r\n\r\n{body}");
            }
        });
        Self { port, answer }
    }

    fn say(&self, status: u16, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    /// The table of the cluster in a nodes file; the first URL leads nowhere.
    fn table(&self, folder: &Path, conninfo: &str) -> String {
        let login = folder.join("login");
        fs::write(&login, "user:password\n").unwrap();
        fs::set_permissions(&login, fs::Permissions::from_mode(0o600)).unwrap();
        format!(
            "[[cluster]]\nname = 'shop'\npatroni = ['http://127.0.0.1:1', 'http://127.0.0.1:{}']\n\
             conninfo = '{conninfo}'\nlogin_file = '{}'\n",
            self.port,
            login.display()
        )
    }
}

/// A member as Patroni tells it.
fn member(name: &str, role: &str, server: &Server) -> Value {
    json!({
        "name": name, "role": role, "state": "running", "api_url": "http://127.0.0.1:8008/patroni",
        "host": server.sockets(), "port": server.port(), "timeline": 1,
    })
}

fn members(all: &[Value]) -> String {
    json!({ "members": all, "scope": "shop" }).to_string()
}

fn node(cluster: &str, name: &str, role: &str, conninfo: &str) -> String {
    format!(
        "[[node]]\ncluster = '{cluster}'\nname = '{name}'\nrole = '{role}'\nconninfo = '{conninfo}'\n"
    )
}

/// Names, roles, and whether each could be asked.
fn nodes(state: &Value) -> String {
    let nodes = state["nodes"].as_array().unwrap().iter();
    let words = nodes.map(|node| {
        let word = |key: &str| node[key].as_str().unwrap().to_owned();
        let usable = if node["usable"] == true { "" } else { " lost" };
        format!("{} {}{usable}", word("name"), word("role"))
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Cluster `shop`: a primary and a standby, by Patroni. Cluster `users`: a primary, and a standby that is
/// down.
struct Stage {
    patroni: Patroni,
    a: Server,
    b: Server,
    _users: Server,
    file: PathBuf,
}

impl Stage {
    fn start(lab: &Lab) -> Self {
        let a = lab.primary("a", None, &Settings::new()).unwrap();
        let b = lab.standby(&a, "b", &Settings::new()).unwrap();
        let users = lab.primary("users", None, &Settings::new()).unwrap();
        let patroni = Patroni::start(&members(&[
            member("a", "leader", &a),
            member("b", "replica", &b),
        ]));
        let down = format!("host={} port=1", lab.folder().display());
        let conninfo = format!("user={SUPERUSER} dbname={DATABASE}");
        let text = patroni.table(lab.folder(), &conninfo)
            + &node("users", "main", "primary", &users.conninfo(SUPERUSER))
            + &node("users", "far", "standby", &down);
        let file = lab.folder().join("nodes.toml");
        fs::write(&file, text).unwrap();
        Self {
            patroni,
            a,
            b,
            _users: users,
            file,
        }
    }
}

#[test]
fn one_serve_watches_clusters_and_follows_patroni() {
    let lab = TestLab::stock().start().unwrap();
    let mut stage = Stage::start(&lab);
    doctor_and_top_judge_each(&stage);
    let kept = TempDir::new().unwrap();
    let file = stage.file.to_str().unwrap();
    let folder = kept.path().to_str().unwrap();
    let serve = Serve::start(&["--nodes", file, "--history", folder, "--window", "5"]);
    serve_judges_each(&serve);
    for cluster in ["shop", "users"] {
        until("its history is kept", || {
            kept.path()
                .join(cluster)
                .join("history.redb")
                .exists()
                .then_some(())
        });
    }
    the_page_shows_each(&serve);
    // A failover: first there are two primaries, of which Patroni does not know, in one cluster only.
    stage.b.promote().unwrap();
    until("two primaries are found", || {
        let state = serve.get("/api/state?cluster=shop").json();
        (first_cause(&state["diagnosis"])? == "two_primaries").then_some(())
    });
    let users = serve.get("/api/state?cluster=users").json();
    assert_eq!(users["diagnosis"]["findings"], json!([]), "{users}");
    // Then the former primary is gone, and so is its Patroni.
    stage.a.stop(Stop::Immediate).unwrap();
    stage
        .patroni
        .say(200, &members(&[member("b", "leader", &stage.b)]));
    until("the new primary is watched as such", || {
        let state = serve.get("/api/state?cluster=shop").json();
        let has_left = first_cause(&state["diagnosis"]) == Some("member_left");
        (nodes(&state) == "b primary" && has_left).then_some(())
    });
    let left =
        "lockstep_cause{at=\"a\",cause=\"member_left\",severity=\"risk\",cluster=\"shop\"} 1\n";
    assert!(serve.get("/metrics").body.contains(left));
    // Patroni is out of order: its last list stays, and that is told.
    stage.patroni.say(503, "{}");
    let state = until("that Patroni cannot be asked is told", || {
        let state = serve.get("/api/state?cluster=shop").json();
        let unknown = state["diagnosis"]["unknown"].to_string();
        unknown.contains("Patroni cannot be asked").then_some(state)
    });
    assert_eq!(
        (nodes(&state).as_str(), &state["verdict"]["level"]),
        ("b primary", &json!("blind"))
    );
    assert_eq!(serve.get("/healthz?cluster=shop").status, 200);
    // A member whose server does not start has no address: that is no health.
    let failed =
        json!({"name": "n3", "role": "replica", "state": "start failed", "lag": "unknown"});
    let all = [member("b", "leader", &stage.b), failed];
    stage.patroni.say(200, &members(&all));
    let args = ["--nodes", file, "--cluster", "shop", "--seconds", "1"];
    let words = "n3 is not watched: Patroni gives no address for it; its state at Patroni is \"start failed\"";
    let plain = |said: &Said| said.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = once_right(|| doctor(&args), |said| plain(said).contains(words));
    let text = plain(&said);
    assert!(said.code != 0 && text.contains(words), "{}", said.text);
    assert!(!text.contains("Healthy"), "{text}");
    let ask = || doctor(&[&args[..], &["--output", "nagios"]].concat());
    let nagios = once_right(ask, |said| said.text.contains(words));
    assert!(
        nagios.text.contains(words) && nagios.code == 3,
        "{}",
        nagios.text
    );
    until("serve says so, too", || {
        let state = serve.get("/api/state?cluster=shop").json();
        state["diagnosis"]["unknown"]
            .to_string()
            .contains("n3 is not watched")
            .then_some(())
    });
}

fn doctor_and_top_judge_each(stage: &Stage) {
    let file = stage.file.to_str().unwrap();
    let ask = || doctor(&["--nodes", file, "--seconds", "1"]);
    let said = once_right(ask, |said| said.text.contains("Healthy"));
    assert_eq!(said.code, 4, "{} {}", said.text, said.error);
    let (shop, users) = said.text.split_once("Cluster users\n").unwrap();
    assert!(
        shop.starts_with("Cluster shop\n") && shop.contains("Healthy: no replica lags"),
        "{shop}"
    );
    assert!(
        !users.contains("Healthy") && users.contains("far"),
        "{users}"
    );
    assert_has!(said.error, "cluster users: nothing can be said about far");
    let of_shop = ["--nodes", file, "--cluster", "shop", "--output", "json"];
    let ask = || doctor(&[&of_shop[..], &["--seconds", "1"]].concat());
    let one = once_right(ask, |said| said.code == 0);
    let json: Value = serde_json::from_str(&one.text).unwrap();
    assert_eq!(
        (one.code, &json["cluster"], nodes(&json).as_str()),
        (0, &json!("shop"), "a primary, b standby")
    );
    let mut top = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    top.args(["top", "--nodes", file, "--count", "1", "--output", "json"]);
    let output = top.output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let mut shown: Vec<String> = lines.map(|state: Value| nodes(&state)).collect();
    shown.sort();
    assert_eq!(
        shown,
        ["a primary, b standby", "main primary, far standby lost"]
    );
}

/// The sick node of one cluster makes no other look sick.
fn serve_judges_each(serve: &Serve) {
    let levels = || {
        let told = serve.get("/api/clusters").json();
        let all = told["clusters"].as_array().unwrap().clone();
        let words = all.iter().map(|one| {
            format!(
                "{} {}",
                one["name"].as_str().unwrap(),
                one["verdict"]["level"].as_str().unwrap()
            )
        });
        words.collect::<Vec<_>>().join(", ")
    };
    until("each has its verdict", || {
        (levels() == "shop ok, users blind").then_some(())
    });
    assert_eq!(nodes(&serve.state()), "a primary, b standby");
    let users = serve.get("/api/state?cluster=users").json();
    assert_eq!(
        (&users["cluster"], nodes(&users).as_str()),
        (&json!("users"), "main primary, far standby lost")
    );
    let lost = |cluster: &str| {
        let path = format!("/api/incidents?cluster={cluster}");
        let told = serve.get(&path).json()["incidents"].clone();
        let told = told.as_array().unwrap().iter();
        told.filter(|one| one["matter"] == "lost").count()
    };
    assert_eq!((lost("shop"), lost("users")), (0, 1));
    assert_eq!(
        serve.get("/api/history?cluster=shop&step=1000").json()["links"][0]["id"],
        "a/b"
    );
    assert_eq!(serve.get("/healthz").status, 200);
    for path in ["/api/state", "/api/history", "/api/events", "/healthz"] {
        let answer = serve.get(&format!("{path}?cluster=none"));
        assert_eq!(
            (answer.status, answer.body.contains("there are shop, users")),
            (404, true),
            "{path}"
        );
    }
    let text = serve.get("/metrics").body;
    for line in [
        "lockstep_up{node=\"b\",role=\"standby\",cluster=\"shop\"} 1\n",
        "lockstep_up{node=\"far\",role=\"standby\",cluster=\"users\"} 0\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(text.matches("# TYPE lockstep_up gauge").count(), 1);
}

fn the_page_shows_each(serve: &Serve) {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&format!("http://{}/", serve.address));
    let clusters = "return [...document.querySelectorAll('#cluster-list li')].map((li) => li.textContent).join()";
    until("both clusters are there", || {
        (browser.text(clusters) == "✓shop,?users").then_some(())
    });
    let words = "return document.getElementById('words').textContent";
    until("the first is shown", || {
        (browser.text(words) == "shop: No replica lags").then_some(())
    });
    browser.run("document.querySelector('#cluster-list li:last-child a').click()");
    until("the other one is shown", || {
        let words = browser.text(words);
        (words == "users: No replica that could be asked lags; far cannot be asked").then_some(())
    });
    let marked = "return document.querySelector('#cluster-list [aria-current=page]')?.textContent";
    until("it is marked", || {
        (browser.text(marked) == "users").then_some(())
    });
    if let Some(folder) = pictures() {
        browser.picture(&folder.join("clusters.png"));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// A pool takes the members that Patroni names, with its agents at their usual ports.
#[test]
fn a_pool_has_the_members_that_patroni_names() {
    let folder = TempDir::new().unwrap();
    let of = |name: &str, role: &str, host: &str| json!({"name": name, "role": role, "state": "running", "host": host, "port": 5432});
    let all = [
        of("db1", "leader", "10.0.0.1"),
        of("db2", "sync_standby", "10.0.0.2"),
    ];
    let patroni = Patroni::start(&members(&all));
    let file = folder.path().join("nodes.toml");
    let other = node("users", "main", "primary", "host=10.0.0.9");
    fs::write(
        &file,
        patroni.table(folder.path(), "dbname=postgres") + &other,
    )
    .unwrap();
    let haproxy = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command
            .args(["pool", "haproxy", "--nodes"])
            .arg(&file)
            .args(more);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code().unwrap(), text.concat())
    };
    let (code, text) = haproxy(&["--cluster", "shop"]);
    assert_eq!(code, 0, "{text}");
    for place in ["10.0.0.1:5432", "10.0.0.2:5432"] {
        assert!(text.contains(place), "{place}: {text}");
    }
    assert!(!text.contains("10.0.0.9"), "{text}");
    let (code, text) = haproxy(&[]);
    assert_eq!(
        (code, text.contains("give --cluster NAME")),
        (2, true),
        "{text}"
    );
    patroni.say(500, "");
    let (code, text) = haproxy(&["--cluster", "shop"]);
    assert_eq!((code, text.contains("it answers 500")), (3, true), "{text}");
}

/// A server that gives files over TLS, until dropped.
struct Files(Child);

impl Files {
    fn start(folder: &Path, port: u16, [certificate, key]: &[String; 2]) -> Self {
        let server = Command::new("openssl")
            .args([
                "s_server",
                "-quiet",
                "-HTTP",
                "-cert",
                certificate,
                "-key",
                key,
            ])
            .args(["-accept", &format!("127.0.0.1:{port}")])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let server = Self(server.unwrap());
        until("it listens", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        server
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first URL answers something that is no list of members, the second speaks TLS.
#[test]
fn patroni_is_asked_with_tls_after_one_that_talks_nonsense() {
    let lab = TestLab::stock().start().unwrap();
    let a = lab.primary("a", None, &Settings::new()).unwrap();
    let b = lab.standby(&a, "b", &Settings::new()).unwrap();
    let folder = lab.folder();
    let Some(pair) = certificate(folder, false) else {
        println!("SKIP: there is no openssl");
        return;
    };
    let served = TempDir::new().unwrap();
    let body = members(&[member("a", "leader", &a), member("b", "replica", &b)]);
    let answer = format!("HTTP/1.0 200 OK\r\n\r\n{body}");
    fs::write(served.path().join("cluster"), answer).unwrap();
    let port = free_port().unwrap();
    let _files = Files::start(served.path(), port, &pair);
    let nonsense = Patroni::start("<html>no list</html>");
    let ask = |authority: &str| {
        let conninfo = format!("user={SUPERUSER} dbname={DATABASE}");
        let table = nonsense.table(folder, &conninfo);
        let urls = format!(
            "'http://127.0.0.1:{}', 'https://127.0.0.1:{port}'",
            nonsense.port
        );
        let old = format!("'http://127.0.0.1:1', 'http://127.0.0.1:{}'", nonsense.port);
        let file = folder.join("tls.toml");
        let text = table.replace(&old, &urls) + &format!("ca_file = '{authority}'\n");
        fs::write(&file, text).unwrap();
        let nodes = ["--nodes", file.to_str().unwrap()];
        doctor(&[&nodes[..], &["--seconds", "1", "--output", "json"]].concat())
    };
    let said = once_right(|| ask(&pair[0]), |said| said.code == 0);
    let json: Value = serde_json::from_str(&said.text).unwrap();
    assert_eq!(
        (said.code, nodes(&json).as_str()),
        (0, "a primary, b standby"),
        "{json}"
    );
    // Another authority has not signed it.
    let other = certificate(folder, true).unwrap();
    let said = ask(&other[0]);
    let told = format!("{} {}", said.text, said.error);
    assert!(
        said.code != 0 && told.contains("Patroni cannot be asked"),
        "{told}"
    );
    assert!(told.contains("no list of members"), "{told}");
}

/// Two addresses of one server are two names of it: in one cluster, and in two.
#[test]
fn a_server_that_is_named_twice_is_noticed() {
    let lab = TestLab::stock().start().unwrap();
    let open = [("listen_addresses".to_owned(), "127.0.0.1".to_owned())];
    let port = free_port().unwrap();
    let open = open.into_iter().collect();
    let a = lab.primary("a", Some(port), &open).unwrap();
    let closed = settings_of([("listen_addresses", "")]);
    let b = lab.standby(&a, "b", &closed).unwrap();
    let by_tcp = format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname={DATABASE}");
    let file = lab.folder().join("twice.toml");
    let ask = |others: &[String]| {
        let own = [
            node("one", "a", "primary", &a.conninfo(SUPERUSER)),
            node("one", "b", "standby", &b.conninfo(SUPERUSER)),
        ];
        fs::write(&file, own.concat() + &others.concat()).unwrap();
        doctor(&["--nodes", file.to_str().unwrap(), "--seconds", "1"])
    };
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = once_right(|| ask(&[]), |said| said.code == 0);
    assert_eq!(said.code, 0, "{}", said.text);
    let words = "main of cluster two is the same server as a of cluster one, at another address";
    let both = || ask(&[node("two", "main", "primary", &by_tcp)]);
    let said = once_right(both, |said| plain(&said.text).contains(words));
    assert_eq!(plain(&said.text).matches(words).count(), 2, "{}", said.text);
    assert!(
        said.code == 7 && !said.text.contains("Healthy"),
        "{}",
        said.text
    );
    let path = file.to_str().unwrap();
    let serve = Serve::start(&["--nodes", path, "--window", "5"]);
    for cluster in ["one", "two"] {
        let state = until("it is noticed", || {
            let state = serve.get(&format!("/api/state?cluster={cluster}")).json();
            let unknown = state["diagnosis"]["unknown"].to_string();
            unknown.contains(words).then_some(state)
        });
        assert_eq!(state["verdict"]["level"], "blind", "{state}");
    }
    drop(serve);
    let top = ["top", "--nodes", path, "--window", "5", "--count", "6"];
    let top = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(top)
        .output()
        .unwrap();
    assert_eq!(top.status.code(), Some(7), "{top:?}");
    let same = b.conninfo(SUPERUSER).replace("host=", "host=/tmp/nowhere,");
    let said = ask(&[node("one", "c", "standby", &same)]);
    assert_eq!(said.code, 7, "{}", said.text);
    let words = "c is the same server as b, at another address";
    assert!(plain(&said.text).contains(words), "{}", said.text);
    let serve = Serve::start(&["--nodes", path, "--window", "5"]);
    until("it is noticed in one cluster", || {
        let state = serve.get("/api/state").json();
        let unknown = state["diagnosis"]["unknown"].to_string();
        unknown.contains(words).then_some(())
    });
}

/// A subscriber that two publishers feed, each of another cluster, follows all that it should.
#[test]
fn a_subscriber_of_two_clusters_can_be_healthy() {
    let lab = TestLab::stock().start().unwrap();
    let logical = settings_of([("wal_level", "logical")]);
    let publishers = ["orders", "users"].map(|name| {
        let server = lab.primary(name, None, &logical).unwrap();
        server.run(&format!("CREATE TABLE {name} (id int PRIMARY KEY)"));
        server.run(&format!("CREATE PUBLICATION {name} FOR TABLE {name}"));
        (name, server)
    });
    let mut all = lab.primary("all", None, &Settings::new()).unwrap();
    for (name, server) in &publishers {
        all.run(&format!("CREATE TABLE {name} (id int PRIMARY KEY)"));
        let conninfo = server.conninfo(SUPERUSER);
        all.run(&format!(
            "CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {name}"
        ));
    }
    let copied = "SELECT (count(*) = 0)::text FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    all.await_event("copy its tables", PATIENCE, |all| {
        Ok(all.query_text(copied)?.as_deref() == Some("true"))
    })
    .unwrap();
    let nodes = |number: usize| -> String {
        let nodes = publishers.iter().take(number).map(|(name, server)| {
            node(name, "main", "primary", &server.conninfo(SUPERUSER))
                + &node(name, "all", "subscriber", &all.conninfo(SUPERUSER))
        });
        nodes.collect()
    };
    let file = lab.folder().join("shared.toml");
    let path = file.to_str().unwrap();
    // Of one cluster alone the publisher of the other subscription is not known.
    fs::write(&file, nodes(1)).unwrap();
    let ask = || doctor(&["--nodes", path, "--seconds", "2"]);
    let alone = once_right(ask, |said| said.code == 7);
    assert_eq!(alone.code, 7, "{}", alone.text);
    fs::write(&file, nodes(2)).unwrap();
    let said = once_right(ask, |said| said.code == 0);
    assert_eq!(said.code, 0, "{} {}", said.text, said.error);
    assert_eq!(said.text.matches("Healthy").count(), 2, "{}", said.text);
    let serve = Serve::start(&["--nodes", path, "--window", "5"]);
    for (name, _) in &publishers {
        until("each cluster is well", || {
            let state = serve.get(&format!("/api/state?cluster={name}")).json();
            (state["diagnosis"]["healthy"] == true).then_some(())
        });
    }
}
