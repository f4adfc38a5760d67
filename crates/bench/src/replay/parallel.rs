//! Parallel replay, with which Lockstep is measured by `bench replay` and `load-curve`.

use lockstep_lab::server::Settings;

use crate::trial::Variant;

/// One helper, also while sessions read: these machines have two cores.
const SETTINGS: [(&str, &str); 2] = [
    ("lockstep.replay_workers", "1"),
    ("lockstep.replay_hot_standby", "on"),
];

/// Settings of a variant's server. Those in `set` go over the usual ones.
pub fn settings(variant: Variant, set: &[(String, String)]) -> Settings {
    variant.standby_settings(&with_usual(set))
}

/// What a row says of them; stock has none.
pub fn settings_text(variant: Variant, set: &[(String, String)]) -> Option<String> {
    crate::args::settings_text(variant, &with_usual(set))
}

fn with_usual(set: &[(String, String)]) -> Vec<(String, String)> {
    let usual = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let is_usual = |name: &String| !set.iter().any(|(given, _)| given == name);
    let usual = usual.into_iter().filter(|(name, _)| is_usual(name));
    usual.chain(set.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lockstep_replays_in_parallel_and_options_go_first() {
        let set = |text: &str| vec![crate::args::setting(text).unwrap()];
        assert_eq!(settings(Variant::Stock, &[]), Settings::new());
        assert_eq!(settings_text(Variant::Stock, &[]), None);
        let usual = "lockstep.replay_workers=1 lockstep.replay_hot_standby=on";
        let text = |set: &[_]| settings_text(Variant::Lockstep, set).unwrap();
        assert_eq!(text(&[]), usual);
        assert_eq!(text(&set("work_mem=8MB")), format!("{usual} work_mem=8MB"));
        let off = set("lockstep.replay_workers=0");
        let expected = "lockstep.replay_hot_standby=on lockstep.replay_workers=0";
        assert_eq!(text(&off), expected);
        let settings = settings(Variant::Lockstep, &off);
        assert_eq!(settings["lockstep.replay_workers"], "0");
        assert_eq!(settings["shared_preload_libraries"], "lockstep");
    }
}
