//! What is found about row filters and column lists before anything is changed.

use lockstep_lab::assert_has;
use lockstep_lab::server::Server;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::error::Severity::{self, Error, Warning};
use lockstep_replica::lifecycle::create::{CreateOptions, create, preflight};
use lockstep_replica::state::ReplicaState;

use crate::subsets::subsets;
use crate::{Told, conninfo, on, options, pair, sql, values};

/// Filters, lists, how bad it is, what it is about, what is said, and what to do.
type Case<'a> = (
    &'a [&'a str],
    &'a [&'a str],
    Severity,
    &'a str,
    &'a str,
    &'a str,
);

/// Each case has this finding, and no other of its severity.
fn check(options: &CreateOptions, cases: &[Case]) {
    for (filters, lists, severity, subject, says, todo) in cases {
        let mut options = options.clone();
        options.subsets = subsets(filters, lists);
        let (_, findings) = preflight(&options).unwrap();
        let found: Vec<_> = findings
            .iter()
            .filter(|one| one.severity == *severity)
            .collect();
        let [one] = found[..] else {
            panic!("{filters:?} {lists:?}: {findings:#?}");
        };
        assert_eq!(one.subject, *subject, "{one:?}");
        assert!(one.says.contains(says), "{says}: {one:?}");
        assert!(one.todo.contains(todo), "{todo}: {one:?}");
    }
}

fn assert_untouched(source: &Server, target: &Server) {
    assert!(ReplicaState::find(&conninfo(target)).unwrap().is_none());
    assert!(values(source, "SELECT pubname FROM pg_publication").is_empty());
    assert!(values(source, "SELECT slot_name FROM pg_replication_slots").is_empty());
}

#[test]
fn tables_that_cannot_have_one_are_named() {
    let (_lab, source, target) = pair(
        "CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE gone (a int PRIMARY KEY);
         CREATE UNLOGGED TABLE fast (a int PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS a;
         CREATE TABLE p (a int PRIMARY KEY) PARTITION BY RANGE (a);
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)",
    );
    let mut options = options(&source, &target);
    options.excluded.tables = vec!["public.gone".to_owned()];
    let no_table = "the source has no such table";
    check(
        &options,
        &[
            (
                &["public.no=a > 0"],
                &[],
                Error,
                "table \"public.no\"",
                no_table,
                "correct --where;",
            ),
            (
                &[],
                &["public.\"T\"=a"],
                Error,
                "table \"public.T\"",
                no_table,
                "correct --columns;",
            ),
            (
                &["public.v=a > 0"],
                &[],
                Error,
                "table \"public.v\"",
                no_table,
                "--where",
            ),
            (
                &["public.gone=a > 0"],
                &["public.gone=a"],
                Error,
                "table \"public.gone\"",
                "it is excluded",
                "leave --where and --columns out",
            ),
            (
                &["public.fast=a > 0"],
                &[],
                Error,
                "table \"public.fast\"",
                "its rows are not replicated",
                "leave --where out",
            ),
            (
                &["public.p1=a > 1", "public.p=a > 0"],
                &[],
                Error,
                "table \"public.p1\"",
                "a partition of \"public.p\"",
                "one of them only",
            ),
            (
                &["public.p=a > 0"],
                &[],
                Warning,
                "table \"public.p\"",
                "partitions created later",
                "publication",
            ),
        ],
    );
    assert_untouched(&source, &target);
}

