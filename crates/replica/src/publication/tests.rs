use super::*;

fn name(table: &str) -> TableName {
    TableName {
        schema: "s".to_owned(),
        table: table.to_owned(),
    }
}

fn entry(oid: u32, table: &str) -> Entry {
    Entry {
        oid,
        table: name(table),
        ..Entry::default()
    }
}

fn made(tables: Vec<Entry>) -> Published {
    Published {
        sends: [true; 4],
        tables,
        ..Published::default()
    }
}

fn expected(made: Published) -> Expected {
    Expected {
        name: "p".to_owned(),
        made: Some(made),
        ..Expected::default()
    }
}

#[test]
fn what_a_server_says_is_read() {
    let text = "[5, [true, false, true, true], true, false, \"s\", [\"a b\"], \
                [[7, \"s\", \"t\", true, [[1, \"a\"]], \"(a > 0)\", \"x\"], [8, \"s\", \"u\", false, \
                null, null, null]]]";
    let read = Published::parse(text).unwrap();
    assert_eq!((read.oid, read.sends), (Some(5), [true, false, true, true]));
    assert_eq!((read.via_root, read.all_tables), (true, false));
    assert_eq!(read.generated.as_deref(), Some("s"));
    assert_eq!(read.schemas, ["a b"]);
    let first = read.entry(7).unwrap();
    assert_eq!(first.columns, Some(vec![(1, "a".to_owned())]));
    assert!(first.is_partitioned && first.filter.is_some());
    assert_eq!(read.entry(8), Some(&entry(8, "u")));
    assert!(Published::parse("[]").is_err());
}

#[test]
fn a_publication_of_18_has_an_oid_and_generated_columns() {
    let known = Published {
        oid: Some(5),
        generated: Some("n".to_owned()),
        ..made(vec![entry(7, "t")])
    };
    let of_18 = expected(known.clone());
    assert_eq!(of_18.compare(Some(&known), &[]), [""; 0]);
    let again = Published {
        oid: Some(6),
        generated: Some("s".to_owned()),
        ..known.clone()
    };
    let found = of_18.compare(Some(&again), &[]);
    assert!(
        found[0].starts_with("it was dropped and made again"),
        "{found:?}"
    );
    assert!(found[1].contains("publish_generated_columns"), "{found:?}");
    // The server was upgraded in place, or the state is of a server that has neither.
    assert_eq!(expected(made(vec![])).compare(Some(&known), &[]), [""; 0]);
}

#[test]
fn a_filter_is_the_same_in_either_of_its_forms() {
    let filtered = |filter: &str, digest: &str| Entry {
        filter: Some(filter.to_owned()),
        digest: Some(digest.to_owned()),
        ..entry(7, "t")
    };
    let expected = expected(made(vec![filtered("(a > 0)", "x")]));
    for (filter, digest, is_same) in [
        ("(a > 0)", "x", true),
        // A column was renamed; the filter was given again.
        ("(b > 0)", "x", true),
        ("(a > 0)", "y", true),
        ("(a > 1)", "y", false),
    ] {
        let found = made(vec![filtered(filter, digest)]);
        assert_eq!(
            expected.compare(Some(&found), &[]).is_empty(),
            is_same,
            "{filter}"
        );
    }
}

#[test]
fn an_added_partition_needs_what_the_table_above_has() {
    let part = Entry {
        columns: Some(vec![(1, "a".to_owned()), (2, "b".to_owned())]),
        ..entry(7, "p1")
    };
    let expected = Expected {
        subsets: vec![Subset {
            table: name("p"),
            filter: None,
            columns: Some(vec!["b".to_owned(), "a".to_owned()]),
        }],
        ..expected(made(vec![part.clone(), entry(8, "t")]))
    };
    let place = Place {
        oid: 9,
        table: name("p2"),
        above: vec![(6, name("p"))],
        ..Place::default()
    };
    for (columns, is_right) in [
        (Some(vec![(2, "a"), (5, "b")]), true),
        (Some(vec![(2, "a")]), false),
        // As table t has it, which is another.
        (None, false),
    ] {
        let columns = columns.map(|list| {
            let list = list.into_iter();
            list.map(|(number, name)| (number, name.to_owned()))
                .collect()
        });
        let added = Entry {
            columns,
            ..entry(9, "p2")
        };
        let found = made(vec![part.clone(), entry(8, "t"), added]);
        assert_eq!(expected.to_ask(&found), [9]);
        let differences = expected.compare(Some(&found), std::slice::from_ref(&place));
        assert_eq!(differences.is_empty(), is_right, "{differences:?}");
    }
}

#[test]
fn an_error_names_some_and_says_since_when() {
    let mut expected = expected(made(vec![]));
    assert_eq!(expected.words(&[]), None);
    let many: Vec<_> = (0..8).map(|number| format!("d{number}")).collect();
    let words = expected.words(&many).unwrap();
    assert!(words.contains("d4; and 3 more. What"), "{words}");
    assert!(words.contains("since it was altered"), "{words}");
    expected.right = Some(Lsn::from(16));
    let words = expected.words(&many).unwrap();
    assert!(
        words.contains("after 0/10, when it was last seen right"),
        "{words}"
    );
}
