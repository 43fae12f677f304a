//! `briquette report`: pages about runs in all states, as documents and in a browser.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

const LAYERS: [&str; 2] = ["conv.weight", "head.<b>&"];

/// Line of a step: the loss falls, every tenth step has layers, and step 5 a decision.
fn line(step: u64, ratio: f64, loss: f64) -> Value {
    let mut line = json!({
        "step": step, "epoch": 0, "loss": loss, "lr": 0.1, "ratio": ratio, "wire_ratio": ratio, "gain": 1.0 / ratio, "delay": ratio + step as f64,
        "bytes_sent": (1e6 / ratio) as u64, "bytes_received": 1, "compute_seconds": 0.05, "compress_seconds": 0.001,
        "exchange_seconds": 0.1 / ratio, "wait_seconds": 0.01, "simulated_seconds": (step + 1) as f64 * (0.051 + 0.1 / ratio),
        "a field of a later version": [1],
    });
    if step.is_multiple_of(10) {
        let slot = |path| json!({"path": path, "ratio": ratio, "gain": 0.5, "relative_error": 0.1 * ratio + step as f64 / 1000.0, "kept": 1, "bytes": step + 1});
        line["slots"] = LAYERS.map(slot).to_vec().into();
    }
    if step == 5 && ratio > 1.0 {
        line["reason"] = "20x is faster <than> 10x".into();
        line["state"] = "state & words".into();
    }
    line
}

/// Writes the folder of a run of 40 steps.
fn write(folder: &Path, seed: u64, ratio: f64) {
    fs::create_dir_all(folder).unwrap();
    let lines: String = (0..40)
        .map(|step| format!("{}\n", line(step, ratio, 2.0 - step as f64 / 40.0 + seed as f64 / 100.0)))
        .collect();
    fs::write(folder.join("metrics.jsonl"), lines).unwrap();
    fs::write(
        folder.join("config.toml"),
        format!("seed = {seed}\nout = \"{seed}\"\n[config]\nreducer = \"{ratio}x\"\n"),
    )
    .unwrap();
    let summary = json!({
        "final_test_accuracy": 0.5 + 0.01 * seed as f64, "best_test_accuracy": 0.5, "steps": 40, "bytes_sent": 4e7 / ratio, "bytes_dense": 4e7,
        "wall_seconds": 100.0, "simulated_seconds": 40.0 * (0.051 + 0.1 / ratio), "interrupted": false, "version": "0.1.0",
    });
    fs::write(folder.join("summary.json"), summary.to_string()).unwrap();
    // The last one was made by the run before it was resumed.
    let evaluation =
        |step: u64| json!({"step": step, "test_accuracy": 0.01 * (step + seed) as f64, "test_loss": ratio});
    fs::write(folder.join("evaluations.json"), json!([0, 20, 40, 60].map(evaluation)).to_string()).unwrap();
}

fn report(home: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_briquette"))
        .arg("report")
        .args(arguments.split(' '))
        .current_dir(home)
        .output()
        .unwrap()
}

