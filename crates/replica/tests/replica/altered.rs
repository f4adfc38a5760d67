//! `alter` and tables of the target that are not as the source's: what they would lose is refused before
//! anything is changed, and nothing goes but the replica's own rows.

use lockstep_lab::assert_has;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::alter::{AlterOptions, alter};
use lockstep_replica::lifecycle::alteration::Wishes;
use lockstep_replica::publication::subset::gather;

use crate::{Told, conninfo, copied, create_options, on, pair, sql, to_alter, values};

fn altering(target: &Server, wishes: Wishes) -> AlterOptions {
    AlterOptions {
        wishes,
        ..to_alter(conninfo(target))
    }
}

/// `tables` join.
fn including(target: &Server, tables: &[&str]) -> AlterOptions {
    let mut wishes = Wishes::default();
    wishes.include.tables = tables.iter().map(|name| format!("public.{name}")).collect();
    altering(target, wishes)
}

/// A table has this row filter.
fn filtered(target: &Server, filter: &str) -> AlterOptions {
    let subsets = gather(&[filter.to_owned()], &[]).unwrap();
    altering(
        target,
        Wishes {
            subsets,
            ..Wishes::default()
        },
    )
}

fn refused(options: &AlterOptions) -> String {
    let error = alter(options, &mut Told::default()).unwrap_err();
    error.to_string()
}

/// The replica is ready.
fn assert_unchanged(target: &Server) {
    let stands = "SELECT phase || ' ' || altering FROM lockstep.replica";
    assert_eq!(values(target, stands), ["ready false"]);
}

/// Types of the source and the target, and a value: what apply would round, cut off or read by a setting is
/// refused.
const LOSSY: [(&str, &str, &str); 17] = [
    ("numeric", "numeric(10,1)", "1.26"),
    ("timestamp", "timestamp(0)", "2020-01-01 00:00:12.7"),
    ("timestamptz", "timestamp", "2020-01-01 00:00:00+00"),
    ("interval", "interval(0)", "1.7 s"),
    ("int8", "float8", "9007199254740993"),
    ("int4", "float4", "16777217"),
    ("numeric[]", "numeric(5,1)[]", "{1.26}"),
    ("date", "timestamptz", "2020-01-01"),
    ("int4", "oid", "-1"),
    ("xid8", "float4", "4294967295"),
    ("varchar(9)", "char(20)", "a "),
    ("tsrange", "daterange", "[2020-01-01 10:11:12, 2020-01-02)"),
    ("tstzrange[]", "tsrange[]", "{}"),
    ("datemultirange", "tstzmultirange", "{}"),
    ("tsmultirange[]", "datemultirange[]", "{}"),
    ("text", "numeric(10,2)", "1.2345"),
    ("text[]", "date[]", "{2020-01-01 10:00}"),
];

#[test]
fn a_table_of_other_types_joins_if_they_hold_all() {
    let (_lab, source, target) = copied("CREATE TABLE k (id int PRIMARY KEY)");
    for (place, (theirs, ours, value)) in LOSSY.iter().enumerate() {
        let table = format!("lossy{place}");
        on(
            &source,
            &format!(
                "CREATE TABLE {table} (id int PRIMARY KEY, c {theirs}); INSERT INTO {table} VALUES (1, '{value}')"
            ),
        );
        on(
            &target,
            &format!("CREATE TABLE {table} (id int PRIMARY KEY, c {ours})"),
        );
        let words = refused(&including(&target, &[&table]));
        assert_has!(words, "would round or cut off");
        assert_unchanged(&target);
    }
    // The others go as text.
    let pairs = [
        ("int4", "int8", "-7"),
        ("int8", "numeric", "5"),
        ("int4", "text", "7"),
        ("text", "jsonb", "{\"a\": 1}"),
        ("date", "text", "2020-01-02"),
        ("float8", "int8", "2"),
        ("oid", "int8", "4294967295"),
        ("varchar(9)", "varchar(20)", "abc"),
    ];
    let column = |place: usize| format!("c{place}");
    let list = |of: &dyn Fn(&(&str, &str, &str)) -> String| -> String {
        let each = pairs.iter().enumerate();
        let each = each.map(|(place, pair)| format!("{} {}", column(place), of(pair)));
        each.collect::<Vec<_>>().join(", ")
    };
    let given: Vec<_> = pairs
        .iter()
        .map(|(.., value)| format!("'{value}'"))
        .collect();
    let given = given.join(", ");
    on(
        &source,
        &format!(
            "CREATE TABLE wider (id int PRIMARY KEY, {}); INSERT INTO wider VALUES (1, {given}); \
             CREATE TABLE garbage (id int PRIMARY KEY, c int8); INSERT INTO garbage VALUES (1, 5)",
            list(&|pair| pair.0.to_owned())
        ),
    );
    on(
        &target,
        &format!(
            "CREATE TABLE wider (id int8 PRIMARY KEY, {}); \
             CREATE TABLE garbage (id int PRIMARY KEY, c timestamp)",
            list(&|pair| pair.1.to_owned())
        ),
    );
    alter(&including(&target, &["wider"]), &mut Told::default()).unwrap();
    let all = (0..pairs.len()).map(|place| format!("{}::text", column(place)));
    let all = all.collect::<Vec<_>>().join(", ");
    let row = format!("SELECT concat_ws(' ', {all}) FROM wider");
    assert_eq!(values(&target, &row), values(&source, &row));

    // A value that the target does not take: nothing is made of it, and the words say how it goes on.
    let words = refused(&including(&target, &["garbage"]));
    assert_has!(words, "invalid input syntax");
    assert_has!(words, "alter r --go-on");
    assert_eq!(
        values(&target, "SELECT c FROM garbage"),
        Vec::<String>::new()
    );
    on(&target, "ALTER TABLE garbage ALTER c TYPE int8 USING NULL");
    alter(&altering(&target, Wishes::default()), &mut Told::default()).unwrap();
    assert_eq!(values(&target, "SELECT c FROM garbage"), ["5"]);
    assert_unchanged(&target);
}

