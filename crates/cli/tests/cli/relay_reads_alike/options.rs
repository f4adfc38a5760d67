//! Options of pgoutput, and lists of publications.

use lockstep_relay::output_settings::OutputSettings;
use lockstep_relay::stream_options::{self, StreamOptions};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::publication_names;

use super::*;

fn plugin_options(rng: &mut Rng) -> Vec<(String, Option<String>)> {
    let mut options = Vec::new();
    if rng.u8(..8) > 0 {
        let versions = [
            "1",
            "2",
            "3",
            "4",
            "5",
            "0",
            " 1",
            "+2",
            "-1",
            "01",
            "1 ",
            "x",
            "4294967297",
            "-18446744073709551615",
            "99999999999999999999",
        ];
        options.push((
            "proto_version".to_owned(),
            Some(pick(rng, &versions).to_owned()),
        ));
    }
    if rng.u8(..8) > 0 {
        options.push(("publication_names".to_owned(), Some(names(rng))));
    }
    for _ in 0..rng.usize(..3) {
        let names = [
            "binary",
            "messages",
            "streaming",
            "two_phase",
            "origin",
            "nonsense",
            "Binary",
            "proto_version",
            "",
        ];
        let values = [
            "", "true", "ON", "false", "off", "1", "0", "t", "parallel", "Parallel", "any", "NONE",
            " on",
        ];
        let name = pick(rng, &names);
        // Minor releases differ on a version that is nothing at all.
        let values = match name {
            "proto_version" => &values[1..],
            _ => &values[..],
        };
        // Stock servers crash where these have no value.
        let value =
            (name == "proto_version" || rng.u8(..6) > 0).then(|| pick(rng, values).to_owned());
        options.push((name.to_owned(), value));
    }
    rng.shuffle(&mut options);
    options
}

/// A list of names, more or less.
fn names(rng: &mut Rng) -> String {
    let long = format!("{}é{}", "x".repeat(62), "y".repeat(9));
    let quoted = format!("\"{long}\"");
    let known = [
        "a",
        "B",
        "\"b\"",
        "\"a\"\"b\"",
        "\"a,b\"",
        "c d",
        "é",
        "É",
        "\"É\"",
        "\"\"",
        "",
        "a\"b",
        "\"a\"b",
        &long,
        &quoted,
    ];
    let list: Vec<&str> = (0..rng.usize(..4)).map(|_| pick(rng, &known)).collect();
    let text = list.join(pick(rng, &[",", ", ", " ,", ",,", ";"]));
    match rng.u8(..4) {
        0 => mutated(rng, &text, &PIECES),
        _ => text,
    }
}

pub fn options_are_read_alike(twins: &Twins, rng: &mut Rng) {
    let mut client = twins.log_in(Side::Server);
    let output = OutputSettings::default();
    let server = stream_options::Server {
        major: twins.major,
        encoding: "UTF8",
        client_encoding: "UTF8",
        output: Some(&output),
    };
    let mut accepted = 0;
    let done = rounds(|| {
        let options = plugin_options(rng);
        let start = Command::StartLogical {
            slot: "twin_idle".to_owned(),
            start: 0.into(),
            options: options.clone(),
        };
        let answer = client.query(&start.to_string());
        let theirs = match answer.iter().cloned().find_map(error) {
            Some(report) => report.sqlstate,
            None => {
                let mut end = Vec::new();
                Frontend::CopyDone.encode(&mut end);
                client.send(&end);
                client.answer();
                accepted += 1;
                String::new()
            }
        };
        let ours = stream_options::parse("postgres", server, &options);
        // What is not read here the server decides.
        let left_to_it = |(name, value): &(String, Option<String>)| {
            name == "publication_names" && value.as_deref().is_some_and(|v| v.contains('\x0b'))
        };
        if options.iter().any(left_to_it) {
            assert!(!matches!(ours, Ok(StreamOptions::Shared(_))), "{start}");
            return;
        }
        let ours = ours.map_or_else(|report| report.sqlstate, |_| String::new());
        assert_eq!(ours, theirs, "{start}");
    });
    println!("reads alike: {done} lists of options, {accepted} accepted");
    assert!(accepted > 0);
}

/// A server names the first publication that it does not find. Newer ones only warn.
pub fn names_are_read_alike(twins: &Twins, rng: &mut Rng) {
    twins
        .server
        .run("SELECT pg_create_logical_replication_slot('named', 'pgoutput'); INSERT INTO t DEFAULT VALUES");
    let mut client = twins.log_in(Side::Server);
    let mut named = 0;
    let done = rounds(|| {
        // Versions differ on vertical tabs, and the relay does not read them.
        let list = names(rng).replace('\x0b', "");
        let quoted = list.replace('\\', "\\\\").replace('\'', "''");
        let refused = client.refusal(&format!(
            "SELECT * FROM pg_logical_slot_peek_binary_changes('named', NULL, NULL, \
             'proto_version', '1', 'publication_names', E'{quoted}')"
        ));
        let ours = publication_names::parse(&list);
        let state = refused.as_ref().map_or("", |report| &*report.sqlstate);
        match &ours {
            Err(_) => assert_eq!(state, "42602", "{list:?}: {refused:?}"),
            Ok(names) if state == "42704" => {
                let message = &refused.as_ref().unwrap().message;
                let first = format!("publication \"{}\" does not exist", names[0]);
                assert_eq!(message, &first, "{list:?}");
                named += 1;
            }
            Ok(_) => assert!(["", "22023"].contains(&state), "{list:?}: {refused:?}"),
        }
    });
    println!("reads alike: {done} lists of names, {named} with a name back");
    twins.server.run("SELECT pg_drop_replication_slot('named')");
}
