//! Trainers as programs, each run with a timeout and on generated data, and a toy task that is small enough to check by hand.
#![allow(dead_code)] // every test program uses its own part

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use briquette_examples::record::{StepRecord, Summary};
use briquette_examples::settings::{Options, Settings};
use briquette_examples::task::{Place, Score, Task};
use briquette_examples::train::Control;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use tempfile::TempDir;

/// Trainer of images.
pub(crate) const CIFAR: &str = env!("CARGO_BIN_EXE_cifar");
/// Trainer of texts.
pub(crate) const AG_NEWS: &str = env!("CARGO_BIN_EXE_ag-news");
/// The trainer of a language model.
pub(crate) const CHAR_LM: &str = env!("CARGO_BIN_EXE_char-lm");

/// Time limit of a program; more than ten times its duration on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A small reproducible run: eight steps an epoch.
pub(crate) const SMALL: &str = "--dataset generated --train-limit 64 --test-limit 16 --batch 4 --ranks 2 --steps 6 \
                         --schedule constant --clock fixed:50ms --network 100mbit,1ms --plain";

/// Returns the launcher, which Cargo builds next to the trainers when the whole workspace is built.
///
/// # Panics
/// If it was not built: without it nothing would be tested.
#[track_caller]
pub(crate) fn launcher() -> String {
    let path = Path::new(CIFAR).with_file_name("briquette");
    assert!(path.is_file(), "no {}: test with `cargo test --workspace`, which builds it", path.display());
    path.to_str().unwrap().to_owned()
}

/// Result of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` if it was killed.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Ended {
    /// Checks that the run succeeded.
    #[track_caller]
    pub(crate) fn succeeds(self) -> Ended {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Checks that the run was refused as impossible (exit code 2), with one error that contains all these words.
    #[track_caller]
    pub(crate) fn refused(self, words: &[&str]) -> Ended {
        assert_eq!(self.code, Some(2), "{}", self.stderr);
        self.says(words)
    }

    /// Checks that standard error has one error that contains all these words.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Ended {
        let Ended { stderr, .. } = &self;
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "one error: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        // Words may be broken over lines.
        let text = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            assert!(text.contains(word), "no `{word}` in: {stderr}");
        }
        self
    }
}

/// A directory for the runs of one test.
#[derive(Debug)]
pub(crate) struct Runs {
    directory: TempDir,
}

impl Default for Runs {
    fn default() -> Self {
        Runs { directory: TempDir::new().unwrap() }
    }
}

impl Runs {
    /// Returns a path inside.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a program inside, with no data but those that the flags name.
    pub(crate) fn start(&self, program: &str, flags: &str) -> Running {
        self.start_with(program, flags, &[])
    }

    /// Starts a program with environment variables.
    pub(crate) fn start_with(&self, program: &str, flags: &str, variables: &[(&str, String)]) -> Running {
        let (stdout, stderr) = (self.log("stdout"), self.log("stderr"));
        let child = Command::new(program)
            .args(flags.split_whitespace())
            .current_dir(self.directory.path())
            .env("RAYON_NUM_THREADS", "1")
            .env("XDG_CACHE_HOME", self.directory.path())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Running { child, stdout, stderr, begin: Instant::now(), limit: LIMIT, flags: flags.to_owned() }
    }

    fn log(&self, name: &str) -> PathBuf {
        (0..).map(|n| self.path(&format!("{name}-{n}"))).find(|path| !path.exists()).unwrap()
    }

    /// Runs a program inside to its end.
    pub(crate) fn run(&self, program: &str, flags: &str) -> Ended {
        self.start(program, flags).end()
    }

    /// Runs the image trainer in the directory `out`.
    pub(crate) fn cifar(&self, out: &str, flags: &str) -> Ended {
        self.run(CIFAR, &format!("{SMALL} --out {out} {}", flags))
    }

    /// Returns the records of a run.
    pub(crate) fn metrics(&self, out: &str) -> Vec<StepRecord> {
        let text = self.text(out, "metrics.jsonl");
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Returns the contents of a run's file.
    pub(crate) fn text(&self, out: &str, file: &str) -> String {
        let path = self.path(out).join(file);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Returns the summary of a run, without the values that differ between runs.
    pub(crate) fn summary(&self, out: &str) -> Summary {
        let summary: Summary = serde_json::from_str(&self.text(out, "summary.json")).unwrap();
        Summary { wall_seconds: 0.0, ..summary }
    }

    /// Returns the steps of the complete checkpoints of a run, oldest first.
    pub(crate) fn checkpoints(&self, out: &str) -> Vec<u64> {
        let entries = fs::read_dir(self.path(out).join("checkpoints")).into_iter().flatten().flatten();
        let complete = entries.filter(|entry| entry.path().join("manifest.json").is_file());
        let step = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<u64> = complete.filter_map(step).collect();
        steps.sort_unstable();
        steps
    }

    /// Returns every file of a run with its contents.
    pub(crate) fn contents(&self, out: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        collect(&self.path(out), &mut found);
        found.sort();
        found
    }
}

fn collect(directory: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => collect(&path, found),
            path => found.push((path.clone(), fs::read(path).unwrap())),
        }
    }
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    begin: Instant,
    limit: Duration,
    flags: String,
}

impl Running {
    /// Sets a longer time limit.
    #[must_use]
    pub(crate) fn within(self, limit: Duration) -> Running {
        Running { limit, ..self }
    }

