//! `lockstep replica` with row filters and column lists, as a user gives and sees them.

use serde_json::Value;

use crate::replica::{create_args, in_app, on, output, pair, text, value};

#[test]
fn a_row_filter_and_a_column_list_are_taken_kept_and_shown() {
    let (_lab, source, target) = pair(
        "CREATE SCHEMA \"A=b\"; CREATE TABLE \"A=b\".\"T\" (id int PRIMARY \
        KEY, v text, hidden text);
             INSERT INTO \"A=b\".\"T\" SELECT n, 'v', 'hidden' FROM generate_series(1, 10) n;
             CREATE TABLE t (id int, v text DEFAULT 'none', PRIMARY KEY (id));
             INSERT INTO t SELECT n, 'v' FROM generate_series(1, 10) n",
    );
    let from = in_app(&source);
    let to = in_app(&target);
    let with = |more: &[&str]| {
        let mut args = create_args(&from, &to);
        args.extend(more);
        output(&args)
    };
    let named = "\"A=b\".\"T\"=id <= 3 OR id = 9";
    // Usage: nothing is looked at.
    for (more, words) in [
        (["--where", "t=id > 1"], "is not schema.table=EXPRESSION"),
        (["--where", "public.t="], "is not schema.table=EXPRESSION"),
        (["--columns", "public.t=id,"], "is no list of columns"),
    ] {
        let refused = with(&more);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(text(&refused.stderr).contains(words), "{refused:?}");
    }
    let twice = with(&["--where", named, "--where", named]);
    assert_eq!(twice.status.code(), Some(2), "{twice:?}");
    let words = "--where is given twice for table \"A=b.T\"; join the conditions with AND";
    assert!(text(&twice.stderr).contains(words), "{twice:?}");
    // What only the source knows: nothing is changed.
    let refused = with(&["--where", "public.t=v = 'x'"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let printed = text(&refused.stdout);
    let printed: Vec<_> = printed.split_whitespace().collect();
    let words =
        "error table \"public.t\" its filter names columns outside of its replica identity (id): v";
    assert!(printed.join(" ").contains(words), "{refused:?}");
    assert_eq!(value(&source, "SELECT count(*) FROM pg_publication"), "0");

    let lists = [
        "--columns",
        "\"A=b\".\"T\"=V,id",
        "--columns",
        "public.T=ID",
    ];
    let created = with(&[&["--where", named][..], &lists].concat());
    assert!(created.status.success(), "{created:?}");
    let there =
        "SELECT string_agg(id || v || coalesce(hidden, '-'), ' ' ORDER BY id) FROM \"A=b\".\"T\"";
    assert_eq!(value(&target, there), "1v- 2v- 3v- 9v-");
    let there = "SELECT count(*) || min(v) || max(v) FROM t";
    assert_eq!(value(&target, there), "10nonenone");

    let shown = text(&output(&["status", "r", "--target", &to]).stdout);
    for line in [
        "A=b.T: rows WHERE id <= 3 OR id = 9; columns v, id\n",
        "public.t: columns id\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let json = output(&["status", "r", "--target", &to, "--output", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let subset = &json["replicas"][0]["subsets"][0];
    assert_eq!(subset["row_filter"], "id <= 3 OR id = 9", "{json}");
    assert_eq!(subset["columns"], serde_json::json!(["v", "id"]), "{json}");

    // A creation goes on only with the same.
    let earlier = "UPDATE lockstep.replica SET phase = 'finishing'";
    on(&target, earlier);
    let other = with(&["--where", named]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let words = "was begun with other row filters or column lists";
    assert!(text(&other.stderr).contains(words), "{other:?}");
    let same = with(&[&lists[..], &["--where", named]].concat());
    assert!(same.status.success(), "{same:?}");
}
