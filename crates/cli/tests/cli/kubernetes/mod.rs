//! The manifests for Kubernetes: their fields exist, and their parts fit together. No Kubernetes runs here.

mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::house::root;
use super::pool_haproxy::{PROGRAM, is_installed};
use super::serve_support::Serve;
use yaml::documents;

const FOLDER: &str = "packaging/kubernetes";
const FILES: [&str; 3] = ["cluster.yaml", "nodes.yaml", "haproxy.yaml"];

/// The annotation with what is added to each instance's pod.
const POD_PATCH: &str = "cnpg.io/podPatch";

/// Ports of the product that the manifests name.
const AGENT_PORTS: [u64; 2] = [9872, 9873];

fn read(name: &str) -> String {
    fs::read_to_string(root().join(FOLDER).join(name)).unwrap()
}

/// The types of fields, by kind and field.
struct Fields(BTreeMap<(String, String), String>);

impl Fields {
    fn read() -> Self {
        let text = read("fields.txt");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let fields = lines.filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let [kind, field, of]: [String; 3] = match words.try_into() {
                Ok(words) => words,
                Err(words) => return words.first().map(|_| panic!("{line}")),
            };
            Some(((kind, field), of))
        });
        Self(fields.collect())
    }

    /// Checks a value of a kind, and notes the fields that it uses.
    fn check(
        &self,
        kind: &str,
        field: &str,
        value: &Value,
        used: &mut BTreeSet<(String, String)>,
    ) -> Result<(), String> {
        let place = (kind.to_owned(), field.to_owned());
        if let Some(of) = self.0.get(&place) {
            used.insert(place);
            return self.check_type(kind, field, of, value, used);
        }
        match value {
            Value::Object(map) => map.iter().try_for_each(|(name, value)| {
                let dot = if field.is_empty() { "" } else { "." };
                self.check(kind, &format!("{field}{dot}{name}"), value, used)
            }),
            Value::Array(all) => all
                .iter()
                .try_for_each(|value| self.check(kind, &format!("{field}[]"), value, used)),
            _ => Err(format!("{kind} has no field {field}")),
        }
    }

    fn check_type(
        &self,
        kind: &str,
        field: &str,
        of: &str,
        value: &Value,
        used: &mut BTreeSet<(String, String)>,
    ) -> Result<(), String> {
        let is_so = match (of, value) {
            ("string", value) => value.is_string(),
            ("integer", value) => value.is_u64(),
            ("boolean", value) => value.is_boolean(),
            ("map", Value::Object(map)) => map.values().all(Value::is_string),
            ("empty", Value::Object(map)) => map.is_empty(),
            (words, Value::String(text)) => words.split('|').any(|word| word == text),
            (other, Value::Object(_)) => return self.check(other, "", value, used),
            _ => false,
        };
        match is_so {
            true => Ok(()),
            false => Err(format!("{kind}: {field} is no {of}: {value}")),
        }
    }
}

/// The container that the annotation adds to a pod.
fn patched_in(cluster: &Value) -> Result<Value, String> {
    let patch = cluster["metadata"]["annotations"][POD_PATCH].as_str();
    let patch = patch.ok_or("no patch of the pods")?;
    let patch: Value = serde_json::from_str(patch).map_err(|error| error.to_string())?;
    match patch.as_array().map(Vec::as_slice) {
        Some([one]) if one["op"] == "add" && one["path"] == "/spec/containers/-" => {
            Ok(one["value"].clone())
        }
        _ => Err(format!("not one container is added: {patch}")),
    }
}

/// Checks the text of a file against the fields.
fn check(text: &str, used: &mut BTreeSet<(String, String)>) -> Result<(), String> {
    let fields = Fields::read();
    for document in documents(text)? {
        let kind = document["kind"].as_str().ok_or("no kind")?;
        fields.check(kind, "", &document, used)?;
        if kind == "Cluster" {
            fields.check("Container", "", &patched_in(&document)?, used)?;
        }
    }
    Ok(())
}

