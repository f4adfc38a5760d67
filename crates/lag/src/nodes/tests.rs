//! Nodes and clusters as users name them.

use super::names::rename;
use super::*;

#[test]
fn what_a_conninfo_leaves_out_is_the_relay_on_this_machine() {
    for (text, shown) in [
        ("", "dbname=lockstep host=127.0.0.1 port=6543"),
        ("host=r", "dbname=lockstep host=r port=6543"),
        (
            "hostaddr=10.0.0.1 port=1",
            "dbname=lockstep hostaddr=10.0.0.1 port=1",
        ),
        ("service=relay", "service=relay dbname=lockstep"),
        (
            "postgresql://u@r:1/app",
            "user=u dbname=lockstep host=r port=1",
        ),
    ] {
        assert_eq!(console(text).unwrap().to_string(), shown, "{text}");
    }
    assert!(console("nonsense").is_err());
}

impl NamedNodes {
    /// Nodes of the first cluster.
    fn nodes(&self) -> Result<Vec<Node>, NodesError> {
        Ok(self.clusters()?.remove(0).nodes)
    }
}

fn args(file: Option<PathBuf>, standbys: &[&str]) -> NamedNodes {
    NamedNodes {
        primary: file.is_none().then(|| "host=/nowhere".to_owned()),
        standbys: standbys.iter().map(|&one| one.to_owned()).collect(),
        file,
        ..NamedNodes::default()
    }
}

#[test]
fn a_port_that_is_no_number_is_a_usage_error() {
    for port in ["notaport", "0", "65536", "5432,x"] {
        let error = args(None, &[&format!("host=a,b port={port}")]).nodes();
        let error = error.unwrap_err();
        assert!(matches!(error, NodesError::Unusable(_)), "{port}: {error}");
        assert!(error.to_string().contains(port), "{error}");
    }
    for port in ["5432", "5432,5433", "5432,"] {
        let conninfo = format!("host=/nowhere,/nowhere port={port}");
        assert_eq!(args(None, &[&conninfo]).nodes().unwrap().len(), 2);
    }
}

#[test]
fn a_file_names_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lockstep.toml");
    let nodes = |text: &str| {
        std::fs::write(&path, text).unwrap();
        args(Some(path.clone()), &["host=/nowhere"]).nodes()
    };
    let primary = "[[node]]\nrole = 'primary'\nconninfo = 'host=/nowhere'\n";
    let named = "[[node]]\nname = 'near'\nrole = 'standby'\nconninfo = 'host=/n'\n";
    let found = nodes(&format!("{named}{primary}")).unwrap();
    let names: Vec<&str> = found.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["primary", "near", "standby"]);
    for (text, words) in [
        (String::new(), "there is no node in it"),
        (
            named.to_owned(),
            "lockstep.toml: no primary is named: add a [[node]]",
        ),
        (format!("{primary}{primary}"), "2 primaries are named"),
        (
            format!("{primary}{named}{named}"),
            "two nodes are called near",
        ),
        (format!("{primary}x = 1"), "line 4: unknown field"),
        ("node = 'password=secret'".to_owned(), "line 1: "),
        (
            format!("{primary}{}", named.replace("host=/n", "secret")),
            "lockstep.toml: node 2, near",
        ),
        (
            format!("{primary}{}", named.replace("host=/n", "port=x")),
            "lockstep.toml: node 2, near: port \"x\"",
        ),
        ("#".repeat(2 << 20), "more than 1048576 bytes"),
    ] {
        let error = nodes(&text).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn nodes_that_do_not_answer_are_called_by_their_hosts() {
    // Nothing listens on these ports.
    let names = |standbys: &[&str]| -> Vec<String> {
        let nodes = args(None, standbys).nodes().unwrap();
        nodes.into_iter().skip(1).map(|node| node.name).collect()
    };
    let hosts = [
        "host=a.invalid hostaddr=127.0.0.1 port=1",
        "host=b.invalid hostaddr=127.0.0.1 port=1",
    ];
    assert_eq!(names(&hosts), ["a.invalid", "b.invalid"]);
    let ports = [
        "host=a.invalid hostaddr=127.0.0.1 port=1",
        "host=a.invalid hostaddr=127.0.0.1 port=2",
    ];
    assert_eq!(names(&ports), ["a.invalid:1", "a.invalid:2"]);
    let same = [hosts[0], hosts[0]];
    assert_eq!(names(&same), ["standby1", "standby2"]);
}

#[test]
fn a_password_that_everybody_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lockstep.toml");
    let warns = |conninfo: &str, mode| {
        let node = format!("[[node]]\nrole = 'primary'\nconninfo = '{conninfo}'\n");
        std::fs::write(&path, node).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        args(Some(path.clone()), &[]).exposed()
    };
    let warning = warns("host=/n password=secret", 0o644).unwrap();
    assert!(
        warning.contains("mode 0644") && !warning.contains("secret"),
        "{warning}"
    );
    assert_eq!(warns("host=/n password=secret", 0o640), None);
    assert_eq!(warns("host=/n", 0o644), None);
}

