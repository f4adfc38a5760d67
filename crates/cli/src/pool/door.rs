//! `lockstep pool door`: a node takes other readers from now on.

use std::fs;

use anyhow::Result;
use clap::Args;
use lockstep_client::Conninfo;
use lockstep_pool::haproxy::{lines, name_of};
use lockstep_pool::runtime::plan;
use lockstep_pool::session;
use lockstep_pool::state::Door;
use lockstep_service::exit::Failure;
use lockstep_service::toml_file;
use lockstep_service::words::output;

use super::agent::DoorArg;
use super::haproxy::ServerArgs;
use super::members::MembersArgs;
use super::runtime::{SocketArgs, WaitArgs, await_end, failed};
use crate::name::complain;

/// `lockstep pool door`
#[derive(Debug, Args)]
pub struct DoorCommandArgs {
    /// Name of the node
    node: String,
    /// Which readers it is for from now on
    #[arg(value_enum)]
    door: DoorArg,
    #[command(flatten)]
    members: MembersArgs,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    wait: WaitArgs,
    /// HAProxy runs elsewhere: change the file, and leave HAProxy alone
    #[arg(long)]
    no_proxy: bool,
}

/// Writes the door into the file, lets HAProxy send the node the readers of that door, and waits until those
/// of the other have ended.
pub fn run(args: &DoorCommandArgs) -> Result<()> {
    let (members, door) = (&args.members, args.door.door());
    let listed = members.listed()?;
    let Some((server, _)) = listed.iter().find(|(node, _)| node.name == args.node) else {
        let names: Vec<_> = listed.iter().map(|(node, _)| node.name.as_str()).collect();
        let words = format!("it has no node {}, but {}", args.node, names.join(", "));
        return Err(members.wrong(&words).into());
    };
    let text =
        fs::read_to_string(&members.nodes).map_err(|error| members.wrong(&error.to_string()))?;
    let mut is_it = vec![("name", args.node.as_str())];
    is_it.extend(members.cluster.as_deref().map(|name| ("cluster", name)));
    let changed = toml_file::with_value(&text, "node", &is_it, ("door", door.name()));
    let changed = changed.ok_or_else(|| {
        let words = "has no table of its own there, where its door could be written";
        members.wrong(&format!("{} {words}", args.node))
    })?;
    if !args.no_proxy {
        // Refused before anything is changed if HAProxy is not there, or has no such back end.
        proxy(args, false)?;
    }
    if changed != text {
        members.replace(&text, &changed)?;
    }
    if args.no_proxy {
        let file = members.nodes.display();
        output::print(&format!(
            "{}: written into {file}; lockstep pool haproxy --watch, beside HAProxy, moves it from there",
            args.node
        ));
    } else {
        proxy(args, true)?;
        output::print(&format!("{}: takes {} now", args.node, readers(door)));
        leaves_other_doors(args)?;
    }
    tell_of_settings(&server.conninfo, &args.node, door);
    Ok(())
}

fn readers(door: Door) -> &'static str {
    match door {
        Door::Fresh => "readers of fresh data",
        Door::Reports => "reports",
    }
}

/// Adds the node to the back ends of its door, if `acts`; otherwise only looks whether that can be.
fn proxy(args: &DoorCommandArgs, acts: bool) -> Result<()> {
    let runtime = args.socket.runtime();
    let mut listed = args.members.members()?;
    for member in listed.iter_mut().filter(|member| member.name == args.node) {
        member.door = args.door.door();
    }
    let wanted = lines(&listed, &args.servers.rules()).map_err(Failure::Usage)?;
    let statistics = runtime.statistics().map_err(failed)?;
    let missing = plan(&wanted, &statistics).map_err(failed)?.missing;
    let name = name_of(&args.node);
    for line in missing.into_iter().filter(|line| acts && line.name == name) {
        runtime.add(line).map_err(failed)?;
    }
    Ok(())
}

/// Takes the node out of the back ends of the other door, once its sessions there have ended.
fn leaves_other_doors(args: &DoorCommandArgs) -> Result<()> {
    let runtime = args.socket.runtime();
    let wanted = lines(&args.members.members()?, &args.servers.rules()).map_err(Failure::Usage)?;
    let is_wanted = |backend: &str, name: &str| {
        let mut wanted = wanted.iter();
        wanted.any(|line| line.backend == backend && line.name == name)
    };
    await_end(&args.wait, &args.node, &runtime, |server| {
        match is_wanted(&server.backend, &server.name) {
            true => Ok(true),
            false => runtime.retire(server),
        }
    })?;
    Ok(())
}

/// Tells of a setting of the server that does not suit the door.
fn tell_of_settings(conninfo: &Conninfo, node: &str, door: Door) {
    let sql = "SELECT current_setting('max_standby_streaming_delay') = '-1', \
               current_setting('hot_standby_feedback')::bool";
    let asked = session::open(conninfo, "lockstep pool").and_then(|mut session| session.query(sql));
    let rows = match asked {
        Ok(rows) => rows,
        Err(error) => {
            return complain(&format!("cannot ask {node} for its settings: {error}"));
        }
    };
    let is_on = |place: usize| {
        let row = rows.first().and_then(|row| row.get(place)?.as_deref());
        row == Some("t")
    };
    for words in unsuited(door, is_on(0), is_on(1)) {
        output::print(&format!("{node}: {words}"));
    }
}

/// What of a server's settings does not suit a door: whether replay waits for queries without an end, and
/// whether the primary keeps row versions for them.
fn unsuited(door: Door, waits: bool, is_fed_back: bool) -> Vec<&'static str> {
    let all = match door {
        Door::Fresh => [
            (
                waits,
                "replay waits there for queries, however long: ALTER SYSTEM RESET \
                 max_standby_streaming_delay, and reload",
            ),
            (false, ""),
        ],
        Door::Reports => [
            (
                !waits,
                "replay cancels long queries there: ALTER SYSTEM SET max_standby_streaming_delay = -1, and \
                 reload",
            ),
            (
                is_fed_back,
                "the primary keeps dead rows for its queries: ALTER SYSTEM SET hot_standby_feedback = off, and \
                 reload",
            ),
        ],
    };
    let unsuited = all.into_iter().filter(|(is_so, _)| *is_so);
    unsuited.map(|(_, words)| words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_do_not_suit_a_door_are_told() {
        for (door, waits, is_fed_back, told) in [
            (Door::Fresh, false, false, 0),
            (Door::Fresh, false, true, 0),
            (Door::Fresh, true, true, 1),
            (Door::Reports, true, false, 0),
            (Door::Reports, false, false, 1),
            (Door::Reports, true, true, 1),
            (Door::Reports, false, true, 2),
        ] {
            let words = unsuited(door, waits, is_fed_back);
            assert_eq!(words.len(), told, "{door:?} {words:?}");
        }
    }
}