#[test]
fn what_the_source_refuses_to_publish_is_found_with_its_words() {
    let (_lab, source, target) = pair(
        "CREATE TABLE t (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a + 1) STORED, c int);
         CREATE TABLE u (a int PRIMARY KEY);
         CREATE FUNCTION f(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true';
         CREATE TABLE p (a int PRIMARY KEY) PARTITION BY RANGE (a);
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9);
         CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (9) TO (19)",
    );
    let options = options(&source, &target);
    let of_t = |filter: &'static str, words: &'static str| {
        check(
            &options,
            &[(
                &[&format!("public.t={filter}")],
                &[],
                Error,
                "table \"public.t\"",
                words,
                filter.trim(),
            )],
        );
    };
    of_t("a >", "syntax error");
    of_t("nothing > 0", "column \"nothing\" does not exist");
    of_t("a", "argument of PUBLICATION WHERE must be type boolean");
    of_t("public.f(a)", "User-defined");
    of_t("random() > 0.5", "mutable functions");
    of_t("ctid = '(0,1)'", "System columns");
    of_t("a IN (SELECT 1)", "Only columns, constants");
    of_t("count(a) > 1", "aggregate");
    // Text that would bring other tables, options or statements along.
    of_t("a > 0), TABLE public.u WHERE (a > 0", "syntax error");
    of_t("a > 0) WITH (publish = 'insert'", "syntax error");
    of_t("a > 0); DROP TABLE u; --", "syntax error");
    of_t("a > 0); DROP TABLE u; SELECT (1", "multiple commands");
    of_t("a > 0) --", "syntax error");
    of_t("a > 0 /*", "unterminated /* comment");
    of_t("a > 'x", "unterminated quoted string");
    let list = |list: &'static str, words: &'static str, todo: &'static str| {
        let subject = "table \"public.t\"";
        check(
            &options,
            &[(
                &[],
                &[&format!("public.t={list}")],
                Error,
                subject,
                words,
                todo,
            )],
        );
    };
    list(
        "a,nothing",
        "column \"nothing\" of relation \"t\" does not exist",
        "correct --columns",
    );
    list("a,c,a", "duplicate column \"a\"", "correct --columns");
    list(
        "c",
        "its list lacks columns of its replica identity: a",
        "add them to --columns",
    );
    list("ctid,a", "system column", "correct --columns");
    // The same of several partitions is said once.
    check(
        &options,
        &[(
            &["public.p=b > 0"],
            &[],
            Error,
            "tables \"public.p1\", \"public.p2\"",
            "column \"b\" does not exist",
            "b > 0",
        )],
    );
    let mut options = options.clone();
    options.subsets = subsets(&[], &["public.t=a,b"]);
    let (_, findings) = preflight(&options).unwrap();
    let generated = findings
        .iter()
        .any(|one| one.says.contains("generated column"));
    assert!(generated, "{findings:#?}");
    let error = create(&options, &mut Told::default()).unwrap_err();
    assert!(matches!(error, ReplicaError::Preflight(_)), "{error}");
    assert_untouched(&source, &target);
    assert_eq!(
        values(&source, "SELECT to_regclass('public.u') IS NOT NULL"),
        ["t"]
    );
}