    /// Returns its process number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `done`, which must occur before the program ends.
    pub(crate) fn wait_until(&mut self, done: impl Fn() -> bool) {
        while !done() {
            let ended = self.child.try_wait().unwrap();
            let late = self.begin.elapsed() > self.limit;
            if late {
                self.child.kill().unwrap();
            }
            assert!(
                ended.is_none() && !late,
                "{}: {ended:?}\n{}",
                self.flags,
                fs::read_to_string(&self.stderr).unwrap()
            );
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the program has written `text` to stderr.
    pub(crate) fn wait_said(&mut self, text: &str) {
        let stderr = self.stderr.clone();
        self.wait_until(|| fs::read_to_string(&stderr).is_ok_and(|said| said.contains(text)));
    }

    /// Sends the program a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits for the end; a program that takes too long is killed, and the test fails.
    pub(crate) fn end(mut self) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.begin.elapsed() > self.limit {
                self.child.kill().unwrap();
                panic!("{} took too long\n{}", self.flags, fs::read_to_string(&self.stderr).unwrap());
            }
            sleep(Duration::from_millis(5));
        };
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        Ended { code: status.code(), stdout: read(&self.stdout), stderr: read(&self.stderr) }
    }
}

/// Fault of a [`Toy`], with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The loss of this rank and step is not a number.
    Nan(usize, u64),
    /// This rank panics at this step.
    Panic(usize, u64),
    /// Ctrl-C is pressed while this step is computed.
    Stop(u64),
    /// The loss on test samples is not a number.
    Score,
}

/// Logistic regression on points of a plane.
#[derive(Debug, Clone)]
pub(crate) struct Toy {
    labels: Vec<u8>,
    fault: Option<Fault>,
    /// Flag that Ctrl-C sets.
    pub(crate) stop: Arc<AtomicBool>,
    /// Bits of every model that was scored.
    pub(crate) scored: Arc<Mutex<Vec<Vec<u32>>>>,
}

impl Toy {
    /// Creates a task with points and a fault.
    pub(crate) fn new(points: usize, fault: Option<Fault>) -> Toy {
        let labels = (0..points).map(|i| (i % 3 == 0) as u8).collect();
        Toy { labels, fault, stop: Arc::default(), scored: Arc::default() }
    }

    fn batch(&self, indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        // Golden-ratio steps fill the square; class 1 is moved along the first axis.
        let place = |i: usize, step: f64| (i as f64 * step).fract() as f32;
        let points: Vec<f32> =
            indices.iter().flat_map(|&i| [place(i, 0.618) + f32::from(self.labels[i]), place(i, 0.755)]).collect();
        let labels: Vec<i64> = indices.iter().map(|&i| i64::from(self.labels[i])).collect();
        let points = Tensor::from_data(TensorData::new(points, [indices.len(), 2]), device);
        (points, Tensor::from_data(TensorData::new(labels, [indices.len()]), device))
    }
}

impl Task for Toy {
    type Model = Linear;

    fn build(&self, device: &Device) -> Linear {
        LinearConfig::new(2, 2).with_initializer(burn::nn::Initializer::Constant { value: 0.1 }).init(device)
    }
    fn train_labels(&self) -> &[u8] {
        &self.labels
    }
    fn test_len(&self) -> usize {
        self.labels.len()
    }
    fn fingerprints(&self) -> [String; 2] {
        let points = format!("{} points", self.labels.len());
        [points.clone(), points]
    }
    fn loss(&self, model: &Linear, indices: &[usize], place: Place, device: &Device) -> Tensor<1> {
        let (points, labels) = self.batch(indices, device);
        let loss = CrossEntropyLossConfig::new().init(device).forward(model.forward(points), labels);
        match self.fault {
            Some(Fault::Nan(rank, step)) if (rank, step) == (place.rank, place.step) => loss * f32::NAN,
            Some(Fault::Panic(rank, step)) if (rank, step) == (place.rank, place.step) => panic!("out of luck"),
            Some(Fault::Stop(step)) if step == place.step => {
                self.stop.store(true, Ordering::Relaxed);
                loss
            }
            _ => loss,
        }
    }
    fn score(&self, model: &Linear, indices: &[usize], device: &Device) -> Score {
        let weights: Vec<f32> = model.weight.val().into_data().try_into_vec().unwrap();
        self.scored.lock().unwrap().push(weights.into_iter().map(f32::to_bits).collect());
        let (points, labels) = self.batch(indices, device);
        let samples = indices.len() as f64;
        let loss = CrossEntropyLossConfig::new().init(device).forward(model.forward(points), labels);
        let loss = if self.fault == Some(Fault::Score) { loss * f32::NAN } else { loss };
        Score { loss: f64::from(loss.into_scalar::<f32>()) * samples, correct: 0.0, samples }
    }
}

/// Returns the settings of a toy run in `out`: flags as `key = value` lines of TOML.
pub(crate) fn settings(out: &Path, toml: &str) -> Settings {
    briquette::zoo::install();
    let options: Options = toml::from_str(toml).unwrap();
    Options { out: Some(out.to_owned()), ..options }.resolve().unwrap()
}

/// Returns a control that shows nothing.
pub(crate) fn quiet() -> Control {
    Control { plain: true, quiet: true, ..Control::default() }
}