#[test]
fn manifests_have_fields_that_exist() {
    let mut used = BTreeSet::new();
    for name in FILES {
        check(&read(name), &mut used).unwrap_or_else(|words| panic!("{name}: {words}"));
    }
    let listed: BTreeSet<_> = Fields::read().0.into_keys().collect();
    let unused: Vec<_> = listed.difference(&used).collect();
    assert!(unused.is_empty(), "not used: {unused:?}");
}

#[test]
fn what_is_wrong_with_a_manifest_is_found() {
    for (file, right, wrong, words) in [
        (0, "instances: 3", "instance: 3", "no field spec.instance"),
        (0, "instances: 3", "instances: \"3\"", "is no integer"),
        (0, "login: true", "login: yes", "write quotes"),
        (0, "login: true", "login: \"true\"", "is no boolean"),
        (0, "ensure: present", "ensure: here", "is no present|absent"),
        (
            0,
            "\"name\": \"agent\"",
            "\"names\": \"agent\"",
            "no field ports[].names",
        ),
        (
            0,
            "\"runAsNonRoot\": true",
            "\"runAsNonRoot\": 1",
            "is no boolean",
        ),
        (0, "\"value\": {", "\"value\": {{", "key must be"),
        (0, "reference: ", "reference:\t", "a tab"),
        (
            0,
            "postgresql.cnpg.io/v1",
            "postgresql.cnpg.io/v2",
            "is no postgresql",
        ),
        (1, "port: 5432", "port: 5432x", "is no integer"),
        (1, "  ports:\n", "   ports:\n", "what is this"),
        (2, "emptyDir: {}", "emptyDir:", "has no value"),
        (2, "replicas: 2", "replicas: 2\n  replicas: 3", "twice"),
        (2, "cpu: 100m", "cpu: 1", "is no map"),
    ] {
        let text = read(FILES[file]);
        assert!(text.contains(right), "{right}");
        let changed = text.replace(right, wrong);
        let found = check(&changed, &mut BTreeSet::new()).unwrap_err();
        assert!(found.contains(words), "{wrong}: {found}");
    }
}

/// All documents of one kind.
fn all(kind: &str) -> Vec<Value> {
    let texts = FILES.map(read);
    let documents = texts.iter().flat_map(|text| documents(text).unwrap());
    documents.filter(|one| one["kind"] == kind).collect()
}

fn names(values: &[Value]) -> Vec<&str> {
    let names = values.iter().map(|one| &one["metadata"]["name"]);
    names.map(|name| name.as_str().unwrap()).collect()
}

fn ports(list: &Value, field: &str) -> Vec<u64> {
    let ports = list.as_array().unwrap().iter();
    ports.map(|port| port[field].as_u64().unwrap()).collect()
}

fn words(list: &Value) -> Vec<&str> {
    let words = list.as_array().into_iter().flatten();
    words.map(|word| word.as_str().unwrap()).collect()
}

/// The value after an option.
fn option<'w>(words: &[&'w str], name: &str) -> &'w str {
    let place = words.iter().position(|word| *word == name);
    words[place.unwrap_or_else(|| panic!("{name}: {words:?}")) + 1]
}

/// Names of the instances, which CloudNativePG counts from 1.
fn instances() -> Vec<String> {
    let cluster = &all("Cluster")[0];
    let name = cluster["metadata"]["name"].as_str().unwrap();
    let count = cluster["spec"]["instances"].as_u64().unwrap();
    (1..=count)
        .map(|number| format!("{name}-{number}"))
        .collect()
}

