//! `lockstep replica switchover` with real servers: under load through PgBouncer, there and back, and with
//! sessions that do not want to be fenced.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, settings_of};

use crate::relay_support;
use crate::replica::{
    Running, closed_args, in_app, lockstep, on, output, pair, said, server, sql, text, until, value,
};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Sums of pgbench's tables, which are the same in each state that a transaction leaves.
const SUMS: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) || ' ' || \
    (SELECT sum(tbalance) FROM pgbench_tellers) || ' ' || (SELECT sum(bbalance) FROM pgbench_branches) || ' ' || \
    (SELECT sum(delta) FROM pgbench_history) || ' ' || (SELECT count(*) FROM pgbench_history)";

/// A PgBouncer that leads its database app to a server.
struct Bouncer {
    process: Child,
    conninfo: String,
    config: String,
    head: String,
}

impl Bouncer {
    fn start(lab: &Lab, server: &Server) -> Self {
        let folder = lab.folder().join("bouncer");
        std::fs::create_dir(&folder).unwrap();
        lab.account().own(&folder).unwrap();
        let shown = folder.display();
        let head = format!(
            "[pgbouncer]\nunix_socket_dir = {shown}\nlisten_port = 6543\nauth_type = any\n\
             admin_users = {SUPERUSER}\npool_mode = transaction\ndefault_pool_size = 8\n[databases]\n"
        );
        let (sockets, port) = (server.sockets().display(), server.port());
        let leads = format!("app = host={sockets} port={port} dbname=app user={SUPERUSER}\n");
        let config = lab
            .write_file("bouncer.ini", &format!("{head}{leads}"))
            .unwrap();
        let mut command = lab.launcher().command(PROGRAM);
        command.arg("-q").arg(&config).stderr(Stdio::null());
        let process = lab.launcher().spawn(command, Side::Both).unwrap();
        let bouncer = Self {
            process,
            conninfo: format!("host={shown} port=6543 user={SUPERUSER}"),
            config: config.display().to_string(),
            head,
        };
        relay_support::until("PgBouncer answers", || bouncer.connect("pgbouncer"));
        bouncer
    }

    fn connect(&self, database: &str) -> Option<Connection> {
        let conninfo = format!("{} dbname={database}", self.conninfo);
        Connection::connect(&Conninfo::parse(&conninfo).unwrap(), Purpose::Sql, "test").ok()
    }

    fn console(&self) -> String {
        format!("{} dbname=pgbouncer", self.conninfo)
    }

