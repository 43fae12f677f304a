//! Error messages of the trainers for a newcomer's mistakes, word for word: `golden_errors.txt` has the texts, and the
//! test run with `BLESS=1` rewrites it.
#![cfg(unix)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use briquette_testkit::golden::{Shell, hold};
use tempfile::TempDir;

const TRAINER: &str = env!("CARGO_BIN_EXE_cifar");
const TEXTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden_errors.txt");

/// Mistakes on one machine.
const ALONE: [&str; 37] = [
    // Words that are not known.
    "cifar --rank 3",
    "cifar --ranks two",
    "cifar --model alexnet --dataset generated",
    "cifar --dataset mnist",
    "cifar --dataset ag-news",
    "ag-news --dataset cifar10",
    "ag-news --dataset generated --model resnet8",
    "ag-news --dataset generated --augment flip",
    "cifar --dataset generated --backend abacus",
    "cifar --dataset generated --device 7",
    "cifar --dataset generated --network fast",
    "cifar --dataset generated --network trace:absent.csv",
    "cifar --dataset generated --compressor topk:2",
    "cifar --dataset generated --rules fc",
    // Numbers that cannot be.
    "cifar --dataset generated --batch 0",
    "cifar --dataset generated --lr nan",
    "cifar --dataset generated --test-limit 0",
    "cifar --dataset generated --train-limit 3 --ranks 4",
    "cifar --dataset generated --train-limit 1 --ranks 2",
    "cifar --dataset generated --ranks 10000",
    "cifar --dataset generated --threads 30000",
    "cifar --dataset generated --clock fixed:1e300s",
    "cifar --dataset generated --train-limit 64 --batch 8 --epochs 1 --record-gradient 10",
    "quickstart --ranks 10000",
    // Settings that do not go together.
    "cifar --dataset generated --momentum-correction on --optimizer adam",
    "cifar --dataset generated --data somewhere",
    "cifar --dataset generated --record-frames on",
    "cifar --dataset generated --record-frames on --compressor topk:10x --controller gravac",
    "cifar --dataset generated --train-limit 8 --test-limit 8 --rules 'nosuch*=dense'",
    // Files and directories.
    "cifar --data tpyo",
    "cifar --data empty",
    "cifar --data file",
    "cifar --config absent.toml",
    "cifar --config wrong.toml",
    "cifar --resume nowhere",
    "cifar --resume empty",
    "cifar --dataset generated --train-limit 8 --test-limit 8 --ranks 1 --epochs 1 --out run",
];

/// Mistakes of ranks that are processes. The port `{free}` is free, `{taken}` is not.
const TOGETHER: [&str; 8] = [
    "RANK=0 cifar --dataset generated",
    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free} cifar --dataset generated --ranks 3",
    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={taken} cifar --dataset generated --train-limit 8 --test-limit 8",
    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free} BRIQUETTE_TOKEN_FILE=absent cifar --dataset generated --train-limit 8 --test-limit 8",
    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free} BRIQUETTE_TOKEN_FILE=open cifar --dataset generated --train-limit 8 --test-limit 8",
    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free} BRIQUETTE_TOKEN=x cifar --dataset generated --train-limit 8 --test-limit 8",
    // One rank is not there: interrupted while it is waited for.
    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free} timeout --foreground --preserve-status -s INT 10 cifar --dataset generated --train-limit 8 --test-limit 8",
    // The other rank was started for another world.
    "export MASTER_ADDR=127.0.0.1 MASTER_PORT={free}; RANK=1 WORLD_SIZE=3 cifar --dataset generated --train-limit 8 --test-limit 8 2> /dev/null & \
     export MASTER_ADDR=127.0.0.1 MASTER_PORT={free}; RANK=0 WORLD_SIZE=2 cifar --dataset generated --train-limit 8 --test-limit 8",
];

fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("empty")).unwrap();
    fs::write(path("file"), "").unwrap();
    fs::write(path("open"), "a secret of more than sixteen bytes\n").unwrap();
    fs::set_permissions(path("open"), PermissionsExt::from_mode(0o644)).unwrap();
    fs::write(path("wrong.toml"), "dataset = \"generated\"\nrank = 3\n").unwrap();
    fs::create_dir(path("run")).unwrap();
    fs::write(path("run/config.toml"), "dataset = \"generated\"\n").unwrap();
    directory
}

#[test]
fn mistakes_are_answered_word_for_word() {
    let directory = directory();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let shell = Shell::new(directory.path(), TRAINER);
    let shell = shell.replace(taken.local_addr().unwrap().port(), "{taken}").replace(free, "{free}");
    let texts: Vec<String> = ALONE.iter().chain(&TOGETHER).map(|line| shell.run(line)).collect();
    hold(Path::new(TEXTS), &texts, std::env::var_os("BLESS").is_some());
    // Nothing was begun, and no other run was harmed.
    let mut left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["empty", "file", "open", "run", "stderr", "wrong.toml"]);
    assert_eq!(fs::read_dir(directory.path().join("run")).unwrap().count(), 1);
    briquette_testkit::held!(
        "mistakes on a trainer's command line",
        texts.len(),
        "the text on file, exit code 2 (130 for an interrupt)",
        mistakes_are_answered_word_for_word
    );
}