/// The source accepts such publications, and then refuses each update: so says the test of the server
/// beside each.
#[test]
fn a_subset_that_would_break_updates_on_the_source_is_refused() {
    let (_lab, source, target) = pair("CREATE TABLE t (a int, b int NOT NULL, c text, PRIMARY KEY (a, b)); \
        INSERT INTO t VALUES (1, 1);
             CREATE TABLE i (a int PRIMARY KEY, b int NOT NULL UNIQUE, c text); INSERT INTO i VALUES (1, 1);
             ALTER TABLE i REPLICA IDENTITY USING INDEX i_b_key;
             CREATE TABLE f (a int, b int); ALTER TABLE f REPLICA IDENTITY FULL;
             INSERT INTO f VALUES (1, 1);
             CREATE TABLE p (k int PRIMARY KEY, v int) PARTITION BY RANGE (k);
             CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9); INSERT INTO p VALUES (1, 1);
             CREATE TABLE only_inserts (a int, b int)");
    let options = options(&source, &target);
    let outside = "outside of its replica identity";
    let (t, i) = ("table \"public.t\"", "table \"public.i\"");
    let (f, p1) = ("table \"public.f\"", "table \"public.p1\"");
    let lacks = "lacks columns of its replica identity: b";
    let full = "REPLICA IDENTITY FULL and a column list";
    let cases: [Case; 7] = [
        (
            &["public.t=c = 'x' OR a = 1"],
            &[],
            Error,
            t,
            outside,
            "FULL",
        ),
        (
            &["public.t=c = 'x'"],
            &["public.t=a,b"],
            Error,
            t,
            outside,
            "USING INDEX",
        ),
        (&[], &["public.t=a,c"], Error, t, lacks, "--columns"),
        (&["public.i=a > 0"], &[], Error, i, outside, "USING INDEX"),
        (&[], &["public.i=a,c"], Error, i, lacks, "--columns"),
        (&[], &["public.f=a,b"], Error, f, full, "--columns"),
        (&["public.p=v > 0"], &[], Error, p1, outside, "FULL"),
    ];
    check(&options, &cases);
    for (filters, lists, _, subject, _, _) in cases {
        let table = subject.trim_start_matches("table ").replace('"', "");
        let subset = &subsets(filters, lists)[0];
        let mut session = sql(&source);
        let publish = format!(
            "BEGIN; CREATE PUBLICATION x FOR TABLE ONLY {table}{}",
            subset.published()
        );
        session.execute(&publish).unwrap();
        let refused = session
            .execute(&format!("DELETE FROM {table}"))
            .unwrap_err();
        assert_has!(refused.to_string(), "cannot delete from table");
    }
    // Any column of a row that is in the WAL as a whole, any of the chosen index, and any of a table
    // whose updates are refused in any case.
    let mut good = options.clone();
    good.subsets = subsets(
        &[
            "public.f=b > 0",
            "public.i=b > 0",
            "public.only_inserts=b > 0",
        ],
        &["public.i=a,b", "public.only_inserts=b"],
    );
    create(&good, &mut Told::default()).unwrap();
    let change = "UPDATE f SET b = 2; UPDATE i SET a = 2, c = 'x'; UPDATE t SET c = 'y'";
    on(&source, change);
}