    /// What leads it to another server.
    fn on_switch(&self) -> String {
        format!(
            "printf '%sapp = host=%s port=%s dbname=%s user={SUPERUSER}\\n' '{}' \"$LOCKSTEP_HOST\" \
             \"$LOCKSTEP_PORT\" \"$LOCKSTEP_DATABASE\" > {}",
            self.head, self.config
        )
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pgbench(lab: &Lab, args: &[&str]) -> Child {
    let mut command = lab.launcher().command(lab.package().bin().join("pgbench"));
    command
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Transactions that pgbench has made, none of which failed.
fn made(mut load: Child) -> u64 {
    let mut said = String::new();
    load.stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    let mut errors = String::new();
    load.stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert!(load.wait().unwrap().success(), "{said} {errors}");
    let number = |label: &str| -> u64 {
        let line = said.lines().find(|line| line.starts_with(label));
        let line = line.unwrap_or_else(|| panic!("{said} {errors}"));
        let number = line[label.len()..].trim().split([' ', '/']).next();
        number.unwrap().parse().unwrap()
    };
    assert_eq!(number("number of failed transactions:"), 0, "{said}");
    number("number of transactions actually processed:")
}

pub fn follows(lab: &Lab, name: &str, to: &str, target: &Server) -> Running {
    let log = std::fs::File::create(lab.folder().join(format!("{name}.log"))).unwrap();
    let child = lockstep(&["run", name, "--target", to]).stderr(log).spawn();
    let mut process = Running(child.unwrap());
    let state =
        format!("SELECT coalesce(apply_state, '') FROM lockstep.replica WHERE name = '{name}'");
    until(target, &state, "applying", &mut process.0);
    process
}

#[test]
fn clients_of_a_pooler_move_there_and_back_without_an_error() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let filled = pgbench(
        &lab,
        &[
            "-i",
            "-q",
            "-s",
            "1",
            "-h",
            source.sockets().to_str().unwrap(),
            "-p",
            &source.port().to_string(),
            "-U",
            SUPERUSER,
            "app",
        ],
    );
    assert!(filled.wait_with_output().unwrap().status.success());
    on(
        &source,
        "CREATE SEQUENCE numbers; SELECT setval('numbers', 70)",
    );
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let bouncer = Bouncer::start(&lab, &source);
    let mut process = follows(&lab, "r", &to, &target);

    let socket = lab.folder().join("bouncer");
    let load = |seconds: &str| {
        pgbench(
            &lab,
            &[
                "-n",
                "-c",
                "4",
                "-R",
                "200",
                "-T",
                seconds,
                "-h",
                socket.to_str().unwrap(),
                "-p",
                "6543",
                "-U",
                SUPERUSER,
                "app",
            ],
        )
    };
    let (console, hook) = (bouncer.console(), bouncer.on_switch());
    let pooled = [
        "--pgbouncer",
        &console,
        "--on-switch",
        &hook,
        "--max-pause",
        "60s",
        "--timeout",
        "300s",
    ];
    let moves = |command: &str| {
        let args = [
            &[command, "r", "--target", &to, "--verify", "counts"][..],
            &pooled,
        ]
        .concat();
        output(&args)
    };
    let mut dry = vec!["switchover", "r", "--target", &to, "--dry-run"];
    dry.extend(pooled);
    let rehearsed = output(&dry);
    assert!(rehearsed.status.success(), "{}", said(&rehearsed));
    assert!(
        said(&rehearsed).contains("the pause would be about"),
        "{rehearsed:?}"
    );
    let fence = "SELECT count(*) FROM pg_trigger WHERE tgname = 'lockstep_fence'";
    assert_eq!(value(&source, fence), "0");

    let first = load("12");
    let history = "SELECT count(*) > 50 FROM pgbench_history";
    while value(&target, history) != "t" {
        pause();
    }
    let done = moves("switchover");
    assert!(done.status.success(), "{}", said(&done));
    println!("{}", text(&done.stdout));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    let made_first = made(first);
    let end = value(&target, SUMS);
    assert_eq!(end.split(' ').next_back().unwrap(), made_first.to_string());
    // A session from before would still be read-only.
    let next = sql(&target).query_one("SELECT nextval('numbers')");
    assert_eq!(next.unwrap()[0].as_deref(), Some("71"));
    // Nobody writes on the source, whatever they set.
    let mut stubborn = sql(&source);
    stubborn
        .execute("SET default_transaction_read_only = off")
        .unwrap();
    let refused = stubborn.execute("DELETE FROM pgbench_history").unwrap_err();
    assert!(
        refused.to_string().contains("switchover has moved it"),
        "{refused}"
    );
    let again = moves("switchover");
    assert!(said(&again).contains("was done before"), "{}", said(&again));

    // The old server takes what the way back has kept, and then the clients.
    let mut process = follows(&lab, "r_back", &from, &source);
    let second = load("12");
    while value(
        &source,
        &format!("SELECT count(*) > {} FROM pgbench_history", made_first + 50),
    ) != "t"
    {
        pause();
    }
    let done = moves("rollback");
    assert!(done.status.success(), "{}", said(&done));
    println!("{}", text(&done.stdout));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    let made_second = made(second);
    let sums = value(&source, SUMS);
    let all: Vec<_> = sums.split(' ').collect();
    assert!(all[..4].iter().all(|sum| *sum == all[0]), "{sums}");
    assert_eq!(all[4], (made_first + made_second).to_string());
    assert_eq!(value(&source, fence), "0");
    let again = moves("rollback");
    assert!(said(&again).contains("was done before"), "{}", said(&again));
    // The way forward has the first name again.
    let phase = "SELECT phase FROM lockstep.replica WHERE name = 'r'";
    assert_eq!(value(&target, phase), "ready");
}

/// A source has the triggers of a fence that lets everything pass.
pub fn is_planted(server: &Server) -> bool {
    let triggers = "SELECT count(*) > 0 FROM pg_trigger WHERE tgname = 'lockstep_fence'";
    says(server, triggers) && !is_fenced(server)
}

/// Whether a question is true. Whoever fences the server may end this session.
fn says(server: &Server, question: &str) -> bool {
    let rows = server.rows_in("app", question);
    rows.is_ok_and(|rows| rows[0][0].as_deref() == Some("t"))
}

/// Sends a signal to the process that applies: a switchover makes its fences, and then waits for it.
pub fn signal(process: &Running, signal: &str) {
    let mut kill = std::process::Command::new("kill");
    let sent = kill.args([signal, &process.0.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Whether sessions begin read-only on a server by the fence's setting.
pub fn is_fenced(server: &Server) -> bool {
    let comment = "SELECT coalesce(obj_description(to_regprocedure('lockstep.fence()'), 'pg_proc'), '') <> ''";
    says(server, comment)
}

#[test]
fn what_comes_before_the_fence_takes_the_attempt_back_and_settings_stay() {
    let lab = Lab::for_tests().unwrap();
    let settings = settings_of([
        ("wal_level", "logical"),
        ("autovacuum", "off"),
        ("max_prepared_transactions", "2"),
    ]);
    let source = lab.primary("source", None, &settings).unwrap();
    source.run("CREATE DATABASE app");
    let target = server(&lab, "target");
    on(&source, "CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    source.run("ALTER DATABASE app SET default_transaction_read_only = off");
    target.run("ALTER DATABASE app SET default_transaction_read_only = on");
    let mut process = follows(&lab, "r", &to, &target);
    let switchover = |most: &str, timeout: &str| {
        let mut command = lockstep(&["switchover", "r", "--target", &to, "--max-pause", most]);
        command.args(["--timeout", timeout]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let planted = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'lockstep%'";

    // While it waits for a transaction, others go on.
    let mut old = sql(&source);
    old.execute("BEGIN; SELECT 1 FROM a").unwrap();
    let is_long = format!(
        "SELECT now() - xact_start > '500 ms' FROM pg_stat_activity WHERE pid = {}",
        old.backend_pid()
    );
    while value(&source, &is_long) != "t" {
        pause();
    }
    let running = switchover("500ms", "300s");
    while value(&target, "SELECT count(*) FROM pg_replication_slots") != "1" {
        pause();
    }
    on(
        &source,
        "CREATE TABLE fresh (id int); INSERT INTO fresh VALUES (1); CREATE SEQUENCE numbers",
    );
    old.execute("COMMIT").unwrap();
    let found = running.wait_with_output().unwrap();
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    for words in ["table public.fresh", "sequence public.numbers"] {
        assert!(said(&found).contains(words), "{words}: {}", said(&found));
    }
    let setting =
        "SELECT array_to_string(setconfig, ' ') FROM pg_db_role_setting WHERE setrole = 0";
    for (server, before) in [(&source, "off"), (&target, "on")] {
        let before = format!("default_transaction_read_only={before}");
        assert_eq!(value(server, setting), before);
        assert_eq!(value(server, planted), "0");
    }
    on(&source, "DROP TABLE fresh; DROP SEQUENCE numbers");

    // A prepared transaction is waited for, and named once the time is up.
    let mut prepares = sql(&source);
    prepares
        .execute("BEGIN; INSERT INTO a VALUES (1); PREPARE TRANSACTION 'half'")
        .unwrap();
    let late = switchover("20s", "1s").wait_with_output().unwrap();
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    assert!(said(&late).contains("half"), "{}", said(&late));
    assert_eq!(value(&source, planted), "0");
    let mut running = switchover("60s", "300s");
    let begun = "SELECT count(*) FROM lockstep.replica WHERE switchover = 'begun'";
    while value(&target, begun) != "1" {
        pause();
    }
    let mut told = BufReader::new(running.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    assert!(told.any(|line| line.contains("half")));

    // What a table's owner disables behind the fence is noticed: the target cannot get on meanwhile.
    signal(&process, "-STOP");
    on(&source, "COMMIT PREPARED 'half'");
    while !is_planted(&source) {
        pause();
    }
    let mut holds = sql(&target);
    let locks = "SET default_transaction_read_only = off; BEGIN; LOCK a IN SHARE MODE";
    holds.execute(locks).unwrap();
    let from = Conninfo::parse(&from).unwrap();
    let mut verify = Connection::connect(&from, Purpose::Sql, "lockstep verify").unwrap();
    let mut walsender = Connection::connect(&from, Purpose::Replication, "test").unwrap();
    on(&source, "INSERT INTO a VALUES (2), (3)");
    signal(&process, "-CONT");
    while !is_fenced(&source) {
        pause();
    }
    on(
        &source,
        "BEGIN READ WRITE; ALTER TABLE a DISABLE TRIGGER ALL; COMMIT",
    );
    holds.execute("COMMIT").unwrap();
    let told: Vec<String> = told.collect();
    let done = running.wait_with_output().unwrap();
    assert!(done.status.success(), "{told:?} {}", said(&done));
    let gone = "lockstep_fence is disabled or missing on public.a";
    assert!(told.iter().any(|line| line.contains(gone)), "{told:?}");
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    for session in [&mut verify, &mut walsender] {
        assert!(session.execute("SELECT 1").is_err());
    }
    assert_eq!(value(&target, "SELECT sum(id) FROM a"), "6");
}

#[test]
fn what_would_fail_is_found_first_and_what_takes_too_long_is_taken_back() {
    let (lab, source, target) = pair(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE UNLOGGED TABLE scratch (id int); \
         INSERT INTO scratch VALUES (1); CREATE TABLE audit (tag text); \
         CREATE FUNCTION audit() RETURNS event_trigger LANGUAGE plpgsql AS \
           $$BEGIN INSERT INTO public.audit VALUES (tg_tag); END$$; \
         CREATE EVENT TRIGGER audits ON ddl_command_end EXECUTE FUNCTION audit(); \
         ALTER EVENT TRIGGER audits ENABLE ALWAYS",
    );
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let switchover =
        |more: &[&str]| output(&[&["switchover", "r", "--target", &to][..], more].concat());
    let found = switchover(&[]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(
        said(&found).contains("unlogged tables have rows"),
        "{found:?}"
    );
    assert!(said(&found).contains("public.scratch"), "{found:?}");
    let fires = said(&found).contains("event triggers would fire");
    let sets = "SELECT current_setting('server_version_num')::int >= 170000";
    assert_eq!(fires, value(&source, sets) == "f", "{found:?}");
    for server in [&source, &target] {
        on(
            server,
            "ALTER EVENT TRIGGER audits ENABLE; TRUNCATE scratch, audit",
        );
    }
    assert!(said(&switchover(&[])).contains("start lockstep replica run"));

    let _process = follows(&lab, "r", &to, &target);
    // One that has written holds the fence up.
    let mut writer = sql(&source);
    writer.execute("BEGIN; INSERT INTO a VALUES (1)").unwrap();
    let late = switchover(&["--timeout", "4s", "--max-pause", "300ms"]);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    assert!(
        said(&late).contains("transactions are open"),
        "{}",
        said(&late)
    );
    writer.execute("COMMIT; INSERT INTO a VALUES (2)").unwrap();
    let left = "SELECT (SELECT count(*) FROM pg_trigger WHERE tgname = 'lockstep_fence') + \
        (SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%back%')";
    assert_eq!([value(&source, left), value(&target, left)], ["0", "0"]);

    // No comparison is done in a millisecond.
    let late = switchover(&["--timeout", "2s", "--max-pause", "1ms", "--no-reverse"]);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    on(&source, "INSERT INTO a VALUES (3)");
    assert_eq!(value(&source, "SHOW default_transaction_read_only"), "off");

    // A command that does not lead clients to the target is told of, and run again.
    let leads = lab.folder().join("leads");
    let hook = format!("test -e {}", leads.display());
    let switched = [
        "--max-pause",
        "60s",
        "--no-reverse",
        "--verify",
        "full",
        "--on-switch",
        &hook,
    ];
    let unled = switchover(&switched);
    assert_eq!(unled.status.code(), Some(1), "{unled:?}");
    assert!(said(&unled).contains("the target is open"), "{unled:?}");
    std::fs::write(&leads, "").unwrap();
    let done = switchover(&switched);
    assert!(done.status.success(), "{}", said(&done));
    on(&target, "INSERT INTO a VALUES (4)");
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "4");
    let audited = "SELECT count(*) FROM audit";
    assert_eq!(
        [value(&source, audited), value(&target, audited)],
        ["0", "0"]
    );
    assert!(sql(&source).execute("INSERT INTO a VALUES (5)").is_err());
    // Nobody copies a fence.
    let other = to.replace("dbname=app", "dbname=postgres");
    let copied = output(&["create", "s", "--source", &from, "--target", &other]);
    assert_eq!(copied.status.code(), Some(1), "{copied:?}");
    assert!(
        said(&copied).contains("has the fence of a switchover"),
        "{}",
        said(&copied)
    );
}

/// The statements that open a source whose target is gone for good.
fn by_hand() -> String {
    let docs = include_str!("../../../../docs/replica-switchover.md");
    let lines = docs
        .lines()
        .skip_while(|line| *line != "    SELECT pg_terminate_backend(pid) FROM pg_stat_activity");
    lines.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn a_target_that_is_lost_meanwhile_leaves_words_and_one_that_is_back_is_switched_to() {
    let (lab, source, mut target) = pair("CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let bouncer = Bouncer::start(&lab, &source);
    let mut process = follows(&lab, "r", &to, &target);
    let (console, leads) = (bouncer.console(), bouncer.on_switch());
    let switchover = |hook: &str, timeout: &str, more: &[&str]| {
        let pooled = ["--pgbouncer", &console, "--on-switch", hook];
        let mut command = lockstep(&["switchover", "r", "--target", &to, "--max-pause", "60s"]);
        command.args(["--timeout", timeout]).args(pooled).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let is_paused = || {
        let mut console = bouncer.connect("pgbouncer").unwrap();
        let shown = console.tables("SHOW DATABASES").unwrap().remove(0);
        let place = shown.columns.iter().position(|it| it == "paused").unwrap();
        let mut rows = shown.rows.iter();
        let row = rows.find(|row| row[0].as_deref() == Some("app")).unwrap();
        row[place].as_deref() == Some("1")
    };
    // One that has written holds the fence up, until the target is gone.
    let in_the_middle =
        |target: &mut Server, lose: &dyn Fn(&mut Server), hook: &str, timeout: &str| {
            signal(&process, "-STOP");
            let child = switchover(hook, timeout, &[]);
            while !is_planted(&source) {
                pause();
            }
            let mut writer = sql(&source);
            writer
                .execute("BEGIN; INSERT INTO a SELECT 1 + count(*) FROM a")
                .unwrap();
            signal(&process, "-CONT");
            while !is_paused() || !is_fenced(&source) {
                pause();
            }
            lose(target);
            writer.execute("COMMIT").unwrap();
            child.wait_with_output().unwrap()
        };

    let lost = in_the_middle(&mut target, &|target| target.kill().unwrap(), &leads, "3s");
    assert_ne!(lost.status.code(), Some(0), "{}", said(&lost));
    for part in [
        "the source takes no writes, clients of PgBouncer wait",
        "Repeat",
        "RESUME app",
    ] {
        assert!(said(&lost).contains(part), "{}", said(&lost));
    }
    let writes = || sql(&source).execute("INSERT INTO a SELECT 1 + count(*) FROM a");
    assert!(writes().is_err() && is_paused());
    let words = said(
        &switchover(&leads, "3s", &["--source", &from])
            .wait_with_output()
            .unwrap(),
    );
    for part in [
        "has the fence of one",
        "clients of PgBouncer wait",
        "RESUME app",
    ] {
        assert!(words.contains(part), "{words}");
    }
    on(&source, &by_hand());
    bouncer
        .connect("pgbouncer")
        .unwrap()
        .query("RESUME app")
        .unwrap();
    writes().unwrap();

    // It was not gone for good.
    target.start().unwrap();
    let begun = output(&["status", "r", "--target", &to]);
    assert!(
        said(&begun).contains("a switchover has begun"),
        "{}",
        said(&begun)
    );
    let words = said(
        &switchover(&leads, "9s", &["--dry-run"])
            .wait_with_output()
            .unwrap(),
    );
    assert!(words.contains("has begun and is not over"), "{words}");
    let words = said(&output(&["switchover", "r", "--target", &to]));
    assert!(words.contains("give its options"), "{words}");

    // It comes back, and PgBouncer still leads to the source.
    let lose = |target: &mut Server| {
        target.kill().unwrap();
        target.start().unwrap();
    };
    let misled = in_the_middle(&mut target, &lose, "true", "300s");
    assert_eq!(misled.status.code(), Some(1), "{}", said(&misled));
    for part in [
        "connecting again",
        "which is not the target",
        "the target is open",
    ] {
        assert!(said(&misled).contains(part), "{}", said(&misled));
    }
    assert!(is_paused());
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    let refused = output(&["drop", "r", "--target", &to]);
    assert!(
        said(&refused).contains("has begun and is not over"),
        "{}",
        said(&refused)
    );
    let words = said(
        &switchover(&leads, "9s", &["--reverse", "foo"])
            .wait_with_output()
            .unwrap(),
    );
    assert!(
        words.contains("repeat the command with --reverse r_back"),
        "{words}"
    );
    let done = switchover(&leads, "9s", &[]).wait_with_output().unwrap();
    assert!(done.status.success() && !is_paused(), "{}", said(&done));
    let all = value(&target, "SELECT count(*) FROM a");
    assert_eq!(
        (all, writes().is_err()),
        (value(&source, "SELECT count(*) FROM a"), true)
    );
}

#[test]
fn a_source_that_is_lost_meanwhile_is_waited_for() {
    let (lab, mut source, target) = pair("CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let mut process = follows(&lab, "r", &to, &target);
    // One that has written holds the fence up, until the source is gone.
    let in_the_middle = |source: &mut Server, comes_back: bool, timeout: &str| {
        let mut command = lockstep(&["switchover", "r", "--target", &to, "--max-pause", "60s"]);
        command.args(["--timeout", timeout]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        signal(&process, "-STOP");
        let child = command.spawn().unwrap();
        // What an earlier one has left is taken back first.
        while !is_planted(source) {
            pause();
        }
        let mut writer = sql(source);
        writer.execute("BEGIN; INSERT INTO a VALUES (1)").unwrap();
        signal(&process, "-CONT");
        while !is_fenced(source) {
            pause();
        }
        source.kill().unwrap();
        if comes_back {
            source.start().unwrap();
        }
        child.wait_with_output().unwrap()
    };
    let lost = in_the_middle(&mut source, false, "3s");
    assert_ne!(lost.status.code(), Some(0), "{}", said(&lost));
    for part in ["has begun and is not over", "promote r --with-data-loss"] {
        assert!(said(&lost).contains(part), "{}", said(&lost));
    }
    let write =
        |n: u8| format!("SET default_transaction_read_only = off; INSERT INTO a VALUES ({n})");
    assert!(sql(&target).execute(&write(7)).is_err(), "it is closed");
    source.start().unwrap();

    let done = in_the_middle(&mut source, true, "300s");
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("connecting again"), "{}", said(&done));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    on(&target, &write(8));
    assert!(sql(&source).execute(&write(9)).is_err(), "it is fenced");
    assert_eq!(value(&target, "SELECT sum(id) FROM a"), "8");
}

/// A server goes on with what a command has asked before it was killed.
#[test]
fn a_session_of_a_killed_command_has_ended_before_the_next_one_changes_anything() {
    let (lab, source, target) = pair("CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let process = follows(&lab, "r", &to, &target);
    let switchover = || {
        let mut command = lockstep(&["switchover", "r", "--target", &to, "--max-pause", "60s"]);
        command.args(["--timeout", "300s"]).stdout(Stdio::piped());
        Running(command.spawn().unwrap())
    };
    // It waits behind its fence for one that has written.
    signal(&process, "-STOP");
    let killed = switchover();
    while !is_planted(&source) {
        pause();
    }
    let mut writer = sql(&source);
    writer.execute("BEGIN; INSERT INTO a VALUES (1)").unwrap();
    signal(&process, "-CONT");
    while !is_fenced(&source) {
        pause();
    }
    let at_work = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity WHERE datname = 'app' \
                   AND pid <> pg_backend_pid() AND query ~ 'virtualtransaction|pg_prepared_xacts|terminate'";
    let mut pid = "0".to_owned();
    while pid == "0" {
        pid = value(&source, at_work);
    }
    let tell = |signal: &str| {
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([signal, &pid]).status().unwrap().success());
    };
    tell("-STOP");
    drop(killed);
    writer.execute("COMMIT").unwrap();
    let bare = output(&["promote", "r", "--target", &to]);
    assert_eq!(bare.status.code(), Some(1), "{}", said(&bare));
    assert!(said(&bare).contains("has begun and is not over"));

    let mut next = switchover();
    let told = BufReader::new(next.0.stdout.take().unwrap()).lines();
    let mut told = told.map(Result::unwrap);
    let waits = told.any(|line| line.contains("a session of an earlier command has not ended"));
    tell("-CONT");
    assert!(waits, "the next command waits for it");
    let told: Vec<_> = told.collect();
    assert!(next.0.wait().unwrap().success(), "{told:?}");
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "1");
}
