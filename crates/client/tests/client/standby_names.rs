//! `synchronous_standby_names` is read as a server reads it.

use fastrand::Rng;
use lockstep_lab::cluster::Lab;
use lockstep_wire::standby_names::StandbyNames;

use super::{primary, sql};

/// Values, most of them nearly right.
const CASES: usize = 1_000;

const PIECES: [&str; 26] = [
    "a",
    "B_1",
    "x$",
    "ü",
    "*",
    "1",
    "02",
    "0",
    "any",
    "FIRST",
    "First",
    "\"",
    "\"a b\"",
    "\"x\"\"y\"",
    "\"\"",
    ",",
    ",",
    ", ",
    "(",
    ")",
    " (",
    " ",
    "\t",
    ".",
    "-",
    "'",
];

fn value(random: &mut Rng) -> String {
    let mut value = match random.u8(..4) {
        0 => "FIRST 1 (a,b)".to_owned(),
        1 => "any 2(\"a\", b , *)".to_owned(),
        2 => "a, b".to_owned(),
        _ => String::new(),
    };
    for _ in 0..random.usize(..6) {
        let piece = random.choice(PIECES).unwrap();
        let places: Vec<usize> = (0..=value.len())
            .filter(|&at| value.is_char_boundary(at))
            .collect();
        value.insert_str(random.choice(places).unwrap(), piece);
    }
    value
}

#[test]
fn values_are_taken_that_a_server_takes() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut session = sql(&server);
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let mut taken = 0;
    for _ in 0..CASES {
        let value = value(&mut random);
        let set = format!(
            "ALTER SYSTEM SET synchronous_standby_names = '{}'",
            value.replace('\'', "''")
        );
        let server_takes = session.execute(&set).is_ok();
        let ours = StandbyNames::parse(&value);
        assert_eq!(
            ours.is_ok(),
            server_takes,
            "{value:?} (seed {seed}): {ours:?}"
        );
        taken += usize::from(server_takes);
    }
    assert!(
        (CASES / 20..CASES).contains(&taken),
        "{taken} values were taken (seed {seed})"
    );
}
