//! Ranks with different settings, and runs that are resumed with different settings, are refused, and the setting is named.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::common::{AG_NEWS, CIFAR, Ended, Runs, SMALL};

/// Runs two ranks, each a process with its own flags.
fn ranks(runs: &Runs, program: &str, flags: [&str; 2]) -> [Ended; 2] {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".to_owned()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        let small = "--test-limit 16 --batch 4 --steps 2 --schedule constant --plain";
        runs.start_with(program, &format!("{small} --out run-{rank} {}", flags[rank]), &variables)
    };
    [start(0), start(1)].map(|running| running.end())
}

/// Threat R1.
#[test]
fn ranks_that_were_started_with_other_settings_are_refused_by_the_flag_on_both() {
    for (flag, values) in [
        ("--momentum", ["0.9", "0.8"]),
        ("--optimizer", ["sgd", "adam"]),
        ("--augment", ["flip", "crop-flip"]),
        ("--clock", ["wall", "fixed:50ms"]),
        ("--eval-every", ["1", "2"]),
        ("--lr", ["0.1", "0.2"]),
        ("--train-limit", ["64", "65"]),
    ] {
        let runs = Runs::default();
        let flags = values.map(|value| match flag {
            "--train-limit" => format!("--dataset generated {flag} {value}"),
            _ => format!("--dataset generated --train-limit 64 {flag} {value}"),
        });
        for (rank, ended) in ranks(&runs, CIFAR, [&flags[0], &flags[1]]).into_iter().enumerate() {
            let [ours, theirs] = [values[rank], values[1 - rank]];
            ended
                .refused(&[&format!("rank {} cannot join: its {flag} is {theirs}, rank {rank}'s is {ours}", 1 - rank)]);
        }
        assert!(!runs.path("run-0/config.toml").exists(), "nothing was begun");
    }
    // Settings that are part of core's configuration are named by their key there.
    let runs = Runs::default();
    let flags = ["0.1", "0.2"].map(|share| format!("--dataset generated --train-limit 64 --compressor topk:{share}"));
    for (rank, ended) in ranks(&runs, CIFAR, [&flags[0], &flags[1]]).into_iter().enumerate() {
        let [ours, theirs] = [["10x", "5x"][rank], ["5x", "10x"][rank]];
        let differs = format!("its configuration.reducer is gather:topk:{theirs}, rank {rank}'s is gather:topk:{ours}");
        ended.refused(&[&differs]);
    }
    briquette_testkit::held!(
        "ranks started with another setting",
        8,
        "both refuse, and name flag and values",
        ranks_that_were_started_with_other_settings_are_refused_by_the_flag_on_both
    );
}

/// Writes images in CIFAR-10's layout, from a seed; the labels are the same whatever the seed.
fn write_images(directory: &Path, seed: u8) {
    fs::create_dir_all(directory).unwrap();
    for (file, images) in [("data_batch_1.bin", 64_usize), ("test_batch.bin", 16)] {
        let image = |i: usize| {
            let pixel = move |p: usize| ((i * 31 + p * 7) % 251) as u8 ^ seed;
            [(i % 10) as u8].into_iter().chain((0..3072).map(pixel))
        };
        fs::write(directory.join(file), (0..images).flat_map(image).collect::<Vec<u8>>()).unwrap();
    }
}

/// Threat R1.
#[test]
fn ranks_with_other_data_under_the_same_labels_are_refused_and_so_is_a_run_that_is_resumed_with_it() {
    let runs = Runs::default();
    write_images(&runs.path("a"), 0);
    write_images(&runs.path("b"), 1);
    fs::create_dir_all(runs.path("c")).unwrap();
    fs::copy(runs.path("a/data_batch_1.bin"), runs.path("c/data_batch_1.bin")).unwrap();
    fs::copy(runs.path("b/test_batch.bin"), runs.path("c/test_batch.bin")).unwrap();
    let dataset = |data: &str| SMALL.replace("--dataset generated", &format!("--dataset cifar10 --data {data}"));
    runs.run(CIFAR, &format!("{} --out run", dataset("a").replace("--steps 6", "--steps 3"))).succeeds();
    for (data, split) in [("b", "training data"), ("c", "test data")] {
        let said = ["--resume run", &format!("saved by another {split}"), "CRC-32", " there, ", " here"];
        runs.run(CIFAR, &format!("--resume run --data {data} --steps 6 --plain")).refused(&said);
    }
    // The same data from another place.
    fs::rename(runs.path("a"), runs.path("d")).unwrap();
    runs.run(CIFAR, "--resume run --data d --steps 6 --plain").succeeds();
}

/// Threat R1.
#[test]
fn ranks_with_another_dataset_or_split_are_refused() {
    let runs = Runs::default();
    write_images(&runs.path("a"), 0);
    write_images(&runs.path("b"), 1);
    let cifar = "--dataset cifar10 --data";
    let [a, b] = [format!("{cifar} a"), format!("{cifar} b")];
    for ended in ranks(&runs, CIFAR, ["--dataset generated", &a]) {
        ended.refused(&["its --dataset is", "generated", "cifar10"]);
    }
    for ended in ranks(&runs, CIFAR, [&a, &b]) {
        ended.refused(&["its training data is 64 images with CRC-32"]);
    }
    let news = "--dataset generated --train-limit 64 --model lstm --seed";
    for ended in ranks(&runs, AG_NEWS, [&format!("{news} 1"), &format!("{news} 2")]) {
        ended.refused(&["its --seed is"]);
    }
}