#[test]
fn what_the_target_could_not_hold_is_found() {
    let (_lab, source, target) = pair("CREATE DOMAIN must AS int CHECK (VALUE > 0) NOT NULL; CREATE DOMAIN \
        musts AS must;
             CREATE TABLE t (a int PRIMARY KEY, needed int NOT NULL, domained musts, d int NOT NULL DEFAULT 7,
                 s serial, i int GENERATED ALWAYS AS IDENTITY, n int, CHECK (n > 0),
                 g int GENERATED ALWAYS AS (coalesce(n, 0) + d) STORED NOT NULL);
             CREATE UNIQUE INDEX one ON t (d); CREATE UNIQUE INDEX fine ON t (n, d);
             CREATE UNIQUE INDEX filled ON t (s); CREATE UNIQUE INDEX alone ON t (needed) WHERE n IS NULL;
             CREATE UNIQUE INDEX nulls ON t (n) NULLS NOT DISTINCT;
             CREATE UNIQUE INDEX expression ON t (coalesce(n, 0));
             INSERT INTO t (a, needed, domained, d, n) SELECT n, n, n, n, n FROM generate_series(1, 9) n;
             CREATE TABLE p (a int, region int, v int) PARTITION BY LIST (abs(region));
             CREATE TABLE p1 PARTITION OF p (PRIMARY KEY (a)) FOR VALUES IN (1)");
    let options = options(&source, &target);
    let subject = "table \"public.t\"";
    let says = "NOT NULL and have no default, so the target could have no row: needed, domained";
    let indexes = "need not satisfy: fine, one";
    check(
        &options,
        &[
            (
                &[],
                &["public.t=a,n,d"],
                Error,
                subject,
                says,
                "SET DEFAULT",
            ),
            (
                &[],
                &["public.t=a,needed,domained,n"],
                Error,
                subject,
                indexes,
                "--columns",
            ),
            (
                &[],
                &["public.t=a,needed,domained,d,s"],
                Error,
                subject,
                "need not satisfy: alone, expression, nulls",
                "--columns",
            ),
            (
                &[],
                &["public.t=a,needed,domained,d,s"],
                Warning,
                subject,
                "t_n_check, g",
                "otherwise the copy fails",
            ),
            (
                &[],
                &["public.p=a,v"],
                Error,
                "table \"public.p1\"",
                "by which a table above is partitioned",
                "--columns",
            ),
        ],
    );
    let mut fine = options.clone();
    fine.subsets = subsets(&[], &["public.t=a,needed,domained,n,d"]);
    create(&fine, &mut Told::default()).unwrap();
    let query = "SELECT count(DISTINCT s) || ' ' || count(DISTINCT i) || ' ' || sum(g) FROM t";
    assert_eq!(values(&target, query), ["9 9 90"]);
}

const RELATED: &str = "
CREATE TABLE customer (region int, id int, name text, PRIMARY KEY (region, id));
INSERT INTO customer SELECT n % 2, n, 'c' FROM generate_series(1, 10) n;
CREATE TABLE orders (region int, id int, customer int, PRIMARY KEY (region, id),
    FOREIGN KEY (region, customer) REFERENCES customer) PARTITION BY LIST (region);
CREATE TABLE orders0 PARTITION OF orders FOR VALUES IN (0);
CREATE TABLE orders1 PARTITION OF orders FOR VALUES IN (1);
INSERT INTO orders SELECT n % 2, n, n FROM generate_series(1, 10) n;
CREATE TABLE kind (id int PRIMARY KEY, code text UNIQUE); INSERT INTO kind VALUES (1, 'x');
CREATE TABLE item (id int PRIMARY KEY, code text DEFAULT 'x' REFERENCES kind (code),
    kind int REFERENCES kind);
INSERT INTO item VALUES (1, 'x', 1)";

#[test]
fn foreign_keys_that_the_target_could_not_have_are_found() {
    let (_lab, source, target) = pair(RELATED);
    let options = options(&source, &target);
    let of_orders = "constraint \"orders_region_customer_fkey\" of table \"public.orders\"";
    check(
        &options,
        &[
            (
                &["public.customer=region = 1"],
                &[],
                Error,
                of_orders,
                "refer to rows of table \"public.customer\" that are not",
                "row filter",
            ),
            (
                &["public.customer=region = 1", "public.orders=id > 5"],
                &[],
                Error,
                of_orders,
                "refer to rows",
                "row filter",
            ),
            (
                &[],
                &["public.item=id,kind"],
                Error,
                "constraint \"item_code_fkey\" of table \"public.item\"",
                "leaves out its column \"code\"",
                "--columns",
            ),
            (
                &[],
                &["public.kind=id"],
                Error,
                "constraint \"item_code_fkey\" of table \"public.item\"",
                "column \"code\" of table \"public.kind\", whose list leaves it out",
                "--columns",
            ),
        ],
    );
    // A partition of its own, and rows that are filtered alike.
    let mut alike = options.clone();
    alike.subsets = subsets(
        &["public.customer=region = 1", "public.orders=region = 1"],
        &["public.item=id,code"],
    );
    let mut told = Told::default();
    create(&alike, &mut told).unwrap();
    let warned = told
        .findings
        .iter()
        .find(|one| one.subject == of_orders)
        .unwrap();
    assert_eq!(warned.severity, Warning);
    assert!(warned.says.contains("does not check it"), "{warned:?}");
    let kept = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 \
                AND connamespace = 'public'::regnamespace";
    assert_eq!(values(&target, kept), ["3"]);
    assert_eq!(values(&target, "SELECT count(*) FROM orders"), ["5"]);
    let referenced =
        "SELECT confrelid::regclass FROM pg_constraint WHERE conname = 'item_kind_fkey'";
    assert_eq!(values(&target, referenced), ["kind"]);
}
