//! Alert rules and dashboard name only metrics and labels that `lockstep serve`, `lockstep relay` and
//! `lockstep replica run` export, and every alert's runbook is there.

use std::collections::BTreeSet;
use std::path::Path;

use lockstep_relay::stats::{ClientStat, GroupStat, SlotStat, Snapshot};
use serde_json::Value;

/// Labels that Prometheus adds, and the one that every sample of serve may have.
const OF_ALL: [&str; 3] = ["job", "instance", "cluster"];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names and labels of `replica run`, by the table in its documentation, which a test of its own holds
/// against what it exports.
fn of_replicas() -> Vec<(String, Vec<String>)> {
    let page = read("docs/replica.md");
    let (_, table) = page.split_once("| metric | labels |").unwrap();
    let quoted = |cell: &str| -> Vec<String> {
        let words = cell.split('`').skip(1).step_by(2);
        words.map(str::to_owned).collect()
    };
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with("| `"));
    let series = rows.flat_map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let labels = quoted(cells[1]);
        let named = move |name| (format!("lockstep_replica_{name}"), labels.clone());
        quoted(cells[0]).into_iter().map(named)
    });
    series.collect()
}

/// Names and labels of serve, by its reference, which a test of its own holds against what it
/// exports; those of the relay, by what it exports; and [`of_replicas`].
fn exported() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut names, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let mut add = |series: &str| {
        let (name, rest) = series.split_once('{').unwrap_or((series, ""));
        names.insert(name.to_owned());
        let found = rest.split('}').next().unwrap_or_default();
        labels.extend(found.split(',').map(|label| {
            let name = label.split('=').next().unwrap_or_default();
            name.to_owned()
        }));
    };
    let serve = read("docs/serve.md");
    let rows: Vec<&str> = serve
        .lines()
        .filter_map(|line| line.strip_prefix("| `lockstep_"))
        .filter_map(|line| line.split('`').next())
        .collect();
    assert!(rows.len() > 10, "{rows:?}");
    rows.iter().for_each(|row| add(&format!("lockstep_{row}")));
    let relay = lockstep_relay::metrics::render(&Snapshot {
        groups: vec![GroupStat::default()],
        slots: vec![SlotStat::default()],
        clients: vec![ClientStat::default()],
    });
    let samples = relay.lines().filter(|line| !line.starts_with('#'));
    samples.for_each(&mut add);
    let of_replicas = of_replicas();
    assert!(of_replicas.len() > 10, "{of_replicas:?}");
    for (name, of_name) in of_replicas {
        names.insert(name);
        labels.extend(of_name);
    }
    (names, labels)
}

/// Words of a text that begin as our metrics do.
fn named(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("lockstep_"))
        .map(str::to_owned)
        .collect()
}

/// Strings of an object's fields of this name, wherever they are.
fn fields<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get(name).and_then(Value::as_str));
            map.values().for_each(|value| fields(value, name, found));
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, name, found)),
        _ => {}
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&read("packaging/grafana/lockstep.json")).unwrap()
}

#[test]
fn rules_and_dashboard_name_what_is_exported() {
    let (names, _) = exported();
    let rules = read("packaging/prometheus/lockstep.rules.yml");
    let tests = read("packaging/prometheus/lockstep.rules.test.yml");
    let dashboard = dashboard();
    let mut queries = Vec::new();
    for field in ["expr", "query", "definition"] {
        fields(&dashboard, field, &mut queries);
    }
    for (file, used, least) in [
        ("the rules", named(&rules), 15),
        ("their tests", named(&tests), 15),
        ("the dashboard", named(&queries.join(" ")), 15),
    ] {
        assert!(used.len() >= least, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&names).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn labels_are_those_of_the_metrics() {
    let (_, labels) = exported();
    let known = |label: &str| labels.contains(label) || OF_ALL.contains(&label);
    let rules = read("packaging/prometheus/lockstep.rules.yml");
    let in_rules: Vec<&str> = rules
        .split("$labels.")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next())
        .collect();
    let dashboard = dashboard();
    let mut legends = Vec::new();
    fields(&dashboard, "legendFormat", &mut legends);
    let in_legends: Vec<&str> = legends
        .iter()
        .flat_map(|legend| legend.split("{{").skip(1))
        .filter_map(|rest| rest.split("}}").next())
        .collect();
    assert!(in_rules.len() > 20 && in_legends.len() > 20);
    for label in in_rules.into_iter().chain(in_legends) {
        assert!(known(label), "{label}");
    }
}

/// GitHub's anchor of a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-');
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn every_alert_has_a_runbook() {
    let docs = read("docs/lag.md");
    let headings: BTreeSet<String> = docs
        .lines()
        .filter(|line| line.starts_with("##"))
        .map(anchor)
        .collect();
    let rules = read("packaging/prometheus/lockstep.rules.yml");
    let alerts = rules.matches("- alert: ").count();
    let runbooks: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook: docs/lag.md#"))
        .collect();
    assert_eq!(runbooks.len(), alerts);
    for runbook in runbooks {
        assert!(headings.contains(runbook), "{runbook}");
    }
    for key in ["for: ", "severity: ", "summary: ", "description: "] {
        assert_eq!(rules.matches(&format!(" {key}")).count(), alerts, "{key}");
    }
}
