use std::path::Path;

use super::*;

const SMALL: &str = r#"{
    "name": "overhead", "command": "lockstep bench overhead --pg 15", "commit": "0123456789abcdef",
    "machine": "two cores", "date": "2026-01-03T00:00:00Z", "headline": null,
    "rows": [
        {"case": "a", "variant": "throttle-off", "round": 1, "read_tps": 1000, "date": "2026-01-01T09:00:00Z", "commit": "0123456789abcdef-dirty"},
        {"case": "a", "variant": "throttle-off", "round": 2, "read_tps": 3000, "date": "2026-01-03T09:00:00Z", "commit": "fedcba9876543210"},
        {"case": "a", "variant": "throttle-on", "round": 1, "read_tps": 1500, "waits": 2.5, "date": "2026-01-03T09:00:00Z", "commit": "fedcba9876543210"},
        {"case": "b", "variant": "throttle-on", "round": 1, "read_tps": 7, "date": "2026-01-03T09:00:00Z", "commit": "fedcba9876543210"}
    ]
}"#;

fn small() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("overhead.json"), SMALL).unwrap();
    folder
}

#[test]
fn documents_say_what_the_results_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, expected) in rendered(&root).unwrap() {
        let found = fs::read_to_string(&path).unwrap();
        assert!(
            found == expected,
            "{} is not what bench/results and the template say: run `make measurements`",
            path.display()
        );
    }
}

#[test]
fn a_table_has_medians_and_ratios() {
    let folder = small();
    let text = render("before\n{{overhead: table}}\nafter", folder.path()).unwrap();
    let expected = [
        "before",
        "| case | variant | reads/s | queries that waited |",
        "| --- | --- | ---: | ---: |",
        "| a | throttle-off | 2,000 |  |",
        "| a | throttle-on | 1,500 | 2.50 |",
        "| a | *ratio* | 0.75 |  |",
        "| b | throttle-on | 7 |  |",
        "after",
    ];
    assert_eq!(text, expected.join("\n"));
    let text = render("{{overhead: table b}}", folder.path()).unwrap();
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn figures_stand_in_sentences() {
    let folder = small();
    let template = "{{overhead: median a/throttle-on/read_tps}}, \
        {{overhead: percent a/throttle-on/read_tps\nof a/throttle-off/read_tps}}";
    let text = render(template, folder.path()).unwrap();
    assert_eq!(text, "1,500, 75 %");
    let text = render("{{overhead: source}}", folder.path()).unwrap();
    assert!(
        text.contains(
            "`make bench-overhead` at commits 01234567-dirty, fedcba98 on 2026-01-01 to 2026-01-03."
        ),
        "{text}"
    );
}

#[test]
fn what_is_not_there_is_refused() {
    let folder = small();
    for (template, words) in [
        (
            "{{overhead: median a/stock/read_tps}}",
            "no figure a/stock/read_tps",
        ),
        ("{{overhead: median a/throttle-on/lag}}", "no figure"),
        ("{{overhead: table c}}", "no figure c"),
        ("{{overhead: chart}}", "placeholder {{overhead: chart}}"),
        ("{{overhead}}", "placeholder"),
        ("{{overhead: table", "placeholder"),
        ("{{priority: table}}", "cannot read"),
    ] {
        let error = render(template, folder.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{template}: {error}");
    }
}

#[test]
fn figures_have_the_unit_of_their_key() {
    for (key, value, expected) in [
        ("lag_p50_ms", 3.264, "3.3 ms"),
        ("lag_p99_ms", 413.322, "413 ms"),
        ("lag_end_ms", 122_993.96, "123.0 s"),
        ("lag_slope_ms_per_s", 512.94, "+512.9 ms/s"),
        ("lag_slope_ms_per_s", -0.003, "0.0 ms/s"),
        ("offered_mb_per_s", 6.463, "6.46 MB/s"),
        ("mb_per_s", 3430.092, "3,430 MB/s"),
        ("cpu_s", 0.67, "0.67 s"),
        ("seconds", 600.072, "600 s"),
        ("sampling_cpu_percent", 0.319, "0.32 %"),
        ("error_pct", -0.002, "0.00 %"),
        ("relay_rss_mb", 31.773, "31.8 MB"),
        ("primary_tps", 1353.928, "1,354"),
        ("dead_rows_end", 847_147.0, "847,147"),
        ("relation_mb_end", 2456.846, "2,457 MB"),
        ("backlog_seconds", 49.501, "49.5 s"),
        ("rows_per_s", 62.0, "62"),
        ("offered_mb_per_s", 17.0, "17.0 MB/s"),
        ("quoted", 0.974, "0.974"),
        ("quoted", -1234.0, "-1,234"),
    ] {
        assert_eq!(shown(key, value), expected, "{key} {value}");
    }
}