#[test]
fn what_would_fail_is_refused_before_a_table_is_emptied() {
    let (_lab, source, target) = copied(
        "CREATE TABLE w (id int PRIMARY KEY, v int); INSERT INTO w SELECT g, g FROM generate_series(1, 100) g",
    );
    let rows = "SELECT count(*) || ' ' || sum(id) FROM w";
    for (change, words, back) in [
        ("RENAME v TO u", "no column \"v\"", "RENAME u TO v"),
        (
            "ADD more int NOT NULL DEFAULT 1; ALTER TABLE w ALTER more DROP DEFAULT",
            "NOT NULL without a default",
            "DROP more",
        ),
        (
            "DROP v; ALTER TABLE w ADD v int GENERATED ALWAYS AS (7) STORED",
            "generated",
            "ALTER v DROP EXPRESSION",
        ),
    ] {
        on(&target, &format!("ALTER TABLE w {change}"));
        assert_has!(refused(&filtered(&target, "public.w=id < 50")), words);
        assert_unchanged(&target);
        assert_eq!(values(&target, rows), ["100 5050"], "{change}");
        on(&target, &format!("ALTER TABLE w {back}"));
    }
    // What the docs recommend is no hindrance.
    on(
        &target,
        "ALTER TABLE w ALTER id TYPE bigint, ALTER v TYPE bigint",
    );
    alter(&filtered(&target, "public.w=id < 50"), &mut Told::default()).unwrap();
    let all = "SELECT count(*) || ' ' || sum(id) || ' ' || sum(v) FROM w WHERE id < 50";
    assert_eq!(values(&target, all), values(&source, all));
    assert_eq!(values(&target, rows), ["49 1225"]);
    assert_unchanged(&target);
}

#[test]
fn only_the_copy_is_dropped_and_emptied_whatever_it_is_called() {
    let (_lab, _source, target) = copied(
        "CREATE TABLE m (id int PRIMARY KEY, v text); INSERT INTO m SELECT g, 'm' FROM generate_series(1, 10) g; \
         CREATE TABLE n (id int PRIMARY KEY, v text); INSERT INTO n SELECT g, 'n' FROM generate_series(1, 20) g",
    );
    let count = |table: &str, expected: &str| {
        let count = format!("SELECT count(*) || ' ' || min(v) FROM {table}");
        assert_eq!(values(&target, &count), [expected], "{table}");
    };
    let filter = filtered(&target, "public.m=id < 5");
    // Another table has its name.
    on(
        &target,
        "ALTER TABLE m RENAME TO m_copy; CREATE TABLE m (id int PRIMARY KEY, v text); \
         INSERT INTO m VALUES (77, 'mine')",
    );
    assert_has!(
        refused(&filter),
        "is called \"public.m_copy\" on the target"
    );
    count("m", "1 mine");
    // So it has, and the copy is gone.
    on(&target, "DROP TABLE m_copy");
    assert_has!(refused(&filter), "that are not the replica's");
    count("m", "1 mine");
    on(&target, "TRUNCATE m");
    alter(&filter, &mut Told::default()).unwrap();
    count("m", "4 m");
    // Two have changed their names.
    on(
        &target,
        "ALTER TABLE m RENAME TO z; ALTER TABLE n RENAME TO m; ALTER TABLE z RENAME TO n",
    );
    assert_has!(
        refused(&filtered(&target, "public.m=id < 3")),
        "is the copy of \"public.n\""
    );
    assert_unchanged(&target);
    count("m", "20 n");
    let mut leaves = altering(&target, Wishes::default());
    leaves.wishes.exclude.tables = vec!["public.m".to_owned()];
    leaves.drops = true;
    alter(&leaves, &mut Told::default()).unwrap();
    count("m", "20 n");
    assert_eq!(values(&target, "SELECT to_regclass('public.n')"), ["null"]);
}

