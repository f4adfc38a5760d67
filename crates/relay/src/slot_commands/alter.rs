//! The options of `ALTER_REPLICATION_SLOT`.

use lockstep_wire::backend::Report;
use lockstep_wire::command;

/// The major version that has `ALTER_REPLICATION_SLOT`, and the one that has its option TWO_PHASE.
pub(super) const ALTERS_SLOTS: [u32; 2] = [17, 18];

/// What `ALTER_REPLICATION_SLOT` asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Altered {
    pub failover: Option<bool>,
    pub two_phase: Option<bool>,
}

impl Altered {
    /// Reads options as a server of this major version does.
    pub fn parse(options: &[(String, Option<String>)], version: u32) -> Result<Self, Report> {
        let mut altered = Self::default();
        for (name, value) in options {
            let place = match name.as_str() {
                "failover" => &mut altered.failover,
                "two_phase" if version >= ALTERS_SLOTS[1] => &mut altered.two_phase,
                _ => {
                    return Err(Report::error(
                        "XX000",
                        format!("unrecognized option: {name}"),
                    ));
                }
            };
            let Some(value) = command::boolean(value.as_deref()) else {
                return Err(Report::error(
                    "42601",
                    format!("{name} requires a Boolean value"),
                ));
            };
            if place.replace(value).is_some() {
                return Err(Report::error("42601", "conflicting or redundant options"));
            }
        }
        Ok(altered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_altered_as_servers_do() {
        let parse = |options: &[(&str, Option<&str>)], version| {
            let owned =
                |&(name, value): &(&str, Option<&str>)| (name.to_owned(), value.map(str::to_owned));
            let options: Vec<_> = options.iter().map(owned).collect();
            Altered::parse(&options, version).map_err(|report| report.sqlstate.to_string())
        };
        let both = [("failover", Some("off")), ("two_phase", None)];
        let wanted = Altered {
            failover: Some(false),
            two_phase: Some(true),
        };
        assert_eq!(parse(&both, 18), Ok(wanted));
        let error = |sqlstate: &str| Err(sqlstate.to_owned());
        assert_eq!(parse(&both, 17), error("XX000"));
        assert_eq!(parse(&[("nonsense", None)], 18), error("XX000"));
        assert_eq!(parse(&[both[0], both[0]], 18), error("42601"));
        assert_eq!(parse(&[("two_phase", Some("x"))], 18), error("42601"));
    }
}
