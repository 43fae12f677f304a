//! Each pair of programs: the number of differing lines, and equal results of four ranks, in threads and in processes,
//! and of one process.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of a program; twenty times its usual duration.
const LIMIT: Duration = Duration::from_secs(120);

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_custom-loop")).with_file_name(name)
}

/// Starts a program with these environment variables.
fn start(name: &str, directory: &Path, set: &[(&str, &str)]) -> std::process::Child {
    let mut command = Command::new(program(name));
    command.arg(directory).env_remove("RANK").envs(set.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn end(name: &str, mut child: std::process::Child) -> Vec<f32> {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{name} did not end");
        }
        sleep(Duration::from_millis(20));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (out, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{name}: {errors}");
    let list = out.lines().find_map(|line| line.strip_prefix("losses [")).unwrap_or_else(|| panic!("{name}: {out}"));
    let list = list.trim_end_matches(']').split(", ").filter(|loss| !loss.is_empty());
    list.map(|loss| loss.parse().unwrap()).collect()
}

/// Returns the lines of the second program that are not in the first, except imports.
fn changed(folder: &str) -> Vec<String> {
    let read = |file: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(file);
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter(|line| !line.starts_with("use ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut single = read("single.rs");
    let new = |line: &String| single.iter().position(|old| old == line).map(|at| single.remove(at)).is_none();
    read("ranks.rs").into_iter().filter(new).collect()
}

/// Compares the losses of one process, of four threads, and of four processes.
fn compare(folder: &str, name: &str, most: usize, tolerance: f32) {
    let scratch = tempfile::tempdir().unwrap();
    let [one, many, others] = ["one", "threads", "processes"].map(|folder| scratch.path().join(folder));
    let lines = changed(folder);
    assert!(lines.len() <= most, "{} lines differ:\n{}", lines.len(), lines.join("\n"));
    let single = end(name, start(name, &one, &[]));
    assert!(single.len() > 1 && single.last() < single.first(), "it learns: {single:?}");
    let ranks = format!("{name}-ranks");
    let threads = end(&ranks, start(&ranks, &many, &[]));
    let close = |losses: &[f32]| {
        assert_eq!(losses.len(), single.len());
        let most = losses.iter().zip(&single).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{ranks}: {} lines, losses differ by at most {most:e}", lines.len());
        assert!(most <= tolerance, "{losses:?}, and {single:?} of one process");
    };
    close(&threads);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let place =
        [("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str()), ("LOCAL_WORLD_SIZE", "4")];
    let start = |rank| start(&ranks, &others, &[&place[..], &[("RANK", rank)]].concat());
    let processes = ["0", "1", "2", "3"].map(start);
    for (rank, process) in processes.into_iter().enumerate() {
        let losses = end(&ranks, process);
        // The part after a learner's launch is rank 0's.
        assert!(
            losses == threads || rank > 0 && losses.is_empty(),
            "processes train to the bits of threads: {losses:?}"
        );
    }
}

#[test]
fn a_loop_of_your_own() {
    compare("custom_loop", "custom-loop", 6, 1e-4);
}

#[test]
fn burns_learner() {
    compare("learner", "learner", 8, 1e-4);
}

#[test]
fn regression() {
    compare("regression", "regression", 6, 1e-5);
}

#[test]
fn a_transformer_whose_gradients_are_added_up() {
    compare("transformer", "transformer", 6, 1e-4);
}

#[test]
fn groups_a_frozen_layer_and_clipping() {
    compare("groups", "groups", 6, 1e-4);
}

#[test]
fn a_generator_and_a_critic_with_an_optimizer_each() {
    compare("gan", "gan", 12, 1e-4);
}
