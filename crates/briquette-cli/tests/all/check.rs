//! `briquette check`: the verdict on settings in a file.

use std::process::{Command, Output};

/// Writes the settings to a file and checks them. Returns the exit code, and both outputs as text.
fn check(settings: &str, flags: &[&str]) -> (Option<i32>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settings.toml");
    std::fs::write(&file, settings).unwrap();
    let path = file.to_str().expect("a path");
    run(&[&["check", "--config", path], flags].concat())
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let command = env!("CARGO_BIN_EXE_briquette");
    let Output { status, stdout, stderr } = Command::new(command).args(arguments).output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn settings_that_go_together_are_printed_with_their_reasons() {
    let (code, out, error) = check("reducer = \"gather:topk:20x\"\n", &["--world", "4", "--optimizer", "adam"]);
    assert_eq!((code, &*error), (Some(0), ""), "{out}");
    for line in [
        "strategy every-step, because no other was named",
        "reducer gather:topk:20x, as given",
        "controller none, because reducer gather has the ratio that was named",
        "feedback error, because the optimizer is an optimizer with momentum",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert_eq!(out.lines().last(), Some("ok"));
    // Nothing named is the default, for any optimizer and any number of ranks.
    assert_eq!(check("", &[]).0, Some(0));
}

#[test]
fn a_conflict_names_what_to_do_instead() {
    for (settings, flags, words) in [
        (
            "strategy = \"diloco\"\nfeedback = \"momentum\"\n",
            &[][..],
            ["strategy diloco does not go with feedback momentum:0.9", "use feedback error"],
        ),
        (
            "aggregator = \"krum:1\"\n",
            &["--world", "4"],
            ["a world of 4 ranks: it needs at least 5", "start more ranks"],
        ),
        (
            "reducer = \"gather:topk:20x\"\nfeedback = \"momentum\"\n",
            &["--optimizer", "sgd-momentum:0.8"],
            ["SGD, momentum 0.8", "feedback inner-momentum:0.8 or error"],
        ),
        ("strategy = \"two-level:(every-step)\"\n", &[], ["strategy two-level", "reducer hierarchical"]),
    ] {
        let (code, out, error) = check(settings, flags);
        assert_eq!((code, &*error), (Some(2), ""), "{settings}: {out}");
        let verdict = out.lines().last().unwrap_or_default();
        assert!(verdict.starts_with("conflict: "), "{settings}: {out}");
        assert!(words.iter().all(|word| verdict.contains(word)), "{words:?}: {verdict}");
    }
}

#[test]
fn the_file_of_a_run_is_read_under_its_table() {
    let run = |ranks: usize, optimizer: &str, feedback: &str| {
        format!(
            "run = \"7\"\nranks = {ranks}\nlr = 0.1\noptimizer = \"{optimizer}\"\nmomentum = 0.9\naugment = \"flip\"\n\
             controller = \"schedule:from=4x,epochs=1\"\n[config]\nstrategy = \"every-step\"\n\
             reducer = \"gather:topk:20x:q8\"\nfeedback = \"{feedback}\"\ncontroller = \"none\"\n"
        )
    };
    let (code, out, error) = check(&run(4, "sgd", "momentum:0.9"), &[]);
    assert_eq!(code, Some(0), "{out}{error}");
    assert!(out.contains("controller schedule:from=4x,epochs=1, as given"), "{out}");
    let (code, out, _) = check(&run(4, "adam", "momentum:0.9"), &[]);
    assert!(code == Some(2) && out.contains("use SGD without momentum, or feedback error"), "{out}");
    // A flag wins over the file.
    assert_eq!(check(&run(4, "adam", "momentum:0.9"), &["--optimizer", "sgd"]).0, Some(0));
    // Every optimizer of the trainers that has a momentum.
    for optimizer in ["comp-ams", "padamw", "generic-adam", "sign-sgd", "delayed-adagrad-momentum", "ftrl-sgd", "adam"]
    {
        assert_eq!(check(&run(4, optimizer, "momentum:0.9"), &[]).0, Some(2), "{optimizer}");
    }
    assert_eq!(check(&run(4, "delayed-adagrad", "momentum:0.9"), &[]).0, Some(0));
    let server = "ranks = 3\nserver = \"backup:4,spare=1\"\n[config]\nstrategy = \"every-step\"\nreducer = \"dense\"\n\
                  feedback = \"none\"\ncontroller = \"none\"\n";
    let (code, out, _) = check(server, &[]);
    assert!(code == Some(2) && out.contains("server backup:4,spare=1 does not go with 2 workers"), "{out}");
    assert_eq!(check(server, &["--world", "6"]).0, Some(0));
}

#[test]
fn a_bad_file_is_named_with_line_and_key() {
    let (code, _, error) = run(&["check", "--config", "no-such-file.toml"]);
    assert!(code == Some(1) && error.contains("no-such-file.toml"), "{error}");
    for (settings, words) in [
        ("reducer = \"dense\"\nfedback = \"error\"\n", &["settings.toml, line 2", "`fedback`", "[config]"][..]),
        ("ranks = 4\n\n[config]\nfedback = \"error\"\n", &["settings.toml, line 4", "`fedback`"]),
        ("\nreducer = \"gathr\"\n", &["settings.toml, line 2", "gathr", "gather"]),
        ("reducer = \"dense\"\nthreads = \"many\"\n", &["settings.toml, line 2", "many"]),
        ("reducer = \n", &["settings.toml, line 1"]),
        ("compressor = \"topk:8x\"\n[config]\nreducer = \"dense\"\n", &["line 1", "`compressor`", "under [config]"]),
    ] {
        let (code, out, error) = check(settings, &[]);
        assert_eq!((code, &*out), (Some(1), ""), "{settings}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
    let (code, _, error) = check("", &["--optimizer", "adm"]);
    assert!(code == Some(2) && error.contains("sgd-momentum"), "{error}");
    assert_eq!(check("", &["--world", "0"]).0, Some(2));
}

#[test]
fn help_teaches_with_an_example() {
    let (code, out, _) = run(&["check", "--help"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("briquette check --config runs/mine/config.toml --optimizer adam"), "{out}");
    // The example of the help is a conflict.
    assert_eq!(check("strategy = \"diloco\"\nfeedback = \"momentum\"\n", &["--world", "8"]).0, Some(2));
}
