//! What stands between clients and both servers: a PgBouncer or an HAProxy, whose clients wait for a while,
//! and are then led to the target.

use std::time::Duration;

use lockstep_client::{Connection, Conninfo};

use crate::error::{Finding, Result};
use crate::state::SwitchStage;
use crate::switchover::haproxy::{self, HaProxy, Leads, Proxied, Shown};
use crate::switchover::pgbouncer::Pooled;
use crate::switchover::there::is_at;

/// A pooler as the user names it.
#[derive(Debug, Clone)]
pub enum PoolerOptions {
    /// The admin console, and what the database is called there if not as on the source.
    PgBouncer {
        console: Conninfo,
        database: Option<String>,
    },
    HaProxy(HaProxy),
}

/// A pooler in the middle of a switchover.
#[derive(Debug)]
pub(super) enum Pooler {
    PgBouncer(Pooled),
    HaProxy(Proxied),
}

/// Clients that wait, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Whose they are.
    pub whose: &'static str,
    /// What lets them go on by hand.
    pub resume: String,
}

impl PoolerOptions {
    pub(super) fn open(&self, source_database: &str) -> Pooler {
        match self {
            Self::PgBouncer { console, database } => Pooler::PgBouncer(Pooled {
                console: console.clone(),
                database: (database.clone()).unwrap_or_else(|| source_database.to_owned()),
            }),
            Self::HaProxy(options) => Pooler::HaProxy(Proxied::new(options)),
        }
    }

    /// For clients that are led the other way.
    pub fn turned(self) -> Self {
        match self {
            Self::HaProxy(mut it) => {
                std::mem::swap(&mut it.old, &mut it.new);
                Self::HaProxy(it)
            }
            other => other,
        }
    }

    /// What a switchover with it is at, once it has begun.
    pub(super) fn stage(&self) -> SwitchStage {
        match self {
            Self::PgBouncer { .. } => SwitchStage::Pooled,
            Self::HaProxy(_) => SwitchStage::Proxied,
        }
    }
}

/// Why these options do not go on with a switchover, in words.
pub(super) fn other_options(
    stage: SwitchStage,
    options: Option<&PoolerOptions>,
) -> Option<&'static str> {
    let is_same = options.is_some_and(|options| options.stage() == stage);
    match stage {
        SwitchStage::Pooled if !is_same => Some(
            "clients of a PgBouncer may wait: give its options (--pgbouncer, --on-switch), too",
        ),
        SwitchStage::Proxied if !is_same => {
            Some("new sessions of an HAProxy may wait: give its options (--haproxy…), too")
        }
        _ => None,
    }
}

impl Pooler {
    pub(super) fn is_paused(&self) -> Result<bool> {
        match self {
            Self::PgBouncer(pooled) => Ok(pooled.look()?.is_paused),
            Self::HaProxy(proxied) => proxied.is_paused(),
        }
    }

    /// Lets clients wait from now on: those of a PgBouncer once none has a transaction open, new sessions of
    /// an HAProxy. If that takes longer than `patience`, nobody waits any more, and it is an error.
    pub(super) fn pause(&mut self, patience: Duration) -> Result<()> {
        match self {
            Self::PgBouncer(pooled) => pooled.pause(patience),
            Self::HaProxy(proxied) => proxied.pause(patience),
        }
    }

    /// Ends the wait, if there is one. `is_led`: it leads to the target.
    pub(super) fn resume(&mut self, is_led: bool) -> Result<()> {
        match self {
            Self::PgBouncer(pooled) => pooled.resume(),
            Self::HaProxy(proxied) => proxied.resume(is_led),
        }
    }

    /// Leads clients to the target.
    pub(super) fn lead(&self, target: &mut Connection, to: &Conninfo) -> Result<()> {
        match self {
            Self::PgBouncer(pooled) => {
                pooled.reload()?;
                pooled.check_leads_to(target, to)
            }
            Self::HaProxy(proxied) => proxied.lead(),
        }
    }

    /// What would lead clients astray. Each end has its conninfo and its system's number.
    pub(super) fn findings(&self, ends: [(&Conninfo, &str); 2]) -> Result<Vec<Finding>> {
        let Self::HaProxy(proxied) = self else {
            return Ok(Vec::new());
        };
        let shown = proxied.look()?;
        let HaProxy { old, new, .. } = &proxied.options;
        let [source, target] = ends;
        let leads = [leads(&shown, old, source), leads(&shown, new, target)];
        let refused = proxied.refuses(&shown)?;
        Ok(haproxy::findings(&proxied.options, &shown, &leads, refused))
    }

    /// Clients that wait, in words.
    pub(super) fn waiting(&self) -> Waiting {
        match self {
            Self::PgBouncer(pooled) => Waiting {
                whose: "clients of PgBouncer",
                resume: format!("in PgBouncer's console RESUME {}", pooled.database),
            },
            Self::HaProxy(proxied) => Waiting {
                whose: "new sessions of HAProxy",
                resume: format!(
                    "in HAProxy's runtime socket {}",
                    haproxy::by_hand(&proxied.options)
                ),
            },
        }
    }
}

/// Where a server of HAProxy leads.
fn leads(shown: &Shown, server: &str, (like, id): (&Conninfo, &str)) -> Leads {
    let Some(place) = shown.places.get(server) else {
        return Leads::Unknown("HAProxy tells no address of it".to_owned());
    };
    let (address, port) = (place.ip().to_string(), place.port().to_string());
    match is_at((&address, &port), None, like, id) {
        Ok(true) => Leads::Right,
        Ok(false) => Leads::Wrong,
        Err(error) => Leads::Unknown(format!(
            "it does not answer at {address}, port {port}: {}",
            error.words()
        )),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_service::address::HostPort;

    use super::*;

    #[test]
    fn a_switchover_goes_on_with_the_pooler_with_which_it_began() {
        let bouncer = PoolerOptions::PgBouncer {
            console: Conninfo::parse("host=p").unwrap(),
            database: None,
        };
        let proxy = PoolerOptions::HaProxy(HaProxy {
            socket: "/s".into(),
            address: HostPort::parse("h:1").unwrap(),
            backend: "app".to_owned(),
            old: "a".to_owned(),
            new: "b".to_owned(),
        });
        let (none, bouncer, proxy) = (None, Some(&bouncer), Some(&proxy));
        for (stage, options, is_right) in [
            (SwitchStage::None, proxy, true),
            (SwitchStage::Done, none, true),
            (SwitchStage::Begun, none, true),
            (SwitchStage::Begun, bouncer, true),
            (SwitchStage::Begun, proxy, true),
            (SwitchStage::Pooled, bouncer, true),
            (SwitchStage::Pooled, none, false),
            (SwitchStage::Pooled, proxy, false),
            (SwitchStage::Proxied, proxy, true),
            (SwitchStage::Proxied, bouncer, false),
            (SwitchStage::Proxied, none, false),
        ] {
            let found = other_options(stage, options);
            assert_eq!(found.is_none(), is_right, "{stage:?} {found:?}");
        }
    }
}