/// Names are what links and charts are found by, so no two nodes have the same.
#[test]
fn no_node_gets_a_name_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lockstep.toml");
    let node = |name: &str, role: &str| {
        let name = match name {
            "" => String::new(),
            name => format!("name = '{name}'\n"),
        };
        format!("[[node]]\n{name}role = '{role}'\nconninfo = 'host=/nowhere'\n")
    };
    for (file, standbys, expected) in [
        (
            [node("", "primary"), node("standby", "standby")],
            1,
            ["primary", "standby", "standby1"].as_slice(),
        ),
        (
            [node("", "primary"), node("standby2", "standby")],
            2,
            &["primary", "standby2", "standby1", "standby3"],
        ),
        (
            [node("", "primary"), node("primary", "subscriber")],
            0,
            &["primary1", "primary"],
        ),
    ] {
        std::fs::write(&path, file.concat()).unwrap();
        let more = vec!["host=/nowhere"; standbys];
        let nodes = args(Some(path.clone()), &more).nodes().unwrap();
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn names_that_servers_give_are_unique() {
    let mut nodes = args(None, &["host=/a", "host=/b", "host=/c"])
        .nodes()
        .unwrap();
    let answer = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    rename(
        &mut nodes,
        BTreeMap::from([
            (1, answer(&["15/main", "near"])),
            (2, answer(&["15/main", "primary"])),
            (3, answer(&["", "far"])),
        ]),
    );
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["primary", "near", "standby2", "far"]);
}

fn file(text: &str) -> NamedNodes {
    let folder = tempfile::tempdir().unwrap().keep();
    let path = folder.join("nodes.toml");
    std::fs::write(&path, text).unwrap();
    args(Some(path), &[])
}

/// A cluster's name, and the names of its nodes.
type Names = (Option<String>, Vec<String>);

/// Clusters of a file with this text.
fn clusters(text: &str) -> Result<Vec<Names>, String> {
    let named = file(text);
    let found = named.clusters().map_err(|error| error.to_string());
    std::fs::remove_dir_all(named.file.unwrap().parent().unwrap()).unwrap();
    let of = |it: Cluster| {
        (
            it.name,
            it.nodes.into_iter().map(|node| node.name).collect(),
        )
    };
    found.map(|all| all.into_iter().map(of).collect())
}

fn listed(cluster: &str, role: &str, host: &str) -> String {
    let cluster = match cluster {
        "" => String::new(),
        name => format!("cluster = '{name}'\n"),
    };
    format!("[[node]]\n{cluster}role = '{role}'\nconninfo = 'host={host}'\n")
}

const PATRONI: &str =
    "[[cluster]]\nname = 'shop'\npatroni = ['http://db1:8008']\nconninfo = 'user=u'\n";

