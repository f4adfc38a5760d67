//! Arguments of an agent, be it a process of its own or inside `lockstep serve`.

use std::time::Duration;

use clap::Args;
use lockstep_pool::judge::Rules;
use lockstep_pool::state::Door;
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::span;

/// Fewest intervals in a bound, and how many there are unless the interval is given: a current node is then
/// within half of the bound, and one question may be late.
const INTERVALS: u32 = 3;

/// Shortest and longest interval.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

/// Least age from which sessions are ended.
const LEAST_AGE: Duration = Duration::from_secs(1);

/// How an agent decides, and where it answers HAProxy.
#[derive(Debug, Args)]
pub struct AgencyArgs {
    /// The oldest data that a node of door fresh may show; a time such as 100ms or 2s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span::parse)]
    bound: Duration,
    /// How long all must be well before the node is in; at least the bound
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span::parse)]
    settle: Duration,
    /// Time in which the share of a newcomer, or of a node that returns, becomes whole
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = span::parse)]
    rise: Duration,
    /// Age from which sessions of clients on the node are ended while they are idle and the node is a
    /// standby, so that nodes that come get some; one in a hundred each second at most. The role needs
    /// pg_signal_backend. Never by default
    #[arg(long, value_name = "TIME", value_parser = session_age)]
    pub max_session_age: Option<Duration>,
    /// Address for HAProxy's agent-check
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9873", value_parser = HostPort::parse)]
    pub agent_check: HostPort,
}

/// An age that sessions may reach before they are ended.
fn session_age(text: &str) -> Result<Duration, String> {
    match span::parse(text)? {
        age if age < LEAST_AGE => {
            Err("it is 1s at least; without it no session is ended".to_owned())
        }
        age => Ok(age),
    }
}

impl AgencyArgs {
    /// The rules at a door, with an interval if one is given.
    pub fn rules(&self, door: Door, interval: Option<Duration>) -> Result<Rules, Failure> {
        let most = self.bound / INTERVALS;
        if most < SHORTEST {
            return Err(Failure::Usage(format!(
                "a bound of {:?} is too short: give --bound of {:?} at least",
                self.bound,
                SHORTEST * INTERVALS
            )));
        }
        let usual = most.clamp(SHORTEST, LONGEST);
        let (interval, rest) = match interval {
            Some(given) => (given, given),
            None => (usual, Rules::usual_rest(self.bound, usual)),
        };
        if interval > most || interval < SHORTEST {
            return Err(Failure::Usage(format!(
                "an interval of {interval:?} does not suit a bound of {:?}: give --interval from {SHORTEST:?} to a \
                 third of --bound",
                self.bound
            )));
        }
        Ok(Rules {
            door,
            bound: self.bound,
            interval,
            rest,
            settle: self.settle.max(self.bound),
            rise: self.rise,
        })
    }
}