fn succeeds(home: &Path, arguments: &str) -> String {
    let output = report(home, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect()
}

fn with_document(page: &str, check: impl FnOnce(&Document<'_>)) {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    check(&Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("not well-formed: {error}")));
}

fn elements<'a, 'input>(page: &'a Document<'input>, name: &str) -> Vec<Node<'a, 'input>> {
    page.descendants().filter(|node| node.tag_name().name() == name).collect()
}

#[test]
fn a_comparison_has_a_sentence_charts_with_bands_and_the_tables_behind_them() {
    let home = TempDir::new().unwrap();
    for seed in [1, 2, 3] {
        write(&home.path().join(format!("runs/dense/seed-{seed}")), seed, 1.0);
        write(&home.path().join(format!("runs/topk/seed-{seed}")), seed + 1, 10.0);
    }
    let said = succeeds(home.path(), "runs --svg figures");
    let verdict = "topk sends 10.0x fewer bytes than dense and takes 0.40 times as long; its test accuracy differs by +1.0 ± 0.8 points.";
    assert_eq!(said.lines().next(), Some(verdict));
    let page = fs::read_to_string(home.path().join("runs/report.html")).unwrap();
    with_document(&page, |page| {
        assert_eq!(text(elements(page, "p")[0]), verdict);
        let titles: Vec<String> = elements(page, "h2").into_iter().map(text).collect();
        assert_eq!(
            titles,
            [
                "Result",
                "Results on test samples",
                "Loss on training samples",
                "Compression ratio",
                "Signals",
                "Time of a step",
                "Layers of dense",
                "Layers of topk",
                "Runs and settings",
            ]
        );
        let count = |class: &str| {
            page.descendants()
                .filter(|node| node.attribute("class").is_some_and(|of| of.split(' ').next() == Some(class)))
                .count()
        };
        // Three axes for the accuracy and both losses, ratio, and the delay; the gain does not change. Three seeds, with the same test loss.
        assert_eq!((count("line"), count("band")), (2 * 11, 2 * 6));
        // Two layers and four steps; the ratio does not change, and bytes and errors do.
        assert_eq!(count("cell"), 2 * 2 * 2 * 4);
        let rows: Vec<String> = elements(page, "tr").into_iter().map(text).collect();
        assert!(
            rows.iter().any(|row| row.contains("20x is faster <than> 10x") && row.contains("state & words")),
            "{rows:?}"
        );
        assert!(
            rows.iter().any(|row| row.starts_with("topk353.0 % ± 0.6 %") || row.contains("53.0 % ± 0.6 %")),
            "{rows:?}"
        );
        assert_eq!(elements(page, "circle").len(), 1, "one decision of the first run");
        // Nothing from elsewhere, and nothing that runs.
        for node in page.descendants() {
            assert!(!["script", "link", "img", "iframe"].contains(&node.tag_name().name()));
            assert!(node.attributes().all(|attribute| !["src", "href"].contains(&attribute.name())));
        }
    });
    let figures = fs::read_dir(home.path().join("figures"))
        .unwrap()
        .map(|figure| fs::read_to_string(figure.unwrap().path()).unwrap());
    let figures: Vec<String> = figures.collect();
    assert_eq!(figures.len(), 3 * 3 + 1 + 1 + 1 + 4);
    figures
        .iter()
        .for_each(|figure| with_document(figure, |figure| assert_eq!(figure.root_element().tag_name().name(), "svg")));

    let data: Value = serde_json::from_str(&succeeds(home.path(), "runs --json")).unwrap();
    assert_eq!((&data["verdict"], &data["groups"][1]["name"]), (&json!(verdict), &json!("topk")));
    let curves = &data["groups"][0]["curves"];
    assert_eq!(curves["loss over steps"].as_array().unwrap().len(), 40);
    // Steps 19 and 39; the mean of three seeds, 2, 3 and 4 hundredths above the step's.
    let rounded = |point: &Value| [&point[0], &point[1]].map(|value| (1e6 * value.as_f64().unwrap()).round() / 1e6);
    let accuracies: Vec<_> = curves["test accuracy over steps"].as_array().unwrap().iter().map(rounded).collect();
    assert_eq!(accuracies, [[19.0, 0.22], [39.0, 0.42]]);
    let first = &data["groups"][0]["runs"][0]["evaluations"][0];
    assert_eq!((&first["bytes"], &first["step"]), (&json!(20e6), &json!(19)));
}

#[test]
fn a_run_in_any_state_has_a_page_that_says_what_is_missing() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("cut");
    fs::create_dir(&folder).unwrap();
    let nan = line(1, 2.0, 1.0).to_string().replace("\"loss\":1.0", "\"loss\":\"NaN\"");
    let lines = format!("{}\nrubbish\n{nan}\n{{\"step\":2}}\n{{\"step\":3,\"loss\":1.", line(0, 2.0, 2.0));
    fs::write(folder.join("metrics.jsonl"), lines).unwrap();
    fs::write(folder.join("summary.json"), "{\"final_test_accuracy\": \"NaN\", \"interrupted\": true}").unwrap();
    let output = report(home.path(), "cut/metrics.jsonl");
    let said = String::from_utf8(output.stderr).unwrap();
    for note in [
        "no config.toml",
        "lines of metrics.jsonl that cannot be read: 1",
        "the last line of metrics.jsonl is cut off",
        "the run was interrupted",
    ] {
        assert!(said.contains(&format!("note: cut: {note}")), "{note}: {said}");
    }
    let page = fs::read_to_string(home.path().join("report.html")).unwrap();
    with_document(&page, |page| {
        let all = text(page.root_element());
        assert!(all.contains("the run was interrupted") && all.contains("not a number"), "{all}");
        let paths = page.descendants().filter_map(|node| node.attribute("d"));
        paths.for_each(|path| assert!(!path.contains("NaN") && !path.contains("inf"), "{path}"));
    });

    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    fs::write(empty.join("metrics.jsonl"), "").unwrap();
    assert!(succeeds(home.path(), "empty").contains("0 steps"));
    with_document(&fs::read_to_string(empty.join("report.html")).unwrap(), |_| {});
}

/// Rank 0 waited for rank 1, which left no record.
#[test]
fn a_failed_run_says_who_waited_for_whom() {
    let home = TempDir::new().unwrap();
    write(&home.path().join("runs/dense"), 1, 1.0);
    let transfers = home.path().join("runs/dense/transfers");
    fs::create_dir(&transfers).unwrap();
    let transfer = json!({
        "way": "receive", "peer": 1, "bytes": 0, "operation": "all_gather", "step": 7, "bucket": 2, "channel": 0, "start": 10.0, "end": null,
    });
    let failure = json!({"message": "rank 1 lost <here>", "blames": [1], "stopped_by": null, "at": 13.5});
    let record = json!({"rank": 0, "world": 2, "failure": failure, "transfers": [transfer]});
    fs::write(transfers.join("rank-0.json"), record.to_string()).unwrap();
    fs::write(transfers.join("rank-1.new"), "half a file").unwrap();
    let output = report(home.path(), "runs");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the run failed: rank 1 left no record; rank 0 says: rank 1 lost <here>"), "{said}");
    with_document(&fs::read_to_string(home.path().join("runs/report.html")).unwrap(), |page| {
        let rows: Vec<Vec<String>> = elements(page, "tr")
            .iter()
            .map(|row| row.children().filter(Node::is_element).map(text).collect())
            .collect();
        let row = ["0", "rank 1 lost <here>", "from rank 1 in all_gather of bucket 2", "7", "3.5 s"];
        assert!(rows.iter().any(|of| of == &row), "{rows:?}");
    });
}

/// A long run is thinned while it is read, and of many runs all are in the table.
#[test]
fn long_runs_and_many_runs_have_pages_of_a_bounded_size() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("long");
    fs::create_dir(&folder).unwrap();
    let lines: String = (0..20_000).map(|step| format!("{}\n", line(step, 2.0, 1.0))).collect();
    fs::write(folder.join("metrics.jsonl"), lines).unwrap();
    let data: Value = serde_json::from_str(&succeeds(home.path(), "long --json")).unwrap();
    let points = data["groups"][0]["curves"]["loss over steps"].as_array().unwrap();
    assert!((400..=800).contains(&points.len()), "{}", points.len());
    assert_eq!(points.last().unwrap()[0], json!(19_999.0));
    assert!(points.iter().all(|point| point[1] == json!(1.0)));
    let run = &data["groups"][0]["runs"][0];
    assert_eq!(run["points"].as_array().unwrap().last().unwrap()["bytes"], json!(20_000.0 * 5e5));
    assert!(run["layers"].as_array().unwrap().len() <= 40);

    for number in 0..300 {
        write(&home.path().join(format!("many/{number}")), 1, 1.0 + f64::from(number));
    }
    succeeds(home.path(), "many");
    let page = fs::read_to_string(home.path().join("many/report.html")).unwrap();
    with_document(&page, |page| assert_eq!(text(elements(page, "h1")[0]), "Comparison of 300 configurations"));
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
}

