//! Parallel replay, with which Lockstep is measured by `bench replay` and `load-curve`.

use lockstep_lab::server::Settings;

use crate::replay::temperature::Temperature;
use crate::trial::Variant;

/// Settings of a variant's server whose data is of this temperature. Those in `set` go over the
/// usual ones.
pub fn settings(variant: Variant, memory: Temperature, set: &[(String, String)]) -> Settings {
    variant.standby_settings(&with_usual(memory, set))
}

/// What a row says of them; stock has none.
pub fn settings_text(
    variant: Variant,
    memory: Temperature,
    set: &[(String, String)],
) -> Option<String> {
    crate::args::settings_text(variant, &with_usual(memory, set))
}

/// Lockstep replays with helpers, also while sessions read.
fn with_usual(memory: Temperature, set: &[(String, String)]) -> Vec<(String, String)> {
    let usual = [
        ("lockstep.replay_workers", memory.helpers().to_string()),
        ("lockstep.replay_hot_standby", "on".to_owned()),
    ];
    let usual = usual.map(|(name, value)| (name.to_owned(), value));
    let is_usual = |name: &String| !set.iter().any(|(given, _)| given == name);
    let usual = usual.into_iter().filter(|(name, _)| is_usual(name));
    usual.chain(set.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lockstep_replays_in_parallel_and_options_go_first() {
        use Temperature::{Cached, PartSlow};
        let set = |text: &str| vec![crate::args::setting(text).unwrap()];
        assert_eq!(settings(Variant::Stock, PartSlow, &[]), Settings::new());
        assert_eq!(settings_text(Variant::Stock, PartSlow, &[]), None);
        let usual = "lockstep.replay_workers=1 lockstep.replay_hot_standby=on";
        let text = |set: &[_]| settings_text(Variant::Lockstep, Cached, set).unwrap();
        assert_eq!(text(&[]), usual);
        assert_eq!(text(&set("work_mem=8MB")), format!("{usual} work_mem=8MB"));
        let off = set("lockstep.replay_workers=0");
        let expected = "lockstep.replay_hot_standby=on lockstep.replay_workers=0";
        assert_eq!(text(&off), expected);
        let four = settings(Variant::Lockstep, PartSlow, &[]);
        assert_eq!(four["lockstep.replay_workers"], "4");
        let settings = settings(Variant::Lockstep, PartSlow, &off);
        assert_eq!(settings["lockstep.replay_workers"], "0");
        assert_eq!(settings["shared_preload_libraries"], "lockstep");
    }
}
