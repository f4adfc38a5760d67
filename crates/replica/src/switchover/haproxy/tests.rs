//! What HAProxy says and hears: an HAProxy in memory is told what a switchover decides, by calls that are
//! killed after any command.

use super::*;

fn options() -> HaProxy {
    HaProxy {
        socket: "/s".into(),
        address: HostPort::parse("proxy:5432").unwrap(),
        backend: "app".to_owned(),
        old: "a".to_owned(),
        new: "b".to_owned(),
    }
}

/// An HAProxy whose back end leads to `a`.
fn usual() -> Shown {
    let text = "# pxname,svname,qcur,scur,slim,status,\n\
                app-in,FRONTEND,,2,2000,OPEN,\n\
                app,a,0,2,,no check,\n\
                app,b,0,0,30,MAINT,\n\
                app,BACKEND,7,2,200,UP,\n\
                other,x,0,0,,UP,\n\
                other,BACKEND,1,0,,UP,\n";
    let state = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_port\n\
                 3 app 1 a 10.0.0.1 2 5432\n3 app 2 b - 0 0\n3 app 3 c ::1 2 5433\n";
    let info = "Name: HAProxy\nVersion: 2.6.12-1\nPid: 7\n";
    shown(
        &options(),
        info,
        &read_rows(text).unwrap(),
        [state, "admin\n\n"],
    )
}

fn present(takes_sessions: bool) -> Present {
    Present {
        takes_sessions,
        sessions: 0,
        limit: None,
    }
}

#[test]
fn what_haproxy_says_is_read() {
    let shown = usual();
    assert_eq!(shown.version, "2.6.12-1");
    assert_eq!(shown.level, "admin");
    let a = Present {
        sessions: 2,
        ..present(true)
    };
    let b = Present {
        limit: Some(30),
        ..present(false)
    };
    let servers = [("a".to_owned(), a), ("b".to_owned(), b)];
    assert_eq!(shown.servers, BTreeMap::from(servers));
    assert_eq!(shown.queued, 7);
    assert!(!a.is_full() && !b.is_full());
    assert!(Present { sessions: 30, ..b }.is_full());
    let places: Vec<_> = shown
        .places
        .iter()
        .map(|(name, place)| format!("{name} {place}"))
        .collect();
    assert_eq!(places, ["a 10.0.0.1:5432", "c [::1]:5433"]);
    assert_eq!(
        adding(&options(), shown.places["c"]),
        "add server app/lockstep-waits [::1]:5433 maxconn 1"
    );
}

const RIGHT: [Leads; 2] = [Leads::Right, Leads::Right];

fn said(options: &HaProxy, shown: &Shown, leads: &[Leads; 2], refused: &str) -> Vec<String> {
    let refused = (!refused.is_empty()).then(|| refused.to_owned());
    let found = findings(options, shown, leads, refused);
    found
        .iter()
        .map(|it| format!("{} {}; {}", it.severity, it.says, it.todo))
        .collect()
}

#[test]
fn what_would_lead_clients_astray_is_found() {
    assert!(said(&options(), &usual(), &RIGHT, "").is_empty());
    let is = |change: &dyn Fn(&mut HaProxy, &mut Shown), words: &str| {
        let (mut options, mut shown) = (options(), usual());
        change(&mut options, &mut shown);
        let found = said(&options, &shown, &RIGHT, "");
        assert!(
            found.len() == 1 && found[0].contains(words),
            "{words}: {found:?}"
        );
        assert!(found[0].starts_with("error"), "{found:?}");
    };
    is(&|_, it| it.level = "operator".to_owned(), "level operator");
    is(
        &|_, it| it.version = "4.0.1".to_owned(),
        "it is version 4.0.1, and only 2.x and 3.x",
    );
    is(
        &|it, _| it.backend = "none".to_owned(),
        "no back end none: it has app, other",
    );
    is(&|it, _| it.old = "c".to_owned(), "no server c: it has a, b");
    is(
        &|_, it| it.servers.extend([("a".to_owned(), present(false))]),
        "server a takes no sessions",
    );
    is(
        &|_, it| it.servers.extend([("b".to_owned(), present(true))]),
        "server b takes sessions before",
    );
    is(
        &|_, it| it.servers.extend([("c".to_owned(), present(true))]),
        "other servers, too: c",
    );
    is(
        &|_, it| it.servers.extend([(WAITS.to_owned(), present(true))]),
        "runtime socket: set server app/lockstep-waits state maint; shutdown sessions server app/lockstep-waits; \
         del server app/lockstep-waits",
    );
    let refused = said(
        &options(),
        &usual(),
        &RIGHT,
        "Backend must use a dynamic load balancing",
    );
    assert!(
        refused[0].contains("cannot be added to back end app: Backend must"),
        "{refused:?}"
    );
    let wrong = said(&options(), &usual(), &[Leads::Wrong, Leads::Wrong], "");
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(
        wrong[0].contains("a of back end app is not the source"),
        "{wrong:?}"
    );
    let unknown = [Leads::Right, Leads::Unknown("a socket".to_owned())];
    let unknown = said(&options(), &usual(), &unknown, "");
    assert!(
        unknown[0].contains("the target cannot be told (a socket)"),
        "{unknown:?}"
    );
}