#[test]
fn each_instance_has_a_service_with_its_agent() {
    let services = all("Service");
    let of_instances: Vec<_> = services
        .into_iter()
        .filter(|one| one["spec"]["selector"]["cnpg.io/instanceName"].is_string())
        .collect();
    assert_eq!(names(&of_instances), instances());
    for service in &of_instances {
        let (name, spec) = (&service["metadata"]["name"], &service["spec"]);
        assert_eq!(&spec["selector"]["cnpg.io/instanceName"], name);
        assert_eq!(spec["publishNotReadyAddresses"], true, "{name}");
        let served = ports(&spec["ports"], "port");
        assert_eq!(served, [&[5432][..], &AGENT_PORTS].concat(), "{name}");
    }
    let policy = &all("NetworkPolicy")[0]["spec"]["ingress"];
    let [open, of_proxy] = [0, 1].map(|place| &policy[place]);
    assert!(!ports(&open["ports"], "port").contains(&AGENT_PORTS[1]));
    assert_eq!(ports(&of_proxy["ports"], "port"), [AGENT_PORTS[1]]);
    let labels = &all("Deployment")[0]["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&of_proxy["from"][0]["podSelector"]["matchLabels"], labels);
}

/// The real program takes the agent's arguments, with free ports in place of those of the pod.
#[test]
fn the_agent_starts_with_its_arguments() {
    let container = patched_in(&all("Cluster")[0]).unwrap();
    let command = words(&container["command"]);
    assert_eq!(command[0], "lockstep");
    let args = words(&container["args"]);
    let [listen, check] = ["--listen", "--agent-check"].map(|name| option(&args, name));
    let places = AGENT_PORTS.map(|port| format!("0.0.0.0:{port}"));
    assert_eq!([listen, check], places.each_ref().map(String::as_str));
    assert_eq!(ports(&container["ports"], "containerPort"), AGENT_PORTS);
    let hosts = format!("host={} ", instances().join(","));
    assert!(option(&args, "--primary").starts_with(&hosts));
    let free = |word| match places.iter().any(|place| place == word) {
        true => "127.0.0.1:0",
        false => word,
    };
    let args: Vec<_> = args.into_iter().map(free).collect();
    let agent = Serve::start_as(&command[1..], &args);
    let probed = container["livenessProbe"]["httpGet"]["path"].as_str();
    assert_eq!(agent.get(probed.unwrap()).status, 200);
}

/// The nodes of the ConfigMap become a configuration that HAProxy takes, with the ports of the containers.
#[test]
fn haproxy_takes_what_is_written_for_the_nodes() {
    let config = &all("ConfigMap")[0]["data"]["nodes.toml"];
    let mut text = config.as_str().unwrap().to_owned();
    for (place, name) in instances().iter().enumerate() {
        let named = format!("name = \"{name}\"");
        assert_eq!(text.matches(&named).count(), 1, "{name}");
        // The names are known in Kubernetes only.
        let host = format!("host={name} ");
        assert_eq!(text.matches(&host).count(), 1, "{name}");
        text = text.replace(&host, &format!("host=127.0.0.{} ", place + 1));
    }
    let folder = TempDir::new().unwrap();
    let nodes = folder.path().join("nodes.toml");
    fs::write(&nodes, text).unwrap();
    let deployments = all("Deployment");
    let pod = &deployments[0]["spec"]["template"]["spec"];
    let init = &pod["initContainers"][0];
    let script = words(&init["command"]);
    assert_eq!(
        (script[0], script[2]),
        (
            "sh",
            "exec lockstep pool haproxy \"$@\" >/run/haproxy/haproxy.cfg"
        )
    );
    let args = words(&init["args"]);
    let [proxy, watch] = [0, 1].map(|place| &pod["containers"][place]);
    assert_eq!(
        option(&words(&proxy["args"]), "-f"),
        "/run/haproxy/haproxy.cfg"
    );
    assert_eq!(
        words(&watch["command"]),
        ["lockstep", "pool", "haproxy", "--watch"]
    );
    for name in ["--nodes", "--socket"] {
        assert_eq!(option(&words(&watch["args"]), name), option(&args, name));
    }
    let written = written(&nodes, &args);
    let bound = |port: &u64| written.contains(&format!("bind 0.0.0.0:{port}\n"));
    assert!(ports(&proxy["ports"], "containerPort").iter().all(bound));
    let doors = all("Service").pop().unwrap();
    assert!(ports(&doors["spec"]["ports"], "port").iter().all(bound));
    if is_installed() {
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, written).unwrap();
        let checked = Command::new(PROGRAM)
            .arg("-c")
            .arg("-f")
            .arg(&file)
            .output();
        let checked = checked.unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}

/// What `lockstep pool haproxy` writes with these arguments for this file.
fn written(nodes: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(["pool", "haproxy"]);
    let file = option(args, "--nodes");
    let args = args.iter().map(|word| match *word == file {
        true => nodes.as_os_str(),
        false => (*word).as_ref(),
    });
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