#[test]
fn a_file_names_clusters_or_none() {
    let pair = |name: Option<&str>, nodes: &[&str]| {
        let nodes = nodes
            .iter()
            .map(|&node| node.to_owned())
            .collect::<Vec<_>>();
        (name.map(str::to_owned), nodes)
    };
    let today = listed("", "primary", "/a") + &listed("", "standby", "/b");
    assert_eq!(
        clusters(&today),
        Ok(vec![pair(None, &["primary", "standby"])])
    );
    // Names are those of roles in each.
    let two = listed("a", "standby", "/1")
        + &listed("b", "primary", "/2")
        + &listed("a", "primary", "/3");
    assert_eq!(
        clusters(&two),
        Ok(vec![
            pair(Some("a"), &["primary", "standby"]),
            pair(Some("b"), &["primary"])
        ])
    );
    // A subscriber is another cluster's primary, or follows two.
    let both = two.clone() + &listed("a", "subscriber", "/2") + &listed("b", "subscriber", "/4");
    assert_eq!(
        clusters(&(both + &listed("a", "subscriber", "/4")))
            .unwrap()
            .len(),
        2
    );
    let members =
        PATRONI.to_owned() + &listed("shop", "subscriber", "/5") + &listed("b", "primary", "/2");
    assert_eq!(
        clusters(&members),
        Ok(vec![
            pair(Some("shop"), &["subscriber"]),
            pair(Some("b"), &["primary"])
        ])
    );
    let unnamed = PATRONI.replace("name = 'shop'\n", "") + &listed("", "subscriber", "/5");
    assert_eq!(clusters(&unnamed), Ok(vec![pair(None, &["subscriber"])]));
}

#[test]
fn clusters_that_cannot_be_are_refused() {
    let a = listed("a", "primary", "/1");
    for (text, words) in [
        (
            a.clone() + &listed("", "standby", "/2"),
            "node 2: it names no cluster, though others do",
        ),
        (
            a.clone() + &listed("b", "standby", "/2"),
            "cluster b: no primary is named",
        ),
        (a.clone() + &a, "cluster a: 2 primaries are named"),
        (
            a.clone() + &listed("b", "primary", "/1"),
            "clusters a and b have the same server, /1:",
        ),
        (
            listed("a b", "primary", "/1"),
            "a cluster's name has 1 to 63 letters",
        ),
        (
            listed("../x", "primary", "/1"),
            "a cluster's name has 1 to 63 letters",
        ),
        (
            PATRONI.to_owned() + PATRONI,
            "cluster 2, shop: its cluster has another [[cluster]]",
        ),
        (
            PATRONI.replace("name = 'shop'\n", "") + &a,
            "cluster 1: it has no name",
        ),
        (PATRONI.replace("http", "https"), "https needs ca_file"),
        (
            PATRONI.replace("http://", ""),
            "a URL of Patroni is such as",
        ),
        (
            PATRONI.replace("'http://db1:8008'", ""),
            "patroni has no URL",
        ),
        (
            PATRONI.replace("user=u", "host=h"),
            "has no host and no port",
        ),
        (
            PATRONI.replace("conninfo = 'user=u'\n", ""),
            "missing field",
        ),
    ] {
        let error = clusters(&text).unwrap_err();
        assert!(error.contains(words), "{error}");
        assert_eq!(error.matches("--nodes").count(), 1, "{error}");
    }
}

#[test]
fn one_cluster_of_a_file_is_chosen() {
    let text = listed("a", "primary", "/1") + &listed("b", "primary", "/2");
    let mut named = file(&text);
    let folder = named.file.clone().unwrap();
    named.standbys = vec!["host=/3".to_owned()];
    let error = named.clusters().unwrap_err().to_string();
    assert!(
        error.contains("several clusters: write the node of --standby into it"),
        "{error}"
    );
    named.cluster = Some("b".to_owned());
    let found = named.clusters().unwrap();
    assert_eq!((found.len(), found[0].nodes.len()), (1, 2));
    assert_eq!(named.with_pool().unwrap().1.len(), 2);
    named.cluster = Some("c".to_owned());
    let error = named.clusters().unwrap_err().to_string();
    assert!(
        error.contains("no cluster is called c; there are a, b"),
        "{error}"
    );
    (named.cluster, named.standbys) = (None, Vec::new());
    assert!(
        named
            .with_pool()
            .unwrap_err()
            .to_string()
            .contains("--cluster NAME")
    );
    std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}