/// An HAProxy that does what it is told.
#[derive(Debug, Clone, PartialEq)]
struct World {
    /// The servers, and whether they take sessions.
    servers: BTreeMap<String, bool>,
    /// Commands until the one who tells them is killed.
    left: u32,
}

impl World {
    fn new(leads_to: &str, left: u32) -> Self {
        let servers = ["a", "b"].map(|name| (name.to_owned(), name == leads_to));
        Self {
            servers: BTreeMap::from(servers),
            left,
        }
    }

    fn is_paused(&self) -> bool {
        self.servers.contains_key(WAITS)
    }

    /// False if the one who tells it is killed.
    fn hears(&mut self, commands: &[String]) -> bool {
        for command in commands {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            let words: Vec<_> = command.split(' ').collect();
            let name = words.iter().find_map(|word| word.strip_prefix("app/"));
            let name = name.unwrap().to_owned();
            match words[..2] {
                ["add", "server"] => {
                    assert_eq!(self.servers.insert(name, false), None);
                }
                ["set", "maxconn"] => assert!(self.servers[&name], "{command} {self:?}"),
                ["set", "server"] => {
                    let takes = words[4] == "ready";
                    assert!(
                        self.servers.insert(name, takes).is_some(),
                        "{command} {self:?}"
                    );
                }
                ["shutdown", "sessions"] => assert!(!self.servers[&name], "{command} {self:?}"),
                ["del", "server"] => assert_eq!(self.servers.remove(&name), Some(false)),
                _ => panic!("{command}"),
            }
            // New sessions are never refused, and both servers never take some at the same time but where
            // those who wait are let go on.
            assert!(self.servers.values().any(|takes| *takes), "{self:?}");
        }
        true
    }
}

/// Lets a server take those who wait as [`Proxied::take_waiting`] does.
fn taken(world: &mut World, server: &str) -> bool {
    world.hears(&[
        taking(&options(), server, None),
        unlimited(&options(), server),
    ])
}

/// Ends the wait as [`Proxied::resume`] does.
fn resume(world: &mut World, is_led: bool) -> bool {
    if !world.is_paused() {
        return true;
    }
    (is_led || world.hears(&taking_back(&options())) && taken(world, "a"))
        && world.hears(&emptying(&options()))
        && world.hears(&[format!("del server app/{WAITS}")])
}

/// Pauses, and leads to the target if `goes_on`, and lets clients go on. False if it is killed.
fn call(world: &mut World, goes_on: bool) -> bool {
    let place = "10.0.0.1:5432".parse().unwrap();
    let ready = "set server app/b state ready".to_owned();
    world.hears(&[adding(&options(), place)])
        && world.hears(&pausing(&options()))
        && (!goes_on
            || world.hears(&[ready]) && taken(world, "b") && world.hears(&leading(&options())))
        && resume(world, goes_on)
}

#[test]
fn calls_that_are_killed_after_any_command_end_the_same() {
    for first in 0..11 {
        for second in 0..9 {
            let mut world = World::new("a", first);
            assert_eq!(call(&mut world, false), first >= 10);
            // Another call takes back what the first has begun, and may be killed, too.
            world.left = second;
            if resume(&mut world, false) {
                world.left = 100;
                assert!(call(&mut world, true));
                world.left = 100;
                assert_eq!(world, World::new("b", 100));
            } else {
                world.left = 100;
                assert!(resume(&mut world, false));
                world.left = 100;
                assert_eq!(world, World::new("a", 100));
            }
        }
        // One that is killed while it leads to the target is repeated from there.
        let mut world = World::new("a", 3 + first);
        call(&mut world, true);
        world.left = 100;
        assert!(world.hears(&["set server app/b state ready".to_owned()]));
        assert!(world.hears(&leading(&options())) && resume(&mut world, true));
        world.left = 100;
        assert_eq!(world, World::new("b", 100));
    }
}

#[test]
fn a_command_takes_it_back_by_hand() {
    let mut world = World::new("a", 100);
    let place = "10.0.0.1:5432".parse().unwrap();
    world.hears(&[adding(&options(), place)]);
    world.hears(&pausing(&options()));
    let commands: Vec<_> = by_hand(&options()).split("; ").map(str::to_owned).collect();
    assert!(world.hears(&commands));
    world.left = 100;
    assert_eq!(world, World::new("a", 100));
}
