//! The benchmarks of replay, decoding and overhead in small, on real servers: their files,
//! and that they leave nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use lockstep_lab::{for_tests, sweep};
use serde_json::Value;

/// Runs one benchmark in a folder of its own; returns its file and the names of its plots.
fn bench(name: &str, args: &[&str]) -> (Value, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let (temporary, results) = (folder.path().join("t"), folder.path().join("results"));
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"))
        .args(["bench", name])
        .args(args)
        .args(["--pg", &for_tests::major().unwrap().to_string()])
        .arg("--extension-stage")
        .arg(for_tests::stage().unwrap())
        .arg("--results")
        .arg(&results)
        .env("TMPDIR", &temporary)
        // The user's, for other servers: private ones must not be looked for there.
        .env("PGHOSTADDR", "127.0.0.1")
        .env("PGSERVICE", "nowhere")
        .env("PGTZ", "nowhere")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(sweep::processes(&temporary), Vec::<i32>::new());
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    let text = fs::read_to_string(results.join(format!("{name}.json"))).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["name"], name);
    let command = json["command"].as_str().unwrap();
    assert!(command.starts_with(&format!("lockstep-lab bench {name} ")));
    let mut plots: Vec<String> = fs::read_dir(&results)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".svg"))
        .collect();
    plots.sort();
    (json, plots)
}

fn rows(json: &Value) -> &Vec<Value> {
    json["rows"].as_array().unwrap()
}