/// In the browser that is at hand: everything is drawn, and its console stays empty.
#[test]
fn a_browser_draws_the_page_and_complains_of_nothing() {
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let Some(browser) = browsers.into_iter().find_map(|name| which::which(name).ok()) else {
        println!("skipped: no {} here", browsers.join(", no "));
        return;
    };
    let home = TempDir::new().unwrap();
    write(&home.path().join("runs/dense"), 1, 1.0);
    write(&home.path().join("runs/topk"), 1, 10.0);
    succeeds(home.path(), "runs");
    let page = home.path().join("runs/report.html").canonicalize().unwrap();
    let profile = format!("--user-data-dir={}", home.path().join("profile").display());
    let [dom, log] = ["dom", "log"].map(|name| home.path().join(name));
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom", &profile]);
    command.arg(format!("file://{}", page.display()));
    let mut running = command.stdout(File::create(&dom).unwrap()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    let start = Instant::now();
    while running.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(120) {
            running.kill().unwrap();
            running.wait().unwrap();
            panic!("the browser did not end: {}", fs::read_to_string(&log).unwrap());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let [dom, log] = [dom, log].map(|file| String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned());
    assert!(dom.matches("<svg").count() >= 9 && dom.contains("20x is faster"), "{log}\n{dom}");
    assert!(!log.contains("CONSOLE"), "{log}");
}
