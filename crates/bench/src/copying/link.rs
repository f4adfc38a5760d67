//! What a copy goes through: the loopback as it is, or one that is limited, in a network namespace of its
//! own.

use clap::ValueEnum;
use lockstep_lab::cluster::Lab;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;

use crate::{BenchError, Result};

/// The limit, in Mbit/s.
pub const MBIT: u32 = 400;

/// Bytes that may go through at once, and the longest that a packet waits.
const BURST: &str = "256kb";
const LATENCY: &str = "50ms";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// The loopback
    Loopback,
    /// A loopback that is limited to 400 Mbit/s
    Link,
}

impl Link {
    pub const ALL: [Self; 2] = [Self::Loopback, Self::Link];

    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Link => "link",
        }
    }

    /// Why this machine cannot have it.
    pub fn missing(self) -> Option<&'static str> {
        let tools = ["/usr/sbin/tc", "/usr/sbin/ip"];
        match self {
            Self::Loopback => None,
            Self::Link if !Uid::effective().is_root() => Some("only root can limit a link"),
            Self::Link if !tools.iter().all(|tool| std::path::Path::new(tool).exists()) => {
                Some("tc or ip is not installed (iproute2)")
            }
            Self::Link => None,
        }
    }

    /// Lets this thread, and what it starts from now on, have a network namespace of its own, with nothing in
    /// it but a loopback.
    pub fn enter(lab: &Lab) -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|error| BenchError::Unusable(format!("no network namespace: {error}")))?;
        run(lab, "/usr/sbin/ip", &["link", "set", "lo", "up"])
    }

    /// Limits the namespace's loopback, or takes that back. Packets are as large as on a network.
    pub fn set(self, lab: &Lab) -> Result<()> {
        let mtu = match self {
            Self::Loopback => "65536",
            Self::Link => "1500",
        };
        run(lab, "/usr/sbin/ip", &["link", "set", "lo", "mtu", mtu])?;
        let tc = ["qdisc", "replace", "dev", "lo", "root"];
        let rate = format!("{MBIT}mbit");
        let limit = ["tbf", "rate", &rate, "burst", BURST, "latency", LATENCY];
        let how: &[&str] = match self {
            Self::Loopback => &["pfifo"],
            Self::Link => &limit,
        };
        run(lab, "/usr/sbin/tc", &[&tc, how].concat())
    }
}

fn run(lab: &Lab, program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = lab.launcher().command_as_ourselves(program);
    command.args(arguments);
    Ok(lab.launcher().run(command)?)
}