#[test]
fn rows_that_join_are_not_changed_on_their_way() {
    let (_lab, source, target) = copied("CREATE TABLE k (id int PRIMARY KEY)");
    let big = "CREATE TABLE big (id int PRIMARY KEY, v text); ALTER TABLE big ALTER v SET STORAGE PLAIN; \
        CREATE TABLE refers (id int PRIMARY KEY REFERENCES big)";
    on(&source, big);
    on(
        &source,
        "INSERT INTO big SELECT g, repeat('x', 1000) FROM generate_series(1, 3000) g; INSERT INTO refers VALUES (1)",
    );
    on(&target, big);
    on(
        &target,
        "CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS \
             $$BEGIN NEW.v := 'changed'; RETURN NEW; END$$; \
         CREATE TRIGGER quiet BEFORE INSERT ON big FOR EACH ROW EXECUTE FUNCTION other(); \
         CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$; \
         CREATE TRIGGER loud BEFORE INSERT ON refers FOR EACH ROW EXECUTE FUNCTION nothing(); \
         ALTER TABLE refers ENABLE ALWAYS TRIGGER loud",
    );
    let mut told = Told::default();
    alter(&including(&target, &["big", "refers"]), &mut told).unwrap();
    let found: Vec<_> = told
        .findings
        .iter()
        .map(|it| (it.subject.as_str(), it.says.as_str()))
        .collect();
    let loud = found
        .iter()
        .find(|(subject, _)| subject.contains("public.refers"));
    assert_has!(loud.unwrap().1, "ENABLE ALWAYS");
    let rows = "SELECT count(*) || ' ' || min(v) || max(v) FROM big";
    assert_eq!(values(&target, rows), values(&source, rows));
    assert_eq!(values(&target, "SELECT id FROM refers"), ["1"]);
}

#[test]
fn nothing_is_altered_while_a_session_applies_without_the_lock() {
    let (_lab, _source, target) = copied("CREATE TABLE k (id int PRIMARY KEY)");
    let origin = values(&target, "SELECT origin || '_0' FROM lockstep.replica").remove(0);
    let mut stray = sql(&target);
    let owns = format!(
        "SELECT pg_replication_origin_create('{origin}'); \
         SELECT pg_replication_origin_session_setup('{origin}')"
    );
    stray.execute(&owns).unwrap();
    let options = filtered(&target, "public.k=id < 5");
    assert_has!(refused(&options), "still applies to replica \"r\"");
    assert_unchanged(&target);
    drop(stray);
    alter(&options, &mut Told::default()).unwrap();
}

/// What was begun, and cannot be done any more since the source has dropped or renamed a table.
#[test]
fn an_alteration_ends_whatever_became_of_a_table_that_joins() {
    let (_lab, source, target) = copied("CREATE TABLE k (id int PRIMARY KEY)");
    let tables = "CREATE TABLE one (id int PRIMARY KEY); CREATE TABLE two (id int PRIMARY KEY)";
    on(
        &source,
        &format!("{tables}; INSERT INTO one VALUES (1); INSERT INTO two VALUES (2)"),
    );
    on(
        &target,
        &format!("{tables}; ALTER TABLE two ADD CHECK (id <> 2)"),
    );
    let words = refused(&including(&target, &["one", "two"]));
    assert_has!(words, "two_id_check");
    let go_on = altering(&target, Wishes::default());
    on(&source, "ALTER TABLE two RENAME TO three");
    let words = refused(&go_on);
    assert_has!(words, "is called \"public.three\" on the source by now");
    on(
        &source,
        "DROP TABLE three; CREATE TABLE two (id int PRIMARY KEY)",
    );
    let mut told = Told::default();
    alter(&go_on, &mut told).unwrap();
    assert_unchanged(&target);
    let found: Vec<_> = told.findings.iter().map(|it| &*it.subject).collect();
    assert_eq!(found, ["table \"public.two\""]);
    assert_eq!(values(&target, "SELECT id FROM one"), ["1"]);
    let listed = "SELECT table_name FROM lockstep.table_copy ORDER BY 1";
    assert_eq!(values(&target, listed), ["k", "one"]);
}

/// A table that is left out can have no row filter: nothing would come of it.
#[test]
fn a_wish_for_a_table_that_is_left_out_is_refused() {
    let (_lab, source, target) = pair(
        "CREATE TABLE log (id int PRIMARY KEY); CREATE TABLE k (id int PRIMARY KEY); \
         INSERT INTO k VALUES (1), (2)",
    );
    let mut options = create_options(conninfo(&source), conninfo(&target));
    options.excluded.tables = vec!["public.log".to_owned()];
    lockstep_replica::lifecycle::create::create(&options, &mut Told::default()).unwrap();
    let filter = filtered(&target, "public.log=id = 1");
    assert_has!(refused(&filter), "is left out");
    // A table of the replica that has got the name, too.
    let renamed = "ALTER TABLE log RENAME TO old; ALTER TABLE k RENAME TO log";
    on(&source, renamed);
    on(&target, "ALTER TABLE k RENAME TO log");
    assert_has!(refused(&filter), "is left out");
    assert_unchanged(&target);
    assert_eq!(values(&target, "SELECT count(*) FROM log"), ["2"]);
}