fn positive(row: &Value, keys: &[&str]) {
    for key in keys {
        assert!(row[key].as_f64().unwrap() > 0.0, "{key} in {row}");
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn replay_measures_kinds_of_writes_and_memory() {
    let small = "--rounds 1 --seconds 2 --megabytes 4 --scale 1 --rows 1000 --writers 2 --memory 30pct,30pct-1ms,cold";
    let mut args: Vec<&str> = small.split(' ').collect();
    args.extend(["--writes", "update,bulk", "--placement", "one-core"]);
    args.extend(["--variants", "stock,lockstep"]);
    let (json, plots) = bench("replay", &args);
    assert_eq!(plots, ["replay.svg"]);
    assert_eq!(rows(&json).len(), 2 * 3 * 2);
    for row in rows(&json) {
        let is_slow = row["case"].as_str().unwrap().contains("1ms");
        assert_eq!(row["slow_reads"].is_u64(), is_slow, "{row}");
        positive(
            row,
            &[
                "seconds",
                "records",
                "records_per_s",
                "wal_mb",
                "mb_per_s",
                "data_mb",
            ],
        );
        let (wal, rate) = (
            row["wal_mb"].as_f64().unwrap(),
            row["mb_per_s"].as_f64().unwrap(),
        );
        let again = wal / row["seconds"].as_f64().unwrap();
        assert!((rate / again - 1.0).abs() < 0.05, "{row}");
    }
    for (index, name) in ["update-30pct", "update-30pct-1ms", "update-cold"]
        .iter()
        .enumerate()
    {
        assert_eq!(rows(&json)[2 * index]["case"], format!("{name}-one-core"));
        assert_eq!(rows(&json)[2 * index]["variant"], "stock");
        assert_eq!(rows(&json)[2 * index + 1]["variant"], "lockstep");
    }
}

/// The load curve of Lockstep with these options and a recording of a few seconds.
fn load_curve(options: &str) -> (Value, Vec<String>) {
    let mut args = vec!["--seconds", "2", "--scale", "1", "--warehouses", "1"];
    args.extend(["--readers", "60", "--variants", "lockstep"]);
    args.extend(options.split(' '));
    bench("load-curve", &args)
}

#[test]
#[ignore = "long: make test-bed"]
fn load_curve_offers_rates_under_readers_and_without() {
    let options = "--cases idle,readers --rates 0.01,0.03 --lead-in 2 --record-seconds 8";
    let (json, plots) = load_curve(options);
    assert_eq!(plots, ["load-curve-idle.svg", "load-curve-readers.svg"]);
    assert_eq!(rows(&json).len(), 4);
    for pair in rows(&json).chunks(2) {
        for row in pair {
            positive(row, &["offered_mb_per_s", "seconds"]);
            assert!(row["lag_bounded"].is_boolean(), "{row}");
            assert_eq!(row["read_tps"].is_f64(), row["case"] != "idle", "{row}");
        }
        let offered = |row: &Value| row["offered_mb_per_s"].as_f64().unwrap();
        assert!(offered(&pair[0]) < offered(&pair[1]));
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn load_curve_offers_tpcc_and_single_transactions_to_two_cores() {
    let options = "--cases readers-two-cores,light,tpcc-30pct-two-cores --unit 0.5 --rates 1 \
                   --lead-in 1 --record-seconds 6";
    let (json, plots) = load_curve(options);
    let plot = |case: &str| format!("load-curve-{case}.svg");
    let expected = ["readers-two-cores", "tpcc-30pct-two-cores"].map(plot);
    assert_eq!(plots, expected);
    let settings = "lockstep.replay_workers=1 lockstep.replay_hot_standby=on";
    for (row, case) in
        rows(&json)
            .iter()
            .zip(["readers-two-cores", "light", "tpcc-30pct-two-cores"])
    {
        assert_eq!(row["case"], case);
        assert_eq!(row["settings"], settings);
        assert_eq!(row["rate_part"], 1.0);
        positive(row, &["offered_mb_per_s", "seconds"]);
    }
    assert_eq!(rows(&json).len(), 3);
}

#[test]
fn decode_passes_over_the_same_wal_with_every_plugin() {
    let small = "--rounds 1 --transactions 300 --scale 1";
    let (json, _) = bench("decode", &small.split(' ').collect::<Vec<_>>());
    let seen: Vec<_> = rows(&json)
        .iter()
        .map(|row| {
            (
                row["case"].as_str().unwrap(),
                row["variant"].as_str().unwrap(),
            )
        })
        .collect();
    let expected: Vec<_> = ["tpcb", "insert", "giant"]
        .into_iter()
        .flat_map(|case| ["stock", "lockstep-commit", "lockstep"].map(|variant| (case, variant)))
        .chain([("giant", "stock-256MB"), ("giant", "lockstep-64MB")])
        .collect();
    assert_eq!(seen, expected);
    for row in rows(&json) {
        positive(row, &["seconds", "rows", "transactions", "wal_mb"]);
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn overhead_turns_the_throttle_on_and_off_under_every_kind_of_client() {
    let small = "--rounds 2 --seconds 2 --scale 1";
    let (json, _) = bench("overhead", &small.split(' ').collect::<Vec<_>>());
    let expected: Vec<_> = ["select-idle-throttle", "prepared", "pipelined", "connect"]
        .into_iter()
        .flat_map(|case| {
            ["throttle-off", "throttle-on", "throttle-on", "throttle-off"]
                .map(|variant| (case, variant))
        })
        .collect();
    assert_eq!(cases(&json), expected);
    for row in rows(&json) {
        positive(row, &["read_tps", "seconds"]);
        // More clients than fit their core have to wait now and then, others never.
        if row["case"] != "pipelined" {
            assert_eq!(row["waits"], 0, "{row}");
        }
    }
    assert!(json["headline"]["ratio"].as_f64().unwrap() > 0.0);
}

/// Case and variant of each row.
fn cases(json: &Value) -> Vec<(&str, &str)> {
    rows(json)
        .iter()
        .map(|row| {
            (
                row["case"].as_str().unwrap(),
                row["variant"].as_str().unwrap(),
            )
        })
        .collect()
}

#[test]
#[ignore = "long: make test-bed"]
fn relay_fanout_compares_slots_with_one_relay() {
    let small = "--rounds 1 --seconds 2 --warmup 1 --subscribers 0,2 --scale 1";
    let (json, _) = bench("relay-fanout", &small.split(' ').collect::<Vec<_>>());
    assert_eq!(
        cases(&json),
        [
            ("subscribers-0", "stock"),
            ("subscribers-2", "stock"),
            ("subscribers-2", "lockstep"),
            ("subscribers-2-real", "stock"),
            ("subscribers-2-real", "lockstep"),
        ]
    );
    for row in rows(&json) {
        positive(row, &["primary_tps", "primary_cpu_s", "seconds"]);
        assert_eq!(
            row["lag_p50_ms"].is_f64(),
            row["case"] != "subscribers-0",
            "{row}"
        );
        assert_eq!(
            row["relay_cpu_s"].is_f64(),
            row["variant"] == "lockstep",
            "{row}"
        );
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn relay_catchup_gives_every_consumer_everything() {
    let small = "--rounds 1 --transactions 2000 --scale 1";
    let (json, _) = bench("relay-catchup", &small.split(' ').collect::<Vec<_>>());
    assert_eq!(
        cases(&json),
        [
            ("null", "stock"),
            ("null-0", "lockstep"),
            ("null-16MB", "lockstep"),
            ("null-2GB", "lockstep"),
            ("subscription", "stock"),
            ("subscription-16MB", "lockstep"),
        ]
    );
    for row in rows(&json) {
        positive(row, &["seconds", "rows_per_s"]);
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn relay_mixed_takes_small_and_large_transactions() {
    let small = "--rounds 1 --seconds 3 --caches 16MB --subscribers 2 --large-rows 5000 --large-every 1000 --scale 1";
    let (json, _) = bench("relay-mixed", &small.split(' ').collect::<Vec<_>>());
    assert_eq!(
        cases(&json),
        [("mixed-16MB", "stock"), ("mixed-16MB", "lockstep")]
    );
    for row in rows(&json) {
        positive(row, &["rows_per_s", "seconds"]);
    }
}

/// Names of the variants of one case, in the order in which they ran.
fn variants_of<'j>(json: &'j Value, case: &str) -> Vec<&'j str> {
    let ran = cases(json).into_iter();
    ran.filter(|row| row.0 == case).map(|row| row.1).collect()
}

/// The benchmark itself checks that the target has what the source has.
#[test]
#[ignore = "long: make test-bed"]
fn copy_measures_each_server_alone_and_every_program() {
    let small = "--rounds 1 --megabytes 2 --pgcopydb /nowhere";
    let (json, _) = bench("copy", &small.split(' ').collect::<Vec<_>>());
    let programs = ["lockstep", "stock-sync", "dump-restore"];
    let mut all = vec!["source-alone", "target-alone"];
    all.extend(programs);
    all.extend(["psql-binary", "psql-text", "loopback"]);
    assert_eq!(variants_of(&json, "streams-1"), all);
    assert_eq!(variants_of(&json, "streams-2"), all);
    assert_eq!(variants_of(&json, "mixed"), programs);
    for row in rows(&json) {
        positive(row, &["rows", "data_mb", "mb_per_s", "seconds"]);
        assert!(row["data_mb"].as_f64().unwrap() > 1.9, "{row}");
    }
    // A row may take less than the kernel's tick.
    for key in ["source_cpu_s", "target_cpu_s"] {
        let of_all = rows(&json).iter().map(|row| row[key].as_f64().unwrap());
        assert!(of_all.sum::<f64>() > 0.0, "{key}");
    }
    assert!(json["headline"]["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
#[ignore = "long: make test-bed"]
fn tables_measures_what_each_table_costs() {
    let small = "--rounds 2 --tables 30 --pgcopydb /nowhere";
    let (json, _) = bench("tables", &small.split(' ').collect::<Vec<_>>());
    let programs = ["lockstep", "stock-sync", "dump-restore"];
    let there_and_back = programs.iter().chain(programs.iter().rev()).copied();
    let there_and_back: Vec<_> = there_and_back.collect();
    assert_eq!(variants_of(&json, "copy"), there_and_back);
    for row in rows(&json) {
        positive(row, &["ms_per_table", "seconds"]);
        assert_eq!(row["tables"], 30, "{row}");
    }
    assert!(json["headline"]["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
#[ignore = "long: make test-bed"]
fn apply_runs_one_writer_and_four_where_reads_are_slow() {
    let small = "--rounds 1 --rows 4000 --scale 1 --cases slow-target";
    let (json, _) = bench("apply", &small.split(' ').collect::<Vec<_>>());
    let writers = ["lockstep-1", "lockstep-4"].map(|variant| ("slow-target", variant));
    assert_eq!(cases(&json), writers);
    for row in rows(&json) {
        positive(row, &["seconds", "rows_per_s"]);
        // It may take less than the kernel's tick.
        assert!(row["applier_cpu_s"].is_f64(), "{row}");
        assert_eq!(row["rows"], 200, "{row}");
    }
}

/// The benchmark itself compares the target with the source, as `copy` does.
#[test]
#[ignore = "long: make test-bed"]
fn apply_lets_a_subscription_and_a_replica_catch_up() {
    let all = ["tpcb", "insert", "giant", "update", "delete"];
    let small = format!(
        "--rounds 1 --rows 2000 --scale 1 --variants stock,stock-again,lockstep,limit --cases {}",
        all.join(",")
    );
    let (json, _) = bench("apply", &small.split(' ').collect::<Vec<_>>());
    let expected: Vec<_> = (all.into_iter())
        .flat_map(|case| {
            let variants = ["stock", "stock-again", "lockstep", "limit"];
            variants.map(|variant| (case, variant))
        })
        .collect();
    assert_eq!(cases(&json), expected);
    for row in rows(&json) {
        positive(row, &["seconds", "rows_per_s"]);
        assert_eq!(row["rows"], 2000, "{row}");
        let is_ours = row["variant"] == "lockstep";
        assert_eq!(row["applier_cpu_s"].is_f64(), is_ours, "{row}");
    }
    // A row may take less than the kernel's tick.
    let cpu = rows(&json).iter().map(|row| row["cpu_s"].as_f64().unwrap());
    assert!(cpu.sum::<f64>() > 0.0);
    assert!(json["headline"]["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
#[ignore = "long: make test-bed"]
fn commit_levels_are_timed_by_kind_pace_and_remedy() {
    let (json, _) = bench("commit-levels", &["--rounds", "1", "--commits", "1"]);
    assert_eq!(rows(&json).len(), 8);
    for row in rows(&json) {
        positive(row, &["remote_write_ms", "on_ms", "remote_apply_ms"]);
    }
    let variants = |kind: &str| {
        let of_kind = rows(&json)
            .iter()
            .filter(|row| row["case"].as_str().unwrap().contains(kind));
        of_kind
            .map(|row| row["variant"].as_str().unwrap())
            .collect()
    };
    let (physical, logical): (Vec<_>, Vec<_>) = (variants("physical"), variants("logical"));
    assert_eq!(physical, ["stock"; 2]);
    assert_eq!(logical.len(), 6);
    assert!(json["headline"]["ratio"].as_f64().unwrap() > 0.0);
}

/// The benchmark itself compares the replicas with their primary, as `copy` does.
#[test]
#[ignore = "long: make test-bed"]
fn commits_are_timed_by_replica_level_and_committers() {
    let small = "--rounds 1 --seconds 1 --committers 1,2";
    let (json, _) = bench("commit", &small.split(' ').collect::<Vec<_>>());
    assert_eq!(rows(&json).len(), 6 + 6 * 4);
    for row in rows(&json) {
        positive(row, &["commit_p50_ms", "commit_p99_ms", "seconds"]);
        assert!(row["commits"].as_u64().unwrap() > 0, "{row}");
    }
    let has = |case, variant| cases(&json).contains(&(case, variant));
    assert!(has("physical-on", "stock") && !has("physical-on", "lockstep"));
    assert!(has("logical-remote_apply-2", "lockstep") && has("logical-on", "stock-tuned"));
    assert!(json["headline"]["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
#[ignore = "long: make test-bed"]
fn watching_counts_the_monitors_own_session() {
    let small = "--rounds 1 --seconds 2 --standbys 1 --subscriptions 1";
    let (json, _) = bench("watching", &small.split(' ').collect::<Vec<_>>());
    let rows = rows(&json);
    assert_eq!(rows.len(), 4);
    assert!(rows[0].get("sampling_cpu_percent").is_none());
    positive(&rows[0], &["primary_cpu_percent", "primary_tps"]);
    for (row, sessions) in [(1, 1), (2, 2), (3, 2)] {
        positive(
            &rows[row],
            &["sampling_cpu_percent", "standby_cpu_percent", "diagnoses"],
        );
        assert_eq!(rows[row]["sessions_on_primary"], sessions);
    }
    assert_eq!(
        rows[1]["case"].as_str().unwrap().split(' ').nth(1),
        Some("3")
    );
}

#[test]
#[ignore = "long: make test-bed"]
fn pool_counts_stale_reads_and_reads_what_was_written() {
    if !std::path::Path::new("/usr/sbin/haproxy").exists() {
        println!("SKIP: there is no HAProxy (Debian's haproxy)");
        return;
    }
    let small =
        "--rounds 1 --seconds 24 --cases bounded-100ms,tokens --commits 40 --reads 20 --pairs 20";
    let (json, _) = bench("pool", &small.split(' ').collect::<Vec<_>>());
    let rows = rows(&json);
    let names: Vec<_> = (rows.iter())
        .map(|row| row["variant"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "pgsql-check",
            "patroni-formula",
            "lockstep",
            "stock",
            "lockstep"
        ]
    );
    for row in rows {
        positive(row, &["seconds", "reads", "standby_share", "troubles"]);
    }
    let with_tokens = &rows[4];
    assert_eq!(with_tokens["case"], "tokens");
    assert_eq!(with_tokens["stale_reads"], 0);
    // Nothing tells these checks of a replay that is paused or delayed.
    let stale = |row: usize| rows[row]["stale_reads"].as_u64().unwrap();
    assert!(stale(0) > stale(2), "{rows:?}");
    assert!(json["headline"]["stock"].is_f64());
}
