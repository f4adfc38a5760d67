//! One database copied to several at the same time. The source is reached over the network, the target's
//! server by its socket.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Conninfo, Purpose, field};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server};
use serde_json::Value;

use super::servers::{PATIENCE, Servers, conninfo, refused};
use super::streams::CREATE;
use crate::benchmark::Site;
use crate::{BenchError, Result};

/// Interval at which subscriptions are asked whether they are done.
const LOOK_EVERY: Duration = Duration::from_millis(5);

fn name(number: u32) -> String {
    format!("bench{number}")
}

/// The database of a replica, for programs.
fn target(servers: &Servers, number: u32) -> String {
    let server = &servers.target;
    let (sockets, port) = (server.sockets().display(), server.port());
    format!(
        "host={sockets} port={port} user={SUPERUSER} dbname={}",
        name(number)
    )
}

fn session(server: &Server, conninfo: &str) -> Result<Connection> {
    let connected = Conninfo::parse(conninfo)
        .and_then(|conninfo| Connection::connect(&conninfo, Purpose::Sql, "lockstep-lab bench"));
    let mut connection =
        connected.map_err(|error| server.refused("refused a connection", &error))?;
    connection.set_patience(PATIENCE);
    Ok(connection)
}

fn on_target(servers: &Servers, number: u32, sql: &str) -> Result<()> {
    let mut session = session(&servers.target, &target(servers, number))?;
    session.execute(sql).map_err(refused(&servers.target))
}

/// Makes the replicas' databases anew.
pub fn databases(servers: &Servers, replicas: u32) -> Result<()> {
    for number in 1..=replicas {
        let name = name(number);
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        servers.target.execute(&drop)?;
        let create = format!("CREATE DATABASE {name} TEMPLATE template0");
        servers.target.execute(&create)?;
    }
    Ok(servers.target.execute("CHECKPOINT")?)
}

/// An error unless each has the source's rows; removes their databases.
pub fn check_and_remove(servers: &Servers, replicas: u32) -> Result<()> {
    for number in 1..=replicas {
        let mut there = session(&servers.target, &target(servers, number))?;
        let row = there.query_one("SELECT count(*) FROM reference");
        let rows: u64 = row
            .and_then(|row| field(&row, 0))
            .map_err(refused(&servers.target))?;
        if rows != servers.rows() {
            let words = format!("replica {number} has {rows} of {} rows", servers.rows());
            return Err(BenchError::Unusable(words));
        }
        drop(there);
        let drop = format!("DROP DATABASE {} WITH (FORCE)", name(number));
        servers.target.execute(&drop)?;
    }
    Ok(())
}

/// Median of some times.
fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

/// Runs `lockstep replica create` for each at the same time. Returns the time until all have ended, and the
/// median of the times that their rows took.
pub fn replicas(site: Site<'_>, servers: &Servers, replicas: u32) -> Result<(f64, f64)> {
    let launcher = site.lab.launcher();
    let create = |number: u32| -> Result<f64> {
        let mut create = launcher.command_as_ourselves(site.product);
        create.args(["replica", "create", &name(number), "--output", "json"]);
        create.args(["--source", &conninfo(&servers.source)]);
        create.args(["--target", &target(servers, number), "--jobs", "1"]);
        let printed = launcher.output(create)?;
        let printed: Value = serde_json::from_str(&printed)
            .map_err(|error| BenchError::Unusable(format!("replica create: {error}")))?;
        let seconds = printed.get("copy_seconds").and_then(Value::as_f64);
        seconds.ok_or_else(|| BenchError::Unusable("replica create names no time".to_owned()))
    };
    let began = Instant::now();
    let each = thread::scope(|scope| {
        let create = &create;
        let all: Vec<_> = (1..=replicas)
            .map(|number| scope.spawn(move || create(number)))
            .collect();
        let died = |_| Err(BenchError::Unusable("a replica's thread died".to_owned()));
        let ended = all.into_iter().map(|one| one.join().unwrap_or_else(died));
        ended.collect::<Result<Vec<_>>>()
    })?;
    let seconds = began.elapsed().as_secs_f64();
    for number in 1..=replicas {
        let mut drop = launcher.command_as_ourselves(site.product);
        drop.args([
            "replica",
            "drop",
            &name(number),
            "--target",
            &target(servers, number),
        ]);
        launcher.run(drop)?;
    }
    Ok((seconds, median(each)))
}

/// Lets as many subscriptions copy at the same time. Returns the time until all are there, and the median of
/// their own times.
pub fn subscriptions(lab: &Lab, servers: &Servers, replicas: u32) -> Result<(f64, f64)> {
    let source = session(&servers.source, &conninfo(&servers.source));
    let mut source = source?;
    let refused_by_source = refused(&servers.source);
    let publish = "CREATE PUBLICATION stock FOR ALL TABLES";
    source.execute(publish).map_err(&refused_by_source)?;
    let format = match lab.package().major().get() {
        16.. => ", binary = true",
        _ => "",
    };
    for number in 1..=replicas {
        on_target(servers, number, CREATE)?;
    }
    let began = Instant::now();
    for number in 1..=replicas {
        on_target(
            servers,
            number,
            &format!(
                "CREATE SUBSCRIPTION {} CONNECTION '{}' PUBLICATION stock WITH (copy_data = true{format})",
                name(number),
                conninfo(&servers.source)
            ),
        )?;
    }
    let mut each = vec![None; replicas as usize];
    while each.iter().any(Option::is_none) {
        for (took, number) in each.iter_mut().zip(1..) {
            if took.is_none() && is_ready(servers, number)? {
                *took = Some(began.elapsed().as_secs_f64());
            }
        }
        if began.elapsed() > PATIENCE {
            return Err(BenchError::Unusable(
                "a subscription does not end its copy".to_owned(),
            ));
        }
        thread::sleep(LOOK_EVERY);
    }
    let seconds = began.elapsed().as_secs_f64();
    for number in 1..=replicas {
        on_target(
            servers,
            number,
            &format!("DROP SUBSCRIPTION {}", name(number)),
        )?;
    }
    let drop = "DROP PUBLICATION stock";
    source.execute(drop).map_err(&refused_by_source)?;
    Ok((seconds, median(each.into_iter().flatten().collect())))
}

fn is_ready(servers: &Servers, number: u32) -> Result<bool> {
    let mut session = session(&servers.target, &target(servers, number))?;
    let row = session.query_one(
        "SELECT count(*) FILTER (WHERE srsubstate NOT IN ('s', 'r')) FROM pg_subscription_rel",
    );
    let left: u64 = row
        .and_then(|row| field(&row, 0))
        .map_err(refused(&servers.target))?;
    Ok(left == 0)
}
