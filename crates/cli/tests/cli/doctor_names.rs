//! Names in remedies are quoted as the server quotes them.

use lockstep_client::quote::sql_literal;
use lockstep_lab::for_tests::{TestLab, seeds};
use lockstep_lab::server::{SUPERUSER, Settings};
use lockstep_lag::rules::identifier;

/// Names from one seed.
const NAMES: usize = 2_000;

/// Characters of names: those that need no quotes most often.
const CHARACTERS: &str = "abcdefghijklmnopqrstuvwxyz____0123456789ABZ$ .\"'\\;{}-éßж\n";

#[test]
fn names_are_quoted_as_the_server_quotes_them() {
    let lab = TestLab::stock().start().unwrap();
    let server = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut session = server.connect(SUPERUSER, "names").unwrap();
    let mut column = |sql: &str| -> Vec<String> {
        let rows = session.query(sql).unwrap();
        rows.into_iter()
            .map(|row| row[0].clone().unwrap())
            .collect()
    };
    let mut names = column("SELECT word FROM pg_get_keywords()");
    assert!(names.len() > 400);
    let characters: Vec<char> = CHARACTERS.chars().collect();
    for seed in seeds(1) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..NAMES {
            let length = rng.usize(1..=8);
            let name = (0..length).map(|_| *rng.choice(&characters).unwrap());
            names.push(name.collect());
        }
    }
    let literals: Vec<String> = names
        .iter()
        .map(|name| sql_literal("name", name).unwrap())
        .collect();
    let sql = format!(
        "SELECT quote_ident(name) FROM unnest(ARRAY[{}]) WITH ORDINALITY AS n(name, at) ORDER BY at",
        literals.join(", ")
    );
    for (name, quoted) in names.iter().zip(column(&sql)) {
        assert_eq!(identifier(name), quoted, "{name:?}");
    }
}
